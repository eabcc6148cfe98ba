"""Steps in which few words change: only these are touched, in place, and the words are right."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from isas import decode_on_every_isa

from orbax_gds import _native, stripe
from orbax_gds.codecs import reference
from orbax_gds.codecs.reference import Base, Delta
from orbax_gds.dtypes import DTYPES, Dtype
from orbax_gds.testing import dtypes

KIND = {"widths": (1, 4), "symbols": tuple(range(16)), "exponents": False, "low_bytes": 0}


def steps(dtype: Dtype, n: int, n_steps: int, seed: int, *, near: bool) -> list[np.ndarray]:
    """Words of some steps; from each to the next few change, and those of some blocks never."""
    rng = np.random.default_rng(seed)
    mask = dtype.word_dtype.type((1 << dtype.bits) - 1)
    made = [rng.integers(0, 1 << 64, n, np.uint64).astype(dtype.word_dtype) & mask]
    for _ in range(n_steps - 1):
        words = made[-1].copy()
        hit = np.flatnonzero(rng.random(n) < rng.choice((0.001, 0.02, 0.06, 0.07)))
        hit = hit[hit // 256 % 5 != 1]
        far = rng.integers(0, 1 << (3 if near else 64), hit.size, np.uint64)
        words[hit] = (words[hit] + far.astype(dtype.word_dtype)) & mask
        made.append(words)
    return made


def restored(frames: list[bytes], n: int, dtype: Dtype, chunk: int = 0) -> tuple[int, np.ndarray]:
    """Decode the last of a chain of frames in place, as a restore does."""
    rows = []
    for frame in frames:
        row = np.zeros(1, stripe.RECORD)
        fields = np.frombuffer(frame, "<u4", 8)
        row["frame_bytes"], row["n_words"] = len(frame), n
        row["payload_bytes"], row["payload_crc32c"] = fields[[3, 6]]
        row["codec"], row["dtype"] = frame[4], frame[5]
        row["flags"] = int.from_bytes(frame[6:8], "little")
        rows.append(row.view(np.uint8).reshape(1, -1))
    *bases, own = [(np.frombuffer(f, np.uint8), r) for f, r in zip(frames, rows, strict=True)]
    out = np.empty(n, dtype.word_dtype)
    chunks = np.array([[chunk, n, dtype.id, 1]], np.uint32)
    whole = np.array([[0, 0, 0, n, 0]], np.uint64)
    status, _ = _native.decode_run(*own, chunks, [out.view(np.uint8)], whole, bases=bases)
    return status, out


def crc_of(frame: bytes) -> int:
    return int.from_bytes(frame[24:28], "little")


@pytest.mark.slow
@settings(max_examples=40)
@given(
    dtype=dtypes(),
    n=st.sampled_from((1, 255, 700, 32_768, 33_000, 70_001)),
    seed=st.integers(0, 2**32),
    near=st.booleans(),
    block_map=st.booleans(),
)
def test_a_chain_of_sparse_steps_comes_back(dtype, n, seed, near, block_map):
    made = steps(dtype, n, 4, seed, near=near)
    frames = [_native.encode_frame(made[0], dtype.id, codec="raw")]
    for base, words in itertools.pairwise(made):
        frame = _native.encode_frame(
            words,
            dtype.id,
            codec="delta",
            block_map=block_map,
            base=base,
            base_crc32c=crc_of(frames[-1]),
        )
        read = decode_on_every_isa(
            frame, n, dtype.word_dtype, base=base, base_crc32c=crc_of(frames[-1])
        )
        np.testing.assert_array_equal(read, words)
        frames.append(frame)
    for last in range(1, 5):
        status, out = restored(frames[:last], n, dtype)
        assert status == 0
        np.testing.assert_array_equal(out, made[last - 1])


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("block_map", [False, True])
def test_frames_of_the_reference_without_bits_below_are_read(dtype, block_map):
    base, words = steps(dtype, 3000, 2, 7, near=True)
    of_base = Base(words=base, payload_crc32c=5)
    for symbols in (KIND["symbols"], tuple(reversed(range(16)))):
        delta = Delta(shift=0, **KIND | {"symbols": symbols}, lengths=None)
        frame = reference.encode_frame(
            words, dtype, codec="delta", delta=delta, base=of_base, block_map=block_map
        )
        read = decode_on_every_isa(frame, 3000, dtype.word_dtype, base=base, base_crc32c=5)
        np.testing.assert_array_equal(read, words)


@settings(max_examples=30)
@given(data=st.data(), dtype=dtypes(), seed=st.integers(0, 2**32))
def test_a_damaged_sparse_frame_is_refused_as_the_reference_does(data, dtype, seed):
    """Its checksums are made right again, so that the coding itself is looked at."""
    base, words = steps(dtype, 900, 2, seed, near=data.draw(st.booleans()))
    of_base = Base(words=base, payload_crc32c=5)
    delta = Delta(shift=0, **KIND, lengths=None)
    frame = bytearray(
        reference.encode_frame(words, dtype, codec="delta", delta=delta, base=of_base)
    )
    payload_bytes = int.from_bytes(frame[12:16], "little")
    at = data.draw(st.integers(36, 31 + payload_bytes))
    frame[at] ^= data.draw(st.integers(1, 255))
    frame[24:28] = reference.crc32c(bytes(frame[32:])).to_bytes(4, "little")
    frame[28:32] = reference.crc32c(bytes(frame[:28])).to_bytes(4, "little")
    read = decode_on_every_isa(bytes(frame), 900, dtype.word_dtype, base=base, base_crc32c=5)
    try:
        _, expected = reference.decode_frame(bytes(frame), base=of_base)
    except ValueError:
        assert read is None
    else:
        np.testing.assert_array_equal(read, expected)
