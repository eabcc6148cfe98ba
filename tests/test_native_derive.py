"""Words that follow from others: the rules of FORMAT §4.2 in the native core."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbax_gds import _native
from orbax_gds.dtypes import dtype_by_name

COPY, ROUND = 1, 2
FLOAT32 = dtype_by_name("float32")
FAMOUS = [  # zeros, denormals, ties to even, the largest, infinities, NaN whose payload is low
    *(0, 0x80000000, 1, 0x7FFF, 0x8000, 0x8001, 0x18000, 0x3F808000, 0x3F818000, 0x3F80FFFF),
    *(0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7F800001, 0xFF80FFFF, 0x7FC00000),
    *(0x7FBFFFFF, 0xFFFFFFFF),
]
words = st.lists(st.sampled_from(FAMOUS) | st.integers(0, 2**32 - 1), min_size=1, max_size=60)


def rounded(word: int) -> int:
    """FORMAT §4.2, word for word."""
    if word & 0x7FFFFFFF > 0x7F800000:
        return word // 65536 | 1 << 6
    return (word + 32767 + word // 65536 % 2) // 65536


@given(words)
def test_rounding_is_that_of_the_format_and_to_nearest_even(words):
    source = np.array(words, np.uint32)
    target = np.array([rounded(word) for word in words], np.uint16)
    assert _native.derives(source, target, ROUND)
    floats = source.view(np.float32)
    kept = ~np.isnan(floats)
    nearest = floats[kept].astype(ml_dtypes.bfloat16).view(np.uint16)
    np.testing.assert_array_equal(target[kept], nearest)


@pytest.mark.parametrize("n", [1, 7, 4096, 10_001])
@pytest.mark.parametrize("rule", [COPY, ROUND])
def test_one_word_that_differs_is_seen_wherever_it_is(n, rule):
    rng = np.random.default_rng(n)
    source = rng.integers(0, 2**32, n, np.uint32)
    target = source.copy() if rule == COPY else np.array([*map(rounded, source.tolist())], "u2")
    assert _native.derives(source, target, rule)
    for at in {0, n // 2, n - 1}:
        target[at] ^= 1
        assert not _native.derives(source, target, rule)
        target[at] ^= 1


def test_words_of_another_number_do_not_follow():
    source = np.zeros(8, np.uint32)
    assert not _native.derives(source, np.zeros(7, np.uint32), COPY)
    assert not _native.derives(source, np.zeros(7, np.uint16), ROUND)
    assert not _native.derives(source.view(np.uint8)[:-1], np.zeros(8, np.uint16), ROUND)
    assert _native.derives(source, source, COPY)
    assert _native.derives(source[:0], source[:0], COPY)
    with pytest.raises(ValueError, match="rule must be 1"):
        _native.derives(source, source, 3)


def coded(words):
    chunks = np.array([[0, words.size, FLOAT32.id, 1]], np.uint32)
    out = np.zeros(_native.max_frame_bytes(words.size, FLOAT32.id) + 64, np.uint8)
    records = np.zeros((1, 32), np.uint8)
    segment = np.array([[0, 0, 0, words.size]], np.uint64)
    _native.encode_run(
        [words.view(np.uint8)],
        segment,
        np.pad(chunks, ((0, 0), (0, 1))),
        out,
        records,
        codec="auto",
        align_bytes=64,
    )
    return out, records, chunks


@given(words, st.data())
def test_a_chunk_is_decoded_once_into_what_wants_it_as_it_is_and_rounded(words, data):
    words = np.array(words, np.uint32)
    frames, records, chunks = coded(words)
    asked = data.draw(st.lists(st.sampled_from(["whole", "part", "rounded"]), max_size=4))
    buffers, segments, expected = [], [], []
    for kind in asked:
        start = data.draw(st.integers(0, words.size - 1)) if kind != "whole" else 0
        n = data.draw(st.integers(1, words.size - start)) if kind != "whole" else words.size
        part = words[start : start + n]
        if kind == "rounded":
            part = np.array([rounded(word) for word in part.tolist()], np.uint16)
        segments.append((len(buffers), 3, start, n, ROUND if kind == "rounded" else 0))
        expected.append(part.tobytes())
        buffers.append(np.full(3 + part.nbytes, 0xA5, np.uint8))
    chunks[0, 3] = len(segments)
    table = np.array(segments, np.uint64).reshape(-1, 5)
    assert _native.decode_run(frames, records, chunks, buffers, table) == (0, 0)
    for buffer, part in zip(buffers, expected, strict=True):
        assert buffer.tobytes() == b"\xa5" * 3 + part


def test_rules_that_do_not_fit_are_refused():
    words = np.arange(5, dtype=np.uint32)
    frames, records, chunks = coded(words)

    def decode(n_bytes, rule):
        segment = np.array([[0, 0, 0, 5, rule]], np.uint64)
        _native.decode_run(frames, records, chunks, [np.zeros(n_bytes, np.uint8)], segment)

    decode(10, 2)
    with pytest.raises(ValueError, match="is 10 bytes from byte 0 of buffer 0, which has 9"):
        decode(9, 2)
    for rule in (1, 3, 2**64 - 1):
        with pytest.raises(ValueError, match=f"of dtype 18 has rule {rule}; 0 is possible"):
            decode(20, rule)
    chunks[0, 2] = 6
    with pytest.raises(ValueError, match="of dtype 6 has rule 2"):
        decode(20, 2)
