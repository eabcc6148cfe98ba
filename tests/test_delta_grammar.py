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
from orbax_gds.codecs.reference_delta import exponents_of, has_exponents, max_low_bytes
from orbax_gds.codecs.reference_fields import pack_bitmap
from orbax_gds.codecs.reference_huffman import codes_of, encode_sub_block, fit_lengths
from orbax_gds.codecs.reference_levels import encode_levels
from orbax_gds.dtypes import DTYPES, Dtype, dtype_by_name
from orbax_gds.errors import OgdsError

ESCAPE = 15
CRC = 9  # that the frames name as their base's
NARROW = [dtype for dtype in DTYPES if dtype.bits < 8]


def sealed(dtype: Dtype, n_words: int, coded: bytes) -> bytes:
    """Return the frame of codec 6 with these coded words."""
    payload = struct.pack("<I", CRC) + coded
    total = (32 + len(payload) + 63) // 64 * 64
    body = payload.ljust(total - 32, b"\0")
    counts = (n_words, len(payload), total, 0, _native.crc32c(body))
    head = struct.pack("<4sBBH5I", b"OGF1", 6, dtype.id, 2, *counts)
    return head + struct.pack("<I", _native.crc32c(head)) + body


def coded_words(rng: np.random.Generator, dtype: Dtype, base: np.ndarray, header: Delta) -> bytes:
    """Return a header and one sub-block: any symbols and any bits of planes, escapes and low bytes.

    Most fit; now and then more planes are there than words have bits, and what is ignored of
    escaped words is anything.
    """
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
    counts, bitmaps = encode_levels(symbols, header.widths, header.symbols)
    is_coded = rng.random() < 0.4
    if is_coded:
        first = np.frombuffer(bitmaps[0], np.uint8)
        header = replace(header, lengths=fit_lengths(first))
        code_of = {byte: code for code, byte in codes_of(header.lengths).items()}
        bitmaps[0] = encode_sub_block(first, code_of)
    n_escapes = int((symbols == ESCAPE).sum())
    escapes = rng.integers(0, 1 << min(n_bits, 63), n_escapes).astype("<u8").view(np.uint8)
    escapes = escapes.reshape(-1, 8)[:, : dtype.word_dtype.itemsize - header.low_bytes]
    n_planes = int(rng.choice([int(k.max()), 7]))
    planes = [rests[k > j] >> np.uint64(j) & np.uint64(1) for j in range(n_planes)]
    head = np.array([*counts, n_escapes], "<u2").tobytes() + bytes([n_planes, is_coded])
    head += np.array([plane.size for plane in planes], "<u2").tobytes()
    low = rng.bytes(m * header.low_bytes)
    return b"".join(
        [header.pack(), head, *bitmaps, escapes.tobytes(), low, *map(pack_bitmap, planes)]
    )


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


@settings(max_examples=25, deadline=None)
@given(data=st.data(), dtype=st.sampled_from([*DTYPES, *NARROW]), seed=st.integers(0, 2**32))
def test_what_the_format_allows_is_read_alike_by_all(
    data: st.DataObject, dtype: Dtype, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    base = rng.integers(0, 1 << min(dtype.bits, 63), data.draw(st.integers(1, 600)))
    exponents = has_exponents(dtype) and data.draw(st.booleans())
    header = Delta(
        shift=data.draw(st.integers(0, 255 if exponents else 7)),
        widths=(*data.draw(st.lists(st.sampled_from((1, 2)), max_size=7)), 4),
        symbols=tuple(data.draw(st.permutations(range(16)))),
        exponents=exponents,
        low_bytes=data.draw(st.integers(0, max_low_bytes(dtype))),
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
