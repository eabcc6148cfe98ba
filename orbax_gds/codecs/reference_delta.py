"""The delta coding in plain NumPy, written from FORMAT §7.11 and nothing else."""

import struct
from dataclasses import dataclass, replace

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
MAX_SHIFT = 255
MAX_PLANES = 7
MAX_DECAY = 32767
_EXPONENTS, _LENGTHS, _UNCHANGED, _DECAY, _SCALES = 1, 2, 4, 8, 16  # flags
_KNOWN = _EXPONENTS | _LENGTHS | _DECAY | _SCALES


@dataclass(frozen=True, kw_only=True)
class Delta:
    """Header of the coded words of delta. FORMAT §7.11.

    Attributes:
        shift: How many bits are below a symbol; with exponents, less the base's exponent.
        widths: Width of each level, 1 or 2 and last a 4.
        symbols: The symbol of each rank, a permutation of 0 to 15.
        exponents: The base's exponents tell how many bits are below.
        low_bytes: Bytes of every difference that are written as they are.
        lengths: Code lengths of the bytes of the first bitmap: int64[256], or None.
        decay: What the base's words have lost, in 2^-24 of each; 0 for nothing.
        scales: Shift, low bytes and exponents of the sub-blocks in turn; none for those of the
            header.
    """

    shift: int
    widths: tuple[int, ...]
    symbols: tuple[int, ...]
    exponents: bool = False
    low_bytes: int = 0
    lengths: np.ndarray | None = None
    decay: int = 0
    scales: tuple[tuple[int, int, bool], ...] = ()

    def pack(self) -> bytes:
        """Return the bytes of the header."""
        flags = _LENGTHS * (self.lengths is not None) | _DECAY * (self.decay > 0)
        flags |= _SCALES if self.scales else _EXPONENTS * self.exponents
        levels = pack_header(self.widths, self.symbols)
        shift, low_bytes = (0, 0) if self.scales else (self.shift, self.low_bytes)
        header = DELTA.pack(flags, shift, *levels, low_bytes, 0)
        header += struct.pack("<H", self.decay) if self.decay else b""
        return header + (b"" if self.lengths is None else pack_lengths(self.lengths))

    @classmethod
    def parse(cls, payload: Cursor, dtype: Dtype) -> "Delta":
        """Read and check the header."""
        taken = payload.take(DELTA.size, "the delta header")
        flags, shift, levels, symbols, low_bytes, zero = DELTA.unpack(taken)
        exponents = bool(flags & _EXPONENTS)
        if (
            flags & ~_KNOWN
            or zero
            or not _is_scale(shift, low_bytes, exponents, dtype)
            or (flags & _SCALES and (shift or low_bytes or exponents))
            or (flags & _DECAY and not may_decay(dtype))
        ):
            raise Corrupt(
                f"{payload.where}: delta: flags {flags}, shift {shift}, {low_bytes}, {zero}."
            )
        widths, ranked = parse_header(levels, symbols, payload.where)
        decay = 0
        if flags & _DECAY:
            decay = int.from_bytes(payload.take(2, "the decay"), "little")
            if not 1 <= decay <= MAX_DECAY:
                raise Corrupt(f"{payload.where}: delta: decay {decay}, not 1 to {MAX_DECAY}.")
        lengths = parse_lengths(payload, 8) if flags & _LENGTHS else None
        return cls(
            shift=shift,
            widths=widths,
            symbols=ranked,
            exponents=exponents,
            low_bytes=low_bytes,
            lengths=lengths,
            decay=decay,
            scales=((0, 0, False),) if flags & _SCALES else (),
        )

    def of_sub_block(self, number: int) -> "Delta":
        """Return the header with the scale of a sub-block."""
        if not self.scales:
            return self
        shift, low_bytes, exponents = self.scales[number % len(self.scales)]
        return replace(self, shift=shift, low_bytes=low_bytes, exponents=exponents)

    def pack_scale(self) -> bytes:
        """Return what the head of a sub-block says of its own scale."""
        own = bytes([self.shift, self.low_bytes + 128 * self.exponents])
        return own if self.scales else b""

    def take_scale(self, payload: Cursor, dtype: Dtype) -> "Delta":
        """Read and check it."""
        if not self.scales:
            return self
        shift, rest = payload.take(2, "the scale of a sub-block")
        scale = (shift, rest % 128, rest >= 128)
        if not _is_scale(*scale, dtype):
            raise Corrupt(f"{payload.where}: delta: scale {scale} of a sub-block.")
        return replace(self, scales=(scale,)).of_sub_block(0)

    @classmethod
    def fitting(cls, words: np.ndarray, base: np.ndarray, dtype: Dtype) -> "Delta":
        """Choose a header for these words: half of the changed have three bits in their symbols."""
        sizes = _sizes(differences(words, base, dtype))
        exponents = has_exponents(dtype)
        sums = sizes + (exponents_of(base, dtype) if exponents else 0)
        middle = int(np.median(sums[sizes > 0])) if sizes.any() else 0
        shift = min(max(middle - 3, 0), MAX_SHIFT if exponents else MAX_PLANES)
        blank = cls(shift=shift, widths=(4,), symbols=tuple(range(16)), exponents=exponents)
        symbols = _symbols(words, base, dtype, blank)
        widths, ranked = fit_header(symbols)
        first = _first_bitmap(symbols, cls(shift=shift, widths=(1, 4), symbols=ranked))
        return cls(
            shift=shift,
            widths=widths,
            symbols=ranked,
            exponents=exponents,
            lengths=fit_lengths(first) if words.size >= SUB_BLOCK_WORDS else None,
        )


def _is_scale(shift: int, low_bytes: int, exponents: bool, dtype: Dtype) -> bool:
    most = MAX_SHIFT if exponents else MAX_PLANES
    fits = shift <= most and low_bytes <= max_low_bytes(dtype)
    return fits and (not exponents or has_exponents(dtype))


def max_low_bytes(dtype: Dtype) -> int:
    """Return how many low bytes of differences may be written as they are."""
    n_bytes = dtype.word_dtype.itemsize
    return n_bytes - 1 if n_bytes <= 2 else n_bytes - 2


def has_exponents(dtype: Dtype) -> bool:
    """Whether exponents of the base may tell what class is expected."""
    return dtype.split is not None and SPLITS[dtype.split].exponent_bits <= 8


def may_decay(dtype: Dtype) -> bool:
    """Whether words of the base may be taken less a share of their values."""
    return dtype.split == "fp32"


def decayed(base: np.ndarray, decay: int) -> np.ndarray:
    """Return b of the base's words: uint32, less a share of each."""
    mantissas = (1 << 14) + (base.astype(np.int64) >> 9) % (1 << 14)
    return ((base - ((mantissas * decay + (1 << 14)) >> 15)) % (1 << 32)).astype(base.dtype)


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


def _sizes(z: np.ndarray) -> np.ndarray:
    sizes = np.zeros(z.size, np.int64)
    for bit in range(64):
        sizes[z >> np.uint64(bit) != 0] = bit + 1
    return sizes


def _below(base: np.ndarray, dtype: Dtype, delta: Delta) -> np.ndarray:
    """Return k of every word, uint64."""
    less = exponents_of(base, dtype) if delta.exponents else np.zeros(base.size, np.int64)
    return np.clip(delta.shift - less, 0, MAX_PLANES).astype(np.uint64)


def _symbols(words: np.ndarray, base: np.ndarray, dtype: Dtype, delta: Delta) -> np.ndarray:
    y = differences(words, base, dtype) >> np.uint64(8 * delta.low_bytes)
    return np.minimum(y >> _below(base, dtype, delta), ESCAPE).astype(np.int64)


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
    base = decayed(base, delta.decay) if delta.decay else base
    parts = [delta.pack()]
    for at in range(0, words.size, SUB_BLOCK_WORDS):
        piece = slice(at, at + SUB_BLOCK_WORDS)
        own = delta.of_sub_block(at // SUB_BLOCK_WORDS)
        parts.append(_encode_sub_block(words[piece], base[piece], dtype, own))
    return b"".join(parts)


def _encode_sub_block(words: np.ndarray, base: np.ndarray, dtype: Dtype, delta: Delta) -> bytes:
    z = differences(words, base, dtype)
    low = _as_bytes(z, delta.low_bytes)
    y = z >> np.uint64(8 * delta.low_bytes)
    k = _below(base, dtype, delta)
    symbols = _symbols(words, base, dtype, delta)
    counts, bitmaps = encode_levels(symbols, delta.widths, delta.symbols)
    code_of = {} if delta.lengths is None else {y: c for c, y in codes_of(delta.lengths).items()}
    first = np.frombuffer(bitmaps[0], np.uint8)
    is_coded = set(first.tolist()) <= set(code_of)
    if is_coded:
        bitmaps[0] = encode_sub_block(first, code_of)
    escaped = y[symbols == ESCAPE]
    escapes = _as_bytes(escaped, dtype.word_dtype.itemsize - delta.low_bytes)
    planes = [y[k > plane] >> np.uint64(plane) & np.uint64(1) for plane in range(int(k.max()))]
    head = np.array([*counts, escaped.size], "<u2").tobytes() + bytes([len(planes), is_coded])
    head += delta.pack_scale() + np.array([plane.size for plane in planes], "<u2").tobytes()
    return b"".join([head, *bitmaps, escapes, low, *map(pack_bitmap, planes)])


def _as_bytes(values: np.ndarray, n_bytes: int) -> bytes:
    """Return the low bytes of every value, lowest first."""
    return values.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :n_bytes].tobytes()


def _take_bytes(payload: Cursor, n: int, n_bytes: int, what: str) -> np.ndarray:
    """Undo `_as_bytes`."""
    octets = np.zeros((n, 8), np.uint8)
    octets[:, :n_bytes] = payload.array("u1", n * n_bytes, what).reshape(n, n_bytes)
    return octets.view("<u8").reshape(n).astype(np.uint64)


def decode_delta(payload: Cursor, base: np.ndarray, dtype: Dtype) -> np.ndarray:
    """Undo `encode_delta`."""
    if not base.size:
        return base
    if payload.data[payload.at : payload.at + 2] == struct.pack("<H", _UNCHANGED):
        payload.take(2, "the flags of an unchanged chunk")
        return base.copy()
    delta = Delta.parse(payload, dtype)
    base = decayed(base, delta.decay) if delta.decay else base
    parts = [base[:0]]
    for at in range(0, base.size, SUB_BLOCK_WORDS):
        parts.append(_decode_sub_block(payload, base[at : at + SUB_BLOCK_WORDS], dtype, delta))
    return np.concatenate(parts)


def _decode_sub_block(payload: Cursor, base: np.ndarray, dtype: Dtype, delta: Delta) -> np.ndarray:
    m, where = base.size, payload.where
    counts, n_escapes = take_counts(payload, delta.widths)
    n_planes, is_coded = payload.take(2, "the head of a delta's sub-block")
    delta = delta.take_scale(payload, dtype)
    n_bits = dtype.bits - 8 * delta.low_bytes
    if n_planes > MAX_PLANES or is_coded > (delta.lengths is not None):
        raise Corrupt(f"{where}: delta: {n_planes} planes, coded {is_coded}.")
    sizes = payload.array("<u2", n_planes, "the numbers of bits of planes").tolist()
    first_bits = None
    if is_coded:
        first = np.zeros(-(-m // 8), np.uint8)
        decode_sub_block(payload, codes_of(np.asarray(delta.lengths)), first)
        first_bits = np.unpackbits(first, count=m, bitorder="little")
    symbols = decode_levels(payload, m, counts, delta.widths, delta.symbols, first_bits)
    if n_escapes != (symbols == ESCAPE).sum():
        raise Corrupt(f"{where}: delta: {n_escapes} escapes do not fit the symbols.")
    n_bytes = dtype.word_dtype.itemsize - delta.low_bytes
    escapes = _take_bytes(payload, n_escapes, n_bytes, "the escapes")
    low = _take_bytes(payload, m, delta.low_bytes, "low bytes")
    k = _below(base, dtype, delta)
    if k.max() > n_planes:
        raise Corrupt(f"{where}: delta: {k.max()} bits below a symbol with {n_planes} planes.")
    y = symbols.astype(np.uint64) << k
    for plane, size in enumerate(sizes):
        has_bit = k > plane
        if size != has_bit.sum():
            raise Corrupt(f"{where}: delta: plane {plane} has {size} bits, not {has_bit.sum()}.")
        bits = take_bitmap(payload, size, "a plane of a delta")
        y[has_bit] |= bits.astype(np.uint64) << np.uint64(plane)
    y[symbols == ESCAPE] = escapes
    if n_bits < 64 and (y >> np.uint64(n_bits)).any():
        raise Corrupt(f"{where}: delta: a difference of more than {n_bits} bits.")
    z = y << np.uint64(8 * delta.low_bytes) | low
    return join_differences(z, base, dtype)
