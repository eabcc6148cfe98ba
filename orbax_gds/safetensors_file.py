"""Files of safetensors, read and written a piece at a time, so that memory is bounded.

The library of that name takes and gives whole files in memory; the tests hold this against it.
"""

import collections
import contextlib
import json
import math
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any

import msgspec
import numpy as np

from orbax_gds.drivers.protocol import byte_view
from orbax_gds.dtypes import Dtype, dtype_by_name
from orbax_gds.errors import Corrupt, Exists, Unsupported
from orbax_gds.hard_links import NO_LINKS

__all__ = [
    "Tensor",
    "is_safetensors",
    "read_metadata",
    "safetensors_arrays",
    "safetensors_dtypes",
    "write_safetensors",
]

_MAX_HEADER_BYTES = 100 << 20  # chosen: as in the safetensors library

_SAFETENSORS_DTYPES = {  # to FORMAT §5
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "C64": "complex64",
}
_NAMES = {ours: theirs for theirs, ours in _SAFETENSORS_DTYPES.items()}
_METADATA = "__metadata__"
_HEADER_ALIGNMENT = 8  # required: by readers that map the file


class Tensor(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor of a file: its name, dtype of FORMAT §5 and shape."""

    name: str
    dtype: Dtype
    shape: tuple[int, ...]

    @property
    def n_bytes(self) -> int:
        """Length of its words."""
        return math.prod(self.shape) * self.dtype.element_bytes


def safetensors_dtypes() -> frozenset[str]:
    """Return the dtypes of FORMAT §5 that such a file can hold."""
    return frozenset(_NAMES)


def is_safetensors(path: str | os.PathLike[str]) -> bool:
    """Return whether a file begins as one of safetensors does."""
    try:
        with open(path, "rb") as file:
            head = file.read(9)
            n_bytes = os.fstat(file.fileno()).st_size
    except OSError:
        return False
    header_bytes = int.from_bytes(head[:8], "little")
    return head[8:9] == b"{" and header_bytes <= min(n_bytes - 8, _MAX_HEADER_BYTES)


def read_metadata(path: str | os.PathLike[str]) -> Mapping[str, str]:
    """Return the texts that a file has beside its tensors.

    Raises:
        Corrupt: the header is damaged.
    """
    path = FilePath(path)
    return _header(path, _mapped(path)).metadata


def write_safetensors(
    path: str | os.PathLike[str],
    tensors: Sequence[Tensor],
    words: Iterable[Iterable[np.ndarray]],
    metadata: Mapping[str, str],
) -> int:
    """Write a file; it appears under its name when all of it is durable.

    Args:
        path: where nothing is yet.
        tensors: in the order in which they lie there, of dtypes that such a file can hold. Put
            those with longer words first, so that all are aligned.
        words: of each tensor its bytes in C order, in any number of pieces uint8[n].
        metadata: texts to keep beside them.

    Returns:
        Length of the file.

    Raises:
        Exists: there is something at the path.
        Unsupported: names and shapes take more than a header may.
        OSError: the system refused; nothing is left behind.
    """
    path = FilePath(path)
    if os.path.lexists(path):
        raise Exists(f"{path} exists already. Give another place, or delete it.")
    header = _encode_header(tensors, metadata)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(header)
            for tensor, pieces in zip(tensors, words, strict=True):
                n_bytes = sum(file.write(byte_view(piece)) for piece in pieces)
                assert n_bytes == tensor.n_bytes, f"{tensor.name}: {n_bytes} bytes"
            file.flush()
            os.fsync(file.fileno())
            n_bytes = file.tell()
        _give_name(temporary, path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return n_bytes


def _give_name(temporary: FilePath, path: FilePath) -> None:
    """Give a file its name, unless another has it by now."""
    try:
        os.link(temporary, path)
    except FileExistsError as err:
        raise _appeared(path) from err
    except OSError as err:
        if err.errno not in NO_LINKS:
            raise
        _rename_new(temporary, path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _rename_new(temporary: FilePath, path: FilePath) -> None:
    """Rename a file onto a name that nobody else has: it is taken first, which one alone can."""
    try:
        path.touch(exist_ok=False)
    except FileExistsError as err:
        raise _appeared(path) from err
    try:
        os.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise


def _appeared(path: FilePath) -> Exists:
    return Exists(f"{path} has appeared meanwhile. Give another place, or delete it.")


def _encode_header(tensors: Sequence[Tensor], metadata: Mapping[str, str]) -> bytes:
    entries: dict[str, object] = {_METADATA: dict(metadata)} if metadata else {}
    at = 0
    for tensor in tensors:
        place = [at, at + tensor.n_bytes]
        dtype = _NAMES[tensor.dtype.name]
        entries[tensor.name] = {"dtype": dtype, "shape": tensor.shape, "data_offsets": place}
        at = place[1]
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _HEADER_ALIGNMENT)
    if len(text) > _MAX_HEADER_BYTES:
        raise Unsupported(
            f"The header would take {len(text)} bytes, and readers take at most "
            f"{_MAX_HEADER_BYTES}. Convert fewer leaves, or to another format."
        )
    return len(text).to_bytes(8, "little") + text


def safetensors_arrays(
    path: str | os.PathLike[str],
) -> Iterator[tuple[str, np.ndarray | Unsupported]]:
    """Yield name and tensor of a safetensors file, in the order of the file.

    Instead of a tensor of a dtype that is not in FORMAT §5 comes the reason why there is none.

    The file is mapped, so that only what is used is read.

    Args:
        path: 8 bytes of header length, a JSON header, then the tensors.

    Raises:
        Corrupt: The header is damaged, or the tensors do not fill the file one behind another.
    """
    path = FilePath(path)
    content = _mapped(path)
    header = _header(path, content)
    start = header.n_bytes
    for name, entry in header.entries:
        begin, end = entry["data_offsets"]
        shape = tuple(entry["shape"])
        try:
            dtype = _dtype(entry["dtype"])
        except Unsupported as error:
            yield name, error
            continue
        n_bytes = math.prod(shape) * dtype.itemsize
        if end - begin != n_bytes:
            raise Corrupt(
                f"{path}: tensor {name!r} lies in bytes {begin} to {end} of "
                f"{content.size - start}, and {entry['dtype']}{list(shape)} takes {n_bytes}."
            )
        tensor = content[start + begin : start + end]
        if (start + begin) % dtype.itemsize:
            tensor = tensor.copy()  # NumPy views words only where they are aligned
        try:
            yield name, tensor.view(np.ndarray).view(dtype).reshape(shape)
        except (ValueError, OverflowError) as err:
            yield name, Unsupported(f"NumPy has no arrays of this shape: {err}")


def _mapped(path: FilePath) -> np.ndarray:
    return np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)


def _dtype(name: str) -> np.dtype:
    if name not in _SAFETENSORS_DTYPES:
        raise Unsupported(
            f"dtype {name} is none of {', '.join(_SAFETENSORS_DTYPES)}. Convert it to one of these."
        )
    return dtype_by_name(_SAFETENSORS_DTYPES[name]).numpy_dtype


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    """What the head of a file says: its length, and the tensors in the order of their bytes."""

    n_bytes: int
    entries: list[tuple[str, dict[str, Any]]]
    metadata: dict[str, str]


def _header(path: FilePath, content: np.ndarray) -> _Header:
    """Read and check the head of a file, as strictly as the library does.

    Raises:
        Corrupt: it is damaged, names a tensor twice, or the tensors overlap or leave bytes between
            them or behind them.
    """
    n_bytes = int.from_bytes(content[:8].tobytes(), "little")
    if content.size < 8 or n_bytes > min(content.size - 8, _MAX_HEADER_BYTES):
        raise Corrupt(f"{path} is no safetensors file: its header would be {n_bytes} bytes long.")
    try:
        header = json.loads(content[8 : 8 + n_bytes].tobytes(), object_pairs_hook=_unique)
        metadata = header.pop(_METADATA, None)
        metadata = {} if metadata is None else metadata
        if not all(isinstance(text, str) for text in (*metadata.keys(), *metadata.values())):
            raise TypeError(f"{_METADATA} is not of texts")
        for name, entry in header.items():
            name.encode()
            begin, end = entry["data_offsets"]
            numbers = [begin, end, *entry["shape"]]
            if not all(type(n) is int and n >= 0 for n in numbers) or not isinstance(
                entry["dtype"], str
            ):
                raise TypeError("an entry has no offsets, shape and dtype")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as err:
        raise Corrupt(f"{path} is no safetensors file: {err!r} in its header.") from err
    entries = sorted(header.items(), key=lambda item: item[1]["data_offsets"])
    _check_offsets(path, entries, content.size - 8 - n_bytes)
    return _Header(n_bytes=8 + n_bytes, entries=entries, metadata=metadata)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a name that is given twice, of which JSON readers would keep one."""
    found = dict(pairs)
    if len(found) < len(pairs):
        (name, _), *_ = collections.Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{name!r} is given twice")
    return found


def _check_offsets(
    path: FilePath, entries: Sequence[tuple[str, dict[str, Any]]], n_bytes: int
) -> None:
    at = 0
    for name, entry in entries:
        begin, end = entry["data_offsets"]
        if begin != at or not begin <= end <= n_bytes:
            raise Corrupt(
                f"{path}: tensor {name!r} lies in bytes {begin} to {end} of {n_bytes}, and the one "
                f"before ends at {at}. The file is cut or damaged: get it again."
            )
        at = end
    if at != n_bytes:
        raise Corrupt(
            f"{path}: the tensors end at byte {at} of {n_bytes}. The file is damaged: get it again."
        )
