"""The user's own arrays to code: of a file or of a saved item, read in parts of a chunk's size."""

import contextlib
import dataclasses
import functools
import math
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path as FilePath

import numpy as np

from orbax_gds.commit import io_context
from orbax_gds.dtypes import dtype_by_name, dtype_of, words_of
from orbax_gds.errors import Corrupt, NotFound, Unsupported
from orbax_gds.item import Item
from orbax_gds.listing import find_item
from orbax_gds.options import Options
from orbax_gds.plan import ShardBox
from orbax_gds.safetensors_file import safetensors_arrays

__all__ = ["Source", "Streams", "item_sources", "open_sources", "read_streams", "sources_of"]

_CHUNK_BYTES = int(Options().chunk_bytes)
Views = Mapping[str, str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """One array, read in rows of its first dimension.

    Attributes:
        name: where it comes from, for people.
        dtype: name in FORMAT §5.
        shape: as in the file.
        read: takes the first row and the end, gives C-contiguous rows; a 0-d array has one row.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    read: Callable[[int, int], np.ndarray]

    @property
    def n_rows(self) -> int:
        """Extent of the first dimension."""
        return self.shape[0] if self.shape else 1

    @property
    def n_bytes(self) -> int:
        """Length in memory."""
        return math.prod(self.shape) * dtype_by_name(self.dtype).element_bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Streams:
    """All that is coded of one dtype.

    Attributes:
        dtype: its name.
        arrays: the parts that were read.
        of_arrays, of_bytes: how many arrays there are, and their length.
    """

    dtype: str
    arrays: list[np.ndarray]
    of_arrays: int
    of_bytes: int

    @property
    def n_bytes(self) -> int:
        """Length of what was read."""
        return sum(array.nbytes for array in self.arrays)


def sources_of(path: FilePath, views: Views | None = None) -> tuple[list[Source], list[str]]:
    """List the arrays of a .npy, .npz or .safetensors file.

    Args:
        path: the file.
        views: dtype in the file → dtype that its words are; NumPy's files hold no bfloat16, and
            its words come as uint16, or as void of 2 bytes, which is taken for bfloat16 unasked.

    Returns:
        The arrays, and what was left out, for people.

    Raises:
        NotFound, IoError: the file cannot be read.
        Corrupt: it is not what its name says.
        Unsupported: its name says nothing that is known.
    """
    readers = {".npy": _npy, ".npz": _npz, ".safetensors": safetensors_arrays}
    reader = readers.get(path.suffix)
    if reader is None:
        raise Unsupported(
            f"{path} is no file that can be measured. Give a .npy, .npz or .safetensors file, or "
            "a step or item of orbax_gds."
        )
    found: list[Source] = []
    left_out: list[str] = []
    with io_context(path, "read"):
        for name, array in reader(path):
            try:
                if isinstance(array, Unsupported):
                    raise array
                array = _viewed(array, views or {})
                dtype = dtype_of(array.dtype).name
            except Unsupported as err:
                left_out.append(f"{name}: {err}")
                continue
            read = functools.partial(_rows, array)
            found.append(Source(name=name, dtype=dtype, shape=array.shape, read=read))
    return found, left_out


def item_sources(item: Item) -> list[Source]:
    """List the leaves of an opened item; only the frames that are wanted are read."""
    return [
        Source(
            name=item.leaf_name(leaf),
            dtype=dtype.name,
            shape=spec.shape,
            read=functools.partial(_leaf_rows, item, leaf, spec.shape),
        )
        for leaf, (spec, dtype) in enumerate(zip(item.manifest.leaves, item.dtypes, strict=True))
        if dtype is not None and spec.shape is not None
    ]


def read_streams(
    sources: Sequence[Source], *, limit_bytes: int | None, dtypes: Sequence[str] = ()
) -> list[Streams]:
    """Read arrays by dtype, all or parts that are spread evenly over them.

    Args:
        sources: the arrays.
        limit_bytes: most bytes to read in all, at least one part of each dtype; None for all.
        dtypes: only these, all without it.

    Returns:
        One entry a dtype that has words, the largest first.
    """
    by_dtype: dict[str, list[Source]] = {}
    for source in sources:
        if source.n_bytes and (not dtypes or source.dtype in dtypes):
            by_dtype.setdefault(source.dtype, []).append(source)
    total = sum(source.n_bytes for own in by_dtype.values() for source in own)
    share = 1.0 if limit_bytes is None else min(1.0, limit_bytes / max(1, total))
    streams = [
        Streams(
            dtype=dtype,
            arrays=[source.read(first, end) for source, first, end in _parts(own, share)],
            of_arrays=len(own),
            of_bytes=sum(source.n_bytes for source in own),
        )
        for dtype, own in by_dtype.items()
    ]
    return sorted(streams, key=lambda one: (-one.of_bytes, one.dtype))


def open_sources(
    path: FilePath, views: Views | None = None
) -> tuple[contextlib.AbstractContextManager[object], list[Source], list[str]]:
    """List the arrays that a path means: a file, or a step or item of ours.

    Returns:
        What must be closed when all is read, the arrays, and what was left out.

    Raises:
        NotFound: there is nothing at the path.
    """
    if path.is_file():
        return contextlib.nullcontext(), *sources_of(path, views)
    if not path.exists():
        raise NotFound(f"There is nothing at {path}. Give a file, or a step or item of orbax_gds.")
    item = Item(find_item(path))
    return item, item_sources(item), []


def _parts(sources: Sequence[Source], share: float) -> Iterator[tuple[Source, int, int]]:
    """Yield ranges of rows as long as chunks, so many that they are a share of all."""
    if share >= 1.0:
        yield from ((source, 0, source.n_rows) for source in sources)
        return
    parts = []
    for source in sources:
        rows = max(1, _CHUNK_BYTES // (source.n_bytes // source.n_rows))
        firsts = range(0, source.n_rows, rows)
        parts += [(source, first, min(first + rows, source.n_rows)) for first in firsts]
    n = max(1, int(len(parts) * share))
    for i in range(n):
        yield parts[(2 * i + 1) * len(parts) // (2 * n)]


def _leaf_rows(item: Item, leaf: int, shape: tuple[int, ...], first: int, end: int) -> np.ndarray:
    if not shape:
        return item.read_leaf(leaf)
    start = (first,) + (0,) * (len(shape) - 1)
    return item.read_box(ShardBox(leaf=leaf, start=start, extent=(end - first, *shape[1:])))


def _rows(array: np.ndarray, first: int, end: int) -> np.ndarray:
    return np.ascontiguousarray(array[first:end] if array.ndim else array)


def _viewed(array: np.ndarray, views: Views) -> np.ndarray:
    name = views.get(array.dtype.name)
    if name is None:
        is_void = array.dtype.kind == "V" and array.dtype.fields is None
        if not (is_void and array.dtype.itemsize == 2):
            return array
        name = "bfloat16"
    target = dtype_by_name(name).numpy_dtype
    if target.itemsize != array.dtype.itemsize:
        raise Unsupported(f"{array.dtype.name} cannot be viewed as {name}: other widths")
    viewed = np.ascontiguousarray(array).view(target).reshape(array.shape)
    words, bits = words_of(viewed), dtype_by_name(name).bits
    if words.size and int(words.max()) >> bits:
        raise Unsupported(
            f"{array.dtype.name} cannot be viewed as {name}: bits above {bits} are set in some "
            "words. Unpack them to one word a byte, or leave --view out."
        )
    return viewed


def _npy(path: FilePath) -> Iterator[tuple[str, np.ndarray]]:
    try:
        yield path.stem, np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as err:
        raise Corrupt(f"{path} is no .npy file that can be read: {err}") from err


def _npz(path: FilePath) -> Iterator[tuple[str, np.ndarray]]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            for name in archive.files:
                yield name, archive[name]
    except (ValueError, EOFError, zipfile.BadZipFile) as err:
        raise Corrupt(f"{path} is no .npz file that can be read: {err}") from err
