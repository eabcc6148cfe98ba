"""Splits and fields of floating-point words in plain NumPy, written from FORMAT §7.2."""

import numpy as np

from orbax_gds.codecs.reference_bytes import Cursor
from orbax_gds.dtypes import Split


def split_words(words: np.ndarray, split: Split) -> tuple[np.ndarray, np.ndarray]:
    """Return exponents (int64) and rests (uint64: the sign above the mantissa) of words."""
    words = words.astype(np.uint64)
    sign = words >> np.uint64(split.mantissa_bits + split.exponent_bits)
    mantissa = words & np.uint64((1 << split.mantissa_bits) - 1)
    exponents = words >> np.uint64(split.mantissa_bits) & np.uint64((1 << split.exponent_bits) - 1)
    return exponents.astype(np.int64), sign << np.uint64(split.mantissa_bits) | mantissa


def join_words(
    exponents: np.ndarray, rests: np.ndarray, split: Split, word_dtype: np.dtype
) -> np.ndarray:
    """Undo `split_words`."""
    sign = rests >> np.uint64(split.mantissa_bits)
    top = sign << np.uint64(split.exponent_bits) | exponents.astype(np.uint64)
    mantissa = rests & np.uint64((1 << split.mantissa_bits) - 1)
    return (top << np.uint64(split.mantissa_bits) | mantissa).astype(word_dtype)


def field_widths(rest_bits: int) -> list[int]:
    """Return the bits of each field of a rest, from its top."""
    widths = [8] if rest_bits >= 8 else []
    left = rest_bits - sum(widths)
    widths += [16] * (left // 16)
    return widths + [left % 16] * (left % 16 > 0)


def encode_fields(rests: np.ndarray, rest_bits: int) -> bytes:
    """Return the planes of the fields of rests that have `rest_bits` bits."""
    planes, below = [], rest_bits
    for width in field_widths(rest_bits):
        below -= width
        field = rests >> np.uint64(below) & np.uint64((1 << width) - 1)
        if width == 16:
            planes.append(field.astype("<u2").tobytes())
            continue
        bitmaps = width
        if width >= 8:
            bitmaps = width - 8
            planes.append((field >> np.uint64(bitmaps)).astype("u1").tobytes())
        planes += [pack_bitmap(field >> np.uint64(bit) & 1) for bit in reversed(range(bitmaps))]
    return b"".join(planes)


def decode_fields(payload: Cursor, m: int, rest_bits: int) -> np.ndarray:
    """Return the rests (uint64) of m words from the planes of their fields."""
    rests = np.zeros(m, np.uint64)
    for width in field_widths(rest_bits):
        what = f"a field of {width} bits"
        if width == 16:
            rests = rests << np.uint64(16) | payload.array("<u2", m, what)
            continue
        bitmaps = width
        if width >= 8:
            bitmaps = width - 8
            rests = rests << np.uint64(8) | payload.array("u1", m, what)
        for _ in range(bitmaps):
            rests = rests << np.uint64(1) | take_bitmap(payload, m, what).astype(np.uint64)
    return rests


def pack_bitmap(bits: np.ndarray) -> bytes:
    """Return bits, 0 or 1, as a bitmap: bit i in bit i mod 8 of byte i div 8."""
    return np.packbits(bits.astype(np.uint8), bitorder="little").tobytes()


def take_bitmap(payload: Cursor, n: int, what: str) -> np.ndarray:
    """Return the next n bits as 0 or 1 (uint8)."""
    return np.unpackbits(payload.array("u1", -(-n // 8), what), count=n, bitorder="little")
