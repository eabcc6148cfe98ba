"""The modelled coding in plain NumPy, written from FORMAT §7.6 and nothing else."""

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
from orbax_gds.codecs.reference_ladder import SUB_BLOCK_WORDS
from orbax_gds.codecs.reference_levels import (
    ESCAPE,
    decode_levels,
    encode_levels,
    fill_escapes,
    fit_header,
    pack_header,
    parse_header,
    take_counts,
)
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

MODELLED = struct.Struct("<HHH8sHI")
MAX_SIZE = 7


@dataclass(frozen=True, kw_only=True)
class Model:
    """Header of the coded words of the modelled coding. FORMAT §7.6.

    Attributes:
        emax: The exponent of symbol 0 where nothing is added to it.
        widths: Width of each level, 1 or 2 and last a 4.
        symbols: The symbol of each rank, a permutation of 0 to 15.
        prediction: What rows and columns add to emax, or None.
        sign_slot: The first bitmap of level 0 stands in place of the signs, which are all 0.
        size: Size of every sub-block when coding; not of the header.
    """

    emax: int
    widths: tuple[int, ...]
    symbols: tuple[int, ...]
    prediction: Prediction | None = None
    sign_slot: bool = False
    size: int = 0

    def pack(self) -> bytes:
        """Return the header."""
        prediction = self.prediction
        flags = pack_flags(prediction, self.sign_slot)
        levels, symbols = pack_header(self.widths, self.symbols)
        columns = prediction.columns if prediction else 0
        fixed = MODELLED.pack(flags, self.emax, levels, symbols, 0, columns)
        return fixed + (prediction.pack() if prediction else b"")

    @classmethod
    def parse(cls, payload: Cursor, n_words: int, split: Split) -> "Model":
        """Read and check the header."""
        fixed = MODELLED.unpack(payload.take(MODELLED.size, "the modelled header"))
        flags, emax, levels, symbols, zero, columns = fixed
        present, sign_slot = parse_flags(flags, emax, split, payload.where)
        if zero:
            raise Corrupt(f"{payload.where}: reserved bytes of the modelled header are {zero}.")
        widths, ranked = parse_header(levels, symbols, payload.where)
        return cls(
            emax=emax,
            widths=widths,
            symbols=ranked,
            prediction=Prediction.parse(payload, columns, n_words, present=present),
            sign_slot=sign_slot,
        )

    @classmethod
    def fitting(cls, coded: CodedWords) -> "Model":
        """Choose a header for these words, with a prediction if they have columns."""
        exponents, _ = split_words(coded.words, coded.split)
        exponent_bits = coded.split.exponent_bits
        prediction, emax, no_signs = fit_prediction(coded)
        expected = predicted(prediction, emax, coded.places, exponent_bits)
        widths, symbols = fit_header(symbols_of(exponents, expected, exponent_bits))
        return cls(
            emax=emax,
            widths=widths,
            symbols=symbols,
            prediction=prediction,
            sign_slot=no_signs,
        )


def encode_modelled(coded: CodedWords, model: Model | None = None) -> bytes:
    """Code words of one of the splits of the coding; with no words there are no bytes.

    Args:
        coded: The words.
        model: The header; by default one that fits.
    """
    if not coded.words.size:
        return b""
    model = model or Model.fitting(coded)
    sub_blocks = coded.cut(SUB_BLOCK_WORDS >> model.size)
    return b"".join([model.pack(), *(_encode_sub_block(part, model) for part in sub_blocks)])


def _encode_sub_block(coded: CodedWords, model: Model) -> bytes:
    split = coded.split
    exponents, rests = split_words(coded.words, split)
    expected = predicted(model.prediction, model.emax, coded.places, split.exponent_bits)
    symbols = symbols_of(exponents, expected, split.exponent_bits)
    escapes = exponents[symbols == ESCAPE].astype("u1")
    counts, bitmaps = encode_levels(symbols, model.widths, model.symbols)
    trimmed = trailing_zeros(rests, split.rest_bits - 8)
    if model.sign_slot:
        first = np.frombuffer(bitmaps.pop(0), "u1")
        bits = np.unpackbits(first, count=exponents.size, bitorder="little")
        rests = rests | bits.astype(np.uint64) << np.uint64(split.mantissa_bits)
    head = bytes([trimmed, model.size]) + np.array([*counts, escapes.size], "<u2").tobytes()
    fields = encode_fields(rests >> np.uint64(trimmed), split.rest_bits - trimmed)
    return b"".join([head, fields, *bitmaps, escapes.tobytes()])


def decode_modelled(payload: Cursor, dtype: Dtype, places: np.ndarray, n_words: int) -> np.ndarray:
    """Undo `encode_modelled`."""
    parts = [np.zeros(0, dtype.word_dtype)]
    if places.size:
        split = SPLITS[str(dtype.split)]
        model = Model.parse(payload, n_words, split)
        while places.size:
            exponents, rests = _decode_sub_block(payload, places, split, model)
            parts.append(join_words(exponents, rests, split, dtype.word_dtype))
            places = places[exponents.size :]
    return np.concatenate(parts)


def _decode_sub_block(
    payload: Cursor, places: np.ndarray, split: Split, model: Model
) -> tuple[np.ndarray, np.ndarray]:
    trimmed, size = payload.take(2, "the trimmed bits and the size")
    if size > MAX_SIZE or trimmed > split.rest_bits - 8:
        raise Corrupt(f"{payload.where}: {trimmed} trimmed bits, size {size} of a sub-block.")
    places = places[: SUB_BLOCK_WORDS >> size]
    counts, n_escapes = take_counts(payload, model.widths)
    rests = decode_fields(payload, places.size, split.rest_bits - trimmed) << np.uint64(trimmed)
    first_bits = None
    if model.sign_slot:
        first_bits = rests >> np.uint64(split.mantissa_bits)
        rests = rests & np.uint64((1 << split.mantissa_bits) - 1)
    symbols = decode_levels(
        payload, places.size, counts, model.widths, model.symbols, first_bits=first_bits
    )
    expected = predicted(model.prediction, model.emax, places, split.exponent_bits)
    exponents = exponents_of(symbols, expected, split.exponent_bits)
    fill_escapes(payload, exponents, symbols, n_escapes, split.exponent_bits)
    return exponents, rests
