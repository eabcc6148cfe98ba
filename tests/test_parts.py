"""What a read is made of, and that looking it up costs no more than there is to find."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbax_gds import derived
from orbax_gds.derived import DerivedBoxes, DerivedShard, Rule, by_leaf, problems
from orbax_gds.manifest import FORMAT_VERSION, LeafSpec, Manifest
from orbax_gds.parts import parts_of
from orbax_gds.plan import ShardBox, StoredShard

N = 60


def rows(leaf, source, n_rows=1, first=0):
    """Derived shards that cut all rows from `first` of a leaf [N, 4]."""
    return [
        DerivedShard(leaf=leaf, start=(at, 0), extent=(n_rows, 4), source=source, rule=Rule.COPY)
        for at in range(first, N, n_rows)
    ]


def test_wants_that_are_derived_shards_are_looked_up_and_no_others_looked_at(monkeypatch):
    monkeypatch.setattr(DerivedBoxes, "meeting", None)
    shards = rows(1, 0)
    wants = [ShardBox(leaf=1, start=s.start, extent=s.extent) for s in reversed(shards)]
    parts = parts_of(wants, by_leaf(shards))
    assert [(part.want, part.leaf, part.start) for part in parts] == [
        (i, 0, want.start) for i, want in enumerate(wants)
    ]
    assert all(part.is_whole for part in parts)


@given(st.data())
def test_parts_hold_every_element_of_a_want_once(data):
    shape = (6, 5)
    cuts = data.draw(st.lists(st.integers(1, 5), max_size=3, unique=True).map(sorted))
    strips = [((low, 0), (high - low, 5)) for low, high in itertools.pairwise([0, *cuts, shape[0]])]
    is_derived = [data.draw(st.booleans()) for _ in strips]
    shards = [
        DerivedShard(leaf=2, start=start, extent=extent, source=i % 2, rule=Rule.COPY)
        for i, (start, extent) in enumerate(strips)
        if is_derived[i]
    ]
    stored = np.full(shape, True)
    for shard in shards:
        stored[shard.start[0] : shard.start[0] + shard.extent[0]] = False
    low = tuple(data.draw(st.integers(0, n)) for n in shape)
    extent = tuple(data.draw(st.integers(0, n - at)) for n, at in zip(shape, low, strict=True))
    held = np.zeros(shape, int)
    leaves = []
    for part in parts_of([ShardBox(leaf=2, start=low, extent=extent)], by_leaf(shards)):
        region = tuple(slice(a, a + n) for a, n in zip(part.start, part.extent, strict=True))
        held[region] += stored[region] if part.leaf == 2 else 1
        leaves.append(part.leaf)
    wanted = tuple(slice(a, a + n) for a, n in zip(low, extent, strict=True))
    assert (held[wanted] == 1).all()
    assert held.sum() == held[wanted].size
    assert (2 in leaves) == bool(stored[wanted].any())


def found(shards, stored=()):
    leaves = tuple(
        LeafSpec(path=(("i", i),), type="numpy.ndarray", dtype="int8", shape=(N, 4))
        for i in range(3)
    )
    manifest = Manifest(
        format=FORMAT_VERSION,
        requires=("derived",),
        writer="test",
        leaves=leaves,
        shardings=(),
        stripes=(),
        sidecars={},
        options={},
    )
    return list(problems(manifest, stored, shards))


def test_sources_that_are_stored_or_derived_in_the_same_box_are_not_searched_for(monkeypatch):
    monkeypatch.setattr(DerivedBoxes, "meeting", None)
    chains = [*rows(2, 1), *rows(1, 0)]
    assert [shard for shard, _ in found(chains)] == rows(2, 1)
    half = N // 2
    stored = [
        StoredShard(
            leaf=1,
            start=(at, 0),
            extent=(1, 4),
            chunk_extent=(1, 4),
            first_chunk=at,
            n_chunks=1,
            pooled=False,
            word_offset=0,
        )
        for at in range(half)
    ]
    assert found([*rows(2, 1)[:half], *rows(1, 0, first=half)], stored) == []


@pytest.mark.parametrize("most", [N // 2, N * N])
def test_the_search_for_a_chain_is_bounded_and_then_refuses(monkeypatch, most):
    looks = []
    meeting = DerivedBoxes.meeting
    monkeypatch.setattr(derived, "MAX_LOOKS", most)
    monkeypatch.setattr(
        DerivedBoxes, "meeting", lambda self, *box: looks.append(1) or meeting(self, *box)
    )
    chains = [*rows(2, 1, n_rows=2), *rows(1, 0, first=N // 2)]
    refused = found(chains)
    if most < N:
        assert len(looks) == 1
        assert "too long" in refused[-1][1]
    else:
        assert [shard.start[0] for shard, _ in refused] == list(range(N // 2, N, 2))
