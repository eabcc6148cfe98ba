"""The modelled coding in plain NumPy, written from FORMAT §7.6 and nothing else."""

import struct
from dataclasses import dataclass

import numpy as np

from orbax_gds.codecs.reference_bytes import Cursor
from orbax_gds.codecs.reference_fields import (
    decode_fields,
    encode_fields,
    join_words,
    pack_bitmap,
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
    Prediction,
    exponents_of,
    fit_emax,
    predicted,
    symbols_of,
    trailing_zeros,
)
from orbax_gds.dtypes import SPLITS, Dtype, Split
from orbax_gds.errors import Corrupt

MODELLED = struct.Struct("<HHH8sHI")
PREDICTION_FLAG = 1
SIGN_SLOT_FLAG = 2
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
        flags = PREDICTION_FLAG * (prediction is not None) | SIGN_SLOT_FLAG * self.sign_slot
        levels, symbols = pack_header(self.widths, self.symbols)
        columns = prediction.columns if prediction else 0
        fixed = MODELLED.pack(flags, self.emax, levels, symbols, 0, columns)
        return fixed + (prediction.pack() if prediction else b"")

    @classmethod
    def parse(cls, payload: Cursor, n_words: int, exponent_bits: int) -> "Model":
        """Read and check the header."""
        fixed = MODELLED.unpack(payload.take(MODELLED.size, "the modelled header"))
        flags, emax, levels, symbols, zero, columns = fixed
        if zero or flags & ~(PREDICTION_FLAG | SIGN_SLOT_FLAG) or emax >= 1 << exponent_bits:
            raise Corrupt(f"{payload.where}: flags {flags:#x}, emax {emax}, reserved {zero}.")
        widths, ranked = parse_header(levels, symbols, payload.where)
        present = bool(flags & PREDICTION_FLAG)
        return cls(
            emax=emax,
            widths=widths,
            symbols=ranked,
            prediction=Prediction.parse(payload, columns, n_words, present=present),
            sign_slot=bool(flags & SIGN_SLOT_FLAG),
        )

    @classmethod
    def fitting(
        cls, words: np.ndarray, dtype: Dtype, places: np.ndarray, n_words: int, columns: int
    ) -> "Model":
        """Choose a header for these words, with a prediction if `columns` is not 0."""
        split = SPLITS[str(dtype.split)]
        exponents, rests = split_words(words, split)
        prediction = None
        if columns:
            prediction = Prediction.fitting(exponents, places, n_words, columns)
        offsets = predicted(prediction, 0, places, split.exponent_bits)
        emax = fit_emax(exponents, offsets, split.exponent_bits)
        expected = predicted(prediction, emax, places, split.exponent_bits)
        widths, symbols = fit_header(symbols_of(exponents, expected, split.exponent_bits))
        return cls(
            emax=emax,
            widths=widths,
            symbols=symbols,
            prediction=prediction,
            sign_slot=not (rests >> np.uint64(split.mantissa_bits)).any(),
        )


def encode_modelled(
    words: np.ndarray,
    dtype: Dtype,
    places: np.ndarray,
    n_words: int,
    *,
    model: Model | None = None,
    columns: int = 0,
) -> bytes:
    """Code words of a dtype with one of the splits of the coding.

    Args:
        words: The coded words; with none there are no bytes.
        dtype: What they are.
        places: Number of each word in the chunk.
        n_words: Words of the chunk.
        model: The header; by default one that fits.
        columns: Words in a row, to predict exponents; 0 = none. Ignored if `model` is given.
    """
    if not words.size:
        return b""
    model = model or Model.fitting(words, dtype, places, n_words, columns)
    split = SPLITS[str(dtype.split)]
    most = SUB_BLOCK_WORDS >> model.size
    sub_blocks = [
        _encode_sub_block(words[at : at + most], places[at : at + most], split, model)
        for at in range(0, words.size, most)
    ]
    return b"".join([model.pack(), *sub_blocks])


def _encode_sub_block(words: np.ndarray, places: np.ndarray, split: Split, model: Model) -> bytes:
    exponents, rests = split_words(words, split)
    expected = predicted(model.prediction, model.emax, places, split.exponent_bits)
    symbols = symbols_of(exponents, expected, split.exponent_bits)
    escapes = exponents[symbols == ESCAPE].astype("u1")
    counts, bitmaps = encode_levels(symbols, model.widths, model.symbols)
    trimmed = trailing_zeros(rests, split.rest_bits - 8)
    if model.sign_slot:
        bits = np.unpackbits(np.frombuffer(bitmaps[0], "u1"), count=words.size, bitorder="little")
        assert pack_bitmap(bits) == bitmaps.pop(0)
        rests = rests | bits.astype(np.uint64) << np.uint64(split.mantissa_bits)
    head = bytes([trimmed, model.size]) + np.array([*counts, escapes.size], "<u2").tobytes()
    fields = encode_fields(rests >> np.uint64(trimmed), split.rest_bits - trimmed)
    return b"".join([head, fields, *bitmaps, escapes.tobytes()])


def decode_modelled(payload: Cursor, dtype: Dtype, places: np.ndarray, n_words: int) -> np.ndarray:
    """Undo `encode_modelled`."""
    parts = [np.zeros(0, dtype.word_dtype)]
    if places.size:
        split = SPLITS[str(dtype.split)]
        model = Model.parse(payload, n_words, split.exponent_bits)
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
