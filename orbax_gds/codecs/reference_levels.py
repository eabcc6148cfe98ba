"""Symbols as ranks in nested levels, in plain NumPy, written from FORMAT §7.4.

The ladder and the modelled coding share them.
"""

from itertools import product

import numpy as np

from orbax_gds.codecs.reference_bytes import Cursor
from orbax_gds.codecs.reference_fields import pack_bitmap, take_bitmap
from orbax_gds.errors import Corrupt

WIDTHS = {1: 1, 2: 2, 3: 4}  # width code -> bits
ESCAPE = 15

Widths = tuple[int, ...]
Symbols = tuple[int, ...]


def pack_header(widths: Widths, symbols: Symbols) -> tuple[int, bytes]:
    """Return the fields `levels` and `symbols` of a header."""
    codes = {width: code for code, width in WIDTHS.items()}
    levels = sum(codes[width] << 2 * level for level, width in enumerate(widths))
    pairs = zip(symbols[0::2], symbols[1::2], strict=True)
    return levels, bytes(low | high << 4 for low, high in pairs)


def parse_header(levels: int, symbols: bytes, where: str) -> tuple[Widths, Symbols]:
    """Return the width of each level and the symbol of each rank, checked."""
    codes = [levels >> 2 * level & 3 for level in range(8)]
    widths = tuple(WIDTHS[code] for code in codes if code)
    last = len(widths) - 1
    if any(codes[len(widths) :]) or [i for i, w in enumerate(widths) if w == 4] != [last]:
        raise Corrupt(f"{where}: levels {levels:#06x} are not widths 1 or 2 and last a 4.")
    ranked = tuple(half for byte in symbols for half in (byte & 15, byte >> 4))
    if len(set(ranked)) != 16:
        raise Corrupt(f"{where}: symbols {ranked} are not a permutation.")
    return widths, ranked


def fit_header(symbols: np.ndarray) -> tuple[Widths, Symbols]:
    """Choose widths and ranks for these symbols: the fewest bits of at most four levels."""
    histogram = np.bincount(symbols, minlength=16)
    ranked = np.argsort(-histogram, kind="stable")
    ranks = np.repeat(np.arange(16), histogram[ranked])
    choices = [(*head, 4) for n in range(4) for head in product((1, 2), repeat=n)]
    widths = min(choices, key=lambda widths: _level_bits(ranks, widths))
    return widths, tuple(ranked.tolist())


def _level_bits(ranks: np.ndarray, widths: Widths) -> int:
    held = _levels(ranks, widths)
    return sum(width * values.size for width, values in zip(widths, held, strict=True))


def _levels(ranks: np.ndarray, widths: Widths) -> list[np.ndarray]:
    """Return the values that each level holds, before they are cut to its width."""
    held = [ranks]
    for width in widths[:-1]:
        top = (1 << width) - 1
        held.append(held[-1][held[-1] >= top] - top)
    return held


def encode_levels(
    symbols: np.ndarray, widths: Widths, ranked: Symbols
) -> tuple[list[int], list[bytes]]:
    """Return the counts of the levels after the first, and the bitmaps of all levels in order."""
    held = _levels(np.argsort(ranked)[symbols], widths)
    bitmaps = [
        pack_bitmap(np.minimum(values, (1 << width) - 1) >> bit & 1)
        for width, values in zip(widths, held, strict=True)
        for bit in range(width)
    ]
    return [values.size for values in held[1:]], bitmaps


def take_counts(payload: Cursor, widths: Widths) -> tuple[list[int], int]:
    """Return the counts of the levels after the first, and the number of escapes."""
    counts = payload.array("<u2", len(widths) - 1, "the counts of the levels").tolist()
    (n_escapes,) = payload.array("<u2", 1, "the number of escapes").tolist()
    return counts, n_escapes


def decode_levels(
    payload: Cursor,
    m: int,
    counts: list[int],
    widths: Widths,
    ranked: Symbols,
    first_bits: np.ndarray | None = None,
) -> np.ndarray:
    """Return the symbols of m words.

    Args:
        payload: At the first byte of level 0.
        m: Number of words.
        counts: What the sub-block says that each level after the first holds.
        widths: Width of each level.
        ranked: The symbol of each rank.
        first_bits: Bit 0 of the values of level 0, where it does not stand in level 0.
    """
    ranks = np.zeros(m, np.int64)
    held = np.arange(m)  # the words whose ranks come to this level
    for level, (width, n) in enumerate(zip(widths, [m, *counts], strict=True)):
        if n != held.size:
            raise Corrupt(
                f"{payload.where}: level {level} says {n} values, {held.size} come to it."
            )
        values = np.zeros(n, np.int64)
        for bit in range(width):
            if level == bit == 0 and first_bits is not None:
                values |= first_bits.astype(np.int64)
                continue
            values |= take_bitmap(payload, n, f"level {level}").astype(np.int64) << bit
        ranks[held] += values
        held = held[values == (1 << width) - 1]
    if ranks.max() > 15:
        raise Corrupt(f"{payload.where}: rank {ranks.max()} is above 15.")
    return np.array(ranked)[ranks]


def fill_escapes(
    payload: Cursor, exponents: np.ndarray, symbols: np.ndarray, n_escapes: int, exponent_bits: int
) -> None:
    """Take the escaped exponents and put them where the symbol is the escape."""
    if n_escapes != (symbols == ESCAPE).sum():
        raise Corrupt(f"{payload.where}: {n_escapes} escapes do not fit the symbols.")
    escaped = payload.array(escape_dtype(exponent_bits), n_escapes, "the escapes")
    if (escaped >= 1 << exponent_bits).any():
        raise Corrupt(f"{payload.where}: an escaped exponent has more than {exponent_bits} bits.")
    exponents[symbols == ESCAPE] = escaped


def escape_dtype(exponent_bits: int) -> str:
    """Return the NumPy type of an escaped exponent in the stream."""
    return "<u2" if exponent_bits > 8 else "u1"
