"""The ans coding and codec "max" in the native core."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isas import decode_on_every_isa, encode_on_every_isa

from orbax_gds import _native
from orbax_gds.codecs import codec_by_name
from orbax_gds.codecs.reference_ans import ANS, SUB_BLOCK
from orbax_gds.dtypes import DTYPES, Dtype, dtype_by_name
from orbax_gds.testing import chunks

ANS_CODEC = codec_by_name("ans")
SUPPORTED = [dtype for dtype in DTYPES if ANS_CODEC.supports(dtype)]


def weights(n_words: int) -> np.ndarray:
    """Return float32 words like those of a trained tensor: synthetic."""
    return np.random.default_rng(5).normal(0, 0.02, n_words).astype(np.float32).view(np.uint32)


@settings(max_examples=12)
@given(
    chunk=chunks(max_words=33_000),
    codec=st.sampled_from(("ans", "max")),
    block_map=st.sampled_from((None, False, True)),
    columns=st.sampled_from((0, 1, 7, 500)),
)
def test_every_kernel_writes_the_same_bytes_and_reads_them(
    chunk: tuple[Dtype, np.ndarray], codec: str, block_map: bool | None, columns: int
) -> None:
    dtype, words = chunk
    if codec == "ans" and not ANS_CODEC.supports(dtype):
        codec = "max"
    options = {"codec": codec, "block_map": block_map, "columns": min(columns, words.size)}
    frame = encode_on_every_isa(words, dtype, **options)
    np.testing.assert_array_equal(decode_on_every_isa(frame, words.size, words.dtype), words)


@pytest.mark.parametrize("dtype", SUPPORTED, ids=lambda dtype: dtype.name)
def test_every_word_of_a_byte_comes_back_however_often_it_occurs(dtype: Dtype) -> None:
    often = np.repeat(np.arange(256), np.arange(256) % 11 * 7 + 1)
    shift = dtype.word_dtype.type(dtype.bits - 8)
    for values in (np.arange(256), often, np.arange(256)[-1:]):
        words = values.astype(dtype.word_dtype) << shift
        frame = encode_on_every_isa(words, dtype, codec="ans")
        np.testing.assert_array_equal(decode_on_every_isa(frame, words.size, words.dtype), words)


@settings(max_examples=15)
@given(chunk=chunks(max_words=5_000))
def test_max_is_no_larger_than_any_candidate(chunk: tuple[Dtype, np.ndarray]) -> None:
    dtype, words = chunk
    most = _native.encode_frame(words, dtype.id, codec="max")
    candidates = ["auto", "off"]
    candidates += ["ladder"] if dtype.split else []
    candidates += ["modelled", "ans"] if ANS_CODEC.supports(dtype) else []
    for codec in candidates:
        assert len(most) <= len(_native.encode_frame(words, dtype.id, codec=codec))
    assert len(most) <= _native.max_frame_bytes(words.size, dtype.id)


def test_max_takes_ans_for_weights() -> None:
    words = weights(200_000)
    bf16 = (words >> 16).astype(np.uint16)
    for dtype, coded, ratio in (("float32", words, 1.2), ("bfloat16", bf16, 1.51)):
        frame = _native.encode_frame(coded, dtype_by_name(dtype).id, codec="max")
        info = _native.frame_info(frame)
        assert info["codec"] == ANS_CODEC.id
        assert coded.nbytes / len(frame) > ratio


@settings(max_examples=15)
@given(chunk=chunks(where=ANS_CODEC.supports, max_words=3_000), block_map=st.booleans())
def test_frame_info_adds_up(chunk: tuple[Dtype, np.ndarray], block_map: bool) -> None:
    dtype, words = chunk
    frame = _native.encode_frame(words, dtype.id, codec="ans", block_map=block_map)
    info = _native.frame_info(frame)
    assert info["codec"] == ANS_CODEC.id
    assert sum(info["stream_bytes"].values()) == info["payload_bytes"]
    assert info["n_escapes"] == info["stream_bytes"].get("escapes", 0)


def test_frame_info_tells_signs_and_trimmed_bits() -> None:
    words = weights(1_000) & np.uint32(0x7FFF0000)
    frame = _native.encode_frame(words, dtype_by_name("float32").id, codec="ans", block_map=False)
    info = _native.frame_info(frame)
    assert info["no_signs"]
    assert info["trimmed_bits"] == 16 * words.size
    streams = info["stream_bytes"]
    assert streams["heads"] == ANS.size + SUB_BLOCK.size
    assert streams["fields"] == 3 * 125  # 19 bits of mantissa, less 16
    assert 5 < 8 * streams["ans"] / words.size < 8
