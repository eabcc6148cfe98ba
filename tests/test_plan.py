"""Planning is pure: what a plan cuts, a read plan puts together again, for any boxes."""

import contextlib
import itertools
import math
import time

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbax_gds.chunk_table import chunk_table
from orbax_gds.coverage import check_coverage
from orbax_gds.dtypes import dtype_by_name
from orbax_gds.errors import Corrupt
from orbax_gds.parts import parts_of
from orbax_gds.plan import RUN_BYTES, ShardBox, StoredShard, cell_sizes, make_plan, matrix_columns
from orbax_gds.read_plan import (
    Wanted,
    copy_rows,
    numbers_by_leaf,
    plan_reads,
    read_segments,
)
from orbax_gds.read_ranges import READ_BYTES

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


def _read_back(chunks, shards, wants, dtypes, many_rows=256):
    """Carry out a read plan on chunks in memory, whose frames are as long as their words."""
    sizes = np.array([len(c) for c in chunks], np.int64)
    parts = parts_of(wants, {})
    numbers = numbers_by_leaf(shards)
    frames = np.cumsum(sizes) - sizes, sizes, sizes
    reads = plan_reads(shards, numbers, Wanted(parts), dtypes, *frames)
    seen = np.concatenate([r.chunks for r in reads] or [np.empty(0, np.int64)]).tolist()
    assert seen == sorted(set(seen))
    out = [np.zeros(w.n_elements * dtypes[w.leaf].element_bytes, np.uint8) for w in wants]
    written = [np.zeros(len(o), np.uint8) for o in out]
    for read in reads:
        assert len(read.chunks) == 1 or read.n_bytes <= READ_BYTES
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("orbax_gds.read_plan.MANY_ROWS", many_rows)
            segments, counts, strided = read_segments(read, shards, parts, dtypes)
        for rows in strided:
            dtype = dtypes[rows.part.leaf]
            at = rows.word_offset * dtype.container_bytes
            source = chunks[rows.chunk][at : at + math.prod(rows.extent) * dtype.element_bytes]
            once = np.zeros_like(out[rows.part.want])
            for words, target in ((source, out[rows.part.want]), (np.ones_like(source), once)):
                copy_rows(rows, words.view(dtype.word_dtype), target.view(dtype.word_dtype))
            written[rows.part.want] += once
        of_chunk = np.repeat(read.chunks, counts)
        for chunk, (want, at, word, n, rule) in zip(
            of_chunk.tolist(), segments.tolist(), strict=True
        ):
            assert rule == 0
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
    wants += data.draw(st.lists(st.sampled_from(boxes), max_size=6))
    wants = data.draw(st.permutations(wants))
    chunk_bytes = data.draw(st.sampled_from([16, 64, 1 << 20]))
    below = data.draw(st.sampled_from([0, 1 << 16]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("orbax_gds.plan.POOL_BELOW_BYTES", below)
        plan = make_plan(boxes, dtypes, chunk_bytes)
    buffers = [_bytes(_view(leaves[box.leaf], box)) for box in boxes]
    chunks = []
    for run in plan.runs:
        rows = iter(run.segments.tolist())
        for number, n_words, dtype_id, n_segments, columns in run.chunks.tolist():
            assert number == len(chunks)
            assert columns == 0 or (n_segments == 1 and n_words % columns == 0)
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
    many_rows = data.draw(st.sampled_from([0, 256]))
    back = _read_back(chunks, plan.shards, wants, dtypes, many_rows)
    for got, want in zip(back, wants, strict=True):
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
    wants.append(ShardBox(leaf=0, start=(0,) * len(shape), extent=shape))
    many_rows = data.draw(st.sampled_from([0, 256]))
    got = _read_back([_bytes(c) for c in cells], [shard], wants, [dtype], many_rows)
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


@given(
    st.integers(4096, 1 << 17),
    st.lists(st.integers(1, 1 << 17), min_size=1, max_size=20),
    st.sampled_from(DTYPES),
)
def test_no_chunk_exceeds_its_bound(chunk_bytes, lengths, dtype):
    boxes = [ShardBox(leaf=0, start=(0,), extent=(n,)) for n in lengths]
    plan = make_plan(boxes, [dtype], chunk_bytes)
    sizes = [n_words * dtype.container_bytes for run in plan.runs for n_words in run.chunks[:, 1]]
    assert max(sizes) <= chunk_bytes


def test_wants_that_are_whole_shards_are_planned_without_a_look_at_each_chunk():
    dtypes = [dtype_by_name("float32")] * 300
    boxes = [ShardBox(leaf=i, start=(0,), extent=(64,)) for i in range(299)]
    boxes.append(ShardBox(leaf=299, start=(0, 0), extent=(3000, 300)))
    plan = make_plan(boxes, dtypes, 1 << 20)
    sizes = np.full(plan.n_chunks, 64, np.int64)
    parts = parts_of(boxes, {})
    numbers = numbers_by_leaf(plan.shards)
    frames = np.cumsum(sizes) - sizes, sizes, sizes
    (read,) = plan_reads(plan.shards, numbers, Wanted(parts), dtypes, *frames)
    assert read.overlaps == ()
    assert len(read.rows) == sum(len(run.segments) for run in plan.runs)


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


@given(st.data())
def test_coverage_is_what_counting_every_element_says(data):
    shape = data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=3).map(tuple))
    near = st.builds(
        ShardBox,
        leaf=st.just(0),
        start=st.tuples(*(st.integers(0, n) for n in shape)),
        extent=st.tuples(*(st.integers(1, n + 1) for n in shape)),
    )
    boxes = data.draw(st.lists(near, max_size=4))
    counts = np.zeros([2 * n + 2 for n in shape], int)
    for box in boxes:
        _view(counts, box)[...] += 1
    inside = _view(counts, ShardBox(leaf=0, start=(0,) * len(shape), extent=shape))
    tiles = (inside == 1).all() and counts.sum() == inside.sum()
    with contextlib.nullcontext() if tiles else pytest.raises(Corrupt):
        check_coverage("leaf", shape, boxes)


def test_boxes_that_no_plane_separates_can_tile_a_leaf():
    pinwheel = [((0, 0), (1, 2)), ((0, 2), (2, 1)), ((2, 1), (1, 2)), ((1, 0), (2, 1))]
    boxes = [ShardBox(leaf=0, start=s, extent=e) for s, e in [*pinwheel, ((1, 1), (1, 1))]]
    check_coverage("leaf", (3, 3), boxes)
    with pytest.raises(Corrupt):
        check_coverage("leaf", (3, 3), [*boxes[:-1], boxes[0]])


@pytest.mark.parametrize("shape", [(), (1, 1)])
def test_one_element_is_covered_once(shape):
    box = ShardBox(leaf=0, start=(0,) * len(shape), extent=(1,) * len(shape))
    check_coverage("leaf", shape, [box])
    for boxes in ([], [box, box], [ShardBox(leaf=0, start=(0,), extent=(1,))]):
        with pytest.raises(Corrupt):
            check_coverage("leaf", shape, boxes)


@pytest.mark.slow
def test_coverage_of_many_shards_takes_no_quadratic_time():
    grid = itertools.product(range(250), range(200))
    boxes = [ShardBox(leaf=0, start=(3 * i, 5 * j), extent=(3, 5)) for i, j in grid]
    begin = time.process_time()
    check_coverage("leaf", (750, 1000), boxes)
    assert time.process_time() - begin < 5  # 50,000 boxes; by pairs it takes minutes


def test_leaves_that_are_cut_alike_are_worked_out_once():
    boxes = [ShardBox(leaf=0, start=(i,), extent=(1,)) for i in range(4)]
    known = {}
    check_coverage("a", (4,), boxes, known)
    check_coverage("b", (4,), [msgspec.structs.replace(box, leaf=1) for box in boxes], known)
    assert len(known) == 1
    for name in "cd":
        with pytest.raises(Corrupt, match=f"'{name}'"):
            check_coverage(name, (5,), boxes, known)


@pytest.mark.parametrize(
    ("extent", "columns"),
    [
        ((512, 256), 256),
        ((4, 64, 256), 256),
        ((256, 3, 4, 64), 768),
        ((1, 1, 300, 400), 400),
        ((300, 400, 1), 400),
        ((1_000_000,), 0),
        ((16, 16), 16),
        ((15, 16), 0),
        ((1000, 15), 0),
        ((8, 8, 8, 8), 64),
        ((), 0),
    ],
)
def test_a_box_is_seen_as_the_matrix_nearest_to_square(extent, columns):
    assert matrix_columns(extent) == columns


def test_every_chunk_that_is_a_matrix_says_so():
    dtypes = [dtype_by_name(name) for name in ("float32", "complex64", "float32")]
    extents = [(1000, 256), (1000, 256), (20, 20)]
    boxes = [ShardBox(leaf=i, start=(0, 0), extent=e) for i, e in enumerate(extents)]
    rows = np.concatenate([run.chunks for run in make_plan(boxes, dtypes, 400 << 10).runs])
    # Whole and last chunks of leaf 0, five of complex words, and the pool.
    assert rows[:, [1, 4]].tolist() == [
        [400 * 256, 256],
        [400 * 256, 256],
        [200 * 256, 256],
        *[[400 * 256, 0]] * 5,
        [400, 0],
    ]
