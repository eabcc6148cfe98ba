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
    CodedWords,
    Prediction,
    exponents_of,
    fit_prediction,
    pack_flags,
    parse_flags,
    predicted,
    symbols_of,
    trailing_zeros,
)
from orbax_gds.dtypes import SPLITS, Dtype, Split
from orbax_gds.errors import Corrupt

ANS = struct.Struct("<HHI")
SUB_BLOCK = struct.Struct("<BBHI")
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
        flags = pack_flags(prediction, self.no_signs)
        fixed = ANS.pack(flags, self.emax, prediction.columns if prediction else 0)
        offsets = prediction.pack() if prediction else b""
        return fixed + offsets + pack_counts(np.array(self.counts))

    @classmethod
    def parse(cls, payload: Cursor, n_words: int, split: Split) -> "Ans":
        """Read and check the header."""
        flags, emax, columns = ANS.unpack(payload.take(ANS.size, "the ans header"))
        present, no_signs = parse_flags(flags, emax, split, payload.where)
        prediction = Prediction.parse(payload, columns, n_words, present=present)
        return cls(
            counts=tuple(parse_counts(payload).tolist()),
            emax=emax,
            prediction=prediction,
            no_signs=no_signs,
        )

    @classmethod
    def fitting(cls, coded: CodedWords) -> "Ans":
        """Choose a header for these words, with a prediction if they have columns."""
        prediction, emax, no_signs = fit_prediction(coded)
        fitted = cls(counts=(), emax=emax, prediction=prediction, no_signs=no_signs)
        octets, _, _ = parts_of(coded, fitted)
        return replace(fitted, counts=tuple(fit_counts(octets).tolist()))


def _rest_bits(split: Split, ans: Ans) -> int:
    return split.rest_bits - _MANTISSA_BITS - ans.no_signs


def parts_of(coded: CodedWords, ans: Ans) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the coded byte of each word, the escaped exponents, and the rests."""
    split = coded.split
    exponents, rests = split_words(coded.words, split)
    expected = predicted(ans.prediction, ans.emax, coded.places, split.exponent_bits)
    symbols = symbols_of(exponents, expected, split.exponent_bits)
    low_bits = np.uint64(split.mantissa_bits - _MANTISSA_BITS)
    upper = rests >> low_bits & np.uint64((1 << _MANTISSA_BITS) - 1)
    sign = rests >> np.uint64(split.mantissa_bits)
    lower = rests & np.uint64((1 << int(low_bits)) - 1)
    escapes = exponents[symbols == ESCAPE].astype("u1")
    return 16 * symbols + upper.astype(np.int64), escapes, sign << low_bits | lower


def encode_ans(coded: CodedWords, ans: Ans | None = None) -> bytes:
    """Code words of one of the splits of the coding; with no words there are no bytes.

    Args:
        coded: The words.
        ans: The header; by default one that fits.
    """
    if not coded.words.size:
        return b""
    ans = ans or Ans.fitting(coded)
    table, split = Table.of(np.array(ans.counts)), coded.split
    sub_blocks = []
    for part in coded.cut(SUB_BLOCK_WORDS):
        octets, escapes, rests = parts_of(part, ans)
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
        split = SPLITS[str(dtype.split)]
        ans = Ans.parse(payload, n_words, split)
        table = Table.of(np.array(ans.counts))
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
