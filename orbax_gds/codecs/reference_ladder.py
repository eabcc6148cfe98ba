"""The exponent ladder in plain NumPy, written from FORMAT §7.2 and §7.4 and nothing else."""

import struct
from dataclasses import dataclass
from itertools import product

import numpy as np

from orbax_gds.codecs.reference_bytes import Cursor
from orbax_gds.dtypes import Dtype
from orbax_gds.errors import Corrupt, Unsupported

LADDER = struct.Struct("<HH8s")
WIDTHS = {1: 1, 2: 2, 3: 4}  # width code -> bits
ESCAPE = 15
SUB_BLOCK_WORDS = 32768


def _split(words: np.ndarray, split: str) -> tuple[np.ndarray, np.ndarray, bytes]:
    high, low = (words, b"") if split == "bf16" else (words >> 16, words.astype("<u2").tobytes())
    s = (high >> 8 & 0x80) | (high & 0x7F)
    return s.astype(np.uint8), (high >> 7 & 0xFF).astype(np.uint8), low


def _join(s: np.ndarray, exponents: np.ndarray, low: np.ndarray | None) -> np.ndarray:
    sign, mantissa = s.astype(np.uint16) & 0x80, s.astype(np.uint16) & 0x7F
    high = (sign << 8) | (exponents.astype(np.uint16) << 7) | mantissa
    return high if low is None else (high.astype(np.uint32) << 16) | low


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """Header of the coded words of the ladder. FORMAT §7.4.

    Attributes:
        emax: The exponent of symbol 0.
        widths: Width of each level, 1 or 2 and last a 4.
        symbols: The symbol of each rank, a permutation of 0 to 15.
    """

    emax: int
    widths: tuple[int, ...]
    symbols: tuple[int, ...]

    def pack(self) -> bytes:
        """Return the 12 bytes of the header."""
        codes = {width: code for code, width in WIDTHS.items()}
        levels = sum(codes[width] << 2 * level for level, width in enumerate(self.widths))
        pairs = zip(self.symbols[0::2], self.symbols[1::2], strict=True)
        return LADDER.pack(self.emax, levels, bytes(low | high << 4 for low, high in pairs))

    @classmethod
    def parse(cls, payload: Cursor) -> "Ladder":
        """Read and check the 12 bytes of the header."""
        emax, levels, symbols = LADDER.unpack(payload.take(LADDER.size, "the ladder header"))
        codes = [levels >> 2 * level & 3 for level in range(8)]
        widths = tuple(WIDTHS[code] for code in codes if code)
        last = len(widths) - 1
        if (
            emax > 255
            or any(codes[len(widths) :])
            or [i for i, w in enumerate(widths) if w == 4] != [last]
        ):
            raise Corrupt(f"{payload.where}: ladder: emax {emax}, levels {levels:#06x}.")
        ranked = tuple(half for byte in symbols for half in (byte & 15, byte >> 4))
        if len(set(ranked)) != 16:
            raise Corrupt(f"{payload.where}: ladder: symbols {ranked} are not a permutation.")
        return cls(emax=emax, widths=widths, symbols=ranked)

    @classmethod
    def fitting(cls, exponents: np.ndarray) -> "Ladder":
        """Choose a header for these exponents: fewest escapes, then fewest bits."""
        counts = np.bincount(exponents, minlength=256)
        windows = [counts[(emax - np.arange(ESCAPE)) % 256].sum() for emax in range(256)]
        emax = 255 - int(np.argmax(windows[::-1]))
        histogram = np.bincount(_symbols_of(exponents, emax), minlength=16)
        symbols = np.argsort(-histogram, kind="stable")
        ranks = np.repeat(np.arange(16), histogram[symbols])
        ladders = [(*head, 4) for n in range(4) for head in product((1, 2), repeat=n)]
        widths = min(ladders, key=lambda widths: _level_bits(ranks, widths))
        return cls(emax=emax, widths=widths, symbols=tuple(symbols.tolist()))


def _symbols_of(exponents: np.ndarray, emax: int) -> np.ndarray:
    return np.minimum((emax - exponents.astype(np.int64)) % 256, ESCAPE)


def _level_bits(ranks: np.ndarray, widths: tuple[int, ...]) -> int:
    return sum(
        width * held.size for width, held in zip(widths, _levels(ranks, widths), strict=True)
    )


def _levels(ranks: np.ndarray, widths: tuple[int, ...]) -> list[np.ndarray]:
    """Return the values that each level holds, before they are cut to its width."""
    held = [ranks]
    for width in widths[:-1]:
        top = (1 << width) - 1
        held.append(held[-1][held[-1] >= top] - top)
    return held


def _pack_level(values: np.ndarray, width: int) -> bytes:
    bitmaps = [values >> bit & 1 for bit in range(width)]
    return b"".join(
        np.packbits(bits.astype(np.uint8), bitorder="little").tobytes() for bits in bitmaps
    )


def _unpack_level(payload: Cursor, width: int, n: int, what: str) -> np.ndarray:
    values = np.zeros(n, np.int64)
    for bit in range(width):
        bitmap = payload.array("u1", -(-n // 8), what)
        values |= np.unpackbits(bitmap, count=n, bitorder="little").astype(np.int64) << bit
    return values


def encode_ladder(words: np.ndarray, dtype: Dtype, ladder: Ladder | None = None) -> bytes:
    """Code words whose dtype has a split; with no words there are no bytes. FORMAT §7.4."""
    if dtype.split is None:
        raise Unsupported(f"Codec ladder has no split for dtype {dtype.name}.")
    ladder = ladder or Ladder.fitting(_split(words, dtype.split)[1])
    sub_blocks = [
        _encode_sub_block(words[at : at + SUB_BLOCK_WORDS], dtype.split, ladder)
        for at in range(0, words.size, SUB_BLOCK_WORDS)
    ]
    return b"".join([ladder.pack(), *sub_blocks]) if sub_blocks else b""


def _encode_sub_block(words: np.ndarray, split: str, ladder: Ladder) -> bytes:
    s, exponents, low = _split(words, split)
    symbols = _symbols_of(exponents, ladder.emax)
    escapes = exponents[symbols == ESCAPE]
    levels = _levels(np.argsort(ladder.symbols)[symbols], ladder.widths)
    counts = [*(level.size for level in levels[1:]), escapes.size]
    head = np.array(counts, "<u2").tobytes()
    streams = [
        _pack_level(np.minimum(values, (1 << width) - 1), width)
        for width, values in zip(ladder.widths, levels, strict=True)
    ]
    return b"".join([head, s.tobytes(), low, *streams, escapes.tobytes()])


def decode_ladder(payload: Cursor, n_words: int, dtype: Dtype) -> np.ndarray:
    """Undo `encode_ladder`."""
    parts = [np.zeros(0, dtype.word_dtype)]
    if n_words:
        ladder = Ladder.parse(payload)
        for at in range(0, n_words, SUB_BLOCK_WORDS):
            m = min(SUB_BLOCK_WORDS, n_words - at)
            parts.append(_decode_sub_block(payload, m, dtype.split == "fp32", ladder))
    return np.concatenate(parts)


def _decode_sub_block(payload: Cursor, m: int, has_low: bool, ladder: Ladder) -> np.ndarray:
    counts = payload.array("<u2", len(ladder.widths) - 1, "ladder: the counts of the levels")
    (n_escapes,) = payload.array("<u2", 1, "ladder: the number of escapes").tolist()
    s = payload.array("u1", m, "ladder: the s plane")
    low = payload.array("<u2", m, "ladder: the low plane") if has_low else None
    ranks = np.zeros(m, np.int64)
    held = np.arange(m)  # the words whose ranks come to this level
    for level, (width, n) in enumerate(zip(ladder.widths, [m, *counts.tolist()], strict=True)):
        if n != held.size:
            raise Corrupt(
                f"{payload.where}: ladder: level {level} says {n} values, {held.size} come to it."
            )
        values = _unpack_level(payload, width, n, f"ladder: level {level}")
        ranks[held] += values
        held = held[values == (1 << width) - 1]
    if ranks.max() > 15:
        raise Corrupt(f"{payload.where}: ladder: rank {ranks.max()} is above 15.")
    symbols = np.array(ladder.symbols)[ranks]
    if n_escapes != (symbols == ESCAPE).sum():
        raise Corrupt(f"{payload.where}: ladder: {n_escapes} escapes do not fit the symbols.")
    exponents = ((ladder.emax - symbols) % 256).astype(np.uint8)
    exponents[symbols == ESCAPE] = payload.array("u1", n_escapes, "ladder: the escapes")
    return _join(s, exponents, low)
