"""Words of the golden files, which need no library to be made again."""

import numpy as np

from orbax_gds.dtypes import SPLITS, Dtype, dtype_by_name


def noise(dtype: Dtype, n: int, seed: int) -> np.ndarray:
    """Return words of a linear congruential generator."""
    state, values = seed * 2654435761 + dtype.id, []
    for _ in range(n):
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        values.append(state >> 11 & (1 << dtype.bits) - 1 if dtype.bits <= 32 else state)
    return np.array(values, np.uint64).astype(dtype.word_dtype)


def narrow(dtype: Dtype, n: int, seed: int) -> np.ndarray:
    """Return words of a split dtype with exponents in a window and now and then an escape."""
    words = noise(dtype, n, seed)
    split = SPLITS[str(dtype.split)]
    shift, top = split.mantissa_bits, 1 << split.exponent_bits
    below = np.array([0, 0, 1, 0, 2, 0, 1, 3, 0, 1, 0, 5, 2, 0, 1, 77], np.int64)
    exponents = (top // 2 - 2 - below[noise(dtype_by_name("uint8"), n, seed + 1) % 16]) % top
    exponents = exponents.astype(np.uint64) << np.uint64(shift)
    return (words & ~dtype.word_dtype.type(top - 1 << shift)) | exponents.astype(dtype.word_dtype)


def blocks(dtype: Dtype) -> np.ndarray:
    """Return words with a block of zeros, a constant block and a short normal one."""
    constant = np.full(256, noise(dtype, 9, 5)[-1] | 1)
    normal = narrow(dtype, 21, 3) if dtype.split else noise(dtype, 21, 3)
    return np.concatenate([np.zeros(256, dtype.word_dtype), constant, normal])
