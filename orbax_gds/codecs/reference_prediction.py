"""Exponents that rows and columns predict, in plain NumPy, written from FORMAT §7.6.

The modelled coding and the ans coding share them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from orbax_gds.codecs.reference_bytes import Cursor
from orbax_gds.codecs.reference_fields import split_words
from orbax_gds.dtypes import Split
from orbax_gds.errors import Corrupt

ZERO = 14
WINDOW = 14  # symbols below this stand for a distance from the predicted exponent
PREDICTION_FLAG = 1
NO_SIGNS_FLAG = 2  # every sign is 0: what modelled calls sign slot, ans no signs


@dataclass(frozen=True, kw_only=True)
class CodedWords:
    """The words of a chunk that a codec codes, and where they lie in it.

    Attributes:
        words: Of the dtype's word type.
        split: What they are.
        places: Number of each word in the chunk.
        n_words: Words of the chunk.
        columns: Words in a row, to predict exponents; 0 = no prediction.
    """

    words: np.ndarray
    split: Split
    places: np.ndarray
    n_words: int
    columns: int = 0

    def cut(self, n_most: int) -> "Iterator[CodedWords]":
        """Yield the words of each sub-block of at most so many."""
        for at in range(0, self.words.size, n_most):
            part = slice(at, at + n_most)
            yield replace(self, words=self.words[part], places=self.places[part])


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What rows and columns of a chunk, as a matrix, add to emax.

    Attributes:
        columns: Words in a row.
        row_offsets: One for each row, 0 to 255.
        column_offsets: One for each column, 0 to 255.
    """

    columns: int
    row_offsets: tuple[int, ...]
    column_offsets: tuple[int, ...]

    def pack(self) -> bytes:
        """Return the offsets of the rows, then of the columns."""
        return bytes(self.row_offsets) + bytes(self.column_offsets)

    @classmethod
    def parse(
        cls, payload: Cursor, columns: int, n_words: int, *, present: bool
    ) -> "Prediction | None":
        """Take the offsets, if there are any, and check the number of columns."""
        if not present:
            if columns:
                raise Corrupt(f"{payload.where}: {columns} columns without a prediction.")
            return None
        if not 1 <= columns <= n_words:
            raise Corrupt(f"{payload.where}: {columns} columns of {n_words} words.")
        n_rows = -(-n_words // columns)
        rows = payload.take(n_rows, "the offsets of the rows")
        cols = payload.take(columns, "the offsets of the columns")
        return cls(columns=columns, row_offsets=tuple(rows), column_offsets=tuple(cols))

    @classmethod
    def fitting(cls, exponents: np.ndarray, coded: CodedWords) -> "Prediction | None":
        """Fit the mean exponent of each row, then of what is left in each column.

        Args:
            exponents: Of the coded words.
            coded: Their places; without columns there is no prediction.
        """
        if not coded.columns:
            return None
        seen, columns = exponents > 0, coded.columns
        rows, cols = coded.places[seen] // columns, coded.places[seen] % columns
        row_means = _means(exponents[seen], rows, -(-coded.n_words // columns))
        column_means = _means(exponents[seen] - row_means[rows], cols, columns)
        return cls(
            columns=columns,
            row_offsets=tuple((row_means % 256).tolist()),
            column_offsets=tuple((column_means % 256).tolist()),
        )


def _means(values: np.ndarray, groups: np.ndarray, n: int) -> np.ndarray:
    sums = np.bincount(groups, values, minlength=n)
    return np.rint(sums / np.maximum(np.bincount(groups, minlength=n), 1)).astype(np.int64)


def predicted(
    prediction: Prediction | None, emax: int, places: np.ndarray, exponent_bits: int
) -> np.ndarray:
    """Return the predicted exponent of the words at these places of the chunk."""
    if prediction is None:
        return np.full(places.size, emax)
    rows = np.array(prediction.row_offsets, np.int64)[places // prediction.columns]
    cols = np.array(prediction.column_offsets, np.int64)[places % prediction.columns]
    return (emax + rows + cols) % (1 << exponent_bits)


def pack_flags(prediction: Prediction | None, no_signs: bool) -> int:
    """Return the flags of a header."""
    return PREDICTION_FLAG * (prediction is not None) | NO_SIGNS_FLAG * no_signs


def parse_flags(flags: int, emax: int, split: Split, where: str) -> tuple[bool, bool]:
    """Return whether there is a prediction, and whether every sign is 0; check flags and emax."""
    if flags & ~(PREDICTION_FLAG | NO_SIGNS_FLAG) or emax >= 1 << split.exponent_bits:
        raise Corrupt(f"{where}: flags {flags:#x}, emax {emax}.")
    return bool(flags & PREDICTION_FLAG), bool(flags & NO_SIGNS_FLAG)


def fit_prediction(coded: CodedWords) -> tuple[Prediction | None, int, bool]:
    """Return the prediction, emax, and whether every sign is 0, that fit these words."""
    exponents, rests = split_words(coded.words, coded.split)
    prediction = Prediction.fitting(exponents, coded)
    offsets = predicted(prediction, 0, coded.places, coded.split.exponent_bits)
    emax = fit_emax(exponents, offsets, coded.split.exponent_bits)
    return prediction, emax, not (rests >> np.uint64(coded.split.mantissa_bits)).any()


def fit_emax(exponents: np.ndarray, offsets: np.ndarray, exponent_bits: int) -> int:
    """Return the emax whose window holds the most exponents other than 0.

    Args:
        exponents: Of the coded words.
        offsets: What rows and columns add to emax.
        exponent_bits: X of the split.
    """
    n = 1 << exponent_bits
    seen = exponents > 0
    counts = np.bincount((exponents[seen] - offsets[seen]) % n, minlength=n)
    below = np.arange(min(WINDOW, n))
    windows = [counts[(emax - below) % n].sum() for emax in range(n)]
    return n - 1 - int(np.argmax(windows[::-1]))


def symbols_of(exponents: np.ndarray, expected: np.ndarray, exponent_bits: int) -> np.ndarray:
    """Return the symbol of each exponent: its distance below the expected one, 14 or 15."""
    distance = (expected - exponents) % (1 << exponent_bits)
    return np.where(exponents == 0, ZERO, np.where(distance < WINDOW, distance, ZERO + 1))


def exponents_of(symbols: np.ndarray, expected: np.ndarray, exponent_bits: int) -> np.ndarray:
    """Return the exponent of each symbol, any value where it is the escape."""
    return np.where(symbols == ZERO, 0, (expected - symbols) % (1 << exponent_bits))


def trailing_zeros(rests: np.ndarray, limit: int) -> int:
    """Return how many low bits of all rests are 0, at most `limit`."""
    union = int(np.bitwise_or.reduce(rests))
    return next((bit for bit in range(limit) if union >> bit & 1), limit)
