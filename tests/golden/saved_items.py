"""Golden items that the package itself saves."""

from pathlib import Path
from typing import Literal

import numpy as np
from golden.words import narrow, noise

import orbax_gds
from orbax_gds.dtypes import DTYPES, Dtype, dtype_by_name

BF16, FP32 = dtype_by_name("bfloat16"), dtype_by_name("float32")


def write_saved_item(directory: Path) -> None:
    """Save a tree with every dtype and every type of leaf by the package itself."""
    tree: dict[str, object] = {
        dtype.name: words_as(dtype, (3, 5) if dtype.id % 3 else ()) for dtype in DTYPES
    }
    tree |= {"int": 2**70, "float": -0.0, "complex": 1j, "bool": True, "str": "é", "bytes": b"\0"}
    tree |= {"none": None, "dict": {}, "list": [[], ()], "empty": np.zeros((0, 2), np.float32)}
    bf16 = dtype_by_name("bfloat16")
    tree["matrix"] = bf16.elements(narrow(bf16, 40 * 50, 31), (40, 50))
    orbax_gds.save(directory, tree)


def words_as(dtype: Dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Return elements of this shape with arbitrary bits, those of a bool 0 or 1."""
    n_words = int(np.prod(shape)) * dtype.words_per_element
    words = noise(dtype, n_words, 41) & (1 if dtype.name == "bool" else ~dtype.word_dtype.type(0))
    return dtype.elements(words, shape)


def write_coded_item(directory: Path, codec: Literal["auto", "max"]) -> None:
    """Save a train state whose leaves differ in what codes them best."""
    master = narrow(FP32, 64 * 128, 51)
    compute = (master + 32767 + (master >> 16 & 1) >> 16).astype(np.uint16)
    shape = (64, 64)
    tree = {
        "params": {
            "master": FP32.elements(master, (64, 128)),
            "compute": BF16.elements(compute, (64, 128)),
            "from_bfloat16": FP32.elements(narrow(BF16, 64 * 64, 52).astype("u4") << 16, shape),
            "half": dtype_by_name("float16").elements(
                narrow(dtype_by_name("float16"), 64 * 64, 53), shape
            ),
            "quantized": dtype_by_name("float8_e4m3fn").elements(
                narrow(dtype_by_name("float8_e4m3fn"), 64 * 256, 54), (64, 256)
            ),
        },
        "mu": FP32.elements(moments(64, 55) | noise(FP32, 64 * 64, 56) << 31, shape),
        "nu": FP32.elements(moments(64, 57), shape),
        "tokens": noise(dtype_by_name("int32"), 64 * 64, 58).astype(np.int32) % 1000,
        "mask": noise(dtype_by_name("uint8"), 64 * 256, 59) % 5 == 0,
        "step": 7,
    }
    options = orbax_gds.Options(codec=codec, chunk_bytes="16KiB")
    orbax_gds.save(directory, tree, options=options)


def moments(side: int, seed: int) -> np.ndarray:
    """Return float32 words of a square matrix, exponents by row and column, without signs."""
    places = np.arange(side * side)
    rows, cols = noise(dtype_by_name("uint16"), side, seed), noise(BF16, side, seed + 1)
    below = rows[places // side] % 9 + cols[places % side] % 6
    exponents = 120 - below.astype(np.uint32) - (noise(BF16, side * side, seed + 2) % 4 == 0)
    return exponents << 23 | noise(FP32, side * side, seed + 3) >> 9
