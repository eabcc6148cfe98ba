"""Codec 4: which words it takes, what it refuses, and that it leaves the threads alone."""

import pickle
import struct
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from orbax_gds import _native
from orbax_gds.codecs import codec_by_name, zstd
from orbax_gds.codecs.payload import decode_payload
from orbax_gds.dtypes import DTYPES, dtype_by_name
from orbax_gds.errors import Corrupt
from orbax_gds.testing import chunks

UINT8 = dtype_by_name("uint8")
UINT32 = dtype_by_name("uint32")
WHOLE = [dtype for dtype in DTYPES if dtype.name.startswith(("int", "uint", "bool"))]
TEXT = np.frombuffer(b"".join(b"step %d of the run; " % i for i in range(500)), np.uint8)
RANDOM = np.random.default_rng(0).integers(0, 256, 300_000, np.uint8)


def codec_of(frame: bytes) -> int:
    return frame[4]


def small_numbers(dtype, n_words: int, seed: int = 0) -> np.ndarray:
    """Words as counters, labels and token ids are: few high bits."""
    drawn = np.random.default_rng(seed).zipf(1.5, n_words) % (1 << min(dtype.bits, 15))
    return drawn.astype(dtype.word_dtype)


def decoded(frame: bytes, n_words: int, dtype) -> np.ndarray:
    out = np.full(n_words, 0xA5, dtype.word_dtype)
    assert _native.STATUS[_native.decode_frame(frame, out)] == "ok"
    return out


@settings(max_examples=20)
@given(
    drawn=chunks(where=lambda dtype: dtype in WHOLE, max_words=3000),
    block_map=st.sampled_from((None, True, False)),
    codec=st.sampled_from(("auto", "zstd")),
    level=st.sampled_from((zstd.AUTO_LEVEL, zstd.MAX_LEVEL)),
)
def test_whole_words_come_back_with_and_without_a_block_map(drawn, block_map, codec, level):
    dtype, words = drawn
    frame = _native.encode_frame(
        words, dtype.id, codec=codec, block_map=block_map, zstd_level=level
    )
    np.testing.assert_array_equal(decoded(frame, words.size, dtype), words)


@pytest.mark.parametrize("dtype", WHOLE, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("n_words", [700, 100_001])
def test_whole_words_with_few_values_are_coded_and_get_smaller(dtype, n_words):
    words = small_numbers(dtype, n_words)
    frame = _native.encode_frame(words, dtype.id, zstd_level=1)
    raw = _native.encode_frame(words, dtype.id, codec="off")
    assert len(frame) <= len(raw)
    if dtype.bits > 2:  # a bit or two of noise cannot get shorter
        assert codec_of(frame) == 4
        assert len_payload(frame) <= 0.98 * len_payload(raw)
    np.testing.assert_array_equal(decoded(frame, n_words, dtype), words)


def test_text_is_coded():
    frame = _native.encode_frame(TEXT, UINT8.id, zstd_level=1)
    assert codec_of(frame) == 4
    assert len(frame) < TEXT.size // 3
    assert _native.frame_info(frame)["stream_bytes"] == {"zstd": len_payload(frame)}


def len_payload(frame: bytes) -> int:
    return struct.unpack_from("<I", frame, 12)[0]


def test_content_is_the_planes_of_the_words():
    words = np.arange(1000, dtype=np.uint32) * 0x01020304
    dtype = dtype_by_name("int32")
    payload = codec_by_name("zstd").encode(words, dtype)
    content = zstandard.ZstdDecompressor().decompress(payload)
    assert content == words.view(np.uint8).reshape(-1, 4).T.tobytes()


def test_words_that_do_not_shrink_are_raw_after_a_look_at_a_piece(monkeypatch):
    lengths = []

    def noted(content, level):
        lengths.append(len(content))
        return compress(content, level)

    compress = zstd.compress
    monkeypatch.setattr(zstd, "compress", noted)
    for dtype in map(dtype_by_name, ("uint8", "int16", "uint32", "int64")):
        n_words = RANDOM.size // dtype.container_bytes
        words = RANDOM[: n_words * dtype.container_bytes].view(dtype.word_dtype)
        frame = _native.encode_frame(words, dtype.id, zstd_level=1)
        assert codec_of(frame) == 0
        assert len(frame) <= _native.max_frame_bytes(n_words, dtype.id)
    assert lengths == [32768] * 4


def test_level_0_leaves_words_raw_and_calls_nothing(monkeypatch):
    monkeypatch.setattr(zstd, "compress", None)
    assert codec_of(_native.encode_frame(TEXT, UINT8.id, zstd_level=0)) == 0


def test_words_with_a_split_are_left_to_other_codecs():
    words = np.zeros(4000, np.uint16)
    words[::7] = 1
    frame = _native.encode_frame(words, dtype_by_name("bfloat16").id, zstd_level=1)
    assert codec_of(frame) != 4


def test_the_higher_level_is_never_longer():
    for words in (TEXT, small_numbers(UINT8, 20_000), RANDOM[:5000]):
        content = memoryview(words)
        lengths = [
            len(zstd.compress(content, level)) for level in (zstd.AUTO_LEVEL, zstd.MAX_LEVEL)
        ]
        assert lengths[1] <= lengths[0]


def status(payload: bytes, n_words: int, dtype=UINT8) -> str:
    try:
        decode_payload(payload, n_words, dtype, 4)
    except Corrupt as error:
        return str(error).partition(": ")[2].partition(". ")[0]
    return "ok"


def checked(payload: bytes, n_words: int) -> str:
    """The status of a check that keeps no words."""
    frame_bytes = -(-(32 + len(payload)) // 64) * 64
    body = payload.ljust(frame_bytes - 32, b"\0")
    head = struct.pack(
        "<4sBBHIIIII",
        b"OGF1",
        4,
        UINT8.id,
        0,
        n_words,
        len(payload),
        frame_bytes,
        0,
        _native.crc32c(body),
    )
    frame = np.frombuffer(head + struct.pack("<I", _native.crc32c(head)) + body, np.uint8)
    record = struct.pack(
        "<QIIIIBBHI",
        0,
        frame_bytes,
        n_words,
        len(payload),
        _native.crc32c(body),
        4,
        UINT8.id,
        0,
        0,
    )
    number, _ = _native.decode_run(
        frame,
        np.frombuffer(record, np.uint8).reshape(1, 32),
        np.array([[0, n_words, UINT8.id, 0]], np.uint32),
        [],
        np.zeros((0, 5), np.uint64),
        check_only=True,
    )
    return _native.STATUS[number]


FRAME = zstandard.ZstdCompressor(level=1).compress(TEXT)
SKIPPABLE = struct.pack("<II", 0x184D2A50, TEXT.size) + TEXT.tobytes()


def frame_with(n_bytes: int = TEXT.size, window_log: int = 17, **parameters) -> bytes:
    """The frame of an unusual compressor: no content size if `n_bytes` is 0."""
    made = zstandard.ZstdCompressionParameters.from_level(1, window_log=window_log, **parameters)
    compressor = zstandard.ZstdCompressor(compression_params=made)
    stream = compressor.compressobj(size=n_bytes or -1)
    return stream.compress(TEXT) + stream.flush()


def dictionary_frame() -> bytes:
    samples = [TEXT[i : i + 400].tobytes() for i in range(0, 9000, 90)]
    dictionary = zstandard.train_dictionary(1000, samples)
    return zstandard.ZstdCompressor(dict_data=dictionary).compress(TEXT)


@pytest.mark.parametrize(
    ("payload", "n_words", "said"),
    [
        (FRAME, TEXT.size, "ok"),
        (frame_with(write_checksum=True), TEXT.size, "ok"),
        (FRAME, TEXT.size - 1, "zstd: content is not as long as the words"),
        (FRAME, TEXT.size + 1, "zstd: content is not as long as the words"),
        (frame_with(0), TEXT.size, "zstd: content is not as long as the words"),
        (dictionary_frame(), TEXT.size, "zstd: needs a dictionary or a window above 128 MiB"),
        (FRAME + b"\0", TEXT.size, "zstd: damaged, or not one frame"),
        (FRAME + FRAME, TEXT.size, "zstd: damaged, or not one frame"),
        (SKIPPABLE, TEXT.size, "zstd: damaged, or not one frame"),
        (SKIPPABLE + FRAME, TEXT.size, "zstd: damaged, or not one frame"),
        (b"", 5, "zstd: damaged, or not one frame"),
        (TEXT[:100].tobytes(), 100, "zstd: damaged, or not one frame"),
    ],
    ids=lambda value: None if isinstance(value, bytes) else str(value),
)
def test_only_the_one_frame_of_the_words_is_taken(payload, n_words, said):
    assert status(payload, n_words) == said
    assert checked(payload, n_words) == said


def test_a_window_above_128_mib_is_refused_before_anything_is_allocated(monkeypatch):
    monkeypatch.setattr(zstd, "_decompressor", None)
    # RFC 8878 §3.1.1: content size of 8 bytes; window of exponent 18, mantissa 0: 2**28 bytes.
    header = zstd._MAGIC + bytes([0b1100_0000, 18 << 3]) + struct.pack("<Q", 1000)
    payload = header + bytes([0b011, 0, 0]) + b"x"
    assert status(payload, 1000) == "zstd: needs a dictionary or a window above 128 MiB"
    # One segment: the window is the content.
    n_words = (128 << 20) + 1
    single = zstd._MAGIC + bytes([0b1010_0000]) + struct.pack("<I", n_words) + b"\x01\0\0"
    assert checked(single, n_words) == "zstd: needs a dictionary or a window above 128 MiB"


def test_a_frame_cut_at_any_byte_is_refused():
    for n_bytes in range(len(FRAME)):
        assert status(FRAME[:n_bytes], TEXT.size) != "ok"


def test_a_frame_with_any_bit_changed_gives_words_or_a_refusal():
    frame = frame_with(write_checksum=True)
    said = set()
    for at in range(len(frame)):
        changed = bytearray(frame)
        changed[at] ^= 1 << at % 8
        said.add(status(bytes(changed), TEXT.size))
    assert {"zstd: damaged, or not one frame", "zstd: content is not as long as the words"} <= said
    assert said <= {"ok", *(text for text in _native.STATUS.values() if text.startswith("zstd"))}


@pytest.mark.parametrize("name", ["int4", "uint2", "int1"])
def test_bits_above_those_that_count_are_refused(name):
    dtype = dtype_by_name(name)
    content = bytearray(np.arange(200, dtype=np.uint8) & ((1 << dtype.bits) - 1))
    payload = zstandard.ZstdCompressor().compress(content)
    assert status(payload, 200, dtype) == "ok"
    content[77] |= 1 << dtype.bits
    payload = zstandard.ZstdCompressor().compress(content)
    assert status(payload, 200, dtype) == "zstd: unused bits of a word are not zero"


def test_threads_code_the_same_bytes():
    words = [small_numbers(dtype_by_name("int32"), 30_000, seed) for seed in range(8)]

    def round_trip(number: int) -> bytes:
        one = words[number % len(words)]
        frame = _native.encode_frame(one, 7, codec="zstd", zstd_level=1)
        out = np.zeros(one.size, np.uint32)
        assert _native.decode_frame(frame, out) == 0
        assert out.tobytes() == one.tobytes()
        return frame

    alone = [round_trip(number) for number in range(len(words))]
    with ThreadPoolExecutor(6) as threads:
        together = list(threads.map(round_trip, range(48)))
    assert together == alone * 6


def test_what_the_library_raises_is_raised(monkeypatch):
    class Gone(Exception):
        pass

    def fail(*_):
        raise Gone("no memory")

    frame = _native.encode_frame(TEXT, UINT8.id, codec="zstd")
    monkeypatch.setattr(zstd, "compress", fail)
    monkeypatch.setattr(zstd, "decompress", fail)
    for codec in ("auto", "zstd"):
        with pytest.raises(Gone, match="no memory"):
            _native.encode_frame(TEXT, UINT8.id, codec=codec)
    with pytest.raises(Gone):
        _native.decode_frame(frame, np.zeros(TEXT.size, np.uint8))
    damaged = bytearray(frame)
    damaged[40] ^= 1
    with pytest.raises(Gone):
        _native.decode_frame(damaged, np.zeros(TEXT.size, np.uint8))


def test_a_call_inside_a_call_does_not_disturb_it(monkeypatch):
    """As a signal's handler may make one: Python runs it while zstd is called."""
    words = small_numbers(dtype_by_name("int16"), 5000)
    words[1000:3000] = 0
    other = small_numbers(dtype_by_name("int16"), 4000, seed=1)
    compress = zstd.compress
    expected = _native.encode_frame(words, 5, block_map=True, zstd_level=1)

    def nested(content, level):
        monkeypatch.setattr(zstd, "compress", compress)
        assert codec_of(_native.encode_frame(other, 5, block_map=True, zstd_level=1)) == 4
        return compress(content, level)

    monkeypatch.setattr(zstd, "compress", nested)
    assert _native.encode_frame(words, 5, block_map=True, zstd_level=1) == expected


@pytest.mark.slow
def test_the_library_is_imported_at_the_first_use_only():
    text = "import sys, orbax_gds.codecs.registry; assert 'zstandard' not in sys.modules"
    subprocess.run([sys.executable, "-c", text], check=True)


def raises_first(error: BaseException, real, kept: list):
    """Return a stand-in for `real` whose first call raises; it keeps the views that it gets."""

    def call(data, *arguments):
        kept.append(data)
        if len(kept) == 1:
            raise error
        return real(data, *arguments)

    return call


# Of the first the look fails, of the second a whole chunk.
@pytest.mark.parametrize("n_words", [300_000, 3000])
@pytest.mark.parametrize("codec", ["auto", "max", "zstd"])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), RuntimeError("x")], ids=repr)
def test_what_compressing_raises_is_raised_and_its_view_is_dead(monkeypatch, n_words, codec, error):
    kept: list[memoryview] = []
    monkeypatch.setattr(zstd, "compress", raises_first(error, zstd.compress, kept))
    words = small_numbers(UINT32, n_words)
    with pytest.raises(type(error)):
        _native.encode_frame(words, UINT32.id, codec=codec, zstd_level=1)
    assert len(kept) == 1  # and nothing is called after it
    with pytest.raises(ValueError, match="released"):
        bytes(kept[0])
    _native.encode_frame(words, UINT32.id, codec=codec, zstd_level=1)
    with pytest.raises(ValueError, match="released"):
        bytes(kept[-1])


@pytest.mark.parametrize("damage", [0, 1], ids=["sound", "wrong CRC"])
def test_what_decompressing_raises_is_raised_and_its_view_is_dead(monkeypatch, damage):
    kept: list[memoryview] = []
    words = small_numbers(UINT32, 3000)
    frame = bytearray(_native.encode_frame(words, UINT32.id, codec="zstd"))
    frame[40] ^= damage
    stand_in = raises_first(KeyboardInterrupt(), zstd.decompress, kept)
    monkeypatch.setattr(zstd, "decompress", stand_in)
    with pytest.raises(KeyboardInterrupt):
        _native.decode_frame(bytes(frame), np.empty_like(words))
    with pytest.raises(ValueError, match="released"):
        bytes(kept[0])


def test_a_view_that_is_in_use_after_the_call_is_an_error(monkeypatch):
    kept = []

    def keeps(content, level):
        kept.append(pickle.PickleBuffer(content))
        return bytes(content)

    monkeypatch.setattr(zstd, "compress", keeps)
    with pytest.raises(BufferError):
        _native.encode_frame(small_numbers(UINT32, 3000), UINT32.id, codec="zstd")
