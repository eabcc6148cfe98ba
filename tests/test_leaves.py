"""A tree taken apart and put together again is the same tree, bit for bit."""

import collections
import dataclasses
import enum
import math
import types
from typing import Any, NamedTuple

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from in_memory import (
    MEMORY_KINDS,
    assert_same_bits,
    bits,
    enable_x64,
    mesh,
    restored,
    round_trip,
    stored_arrays,
    words_at_64,
)
from jax.sharding import NamedSharding, PartitionSpec
from tree_strategies import HELD_BY_JAX, JAX_DTYPES, arrays, plain, trees

from orbax_gds import leaves
from orbax_gds.dtypes import DTYPES
from orbax_gds.errors import Corrupt, Unsupported
from orbax_gds.manifest import LeafSpec, ShardingSpec
from orbax_gds.snapshot import Picks


def paths(tree):
    return [spec.path for spec in leaves.flatten(tree).specs]


@given(trees())
def test_a_tree_comes_back_bit_for_bit_without_a_target(tree):
    got, expected = round_trip(tree), plain(tree)
    assert_same_bits(got, expected)


@given(trees())
def test_a_tree_comes_back_bit_for_bit_with_itself_as_target(tree):
    assert_same_bits(round_trip(tree, tree), tree)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_every_pattern_of_every_dtype_comes_back(dtype):
    if dtype.container_bytes * 8 == dtype.bits and dtype.bits > 16:
        rng = np.random.default_rng(dtype.id)
        words = rng.integers(0, 256, 4096 * dtype.element_bytes, np.uint8)
    else:
        n_patterns = 2 if dtype.name == "bool" else 2**dtype.bits
        words = np.arange(n_patterns).astype(dtype.word_dtype).view(np.uint8)
    array = dtype.elements(words, (-1,))
    assert_same_bits(round_trip([array]), [array])
    if dtype in HELD_BY_JAX:
        with enable_x64(True):
            on_device = jax.device_put(array)
            assert bits(on_device)[1:4] == bits(array)[1:4]
            assert_same_bits(round_trip([on_device]), [on_device])
            assert_same_bits(round_trip([on_device], [on_device]), [on_device])


@st.composite
def shardings(draw, shape):
    """Named shardings over meshes of up to 8 devices that divide the shape."""
    sizes = draw(st.sampled_from([(1,), (2,), (8,), (2, 2), (4, 2), (1, 3), (2, 2, 2)]))
    axis_type = draw(st.sampled_from([jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit]))
    over = mesh(*sizes, axis_types=(axis_type,) * len(sizes))
    axes = list(draw(st.permutations(over.axis_names)))
    parts: list[Any] = []
    for length in shape:
        names = []
        while axes and draw(st.booleans()):
            names.append(axes.pop())
        divides = length % math.prod(over.shape[name] for name in names) == 0
        parts.append(tuple(names) if names and divides else None)
    kind = draw(st.sampled_from(MEMORY_KINDS))
    return NamedSharding(over, PartitionSpec(*parts), memory_kind=kind)


@pytest.mark.slow
@given(st.data())
@settings(max_examples=15)
def test_bits_are_the_same_for_any_sharding_of_save_and_restore(data):
    shape = data.draw(st.sampled_from([(8,), (8, 4), (2, 8, 4), (24, 3)]))
    array = data.draw(arrays([d for d in JAX_DTYPES if d.container_bytes < 3], [shape]))
    saved, asked = data.draw(shardings(shape)), data.draw(shardings(shape))
    tree = [jax.device_put(array, saved)]
    assert_same_bits(round_trip(tree), tree)
    other = [jax.device_put(array, asked)]
    assert_same_bits(round_trip(tree, other), other)


@given(st.data())
@settings(max_examples=15)
def test_shards_hold_every_element_once(data):
    shape = (8, 24)
    array = jax.device_put(np.zeros(shape, np.int8), data.draw(shardings(shape)))
    held = np.zeros(shape, int)
    for shard in leaves.owned_shards(leaves.flatten([array]), 0):
        held[tuple(map(slice, shard.start, np.add(shard.start, shard.extent)))] += 1
    assert (held == 1).all()


@dataclasses.dataclass(frozen=True)
class Processor:
    id: int
    process_index: int


class Machines:
    """Stands for a sharding over several processes, which one process cannot make."""

    def __init__(self, boxes):
        self.boxes = boxes

    def devices_indices_map(self, _):
        held = [(box, process) for *box, processes in self.boxes for process in processes]
        return {
            Processor(number, process): (slice(start, start + length),)
            for number, ((start, length), process) in enumerate(held)
        }


def flat_of(specs, values) -> leaves.Flat:
    """A tree of arrays of shardings that nobody can describe."""
    numbering = leaves.Shardings()
    numbering.specs += [ShardingSpec(type="other")] * len(specs)
    return leaves.Flat(specs=specs, numbering=numbering, values=values)


@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(1, 50), st.frozensets(st.integers(0, 3), min_size=1)),
            min_size=1,
            max_size=3,
        ),
        max_size=6,
    )
)
@settings(max_examples=15)
def test_each_box_has_one_owner_among_those_that_hold_it(layouts):
    specs, values, expected = [], [], collections.Counter()
    for leaf, boxes in enumerate(layouts):
        placed, start = [], 0
        for length, processes in boxes:
            placed.append((start, length, processes))
            expected[leaf, start, length] += 1
            start += length
        specs.append(
            LeafSpec(
                path=(("i", leaf),), type="jax.Array", dtype="int8", shape=(start,), sharding=leaf
            )
        )
        values.append(types.SimpleNamespace(sharding=Machines(placed)))
    flat = flat_of(specs, values)
    found = collections.Counter()
    for process in range(4):
        for shard in leaves.owned_shards(flat, process):
            found[shard.leaf, *shard.start, *shard.extent] += 1
            (holders,) = (p for s, _, p in values[shard.leaf].sharding.boxes if (s,) == shard.start)
            assert process in holders
    assert found == expected


def test_replicas_are_shared_evenly_by_bytes():
    n = 64
    everywhere = [(0, 4096, range(4))], [(0, 16, range(4))]
    specs = [
        LeafSpec(
            path=(("i", i),), type="jax.Array", dtype="int8", shape=((4096, 16)[i % 2],), sharding=0
        )
        for i in range(n)
    ]
    values = [types.SimpleNamespace(sharding=Machines(everywhere[i % 2])) for i in range(n)]
    flat = flat_of(specs, values)
    loads = [sum(s.n_elements for s in leaves.owned_shards(flat, process)) for process in range(4)]
    assert max(loads) - min(loads) <= 4096


# In elements; with masters and two moments the embedding is a fifth of the bytes.
TRANSFORMER = (*(16, 16, 64, 64) * 6, 256, 1)


@pytest.mark.parametrize("n_processes", [2, 4, 8])
@pytest.mark.parametrize(
    "order",
    [("master", "mu", "nu", "params"), ("mu", "nu", "params", "master"), ("params", "nu", "ema")],
)
def test_parameters_are_stored_where_their_masters_are(n_processes, order):
    specs = [
        LeafSpec(
            path=(("k", kind), ("i", i)),
            type="jax.Array",
            dtype="bfloat16" if kind == "params" else "float32",
            shape=(n * 4096,),
            sharding=0,
        )
        for kind in order
        for i, n in enumerate(TRANSFORMER)
    ]
    processes = range(n_processes)
    values = [
        types.SimpleNamespace(sharding=Machines([(0, *spec.shape, processes)])) for spec in specs
    ]
    flat = flat_of(specs, values)
    owners = [np.full(spec.shape, -1, np.int8) for spec in specs]
    loads = np.zeros(n_processes)
    for process in processes:
        for shard in leaves.owned_shards(flat, process):
            (start,), (length,) = shard.start, shard.extent
            assert (owners[shard.leaf][start : start + length] == -1).all()
            owners[shard.leaf][start : start + length] = process
            is_half = specs[shard.leaf].dtype == "bfloat16"
            loads[process] += length * (2 if is_half else 4)
    source = "ema" if "ema" in order else "master"
    at = {kind: order.index(kind) * len(TRANSFORMER) for kind in ("params", source)}
    for i in range(len(TRANSFORMER)):
        np.testing.assert_array_equal(owners[at["params"] + i], owners[at[source] + i])
    assert min(map(np.min, owners)) == 0
    assert n_processes < 8 or any(each.min() < each.max() for each in owners)  # one is cut
    assert loads.max() <= 1.25 * loads.mean()


def test_leaves_in_host_memory_belong_to_process_0():
    flat = leaves.flatten({"a": np.ones(3), "b": 1, "c": "text"})
    assert [shard.leaf for shard in leaves.owned_shards(flat, 0)] == [0, 1, 2]
    assert leaves.owned_shards(flat, 1) == []


def test_keys_keep_their_kind():
    class Point(NamedTuple):
        x: Any

    @jax.tree_util.register_pytree_node_class
    class Bare:
        def tree_flatten(self):
            return (1, 2), None

        @classmethod
        def tree_unflatten(cls, *_):
            return cls()

    tree = collections.OrderedDict(
        [("1", [1]), (1, (2,)), ("p", Point(3)), ("b", Bare()), ("f", flax.core.freeze({"a": 4}))]
    )
    assert paths(tree) == [
        (("k", "1"), ("i", 0)),
        (("k", 1), ("i", 0)),
        (("k", "p"), ("a", "x")),
        (("k", "b"), ("n", 0)),
        (("k", "b"), ("n", 1)),
        (("k", "f"), ("k", "a")),
    ]
    assert paths(5) == [()]


def test_keys_may_be_anything_and_stay_apart():
    tree = {"a": {"b": 1, "": 2}, "a.b": 3, "a/b": 4, "..": 5, "x" * 300: 6, "é\0\u2028": 7, "": 8}
    assert_same_bits(round_trip(tree), tree)
    assert len(set(paths(tree))) == 8


def test_subclasses_of_text_and_integer_are_plain_keys():
    class Colour(enum.StrEnum):
        RED = "red"

    assert paths({Colour.RED: 1}) == [(("k", "red"),)]
    assert paths({np.int64(3): 1}) == [(("k", 3),)]


def test_empty_nodes_and_none_keep_their_places():
    tree = {"a": None, "b": {}, "c": (), "d": [], "e": optax.EmptyState(), "f": [None, {}]}
    flat = leaves.flatten(tree)
    assert [s.type for s in flat.specs] == [
        *("None", "dict", "tuple", "list", "node"),
        *("None", "dict"),
    ]
    assert leaves.owned_shards(flat, 0) == []
    assert round_trip(tree) == tree | {"e": None}
    for alone in ({}, [], (), None):
        assert round_trip(alone) == alone


@pytest.mark.slow
def test_states_of_flax_and_optax_come_back():
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0, dropout=jax.random.key(1, impl="rbg")))
    params = {"w": jnp.ones((2, 3)), "b": jnp.zeros(3)}
    masked = optax.masked(optax.adam(1e-3), {"w": True, "b": False})
    tree = {
        "nnx": nnx.state(model),
        "split": nnx.split(model, nnx.Param, ...)[1:],
        "optax": optax.chain(optax.clip(1.0), masked).init(params),
        "frozen": flax.core.freeze(params),
        "default": collections.defaultdict(list, a=jnp.ones(1)),
    }
    assert_same_bits(round_trip(tree, tree), tree)
    bare = round_trip(tree)
    moments = bare["optax"][1]["inner_state"][0]["mu"]
    assert moments["b"] is None  # what optax masks is a node without leaves
    np.testing.assert_array_equal(moments["w"], params["w"] * 0)
    assert bits(bare["nnx"]["kernel"]["value"]) == bits(model.kernel[...])


@pytest.mark.slow
def test_sharded_and_batched_prng_keys_come_back():
    over = NamedSharding(mesh(4, 2), PartitionSpec("x"))
    keys = jax.random.split(jax.random.key(0, impl="rbg"), 8)
    tree = {"one": jax.random.key(7), "many": keys, "spread": jax.device_put(keys, over)}
    assert_same_bits(round_trip(tree), tree)
    assert_same_bits(round_trip(tree, tree), tree)
    assert leaves.flatten(tree).specs[0].prng == "rbg"


@pytest.mark.parametrize("value", [2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**127, -(2**127), 0])
def test_integers_of_any_size_come_back_shortest(value):
    assert round_trip(value) == value
    (spec,) = leaves.flatten(value).specs
    if spec.shape:
        (n_bytes,) = spec.shape
        with pytest.raises(OverflowError):
            value.to_bytes(n_bytes - 1, "little", signed=True)


REFUSED = {
    "function": (len, "callable"),
    "described": (jax.ShapeDtypeStruct((2,), jnp.float32), "no values"),
    "objects": (np.array([{}]), "dtype object"),
    "dates": (np.zeros(2, "datetime64[s]"), "datetime64"),
    "fields": (np.zeros(2, [("a", "i4")]), "cannot be stored"),
    "texts": (np.array(["a"]), "cannot be stored"),
    "long": (np.zeros(2, np.longdouble), "cannot be stored"),
    "masked": (np.ma.masked_array([1, 2], [True, False]), "mask"),
    "set": ({1, 2}, "of type builtins.set"),
    "surrogate": ("\ud800", "surrogate"),
    "mutable": (bytearray(b"x"), "of type builtins.bytearray"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_leaf_that_cannot_be_stored_is_refused_by_name(name):
    value, reason = REFUSED[name]
    with pytest.raises(Unsupported, match=rf"'deep/{name}' .*{reason}"):
        leaves.flatten({"deep": {name: value}, "fine": 1})


def test_every_refused_leaf_is_named_at_once():
    with pytest.raises(Unsupported, match=r"(?s)^2 of 3 leaves .*'a' .*'c/0' "):
        leaves.flatten({"a": len, "b": 1, "c": [{1}]})


@pytest.mark.parametrize("key", [True, 1.5, None, (1, 2), b"x", 2**63, "\ud800"])
def test_a_key_that_cannot_be_stored_is_refused(key):
    with pytest.raises(Unsupported, match="has the key"):
        leaves.flatten({key: 1})


def test_keys_that_jax_cannot_sort_are_refused():
    with pytest.raises(Unsupported, match="of one type"):
        leaves.flatten({"a": 1, 2: 3})


def test_two_leaves_of_one_path_are_refused():
    @jax.tree_util.register_pytree_with_keys_class
    class Twins:
        def tree_flatten_with_keys(self):
            return [(jax.tree_util.GetAttrKey("x"), 1), (jax.tree_util.GetAttrKey("x"), 2)], None

        @classmethod
        def tree_unflatten(cls, *_):
            return cls()

    with pytest.raises(Unsupported, match=r"'x' is the path of two leaves"):
        leaves.flatten(Twins())


def test_a_donated_array_and_a_tracer_are_refused():
    array = jnp.ones(3)
    array.delete()
    with pytest.raises(Unsupported, match=r"'a' .*deleted or donated"):
        leaves.flatten({"a": array})
    with pytest.raises(Unsupported, match=r"'a' .*tracer"):
        jax.jit(lambda a: leaves.flatten({"a": a}) and a)(1.0)


def test_unreduced_partial_sums_are_refused():
    over = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
    partial = NamedSharding(over, PartitionSpec(None, unreduced={"x"}))
    with pytest.raises(Unsupported, match="unreduced"):
        leaves.sharding_spec(partial)
    shardings = leaves.Shardings()
    for _ in range(2):  # every leaf of that sharding is refused, not the first alone
        with pytest.raises(Unsupported, match="unreduced"):
            shardings.number(partial)


def test_host_local_arrays_of_several_processes_are_refused_by_name(monkeypatch):
    tree = {"a": jnp.ones(3), "b": [jnp.zeros(3)], "key": jax.random.key(0), "n": np.ones(3)}
    leaves.flatten(tree)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(Unsupported, match=r"(?s)^3 of 4 .*'a' is a host-local .*'b/0' .*'key' "):
        leaves.flatten(tree)
    assert [spec.type for spec in leaves.flatten([tree["n"], 3]).specs] == ["numpy.ndarray", "int"]


def test_an_array_over_several_processes_is_not_host_local(monkeypatch):
    spread = jax.device_put(np.ones(8), NamedSharding(mesh(8), PartitionSpec("x")))
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(NamedSharding, "is_fully_addressable", False)
    assert leaves.flatten([spread]).specs[0].sharding == 0


def test_a_path_through_a_leaf_is_corrupt():
    specs = [
        LeafSpec(path=(("k", "a"),), type="int", dtype="int64", shape=()),
        LeafSpec(path=(("k", "a"), ("k", "b")), type="int", dtype="int64", shape=()),
    ]
    for order in (specs, specs[::-1]):
        with pytest.raises(Corrupt, match="'a"):
            leaves.unflatten(order, [1, 2])
    with pytest.raises(Corrupt, match="'mystery'"):
        leaves.unflatten([LeafSpec(path=(), type="mystery")], [None])


def test_part_of_a_sequence_comes_back_with_its_numbers():
    spec = LeafSpec(path=(("k", "layers"), ("i", 3)), type="int", dtype="int64", shape=())
    assert leaves.unflatten([spec], [5]) == {"layers": {3: 5}}


def test_restored_arrays_alias_the_words_and_can_be_donated():
    spread = NamedSharding(mesh(4, 2), PartitionSpec("x"))
    tree = [jnp.arange(4096.0), jax.device_put(np.arange(4096, dtype=np.int32), spread)]
    flat = leaves.flatten(tree)
    wants = [leaves.want(i, spec, flat.shardings, None) for i, spec in enumerate(flat.specs)]
    shards = leaves.owned_shards(flat, 0)
    arrays = stored_arrays(flat, shards, Picks(flat, shards).take(flat.values))
    words = [[words_at_64(arrays[w.leaf][s[0] : s[0] + e[0]]) for s, e in w.boxes] for w in wants]
    one, many = leaves.assemble(wants, words)
    assert one.unsafe_buffer_pointer() == words[0][0].ctypes.data
    at = {shard.index[0].start: shard.data for shard in many.addressable_shards}
    for (start, _), buffer in zip(wants[1].boxes, words[1], strict=True):
        assert at[start[0]].unsafe_buffer_pointer() == buffer.ctypes.data
    addresses = [w.ctypes.data for w in words[1]]
    assert len(set(addresses)) == 4
    del words
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    for got, value in zip((one, many), tree, strict=True):
        result = step(got)  # a donation that is not usable warns, and warnings are errors here
        assert got.is_deleted()
        np.testing.assert_array_equal(result, np.asarray(value) + 1)


def test_donating_one_replica_leaves_the_others_as_they_were():
    everywhere = NamedSharding(mesh(8), PartitionSpec())
    tree = [jax.device_put(np.arange(1024, dtype=np.float32), everywhere)]
    (got,) = round_trip(tree, tree)
    replicas = [shard.data for shard in got.addressable_shards]
    step = jax.jit(lambda x: x * 0 - 1, donate_argnums=0)
    step(replicas[0]).block_until_ready()
    for replica in replicas[1:]:
        np.testing.assert_array_equal(replica, np.arange(1024))
    again = round_trip(tree, tree)[0]
    np.testing.assert_array_equal(step(again), np.full(1024, -1))


def test_all_arrays_are_put_on_devices_at_once(monkeypatch):
    put, calls = jax.device_put, []
    spread = NamedSharding(mesh(8), PartitionSpec("x"))
    tree = {"a": jnp.ones(3), "b": put(np.ones(8), spread), "c": [jnp.zeros(0)] * 50}
    monkeypatch.setattr(jax, "device_put", lambda *a, **k: calls.append(1) or put(*a, **k))
    assert_same_bits(round_trip(tree), tree)
    assert len(calls) == 1


def test_a_text_that_is_not_utf_8_is_corrupt():
    flat = leaves.flatten({"text": "a", "raw": b"b"})
    with pytest.raises(Corrupt, match="'text' is no UTF-8"):
        restored(flat, {0: np.array([98], np.uint8), 1: np.array([255], np.uint8)})


def test_a_shape_that_no_reader_takes_is_refused_when_it_is_saved():
    tree = {"a": np.ones(3), "b": np.zeros((2**60, 0), np.uint8)}
    with pytest.raises(Unsupported, match=r"'b' has the shape"):
        leaves.flatten(tree)
