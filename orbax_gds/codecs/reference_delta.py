"""The delta coding in plain NumPy, written from FORMAT §7.11 and nothing else."""

import struct
from dataclasses import dataclass

import numpy as np

from orbax_gds.codecs.reference_bytes import Cursor
from orbax_gds.codecs.reference_fields import pack_bitmap, take_bitmap
from orbax_gds.codecs.reference_huffman import (
    codes_of,
    decode_sub_block,
    encode_sub_block,
    fit_lengths,
    pack_lengths,
    parse_lengths,
)
from orbax_gds.codecs.reference_levels import (
    ESCAPE,
    decode_levels,
    encode_levels,
    fit_header,
    pack_header,
    parse_header,
    take_counts,
)
from orbax_gds.dtypes import SPLITS, Dtype
from orbax_gds.errors import Corrupt

DELTA = struct.Struct("<HHH8sBB")
SUB_BLOCK_WORDS = 32768
UNCHANGED = 14  # the symbol of class 0
MAX_EMAX = 255
_EXPONENTS, _LENGTHS, _UNCHANGED = 1, 2, 4  # flags


@dataclass(frozen=True, kw_only=True)
class Delta:
    """Header of the coded words of delta. FORMAT §7.11.

    Attributes:
        emax: The expected class, or with exponents what it adds up to with the base's exponent.
        widths: Width of each level, 1 or 2 and last a 4.
        symbols: The symbol of each rank, a permutation of 0 to 15.
        exponents: The base's exponents tell what is expected.
        floor: The least class that is expected, with exponents.
        low_bytes: Bytes of every difference that are written as they are.
        lengths: Code lengths of the bytes of the first bitmap: int64[256], or None.
    """

    emax: int
    widths: tuple[int, ...]
    symbols: tuple[int, ...]
    exponents: bool = False
    floor: int = 0
    low_bytes: int = 0
    lengths: np.ndarray | None = None

    def pack(self) -> bytes:
        """Return the bytes of the header."""
        flags = _EXPONENTS * self.exponents | _LENGTHS * (self.lengths is not None)
        levels = pack_header(self.widths, self.symbols)
        header = DELTA.pack(flags, self.emax, *levels, self.floor, self.low_bytes)
        return header + (b"" if self.lengths is None else pack_lengths(self.lengths))

    @classmethod
    def parse(cls, payload: Cursor, dtype: Dtype) -> "Delta":
        """Read and check the header."""
        taken = payload.take(DELTA.size, "the delta header")
        flags, emax, levels, symbols, floor, low_bytes = DELTA.unpack(taken)
        exponents = bool(flags & _EXPONENTS)
        if (
            flags > (_EXPONENTS | _LENGTHS)
            or low_bytes > max_low_bytes(dtype)
            or emax > MAX_EMAX
            or (exponents and not has_exponents(dtype))
            or (floor and not exponents)
        ):
            raise Corrupt(
                f"{payload.where}: delta: flags {flags}, emax {emax}, {floor}, {low_bytes}."
            )
        widths, ranked = parse_header(levels, symbols, payload.where)
        lengths = parse_lengths(payload, 8) if flags & _LENGTHS else None
        return cls(
            emax=emax,
            widths=widths,
            symbols=ranked,
            exponents=exponents,
            floor=floor,
            low_bytes=low_bytes,
            lengths=lengths,
        )

    @classmethod
    def fitting(cls, words: np.ndarray, base: np.ndarray, dtype: Dtype) -> "Delta":
        """Choose a header for these words: no escapes if that can be, then the fewest bits."""
        classes = _classes(differences(words, base, dtype))
        exponents = has_exponents(dtype)
        sums = classes + (exponents_of(base, dtype) if exponents else 0)
        emax = min(int(sums[classes > 0].max(initial=0)), MAX_EMAX)
        blank = cls(emax=emax, widths=(4,), symbols=tuple(range(16)), exponents=exponents)
        symbols = _symbols(classes, base, dtype, blank)
        widths, ranked = fit_header(symbols)
        first = _first_bitmap(symbols, cls(emax=emax, widths=(1, 4), symbols=ranked))
        return cls(
            emax=emax,
            widths=widths,
            symbols=ranked,
            exponents=exponents,
            lengths=fit_lengths(first) if words.size >= SUB_BLOCK_WORDS else None,
        )


def max_low_bytes(dtype: Dtype) -> int:
    """Return how many low bytes of differences may be written as they are."""
    return 0 if dtype.bits <= 8 else 1 if dtype.bits <= 16 else 2


def has_exponents(dtype: Dtype) -> bool:
    """Whether exponents of the base may tell what class is expected."""
    return dtype.split is not None and SPLITS[dtype.split].exponent_bits <= 8


def exponents_of(base: np.ndarray, dtype: Dtype) -> np.ndarray:
    """Return the exponents of words as int64."""
    split = SPLITS[str(dtype.split)]
    mask = (1 << split.exponent_bits) - 1
    return (base.astype(np.uint64) >> np.uint64(split.mantissa_bits)).astype(np.int64) & mask


def _ordered(words: np.ndarray, dtype: Dtype) -> np.ndarray:
    """Return t of words, uint64."""
    words = words.astype(np.uint64)
    if dtype.split is None or SPLITS[dtype.split].sign_bits == 0:
        return words
    top = np.uint64(dtype.bits - 1)
    return np.where(words >> top != 0, words ^ np.uint64((1 << dtype.bits - 1) - 1), words)


def differences(words: np.ndarray, base: np.ndarray, dtype: Dtype) -> np.ndarray:
    """Return z of words and their base's, uint64."""
    mask = np.uint64((1 << dtype.bits) - 1)
    d = (_ordered(words, dtype) - _ordered(base, dtype)) & mask
    negative = d >> np.uint64(dtype.bits - 1) != 0
    return np.where(negative, (~d << np.uint64(1)) | np.uint64(1), d << np.uint64(1)) & mask


def join_differences(z: np.ndarray, base: np.ndarray, dtype: Dtype) -> np.ndarray:
    """Undo `differences`."""
    mask = np.uint64((1 << dtype.bits) - 1)
    half = z >> np.uint64(1)
    d = np.where(z & np.uint64(1) != 0, ~half, half)
    # t is its own inverse
    ordered = ((_ordered(base, dtype) + d) & mask).astype(dtype.word_dtype)
    return _ordered(ordered, dtype).astype(dtype.word_dtype)


def _classes(z: np.ndarray) -> np.ndarray:
    classes = np.zeros(z.size, np.int64)
    for bit in range(64):
        classes[z >> np.uint64(bit) != 0] = bit + 1
    return classes


def _expected(base: np.ndarray, dtype: Dtype, delta: Delta) -> np.ndarray:
    if not delta.exponents:
        return np.full(base.size, delta.emax)
    return np.maximum(delta.emax - exponents_of(base, dtype), delta.floor)


def _symbols(classes: np.ndarray, base: np.ndarray, dtype: Dtype, delta: Delta) -> np.ndarray:
    k = _expected(base, dtype, delta) - classes
    return np.where(classes == 0, UNCHANGED, np.where((k >= 0) & (k < UNCHANGED), k, ESCAPE))


def _first_bitmap(symbols: np.ndarray, delta: Delta) -> np.ndarray:
    _, bitmaps = encode_levels(symbols, delta.widths, delta.symbols)
    return np.frombuffer(bitmaps[0], np.uint8)


def encode_delta(
    words: np.ndarray, base: np.ndarray, dtype: Dtype, delta: Delta | None = None
) -> bytes:
    """Code words as differences from their base's; without words there are no bytes.

    Where the header has code lengths, every first bitmap that they can code is coded.
    """
    if not words.size:
        return b""
    if delta is None and (words == base).all():
        return struct.pack("<H", _UNCHANGED)
    delta = Delta.fitting(words, base, dtype) if delta is None else delta
    parts = [delta.pack()]
    for at in range(0, words.size, SUB_BLOCK_WORDS):
        piece = slice(at, at + SUB_BLOCK_WORDS)
        parts.append(_encode_sub_block(words[piece], base[piece], dtype, delta))
    return b"".join(parts)


def _encode_sub_block(words: np.ndarray, base: np.ndarray, dtype: Dtype, delta: Delta) -> bytes:
    z = differences(words, base, dtype)
    low = [(z >> np.uint64(8 * k)).astype("u1").tobytes() for k in range(delta.low_bytes)]
    z = z >> np.uint64(8 * delta.low_bytes)
    classes = _classes(z)
    symbols = _symbols(classes, base, dtype, delta)
    counts, bitmaps = encode_levels(symbols, delta.widths, delta.symbols)
    code_of = {} if delta.lengths is None else {y: c for c, y in codes_of(delta.lengths).items()}
    first = np.frombuffer(bitmaps[0], np.uint8)
    is_coded = set(first.tolist()) <= set(code_of)
    if is_coded:
        bitmaps[0] = encode_sub_block(first, code_of)
    escapes = classes[symbols == ESCAPE].astype("u1")
    n_planes = max(int(classes.max()) - 1, 0)
    planes = [z[classes >= j + 2] >> np.uint64(j) & np.uint64(1) for j in range(n_planes)]
    head = np.array([*counts, escapes.size], "<u2").tobytes() + bytes([n_planes, is_coded])
    head += np.array([plane.size for plane in planes], "<u2").tobytes()
    return b"".join([head, *bitmaps, escapes.tobytes(), *low, *map(pack_bitmap, planes)])


def decode_delta(payload: Cursor, base: np.ndarray, dtype: Dtype) -> np.ndarray:
    """Undo `encode_delta`."""
    if not base.size:
        return base
    if payload.data[payload.at : payload.at + 2] == struct.pack("<H", _UNCHANGED):
        payload.take(2, "the flags of an unchanged chunk")
        return base.copy()
    delta = Delta.parse(payload, dtype)
    parts = [base[:0]]
    for at in range(0, base.size, SUB_BLOCK_WORDS):
        parts.append(_decode_sub_block(payload, base[at : at + SUB_BLOCK_WORDS], dtype, delta))
    return np.concatenate(parts)


def _decode_sub_block(payload: Cursor, base: np.ndarray, dtype: Dtype, delta: Delta) -> np.ndarray:
    m, where = base.size, payload.where
    counts, n_escapes = take_counts(payload, delta.widths)
    n_planes, is_coded = payload.take(2, "the head of a delta's sub-block")
    n_bits = dtype.bits - 8 * delta.low_bytes
    if n_planes >= n_bits or is_coded > (delta.lengths is not None):
        raise Corrupt(f"{where}: delta: {n_planes} planes, coded {is_coded}.")
    sizes = payload.array("<u2", n_planes, "the numbers of bits of planes").tolist()
    first_bits = None
    if is_coded:
        first = np.zeros(-(-m // 8), np.uint8)
        decode_sub_block(payload, codes_of(np.asarray(delta.lengths)), first)
        first_bits = np.unpackbits(first, count=m, bitorder="little")
    symbols = decode_levels(payload, m, counts, delta.widths, delta.symbols, first_bits)
    classes = (_expected(base, dtype, delta) - symbols) % 256
    classes[symbols == UNCHANGED] = 0
    if n_escapes != (symbols == ESCAPE).sum():
        raise Corrupt(f"{where}: delta: {n_escapes} escapes do not fit the symbols.")
    classes[symbols == ESCAPE] = payload.array("u1", n_escapes, "the escapes")
    low = [payload.array("u1", m, "low bytes") for _ in range(delta.low_bytes)]
    if classes.max() > min(n_bits, n_planes + 1):
        raise Corrupt(f"{where}: delta: class {classes.max()} with {n_planes} planes.")
    z = np.where(classes > 0, np.uint64(1) << np.maximum(classes - 1, 0).astype(np.uint64), 0)
    z = z.astype(np.uint64)
    for plane, size in enumerate(sizes):
        has_bit = classes >= plane + 2
        if size != has_bit.sum():
            raise Corrupt(f"{where}: delta: plane {plane} has {size} bits, not {has_bit.sum()}.")
        bits = take_bitmap(payload, size, "a plane of a delta")
        z[has_bit] |= bits.astype(np.uint64) << np.uint64(plane)
    for byte in reversed(low):
        z = z << np.uint64(8) | byte
    return join_differences(z, base, dtype)
