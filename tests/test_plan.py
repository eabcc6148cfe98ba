"""Planning is pure: what a plan cuts, a read plan puts together again, for any boxes."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbax_gds.dtypes import dtype_by_name
from orbax_gds.errors import Corrupt
from orbax_gds.plan import RUN_BYTES, ShardBox, StoredShard, cell_sizes, make_plan
from orbax_gds.read_plan import (
    READ_BYTES,
    check_coverage,
    chunk_table,
    plan_reads,
    read_segments,
)

DTYPES = [dtype_by_name(name) for name in ("uint8", "bfloat16", "float32", "complex64", "float64")]

shapes = st.lists(st.integers(1, 7), max_size=4).map(tuple)


@st.composite
def tilings(draw, leaf: int, shape: tuple[int, ...]) -> list[ShardBox]:
    """Boxes that tile a leaf: a grid with random cuts along every dimension."""
    edges = [sorted({0, n, *draw(st.lists(st.integers(0, n), max_size=2))}) for n in shape]
    cells = itertools.product(*(itertools.pairwise(e) for e in edges))
    return [
        ShardBox(leaf=leaf, start=tuple(a for a, _ in c), extent=tuple(b - a for a, b in c))
        for c in cells
    ]


@st.composite
def boxes_in(draw, leaf: int, shape: tuple[int, ...]) -> ShardBox:
    starts = [draw(st.integers(0, n - 1)) for n in shape]
    extents = [draw(st.integers(1, n - s)) for n, s in zip(shape, starts, strict=True)]
    return ShardBox(leaf=leaf, start=tuple(starts), extent=tuple(extents))


def _view(array: np.ndarray, box: ShardBox) -> np.ndarray:
    return array[tuple(slice(s, s + n) for s, n in zip(box.start, box.extent, strict=True))]


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _leaf(shape, dtype, seed):
    raw = np.random.default_rng(seed).bytes(math.prod(shape) * dtype.element_bytes)
    return np.frombuffer(raw, f"V{dtype.element_bytes}").reshape(shape)


def _read_back(chunks, shards, wants, dtypes):
    """Carry out a read plan on chunks in memory, whose frames are as long as their words."""
    sizes = np.array([len(c) for c in chunks], np.int64)
    reads = plan_reads(shards, wants, np.cumsum(sizes) - sizes, sizes)
    seen = np.concatenate([r.chunks for r in reads] or [np.empty(0, np.int64)]).tolist()
    assert seen == sorted(set(seen))
    out = [np.zeros(w.n_elements * dtypes[w.leaf].element_bytes, np.uint8) for w in wants]
    written = [np.zeros(len(o), np.uint8) for o in out]
    for read in reads:
        assert len(read.chunks) == 1 or read.n_bytes <= READ_BYTES
        segments, counts = read_segments(read, shards, wants, dtypes)
        of_chunk = np.repeat(read.chunks, counts)
        for chunk, (want, at, word, n) in zip(of_chunk.tolist(), segments.tolist(), strict=True):
            width = dtypes[wants[want].leaf].container_bytes
            piece = chunks[chunk][word * width : (word + n) * width]
            out[want][at : at + len(piece)] = piece
            written[want][at : at + len(piece)] += 1
    assert all((w == 1).all() for w in written)
    return out


@given(st.data())
def test_every_want_gets_its_words_from_what_a_plan_cut(data):
    dtypes = data.draw(st.lists(st.sampled_from(DTYPES), min_size=1, max_size=4))
    leaves, boxes, wants = [], [], []
    for i, dtype in enumerate(dtypes):
        shape = data.draw(shapes)
        leaves.append(_leaf(shape, dtype, i))
        boxes += data.draw(tilings(i, shape))
        wants += data.draw(st.lists(boxes_in(i, shape), max_size=3))
    chunk_bytes = data.draw(st.sampled_from([16, 64, 1 << 20]))
    below = data.draw(st.sampled_from([0, 1 << 16]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("orbax_gds.plan.POOL_BELOW_BYTES", below)
        plan = make_plan(boxes, dtypes, chunk_bytes)
    buffers = [_bytes(_view(leaves[box.leaf], box)) for box in boxes]
    chunks = []
    for run in plan.runs:
        rows = iter(run.segments.tolist())
        for number, n_words, dtype_id, n_segments in run.chunks.tolist():
            assert number == len(chunks)
            parts, at = [], 0
            for buffer, offset, word, n in itertools.islice(rows, n_segments):
                width = next(d for d in DTYPES if d.id == dtype_id).container_bytes
                assert word == at
                at += n
                parts.append(buffers[run.first_buffer + buffer][offset : offset + n * width])
            assert at == n_words
            chunks.append(np.concatenate(parts))
    assert len(chunks) == plan.n_chunks
    table = chunk_table(plan.shards, dtypes, plan.n_chunks, "here")
    assert [len(c) for c in chunks] == [
        n * next(d for d in DTYPES if d.id == i).container_bytes
        for n, i in zip(table.n_words.tolist(), table.dtypes.tolist(), strict=True)
    ]
    for got, want in zip(_read_back(chunks, plan.shards, wants, dtypes), wants, strict=True):
        assert got.tobytes() == _bytes(_view(leaves[want.leaf], want)).tobytes()


@given(st.data())
def test_any_chunk_grid_can_be_read(data):
    shape = data.draw(shapes)
    dtype = data.draw(st.sampled_from(DTYPES))
    leaf = _leaf(shape, dtype, 0)
    steps = tuple(data.draw(st.integers(1, n)) for n in shape)
    sizes = cell_sizes(shape, steps)
    shard = StoredShard(
        leaf=0,
        start=(0,) * len(shape),
        extent=shape,
        chunk_extent=steps,
        first_chunk=0,
        n_chunks=len(sizes),
    )
    starts = itertools.product(*(range(0, n, k) for n, k in zip(shape, steps, strict=True)))
    cells = [leaf[tuple(slice(s, s + k) for s, k in zip(at, steps, strict=True))] for at in starts]
    assert [cell.size for cell in cells] == sizes.tolist()
    wants = data.draw(st.lists(boxes_in(0, shape), min_size=1, max_size=3))
    got = _read_back([_bytes(c) for c in cells], [shard], wants, [dtype])
    assert [g.tobytes() for g in got] == [_bytes(_view(leaf, w)).tobytes() for w in wants]


def test_chunks_and_runs_stay_below_their_bounds():
    dtypes = [dtype_by_name("float32")] * 2
    boxes = [
        ShardBox(leaf=0, start=(0, 0), extent=(3000, 1001)),
        ShardBox(leaf=1, start=(0,), extent=(5_000_000,)),
    ]
    plan = make_plan(boxes, dtypes, 1 << 20)
    sizes = np.concatenate([run.chunks[:, 1] for run in plan.runs]) * 4
    assert sizes.max() <= 1 << 20
    assert max(run.n_bytes for run in plan.runs) <= RUN_BYTES
    assert plan.shards[0].chunk_extent == ((1 << 20) // 4004, 1001)


def test_small_shards_share_chunks_per_dtype():
    dtypes = [dtype_by_name("float32"), dtype_by_name("bfloat16")] * 500
    boxes = [ShardBox(leaf=i, start=(0,), extent=(256,)) for i in range(1000)]
    plan = make_plan(boxes, dtypes, 1 << 20)
    assert plan.n_chunks == 2
    assert all(shard.pooled for shard in plan.shards)


def _shard(first, n_chunks=1, *, leaf=0, extent=(4,), offset=0, pooled=False):
    return StoredShard(
        leaf=leaf,
        start=(0,),
        extent=extent,
        chunk_extent=extent if n_chunks == 1 else (1,),
        first_chunk=first,
        n_chunks=n_chunks,
        word_offset=offset,
        pooled=pooled,
    )


@pytest.mark.parametrize(
    "shards",
    [
        [_shard(0), _shard(0)],
        [_shard(1)],
        [_shard(0, leaf=1), _shard(1)],
        [_shard(0), _shard(1, 3, extent=(3,))],
        [_shard(0, offset=1, pooled=True), _shard(1)],
        [_shard(0, pooled=True), _shard(0, offset=3, pooled=True), _shard(1)],
        [_shard(0, pooled=True), _shard(0, pooled=True), _shard(1)],
        [_shard(0), _shard(0, pooled=True), _shard(1)],
        [_shard(0, pooled=True), _shard(0), _shard(1)],
        [_shard(0, pooled=True), _shard(0, leaf=2, offset=4, pooled=True), _shard(1)],
    ],
)
def test_a_layout_that_is_none_is_refused(shards):
    dtypes = [dtype_by_name("uint8"), None, dtype_by_name("int8")]
    with pytest.raises(Corrupt):
        chunk_table(shards, dtypes, 2, "here")


@given(st.data())
def test_only_tilings_cover_a_leaf(data):
    shape = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple))
    boxes = data.draw(tilings(0, shape))
    check_coverage("leaf", shape, boxes)
    with pytest.raises(Corrupt, match="leaf"):
        check_coverage("leaf", shape, boxes[1:])
    with pytest.raises(Corrupt):
        check_coverage("leaf", shape, [*boxes, boxes[0]])
    if len(boxes) > 1 and len({box.extent for box in boxes}) == 1:
        with pytest.raises(Corrupt):
            check_coverage("leaf", shape, [boxes[0], *boxes[:-1]])
