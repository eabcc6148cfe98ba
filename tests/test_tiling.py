"""What several processes store is published only if it tiles every leaf."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbax_gds import manifest, stripe
from orbax_gds.coverage import check_coverage, untiled
from orbax_gds.derived import DerivedShard, Rule
from orbax_gds.dtypes import dtype_by_name
from orbax_gds.errors import CommitError, Corrupt
from orbax_gds.manifest import LeafSpec
from orbax_gds.plan import ShardBox, make_plan
from orbax_gds.tiling import check_tiling

shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)


@st.composite
def boxes_near(draw, leaf, shape):
    """Boxes in and around a leaf: the leaf itself, its halves, or any; perhaps of another rank."""
    whole = ShardBox(leaf=leaf, start=(0,) * len(shape), extent=shape)
    if draw(st.booleans()):
        return [] if 0 in shape else [whole]
    rank = draw(st.sampled_from([len(shape)] * 4 + [1]))
    places = st.tuples(*[st.integers(0, 3)] * rank)
    extents = st.tuples(*[st.integers(1, 4)] * rank)
    return draw(st.lists(st.builds(ShardBox, leaf=st.just(leaf), start=places, extent=extents)))


def by_rank(boxes):
    found = {}
    for rank in {len(box.extent) for box in boxes}:
        own = [box for box in boxes if len(box.extent) == rank]
        rows = [[getattr(box, name) for box in own] for name in ("start", "extent")]
        columns = (np.array(each, np.uint64).reshape(len(own), rank) for each in rows)
        found[rank] = (np.array([box.leaf for box in own], np.uint32), *columns)
    return found


@given(st.data())
def test_all_leaves_at_once_are_judged_as_each_by_itself(data):
    leaves = data.draw(st.lists(st.none() | shapes, max_size=6))
    boxes, expected = [], []
    for number, shape in enumerate(leaves):
        own = data.draw(boxes_near(number, shape or ()) if shape is not None else st.just([]))
        boxes += own
        try:
            if shape is not None:
                check_coverage("", shape, own)
        except Corrupt:
            expected.append(number)
    boxes = data.draw(st.permutations(boxes))
    assert untiled(leaves, by_rank(boxes)).tolist() == expected


def test_a_shard_of_no_leaf_or_of_one_without_words_is_found():
    box = ShardBox(leaf=0, start=(0,), extent=(2,))
    assert untiled([None], by_rank([box])).tolist() == [0]
    assert untiled([], by_rank([box])).tolist() == [0]
    assert untiled([(2,)], by_rank([box, ShardBox(leaf=7, start=(), extent=())])).tolist() == [7]


LISTED = (
    LeafSpec(path=(("k", "w"),), type="numpy.ndarray", dtype="uint8", shape=(2, 3)),
    LeafSpec(path=(("k", "none"),), type="None"),
    LeafSpec(path=(("k", "v"), ("i", 4)), type="numpy.ndarray", dtype="uint8", shape=(8,)),
)
LEAVES = msgspec.Raw(msgspec.json.encode(LISTED))
BY_KINDS = manifest._list_by_kinds(LISTED)
DTYPES = [dtype_by_name("uint8")] * 9
W = ShardBox(leaf=0, start=(0, 0), extent=(2, 3))
V = [ShardBox(leaf=2, start=(at,), extent=(4,)) for at in (0, 4)]
V_DERIVED = DerivedShard(leaf=2, start=(4,), extent=(4,), source=0, rule=Rule.COPY)


def check(*stored, by_kinds=False):
    """Check what processes store, each in a stripe of its own."""
    layouts = {}
    for process, shards in enumerate(stored):
        boxes = [shard for shard in shards if isinstance(shard, ShardBox)]
        plan = make_plan(boxes, DTYPES, 1 << 20)
        derived = [shard for shard in shards if not isinstance(shard, ShardBox)]
        layouts[stripe.file_name(process)] = stripe.encode_layout((*plan.shards, *derived))
    if by_kinds:
        check_tiling(Path("item"), BY_KINDS.leaves, layouts, BY_KINDS.kinds)
    else:
        check_tiling(Path("item"), LEAVES, layouts)


@pytest.mark.parametrize("by_kinds", [False, True])
def test_leaves_may_be_divided_in_any_way(by_kinds):
    check([W, *V], by_kinds=by_kinds)
    check([V[1]], [], [V[0], W], by_kinds=by_kinds)
    check([W, V_DERIVED], [V[0]], by_kinds=by_kinds)


@pytest.mark.parametrize(
    ("stored", "named"),
    [
        (
            ([W, V[0]], [V[0]]),
            r"'v/4' of 8 elements .*process 0 stores 4, process 1 stores 4\. 1 of",
        ),
        (([W, *V], [V_DERIVED]), r"'v/4' .*process 0 stores 8, process 1 stores 4"),
        (([V[0]], [], [V[1]]), r"'w' of 6 elements .*none of 3 stores any of it"),
        (
            ([W, *V], [ShardBox(leaf=1, start=(), extent=())]),
            r"'none' without .*process 1 stores 1",
        ),
        (([W, *V], [ShardBox(leaf=5, start=(), extent=())]), r"leaf 5, of which .* only 3"),
        ([[W], *[V] * 12], r"process 8 stores 8, …\. 1 of 3 leaves"),
    ],
)
def test_leaf_and_processes_are_named_where_they_are_not_divided_alike(stored, named):
    for by_kinds in (False, True):
        with pytest.raises(CommitError, match=named):
            check(*stored, by_kinds=by_kinds)


def test_a_kind_that_is_not_described_is_not_published():
    with pytest.raises(CommitError, match="cannot be published"):
        check_tiling(Path("item"), BY_KINDS.leaves, {}, msgspec.Raw(b"[]"))


def test_a_layout_that_none_writes_is_not_published():
    layout = bytearray(stripe.encode_layout(make_plan([W, *V], DTYPES, 1 << 20).shards))
    layout[8 + 12] = 0xF0  # flags of the first shard
    with pytest.raises(CommitError, match=r"p00000.*malformed"):
        check_tiling(Path("item"), LEAVES, {"p00000.ogds": bytes(layout)})
