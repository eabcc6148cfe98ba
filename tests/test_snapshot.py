"""A snapshot holds the words of a tree, whatever happens to the tree afterwards."""

import gc
from operator import attrgetter

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from in_memory import (
    MEMORY_KINDS,
    assert_same_bits,
    mesh,
    round_trip,
    stored_arrays,
)
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import orbax_gds as ogds
from orbax_gds import leaves, pieces, snapshot
from orbax_gds.errors import Unsupported
from orbax_gds.snapshot import Picks


def test_a_snapshot_survives_writes_and_donation():
    spread = NamedSharding(mesh(8), PartitionSpec("x"))
    tree = {
        "host": np.arange(8.0),
        "one": jnp.arange(8.0),
        "spread": jax.device_put(np.arange(8.0, dtype=np.float32), spread),
    }
    expected = {name: np.array(value) for name, value in tree.items()}
    flat = leaves.flatten(tree)
    shards = leaves.owned_shards(flat, 0)
    words = Picks(flat, shards).take(flat.values)
    tree["host"][:] = -1
    step = jax.jit(lambda x: x * 0 - 1, donate_argnums=0)
    for name in ("one", "spread"):
        np.testing.assert_array_equal(step(tree.pop(name)), np.full(8, -1))
    for leaf, array in stored_arrays(flat, shards, words).items():
        np.testing.assert_array_equal(array, expected[flat.specs[leaf].path[0][1]])


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_of_cycles_is_left_as_it_was(enabled):
    was_enabled = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with leaves.uncollected():
            assert not gc.isenabled()
        assert gc.isenabled() == enabled
        with pytest.raises(Unsupported), leaves.uncollected():
            leaves.flatten(len)
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()


@pytest.mark.parametrize("hidden", [False, True])
def test_a_snapshot_copies_only_the_pieces_that_are_stored(monkeypatch, hidden):
    if hidden:
        monkeypatch.setattr(pieces, "_AT_ONCE", attrgetter("no_such_attribute"))
    halves = NamedSharding(mesh(4, 2), PartitionSpec("y"))
    tree = [jax.device_put(np.full(8, n), halves) for n in range(10)]
    flat = leaves.flatten(tree)
    shards = leaves.owned_shards(flat, 0)
    copied = []
    gather = snapshot._native.gather
    monkeypatch.setattr(
        snapshot._native, "gather", lambda p, out: copied.append(len(p)) or gather(p, out)
    )
    words = Picks(flat, shards).take(flat.values)
    assert copied == [len(shards)] == [20]
    for leaf, array in stored_arrays(flat, shards, words).items():
        np.testing.assert_array_equal(array, np.full(8, leaf))


def test_the_devices_that_hold_replicas_of_a_part_share_the_copying(monkeypatch):
    halves = NamedSharding(mesh(2, 4), PartitionSpec("x"))
    quarters = NamedSharding(mesh(2, 4), PartitionSpec("y"))
    tree = [jax.device_put(np.zeros(8 * n, np.int8), halves) for n in range(1, 17)]
    tree += [jax.device_put(np.zeros(64, np.int8), quarters) for _ in range(8)]
    flat = leaves.flatten(tree)
    taken = dict.fromkeys(jax.devices(), 0)
    of = snapshot.Pieces.of

    def counted(self, values):
        chosen = of(self, values)
        for piece in chosen:
            (device,) = piece.devices()
            taken[device] += piece.nbytes
        return chosen

    monkeypatch.setattr(snapshot.Pieces, "of", counted)
    Picks(flat, leaves.owned_shards(flat, 0)).take(flat.values)
    assert sum(taken.values()) == sum(array.nbytes for array in tree)
    assert max(taken.values()) - min(taken.values()) <= 4 * 16


def test_arrays_of_one_number_of_devices_in_another_order_keep_their_elements():
    devices = np.array(jax.devices())
    orders = [devices, devices[::-1], np.roll(devices, 3)]
    spread = [NamedSharding(Mesh(order, ("x",)), PartitionSpec("x")) for order in orders]
    tree = [jax.device_put(np.arange(16), sharding) for sharding in spread * 2]
    assert_same_bits(round_trip(tree, tree), tree)


def test_a_piece_on_another_device_than_planned_is_refused_not_stored():
    devices = mesh(8).devices
    one, turned = (
        jax.device_put(np.arange(8), NamedSharding(Mesh(order, "x"), PartitionSpec("x")))
        for order in (devices, devices[::-1])
    )
    flat = leaves.flatten([one])
    picks = Picks(flat, leaves.owned_shards(flat, 0))
    assert len(picks.take([one])) == 8
    with pytest.raises(Unsupported, match=r"lies on .* not on .* Reshard it"):
        picks.take([turned])


def test_a_snapshot_of_device_memory_is_a_view_on_cpus():
    array = jnp.arange(100_000.0)
    flat = leaves.flatten([array])
    (words,) = Picks(flat, leaves.owned_shards(flat, 0)).take(flat.values)
    assert words.ctypes.data == array.unsafe_buffer_pointer()


def turned(array):
    """The same array, its first dimension fastest in memory."""
    layout = pytest.importorskip("jax.experimental.layout")
    order = layout.Layout(major_to_minor=tuple(reversed(range(array.ndim))))
    return jax.device_put(array, layout.Format(order, SingleDeviceSharding(jax.devices()[0])))


@pytest.mark.parametrize("shape", [(3, 4), (64, 64)])
def test_the_words_of_a_layout_that_is_not_c_order_are_in_c_order(shape):
    array = jnp.arange(float(np.prod(shape))).reshape(shape)
    flat = leaves.flatten([array, turned(array)])
    for words in Picks(flat, leaves.owned_shards(flat, 0)).take(flat.values):
        np.testing.assert_array_equal(words.view(np.float32), np.arange(float(array.size)))


def test_the_layouts_of_each_save_count_not_those_of_the_first():
    array = jnp.arange(12.0).reshape(3, 4)
    flat = leaves.flatten([array])
    picks = Picks(flat, leaves.owned_shards(flat, 0))
    for value in (array, turned(array), array):
        np.testing.assert_array_equal(picks.take([value])[0].view(np.float32), np.arange(12.0))


@pytest.mark.parametrize("hidden", [False, True])
def test_small_matrices_are_copied_in_one_call_whether_or_not_jax_tells_layouts_fast(
    monkeypatch, hidden
):
    if hidden:
        monkeypatch.setattr(snapshot, "_LAYOUT_AT_ONCE", attrgetter("no_such_attribute"))
    gathered = []
    gather = snapshot._native.gather
    monkeypatch.setattr(
        snapshot._native, "gather", lambda p, out: gathered.append(len(p)) or gather(p, out)
    )
    tree = [jnp.full((2,) * rank, rank, jnp.bfloat16) for rank in range(2, 6)]
    large = jnp.zeros((64, 64))
    assert_same_bits(round_trip([*tree, large]), [*tree, large])
    assert gathered == [len(tree)]


def test_layouts_are_asked_for_once_as_another_thread_may_delete_an_array_afterwards(monkeypatch):
    def again(array):
        raise AssertionError("this would crash jax if the array was deleted meanwhile")

    tree = [jnp.ones((2, 2)), turned(jnp.ones((2, 3)))]
    monkeypatch.setattr(type(tree[0]), "format", property(again))
    assert_same_bits(round_trip(tree), tree)


def test_accelerators_are_snapshot_through_pinned_memory(monkeypatch):
    spread = NamedSharding(mesh(4, 2), PartitionSpec("y"))
    tree = [jnp.arange(5, dtype=jnp.bfloat16), jax.device_put(np.arange(8), spread), np.ones(3), 7]
    monkeypatch.setattr(snapshot, "_spread", lambda s: (len(s.device_set) > 1, True))
    dispatched = []
    pin = snapshot.pinned_copies
    monkeypatch.setattr(
        snapshot, "pinned_copies", lambda a: dispatched.append(pin(a)) or dispatched[0]
    )
    assert_same_bits(round_trip(tree), tree)
    kind = "pinned_host" if "pinned_host" in MEMORY_KINDS else "unpinned_host"
    assert [a.sharding.memory_kind for a in dispatched[0]] == [kind] * 3


def test_every_copy_from_an_accelerator_is_dispatched_before_any_is_waited_for(monkeypatch):
    tree = jax.device_put([np.arange(5000 + n, dtype=np.float32) for n in range(20)])
    monkeypatch.setattr(snapshot, "_spread", lambda s: (len(s.device_set) > 1, True))
    put, view, events = jax.device_put, snapshot._put, []
    array = type(tree[0])
    ready, begin = array.block_until_ready, array.copy_to_host_async

    def dispatch(arrays, *args, **how):
        events.extend(["dispatched"] * len(jax.tree.leaves(arrays)))
        return put(arrays, *args, **how)

    monkeypatch.setattr(jax, "device_put", dispatch)
    monkeypatch.setattr(
        array, "copy_to_host_async", lambda a: events.append("dispatched") or begin(a)
    )
    monkeypatch.setattr(array, "block_until_ready", lambda a: events.append("waited") or ready(a))
    monkeypatch.setattr(
        snapshot,
        "_put",
        lambda words, at, a: view(words, at, (events.append("waited") or each for each in a)),
    )
    assert_same_bits(round_trip(tree), tree)
    assert events[: 2 * len(tree)] == ["dispatched"] * len(tree) + ["waited"] * len(tree)


def test_a_tree_in_host_memory_may_be_deleted_as_soon_as_save_returns(tmp_path):
    spread = NamedSharding(mesh(8), PartitionSpec("x"))

    def state():
        large = [jnp.full((512, 512), n, jnp.float32) for n in range(4)]
        small = [jnp.full(shape, 7, jnp.bfloat16) for shape in (5, (2, 3))]
        return [large, small, jax.device_put(np.arange(1 << 16), spread)]

    tree = state()
    with ocp.CheckpointManager(tmp_path, item_handlers=ogds.GdsCheckpointHandler()) as manager:
        manager.save(0, args=ogds.args.GdsSave(tree))
        for leaf in jax.tree.leaves(tree):
            leaf.delete()
        del tree, leaf
        over = [jnp.full((512, 512), -1, jnp.float32).block_until_ready() for _ in range(16)]
        manager.wait_until_finished()
        expected = state()
        assert_same_bits(manager.restore(0, args=ogds.args.GdsRestore(expected)), expected)
    assert len(over) == 16
