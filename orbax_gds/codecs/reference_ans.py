"""The ans coding in plain NumPy, written from FORMAT §7.7 and nothing else."""

import struct
from dataclasses import dataclass, replace

import numpy as np

from orbax_gds.codecs.reference_ans_table import (
    Table,
    decode_stream,
    encode_stream,
    fit_counts,
    pack_counts,
    parse_counts,
)
from orbax_gds.codecs.reference_bytes import Cursor
from orbax_gds.codecs.reference_fields import (
    decode_fields,
    encode_fields,
    join_words,
    split_words,
)
from orbax_gds.codecs.reference_ladder import SUB_BLOCK_WORDS
from orbax_gds.codecs.reference_levels import ESCAPE, fill_escapes
from orbax_gds.codecs.reference_prediction import (
    Prediction,
    exponents_of,
    fit_emax,
    predicted,
    symbols_of,
    trailing_zeros,
)
from orbax_gds.dtypes import SPLITS, Dtype, Split
from orbax_gds.errors import Corrupt

ANS = struct.Struct("<HHI")
SUB_BLOCK = struct.Struct("<BBHI")
PREDICTION_FLAG = 1
NO_SIGNS_FLAG = 2
_MANTISSA_BITS = 4  # that are in the coded byte


@dataclass(frozen=True, kw_only=True)
class Ans:
    """Header of the coded words of the ans coding. FORMAT §7.7.

    Attributes:
        counts: f(y) for the bytes y from 0 to 255; they sum up to 4096.
        emax: As in §7.6.
        prediction: What rows and columns add to emax, or None.
        no_signs: Every sign is 0 and not written.
    """

    counts: tuple[int, ...]
    emax: int = 0
    prediction: Prediction | None = None
    no_signs: bool = False

    def pack(self) -> bytes:
        """Return the header."""
        prediction = self.prediction
        flags = PREDICTION_FLAG * (prediction is not None) | NO_SIGNS_FLAG * self.no_signs
        fixed = ANS.pack(flags, self.emax, prediction.columns if prediction else 0)
        offsets = prediction.pack() if prediction else b""
        return fixed + offsets + pack_counts(np.array(self.counts))

    @classmethod
    def parse(cls, payload: Cursor, n_words: int, dtype: Dtype) -> "Ans":
        """Read and check the header."""
        flags, emax, columns = ANS.unpack(payload.take(ANS.size, "the ans header"))
        split = SPLITS[str(dtype.split)]
        if flags & ~(PREDICTION_FLAG | NO_SIGNS_FLAG) or emax >= 1 << split.exponent_bits:
            raise Corrupt(f"{payload.where}: ans: flags {flags:#x}, emax {emax}.")
        present = bool(flags & PREDICTION_FLAG)
        prediction = Prediction.parse(payload, columns, n_words, present=present)
        return cls(
            counts=tuple(parse_counts(payload).tolist()),
            emax=emax,
            prediction=prediction,
            no_signs=bool(flags & NO_SIGNS_FLAG),
        )

    @classmethod
    def fitting(
        cls, words: np.ndarray, dtype: Dtype, places: np.ndarray, n_words: int, columns: int
    ) -> "Ans":
        """Choose a header for these words, with a prediction if `columns` is not 0."""
        split = SPLITS[str(dtype.split)]
        exponents, rests = split_words(words, split)
        prediction = None
        if columns:
            prediction = Prediction.fitting(exponents, places, n_words, columns)
        offsets = predicted(prediction, 0, places, split.exponent_bits)
        fitted = cls(
            counts=(),
            emax=fit_emax(exponents, offsets, split.exponent_bits),
            prediction=prediction,
            no_signs=not (rests >> np.uint64(split.mantissa_bits)).any(),
        )
        octets, _, _ = _parts(words, places, split, fitted)
        return replace(fitted, counts=tuple(fit_counts(octets).tolist()))


def _rest_bits(split: Split, ans: Ans) -> int:
    return split.rest_bits - _MANTISSA_BITS - ans.no_signs


def _parts(
    words: np.ndarray, places: np.ndarray, split: Split, ans: Ans
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the coded byte of each word, the escaped exponents, and the rests."""
    exponents, rests = split_words(words, split)
    expected = predicted(ans.prediction, ans.emax, places, split.exponent_bits)
    symbols = symbols_of(exponents, expected, split.exponent_bits)
    low_bits = np.uint64(split.mantissa_bits - _MANTISSA_BITS)
    upper = rests >> low_bits & np.uint64((1 << _MANTISSA_BITS) - 1)
    sign = rests >> np.uint64(split.mantissa_bits)
    lower = rests & np.uint64((1 << int(low_bits)) - 1)
    escapes = exponents[symbols == ESCAPE].astype("u1")
    return 16 * symbols + upper.astype(np.int64), escapes, sign << low_bits | lower


def encode_ans(
    words: np.ndarray,
    dtype: Dtype,
    places: np.ndarray,
    n_words: int,
    *,
    ans: Ans | None = None,
    columns: int = 0,
) -> bytes:
    """Code words of a dtype that the coding has.

    Args:
        words: The coded words; with none there are no bytes.
        dtype: What they are.
        places: Number of each word in the chunk.
        n_words: Words of the chunk.
        ans: The header; by default one that fits.
        columns: Words in a row, to predict exponents; 0 = none. Ignored if `ans` is given.
    """
    if not words.size:
        return b""
    ans = ans or Ans.fitting(words, dtype, places, n_words, columns)
    table, split = Table.of(np.array(ans.counts)), SPLITS[str(dtype.split)]
    sub_blocks = []
    for at in range(0, words.size, SUB_BLOCK_WORDS):
        sub_block = slice(at, at + SUB_BLOCK_WORDS)
        octets, escapes, rests = _parts(words[sub_block], places[sub_block], split, ans)
        trimmed = trailing_zeros(rests, split.mantissa_bits - _MANTISSA_BITS)
        fields = encode_fields(rests >> np.uint64(trimmed), _rest_bits(split, ans) - trimmed)
        stream = encode_stream(octets, table)
        head = SUB_BLOCK.pack(trimmed, 0, escapes.size, len(stream))
        sub_blocks.append(head + fields + stream + escapes.tobytes())
    return b"".join([ans.pack(), *sub_blocks])


def decode_ans(payload: Cursor, dtype: Dtype, places: np.ndarray, n_words: int) -> np.ndarray:
    """Undo `encode_ans`."""
    parts = [np.zeros(0, dtype.word_dtype)]
    if places.size:
        ans = Ans.parse(payload, n_words, dtype)
        table, split = Table.of(np.array(ans.counts)), SPLITS[str(dtype.split)]
        for at in range(0, places.size, SUB_BLOCK_WORDS):
            sub_places = places[at : at + SUB_BLOCK_WORDS]
            exponents, rests = _decode_sub_block(payload, sub_places, split, ans, table)
            parts.append(join_words(exponents, rests, split, dtype.word_dtype))
    return np.concatenate(parts)


def _take_head(payload: Cursor, limit: int) -> tuple[int, int, int]:
    head = SUB_BLOCK.unpack(payload.take(SUB_BLOCK.size, "the head of an ans sub-block"))
    trimmed, zero, n_escapes, stream_bytes = head
    if zero or trimmed > limit:
        raise Corrupt(f"{payload.where}: {trimmed} trimmed bits, reserved byte {zero}.")
    return trimmed, n_escapes, stream_bytes


def _decode_sub_block(
    payload: Cursor, places: np.ndarray, split: Split, ans: Ans, table: Table
) -> tuple[np.ndarray, np.ndarray]:
    low_bits = split.mantissa_bits - _MANTISSA_BITS
    trimmed, n_escapes, stream_bytes = _take_head(payload, low_bits)
    fields = decode_fields(payload, places.size, _rest_bits(split, ans) - trimmed)
    rests = fields << np.uint64(trimmed)
    stream = payload.take(stream_bytes, "the ans stream")
    octets = decode_stream(stream, places.size, table, payload.where)
    expected = predicted(ans.prediction, ans.emax, places, split.exponent_bits)
    symbols, upper = octets >> _MANTISSA_BITS, (octets & 15).astype(np.uint64)
    exponents = exponents_of(symbols, expected, split.exponent_bits)
    fill_escapes(payload, exponents, symbols, n_escapes, split.exponent_bits)
    sign = rests >> np.uint64(low_bits) << np.uint64(split.mantissa_bits)
    lower = rests & np.uint64((1 << low_bits) - 1)
    return exponents, sign | upper << np.uint64(low_bits) | lower
