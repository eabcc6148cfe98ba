"""Derived shards that the package would not write: read as the format says, or refused."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from derived_items import (
    BF16,
    COPY,
    FP32,
    ROUND,
    arrays_of,
    derived,
    master,
    read_leaves,
    rounded,
    write_item,
    write_manifest,
)
from hypothesis import given
from hypothesis import strategies as st

import orbax_gds as ogds
from orbax_gds import stripe as stripes
from orbax_gds.chunk_table import chunk_table
from orbax_gds.codecs import reference
from orbax_gds.codecs.reference import Shard
from orbax_gds.coverage import check_coverage
from orbax_gds.derived import DerivedShard, Rule, by_leaf, problems
from orbax_gds.dtypes import dtype_by_name, dtype_of, words_of
from orbax_gds.errors import Corrupt, OgdsError, Unsupported
from orbax_gds.item import Item
from orbax_gds.parts import parts_of
from orbax_gds.plan import ShardBox
from orbax_gds.read_plan import (
    Wanted,
    numbers_by_leaf,
    plan_reads,
    read_segments,
)


def whole(leaf, chunk, array, rows=None):
    """A stored shard of one chunk: all rows of an array, or a slice of them."""
    start = (rows.start if rows else 0, *[0] * (array.ndim - 1))
    extent = (rows.stop - rows.start if rows else array.shape[0], *array.shape[1:])
    return Shard(leaf=leaf, first_chunk=chunk, start=start, extent=extent, chunk_extent=extent)


def write(directory, leaves, shards):
    """Write an item by the reference; each stored shard is one chunk, in the order given."""
    frames = []
    for shard in shards:
        if not shard.rule:
            region = tuple(slice(s, s + n) for s, n in zip(shard.start, shard.extent, strict=True))
            words = words_of(np.ascontiguousarray(leaves[shard.leaf][region]))
            dtype = dtype_of(leaves[shard.leaf].dtype)
            frames.append(reference.encode_frame(words, dtype, chunk=len(frames)))
    entry = reference.write_stripe(directory, shards, frames, uuid=bytes(16))
    write_manifest(directory, leaves, entry)


def test_a_source_may_be_derived_elsewhere_but_not_in_the_box(tmp_path):
    base = np.arange(12, dtype=np.float32).reshape(6, 2)
    leaves = [base, base.copy(), base.copy()]
    top, bottom = slice(0, 3), slice(3, 6)
    shards = [
        whole(0, 0, base),
        dataclasses.replace(derived(1, 0, COPY, (3, 2)), start=(0, 0)),
        whole(1, 1, base, bottom),
        whole(2, 2, base, top),
        derived(2, 1, COPY, (3, 2), (3, 0)),
    ]
    write(tmp_path / ".", leaves, shards)
    for got, expected in zip(read_leaves(tmp_path), leaves, strict=True):
        assert got.tobytes() == expected.tobytes()
    assert ogds.verify(tmp_path) == []
    # Two of its rows reach into those that are derived themselves.
    shards[3] = whole(2, 2, base, slice(0, 2))
    shards[4] = derived(2, 1, COPY, (4, 2), (2, 0))
    write(tmp_path, leaves, shards)
    with pytest.raises(Corrupt, match="leaf '2' is derived from '1', which is itself derived"):
        read_leaves(tmp_path)
    (problem,) = ogds.verify(tmp_path)
    assert (problem.file, problem.leaves) == ("p00000.ogds", ("2",))


def test_a_source_in_any_cut_and_in_pools_is_found(tmp_path):
    source = master(5, (9, 7))
    leaf = rounded(source)
    cuts = [slice(0, 2), slice(2, 7), slice(7, 9)]
    shards = [whole(0, i, source, rows) for i, rows in enumerate(cuts)]
    shards[1] = dataclasses.replace(shards[1], pooled=True)
    shards += [derived(1, 0, ROUND, (4, 7)), derived(1, 0, ROUND, (5, 7), (4, 0))]
    write(tmp_path, [source, leaf], shards)
    assert [array.tobytes() for array in read_leaves(tmp_path)] == [
        source.tobytes(),
        leaf.tobytes(),
    ]
    with Item(tmp_path) as item:
        got = item.read_box(ShardBox(leaf=1, start=(1, 2), extent=(7, 3)))
        assert got.tobytes() == leaf[1:8, 2:5].tobytes()


@pytest.mark.parametrize(
    ("rule", "n", "chunk", "flags", "error"),
    [
        (3, 0, 0, 2, Unsupported),
        (0, 0, 0, 2, Unsupported),
        (1, 1, 0, 2, Corrupt),
        (1, 0, 4, 2, Corrupt),
        (1, 0, 0, 3, Corrupt),
        (1, 0, 0, 6, Corrupt),
    ],
)
def test_a_malformed_record_is_refused(rule, n, chunk, flags, error):
    shard = DerivedShard(leaf=0, start=(0,), extent=(4,), source=1, rule=Rule.COPY)
    layout = bytearray(stripes.encode_layout([shard]))
    assert stripes.decode_layout(bytes(layout), "here") == [shard]
    layout[16], layout[20], layout[24], layout[48] = n, flags, rule, chunk
    with pytest.raises(error, match="leaf 0"):
        stripes.decode_layout(bytes(layout), "here")


@pytest.mark.parametrize("feature", [[], ["derived"]])
def test_a_derived_shard_must_be_announced(tmp_path, feature):
    write_item(tmp_path, arrays_of(BF16, FP32), [1], [derived(0, 1, ROUND, (4,))], requires=feature)
    if feature:
        read_leaves(tmp_path)
        return
    with pytest.raises(Corrupt, match="`requires` does not name 'derived'"):
        read_leaves(tmp_path)
    (problem,) = ogds.verify(tmp_path)
    assert "`requires` does not name 'derived'" in problem.what


@pytest.fixture(scope="module")
def cut_up():
    """An item of two stripes: its manifest, and the layout and number of chunks of each."""
    with Item(Path(__file__).parent / "golden" / "items" / "derived") as item:
        layouts = [stripes.encode_layout((*s.shards, *s.derived)) for s in item.stripes]
        return item.manifest, layouts, [len(s.records) for s in item.stripes]


@given(data=st.data())
def test_any_layout_is_refused_or_gives_every_word_once(cut_up, data):
    manifest, layouts, n_chunks = cut_up
    layouts = [bytearray(layout) for layout in layouts]
    for _ in range(data.draw(st.integers(1, 3))):
        layout = data.draw(st.sampled_from(layouts))
        at = data.draw(st.integers(0, len(layout) - 1))
        layout[at] = data.draw(st.sampled_from([0, 1, 2, 3, 4, 10, 15, 40, 60, 255]))
    dtypes = [dtype_by_name(leaf.dtype or "") for leaf in manifest.leaves]
    try:
        parted = [stripes.parted(stripes.decode_layout(bytes(each), "here")) for each in layouts]
        for (stored, _), n in zip(parted, n_chunks, strict=True):
            chunk_table(stored, dtypes, n, "here")
        derived = [shard for _, own in parted for shard in own]
        for _, what in problems(manifest, [s for own, _ in parted for s in own], derived):
            raise Corrupt(what)
        for number, leaf in enumerate(manifest.leaves):
            boxes = [s for both in parted for own in both for s in own if s.leaf == number]
            check_coverage("leaf", leaf.shape or (), boxes)
    except OgdsError:
        return
    wants = [ShardBox(leaf=i, start=(1, 2), extent=(38, 57)) for i in range(len(dtypes))]
    parts = parts_of(wants, by_leaf(derived))
    counts = np.zeros((len(wants), 38 * 57), np.uint8)
    for (stored, _), n in zip(parted, n_chunks, strict=True):
        places = np.arange(n), np.ones(n, np.int64), np.ones(n, np.int64)
        numbers = numbers_by_leaf(stored)
        for read in plan_reads(stored, numbers, Wanted(parts), dtypes, *places):
            for want, at, _, n_words, _ in read_segments(read, stored, parts, dtypes)[0].tolist():
                first = at // dtypes[want].element_bytes
                counts[want, first : first + n_words] += 1
    assert (counts == 1).all()
