"""Derived shards: what is not stored comes back bit for bit, and nothing is assumed."""

import uuid

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from derived_items import (
    BF16,
    SHAPE,
    derived_of,
    flipped,
    master,
    rounded,
    specs_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from in_memory import mesh
from jax.sharding import NamedSharding, PartitionSpec
from trees import assert_same, files_of

import orbax_gds as ogds
from orbax_gds import _native
from orbax_gds.codecs import reference
from orbax_gds.derived import Rule
from orbax_gds.deriving import find_derived
from orbax_gds.dtypes import dtype_of, words_of
from orbax_gds.errors import Corrupt
from orbax_gds.item import Item
from orbax_gds.options import Options
from orbax_gds.plan import ShardBox, make_plan


def check(path, tree):
    """Every way to read gives the same bits."""
    assert_same(ogds.restore(path), tree)
    assert ogds.verify(path) == []
    read = reference.read_item(path)
    with ogds.open(path) as item:
        for name, array in tree.items():
            assert item[name][...].tobytes() == np.asarray(array).tobytes()
            assert read[("k", name),].tobytes() == np.asarray(array).tobytes()


def test_parameters_ties_averages_and_masters_are_stored_once(tmp_path):
    weights = master()
    tree = {
        "a_params": rounded(weights),
        "b_master": weights,
        "c_ema": weights.copy(),
        "d_tied": rounded(weights),
        "e_other": flipped(weights),
        "f_params_off_by_a_word": flipped(rounded(weights)),
        "g_copy_of_that": flipped(rounded(weights)),
        "h_reshaped": weights.reshape(220, 150),
        "i_int": np.arange(33_000).reshape(SHAPE),
        "j_int": np.arange(33_000).reshape(SHAPE),
    }
    report = ogds.save(tmp_path / "item", tree)
    assert derived_of(tmp_path / "item") == [
        ("a_params", "b_master", Rule.ROUND),
        ("c_ema", "b_master", Rule.COPY),
        ("d_tied", "b_master", Rule.ROUND),
        ("g_copy_of_that", "f_params_off_by_a_word", Rule.COPY),
        ("j_int", "i_int", Rule.COPY),
    ]
    names = ("a_params", "c_ema", "d_tied", "g_copy_of_that", "j_int")
    assert report.n_derived == 5
    assert report.bytes_derived == sum(tree[name].nbytes for name in names)
    assert report.bytes_in == sum(array.nbytes for array in tree.values())
    check(tmp_path / "item", tree)


def test_the_same_array_twice_is_stored_once(tmp_path):
    array = jax.device_put(master())
    report = ogds.save(tmp_path / "item", {"a": array, "b": array, "c": [array]})
    assert report.n_derived == 2
    assert_same(ogds.restore(tmp_path / "item"), {"a": array, "b": array, "c": [array]})


def test_without_derive_all_is_stored(tmp_path):
    tree = {"a": master(), "b": master()}
    for codec in ("auto", "off"):
        path = tmp_path / codec
        report = ogds.save(path, tree, options=Options(derive=False, codec=codec))
        assert report.n_derived == report.bytes_derived == 0
        assert "derive" not in report.seconds
        assert derived_of(path) == []
        check(path, tree)
    report = ogds.save(tmp_path / "raw", tree, options=Options(codec="off"))
    assert report.n_derived == 1
    check(tmp_path / "raw", tree)


def test_zeros_scalars_and_small_and_empty_leaves_come_back(tmp_path):
    tree = {
        **{name: np.zeros(SHAPE, np.float32) for name in ("mu", "nu")},
        **{name: np.zeros(SHAPE, ml_dtypes.bfloat16) for name in ("p", "q")},
        **{name: np.float32(1.5) for name in ("s", "t")},
        **{name: np.ones(300, np.float32) for name in ("small", "tiny")},
        **{name: np.zeros((0, 4), np.float32) for name in ("empty", "void")},
    }
    report = ogds.save(tmp_path / "item", tree)
    found = derived_of(tmp_path / "item")
    assert [leaf for leaf, _, _ in found] == ["nu", "p", "q"]
    assert {source for _, source, _ in found} == {"mu"}
    assert report.n_derived == 3
    assert_same(ogds.restore(tmp_path / "item"), tree)


KINDS = ("new", "copy", "rounded", "flipped copy", "flipped rounded", "as integers")


@given(
    kinds=st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 9)), min_size=1, max_size=7),
    shape=st.sampled_from([(), (1,), (700,), (3, 5, 50)]),
    n_threads=st.integers(1, 3),
)
def test_what_follows_is_derived_and_nothing_else(kinds, shape, n_threads):
    leaves = []
    for seed, (kind, which) in enumerate(kinds):
        floats = [leaf for leaf in leaves if leaf.dtype == np.float32]
        if kind == "new" or not floats:
            leaves.append(master(seed, shape))
            continue
        leaf = floats[which % len(floats)]
        if "rounded" in kind:
            leaf = rounded(leaf)
        elif kind == "as integers":
            leaf = leaf.view(np.uint32)
        leaves.append(flipped(leaf) if "flipped" in kind else leaf.copy())
    shards = found_among(leaves, n_threads)
    for number, leaf in enumerate(leaves):
        equal = [
            i
            for i, other in enumerate(leaves)
            if other.dtype == leaf.dtype and other.tobytes() == leaf.tobytes()
        ]
        rounds = leaf.dtype == BF16.numpy_dtype and any(
            other.dtype == np.float32 and rounded(other).tobytes() == leaf.tobytes()
            for other in leaves
        )
        assert (number in shards) == (rounds or equal[0] != number)
        if number in shards:
            assert shards[number].source not in shards


def test_few_sources_are_tried_for_each_shard(monkeypatch):
    """Of zeros but for the last word, which no sample sees, and all of them different."""
    leaves = [np.zeros(1000, np.float32) for _ in range(20)]
    leaves += [np.zeros(1000, ml_dtypes.bfloat16) for _ in range(20)]
    for number, leaf in enumerate(leaves):
        words_of(leaf)[-1] = 0x100 + number
    tried = []
    compare = _native.derives
    monkeypatch.setattr(_native, "derives", lambda *args: tried.append(1) or compare(*args))
    assert found_among(leaves, 1) == {}
    assert len(tried) <= 4 * len(leaves)


def found_among(leaves, n_threads):
    """Look for derived shards among whole leaves, none of them pooled."""
    boxes = [
        ShardBox(leaf=i, start=(0,) * leaf.ndim, extent=leaf.shape) for i, leaf in enumerate(leaves)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("orbax_gds.plan.POOL_BELOW_BYTES", 0)
        plan = make_plan(boxes, [dtype_of(leaf.dtype) for leaf in leaves], 4096)
    buffers = [leaf.reshape(-1).view(np.uint8) for leaf in leaves]
    found = find_derived(plan.shards, buffers, specs_of(leaves), n_threads)
    assert all(shard.leaf == number for number, shard in found.items())
    return found


def test_each_box_is_derived_for_itself_and_any_sharding_restores(tmp_path):
    grid = mesh(4, 2)
    rows = NamedSharding(grid, PartitionSpec("x", "y"))
    weights = master(1, (160, 440))
    params = rounded(weights)
    params[100, 300] = 7  # in one of the eight boxes
    tree = {"w": jax.device_put(weights, rows), "p": jax.device_put(params, rows)}
    report = ogds.save(tmp_path / "item", tree, options=Options(chunk_bytes="16KiB"))
    assert report.n_derived == 7
    assert derived_of(tmp_path / "item") == [("p", "w", Rule.ROUND)] * 7
    check(tmp_path / "item", tree)
    for spec in (PartitionSpec("y", "x"), PartitionSpec(None, "x")):
        target = {
            name: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=NamedSharding(grid, spec))
            for name, array in tree.items()
        }
        assert_same(ogds.restore(tmp_path / "item", target), tree)
    cast = {"w": ..., "p": jax.ShapeDtypeStruct(params.shape, jnp.float32)}
    got = ogds.restore(tmp_path / "item", cast)["p"]
    assert_same(np.asarray(got), params.astype(np.float32))


@given(data=st.data())
@settings(max_examples=12)
def test_any_box_of_a_derived_leaf_is_the_source_s_rounded(sharded_item, data):
    path, params = sharded_item
    low = tuple(data.draw(st.integers(0, n - 1)) for n in params.shape)
    rest = np.subtract(params.shape, low).tolist()
    extent = tuple(data.draw(st.integers(1, n)) for n in rest)
    region = tuple(slice(at, at + n) for at, n in zip(low, extent, strict=True))
    with Item(path) as item:
        leaf = next(i for i, leaf in enumerate(item.manifest.leaves) if leaf.dtype == "bfloat16")
        got = item.read_box(ShardBox(leaf=leaf, start=low, extent=extent))
    assert got.tobytes() == params[region].tobytes()


@pytest.fixture(scope="module")
def sharded_item(tmp_path_factory):
    sharding = NamedSharding(mesh(2, 4), PartitionSpec("x", None, "y"))
    weights = master(2, (8, 40, 440))
    tree = {"p": rounded(weights), "w": weights}
    path = tmp_path_factory.mktemp("sharded") / "item"
    options = Options(chunk_bytes=5000)
    report = ogds.save(path, jax.device_put(tree, sharding), options=options)
    assert report.n_derived == 8
    return path, tree["p"]


def test_a_derived_leaf_alone_reads_only_its_source_and_together_once(tmp_path):
    weights = master(3, (400, 1000))
    tree = {"p": rounded(weights), "v": master(4, (400, 1000)), "w": weights}
    ogds.save(tmp_path / "item", tree, options=Options(chunk_bytes="64KiB"))

    def bytes_of(*leaves):
        with Item(tmp_path / "item") as item:
            boxes = [ShardBox(leaf=i, start=(0, 0), extent=(400, 1000)) for i in leaves]
            buffers = [np.empty(tree["pvw"[i]].nbytes, np.uint8) for i in leaves]
            item.read(boxes, buffers)
            for i, buffer in zip(leaves, buffers, strict=True):
                assert buffer.tobytes() == tree["pvw"[i]].tobytes()
            return item.bytes_read

    whole = bytes_of(2)
    assert bytes_of(0) == bytes_of(0, 2) == bytes_of(2, 0) == bytes_of(0, 0) == whole
    assert bytes_of(0, 1) == bytes_of(0, 1, 2) > whole
    with Item(tmp_path / "item") as item:
        item.read_box(ShardBox(leaf=0, start=(30, 0), extent=(10, 5)))
        assert 0 < item.bytes_read < whole / 10


def test_bytes_do_not_depend_on_the_number_of_threads(tmp_path, monkeypatch):
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=5))
    tree = {f"{kind}{i}": array for i in range(3) for kind, array in make_state(i).items()}
    seen = []
    for workers in (1, 2, 3):
        path = tmp_path / str(workers)
        ogds.save(path, tree, options=Options(workers=workers))
        seen.append(files_of(path)["p00000.ogds"])
    assert len(set(seen)) == 1


def make_state(seed):
    weights = master(seed)
    return {"p": rounded(weights), "w": weights, "e": weights, "mu": np.zeros(SHAPE, np.float32)}


def test_damage_of_a_source_is_noticed_with_what_derives_from_it(tmp_path):
    weights = master()
    ogds.save(tmp_path / "item", {"p": rounded(weights), "w": weights})
    stripe = tmp_path / "item" / "p00000.ogds"
    data = bytearray(stripe.read_bytes())
    data[9000] ^= 1
    stripe.write_bytes(data)
    for leaves in (["p"], ["w"], None):
        with pytest.raises(Corrupt, match=r"of leaf 'p', 'w': .*CRC"):
            ogds.restore(tmp_path / "item", leaves=leaves)
    (problem,) = ogds.verify(tmp_path / "item")
    assert sorted(problem.leaves) == ["p", "w"]
    assert problem.chunk == 0
