"""Arrays out of the files that people keep weights in, without the libraries that wrote them."""

import json
import os
from collections.abc import Iterator
from pathlib import Path as FilePath

import numpy as np

from orbax_gds.dtypes import dtype_by_name
from orbax_gds.errors import Corrupt, Unsupported

__all__ = ["safetensors_arrays"]

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


def safetensors_arrays(
    path: str | os.PathLike[str],
) -> Iterator[tuple[str, np.ndarray | Unsupported]]:
    """Yield name and tensor of a safetensors file, in the order of the file.

    Instead of a tensor of a dtype that is not in FORMAT §5 comes the reason why there is none.

    The file is mapped, so that only what is used is read.

    Args:
        path: 8 bytes of header length, a JSON header, then the tensors.

    Raises:
        Corrupt: The header is damaged, or a tensor lies outside the file.
    """
    path = FilePath(path)
    content = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)
    start, entries = _header(path, content)
    for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
        try:
            dtype = _dtype(entry["dtype"])
        except Unsupported as error:
            yield name, error
            continue
        begin, end = entry["data_offsets"]
        shape = tuple(entry["shape"])
        n_bytes = int(np.prod(shape, dtype=object)) * dtype.itemsize
        if not 0 <= begin <= end <= content.size - start or end - begin != n_bytes:
            raise Corrupt(
                f"{path}: tensor {name!r} lies in bytes {begin} to {end} of "
                f"{content.size - start}, and {entry['dtype']}{list(shape)} takes {n_bytes}."
            )
        tensor = content[start + begin : start + end]
        if (start + begin) % dtype.itemsize:
            tensor = tensor.copy()  # NumPy views words only where they are aligned
        yield name, tensor.view(np.ndarray).view(dtype).reshape(shape)


def _dtype(name: str) -> np.dtype:
    if name not in _SAFETENSORS_DTYPES:
        raise Unsupported(
            f"dtype {name} is none of {', '.join(_SAFETENSORS_DTYPES)}. Convert it to one of these."
        )
    return dtype_by_name(_SAFETENSORS_DTYPES[name]).numpy_dtype


def _header(path: FilePath, content: np.ndarray) -> tuple[int, dict]:
    n_bytes = int.from_bytes(content[:8].tobytes(), "little")
    if content.size < 8 or n_bytes > min(content.size - 8, _MAX_HEADER_BYTES):
        raise Corrupt(f"{path} is no safetensors file: its header would be {n_bytes} bytes long.")
    try:
        header = json.loads(content[8 : 8 + n_bytes].tobytes())
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        for entry in entries.values():
            begin, end = entry["data_offsets"]
            numbers = [begin, end, *entry["shape"]]
            if not all(type(n) is int and n >= 0 for n in numbers) or not isinstance(
                entry["dtype"], str
            ):
                raise TypeError("an entry has no offsets, shape and dtype")
    except (ValueError, TypeError, KeyError, AttributeError) as err:
        raise Corrupt(f"{path} is no safetensors file: {err!r} in its header.") from err
    return 8 + n_bytes, entries
