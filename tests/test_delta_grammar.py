"""Deltas that no writer of ours makes, but the format allows: every kernel and the reference read
the same words or refuse them.
"""

import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isas import decode_on_every_isa

from orbax_gds import _native
from orbax_gds.codecs import reference
from orbax_gds.codecs.reference import Base, Delta
from orbax_gds.codecs.reference_delta import (
    MAX_DECAY,
    SUB_BLOCK_WORDS,
    decayed,
    exponents_of,
    has_exponents,
    max_low_bytes,
    may_decay,
)
from orbax_gds.codecs.reference_fields import pack_bitmap
from orbax_gds.codecs.reference_huffman import codes_of, encode_sub_block, fit_lengths
from orbax_gds.codecs.reference_levels import encode_levels
from orbax_gds.dtypes import DTYPES, Dtype, dtype_by_name
from orbax_gds.errors import OgdsError

ESCAPE = 15
CRC = 9  # that the frames name as their base's
NARROW = [dtype for dtype in DTYPES if dtype.bits < 8]
DECAYING = [dtype for dtype in DTYPES if may_decay(dtype)]


def sealed(dtype: Dtype, n_words: int, coded: bytes) -> bytes:
    """Return the frame of codec 6 with these coded words."""
    payload = struct.pack("<I", CRC) + coded
    total = (32 + len(payload) + 63) // 64 * 64
    body = payload.ljust(total - 32, b"\0")
    counts = (n_words, len(payload), total, 0, _native.crc32c(body))
    head = struct.pack("<4sBBH5I", b"OGF1", 6, dtype.id, 2, *counts)
    return head + struct.pack("<I", _native.crc32c(head)) + body


def coded_words(rng: np.random.Generator, dtype: Dtype, base: np.ndarray, header: Delta) -> bytes:
    """Return a header and sub-blocks: any symbols and any bits of planes, escapes and low bytes.

    Most fit; now and then more planes are there than words have bits, and what is ignored of
    escaped words is anything.
    """
    base = decayed(base, header.decay) if header.decay else base
    parts = [base[at : at + SUB_BLOCK_WORDS] for at in range(0, base.size, SUB_BLOCK_WORDS)]
    scales = [header.of_sub_block(number) for number in range(len(parts))]
    drawn = [drawn_words(rng, dtype, *each) for each in zip(parts, scales, strict=True)]
    if rng.random() < 0.4:
        first = encode_levels(drawn[0][0], header.widths, header.symbols)[1][0]
        others = bytes(range(256)) * (rng.random() < 0.5)
        header = replace(header, lengths=fit_lengths(np.frombuffer(first + others, np.uint8)))
    coded = [
        sub_block(rng, dtype, *words, header.of_sub_block(number))
        for number, words in enumerate(drawn)
    ]
    return b"".join([header.pack(), *coded])


def drawn_words(
    rng: np.random.Generator, dtype: Dtype, base: np.ndarray, header: Delta
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return symbols, what is below them, and in how many bits."""
    m, n_bits = base.size, dtype.bits - 8 * header.low_bytes
    less = exponents_of(base, dtype) if header.exponents else np.zeros(m, np.int64)
    k = np.clip(header.shift - less, 0, 7).astype(np.uint64)
    symbols = rng.integers(0, int(rng.choice([2, 8, 15, 16])), m)
    if rng.random() < 0.5:
        symbols[rng.random(m) < 0.9] = 0
    rests = rng.integers(0, 128, m).astype(np.uint64) & ((np.uint64(1) << k) - np.uint64(1))
    fits = ((symbols.astype(np.uint64) << k) + rests) >> np.uint64(n_bits) == 0
    fits |= (symbols == ESCAPE) | (rng.random() < 0.05)
    symbols[~fits] = 0
    rests[~fits] &= np.uint64((1 << min(n_bits, 7)) - 1)
    return symbols, rests, k


def sub_block(
    rng: np.random.Generator,
    dtype: Dtype,
    symbols: np.ndarray,
    rests: np.ndarray,
    k: np.ndarray,
    header: Delta,
) -> bytes:
    """Return what was drawn, and the bytes that go with it."""
    m, n_bits = symbols.size, dtype.bits - 8 * header.low_bytes
    counts, bitmaps = encode_levels(symbols, header.widths, header.symbols)
    lengths = header.lengths
    code_of = {} if lengths is None else {byte: code for code, byte in codes_of(lengths).items()}
    is_coded = set(bitmaps[0]) <= code_of.keys()
    if is_coded:
        bitmaps[0] = encode_sub_block(np.frombuffer(bitmaps[0], np.uint8), code_of)
    n_escapes = int((symbols == ESCAPE).sum())
    escapes = rng.integers(0, 1 << min(n_bits, 63), n_escapes).astype("<u8").view(np.uint8)
    escapes = escapes.reshape(-1, 8)[:, : dtype.word_dtype.itemsize - header.low_bytes]
    n_planes = int(rng.choice([int(k.max()), 7]))
    planes = [rests[k > j] >> np.uint64(j) & np.uint64(1) for j in range(n_planes)]
    head = np.array([*counts, n_escapes], "<u2").tobytes() + bytes([n_planes, is_coded])
    head += header.pack_scale() + np.array([plane.size for plane in planes], "<u2").tobytes()
    low = rng.bytes(m * header.low_bytes)
    return b"".join([head, *bitmaps, escapes.tobytes(), low, *map(pack_bitmap, planes)])


def reads_alike(frame: bytes, base: np.ndarray) -> bool:
    """Whether every kernel and the reference read the frame's words, on which all must agree."""
    native = decode_on_every_isa(frame, base.size, base.dtype, base=base, base_crc32c=CRC)
    try:
        words = reference.decode_frame(frame, base=Base(words=base, payload_crc32c=CRC))[1]
    except OgdsError:
        assert native is None
        return False
    np.testing.assert_array_equal(native, words)
    return True


def scales_of(dtype: Dtype) -> st.SearchStrategy[tuple[int, int, bool]]:
    """Shift, low bytes and whether exponents count."""
    low_bytes = st.integers(0, max_low_bytes(dtype))
    scales = st.tuples(st.integers(0, 7), low_bytes, st.just(False))
    if has_exponents(dtype):
        scales |= st.tuples(st.integers(0, 255), low_bytes, st.just(True))
    return scales


@settings(max_examples=25, deadline=None)
@given(
    data=st.data(),
    dtype=st.sampled_from([*DTYPES, *NARROW, *DECAYING * 4]),
    seed=st.integers(0, 2**32),
)
def test_what_the_format_allows_is_read_alike_by_all(
    data: st.DataObject, dtype: Dtype, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    n_words = data.draw(st.integers(1, 600))
    n_scales = data.draw(st.sampled_from((0, 0, 1, 1, 2)))
    scales = data.draw(st.lists(scales_of(dtype), min_size=n_scales, max_size=n_scales))
    n_words += SUB_BLOCK_WORDS * max(0, n_scales - 1)
    base = rng.integers(0, 1 << min(dtype.bits, 63), n_words)
    shift, low_bytes, exponents = (0, 0, False) if scales else data.draw(scales_of(dtype))
    header = Delta(
        shift=shift,
        widths=(*data.draw(st.lists(st.sampled_from((1, 2)), max_size=7)), 4),
        symbols=tuple(data.draw(st.permutations(range(16)))),
        exponents=exponents,
        low_bytes=low_bytes,
        decay=data.draw(st.sampled_from((0, 1, 300, MAX_DECAY))) if may_decay(dtype) else 0,
        scales=tuple(scales),
    )
    base = base.astype(dtype.word_dtype)
    reads_alike(sealed(dtype, base.size, coded_words(rng, dtype, base, header)), base)


@pytest.mark.parametrize("dtype", [*NARROW, dtype_by_name("uint8")], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("n_words", [1, 300, 2500])
def test_low_bits_of_escaped_words_are_ignored(dtype: Dtype, n_words: int) -> None:
    base = np.zeros(n_words, dtype.word_dtype)
    header = Delta(shift=7, widths=(4,), symbols=tuple(range(16)))
    ranks = [pack_bitmap(np.ones(n_words, np.uint8))] * 4  # all are escapes
    ignored = [pack_bitmap(np.ones(n_words, np.uint8))] * 7
    head = struct.pack("<HBB7H", n_words, 7, 0, *[n_words] * 7)
    coded = b"".join([header.pack(), head, *ranks, b"\1" * n_words, *ignored])
    assert reads_alike(sealed(dtype, n_words, coded), base)
