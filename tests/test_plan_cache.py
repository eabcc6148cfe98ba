"""A known structure is planned once, and what is stored is always the tree at hand."""

import functools
import gc
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from counting import calls_within
from hypothesis import given, settings
from hypothesis import strategies as st
from in_memory import assert_same_bits, mesh
from jax.sharding import NamedSharding, PartitionSpec
from tree_strategies import trees

import orbax_gds as ogds
from orbax_gds import _native, plan_cache, saving, sidecar, snapshot
from orbax_gds.errors import Unsupported
from orbax_gds.options import Options
from orbax_gds.plan_cache import PlanCache

SPREAD = NamedSharding(mesh(8), PartitionSpec("x"))
TURNED = NamedSharding(mesh(4, 2), PartitionSpec(("x", "y")))


def state(seed=0):
    rng = np.random.default_rng(seed)
    return {
        "w": jnp.asarray(rng.standard_normal((8, 40)), jnp.bfloat16),
        "b": [jnp.asarray(rng.standard_normal(16), jnp.float32) for _ in range(3)],
        "spread": jax.device_put(rng.standard_normal(16).astype(np.float32), SPREAD),
        "key": jax.random.key(seed),
        "host": rng.standard_normal(5),
        "step": seed,
        "big": 2**70 + seed,
        "name": f"run {seed}",
        "none": None,
        "empty": {"a": (), "b": []},
    }


def cache() -> PlanCache:
    return saving.make_cache(Options())


def save(plans, tree, path):
    """Save a tree with the plans of earlier saves; return whether its structure was known."""
    path.mkdir()
    prepared = saving.prepare(tree, cache=plans)
    prepared.write(path)
    saving.publish(path)
    return prepared.was_known


def test_the_second_save_of_a_structure_is_known_and_stores_the_second_values(tmp_path):
    plans = cache()
    for seed in range(3):
        tree = state(seed)
        assert save(plans, tree, tmp_path / str(seed)) == (seed > 0)
        assert_same_bits(ogds.restore(tmp_path / str(seed), tree), tree)


CHANGES = {
    "value": lambda t: t | {"w": t["w"] + 1},
    "added": lambda t: t | {"more": jnp.ones(3)},
    "removed": lambda t: {k: v for k, v in t.items() if k != "w"},
    "renamed": lambda t: {("v" if k == "w" else k): v for k, v in t.items()},
    "reshaped": lambda t: t | {"w": t["w"].reshape(40, 8)},
    "recast": lambda t: t | {"w": t["w"].astype(jnp.float16)},
    "recast of the same size": lambda t: t | {"b": [x.view(jnp.uint32) for x in t["b"]]},
    "resharded": lambda t: t | {"spread": jax.device_put(t["spread"], TURNED)},
    "gathered": lambda t: t | {"spread": jnp.asarray(np.asarray(t["spread"]))},
    "other memory": lambda t: t | {"w": np.asarray(t["w"])},
    "other key": lambda t: t | {"key": jax.random.key(5, impl="rbg")},
    "more keys": lambda t: t | {"key": jax.random.split(t["key"], 3)},
    "host shape": lambda t: t | {"host": t["host"][:3]},
    "host dtype": lambda t: t | {"host": t["host"].astype(np.float32)},
    "longer text": lambda t: t | {"name": "a much longer name"},
    "smaller number": lambda t: t | {"big": 1},
    "larger number": lambda t: t | {"step": 2**100},
    "number of another kind": lambda t: t | {"step": 1.5},
    "not None": lambda t: t | {"none": 1},
    "other empty node": lambda t: t | {"empty": {"a": [], "b": ()}},
    "tuple": lambda t: t | {"b": tuple(t["b"])},
}


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_whatever_changes_between_two_saves_the_stored_step_follows(tmp_path, change):
    plans = cache()
    tree = state()
    save(plans, tree, tmp_path / "0")
    changed = CHANGES[change](tree)
    assert save(plans, changed, tmp_path / "1") == (change == "value")
    assert_same_bits(ogds.restore(tmp_path / "1", changed), changed)
    assert save(plans, tree, tmp_path / "2")
    assert_same_bits(ogds.restore(tmp_path / "2", tree), tree)
    for step in "12":
        assert ogds.verify(tmp_path / step) == []


@pytest.mark.slow
@settings(max_examples=12)
@given(st.lists(trees(), min_size=1, max_size=3))
def test_trees_of_any_kind_come_back_from_a_warm_cache(tmp_path_factory, several):
    path = tmp_path_factory.mktemp("items")
    plans = cache()
    for step, tree in enumerate(several * 2):
        known = save(plans, tree, path / str(step))
        assert known or step < len(several)
        assert_same_bits(ogds.restore(path / str(step), tree), tree)


def test_a_cache_holds_no_values():
    plans = cache()
    tree = {"small": jnp.ones(8), "large": jnp.ones((300, 300)), "key": jax.random.key(0)}
    refs = [weakref.ref(leaf) for leaf in jax.tree.leaves(tree)]
    plans.plan(tree)
    plans.plan(tree)
    del tree
    gc.collect()
    assert [ref() for ref in refs] == [None] * 3


def test_the_oldest_structures_are_forgotten():
    plans = cache()
    assert [plans.plan([1] * n)[2] for n in (*range(9), 8, 1, 0)] == [False] * 9 + [
        True,
        True,
        False,
    ]


def spread(array, *axes):
    return jax.device_put(np.asarray(array), NamedSharding(mesh(8), PartitionSpec(*axes)))


KINDS = {
    "vectors": lambda i: jnp.full(8, i, jnp.bfloat16 if i % 4 > 1 else jnp.float32),
    "matrices": lambda i: jnp.full((2, 4), i, jnp.float32),
    "large": lambda i: jnp.full((128, 64), i, jnp.float32),
    "over devices": lambda i: spread(np.full((8, 2) if i % 2 else 16, i, np.float32), "x"),
    "over some devices": lambda i: jax.device_put(
        np.full((3, 4), i, np.float32),
        NamedSharding(mesh(2, 3) if i % 2 else mesh(3), PartitionSpec(None if i % 2 else "x")),
    ),
    "large over devices": lambda i: spread(np.full((8, 64, 65), i, np.float32), "x"),
    "replicated": lambda i: spread(np.full((2, 4) if i % 2 else 8, i, np.float32)),
    "keys": lambda i: jax.random.split(jax.random.key(i), 2) if i % 2 else jax.random.key(i),
    "host": lambda i: np.full((2, 4) if i % 2 else 8, i, np.float32),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_known_structure_calls_no_function_for_each_leaf(tmp_path, kind):
    calls = []
    for n in (10, 110):
        plans = cache()
        tree = {str(i): KINDS[kind](i) for i in range(n)}
        save(plans, tree, tmp_path / f"{n}")
        again = tmp_path / f"{n} again"
        calls.append(calls_within(functools.partial(save, plans, tree, again)))
        assert_same_bits(ogds.restore(again, tree), tree)
    assert calls[1] < calls[0] + 50


def test_an_array_that_was_donated_before_the_save_is_named():
    plans = cache()
    tree = {"a": jnp.ones(8), "b": jnp.ones(8)}
    plans.plan(tree)
    tree["b"].delete()
    with pytest.raises(Unsupported, match=r"'b' .*deleted or donated"):
        plans.plan(tree)


SMALL = ["vectors", "matrices", "over devices", "replicated", "keys"]


@pytest.mark.parametrize("kind", SMALL)
def test_an_array_that_is_donated_during_the_save_is_an_error(monkeypatch, kind):
    tree = {"a": KINDS[kind](0), "b": KINDS[kind](1)}
    gather = _native.gather

    def donates(*args):
        gather(*args)
        tree["b"].delete()

    monkeypatch.setattr(snapshot._native, "gather", donates)
    with pytest.raises(Unsupported, match=r"'b' was deleted or donated by another thread"):
        saving.prepare(tree)


@pytest.mark.parametrize("kind", [*SMALL, "large", "large over devices"])
def test_an_array_that_is_donated_before_its_words_are_taken_is_named(kind):
    tree = {"a": KINDS[kind](0), "b": KINDS[kind](1)}
    planned, values, _ = cache().plan(tree)
    tree["b"].delete()
    with pytest.raises(Unsupported, match=r"'b' was deleted or donated by another thread"):
        planned.picks.take(values)


class Odd:
    """A node whose auxiliary data cannot be compared."""

    def __init__(self, child, extra):
        self.child, self.extra = child, extra


jax.tree_util.register_pytree_node(
    Odd, lambda o: ((o.child,), o.extra), lambda extra, children: Odd(*children, extra)
)


def test_nodes_that_cannot_be_compared_are_planned_anew():
    plans = cache()
    for _ in range(2):
        planned, values, known = plans.plan([Odd(jnp.ones(3), np.arange(4))])
        assert not known
        assert len(planned.specs) == len(values) == 1


@pytest.mark.parametrize("key", [True, 1.0], ids=repr)
def test_a_key_that_only_equals_a_known_one_is_refused_as_ever(key):
    plans = cache()
    plans.plan({1: jnp.ones(3)})
    with pytest.raises(Unsupported, match="keys must be str or int"):
        plans.plan({key: jnp.ones(3)})


class Named:
    """Auxiliary data of which each equals any other."""

    def __init__(self, name):
        self.name = name

    def __eq__(self, other):
        return isinstance(other, Named)

    def __hash__(self):
        return 0

    def __repr__(self):
        if self.name is None:
            raise ValueError("no name")
        return f"Named({self.name})"


class Labelled:
    """A node whose child has the key that the auxiliary data say."""

    def __init__(self, child, named):
        self.child, self.named = child, named


jax.tree_util.register_pytree_with_keys(
    Labelled,
    lambda node: (((jax.tree_util.GetAttrKey(str(node.named.name)), node.child),), node.named),
    lambda named, children: Labelled(*children, named),
)


def test_nodes_with_data_that_only_look_equal_are_planned_anew():
    plans = cache()
    for name, was_known in (("a", False), ("b", False), ("a", True), (None, False), (None, False)):
        planned, _, known = plans.plan(Labelled(jnp.ones(3), Named(name)))
        assert known == was_known
        assert planned.specs[0].path == (("a", str(name)),)


class Turned:
    """A node that gives its children in another order where it gives their keys."""

    def __init__(self, a, b):
        self.a, self.b = a, b


jax.tree_util.register_pytree_with_keys(
    Turned,
    lambda t: (
        ((jax.tree_util.GetAttrKey("b"), t.b), (jax.tree_util.GetAttrKey("a"), t.a)),
        None,
    ),
    lambda _, children: Turned(*children),
    lambda t: ((t.a, t.b), None),
)


def test_nodes_that_jax_flattens_in_two_orders_are_planned_anew():
    plans = cache()
    for children in ((jnp.zeros(3), jnp.ones(3)), (np.zeros(3), np.ones(3)), (0, 1)) * 2:
        planned, values, known = plans.plan(Turned(*children))
        assert not known
        assert [spec.path[0][1] for spec in planned.specs] == ["b", "a"]
        assert [float(np.ravel(value)[0]) for value in values] == [1, 0]


def test_threads_share_a_cache(tmp_path):
    plans = cache()
    trees_ = [{f"{i}": jnp.full(5, i)} for i in range(4)]
    failed = []

    def work(seed):
        for step in range(20):
            tree = trees_[(seed + step) % 4]
            planned, values, _ = plans.plan(tree)
            (words,) = planned.picks.take(values)
            if words.tobytes() != np.asarray(next(iter(tree.values()))).tobytes():
                failed.append((seed, step))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_what_all_saves_of_a_structure_have_in_common_is_encoded_once(tmp_path, monkeypatch):
    encoded = []

    def count(owner, name):
        encode = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args: encoded.append(name) or encode(*args))

    for owner, name in ((plan_cache, "list_leaves"), (sidecar, "encode_tree")):
        count(owner, name)
    plans, items = cache(), [tmp_path / str(step) for step in range(3)]
    for seed, item in enumerate(items):
        save(plans, state(seed), item)
    assert sorted(encoded) == ["encode_tree", "list_leaves"]
    assert len({(item / sidecar.NAME).read_bytes() for item in items}) == 1
    planned, _, _ = plans.plan(state())
    assert planned.digest is planned.digest
