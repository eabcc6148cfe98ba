"""The exponent ladder in plain NumPy, written from FORMAT §7.4 and nothing else."""

import struct
from dataclasses import dataclass

import numpy as np

from orbax_gds.codecs.reference_bytes import Cursor
from orbax_gds.codecs.reference_fields import (
    decode_fields,
    encode_fields,
    join_words,
    split_words,
)
from orbax_gds.codecs.reference_levels import (
    ESCAPE,
    decode_levels,
    encode_levels,
    escape_dtype,
    fill_escapes,
    fit_header,
    pack_header,
    parse_header,
    take_counts,
)
from orbax_gds.dtypes import SPLITS, Dtype, Split
from orbax_gds.errors import Corrupt, Unsupported

LADDER = struct.Struct("<HH8s")
SUB_BLOCK_WORDS = 32768


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
        return LADDER.pack(self.emax, *pack_header(self.widths, self.symbols))

    @classmethod
    def parse(cls, payload: Cursor, exponent_bits: int) -> "Ladder":
        """Read and check the 12 bytes of the header."""
        emax, levels, symbols = LADDER.unpack(payload.take(LADDER.size, "the ladder header"))
        if emax >= 1 << exponent_bits:
            raise Corrupt(f"{payload.where}: emax {emax} has more than {exponent_bits} bits.")
        widths, ranked = parse_header(levels, symbols, payload.where)
        return cls(emax=emax, widths=widths, symbols=ranked)

    @classmethod
    def fitting(cls, exponents: np.ndarray, exponent_bits: int) -> "Ladder":
        """Choose a header for these exponents: fewest escapes, then fewest bits."""
        n = 1 << exponent_bits
        counts = np.bincount(exponents, minlength=n)
        below = np.arange(min(ESCAPE, n))
        windows = [counts[(emax - below) % n].sum() for emax in range(n)]
        emax = n - 1 - int(np.argmax(windows[::-1]))
        widths, symbols = fit_header(_symbols_of(exponents, emax, exponent_bits))
        return cls(emax=emax, widths=widths, symbols=symbols)


def _symbols_of(exponents: np.ndarray, emax: int, exponent_bits: int) -> np.ndarray:
    return np.minimum((emax - exponents) % (1 << exponent_bits), ESCAPE)


def encode_ladder(words: np.ndarray, dtype: Dtype, ladder: Ladder | None = None) -> bytes:
    """Code words whose dtype has a split; with no words there are no bytes."""
    if dtype.split is None:
        raise Unsupported(f"Codec ladder has no split for dtype {dtype.name}.")
    split = SPLITS[dtype.split]
    ladder = ladder or Ladder.fitting(split_words(words, split)[0], split.exponent_bits)
    sub_blocks = [
        _encode_sub_block(words[at : at + SUB_BLOCK_WORDS], split, ladder)
        for at in range(0, words.size, SUB_BLOCK_WORDS)
    ]
    return b"".join([ladder.pack(), *sub_blocks]) if sub_blocks else b""


def _encode_sub_block(words: np.ndarray, split: Split, ladder: Ladder) -> bytes:
    exponents, rests = split_words(words, split)
    symbols = _symbols_of(exponents, ladder.emax, split.exponent_bits)
    escapes = exponents[symbols == ESCAPE].astype(escape_dtype(split.exponent_bits))
    counts, bitmaps = encode_levels(symbols, ladder.widths, ladder.symbols)
    head = np.array([*counts, escapes.size], "<u2").tobytes()
    return b"".join([head, encode_fields(rests, split.rest_bits), *bitmaps, escapes.tobytes()])


def decode_ladder(payload: Cursor, n_words: int, dtype: Dtype) -> np.ndarray:
    """Undo `encode_ladder`."""
    parts = [np.zeros(0, dtype.word_dtype)]
    if n_words:
        split = SPLITS[str(dtype.split)]
        ladder = Ladder.parse(payload, split.exponent_bits)
        for at in range(0, n_words, SUB_BLOCK_WORDS):
            m = min(SUB_BLOCK_WORDS, n_words - at)
            exponents, rests = _decode_sub_block(payload, m, split, ladder)
            parts.append(join_words(exponents, rests, split, dtype.word_dtype))
    return np.concatenate(parts)


def _decode_sub_block(
    payload: Cursor, m: int, split: Split, ladder: Ladder
) -> tuple[np.ndarray, np.ndarray]:
    counts, n_escapes = take_counts(payload, ladder.widths)
    rests = decode_fields(payload, m, split.rest_bits)
    symbols = decode_levels(payload, m, counts, ladder.widths, ladder.symbols)
    exponents = (ladder.emax - symbols) % (1 << split.exponent_bits)
    fill_escapes(payload, exponents, symbols, n_escapes, split.exponent_bits)
    return exponents, rests
