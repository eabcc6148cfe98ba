"""Deltas: words come back from the base and the frame, from any frame of the reference, and from
chains; another base and damaged frames are refused.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from golden.deltas import deltas
from hypothesis import given, settings
from hypothesis import strategies as st
from isas import decode_on_every_isa, encode_on_every_isa

from orbax_gds import _native
from orbax_gds.codecs import reference
from orbax_gds.codecs.reference import Base, Delta
from orbax_gds.codecs.reference_delta import (
    MAX_DECAY,
    decayed,
    has_exponents,
    max_low_bytes,
    may_decay,
)
from orbax_gds.codecs.reference_frame import parse_frame_header
from orbax_gds.dtypes import Dtype, dtype_by_name
from orbax_gds.errors import Corrupt
from orbax_gds.testing import chunks

BF16, FP32 = dtype_by_name("bfloat16"), dtype_by_name("float32")
UINT4 = dtype_by_name("uint4")
STATUS = {text: number for number, text in _native.STATUS.items()}


@st.composite
def changes(draw: st.DrawFn, max_words: int = 33_000) -> tuple[Dtype, np.ndarray, np.ndarray]:
    """Draw a dtype, words of a base, and words some of which are the base's or near."""
    dtype, base = draw(chunks(max_words=max_words))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    mask = dtype.word_dtype.type((1 << dtype.bits) - 1)
    far = rng.integers(0, 1 << 64, base.size, np.uint64).astype(dtype.word_dtype)
    widest = draw(st.integers(0, dtype.bits))
    step = far & dtype.word_dtype.type((1 << widest) - 1)
    words = np.where(rng.random(base.size) < draw(st.sampled_from((0, 0.02, 0.5, 1))), step, 0)
    words = (base + words.astype(dtype.word_dtype)) & mask
    if draw(st.booleans()):
        words = np.where(rng.random(base.size) < 0.1, far & mask, words)
    if draw(st.booleans()):
        words[words.size // 3 : words.size // 2] = base[words.size // 3 : words.size // 2]
    return dtype, base, words.astype(dtype.word_dtype)


@st.composite
def headers(draw: st.DrawFn, dtype: Dtype, words: np.ndarray, base: np.ndarray) -> Delta:
    """Draw any header, with lengths that fit some bytes or none."""
    exponents = has_exponents(dtype) and draw(st.booleans())
    lengths = Delta.fitting(np.resize(words, 32768), np.resize(base, 32768), dtype).lengths
    scales = st.tuples(st.integers(0, 7), st.integers(0, max_low_bytes(dtype)), st.just(False))
    if has_exponents(dtype):
        scales |= st.tuples(
            st.integers(0, 255), st.integers(0, max_low_bytes(dtype)), st.just(True)
        )
    return Delta(
        shift=draw(st.integers(0, 255 if exponents else 7)),
        widths=(*draw(st.lists(st.sampled_from((1, 2)), max_size=7)), 4),
        symbols=tuple(draw(st.permutations(range(16)))),
        exponents=exponents,
        low_bytes=draw(st.integers(0, max_low_bytes(dtype))),
        lengths=lengths if draw(st.booleans()) else None,
        decay=draw(st.sampled_from((0, 1, 300, MAX_DECAY))) if may_decay(dtype) else 0,
        scales=tuple(draw(st.lists(scales, max_size=2))),
    )


@settings(max_examples=25, deadline=None)
@given(change=changes(), codec=st.sampled_from(("delta", "auto", "max", "fast", "raw")))
def test_words_come_back_from_base_and_frame(
    change: tuple[Dtype, np.ndarray, np.ndarray], codec: str
) -> None:
    dtype, base, words = change
    for block_map in (None, True, False):
        options = {"codec": codec, "block_map": block_map, "base": base, "base_crc32c": 77}
        frame = encode_on_every_isa(words, dtype, **options)
        found = decode_on_every_isa(frame, words.size, words.dtype, base=base, base_crc32c=77)
        np.testing.assert_array_equal(found, words)
        _, read = reference.decode_frame(frame, base=Base(words=base, payload_crc32c=77))
        np.testing.assert_array_equal(read, words)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(data=st.data(), block_map=st.booleans())
def test_any_header_of_the_reference_is_read(data: st.DataObject, block_map: bool) -> None:
    dtype, base, words = data.draw(changes())
    delta = data.draw(st.none() | headers(dtype, words, base))
    of_base = Base(words=base, payload_crc32c=3)
    frame = reference.encode_frame(
        words, dtype, codec="delta", block_map=block_map, base=of_base, delta=delta
    )
    np.testing.assert_array_equal(reference.decode_frame(frame, base=of_base)[1], words)
    found = decode_on_every_isa(frame, words.size, words.dtype, base=base, base_crc32c=3)
    np.testing.assert_array_equal(found, words)


@settings(max_examples=15, deadline=None)
@given(change=changes(max_words=300), block_map=st.booleans())
def test_no_base_and_another_base_are_refused(
    change: tuple[Dtype, np.ndarray, np.ndarray], block_map: bool
) -> None:
    dtype, base, words = change
    frame = _native.encode_frame(
        words, dtype.id, codec="delta", block_map=block_map, base=base, base_crc32c=1
    )
    out = np.empty_like(words)
    if not parse_frame_header(frame).flags & 2:
        return
    absent = _native.decode_frame(frame, out)
    assert absent == STATUS["delta: the words of the base are needed"]
    differs = _native.decode_frame(frame, out, base=base, base_crc32c=2)
    assert differs == STATUS["delta: another base than it was coded against"]
    for other in (None, Base(words=base, payload_crc32c=2)):
        with pytest.raises(Corrupt, match="base"):
            reference.decode_frame(frame, base=other)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(data=st.data(), change=changes(max_words=600))
def test_a_damaged_frame_gives_words_or_an_error_on_every_isa_the_same(
    data: st.DataObject, change: tuple[Dtype, np.ndarray, np.ndarray]
) -> None:
    dtype, base, words = change
    of_base = Base(words=base, payload_crc32c=0)
    frame = bytearray(
        reference.encode_frame(
            words,
            dtype,
            codec="delta",
            block_map=data.draw(st.booleans()),
            base=of_base,
            delta=data.draw(st.none() | headers(dtype, words, base)),
        )
    )
    n_payload = parse_frame_header(bytes(frame)).payload_bytes
    for _ in range(data.draw(st.integers(1, 3))):
        frame[32 + data.draw(st.integers(0, n_payload - 1))] ^= data.draw(st.integers(1, 255))
    frame[24:28] = _native.crc32c(frame[32:]).to_bytes(4, "little")
    frame[28:32] = _native.crc32c(frame[:28]).to_bytes(4, "little")
    found = decode_on_every_isa(bytes(frame), words.size, words.dtype, base=base)
    try:
        _, read = reference.decode_frame(bytes(frame), base=of_base)
    except Corrupt:
        assert found is None
        return
    assert found is not None
    np.testing.assert_array_equal(found, read)


def resealed(frame: bytes, at: int, change: int) -> bytes:
    """Return a frame of which one byte is more, under checksums that hold."""
    changed = bytearray(frame)
    changed[at] = (changed[at] + change) % 256
    changed[24:28] = _native.crc32c(changed[32:]).to_bytes(4, "little")
    changed[28:32] = _native.crc32c(changed[:28]).to_bytes(4, "little")
    return bytes(changed)


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("n_words", [130, 5000])
def test_words_with_more_bits_below_than_there_are_planes_are_refused(
    dtype: Dtype, n_words: int
) -> None:
    base = np.linspace(0.5, 1.9, n_words, dtype=np.float32).astype(dtype.numpy_dtype)
    base = base.view(dtype.word_dtype)
    words = base + np.arange(n_words).astype(dtype.word_dtype) % dtype.word_dtype.type(9)
    for delta in (
        Delta(shift=128, widths=(1, 4), symbols=tuple(range(16)), exponents=True),
        Delta(shift=2, widths=(1, 4), symbols=tuple(range(16))),
    ):
        of_base = Base(words=base, payload_crc32c=0)
        frame = reference.encode_frame(words, dtype, codec="delta", base=of_base, delta=delta)
        read = decode_on_every_isa(frame, n_words, words.dtype, base=base)
        np.testing.assert_array_equal(read, words)
        shift_at = 32 + 4 + 2
        for more in (1, 2, 4):
            damaged = resealed(frame, shift_at, more)
            assert decode_on_every_isa(damaged, n_words, words.dtype, base=base) is None


@pytest.mark.parametrize("n_words", [130, 5000])
def test_planes_with_other_numbers_of_bits_are_refused(n_words: int) -> None:
    base = np.linspace(0.5, 0.9, n_words, dtype=np.float32).astype(BF16.numpy_dtype)
    base = base.view(np.uint16)
    delta = Delta(shift=2, widths=(4,), symbols=tuple(range(16)))
    of_base = Base(words=base, payload_crc32c=0)
    frame = reference.encode_frame(base + 1, BF16, codec="delta", base=of_base, delta=delta)
    planes_at = 32 + 4 + 16 + 2 + 2
    assert int.from_bytes(frame[planes_at : planes_at + 2], "little") == n_words
    for more in (-1, 1, 100):
        damaged = resealed(frame, planes_at, more)
        assert decode_on_every_isa(damaged, n_words, np.dtype(np.uint16), base=base) is None


def test_a_difference_of_more_bits_than_the_words_have_is_refused() -> None:
    dtype = dtype_by_name("uint2")
    base = np.zeros(40_000, np.uint8)
    words = base.copy()
    words[7] = 1  # so few that only these are touched
    delta = Delta(shift=0, widths=(1, 1, 4), symbols=(0, *range(2, 16), 1))
    of_base = Base(words=base, payload_crc32c=0)
    frame = reference.encode_frame(words, dtype, codec="delta", base=of_base, delta=delta)
    read = decode_on_every_isa(frame, words.size, words.dtype, base=base)
    np.testing.assert_array_equal(read, words)
    symbols_at = 32 + 4 + 6
    assert (frame[symbols_at], frame[symbols_at + 3]) == (0x20, 0x87)  # z = 2 has rank 1
    damaged = resealed(resealed(frame, symbols_at, 0x50), symbols_at + 3, -5)  # 2 and 7 change
    assert decode_on_every_isa(damaged, words.size, words.dtype, base=base) is None


def test_golden_deltas_are_read_by_reference_and_native_and_written_again() -> None:
    stored = json.loads((Path(__file__).parent / "golden" / "deltas.json").read_text())
    made = {name: (frame, words, base) for name, frame, words, base in deltas()}
    assert set(stored) == set(made)
    for name, entry in stored.items():
        assert made[name][0].hex() == entry["frame"], name
        frame = bytes.fromhex(entry["frame"])
        dtype = parse_frame_header(frame).dtype
        base = np.frombuffer(bytes.fromhex(entry["base"]), dtype.word_dtype)
        crc = int(entry["base_crc32c"], 16)
        _, words = reference.decode_frame(frame, base=Base(words=base, payload_crc32c=crc))
        assert f"{reference.crc32c(words.tobytes()):08x}" == entry["words_crc32c"], name
        found = decode_on_every_isa(frame, words.size, words.dtype, base=base, base_crc32c=crc)
        np.testing.assert_array_equal(found, words, name)


# --- what it costs --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["uint16", "uint32", "int32", "float32", "complex64", "uint64"])
@pytest.mark.parametrize("near", [3, 60, 900, 20_000])
def test_far_words_among_near_ones_are_coded_alike_on_every_isa(name: str, near: int) -> None:
    dtype = dtype_by_name(name)
    rng = np.random.default_rng(near)
    n_words = 4100
    base = rng.integers(0, 1 << 64, n_words, np.uint64).astype(dtype.word_dtype)
    far = rng.integers(0, 1 << 64, n_words, np.uint64).astype(dtype.word_dtype)
    step = rng.integers(0, near, n_words).astype(dtype.word_dtype)
    words = np.where(rng.random(n_words) < 0.02, far, base + step)
    frame = encode_on_every_isa(words, dtype, codec="delta", base=base, base_crc32c=1)
    read = decode_on_every_isa(frame, n_words, dtype.word_dtype, base=base, base_crc32c=1)
    np.testing.assert_array_equal(read, words)


def weights(n: int, dtype: Dtype) -> np.ndarray:
    values = np.random.default_rng(1).standard_normal(n).astype(np.float32) * np.float32(0.02)
    return values.astype(dtype.numpy_dtype).view(dtype.word_dtype)


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=lambda dtype: dtype.name)
def test_little_change_costs_little_and_all_change_no_more_than_without_a_base(
    dtype: Dtype,
) -> None:
    base = weights(1 << 18, dtype)
    rng = np.random.default_rng(2)

    def coded(words: np.ndarray) -> int:
        return len(_native.encode_frame(words, dtype.id, base=base, base_crc32c=1))

    direct = len(_native.encode_frame(base, dtype.id))
    assert coded(base) == 64
    sparse = np.where(rng.random(base.size) < 0.01, rng.permutation(base), base)
    assert coded(sparse) < 0.05 * direct
    near = np.where(rng.random(base.size) < 0.05, base + 1, base)
    assert coded(near) < 0.06 * base.nbytes
    rows = base.copy()
    rows[:25600] = rng.permutation(base)[:25600]
    assert coded(rows) < 0.12 * direct
    assert coded(rng.permutation(base)) <= 1.01 * direct
    assert (
        coded(rng.permutation(base)) == len(_native.encode_frame(rng.permutation(base), dtype.id))
        or coded(rng.permutation(base)) < direct
    )


@pytest.mark.parametrize("name", ["float32", "complex64"])
def test_words_that_only_decayed_cost_little(name: str) -> None:
    dtype = dtype_by_name(name)
    values = weights(1 << 17, FP32).view(np.float32)
    rng = np.random.default_rng(3)
    for share in (1e-6, 3e-5, 1e-3):
        left = values - np.float32(share) * values
        words = np.where(rng.random(values.size) < 0.01, values * 2, left).view(np.uint32)
        base = values.view(np.uint32)
        frame = encode_on_every_isa(words, dtype, base=base, base_crc32c=1)
        assert len(frame) < 0.11 * base.nbytes, share
        read = decode_on_every_isa(frame, words.size, words.dtype, base=base, base_crc32c=1)
        np.testing.assert_array_equal(read, words)


@pytest.mark.parametrize("dtype", [BF16, FP32], ids=lambda dtype: dtype.name)
def test_sub_blocks_with_far_and_near_words_have_scales_of_their_own(dtype: Dtype) -> None:
    base = weights(4 * 32768, dtype)
    rng = np.random.default_rng(4)
    near = rng.integers(0, 4, base.size).astype(dtype.word_dtype)
    far = rng.integers(0, 64, base.size).astype(dtype.word_dtype)
    near_bytes, far_bytes, both_bytes = (
        len(encode_on_every_isa(base + step, dtype, codec="delta", base=base, base_crc32c=1))
        for step in (near, far, np.where(np.arange(base.size) % 65536 < 32768, near, far))
    )
    assert both_bytes < 1.03 * (near_bytes + far_bytes) / 2


def test_a_scale_that_no_sub_block_may_have_is_refused() -> None:
    base = weights(600, BF16)
    delta = Delta(shift=0, widths=(4,), symbols=tuple(range(16)), scales=((1, 0, False),))
    of_base = Base(words=base, payload_crc32c=0)
    frame = reference.encode_frame(base + 1, BF16, codec="delta", base=of_base, delta=delta)
    read = decode_on_every_isa(frame, base.size, base.dtype, base=base)
    np.testing.assert_array_equal(read, base + 1)
    shift_at = 32 + 4 + 16 + 2 + 2
    assert frame[shift_at : shift_at + 2] == bytes([1, 0])
    header_at = 32 + 4 + 2
    damages = ((shift_at, 7), (shift_at + 1, 2), (header_at, 1))
    for damaged in (resealed(frame, at, more) for at, more in damages):
        assert decode_on_every_isa(damaged, base.size, base.dtype, base=base) is None
        with pytest.raises(Corrupt, match=r"delta: (scale|flags)"):
            reference.decode_frame(damaged, base=of_base)


def test_a_decay_that_no_header_may_have_is_refused() -> None:
    base = weights(600, FP32)
    delta = Delta(shift=2, widths=(4,), symbols=tuple(range(16)), decay=1)
    of_base = Base(words=base, payload_crc32c=0)
    words = decayed(base, 1)
    frame = reference.encode_frame(words, FP32, codec="delta", base=of_base, delta=delta)
    read = decode_on_every_isa(frame, base.size, base.dtype, base=base)
    np.testing.assert_array_equal(read, words)
    flags_at, decay_at = 32 + 4, 32 + 4 + 16
    assert (frame[flags_at], frame[decay_at]) == (8, 1)
    for damaged in (resealed(frame, decay_at, -1), resealed(frame, decay_at + 1, 128)):
        assert decode_on_every_isa(damaged, base.size, base.dtype, base=base) is None
        with pytest.raises(Corrupt, match="decay"):
            reference.decode_frame(damaged, base=of_base)


# --- chains ---------------------------------------------------------------------------------------

N_WORDS, N_CHUNKS = 5000, 3


def run_of(words: np.ndarray, bases: list[tuple[bytes, np.ndarray]]) -> tuple[bytes, np.ndarray]:
    """Code three chunks of float32 and return frames and records."""
    counts = [2000, 2000, 1000]
    chunks = np.array([[i, n, FP32.id, 1, 0] for i, n in enumerate(counts)], np.uint32)
    segments = np.array([[0, 8000 * i, 0, n] for i, n in enumerate(counts)], np.uint64)
    out = np.empty(100_000, np.uint8)
    records = np.empty((N_CHUNKS, 32), np.uint8)
    n_bytes = _native.encode_run(
        [words], segments, chunks, out, records, codec="auto", align_bytes=4096, bases=bases
    )
    return out[:n_bytes].tobytes(), records


def restored(
    run: tuple[bytes, np.ndarray], bases: list[tuple[bytes, np.ndarray]], *, whole: bool = True
) -> tuple[tuple[int, int], np.ndarray]:
    """Decode a run; not whole: words 100 to 199 of each chunk only."""
    counts = [2000, 2000, 1000]
    chunks = np.array([[i, n, FP32.id, 1] for i, n in enumerate(counts)], np.uint32)
    out = np.zeros(N_WORDS, np.uint32)
    segments = [
        [0, 8000 * i, 0, n, 0] if whole else [0, 8000 * i + 400, 100, 100, 0]
        for i, n in enumerate(counts)
    ]
    segments = np.array(segments, np.uint64)
    return _native.decode_run(run[0], run[1], chunks, [out], segments, bases=bases), out


@pytest.fixture
def chain() -> list[tuple[np.ndarray, tuple[bytes, np.ndarray]]]:
    """Words and run of each of four steps; chunk 1 of step 2 is coded without a base."""
    rng = np.random.default_rng(5)
    words = weights(N_WORDS, FP32)
    steps, links = [], []
    for step in range(4):
        if step:
            words = words + rng.integers(0, 9, N_WORDS).astype(np.uint32)
        if step == 2:
            words[2000:4000] = rng.permutation(weights(2000, FP32)) ^ 0xFFFF
        run = run_of(words, links)
        steps.append((words, run))
        links = [*links, run]
    return steps


def test_every_step_of_a_chain_comes_back_from_its_links(
    chain: list[tuple[np.ndarray, tuple[bytes, np.ndarray]]],
) -> None:
    flags = [run[1][:, 26] & 2 for _, run in chain]
    assert [of_step.tolist() for of_step in flags] == [[0] * 3, [2] * 3, [2, 0, 2], [2] * 3]
    for step, (words, run) in enumerate(chain):
        links = [run for _, run in chain[:step]]
        status, out = restored(run, links)
        assert status == (0, 0)
        np.testing.assert_array_equal(out, words)
        status, out = restored(run, links, whole=False)
        expected = np.zeros_like(words)
        for first in (100, 2100, 4100):
            expected[first : first + 100] = words[first : first + 100]
        assert status == (0, 0)
        np.testing.assert_array_equal(out, expected)


def test_links_that_a_chunk_does_not_need_may_be_left_out(
    chain: list[tuple[np.ndarray, tuple[bytes, np.ndarray]]],
) -> None:
    pruned = [(frames, records.copy()) for _, (frames, records) in chain[:3]]
    pruned[0][1][1] = pruned[1][1][1] = 0  # chunk 1 begins in step 2
    status, out = restored(chain[3][1], pruned)
    assert status == (0, 0)
    np.testing.assert_array_equal(out, chain[3][0])


def test_a_chain_with_a_link_that_is_missing_or_another_is_refused(
    chain: list[tuple[np.ndarray, tuple[bytes, np.ndarray]]],
) -> None:
    runs = [run for _, run in chain]
    assert restored(runs[3], [])[0] == (STATUS["delta: the words of the base are needed"], 0)
    other = STATUS["delta: another base than it was coded against"]
    assert restored(runs[3], [runs[0], runs[1]])[0] == (other, 0)
    assert restored(runs[3], [runs[0], runs[1], runs[1]])[0][0] == other
    damaged = bytearray(runs[1][0])
    damaged[40] ^= 1
    assert restored(runs[3], [runs[0], (bytes(damaged), runs[1][1]), runs[2]])[0] == (
        STATUS["payload CRC32C differs"],
        0,
    )


@pytest.mark.parametrize("name", ["int32", "float16", "float64"])
def test_a_base_of_another_dtype_is_refused(name: str) -> None:
    other = dtype_by_name(name)
    base = np.arange(2000).astype(other.word_dtype)
    words = np.arange(2000, dtype=np.uint32)
    frame, records = bytearray(), []
    for dtype, values, how in (
        (other, base, {}),
        (FP32, words, {"base": words, "base_crc32c": 0, "codec": "delta"}),
    ):
        if how:
            how["base_crc32c"] = int(np.frombuffer(bytes(frame), "<u4", 8)[6])
        frame = _native.encode_frame(values, dtype.id, **how)
        fields = np.frombuffer(frame, "<u4", 8)
        row = np.array([0, 0, fields[4], fields[2], fields[3], fields[6], fields[1], 0], "<u4")
        records.append((frame, row.view(np.uint8).reshape(1, 32)))
    chunk = np.array([[0, 2000, FP32.id, 1]], np.uint32)
    segment = np.array([[0, 0, 0, 2000, 0]], np.uint64)
    out = np.empty(2000, np.uint32)
    status, _ = _native.decode_run(*records[1], chunk, [out], segment, bases=records[:1])
    assert _native.STATUS[status] == "frame disagrees with the layout"


def test_checking_a_chain_needs_no_destination(
    chain: list[tuple[np.ndarray, tuple[bytes, np.ndarray]]],
) -> None:
    chunks = np.array([[i, n, FP32.id, 0] for i, n in enumerate((2000, 2000, 1000))], np.uint32)
    frames, records = chain[3][1]
    nothing = np.empty((0, 5), np.uint64)
    links = [run for _, run in chain[:3]]
    assert _native.decode_run(
        frames, records, chunks, [], nothing, check_only=True, bases=links
    ) == (0, 0)


def test_wrong_bases_are_wrong_arguments(
    chain: list[tuple[np.ndarray, tuple[bytes, np.ndarray]]],
) -> None:
    frames, records = chain[0][1]
    words = chain[1][0]
    with pytest.raises(ValueError, match="as many as the 3 chunks"):
        run_of(words, [(frames, records[:2])])
    with pytest.raises(ValueError, match="base has 3 words, the chunk 5000"):
        _native.encode_frame(words, FP32.id, base=words[:3])
    with pytest.raises(ValueError, match="coded: delta: the words of the base are needed"):
        _native.encode_frame(words, FP32.id, codec="delta")
    out = np.empty_like(words)
    with pytest.raises(ValueError, match="shares memory with base"):
        _native.decode_frame(_native.encode_frame(words, FP32.id), out, base=out)
    narrow = np.full(8, 3, np.uint8)
    frame = _native.encode_frame(narrow, UINT4.id, base=narrow, base_crc32c=1)
    for call in (
        lambda base: _native.decode_frame(frame, np.empty(8, np.uint8), base=base, base_crc32c=1),
        lambda base: _native.encode_frame(narrow, UINT4.id, base=base, base_crc32c=1),
    ):
        with pytest.raises(ValueError, match="base has words of more than 4 bits"):
            call(np.full(8, 0xF3, np.uint8))
