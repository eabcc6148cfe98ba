"""Copies of a tree come to host memory in windows that keep a bound, and all is saved."""

import gc
import threading
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from in_memory import assert_same_bits, mesh
from jax.sharding import NamedSharding, PartitionSpec

import orbax_gds as ogds
from orbax_gds import handler as handler_
from orbax_gds import saving, snapshot
from orbax_gds.dtypes import dtype_by_name
from orbax_gds.errors import IoError
from orbax_gds.plan import ShardBox, make_plan, windows

pytestmark = pytest.mark.slow

MIB = 1 << 20


@pytest.fixture(autouse=True)
def far_away(monkeypatch):
    """Every array counts as one on an accelerator."""
    monkeypatch.setattr(snapshot, "_spread", lambda s: (len(s.device_set) > 1, True))


def state(n=6):
    rng = np.random.default_rng(n)
    halves = NamedSharding(mesh(2), PartitionSpec("x"))
    large = {f"w{i}": jnp.asarray(rng.standard_normal((1024, 1024)), jnp.float32) for i in range(n)}
    small = {f"b{i}": jnp.full(7, i, jnp.bfloat16) for i in range(5)}
    spread = jax.device_put(rng.standard_normal((1024, 512)).astype(np.float32), halves)
    return large | small | {"spread": spread, "host": rng.standard_normal(9), "step": 3}


class Watched:
    """Counts the bytes of the copies that are held, at every one that is made."""

    def __init__(self, monkeypatch):
        self.most = self.n_dispatches = 0
        self.snapshots = []
        pin, take = snapshot.pinned_copies, snapshot.Snapshot.__init__

        def noted(this, *args):
            self.snapshots.append(this)
            this.words = []
            take(this, *args)

        def counted(arrays):
            self.n_dispatches += 1
            taken = [w for s in self.snapshots for w in s.words if isinstance(w, np.ndarray)]
            held = sum(w.nbytes for w in taken)
            self.most = max(self.most, held + sum(array.nbytes for array in arrays))
            return pin(arrays)

        monkeypatch.setattr(snapshot, "pinned_copies", counted)
        monkeypatch.setattr(snapshot.Snapshot, "__init__", noted)


def test_all_copies_are_dispatched_at_once_where_no_bound_is_given(monkeypatch, tmp_path):
    watched = Watched(monkeypatch)
    tree = state()
    prepared = saving.prepare(tree)
    assert prepared.staged.is_set()
    assert watched.n_dispatches == 1
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, jax.Array):
            leaf.delete()
    prepared.write(tmp_path)
    saving.publish(tmp_path)
    assert_same_bits(ogds.restore(tmp_path, state()), state())


@pytest.mark.parametrize(("bound", "least"), [(40 * MIB, 2), (30 * MIB, 3), (1, 4)])
def test_copies_keep_a_bound_and_all_is_saved(monkeypatch, tmp_path, bound, least):
    watched = Watched(monkeypatch)
    options = ogds.Options(staging_bytes=bound, workers=2)
    n_buffers, buffer_bytes = saving._buffers(options)
    tree = state()
    ogds.save(tmp_path / "item", tree, options=options)
    assert watched.n_dispatches >= least
    one_run = 12 * MIB + MIB  # three shards with a part in a run of 8 MiB, and the small ones
    assert watched.most <= max(bound - n_buffers * buffer_bytes, one_run)
    assert_same_bits(ogds.restore(tmp_path / "item", tree), tree)
    assert ogds.verify(tmp_path / "item") == []


def test_a_bounded_save_stores_the_same_frames(tmp_path):
    tree = state()
    for name, bound in (("whole", None), ("windows", 1)):
        options = ogds.Options(staging_bytes=bound, codec="fast", derive=False)
        ogds.save(tmp_path / name, tree, options=options)
    sizes = [(tmp_path / name / "p00000.ogds").stat().st_size for name in ("whole", "windows")]
    assert sizes[0] == sizes[1]


def test_training_waits_until_the_tree_is_not_needed_any_more(tmp_path):
    handler = ogds.GdsCheckpointHandler(ogds.Options(staging_bytes=1))
    tree, expected = state(), state()
    with ocp.CheckpointManager(tmp_path, item_handlers=handler) as manager:
        manager.save(0, args=ogds.args.GdsSave(tree))
        for leaf in jax.tree.leaves(tree):
            if isinstance(leaf, jax.Array):
                leaf.delete()
        manager.wait_until_finished()
        assert_same_bits(manager.restore(0, args=ogds.args.GdsRestore(expected)), expected)


@pytest.mark.parametrize("bound", [None, 1])
def test_a_tree_on_accelerators_may_be_donated_as_soon_as_save_returns(tmp_path, bound):
    handler = ogds.GdsCheckpointHandler(ogds.Options(staging_bytes=bound))
    tree, expected = state(), state()
    step = jax.jit(lambda x: x * 0 - 1, donate_argnums=0)
    with ocp.CheckpointManager(tmp_path, item_handlers=handler) as manager:
        manager.save(0, args=ogds.args.GdsSave(tree))
        for name, leaf in tree.items():
            if isinstance(leaf, jax.Array):
                tree[name] = step(leaf)
                assert leaf.is_deleted()
        manager.wait_until_finished()
        assert_same_bits(manager.restore(0, args=ogds.args.GdsRestore(expected)), expected)


def test_two_items_of_a_step_come_in_windows_and_keep_the_bound(monkeypatch, tmp_path):
    watched = Watched(monkeypatch)
    handler = ogds.GdsCheckpointHandler(ogds.Options(staging_bytes=1, workers=2))
    trees = {"a": state(4), "b": state(5)}
    with ocp.CheckpointManager(tmp_path, item_handlers={"a": handler, "b": handler}) as manager:
        items = {name: ogds.args.GdsSave(dict(tree)) for name, tree in trees.items()}
        manager.save(0, args=ocp.args.Composite(**items))
        for leaf in jax.tree.leaves(trees):
            if isinstance(leaf, jax.Array):
                leaf.delete()
        manager.wait_until_finished()
    assert watched.n_dispatches >= 2 * 3
    assert watched.most <= 2 * 13 * MIB
    for name, tree in {"a": state(4), "b": state(5)}.items():
        assert_same_bits(ogds.restore(tmp_path / "0" / name, tree), tree)


@pytest.mark.parametrize("bound", [None, 1])
def test_a_thread_that_training_waits_for_does_not_give_way(tmp_path, monkeypatch, bound):
    staged, prepare = [], saving.prepare
    kept: list[saving.Prepared] = []

    def keep(*args, **kwargs):
        kept.append(prepare(*args, **kwargs))
        return kept[0]

    monkeypatch.setattr(saving, "prepare", keep)
    monkeypatch.setattr(handler_, "give_way", lambda: staged.append(kept[0].staged.is_set()))
    handler = ogds.GdsCheckpointHandler(ogds.Options(staging_bytes=bound))
    with ocp.CheckpointManager(tmp_path, item_handlers=handler) as manager:
        manager.save(0, args=ogds.args.GdsSave(state()))
        manager.wait_until_finished()
    assert staged
    assert all(staged)


def test_a_save_that_fails_lets_training_go_on(tmp_path):
    prepared = saving.prepare(state(), options=ogds.Options(staging_bytes=1))
    waiting = threading.Thread(target=prepared.staged.wait, daemon=True)
    waiting.start()
    assert not prepared.staged.is_set()
    with pytest.raises(IoError):
        prepared.write(tmp_path / "missing")
    waiting.join(10)
    assert not waiting.is_alive()


@pytest.mark.parametrize("failing", ["orbax waits", "an older item is synced"])
def test_a_save_that_fails_before_it_writes_does_not_wait_for_ever(tmp_path, monkeypatch, failing):
    handler = ogds.GdsCheckpointHandler(ogds.Options(staging_bytes=1))

    def fail(*_, **__):
        raise IoError(5, "refused")

    manager = ocp.CheckpointManager(tmp_path, item_handlers=handler)
    if failing == "orbax waits":
        futures = pytest.importorskip("orbax.checkpoint._src.futures.future")
        monkeypatch.setattr(futures, "wait_for_signals", fail)
    else:
        monkeypatch.setattr(handler, "_sync_renames", fail)
    raised = []

    def save():
        try:
            manager.save(0, args=ogds.args.GdsSave(state(2)))
            manager.wait_until_finished()
        except IoError as error:
            raised.append(error)

    saving_ = threading.Thread(target=save, daemon=True)
    saving_.start()
    saving_.join(20)
    assert not saving_.is_alive()
    assert len(raised) == 1
    with warnings.catch_warnings(action="ignore"):
        gc.collect()  # Orbax never starts the coroutine it was given


@settings(max_examples=50)
@given(
    st.lists(st.integers(1, 3000), min_size=1, max_size=12),
    st.lists(st.booleans(), min_size=12, max_size=12),
    st.integers(0, 6 * MIB),
)
def test_windows_take_and_leave_every_shard_once_and_keep_the_bound(rows, far, bound):
    boxes = [ShardBox(leaf=i, start=(0, 0), extent=(n, 1024)) for i, n in enumerate(rows)]
    plan = make_plan(boxes, [dtype_by_name("float32")] * len(boxes), 1 << 20)
    sizes = [4096 * n if is_far else 0 for n, is_far in zip(rows, far, strict=False)]
    found = windows(plan, sizes, bound)
    assert [r for w in found for r in w.runs] == list(range(len(plan.runs)))
    expected = [number for number, size in enumerate(sizes) if size]
    assert sorted(s for w in found for s in w.taken) == expected
    assert sorted(s for w in found for s in w.left) == expected
    held: set[int] = set()
    for window in found:
        carried = sum(sizes[s] for s in held)
        held |= set(window.taken)
        new = [sizes[s] for s in window.taken]
        first_run = plan.runs[window.runs.start]
        must = sum(
            sizes[s]
            for s in set((first_run.segments[:, 0].astype(int) + first_run.first_buffer).tolist())
        )
        assert carried + sum(new) <= max(bound, carried + must)
        for number in window.runs:
            run = plan.runs[number]
            used = set((run.segments[:, 0].astype(int) + run.first_buffer).tolist())
            assert {s for s in used if sizes[s]} <= held
        held -= set(window.left)
    assert not held


@pytest.mark.parametrize("bound", [30 * MIB, 1])
def test_copies_of_numpy_arrays_count_and_may_be_changed_once_training_goes_on(
    monkeypatch, tmp_path, bound
):
    held = Watched(monkeypatch)
    put = snapshot._put

    def counted(words, numbers, arrays):
        for number, array in zip(numbers, arrays, strict=True):
            kept = (w for s in held.snapshots for w in s.words if isinstance(w, np.ndarray))
            held.most = max(held.most, array.nbytes + sum(w.nbytes for w in kept))
            held.n_dispatches += 1
            put(words, [number], [array])

    monkeypatch.setattr(snapshot, "_put", counted)
    options = ogds.Options(staging_bytes=bound, workers=2)
    n_buffers, buffer_bytes = saving._buffers(options)
    rng = np.random.default_rng(0)
    tree = {f"w{i}": rng.standard_normal((1024, 1024)).astype(">f4") for i in range(8)}
    tree |= {f"x{i}": rng.standard_normal((512, 1024)) for i in range(4)}
    expected = {name: array.astype(array.dtype.newbyteorder("<")) for name, array in tree.items()}
    handler = ogds.GdsCheckpointHandler(options)
    with ocp.CheckpointManager(tmp_path, item_handlers=handler) as manager:
        manager.save(0, args=ogds.args.GdsSave(tree))
        for array in tree.values():
            array[:] = 0
        manager.wait_until_finished()
        assert_same_bits(manager.restore(0, args=ogds.args.GdsRestore()), expected)
    assert held.n_dispatches == len(tree)
    assert held.most <= max(bound - n_buffers * buffer_bytes, 12 * MIB)
