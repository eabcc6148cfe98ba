"""Runs of the native core: chunks in pieces to frames end to end, and back."""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orbax_gds import _native
from orbax_gds.dtypes import Dtype, dtype_by_name
from orbax_gds.testing import chunks

NO_SEGMENTS = np.zeros((0, 4), np.uint64)
RECORD = np.dtype(
    [
        ("offset", "<u8"),
        ("frame_bytes", "<u4"),
        ("n_words", "<u4"),
        ("payload_bytes", "<u4"),
        ("crc", "<u4"),
        ("codec", "u1"),
        ("dtype", "u1"),
        ("flags", "<u2"),
        ("zero", "<u4"),
    ]
)


def as_stored(segments: np.ndarray) -> np.ndarray:
    """Return segments with the column `rule` that decoding has, all 0."""
    return np.pad(segments, ((0, 0), (0, 1)))


@dataclass
class Run:
    """Chunks cut into segments that lie anywhere in a few buffers."""

    words: list[np.ndarray]
    buffers: list[np.ndarray]
    segments: np.ndarray
    chunks: np.ndarray

    def encode(self, *, codec: str = "auto", align_bytes: int = 64) -> tuple[np.ndarray, ...]:
        n_bytes = sum(_native.max_frame_bytes(int(c[1]), int(c[2])) for c in self.chunks)
        out = np.full(n_bytes + align_bytes, 0xA5, np.uint8)
        records = np.full((len(self.chunks), 32), 0xA5, np.uint8)
        written = _native.encode_run(
            self.buffers,
            self.segments,
            with_columns(self.chunks),
            out,
            records,
            codec=codec,
            align_bytes=align_bytes,
        )
        assert (out[written:] == 0xA5).all()
        return out[:written].copy(), records

    def decode(self, frames: np.ndarray, records: np.ndarray) -> tuple[int, int]:
        segments = as_stored(self.segments)
        return _native.decode_run(frames, records, self.chunks, self.buffers, segments)

    def cleared(self) -> "Run":
        fresh = [np.full_like(buffer, 0x5A) for buffer in self.buffers]
        return Run(self.words, fresh, self.segments, self.chunks)


def with_columns(chunks: np.ndarray, columns: int = 0) -> np.ndarray:
    """Append the column that only encode_run has."""
    return np.pad(chunks, ((0, 0), (0, 1)), constant_values=columns)


def make_run(parts: list[tuple[Dtype, np.ndarray]], cuts: list[list[int]], seed: int) -> Run:
    """Cut the words of each chunk and put the pieces, shuffled and with gaps, into two buffers."""
    rng = np.random.default_rng(seed)
    pieces, rows = [], []
    for number, ((dtype, words), cut) in enumerate(zip(parts, cuts, strict=True)):
        edges = sorted({0, words.size, *(c % (words.size + 1) for c in cut)})
        for start, stop in itertools.pairwise(edges):
            pieces.append((len(pieces), start, words[start:stop].view(np.uint8)))
        rows.append((10 + number, words.size, dtype.id, len(edges) - 1))
    buffers: list[list[np.ndarray]] = [[], []]
    segments = np.zeros((len(pieces), 4), np.uint64)
    sizes = [0, 0]
    for index, start, data in [pieces[i] for i in rng.permutation(len(pieces))]:
        which = int(rng.integers(2))
        gap = rng.integers(0, 256, int(rng.integers(0, 9)), np.uint8)
        buffers[which] += [gap, data]
        segments[index] = which, sizes[which] + gap.size, start, 0
        sizes[which] += gap.size + data.size
    at = 0
    for (dtype, _), row in zip(parts, rows, strict=True):
        for _ in range(row[3]):
            segments[at, 3] = pieces[at][2].size // dtype.container_bytes
            at += 1
    joined = [np.concatenate([*parts_, np.zeros(0, np.uint8)]) for parts_ in buffers]
    return Run([words for _, words in parts], joined, segments, np.array(rows, np.uint32))


@st.composite
def runs(draw: st.DrawFn) -> Run:
    parts = draw(st.lists(chunks(max_words=3000), min_size=1, max_size=5))
    cuts = [draw(st.lists(st.integers(0, 3000), max_size=4)) for _ in parts]
    return make_run(parts, cuts, draw(st.integers(0, 2**32 - 1)))


def weights_run(n_chunks: int = 3) -> Run:
    dtype = dtype_by_name("float32")
    rng = np.random.default_rng(1)
    parts = [
        (dtype, rng.normal(0, 0.02, 1000 + i).astype(np.float32).view(np.uint32))
        for i in range(n_chunks)
    ]
    return make_run(parts, [[], [100, 500], []][:n_chunks], 3)


@settings(max_examples=12)
@given(
    run=runs(), codec=st.sampled_from(("auto", "off")), align_bytes=st.sampled_from((64, 512, 4096))
)
def test_pieces_come_back_to_their_places(run: Run, codec: str, align_bytes: int) -> None:
    frames, records = run.encode(codec=codec, align_bytes=align_bytes)
    assert frames.size % align_bytes == 0
    target = run.cleared()
    assert target.decode(frames, records) == (0, 0)
    for row in run.segments.tolist():
        buffer, offset, _, _ = row
        n_bytes = piece_bytes(run, row)
        expected = run.buffers[buffer][offset : offset + n_bytes]
        np.testing.assert_array_equal(target.buffers[buffer][offset : offset + n_bytes], expected)
    covered = sum(piece_bytes(run, row) for row in run.segments.tolist())
    untouched = sum(int((b == 0x5A).sum()) for b in target.buffers)
    assert untouched >= sum(b.size for b in run.buffers) - covered


def piece_bytes(run: Run, row: list[int]) -> int:
    at = next(i for i, other in enumerate(run.segments.tolist()) if other is row or other == row)
    chunk = int(np.searchsorted(np.cumsum(run.chunks[:, 3]), at, side="right"))
    return row[3] * run.words[chunk].itemsize


@settings(max_examples=12)
@given(run=runs(), align_bytes=st.sampled_from((64, 4096)))
def test_frames_lie_end_to_end_and_records_repeat_their_headers(run: Run, align_bytes: int) -> None:
    frames, records = run.encode(align_bytes=align_bytes)
    at = 0
    for record, chunk in zip(records.view(RECORD)[:, 0], run.chunks, strict=True):
        frame = frames[at : at + record["frame_bytes"]]
        info = _native.frame_info(frame)
        assert record["offset"] == at
        assert record["zero"] == 0
        assert info["chunk"] == chunk[0]
        for field in ("frame_bytes", "n_words", "payload_bytes", "codec", "dtype", "flags"):
            assert record[field] == info[field]
        assert record["crc"] == _native.crc32c(frame[32:])
        at += int(record["frame_bytes"])
    assert at == frames.size


@settings(max_examples=12)
@given(run=runs())
def test_every_kernel_writes_the_same_run(run: Run) -> None:
    before = _native.isa()
    results = []
    for isa in _native.isas():
        _native.use_isa(isa)
        results.append([array.tobytes() for array in run.encode(align_bytes=4096)])
    _native.use_isa(before)
    assert results.count(results[0]) == len(results)


@settings(max_examples=12)
@given(run=runs(), data=st.data())
def test_any_part_of_a_chunk_can_be_read_alone(run: Run, data: st.DataObject) -> None:
    frames, records = run.encode()
    number = data.draw(st.integers(0, len(run.chunks) - 1))
    words = run.words[number]
    start = data.draw(st.integers(0, words.size - 1))
    n_words = data.draw(st.integers(1, words.size - start))
    out = np.zeros(n_words, words.dtype)
    chunk = run.chunks[number : number + 1].copy()
    chunk[0, 3] = 1
    segment = np.array([[0, 0, start, n_words, 0]], np.uint64)
    one = records[number : number + 1]
    assert _native.decode_run(frames, one, chunk, [out.view(np.uint8)], segment) == (0, 0)
    np.testing.assert_array_equal(out, words[start : start + n_words])


@pytest.mark.slow
def test_a_check_needs_no_memory_and_finds_every_flipped_byte() -> None:
    run = weights_run(2)
    frames, records = run.encode()

    def check() -> tuple[int, int]:
        none = as_stored(NO_SEGMENTS)
        return _native.decode_run(frames, records, run.chunks, [], none, check_only=True)

    assert check() == (0, 0)
    second = int(records.view(RECORD)["offset"][1, 0])
    for at in range(frames.size):
        frames[at] ^= 0x10
        status, number = check()
        assert status != 0
        assert number == (at >= second)
        frames[at] ^= 0x10


def test_a_frame_that_is_not_the_one_meant_is_refused() -> None:
    run = weights_run()
    frames, records = run.encode()

    def expect(text: str, run: Run, records: np.ndarray) -> None:
        status, number = run.decode(frames, records)
        assert (_native.STATUS[status], number) == (text, 1)

    for column, value in ((0, 99), (1, 900)):
        changed = run.cleared()
        changed.chunks = run.chunks.copy()
        changed.chunks[1, column] = value
        if column == 1:
            changed.chunks[1, 3] = 0
            changed.segments = np.delete(run.segments, [1, 2, 3], axis=0)
        expect("frame disagrees with the layout", changed, records)
    for byte in (8, 12, 16, 20, 24, 26, 28):
        changed_records = records.copy()
        changed_records[1, byte] ^= 1
        expect("frame disagrees with the index", run.cleared(), changed_records)
    swapped = records[[0, 2, 1]]
    expect("frame disagrees with the layout", run.cleared(), swapped)
    beyond = records.copy()
    beyond[1, 7] = 0x7F
    expect("frame is truncated", run.cleared(), beyond)


def test_no_chunks_are_no_bytes() -> None:
    run = Run([], [], NO_SEGMENTS, np.zeros((0, 4), np.uint32))
    frames, records = run.encode(align_bytes=4096)
    assert frames.size == 0
    assert run.decode(frames, records) == (0, 0)


@pytest.mark.parametrize(
    ("row", "column", "value", "message"),
    [
        (1, 0, 2, "names buffer 2 of 2"),
        (1, 1, 10**6, "from byte 1000000 of buffer"),
        (1, 1, 2**64 - 1, "from byte 18446744073709551615"),
        (1, 2, 2**64 - 1, "from word 18446744073709551615 on, but the chunk has 1001"),
        (1, 3, 2**63, "9223372036854775808 words from word 0"),
        (2, 2, 101, "begins at word 101, but the segments before it end at word 100"),
        (3, 3, 500, "hold 1000 words, but the chunk has 1001"),
    ],
)
def test_segments_that_do_not_fit_are_refused(
    row: int, column: int, value: int, message: str
) -> None:
    run = weights_run()
    run.segments[row, column] = value
    with pytest.raises(ValueError, match=message):
        run.encode()


def test_what_is_written_and_what_is_read_are_apart() -> None:
    run = weights_run()
    frames, records = run.encode()
    memory = np.zeros(40_000, np.uint8)
    lies_in = [memory[19_999 : 19_999 + run.buffers[0].size], run.buffers[1]]

    def encode(buffers: list[np.ndarray], out: np.ndarray, records: np.ndarray) -> None:
        _native.encode_run(
            buffers,
            run.segments,
            with_columns(run.chunks),
            out,
            records,
            codec="auto",
            align_bytes=64,
        )

    with pytest.raises(ValueError, match="out shares memory with buffer 0"):
        encode(lies_in, memory[:20_000], records)
    with pytest.raises(ValueError, match="out shares memory with records"):
        encode(run.buffers, memory[:20_000], memory[19_950:20_046].reshape(3, 32))
    with pytest.raises(ValueError, match="records shares memory with buffer 0"):
        encode(lies_in, memory[:15_000], memory[20_000:20_096].reshape(3, 32))

    def decode(frames: np.ndarray, records: np.ndarray) -> None:
        _native.decode_run(frames, records, run.chunks, lies_in, as_stored(run.segments))

    with pytest.raises(ValueError, match="frames shares memory with buffer 0"):
        decode(memory[:20_000], records)
    with pytest.raises(ValueError, match="records shares memory with buffer 0"):
        decode(frames, memory[19_950:20_046].reshape(3, 32))


def test_other_wrong_arguments_are_refused() -> None:
    run = weights_run()
    frames, records = run.encode()
    out = np.zeros(20_000, np.uint8)

    def encode(**changes: object) -> None:
        arguments = {
            "buffers": run.buffers,
            "segments": run.segments,
            "chunks": with_columns(run.chunks),
            "out": out,
            "records": records,
            "codec": "auto",
            "align_bytes": 64,
        }
        _native.encode_run(**{**arguments, **changes})

    with pytest.raises(ValueError, match=r"out has 100 bytes; these 3 chunks may need 12\d\d\d"):
        encode(out=out[:100])
    with pytest.raises(ValueError, match="records has 2 rows, but there are 3 chunks"):
        encode(records=records[:2])
    with pytest.raises(ValueError, match=r"segments must be a C-contiguous array of uint64"):
        encode(segments=run.segments.astype(np.int64))
    with pytest.raises(ValueError, match=r"chunks must be a C-contiguous array of uint32"):
        encode(chunks=run.chunks)
    with pytest.raises(ValueError, match=r"chunks\[0\] has 1001 columns, but only 1000 words"):
        encode(chunks=with_columns(run.chunks, 1001))
    with pytest.raises(ValueError, match="multiple of 64, not 100"):
        encode(align_bytes=100)
    with pytest.raises(ValueError, match="'auto', 'fast', 'max' or 'off', not 'ladder'"):
        encode(codec="ladder")
    with pytest.raises(ValueError, match=r"chunks\[2\] has 1 segments, but only 0"):
        encode(segments=run.segments[:4])
    with pytest.raises(ValueError, match="The chunks name 4 segments, but there are 5"):
        encode(chunks=with_columns(run.chunks[:2]), records=records[:2])
    big_endian = run.segments.astype(">u8")
    with pytest.raises(ValueError, match=r"segments must be a C-contiguous array of uint64"):
        encode(segments=big_endian)
    segments = as_stored(run.segments)
    read_only = [memoryview(bytes(run.buffers[0])), run.buffers[1]]
    with pytest.raises(ValueError, match="buffer 0 is read-only"):
        _native.decode_run(frames, records, run.chunks, read_only, segments)
    with pytest.raises(ValueError, match="check_only keeps no words, but there are 5 segments"):
        _native.decode_run(frames, records, run.chunks, run.buffers, segments, check_only=True)
    links: list[Any] = [(frames,), (frames, records, -1), (frames, records, "0")]
    links += [(frames, records, 1 << 64), (frames, records, 0, 0), {0: 0, 1: 1, 2: 2}, 3]
    for link in links:
        with pytest.raises(
            (ValueError, TypeError), match=r"bases holds frames, rec|no.* seq|no len"
        ):
            _native.decode_run(frames, records, run.chunks, run.buffers, segments, bases=[link])
