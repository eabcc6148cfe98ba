"""A job that starts again: its first save finds the plan of what was restored, and no other."""

import functools
import gc
import subprocess
import sys
import threading
import types
import weakref

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import orbax.checkpoint as ocp
import pytest
from counting import calls_within
from hypothesis import given, settings
from in_memory import assert_same_bits, mesh
from jax.sharding import NamedSharding, PartitionSpec
from tree_strategies import trees

import orbax_gds as ogds
from orbax_gds import plan_cache, saving, stripe_writer
from orbax_gds.args import GdsRestore, GdsSave
from orbax_gds.handler import GdsCheckpointHandler
from orbax_gds.options import Options
from orbax_gds.plan_cache import PlanCache

pytestmark = pytest.mark.slow

SPREAD = NamedSharding(mesh(8), PartitionSpec("x"))


def many(n=40):
    return {f"{i:04}": jnp.full(8, i, jnp.bfloat16 if i % 2 else jnp.float32) for i in range(n)}


def state():
    return {
        **many(),
        "spread": jax.device_put(np.arange(16, dtype=np.float32), SPREAD),
        "matrix": jnp.ones((20, 30)),
        "key": jax.random.key(3),
        "host": np.arange(5),
        "step": 3,
        "name": "run",
        "none": None,
        "empty": {"a": (), "b": []},
    }


def described(leaf):
    if not isinstance(leaf, jax.Array):
        return leaf
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)


def known_of_first_save(tmp_path, caplog, restored, changed=lambda tree: tree):
    """Restore by one manager, then save by it; return whether that save knew its plan."""
    tree = state()
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        manager.save(0, args=GdsSave(tree))
    caplog.clear()
    with ocp.CheckpointManager(tmp_path / "run") as manager, caplog.at_level("INFO", "orbax_gds"):
        tree = changed(manager.restore(0, args=restored(tree)))
        manager.save(1, args=GdsSave(tree))
        manager.wait_until_finished()
        assert_same_bits(manager.restore(1, args=GdsRestore(tree)), tree)
    (line,) = [r.getMessage() for r in caplog.records if "plan " in r.getMessage()]
    return "plan known" in line


@pytest.mark.parametrize(
    "restored",
    [
        GdsRestore,
        lambda tree: None,
        lambda tree: GdsRestore(jax.tree.map(described, tree)),
    ],
    ids=["as the tree", "as saved", "as described"],
)
def test_the_first_save_after_a_restore_knows_its_plan(tmp_path, caplog, restored):
    assert known_of_first_save(tmp_path, caplog, restored)


CHANGES = {
    "value": lambda t: t | {"matrix": t["matrix"] + 1, "step": 4},
    "added": lambda t: t | {"more": jnp.ones(3)},
    "removed": lambda t: {k: v for k, v in t.items() if k != "matrix"},
    "reshaped": lambda t: t | {"matrix": t["matrix"].T},
    "recast": lambda t: t | {"matrix": t["matrix"].astype(jnp.float16)},
    "gathered": lambda t: t | {"spread": jnp.asarray(np.asarray(t["spread"]))},
    "other memory": lambda t: t | {"matrix": np.asarray(t["matrix"])},
    "longer text": lambda t: t | {"name": "a longer name"},
    "other empty node": lambda t: t | {"empty": {"a": [], "b": ()}},
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_between_restore_and_save_is_stored(tmp_path, caplog, change):
    known = known_of_first_save(tmp_path, caplog, GdsRestore, CHANGES[change])
    assert known == (change == "value")


def test_the_first_save_after_a_restore_calls_no_function_for_each_leaf(tmp_path):
    calls = []
    for n in (50, 500):
        tree, path = many(n), tmp_path / str(n)
        ogds.save(path, tree)
        handler = GdsCheckpointHandler()
        restored = handler.restore(path, GdsRestore(tree))
        handler._plans.await_expected()
        wait_for_threads()
        again = tmp_path / f"{n} again"
        calls.append(calls_within(functools.partial(handler.save, again, GdsSave(restored))))
        assert_same_bits(ogds.restore(again, tree), tree)
    assert calls[1] < calls[0] + 50


def wait_for_threads():
    for thread in threading.enumerate():
        if thread.name == "orbax_gds_plan":
            thread.join()


def same(one, other):
    """Whether all that two objects hold is equal."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return same(list(one.items()), list(other.items()))
    if isinstance(one, types.FunctionType) or type(one).__module__ == "operator":
        return True  # made of what lies beside it
    if isinstance(one, msgspec.Struct) or not hasattr(one, "__dict__"):
        return one == other
    return same(vars(one), vars(other))


def test_plans_that_differ_are_seen_to():
    one, other = (plan_of(many(n)) for n in (4, 5))
    assert same(one, plan_of(many(4)))
    assert not same(one, other)
    assert not same(one, plan_of({k: v.reshape(2, 4) for k, v in many(4).items()}))


def plan_of(tree):
    return saving.make_cache(Options()).plan(tree)[0]


@settings(max_examples=8)
@given(trees())
def test_a_plan_seeded_by_a_restore_is_that_of_planning_anew(tmp_path_factory, tree):
    path = tmp_path_factory.mktemp("items")
    ogds.save(path / "0", tree)
    handler = GdsCheckpointHandler()
    restored = handler.restore(path / "0", GdsRestore(tree))
    seeded, _, known = handler._plans.plan(restored)
    assert known
    wait_for_threads()
    fresh = plan_of(restored)
    fresh.encode()
    assert same(seeded, fresh)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stripe_writer.uuid, "uuid4", lambda: types.SimpleNamespace(bytes=bytes(16)))
        handler.save(path / "seeded", GdsSave(restored))
        ogds.save(path / "fresh", restored)
    for name in ("manifest.json", "_METADATA", "p00000.ogds"):
        assert (path / "seeded" / name).read_bytes() == (path / "fresh" / name).read_bytes()


def test_a_tree_that_cannot_be_saved_or_is_donated_meanwhile_is_not_expected():
    plans = saving.make_cache(Options())
    donated = jnp.ones(3)
    donated.delete()
    for tree in ([...], [donated], [jnp.sin]):
        plans.expect(tree)
        plans.await_expected()
    assert plans._known == []
    assert not plans.plan([jnp.ones(3)])[2]


def test_without_a_thread_for_it_a_plan_is_not_expected(monkeypatch):
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    plans = PlanCache(1 << 20, 0)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        plans.expect(many())
    assert all(done.is_set() for done, _ in plans._expected)  # or else every save waits for ever
    assert not plans.plan(many())[2]


def test_after_a_fork_a_plan_is_not_awaited_whose_thread_the_parent_has(monkeypatch):
    may_end = threading.Event()
    flatten = plan_cache.leaves.flatten
    monkeypatch.setattr(plan_cache.leaves, "flatten", lambda tree: may_end.wait() and flatten(tree))
    plans = PlanCache(1 << 20, 0)
    plans.expect(many())
    with monkeypatch.context() as child:
        child.setattr(plan_cache.os, "getpid", lambda: -1)
        awaiting = threading.Thread(target=plans.await_expected, daemon=True)
        awaiting.start()
        awaiting.join(5)
        has_waited = awaiting.is_alive()
    may_end.set()
    wait_for_threads()
    assert not has_waited


class Failing:
    """A node that cannot be taken apart."""


def fail(node):
    raise KeyError("the name of a node")


jax.tree_util.register_pytree_node(Failing, fail, lambda _, children: Failing())


def test_an_error_of_a_users_node_ends_no_thread_and_is_logged(monkeypatch, caplog):
    seen = []
    monkeypatch.setattr(threading, "excepthook", seen.append)
    plans = PlanCache(1 << 20, 0)
    with caplog.at_level("DEBUG", "orbax_gds"):
        plans.expect([Failing()])
        plans.await_expected()
        wait_for_threads()
    assert seen == []
    assert "KeyError" in caplog.text


def test_an_expected_tree_is_let_go():
    plans = saving.make_cache(Options())
    tree = many()
    refs = [weakref.ref(leaf) for leaf in jax.tree.leaves(tree)]
    plans.expect(tree)
    wait_for_threads()
    del tree
    gc.collect()
    assert {ref() for ref in refs} == {None}


def test_a_save_waits_for_the_plan_of_what_was_restored(monkeypatch):
    begun, may_end = threading.Event(), threading.Event()
    flatten = plan_cache.leaves.flatten

    def slow(tree):
        begun.set()
        may_end.wait()
        return flatten(tree)

    monkeypatch.setattr(plan_cache.leaves, "flatten", slow)
    plans = PlanCache(1 << 20, 0)
    plans.expect(many())
    begun.wait()
    known = []
    saves = threading.Thread(target=lambda: known.append(plans.plan(many())[2]))
    saves.start()
    assert known == []
    may_end.set()
    saves.join()
    assert known == [True]


def test_what_is_restored_only_in_part_is_not_expected(tmp_path):
    ogds.save(tmp_path / "item", many())
    handler = GdsCheckpointHandler()
    handler.restore(tmp_path / "item", GdsRestore(leaves=["0001"]))
    assert handler._plans is None


RESTARTED = """
import logging, sys
import orbax.checkpoint as ocp
import orbax_gds.args

logging.basicConfig(level="INFO", format="%(message)s", stream=sys.stdout, force=True)
with ocp.CheckpointManager(sys.argv[1]) as manager:
    tree = manager.restore(0, args=orbax_gds.args.GdsRestore())
    manager.save(1, args=orbax_gds.args.GdsSave(tree))
"""


def test_a_process_that_starts_again_knows_its_plan(tmp_path):
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        manager.save(0, args=GdsSave(many()))
    arguments = [sys.executable, "-c", RESTARTED, str(tmp_path / "run")]
    done = subprocess.run(arguments, check=True, capture_output=True, text=True)
    assert "plan known" in done.stdout
    tree = many()
    assert_same_bits(ogds.restore(tmp_path / "run" / "1" / "default", tree), tree)
