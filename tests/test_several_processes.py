"""Saves by several processes: each writes its own part, and all of it is published or nothing."""

import re
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
import several

import orbax_gds as ogds
from orbax_gds.commit import read_manifest
from orbax_gds.item import Item


def n_bytes_stored(item) -> list[int]:
    """Bytes of the words that each stripe of an item holds."""
    with Item(item) as opened:
        return [
            sum(
                shard.n_elements * opened.dtypes[shard.leaf].element_bytes
                for shard in stripe.shards
            )
            for stripe in opened.stripes
        ]


def n_bytes_of_state() -> int:
    return sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(several.values()))


def assert_shared(item, n_processes) -> None:
    """Check that every word is stored once, and that no process stores much more than others."""
    stored = n_bytes_stored(item)
    assert len(stored) == n_processes
    assert sum(stored) == n_bytes_of_state()
    assert max(stored) - min(stored) <= 30_000 * 4 + 1000
    names = {path.name for path in item.iterdir()} - {"commit_success.txt"}
    own = {f"p{n:05d}.{kind}" for n in range(n_processes) for kind in ("ogds", "report.json")}
    assert names == own | {"manifest.json", "_METADATA"}
    assert ogds.verify(item) == []


def assert_little_more_than_the_local_part_is_read(n_bytes_read) -> None:
    """Check the bytes that each process of a restore reads: its part of `wide`, and the rest."""
    wide = several.values()["wide"].nbytes
    rest = n_bytes_of_state() - wide
    for n_bytes in n_bytes_read:
        assert n_bytes <= rest + wide / len(n_bytes_read) + 64 * 1024


def restored_by_one(item, seed=0) -> None:
    several.assert_restored(ogds.restore(item, several.tree_of()), seed)


@pytest.mark.slow
def test_two_processes_share_a_save_and_restore_it(tmp_path):
    several.run_job("save_and_restore", tmp_path, 2)
    assert_shared(tmp_path / "0" / "default", 2)
    restored_by_one(tmp_path / "0" / "default")


@pytest.mark.slow
def test_two_processes_save_deltas_and_one_restores_them(tmp_path):
    said = several.run_job("save_deltas", tmp_path / "run", 2)
    assert [each["chains"] for each in said] == [[0, 1, 2, 3, 4, 5]] * 2
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["4", "5"]
    shutil.copytree(tmp_path / "run" / "5", tmp_path / "copy")
    shutil.rmtree(tmp_path / "run")
    item = tmp_path / "copy" / "default"
    assert len(list((item / "base").iterdir())) == 2 * 5
    assert ogds.verify(item) == []
    got = ogds.restore(item, several.tree_of())
    several.assert_restored(got, state=several.nudged(5))


@pytest.mark.slow
def test_bases_of_every_process_are_kept_where_links_are_impossible(tmp_path):
    said = several.run_job("save_unlinked_deltas", tmp_path, 2)
    assert [each["chains"] for each in said] == [[0, 0, 0, 0], [0, 1, 2, 3]]
    item = tmp_path / "3" / "default"
    assert not read_manifest(item).base.linked
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2", "3"]
    assert ogds.verify(item) == []
    got = ogds.restore(item, several.tree_of())
    several.assert_restored(got, state=several.mostly_new(3))


@pytest.mark.slow
def test_what_two_save_four_restore(tmp_path):
    several.run_job("save_and_restore", tmp_path, 2, n_devices=3)
    several.run_job("restore", tmp_path / "0" / "default", 4, n_devices=2)


@pytest.mark.slow
def test_what_four_save_two_and_one_restore(tmp_path):
    said = several.run_job("save_and_restore", tmp_path, 4, n_devices=2)
    item = tmp_path / "0" / "default"
    assert_shared(item, 4)
    assert_little_more_than_the_local_part_is_read([each["bytes_read"] for each in said])
    several.run_job("restore", item, 2, n_devices=3)
    restored_by_one(item)


@pytest.mark.slow
def test_four_processes_store_equal_parts_of_few_large_replicated_arrays(tmp_path):
    several.run_job("save_large", tmp_path, 4, n_devices=2)
    expected = several.large_values()
    n_derived = 0
    for item, stored in ((tmp_path / "0", ["alone"]), (tmp_path / "1", ["alone", "master"])):
        item /= "default"
        assert n_bytes_stored(item) == [sum(expected[name].nbytes for name in stored) // 4] * 4
        for name, array in ogds.restore(item).items():
            assert np.asarray(array).tobytes() == expected[name].tobytes()
        with Item(item) as opened:
            n_derived += sum(d.n_elements for s in opened.stripes for d in s.derived)
        assert ogds.verify(item) == []
    assert n_derived == expected["param"].size


@pytest.mark.slow
@pytest.mark.parametrize("n_processes", [2, 4])
def test_what_one_saves_several_restore(tmp_path, n_processes):
    ogds.save(tmp_path / "item", several.tree_of())
    several.run_job("restore", tmp_path / "item", n_processes)


STRUCK = [
    ("fail", 2, "process 1 failed with OSError: .*No space left"),
    ("lag", 2, "process 1 "),
    ("lag", 4, "process 3 "),
    ("kill_last_orbax", 2, "process 1 of 2"),
    ("kill_last", 2, "process 1 of 2"),
    ("kill_last", 4, "process 3 of 4"),
    ("kill_sealed", 2, "process 1 of 2: dead or cut off, its part stored"),
    ("kill_sealed", 4, "process 3 of 4: dead or cut off, its part stored"),
    ("kill_met", 2, "process 1 to come to Orbax's barrier .*async_write_complete"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("how", "n_processes", "named"), STRUCK)
def test_a_process_that_is_struck_is_named_in_time_and_nothing_is_published(
    tmp_path, how, n_processes, named
):
    killed = {n_processes - 1: -9} if how.startswith("kill") else {}
    *survivors, struck = several.run_job(how, tmp_path, n_processes, ends=killed)
    deadline = several.DEADLINE_SECS * (2 if how == "kill_last_orbax" else 1)
    for said in survivors:
        shown = said["said"] if how == "kill_last_orbax" else said["said"][:1]
        assert any(re.match(f"CommitError: .*{named}", text) for text in shown), said
        assert said["seconds"] < (2 if how == "fail" else deadline + 2.8)  # jax rounds up
    if how == "fail":
        assert "No space left" in struck["said"][0]
        assert struck["seconds"] < 2
        restored_by_one(tmp_path / "steps" / "1" / "default", seed=1)  # the second try
    else:
        assert_only_step_0_is_published(tmp_path / "steps")


@pytest.mark.slow
def test_nothing_is_published_when_process_0_dies(tmp_path):
    several.run_job("kill_first", tmp_path, 2, ends={0: -9, 1: None})
    assert_only_step_0_is_published(tmp_path / "steps")


@pytest.mark.slow
def test_every_process_raises_at_once_where_one_saves_another_tree(tmp_path):
    for said in several.run_job("another_tree", tmp_path, 4):
        assert re.match("CommitError: .*The tree that process 3 saved .* differs", said["said"])
        assert said["seconds"] < several.DEADLINE_SECS
    restored_by_one(tmp_path / "1" / "default", seed=1)  # the second try


@pytest.mark.slow
def test_every_process_raises_at_once_where_one_divides_the_tree_otherwise(tmp_path):
    for said in several.run_job("another_division", tmp_path, 2):
        assert re.match("CommitError: .*not divided leaf 'copies/1' of 30000", said["said"])
        assert said["seconds"] < several.DEADLINE_SECS
    assert not list(tmp_path.rglob("manifest.json"))


def assert_only_step_0_is_published(steps) -> None:
    assert [path.parent.parent.name for path in steps.rglob("manifest.json")] == ["0"]
    restored_by_one(steps / "0" / "default")


def test_nothing_of_ours_gathers_or_sends_data_or_plans():
    sources = Path(ogds.__file__).parent.rglob("*.py")
    ways = ("multihost_utils", "process_allgather", "broadcast_one_to_all", "key_value_")
    assert [path.name for path in sources if any(way in path.read_text() for way in ways)] == []
