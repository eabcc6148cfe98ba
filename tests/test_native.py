"""The native core, one frame at a time: right bits on every kernel, or a status."""

import ctypes
import os
import pathlib
import re
import subprocess
import sys

import google_crc32c
import numpy as np
import pytest
from coded_frames import matrices
from hypothesis import given, settings
from hypothesis import strategies as st
from isas import decode_on_every_isa, encode_on_every_isa

from orbax_gds import _native
from orbax_gds.codecs import CODECS, codec_by_name, reference
from orbax_gds.dtypes import DTYPES, Dtype, dtype_by_name
from orbax_gds.testing import chunks, famous_words

BF16 = dtype_by_name("bfloat16")
ALONE = tuple(codec for codec in CODECS if codec.name != "delta")  # which needs a base
FP32 = dtype_by_name("float32")
LADDER = codec_by_name("ladder")
DTYPES_BY_ID = {dtype.id: dtype for dtype in DTYPES}


def assert_comes_back(words: np.ndarray, dtype: Dtype, **options: object) -> bytes:
    frame = encode_on_every_isa(words, dtype, **options)
    np.testing.assert_array_equal(decode_on_every_isa(frame, words.size, words.dtype), words)
    return frame


def weights(dtype: Dtype, n_words: int, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).normal(0, 0.02, n_words)
    element = dtype.numpy_dtype if dtype.words_per_element == 1 else f"f{dtype.container_bytes}"
    return values.astype(element).view(dtype.word_dtype)


# --- CRC32C ---------------------------------------------------------------------------------------


@given(
    data=st.binary(max_size=400),
    repeat=st.sampled_from((1, 30)),
    start=st.integers(0, 9),
    cut=st.integers(0, 12000),
)
def test_crc32c_is_googles_and_continues(data: bytes, repeat: int, start: int, cut: int) -> None:
    view = memoryview(data * repeat)[start:]
    expected = google_crc32c.value(bytes(view))
    before = _native.isa()
    for isa in _native.isas():
        _native.use_isa(isa)
        assert _native.crc32c(view) == expected
        assert _native.crc32c(view[cut:], _native.crc32c(view[:cut])) == expected
    _native.use_isa(before)


# --- words come back ------------------------------------------------------------------------------


def test_every_bfloat16_word_comes_back() -> None:
    words = np.arange(65536, dtype=np.uint16)
    for order in (words, words[::-1].copy(), np.random.default_rng(1).permutation(words)):
        for codec in ("auto", "raw", "ladder"):
            assert_comes_back(order, BF16, codec=codec)


def test_every_sign_and_exponent_of_float32_comes_back_with_every_kind_of_mantissa() -> None:
    tops = np.arange(512, dtype=np.uint32) << 23
    mantissas = np.array([0, 1, 0x3FFFFF, 0x400000, 0x400001, 0x7FFFFF, 0x12345], np.uint32)
    for codec in ("auto", "raw", "ladder"):
        assert_comes_back((tops[:, None] | mantissas).ravel(), FP32, codec=codec)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_every_length_comes_back(dtype: Dtype) -> None:
    words = np.resize(np.concatenate([weights_or_noise(dtype), famous_words(dtype)]), 32800)
    words[300:560] = 0
    lengths = [*range(1, 80), *range(80, 600, 7), *range(252, 260), *range(508, 516), 32767, 32768]
    for n_words in [*lengths, 32769]:
        for codec in ("auto", "ladder") if LADDER.supports(dtype) else ("auto",):
            frame = _native.encode_frame(words[:n_words], dtype.id, codec=codec)
            decoded = np.full(n_words, 0xA5, dtype.word_dtype)
            assert _native.decode_frame(frame, decoded) == 0
            np.testing.assert_array_equal(decoded, words[:n_words])


def weights_or_noise(dtype: Dtype) -> np.ndarray:
    if dtype.split:
        return weights(dtype, 4000)
    noise = np.random.default_rng(2).integers(0, 1 << 63, 4000, np.uint64)
    return noise.astype(dtype.word_dtype) & dtype.word_dtype.type((1 << dtype.bits) - 1)


@settings(max_examples=20)
@given(
    chunk=chunks(max_words=33000),
    codec=st.sampled_from(("auto", "off", *(codec.name for codec in ALONE))),
    block_map=st.sampled_from((None, False, True)),
)
def test_every_kernel_writes_the_same_bytes(
    chunk: tuple[Dtype, np.ndarray], codec: str, block_map: bool | None
) -> None:
    dtype, words = chunk
    if codec not in ("auto", "off") and not codec_by_name(codec).supports(dtype):
        codec = "raw"
    frame = assert_comes_back(words, dtype, codec=codec, block_map=block_map)
    if codec in ("auto", "fast", "off") and not block_map:
        assert len(frame) <= _native.max_frame_bytes(words.size, dtype.id)


@settings(max_examples=15)
@given(
    matrix=matrices(),
    codec=st.sampled_from(("auto", *(codec.name for codec in ALONE if codec.supports(BF16)))),
    block_map=st.sampled_from((None, False, True)),
)
def test_every_kernel_writes_the_same_bytes_of_a_matrix_and_the_reference_reads_them(
    matrix: tuple[Dtype, np.ndarray, int], codec: str, block_map: bool | None
) -> None:
    dtype, words, columns = matrix
    frame = assert_comes_back(words, dtype, codec=codec, block_map=block_map, columns=columns)
    np.testing.assert_array_equal(reference.decode_frame(frame)[1], words)
    info = _native.frame_info(frame)
    assert sum(info["stream_bytes"].values()) == info["payload_bytes"]


@given(chunk=chunks(max_words=3000), block_map=st.booleans())
def test_frame_info_adds_up(chunk: tuple[Dtype, np.ndarray], block_map: bool) -> None:
    dtype, words = chunk
    for codec in [codec.name for codec in ALONE if codec.supports(dtype)]:
        frame = _native.encode_frame(words, dtype.id, chunk=9, codec=codec, block_map=block_map)
        info = _native.frame_info(frame)
        assert (info["chunk"], info["dtype"], info["n_words"]) == (9, dtype.id, words.size)
        assert info["frame_bytes"] == len(frame)
        assert sum(info["stream_bytes"].values()) == info["payload_bytes"]
        escape_bytes = 2 if dtype.split == "fp64" else 1
        assert info["n_escapes"] * escape_bytes == info["stream_bytes"].get("escapes", 0)


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32", "float64", "float8_e5m2"])
def test_fast_is_a_ladder_of_one_level(name: str) -> None:
    dtype = dtype_by_name(name)
    frame = assert_comes_back(weights(dtype, 40_000), dtype, codec="fast")
    info = _native.frame_info(frame)
    assert (info["codec"], info["levels"]) == (1, [4])
    raw = _native.encode_frame(weights(dtype, 40_000), dtype.id, codec="raw")
    assert len(frame) < 0.98 * len(raw)


def test_auto_takes_what_is_small() -> None:
    noise = np.random.default_rng(3).integers(0, 65536, 100_000).astype(np.uint16)
    assert _native.frame_info(_native.encode_frame(noise, BF16.id))["codec"] == 0
    info = _native.frame_info(_native.encode_frame(weights(BF16, 100_000), BF16.id))
    assert info["codec"] == 1
    assert 200_000 / info["frame_bytes"] > 1.45
    rows = weights(BF16, 102_400).reshape(100, 1024)
    rows[::2] = 0
    info = _native.frame_info(_native.encode_frame(rows.ravel(), BF16.id))
    assert info["n_zero_blocks"] == 200
    assert info["frame_bytes"] < 72_000


# --- damage ---------------------------------------------------------------------------------------


def small_frames() -> list[bytes]:
    rows = weights(BF16, 700)
    rows[256:512] = 0
    return [
        _native.encode_frame(weights(BF16, 120), BF16.id, codec="ladder"),
        _native.encode_frame(rows, BF16.id, codec="ladder", block_map=True),
        _native.encode_frame(weights(FP32, 90), FP32.id, codec="ladder"),
        _native.encode_frame(np.arange(50, dtype=np.uint8) % 16, dtype_by_name("int4").id),
    ]


@pytest.mark.parametrize("number", range(4))
def test_every_flipped_bit_is_refused(number: int) -> None:
    frame = bytearray(small_frames()[number])
    info = _native.frame_info(bytes(frame))
    words = np.empty(info["n_words"], DTYPES_BY_ID[info["dtype"]].word_dtype)
    for bit in range(8 * len(frame)):
        frame[bit // 8] ^= 1 << bit % 8
        assert _native.decode_frame(frame, words) != 0
        frame[bit // 8] ^= 1 << bit % 8
    assert _native.decode_frame(frame, words) == 0


@pytest.mark.parametrize("number", range(4))
def test_every_cut_is_refused(number: int) -> None:
    frame = small_frames()[number]
    info = _native.frame_info(frame)
    words = np.empty(info["n_words"], DTYPES_BY_ID[info["dtype"]].word_dtype)
    for n_bytes in range(len(frame)):
        assert _native.decode_frame(frame[:n_bytes], words) != 0
    assert _native.decode_frame(frame + bytes(64), words) != 0


@given(data=st.binary(max_size=300))
def test_any_bytes_are_no_frame(data: bytes) -> None:
    assert _native.decode_frame(data, np.empty(10, np.uint8)) != 0
    with pytest.raises(ValueError, match="no readable frame"):
        _native.frame_info(data)


def test_status_texts_are_complete() -> None:
    assert _native.STATUS[0] == "ok"
    assert list(_native.STATUS) == list(range(len(_native.STATUS)))
    assert len(set(_native.STATUS.values())) == len(_native.STATUS)


# --- arguments ------------------------------------------------------------------------------------


def test_wrong_arguments_are_value_errors_with_the_numbers() -> None:
    words = np.zeros(4, np.uint16)
    frame = _native.encode_frame(words, BF16.id)
    with pytest.raises(ValueError, match="dtype 31 is no id"):
        _native.encode_frame(words, 31)
    with pytest.raises(ValueError, match="1 to 268435456 words, not 0"):
        _native.encode_frame(words[:0], BF16.id)
    with pytest.raises(ValueError, match="'huffman' or 'delta', not 'zip'"):
        _native.encode_frame(words, BF16.id, codec="zip")
    with pytest.raises(ValueError, match="dtype has no split"):
        _native.encode_frame(words, dtype_by_name("uint16").id, codec="ladder")
    with pytest.raises(ValueError, match="words_out is read-only"):
        _native.decode_frame(frame, bytes(8))
    with pytest.raises(ValueError, match="contiguous buffer"):
        _native.crc32c(words[::2])
    with pytest.raises(ValueError, match="1 to 268435456 words, not 268435457"):
        _native.max_frame_bytes(2**28 + 1, BF16.id)
    assert (
        _native.STATUS[_native.decode_frame(frame, words[:3])] == "frame disagrees with the layout"
    )


@pytest.mark.parametrize(
    "words",
    [
        np.zeros(4, np.uint8),
        np.zeros(4, np.uint32),
        np.zeros(4, np.int16),
        np.zeros(4, np.float16),
        np.zeros(4, ">u2"),
        np.zeros(4, "u1,u1"),
    ],
    ids=lambda words: words.dtype.str,
)
def test_words_are_little_endian_unsigned_integers_of_the_container(words: np.ndarray) -> None:
    with pytest.raises(ValueError, match="words must be an array of uint16, not of format"):
        _native.encode_frame(words, BF16.id)
    frame = _native.encode_frame(np.zeros(4, np.uint16), BF16.id)
    with pytest.raises(ValueError, match="words_out must be an array of uint16, not of format"):
        _native.decode_frame(frame, words)


def test_any_exporter_of_words_will_do() -> None:
    words = weights(BF16, 100)
    frame = _native.encode_frame(words, BF16.id)
    assert _native.encode_frame((ctypes.c_uint16 * 100)(*words.tolist()), BF16.id) == frame
    assert _native.encode_frame(memoryview(words.tobytes()).cast("H"), BF16.id) == frame


def test_words_and_their_frame_are_apart() -> None:
    frame = _native.encode_frame(np.arange(64, dtype=np.uint8), dtype_by_name("uint8").id)
    memory = np.frombuffer(bytearray(64 + len(frame)), np.uint8)
    for at in (0, 1, 63):
        part = memory[at : at + len(frame)]
        part[:] = np.frombuffer(frame, np.uint8)
        with pytest.raises(ValueError, match="words_out shares memory with frame"):
            _native.decode_frame(part, memory[:64])
    memory[64:] = np.frombuffer(frame, np.uint8)
    assert _native.decode_frame(memory[64:], memory[:64]) == 0


def test_a_chunk_that_fits_no_frame_is_refused_at_once() -> None:
    words = np.zeros(2**28, np.uint64)  # memory that nobody touches
    with pytest.raises(ValueError, match="frame would exceed 2147483647 bytes; cut the chunk"):
        _native.encode_frame(words, dtype_by_name("uint64").id, codec="raw", block_map=False)


def test_a_processor_runs_all_the_kernels_that_it_can() -> None:
    found = re.search(r"^flags\s*:(.*)$", processors(), re.MULTILINE)
    flags = set(found[1].split()) if found else set()
    assert ("avx2" in _native.isas()) == ({"avx2", "bmi1", "bmi2"} <= flags)
    assert ("avx2-softbits" in _native.isas()) == ({"avx2", "bmi1"} <= flags)
    assert ("sse42" in _native.isas()) == ({"sse4_2", "popcnt", "pclmulqdq"} <= flags)


def test_hardware_bits_come_first_where_they_are_fast() -> None:
    found = re.search(r"^cpu family\s*:\s*(\d+)$", processors(), re.MULTILINE)
    old_amd = bool(found and int(found[1]) in (0x15, 0x17, 0x18))  # Intel has no such family
    if "avx2" in _native.isas():
        assert _native.isas()[0] == ("avx2-softbits" if old_amd else "avx2")


def processors() -> str:
    path = pathlib.Path("/proc/cpuinfo")
    return path.read_text() if path.exists() else ""


def test_kernels_are_chosen_by_name() -> None:
    assert _native.isas()[-1] == "scalar"
    with pytest.raises(ValueError, match=r"cannot run the kernels 'mmx'; it can run: .*scalar"):
        _native.use_isa("mmx")
    code = "from orbax_gds import _native; print(_native.isa())"
    for forced, expected in (("scalar", "scalar"), ("", _native.isas()[0])):
        environment = {**os.environ, "ORBAX_GDS_ISA": forced}
        run = [sys.executable, "-c", code]
        assert subprocess.check_output(run, env=environment, text=True).strip() == expected
    refused = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "ORBAX_GDS_ISA": "mmx"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode != 0
    assert "cannot run the kernels 'mmx'" in refused.stderr
