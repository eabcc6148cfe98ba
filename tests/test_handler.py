"""Laws of the handler under Orbax's checkpointers and managers, and without any."""

import asyncio
import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest

import orbax_gds as ogds
from orbax_gds import commit, saving
from orbax_gds.args import GdsRestore, GdsSave
from orbax_gds.drivers import open_driver
from orbax_gds.errors import CommitError, Exists, IoError, Mismatch, NotFound, Unsupported
from orbax_gds.testing.faults import Fault, FaultyDriver, faulty_system
from orbax_gds.threads import BACKGROUND_NICENESS

TMP_ITEM = "default.orbax-checkpoint-tmp"


class Moments(NamedTuple):
    mu: jax.Array
    nu: jax.Array


def state(seed: int = 0) -> dict:
    """A small train state with one of everything that a training job stores."""
    random = np.random.default_rng(seed)
    kernel = jnp.asarray(random.standard_normal((16, 8)), jnp.bfloat16)
    return {
        "params": {"dense": {"kernel": kernel, "bias": jnp.arange(8, dtype=jnp.float32) + seed}},
        "opt": [Moments(mu=kernel.astype(jnp.float32), nu=jnp.ones((16, 8)) * seed), ()],
        "rng": jax.random.key(seed),
        "table": random.integers(0, 9, (3, 5)),
        "step": 7 + seed,
        "rate": 0.5,
        "note": "héllo",
        "nothing": None,
    }


def words(tree) -> list:
    """The leaves of a tree as types and bytes, which compare NaNs and dtypes too."""
    flat, treedef = jax.tree.flatten(tree)
    return [treedef, *map(leaf_words, flat)]


def leaf_words(leaf):
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return ("key", str(jax.random.key_impl(leaf)), leaf_words(jax.random.key_data(leaf)))
    kind = "jax" if isinstance(leaf, jax.Array) else type(leaf).__name__
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic):
        return (kind, leaf)
    array = np.asarray(leaf)
    return (kind, str(array.dtype), array.shape, array.tobytes())


@pytest.fixture
def manager(tmp_path) -> Iterator[ocp.CheckpointManager]:
    with ocp.CheckpointManager(tmp_path / "run") as opened:
        yield opened


def test_manager_without_registration_saves_and_restores_the_same_bits(manager):
    tree = state()
    assert manager.save(3, args=GdsSave(tree))
    manager.wait_until_finished()
    assert manager.latest_step() == 3
    assert words(manager.restore(3, args=GdsRestore(tree))) == words(tree)


def test_fresh_manager_restores_without_arguments(manager):
    tree = state()
    manager.save(0, args=GdsSave(tree))
    manager.wait_until_finished()
    with ocp.CheckpointManager(manager.directory) as fresh:
        restored = fresh.restore(0)
    assert leaf_words(restored["rng"]) == leaf_words(tree["rng"])
    assert leaf_words(restored["opt"][0]["mu"]) == leaf_words(tree["opt"][0].mu)
    assert (restored["step"], restored["note"], restored["nothing"]) == (7, "héllo", None)


def test_every_step_that_retention_keeps_can_be_restored(tmp_path):
    options = ocp.CheckpointManagerOptions(
        max_to_keep=2, keep_period=4, step_prefix="ck", step_format_fixed_length=6
    )
    with ocp.CheckpointManager(tmp_path, options=options) as manager:
        for step in range(7):
            manager.save(step, args=GdsSave(state(step)))
        manager.wait_until_finished()
        assert sorted(manager.all_steps()) == [0, 4, 5, 6]
        for step in manager.all_steps():
            restored = manager.restore(step, args=GdsRestore(state()))
            assert words(restored) == words(state(step))
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"ck_{n:06d}" for n in (0, 4, 5, 6)]


def test_best_step_is_kept_and_restored(tmp_path):
    options = ocp.CheckpointManagerOptions(
        max_to_keep=1, best_fn=lambda metrics: metrics["loss"], best_mode="min"
    )
    with ocp.CheckpointManager(tmp_path, options=options) as manager:
        for step, loss in enumerate([3.0, 1.0, 2.0]):
            manager.save(step, args=GdsSave(state(step)), metrics={"loss": loss})
        manager.wait_until_finished()
        assert manager.best_step() == 1
        assert manager.all_steps() == [1]
        assert words(manager.restore(1, args=GdsRestore(state()))) == words(state(1))


def test_items_of_a_composite_do_not_mix(manager):
    ema, main = state(1), state(2)
    args = ocp.args.Composite(
        state=GdsSave(main), ema=GdsSave(ema), extra=ocp.args.JsonSave({"epoch": 5})
    )
    manager.save(0, args=args)
    manager.wait_until_finished()
    restored = manager.restore(
        0,
        args=ocp.args.Composite(
            state=GdsRestore(main), ema=GdsRestore(ema), extra=ocp.args.JsonRestore()
        ),
    )
    assert words(restored.state) == words(main)
    assert words(restored.ema) == words(ema)
    assert restored.extra == {"epoch": 5}


@pytest.mark.parametrize("kind", [ocp.AsyncCheckpointer, ocp.Checkpointer])
def test_checkpointer_without_a_manager_saves_and_restores(tmp_path, kind):
    tree = state()
    with kind(ogds.GdsCheckpointHandler()) as checkpointer:
        checkpointer.save(tmp_path / "one", args=GdsSave(tree))
        if isinstance(checkpointer, ocp.AsyncCheckpointer):
            checkpointer.wait_until_finished()
        assert words(checkpointer.restore(tmp_path / "one", args=GdsRestore(tree))) == words(tree)


def test_handler_without_a_checkpointer_publishes_by_itself(tmp_path):
    handler, tree = ogds.GdsCheckpointHandler(), state()
    handler.save(tmp_path / "item", GdsSave(tree))
    published = (tmp_path / "item" / "manifest.json").read_bytes()
    handler.finalize(tmp_path / "item")
    assert (tmp_path / "item" / "manifest.json").read_bytes() == published
    assert words(handler.restore(tmp_path / "item", GdsRestore(tree))) == words(tree)
    handler.close()
    handler.save(tmp_path / "after close", GdsSave(tree))


def test_second_save_into_an_item_raises_and_leaves_the_first_intact(tmp_path):
    handler, tree, item = ogds.GdsCheckpointHandler(), state(), tmp_path / "item"
    handler.save(item, GdsSave(tree))
    before = {path.name: path.read_bytes() for path in item.iterdir()}
    with pytest.raises(Exists, match="already holds a published item"):
        handler.save(item, GdsSave(state(1)))
    with pytest.raises(Exists):
        asyncio.run(handler.async_save(item, GdsSave(state(1))))[0].result()
    handler.finalize(item)
    assert {path.name: path.read_bytes() for path in item.iterdir()} == before
    assert words(handler.restore(item, GdsRestore(tree))) == words(tree)


def test_save_without_a_checkpointer_syncs_every_directory_with_a_new_entry(tmp_path):
    handler = ogds.GdsCheckpointHandler()
    (tmp_path / "made").mkdir()
    for path, synced in {
        "a/b/item": ["a/b/item", "a/b", "a", ""],
        "a/b/other": ["a/b/other", "a/b"],
        "made": ["made", ""],
    }.items():
        with faulty_system(Fault(None)) as system:
            handler.save(tmp_path / path, GdsSave({"w": 1}))
        renamed = max(n for n, what in enumerate(system.operations) if "manifest.json.tmp" in what)
        assert [what for what in system.operations[renamed:] if what.startswith("fsync")] == [
            f"fsync {tmp_path / directory}" for directory in synced
        ]


def test_failed_sync_of_an_older_step_is_raised_as_such(tmp_path, monkeypatch):
    sync, broken = commit.sync_directory, tmp_path / "0"

    def sync_or_fail(path):
        if path == broken:
            raise IoError(errno.EIO, f"Cannot sync the directory {path}: broken", str(path))
        sync(path)

    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(0, args=GdsSave({"w": 1}))
        manager.wait_until_finished()
        monkeypatch.setattr(commit, "sync_directory", sync_or_fail)
        manager.save(1, args=GdsSave({"w": 2}))
        with pytest.raises(IoError, match=rf"older item {broken}/default.* may be lost.*broken"):
            manager.wait_until_finished()
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(2, args=GdsSave({"w": 3}))
        manager.wait_until_finished()
        assert [manager.restore(n)["w"] for n in manager.all_steps()] == [1, 3]


def test_one_handler_serves_two_saves_at_once(tmp_path):
    handler = ogds.GdsCheckpointHandler(ogds.Options(workers=2))
    trees = [state(n) for n in range(4)]

    def run(n: int) -> None:
        handler.save(tmp_path / str(n), GdsSave(trees[n]))

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n, tree in enumerate(trees):
        assert words(handler.restore(tmp_path / str(n), GdsRestore(tree))) == words(tree)


def test_renames_of_orbax_are_synced_by_the_next_save_or_the_close(tmp_path):
    with ocp.CheckpointManager(tmp_path) as manager, faulty_system(Fault(None)) as system:
        for step in (0, 1):
            assert f"fsync {tmp_path}" not in system.operations
            manager.save(step, args=GdsSave({"w": 1}))
            manager.wait_until_finished()
        assert {f"fsync {tmp_path}", f"fsync {tmp_path}/0"} <= set(system.operations)
        assert f"fsync {tmp_path}/1" not in system.operations
        manager.close()
        assert f"fsync {tmp_path}/1" in system.operations


def test_only_what_runs_behind_training_gives_way_to_it(manager, tmp_path, monkeypatch):
    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    seen, before, write = [], niceness(), saving.Prepared.write

    def noting(*arguments, **options):
        seen.append(niceness())
        return write(*arguments, **options)

    monkeypatch.setattr(saving.Prepared, "write", noting)
    manager.save(0, args=GdsSave(state()))
    manager.wait_until_finished()
    ogds.GdsCheckpointHandler().save(tmp_path / "item", GdsSave(state()))
    ogds.save(tmp_path / "other", state())
    lowered = max(before, BACKGROUND_NICENESS) if sys.platform == "linux" else before
    assert seen == [lowered, before, before]
    assert niceness() == before


def test_typestr_on_disk_is_the_pinned_one(manager):
    manager.save(0, args=GdsSave(state()))
    manager.wait_until_finished()
    noted = (Path(manager.directory) / "0" / "_CHECKPOINT_METADATA").read_text()
    assert ogds.GdsCheckpointHandler.typestr() == "orbax_gds.GdsCheckpointHandler"
    assert '"orbax_gds.GdsCheckpointHandler"' in noted


def test_change_of_the_tree_after_save_returns_changes_nothing_stored(manager, monkeypatch):
    begun, may_write = threading.Event(), threading.Event()
    write = saving.Prepared.write

    def late(*arguments, **options):
        begun.set()
        assert may_write.wait(30)
        return write(*arguments, **options)

    monkeypatch.setattr(saving.Prepared, "write", late)
    table, donated = np.arange(6000.0), jnp.arange(6000.0)
    before = words({"table": table, "x": donated})
    manager.save(0, args=GdsSave({"table": table, "x": donated}))
    assert begun.wait(30)
    table += 1
    jax.jit(lambda x: x + 1, donate_argnums=0)(donated).block_until_ready()
    may_write.set()
    manager.wait_until_finished()
    assert words(manager.restore(0, args=GdsRestore())) == before


def test_saving_and_restoring_work_inside_a_running_event_loop(tmp_path):
    tree = state()

    async def train() -> None:
        with ocp.CheckpointManager(tmp_path / "run") as manager:
            manager.save(0, args=GdsSave(tree))
            manager.wait_until_finished()
            assert words(manager.restore(0, args=GdsRestore(tree))) == words(tree)
        handler = ogds.GdsCheckpointHandler()
        handler.save(tmp_path / "item", GdsSave(tree))
        assert words(handler.restore(tmp_path / "item", GdsRestore(tree))) == words(tree)

    asyncio.run(train())


def test_leaf_that_cannot_be_stored_raises_before_any_file_and_names_every_path(tmp_path):
    tree = state() | {"bad": {"f": len}, "worse": [np.array(["x"], object)]}
    handler = ogds.GdsCheckpointHandler()
    for save in (handler.save, lambda *args: asyncio.run(handler.async_save(*args))):
        with pytest.raises(Unsupported, match=r"bad/f[\s\S]*worse/0"):
            save(tmp_path / "item", GdsSave(tree))
    assert list(tmp_path.iterdir()) == []


def test_metadata_that_is_no_json_raises_before_any_file(tmp_path):
    handler = ogds.GdsCheckpointHandler()
    with pytest.raises(Unsupported, match="custom_metadata"):
        handler.save(tmp_path / "item", GdsSave(state(), custom_metadata={"when": object()}))
    assert list(tmp_path.iterdir()) == []


def test_error_of_the_blocking_part_leaves_no_file_of_ours_and_allows_a_second_try(manager):
    for step in range(5):
        with pytest.raises(Unsupported, match="'f'"):
            manager.save(step, args=GdsSave({"f": len}))
        left = Path(manager.directory).glob(f"{step}.*/**/*")
        assert {path.name for path in left} <= {"_CHECKPOINT_METADATA", TMP_ITEM}  # Orbax's own
        manager.save(step, args=GdsSave({"f": 1}))
        manager.wait_until_finished()
        assert manager.latest_step() == step


@pytest.mark.parametrize("at", [0, 1, 2])
def test_failed_write_is_raised_and_leaves_the_previous_step_and_a_second_try(
    manager, monkeypatch, at
):
    manager.save(0, args=GdsSave(state(0)))
    manager.wait_until_finished()
    fault = Fault(at, number=errno.ENOSPC)
    monkeypatch.setattr(
        saving, "open_driver", lambda name, path: FaultyDriver(open_driver(name, path), fault)
    )
    manager.save(1, args=GdsSave(state(1)))
    with pytest.raises(IoError, match="No space left on device"):
        manager.wait_until_finished()
    assert len(fault.operations) > at
    monkeypatch.undo()
    with ocp.CheckpointManager(manager.directory) as fresh:
        assert fresh.all_steps() == [0]
        assert words(fresh.restore(0, args=GdsRestore(state()))) == words(state(0))
        fresh.save(1, args=GdsSave(state(1)))
        fresh.wait_until_finished()
        assert words(fresh.restore(1, args=GdsRestore(state()))) == words(state(1))


def test_finalize_refuses_what_was_not_sealed(tmp_path):
    handler = ogds.GdsCheckpointHandler()
    with pytest.raises(CommitError):
        handler.finalize(tmp_path)


def test_mismatch_names_every_missing_and_extra_path(manager):
    tree = state()
    manager.save(0, args=GdsSave(tree))
    manager.wait_until_finished()
    target = tree | {"new": {"a": jnp.ones(2), "b": jnp.ones(2)}}
    del target["params"], target["step"]
    with pytest.raises(Mismatch) as caught:
        manager.restore(0, args=GdsRestore(target))
    for name in ("new/a", "new/b", "params/dense/kernel", "params/dense/bias", "step"):
        assert repr(name) in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_shape_mismatch_names_leaf_and_both_shapes(manager):
    manager.save(0, args=GdsSave({"deep": {"w": jnp.ones((4, 2), jnp.bfloat16)}}))
    manager.wait_until_finished()
    target = {"deep": {"w": jax.ShapeDtypeStruct((4, 3), jnp.bfloat16)}}
    with pytest.raises(Mismatch, match=r"'deep/w'.*\[4, ?2\].*\[4, ?3\]"):
        manager.restore(0, args=GdsRestore(target))


@pytest.mark.parametrize("shape", [(6, 2), (2, 5), (3, 4), (6, 6)])
def test_loose_shapes_pad_with_zeros_and_truncate(manager, shape):
    stored = jnp.arange(12, dtype=jnp.float32).reshape(3, 4) + 1
    manager.save(0, args=GdsSave({"w": stored, "n": np.asarray(stored)}))
    manager.wait_until_finished()
    target = {"w": jax.ShapeDtypeStruct(shape, jnp.float32), "n": np.zeros(shape, np.float32)}
    restored = manager.restore(0, args=GdsRestore(target, strict=False))
    rows, columns = min(3, shape[0]), min(4, shape[1])
    expected = np.zeros(shape, np.float32)
    expected[:rows, :columns] = stored[:rows, :columns]
    assert leaf_words(restored["w"])[1:] == leaf_words(expected)[1:]
    assert leaf_words(restored["n"]) == leaf_words(expected)


def test_placeholder_and_partial_restore_read_only_what_is_asked_for(manager):
    tree = state()
    manager.save(0, args=GdsSave(tree))
    manager.wait_until_finished()
    target = tree | {"table": ..., "rng": ...}
    restored = manager.restore(0, args=GdsRestore(target))
    assert restored["table"] is ...
    assert restored["rng"] is ...
    assert leaf_words(restored["step"]) == ("int", 7)
    part = {"params": tree["params"]}
    assert words(manager.restore(0, args=GdsRestore(part, partial_restore=True))) == words(part)
    with pytest.raises(Mismatch, match="elsewhere"):
        manager.restore(0, args=GdsRestore({"elsewhere": 1}, partial_restore=True))


def test_named_leaves_are_restored_alone(manager):
    tree = state()
    manager.save(0, args=GdsSave(tree))
    manager.wait_until_finished()
    restored = manager.restore(0, args=GdsRestore(leaves=["params/dense", "step"]))
    assert words(restored) == words({"params": tree["params"], "step": 7})


def test_item_of_another_handler_is_refused_with_the_way_out(tmp_path):
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(0, args=ocp.args.StandardSave({"w": jnp.ones(3)}))
        manager.wait_until_finished()
    with ocp.CheckpointManager(tmp_path, handler_registry=ogds.handler_registry()) as manager:
        with pytest.raises(NotFound, match="Orbax's own handler"):
            manager.restore(0, args=ocp.args.StandardRestore({"w": jnp.ones(3)}))
        with pytest.raises(FileNotFoundError):
            ogds.GdsCheckpointHandler().metadata(tmp_path / "0" / "default")


@pytest.mark.parametrize(
    "args", [ocp.args.StandardRestore, ocp.args.PyTreeRestore], ids=["standard", "pytree"]
)
@pytest.mark.parametrize("with_target", [True, False])
def test_orbax_itself_refuses_our_item(manager, args, with_target):
    tree = {"w": jnp.ones(3), "n": np.arange(3), "s": 1}
    manager.save(0, args=GdsSave(tree))
    manager.wait_until_finished()
    names_us = args is ocp.args.PyTreeRestore or with_target
    with (
        ocp.CheckpointManager(manager.directory) as plain,
        pytest.raises(ValueError, match="orbax_gds" if names_us else "metadata"),
    ):
        plain.restore(0, args=args(tree) if with_target else args())


def test_remote_paths_and_foreign_arguments_are_refused():
    handler = ogds.GdsCheckpointHandler()
    with pytest.raises(Unsupported, match="gs://bucket/x is not a local path"):
        handler.metadata(ocp.path.step.epath.Path("gs://bucket/x"))
    with pytest.raises(Unsupported, match="was given JsonSave"):
        handler.save(Path("/nowhere"), ocp.args.JsonSave({}))
    with pytest.raises(Unsupported, match="was given JsonRestore"):
        handler.restore(Path("/nowhere"), ocp.args.JsonRestore())


def test_metadata_cannot_be_saved_in_place_of_a_tree(manager):
    manager.save(0, args=GdsSave(state()))
    manager.wait_until_finished()
    with pytest.raises(Unsupported, match="TreeMetadata"):
        GdsSave(manager.item_metadata(0))


_LAST_WORDS = """
import pathlib, sys, numpy as np, orbax.checkpoint as ocp
from orbax_gds.args import GdsSave
manager = ocp.CheckpointManager(sys.argv[1])
manager.save(0, args=GdsSave({"w": np.ones(1000)}))
while not any(pathlib.Path(sys.argv[1]).glob("0*/default*")):
    pass  # Orbax waits five minutes for directories that it did not get to make before the end
"""


@pytest.mark.slow
def test_leaving_without_waiting_leaves_a_whole_step_or_none(tmp_path):
    subprocess.run([sys.executable, "-c", _LAST_WORDS, os.fspath(tmp_path)], check=True)
    with ocp.CheckpointManager(tmp_path) as manager:
        for step in manager.all_steps():
            assert np.all(manager.restore(step, args=GdsRestore())["w"] == 1)


def test_all_patterns_of_bfloat16_survive_a_manager(manager):
    patterns = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16)
    manager.save(0, args=GdsSave({"w": jnp.asarray(patterns)}))
    manager.wait_until_finished()
    restored = manager.restore(0, args=GdsRestore())["w"]
    assert np.asarray(restored).tobytes() == patterns.tobytes()
