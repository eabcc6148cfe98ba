"""Frames of the NumPy reference: it and the native core read each other and refuse the same."""

import doctest

import google_crc32c
import numpy as np
import pytest
from coded_frames import coded_frames
from hypothesis import given, settings
from hypothesis import strategies as st
from isas import decode_on_every_isa

from orbax_gds import _native
from orbax_gds.codecs import CODECS, reference
from orbax_gds.dtypes import DTYPES, Dtype, dtype_by_name
from orbax_gds.errors import Corrupt, OgdsError, Truncated, Unsupported
from orbax_gds.testing import chunks, famous_words

NAMES = [codec.name for codec in CODECS if codec.name != "delta"]  # which needs a base


def codings_of(dtype: Dtype) -> list[str]:
    return [codec.name for codec in CODECS if codec.name in NAMES and codec.supports(dtype)]


# --- CRC32C ---------------------------------------------------------------------------------------


@given(data=st.binary(max_size=300), repeat=st.sampled_from((1, 40)), cut=st.integers(0, 12000))
def test_crc32c_is_castagnoli_and_continues(data: bytes, repeat: int, cut: int) -> None:
    data *= repeat
    assert reference.crc32c(data) == google_crc32c.value(data)
    assert reference.crc32c(data[cut:], reference.crc32c(data[:cut])) == google_crc32c.value(data)


def test_crc32c_gives_the_check_values_of_rfc_3720() -> None:
    assert reference.crc32c(bytes(32)) == 0x8A9136AA
    assert reference.crc32c(b"\xff" * 32) == 0x62A8AB43
    assert reference.crc32c(bytes(range(32))) == 0x46DD794E


# --- frames ---------------------------------------------------------------------------------------


@settings(max_examples=12)
@given(chunk=chunks(), block_map=st.booleans(), align_bytes=st.sampled_from((64, 4096)))
def test_reference_reads_what_it_writes(
    chunk: tuple[Dtype, np.ndarray], block_map: bool, align_bytes: int
) -> None:
    dtype, words = chunk
    for codec in codings_of(dtype):
        frame = reference.encode_frame(
            words, dtype, codec=codec, chunk=7, block_map=block_map, align_bytes=align_bytes
        )
        header, decoded = reference.decode_frame(frame)
        assert (header.dtype, header.chunk, header.n_words) == (dtype, 7, words.size)
        assert decoded.dtype == dtype.word_dtype
        assert len(frame) % align_bytes == 0
        np.testing.assert_array_equal(decoded, words)


@pytest.mark.slow
@pytest.mark.parametrize("codec", NAMES)
@settings(max_examples=15)
@given(data=st.data())
def test_every_header_round_trips_in_reference_and_native(codec: str, data: st.DataObject) -> None:
    frame, _, words = data.draw(coded_frames(codec))
    np.testing.assert_array_equal(reference.decode_frame(frame)[1], words)
    np.testing.assert_array_equal(decode_on_every_isa(frame, words.size, words.dtype), words)


@settings(max_examples=12)
@given(chunk=chunks(), block_map=st.booleans())
def test_native_reads_what_reference_writes(
    chunk: tuple[Dtype, np.ndarray], block_map: bool
) -> None:
    dtype, words = chunk
    for codec in codings_of(dtype):
        frame = reference.encode_frame(words, dtype, codec=codec, block_map=block_map)
        np.testing.assert_array_equal(decode_on_every_isa(frame, words.size, words.dtype), words)


@settings(max_examples=12)
@given(chunk=chunks(), block_map=st.sampled_from((None, False, True)))
def test_reference_reads_what_native_writes(
    chunk: tuple[Dtype, np.ndarray], block_map: bool | None
) -> None:
    dtype, words = chunk
    for codec in ["auto", "off", *codings_of(dtype)]:
        frame = _native.encode_frame(words, dtype.id, chunk=3, codec=codec, block_map=block_map)
        header, decoded = reference.decode_frame(frame)
        assert header.chunk == 3
        if codec in ("auto", "off", "raw") and not block_map:  # what was asked for may not pay
            assert len(frame) <= _native.max_frame_bytes(words.size, dtype.id)
        np.testing.assert_array_equal(decoded, words)


def test_native_reads_reference_frames_of_all_famous_words() -> None:
    for dtype in DTYPES:
        words = famous_words(dtype)
        for codec in codings_of(dtype):
            frame = reference.encode_frame(words, dtype, codec=codec)
            native = decode_on_every_isa(frame, words.size, words.dtype)
            np.testing.assert_array_equal(native, words)


@pytest.mark.slow
@pytest.mark.parametrize("codec", NAMES)
@settings(max_examples=12)
@given(data=st.data())
def test_native_and_reference_refuse_the_same_damaged_payloads(
    codec: str, data: st.DataObject
) -> None:
    frame, dtype, words = data.draw(coded_frames(codec, max_words=1100))
    header = reference.parse_frame_header(frame)
    payload = bytearray(frame[32 : 32 + header.payload_bytes])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(payload) - 1) | st.integers(0, min(90, len(payload) - 1)))
        payload[at] ^= data.draw(st.sampled_from((1, 2, 4, 8, 16, 32, 64, 128, 255)))
    if data.draw(st.booleans()):
        payload = payload[: data.draw(st.integers(0, len(payload)))]
    damaged = reseal(frame, bytes(payload))
    try:
        decoded = reference.decode_frame(damaged)[1]
        assert int(decoded.max()) < 1 << dtype.bits
    except OgdsError:
        decoded = None
    native = decode_on_every_isa(damaged, words.size, words.dtype)
    assert (native is None) == (decoded is None)
    if decoded is not None:
        np.testing.assert_array_equal(native, decoded)


def reseal(frame: bytes, payload: bytes, **fields: int) -> bytes:
    """Return the frame with another payload and header fields, under CRCs that hold."""
    offsets = {"codec": (4, 1), "dtype": (5, 1), "flags": (6, 2), "n_words": (8, 4)}
    offsets |= {"payload_bytes": (12, 4), "frame_bytes": (16, 4), "chunk": (20, 4)}
    body = payload.ljust(-(-(32 + len(payload)) // 64) * 64 - 32, b"\0")
    header = bytearray(frame[:28])
    fields = {"payload_bytes": len(payload), "frame_bytes": 32 + len(body)} | fields
    for name, value in fields.items():
        at, size = offsets[name]
        header[at : at + size] = value.to_bytes(size, "little")
    header[24:28] = reference.crc32c(body).to_bytes(4, "little")
    return bytes(header) + reference.crc32c(bytes(header)).to_bytes(4, "little") + body


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"codec": 2}, Unsupported),
        ({"codec": 255}, Unsupported),
        ({"codec": 1}, Corrupt),
        ({"dtype": 0}, Unsupported),
        ({"dtype": 31}, Unsupported),
        ({"dtype": 34}, Unsupported),
        ({"flags": 2}, Corrupt),
        ({"flags": 0x8000}, Corrupt),
        ({"n_words": 0}, Corrupt),
        ({"n_words": 19}, Corrupt),
        ({"n_words": 21}, Truncated),
        ({"n_words": (1 << 28) + 1}, Corrupt),
        ({"payload_bytes": 19}, Corrupt),
        ({"payload_bytes": 33}, Corrupt),
        ({"frame_bytes": 0}, Corrupt),
        ({"frame_bytes": 63}, Corrupt),
        ({"frame_bytes": 128}, Truncated),
        ({"frame_bytes": 1 << 31}, Corrupt),
    ],
    ids=str,
)
def test_impossible_frame_headers_are_refused(
    fields: dict[str, int], error: type[OgdsError]
) -> None:
    words = np.arange(20, dtype=np.uint8)
    frame = reference.encode_frame(words, dtype_by_name("uint8"))
    damaged = reseal(frame, words.tobytes(), **fields)
    with pytest.raises(error) as caught:
        reference.decode_frame(damaged, "here")
    assert type(caught.value) is error
    assert decode_on_every_isa(damaged, 20, np.uint8) is None


@pytest.mark.slow
def test_every_flipped_bit_of_a_frame_is_refused() -> None:
    words = np.repeat(np.arange(3, dtype=np.uint16), 100)
    frame = reference.encode_frame(words, dtype_by_name("bfloat16"), codec="ladder", block_map=True)
    for bit in range(8 * len(frame)):
        damaged = bytearray(frame)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(OgdsError):
            reference.decode_frame(bytes(damaged))
        assert decode_on_every_isa(bytes(damaged), words.size, words.dtype) is None


def test_a_frame_cut_at_any_byte_is_refused() -> None:
    words = np.arange(300, dtype=np.uint16)
    frame = reference.encode_frame(words, dtype_by_name("bfloat16"), codec="ladder")
    for n_bytes in range(len(frame)):
        with pytest.raises(Truncated):
            reference.decode_frame(frame[:n_bytes])
        assert decode_on_every_isa(frame[:n_bytes], words.size, words.dtype) is None


def test_the_examples_of_the_reference_run() -> None:
    results = doctest.testmod(reference)
    assert results.attempted > 0
    assert results.failed == 0
