"""Lazy leaves: an item as a mapping of arrays that are read only where they are indexed."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from types import EllipsisType

import numpy as np

from orbax_gds.dtypes import Dtype
from orbax_gds.errors import NotFound
from orbax_gds.item import Item
from orbax_gds.manifest import LeafSpec, Path, path_text
from orbax_gds.options import Options
from orbax_gds.plan import ShardBox

Index = int | slice | EllipsisType


def open(path: str | os.PathLike[str], *, options: Options | None = None) -> "OpenedItem":
    """Open an item to read single leaves, or parts of them, as NumPy arrays, without jax.

    Args:
        path: directory of the item.
        options: how to read; None takes the defaults and the environment.

    Returns:
        A mapping from leaf path to lazy leaf; close it, or use it as a context manager.

    Raises:
        NotFound: there is no published item.
        Corrupt: manifest, layout or index is damaged. Frames are checked when they are read.

    Example:
        >>> import tempfile, numpy as np, orbax_gds as ogds
        >>> path = tempfile.mkdtemp() + "/item"
        >>> _ = ogds.save(path, {"w": np.arange(6.0).reshape(2, 3)})
        >>> with ogds.open(path) as item:
        ...     item["w"][1, :2]
        array([3., 4.])
    """
    return OpenedItem(Item(path, options=options))


class OpenedItem(Mapping[str | Path, "LazyLeaf"], AbstractContextManager["OpenedItem"]):
    """The leaves of an open item that have words.

    A key is the text of the path, keys joined by "/", or the typed path of the manifest.
    Iteration gives the text, or the typed path of leaves whose text is not unique.
    """

    def __init__(self, item: Item) -> None:
        self.item = item
        specs = [(i, spec) for i, spec in enumerate(item.manifest.leaves) if spec.has_words]
        self._typed = {spec.path: i for i, spec in specs}
        texts = Counter(path_text(spec.path) for _, spec in specs)
        self._texts = {text: i for i, spec in specs if texts[text := path_text(spec.path)] == 1}

    def __getitem__(self, key: str | Path) -> "LazyLeaf":
        leaf = self._texts.get(key) if isinstance(key, str) else self._typed.get(key)
        if leaf is None:
            raise NotLeaf(self.item, key)
        dtype = self.item.dtypes[leaf]
        assert dtype is not None
        return LazyLeaf(self.item, leaf, dtype)

    def __iter__(self) -> Iterator[str | Path]:
        for path, leaf in self._typed.items():
            text = path_text(path)
            yield text if self._texts.get(text) == leaf else path

    def __len__(self) -> int:
        return len(self._typed)

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the item; its lazy leaves can no longer be read."""
        self.item.close()


class NotLeaf(NotFound, KeyError):
    """An opened item has no leaf of that name, or the name fits several."""

    def __init__(self, item: Item, key: object) -> None:
        super().__init__(
            f"{item.path} has no leaf {key!r}, or several whose path reads so. "
            "Iterate over the opened item for its keys, or use a typed path."
        )

    __str__ = OSError.__str__


class LazyLeaf:
    """One leaf of an open item; indexing reads only the chunks that the index meets.

    Attributes:
        spec: what the manifest says of it.
        shape: global shape, in elements.
        dtype: NumPy type of the elements; a PRNG key shows its key data.
    """

    def __init__(self, item: Item, leaf: int, dtype: Dtype) -> None:
        self._item, self._leaf = item, leaf
        self.spec: LeafSpec = item.manifest.leaves[leaf]
        self.shape: tuple[int, ...] = self.spec.shape or ()
        self.dtype: np.dtype = dtype.numpy_dtype

    def __repr__(self) -> str:
        extents = ",".join(map(str, self.shape))
        return f"<LazyLeaf {path_text(self.spec.path)!r}: {self.dtype}[{extents}]>"

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def __array__(self, dtype: np.dtype | None = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError(f"{self!r} lies on disk: it cannot become an array without a copy.")
        return np.asarray(self[...], dtype=dtype)

    def __getitem__(self, index: Index | tuple[Index, ...]) -> np.ndarray:
        """Read the part that integers, slices and `...` select, as NumPy does.

        Of a slice with a step, all that lies between its first and last element is read and held
        until the array that is returned goes.

        Raises:
            IndexError: an integer is out of range, or there are too many indices.
            TypeError: another kind of index, such as a bool or an array.
            Corrupt: a frame that is needed is damaged.
        """
        per_axis = _per_axis(index, self.shape)
        lows, extents, within = [], [], []
        for wanted, n in zip(per_axis, self.shape, strict=True):
            if isinstance(wanted, slice):
                steps = range(n)[wanted]
                low = min(steps[0], steps[-1]) if steps else 0
                high = max(steps[0], steps[-1]) + 1 if steps else 0
                within.append(slice(None, None, steps.step))
            else:
                low = range(n)[wanted]
                high = low + 1
                within.append(0)
            lows.append(low)
            extents.append(high - low)
        box = ShardBox(leaf=self._leaf, start=tuple(lows), extent=tuple(extents))
        return self._item.read_box(box)[tuple(within)]


def _per_axis(index: Index | tuple[Index, ...], shape: tuple[int, ...]) -> tuple[int | slice, ...]:
    parts = index if isinstance(index, tuple) else (index,)
    given: list[int | slice] = []
    fills: list[int] = []  # where "..." stands
    for part in parts:
        if isinstance(part, EllipsisType):
            fills.append(len(given))
        elif isinstance(part, slice):
            given.append(part)
        elif isinstance(part, int | np.integer) and not isinstance(part, bool):
            given.append(int(part))
        else:
            raise TypeError(f"A lazy leaf takes integers, slices and '...', not {index!r}.")
    if len(fills) > 1 or len(given) > len(shape):
        raise IndexError(f"{len(given)} indices for a leaf of shape {shape}.")
    at = fills[0] if fills else len(given)
    return (*given[:at], *[slice(None)] * (len(shape) - len(given)), *given[at:])
