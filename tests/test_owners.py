"""What several processes hold is divided among them evenly, once, and alike by all."""

import collections
import math

import jax
import ml_dtypes
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from in_memory import assert_same_bits, mesh
from jax.sharding import NamedSharding, PartitionSpec

import orbax_gds as ogds
from orbax_gds import commit, leaves, snapshot
from orbax_gds.coverage import check_coverage
from orbax_gds.dtypes import dtype_by_name
from orbax_gds.item import Item
from orbax_gds.monitoring import Stopwatch
from orbax_gds.options import Options
from orbax_gds.owners import Replicated, divided
from orbax_gds.plan import ShardBox
from orbax_gds.plan_cache import Planned
from orbax_gds.saving import Prepared
from orbax_gds.slices import cut_point, slices_of
from orbax_gds.snapshot import Picks, Snapshot

MIB = 1 << 20

extents = st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple)


@given(extents, st.data())
def test_slices_hold_consecutive_elements_and_each_lies_in_one_piece(extent, data):
    n_elements = math.prod(extent)
    begin = data.draw(st.integers(0, n_elements))
    end = data.draw(st.integers(begin, n_elements))
    first = data.draw(st.tuples(*(st.integers(0, 5) for _ in extent)))
    whole = np.arange(n_elements).reshape(extent)
    found = slices_of(ShardBox(leaf=3, start=first, extent=extent), begin, end)
    assert len(found) <= 2 * len(extent) - 1
    words = []
    for each in found:
        at = np.subtract(each.start, first)
        piece = whole[tuple(map(slice, at, at + each.extent))]
        assert piece.shape == each.extent
        assert piece.flags.c_contiguous
        words += piece.ravel().tolist()
    assert words == list(range(begin, end))


@given(extents, st.integers(1, 40), st.lists(st.integers(-10, 7000), min_size=2, max_size=8))
def test_cuts_are_near_where_they_are_wanted_and_in_order(extent, unit, wanted):
    n_elements = math.prod(extent)
    cuts = [cut_point(extent, each, unit) for each in sorted(wanted)]
    assert cuts == sorted(cuts)
    for cut, each in zip(cuts, sorted(wanted), strict=True):
        assert 0 <= cut <= n_elements
        assert 2 * abs(cut - min(max(each, 0), n_elements)) <= unit


BORDER = 3 * 4096


@pytest.mark.parametrize(
    ("wanted", "unit", "cut"),
    [
        (BORDER + 40, 100, BORDER),  # of the slowest dimension
        (BORDER + 1000, 100, BORDER + 1024),  # of the next one
        (BORDER + 500, 100, BORDER + 500),  # inside a row: a multiple of the unit
        (BORDER + 1000, 2048, BORDER),
        (BORDER - 1020, 2048, BORDER),
    ],
)
def test_a_cut_goes_along_a_border_if_one_is_near(wanted, unit, cut):
    assert abs(cut_point((8, 4, 1024), wanted, unit) - cut) <= (50 if cut == wanted else 0)


def replicated(shapes, dtypes, holders) -> list[Replicated]:
    """Trees of one structure, such as parameters and their masters."""
    return [
        Replicated(
            box=ShardBox(leaf=leaf, start=(0,) * len(shape), extent=shape),
            shape=shape,
            dtype=dtype,
            n_bytes=dtype_by_name(dtype).element_bytes * math.prod(shape),
            holders=held,
        )
        for leaf, (dtype, shape, held) in enumerate(
            (dtype, shape, held)
            for dtype in dtypes
            for shape, held in zip(shapes, holders, strict=True)
        )
    ]


def one_after_another(*trees) -> list[Replicated]:
    replace = msgspec.structs.replace
    boxes = [box for tree in trees for box in tree]
    return [replace(each, box=replace(each.box, leaf=i)) for i, each in enumerate(boxes)]


def bytes_held(boxes) -> collections.Counter:
    held = collections.Counter()
    for each in boxes:
        held[each.holders] += each.n_bytes
    return held


def loads_of(boxes, processes, alone=()) -> np.ndarray:
    """Bytes that each process stores; checks that all of each box is stored once.

    What each of the first processes holds alone is counted, too.
    """
    loads = np.zeros(len(processes), np.int64)
    loads[: len(alone)] = alone
    held = bytes_held(boxes) + collections.Counter({(i,): n for i, n in enumerate(alone)})
    slices: dict[int, list[ShardBox]] = {}
    for box, process in divided(boxes, held):
        each = boxes[box.leaf]
        assert process in each.holders
        slices.setdefault(box.leaf, []).append(box)
        loads[processes.index(process)] += each.n_bytes * box.n_elements // each.box.n_elements
    for leaf, each in enumerate(boxes):
        check_coverage(str(leaf), each.shape, slices[leaf])
    return loads


sizes = st.one_of(
    st.tuples(st.integers(1, 8 * MIB)),
    st.tuples(st.integers(1, 40), st.integers(1, 300), st.integers(1, 3000)),
    st.tuples(st.integers(1, 4000), st.integers(1, 4000)),
)


@settings(max_examples=25)
@given(
    st.lists(sizes, min_size=1, max_size=12),
    st.lists(st.sampled_from(["bfloat16", "float32", "int8"]), min_size=1, max_size=4),
    st.integers(2, 70),
)
def test_what_all_hold_is_divided_evenly_whatever_it_is(shapes, dtypes, n_processes):
    processes = tuple(range(n_processes))
    boxes = replicated(shapes, dtypes, [processes] * len(shapes))
    loads = loads_of(boxes, processes)
    assert loads.max() <= loads.mean() + 2 * MIB
    n_slices = sum(1 for _ in divided(boxes, bytes_held(boxes)))
    assert n_slices <= len(boxes) + 5 * len(dtypes) * len(boxes[0].shape) * n_processes


@settings(max_examples=30)
@given(st.lists(st.tuples(sizes, st.integers(0, 3)), min_size=1, max_size=10))
def test_every_process_divides_alike_though_it_sees_only_what_it_holds(leaves):
    groups = [(0, 1, 2, 3), (0, 1), (2, 3), (1, 2, 3)]
    boxes = replicated(
        [shape for shape, _ in leaves], ["bfloat16", "float32"], [groups[g] for _, g in leaves]
    )
    loads_of(boxes, (0, 1, 2, 3))
    held = bytes_held(boxes)
    every = list(divided(boxes, held))
    for process in range(4):
        seen = list(divided([each for each in boxes if process in each.holders], held))
        assert [each for each in seen if each[1] == process] == [
            each for each in every if each[1] == process
        ]


@pytest.mark.parametrize("n_processes", [2, 4, 8, 16])
def test_of_one_large_array_each_process_stores_an_equal_part(n_processes):
    processes = tuple(range(n_processes))
    boxes = replicated([(2048, 2048)], ["float32"], [processes])
    assert loads_of(boxes, processes).tolist() == [16 * MIB // n_processes] * n_processes


@settings(max_examples=25)
@given(
    st.lists(sizes, min_size=1, max_size=6),
    st.lists(sizes, min_size=1, max_size=6),
    st.integers(2, 9),
)
def test_of_each_kind_all_store_as_much_whatever_follows_from_another(pairs, lone, n_processes):
    processes = tuple(range(n_processes))
    lone = [shape for shape in lone if shape not in pairs]
    boxes = one_after_another(
        replicated(pairs, ["bfloat16", "float32"], [processes] * len(pairs)),
        replicated(lone, ["float32"], [processes] * len(lone)),
    )
    loads = np.zeros((2, n_processes))
    for box, process in divided(boxes, bytes_held(boxes)):
        is_lone = box.leaf >= 2 * len(pairs)
        n_bytes = dtype_by_name(boxes[box.leaf].dtype).element_bytes * box.n_elements
        loads[int(is_lone), process] += n_bytes
    for each in (*loads, loads.sum(axis=0)):
        assert each.max() <= each.mean() + 4 * MIB


@pytest.mark.parametrize("n_bytes", [3 * MIB // 2, 5 * MIB // 2])
def test_lots_of_one_kind_fill_the_gaps_that_another_leaves(n_bytes):
    processes = (0, 1, 2, 3)
    dtypes = {"int8": 1, "int16": 2, "int32": 4, "int64": 8}
    trees = (replicated([(n_bytes // n,)], [name], [processes]) for name, n in dtypes.items())
    loads = loads_of(one_after_another(*trees), processes)
    assert loads.max() <= loads.mean() + (0 if n_bytes < 2 * MIB else MIB)


@settings(max_examples=25)
@given(
    st.lists(sizes, min_size=1, max_size=6),
    st.lists(st.integers(0, 64 * MIB), min_size=1, max_size=6),
    st.integers(6, 9),
)
def test_who_holds_much_alone_stores_less_of_what_all_hold(shapes, alone, n_processes):
    processes = tuple(range(n_processes))
    boxes = replicated(shapes, ["bfloat16", "float32"], [processes] * len(shapes))
    loads = loads_of(boxes, processes, alone)
    most = np.array([*alone, *[0] * (n_processes - len(alone))])
    level = loads[loads > most].mean()
    assert loads[loads > most].max() <= level + 2 * MIB
    assert loads.min() >= level - 2 * MIB


def test_who_stores_much_of_what_few_hold_stores_less_of_what_all_hold():
    shapes, holders = [(8 * MIB,), (16 * MIB,)], [(0, 1), (0, 1, 2, 3)]
    boxes = replicated(shapes, ["int8"], holders)
    assert loads_of(boxes, (0, 1, 2, 3), [4 * MIB]).tolist() == [7 * MIB] * 4


def test_what_cannot_be_cut_stays_whole():
    (box,) = replicated([(4096, 4096)], ["int8"], [(0, 1)])
    uncut = Replicated(
        box=box.box, shape=box.shape, dtype="int4", n_bytes=16 * MIB, holders=(0, 1), can_cut=False
    )
    assert list(divided([uncut], bytes_held([uncut]))) == [(box.box, 0)]


LAYERS, WIDTH, INNER, WORDS = 32, 4096, 11008, 32000
MODEL_7B = [
    *((WORDS, WIDTH), (WIDTH, WORDS)),
    *[(LAYERS, WIDTH, WIDTH)] * 4,
    *[(LAYERS, WIDTH, INNER)] * 2,
    *((LAYERS, INNER, WIDTH), (LAYERS, WIDTH), (LAYERS, WIDTH)),
]


@pytest.mark.parametrize("n_processes", [3, 16, 64])
def test_stacked_layers_of_a_large_model_are_divided_evenly(n_processes):
    processes = tuple(range(n_processes))
    dtypes = ["bfloat16", *["float32"] * 3]
    loads = loads_of(replicated(MODEL_7B, dtypes, [processes] * len(MODEL_7B)), processes)
    assert loads.max() <= 1.01 * loads.mean()
    assert loads.min() >= 0.99 * loads.mean()


def tree_of_slices():
    """A tree on all devices, and how two processes would divide it."""
    rng = np.random.default_rng(0)
    masters = rng.standard_normal((6, 256, 512)).astype(np.float32)
    everywhere, halves = (NamedSharding(mesh(2, 4), PartitionSpec(*p)) for p in ((), ("x",)))
    tree = [
        jax.device_put(masters, everywhere),
        jax.device_put(masters.astype(ml_dtypes.bfloat16), everywhere),
        jax.device_put(masters[::-1].copy(), halves),
    ]
    flat = leaves.flatten(tree)
    boxes = []
    for shard in leaves.owned_shards(flat, 0):
        spec = flat.specs[shard.leaf]
        boxes.append(
            Replicated(
                box=shard,
                shape=spec.shape,
                dtype=spec.dtype,
                n_bytes=dtype_by_name(spec.dtype).element_bytes * shard.n_elements,
                holders=(0, 1),
            )
        )
    owned = list(divided(boxes, bytes_held(boxes)))
    assert len(owned) > len(boxes)
    return tree, flat, owned


@pytest.mark.parametrize("is_far", [False, True])
def test_of_a_piece_only_the_slices_are_taken(monkeypatch, is_far):
    monkeypatch.setattr(snapshot, "_spread", lambda s: (len(s.device_set) > 1, is_far))
    copied = []
    pin = snapshot.pinned_copies
    monkeypatch.setattr(snapshot, "pinned_copies", lambda a: copied.extend(a) or pin(a))
    tree, flat, owned = tree_of_slices()
    parts = [box for box, process in owned if process == 1]
    picks = Picks(flat, parts)
    words = picks.take(flat.values)
    for box, got in zip(parts, words, strict=True):
        at = tuple(slice(a, a + n) for a, n in zip(box.start, box.extent, strict=True))
        assert got.tobytes() == np.asarray(tree[box.leaf])[at].tobytes()
    n_bytes = [got.nbytes for got in words]
    assert picks.staged_bytes() == (n_bytes if is_far else [0] * len(parts))
    assert [array.nbytes for array in copied] == (n_bytes if is_far else [])
    pieces = [shard.data for array in tree for shard in array.addressable_shards]
    addresses = [(p.unsafe_buffer_pointer(), p.nbytes) for p in pieces]
    views = [any(a <= w.ctypes.data < a + n for a, n in addresses) for w in words]
    assert is_far or all(views)


def test_slices_of_two_processes_make_one_item_and_parameters_follow_from_masters(
    monkeypatch, tmp_path
):
    tree, flat, owned = tree_of_slices()
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    for process in range(2):
        boxes = [box for box, owner in owned if owner == process]
        boxes.sort(key=lambda box: (box.leaf, box.start))
        planned = Planned(flat, boxes, process, MIB)
        taken = Snapshot(planned.picks, flat.values, planned.windows(None))
        Prepared(planned, taken, Options(), None, Stopwatch(), was_known=False).write(tmp_path)
    commit.publish(tmp_path)
    with Item(tmp_path) as item:
        derived = [sum(d.n_elements for d in stripe.derived) for stripe in item.stripes]
        stored = [(tmp_path / stripe.path.name).stat().st_size for stripe in item.stripes]
    assert sum(derived) == tree[1].size
    assert min(stored) > 0.9 * max(stored)
    monkeypatch.undo()
    assert ogds.verify(tmp_path) == []
    assert_same_bits(ogds.restore(tmp_path, tree), tree)
    one = ogds.restore(tmp_path)
    for got, expected in zip(jax.tree.leaves(one), tree, strict=True):
        assert np.asarray(got).tobytes() == np.asarray(expected).tobytes()
