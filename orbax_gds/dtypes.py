"""The dtypes an item can hold: the one table of FORMAT §5, and its NumPy side.

Everything that needs the width of a word, the id in a frame or the NumPy type of a leaf asks here.
"""

from dataclasses import dataclass
from functools import cached_property

import ml_dtypes
import numpy as np

from orbax_gds.errors import Unsupported

__all__ = [
    "CONTAINER_BYTES",
    "DTYPES",
    "SPLITS",
    "Dtype",
    "Split",
    "dtype_by_id",
    "dtype_by_name",
    "dtype_of",
    "words_of",
]

_WORD_DTYPES = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True)
class Split:
    """Where sign, exponent and mantissa of a floating-point word lie: one row of FORMAT §7.2.

    Attributes:
        sign_bits: 1, or 0 for a format without signs; on top.
        exponent_bits: Bits below the sign.
        mantissa_bits: The lowest bits.
    """

    sign_bits: int
    exponent_bits: int
    mantissa_bits: int

    @property
    def rest_bits(self) -> int:
        """Bits of sign and mantissa together."""
        return self.sign_bits + self.mantissa_bits


SPLITS: dict[str, Split] = {
    "bf16": Split(1, 8, 7),
    "fp16": Split(1, 5, 10),
    "fp32": Split(1, 8, 23),
    "fp64": Split(1, 11, 52),
    "e4m3": Split(1, 4, 3),
    "e5m2": Split(1, 5, 2),
    "e3m4": Split(1, 3, 4),
    "e8m0": Split(0, 8, 0),
    "e2m1": Split(1, 2, 1),
    "e2m3": Split(1, 2, 3),
    "e3m2": Split(1, 3, 2),
}


@dataclass(frozen=True, kw_only=True)
class Dtype:
    """One row of FORMAT §5.

    Attributes:
        id: Number in frames and index records.
        name: Name in the manifest; also the name of the NumPy or ml_dtypes type.
        bits: Bits of a word that count.
        container_bytes: Bytes a word takes in memory: 1, 2, 4 or 8.
        words_per_element: 2 for complex types, else 1.
        split: Name of the row of `SPLITS` that floating-point words follow, or None.
    """

    id: int
    name: str
    bits: int
    container_bytes: int
    words_per_element: int = 1
    split: str | None = None

    @property
    def element_bytes(self) -> int:
        """Bytes an element takes in memory."""
        return self.container_bytes * self.words_per_element

    @property
    def is_modelled(self) -> bool:
        """Whether codecs 2 and 3 code its words: FORMAT §7.6 and §7.7."""
        return self.split in ("bf16", "fp16", "fp32")

    @cached_property
    def word_dtype(self) -> np.dtype:
        """NumPy type of a word in memory: uint8, uint16, uint32 or uint64."""
        return np.dtype(_WORD_DTYPES[self.container_bytes])

    @cached_property
    def numpy_dtype(self) -> np.dtype:
        """NumPy type of an element.

        Raises:
            Unsupported: The installed ml_dtypes has no type of this name.
        """
        try:
            return np.dtype(getattr(ml_dtypes, self.name, self.name))
        except TypeError as error:
            raise Unsupported(
                f"dtype {self.name!r} is not in ml_dtypes {ml_dtypes.__version__}. "
                "Install a newer ml_dtypes to hold such leaves in memory."
            ) from error

    def elements(self, words: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """View words as elements of the given shape: the inverse of `words_of`.

        Args:
            words: 1-d contiguous array of `word_dtype`.
            shape: Shape in elements.

        Returns:
            A view of the same memory as `numpy_dtype[shape]`.
        """
        return words.view(self.numpy_dtype).reshape(shape)


def _row(number: int, name: str, bits: int, *, n_words: int = 1, split: str | None = None) -> Dtype:
    return Dtype(
        id=number,
        name=name,
        bits=bits,
        container_bytes=max(1, bits // 8),
        words_per_element=n_words,
        split=split,
    )


DTYPES: tuple[Dtype, ...] = (
    _row(1, "bool", 8),
    _row(2, "uint8", 8),
    _row(3, "int8", 8),
    _row(4, "uint16", 16),
    _row(5, "int16", 16),
    _row(6, "uint32", 32),
    _row(7, "int32", 32),
    _row(8, "uint64", 64),
    _row(9, "int64", 64),
    _row(10, "int4", 4),
    _row(11, "uint4", 4),
    _row(12, "int2", 2),
    _row(13, "uint2", 2),
    _row(14, "int1", 1),
    _row(15, "uint1", 1),
    _row(16, "bfloat16", 16, split="bf16"),
    _row(17, "float16", 16, split="fp16"),
    _row(18, "float32", 32, split="fp32"),
    _row(19, "float64", 64, split="fp64"),
    _row(20, "float8_e4m3fn", 8, split="e4m3"),
    _row(21, "float8_e5m2", 8, split="e5m2"),
    _row(22, "float8_e4m3", 8, split="e4m3"),
    _row(23, "float8_e4m3fnuz", 8, split="e4m3"),
    _row(24, "float8_e4m3b11fnuz", 8, split="e4m3"),
    _row(25, "float8_e5m2fnuz", 8, split="e5m2"),
    _row(26, "float8_e3m4", 8, split="e3m4"),
    _row(27, "float8_e8m0fnu", 8, split="e8m0"),
    _row(28, "float4_e2m1fn", 4, split="e2m1"),
    _row(29, "float6_e2m3fn", 6, split="e2m3"),
    _row(30, "float6_e3m2fn", 6, split="e3m2"),
    _row(32, "complex64", 32, n_words=2, split="fp32"),
    _row(33, "complex128", 64, n_words=2, split="fp64"),
)

_BY_ID = {dtype.id: dtype for dtype in DTYPES}
_BY_NAME = {dtype.name: dtype for dtype in DTYPES}

CONTAINER_BYTES = np.array([_BY_ID[i].container_bytes if i in _BY_ID else 0 for i in range(256)])
"""Bytes of a word in memory by id of its dtype, 0 where FORMAT §5 gives none."""


def dtype_by_id(number: int) -> Dtype:
    """Look up the dtype of a frame or index record.

    Raises:
        Unsupported: FORMAT §5 gives this number to no dtype.
    """
    try:
        return _BY_ID[number]
    except KeyError:
        raise Unsupported(
            f"dtype id {number} is not in FORMAT §5 (1 to 30, 32, 33). "
            "The file is damaged or was written by a newer orbax_gds."
        ) from None


def dtype_by_name(name: str) -> Dtype:
    """Look up the dtype of a manifest's leaf.

    Raises:
        Unsupported: FORMAT §5 gives this name to no dtype.
    """
    try:
        return _BY_NAME[name]
    except KeyError:
        raise Unsupported(
            f"dtype {name!r} cannot be stored: FORMAT §5 has {', '.join(sorted(_BY_NAME))}. "
            "Convert the leaf to one of these."
        ) from None


def dtype_of(numpy_dtype: np.dtype) -> Dtype:
    """Look up the row of a NumPy type, ml_dtypes' types included.

    Raises:
        Unsupported: No row has this type, or its byte order is not little-endian.
    """
    numpy_dtype = np.dtype(numpy_dtype)
    if numpy_dtype.byteorder == ">":
        raise Unsupported(
            f"dtype {numpy_dtype.str!r} is big-endian, stored words are little-endian. "
            "Convert it first: array.astype(array.dtype.newbyteorder('<'))."
        )
    return dtype_by_name(numpy_dtype.name)


def words_of(array: np.ndarray) -> np.ndarray:
    """View a C-contiguous array as the words of its elements, in C order.

    Args:
        array: Any shape, of a dtype of FORMAT §5.

    Returns:
        A 1-d view of the same memory: uint8, uint16, uint32 or uint64. Bits above `Dtype.bits` are
        whatever the memory holds; an encoder ignores them.

    Raises:
        Unsupported: The dtype is not in FORMAT §5.
        ValueError: The array is not C-contiguous, so no view exists.
    """
    dtype = dtype_of(array.dtype)
    if not array.flags.c_contiguous:
        raise ValueError(f"{array.dtype}{list(array.shape)} is not C-contiguous: copy it first")
    return array.reshape(-1).view(dtype.word_dtype)
