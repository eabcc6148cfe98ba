"""What is kept and what is deleted: never anything that a step which can be read needs."""

import contextlib
import copy
import errno
import json
import os
import shutil
import tempfile
import time
import weakref
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from click.testing import CliRunner
from delta_items import drifting, follow, steps_of
from hypothesis import given, settings
from hypothesis import strategies as st
from in_memory import assert_same_bits

import orbax_gds as ogds
from orbax_gds import keeping, known_steps, pruning, retention
from orbax_gds.cli import main
from orbax_gds.commit import read_manifest
from orbax_gds.keeping import why_not_kept
from orbax_gds.named_stripes import named_stripes
from orbax_gds.pruning import orphans, prune
from orbax_gds.retention import KeepBases

LatestN = ocp.checkpoint_managers.LatestN
N_WORDS = 3000


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Handlers and policies that other tests left keep no steps here, whenever they go."""
    monkeypatch.setattr(known_steps, "_in_use", weakref.WeakSet())
    monkeypatch.setattr(keeping, "_in_use", weakref.WeakSet())


def run(*arguments):
    return CliRunner().invoke(main, [os.fspath(argument) for argument in arguments])


@contextlib.contextmanager
def links(possible):
    """Make the system refuse hard links, or not."""

    def refuse(*arguments, **options):
        raise OSError(errno.EPERM, "Operation not permitted")

    with pytest.MonkeyPatch.context() as patch:
        if not possible:
            patch.setattr(os, "link", refuse)
        yield


def state(step):
    words = np.arange(40_000, dtype=np.uint32) + step
    return {"w": jnp.asarray(words.view(np.float32)), "n": jnp.arange(step + 1)}


def manager(root, policy, delta):
    options = ogds.Options(delta=delta)
    return ocp.CheckpointManager(
        root,
        item_handlers=ogds.GdsCheckpointHandler(options),
        options=ocp.CheckpointManagerOptions(preservation_policy=policy),
    )


def asked(policy):
    """A policy that a manager has asked."""
    policy.should_preserve([], context=None)
    return policy


def tree(step):
    return {"w": state(step)["w"], "b": jnp.ones(9)}


@pytest.mark.slow
@pytest.mark.parametrize("with_directory", [False, True])
def test_steps_that_kept_ones_follow_from_stay_where_links_fail(tmp_path, with_directory):
    policy = KeepBases(LatestN(1), tmp_path if with_directory else None)
    seen = []
    with links(False), manager(tmp_path, policy, ogds.EveryN(3)) as saves:
        for step in range(7):
            saves.save(step, args=ogds.args.GdsSave(tree(step)))
            saves.wait_until_finished()
            for kept in saves.all_steps():
                restored = saves.restore(kept, args=ogds.args.GdsRestore())
                assert_same_bits(restored, tree(kept))
            seen.append(sorted(map(int, os.listdir(tmp_path))))
    assert not read_manifest(tmp_path / "5" / "default").base.linked
    # 0, 3 and 6 are full; the step before the last may be what the last was coded against
    assert seen[:3] == [[0], [0, 1], [0, 1, 2]]
    assert seen[4] == [3, 4]
    assert seen[6] == [3, 4, 5, 6]


@pytest.mark.slow
def test_after_a_restart_what_the_next_save_may_follow_from_stays(tmp_path):
    with links(False):
        with manager(tmp_path, KeepBases(LatestN(5), tmp_path), ogds.EveryN(9)) as saves:
            for step in range(4):
                saves.save(step, args=ogds.args.GdsSave(tree(step)))
        shutil.rmtree(tmp_path / "3")
        policy = asked(KeepBases(LatestN(1), tmp_path))  # else the first step would be full
        with manager(tmp_path, policy, ogds.EveryN(9)) as saves:
            saves.restore(1, args=ogds.args.GdsRestore())
            for step in (8, 9):
                saves.save(step, args=ogds.args.GdsSave(tree(step)))
                saves.wait_until_finished()
                restored = saves.restore(step, args=ogds.args.GdsRestore())
                assert_same_bits(restored, tree(step))
    assert sorted(os.listdir(tmp_path)) == ["0", "1", "8", "9"]


def test_without_the_policy_steps_are_full_where_links_fail(tmp_path, caplog):
    unused = KeepBases(LatestN(1), tmp_path)  # vouches for nothing, as no manager has it
    with links(False), manager(tmp_path, LatestN(1), ogds.EveryN(9)) as saves:
        for step in range(3):
            saves.save(step, args=ogds.args.GdsSave(tree(step)))
        saves.wait_until_finished()
        assert_same_bits(saves.restore(2, args=ogds.args.GdsRestore()), tree(2))
    assert sorted(os.listdir(tmp_path)) == ["2"]
    assert read_manifest(tmp_path / "2" / "default").base is None
    assert caplog.text.count("no manager has asked KeepBases yet") == 1
    del unused


def why_not(root):
    return why_not_kept(root, time.monotonic())


def test_a_policy_vouches_for_its_own_directory_while_it_is_in_use(tmp_path):
    mine, other = tmp_path / "mine", tmp_path / "other"
    handler = ogds.GdsCheckpointHandler(ogds.Options(delta=ogds.EveryN(9)))
    assert "no KeepBases" in why_not(mine)
    policy, began = KeepBases(LatestN(1)), time.monotonic()
    assert "asked KeepBases yet" in why_not(mine)
    asked(policy)
    assert "asked KeepBases yet" in why_not_kept(mine, began)  # of a save that ran meanwhile
    assert why_not(mine) is None
    handler.save(mine / "0" / "default", ogds.args.GdsSave({"w": 1}))
    assert why_not(mine) is None
    assert "directory" in why_not(other)
    named = asked(KeepBases(LatestN(1), other))
    assert why_not(other) is None
    assert "directory" in why_not(tmp_path)
    handler.save(other / "0" / "default", ogds.args.GdsSave({"w": 1}))
    assert why_not(mine) is None  # the other one has a policy of its own
    del policy
    assert "no KeepBases" in why_not(mine)
    (tmp_path / "link").symlink_to(other)
    assert why_not(tmp_path / "link") is None
    copied = copy.deepcopy(named)
    del named
    assert "no KeepBases" in why_not(other)
    asked(copied)
    assert why_not(other) is None
    del copied


def test_a_policy_without_a_directory_serves_one_root_even_after_its_handler_is_closed(tmp_path):
    policy = asked(KeepBases(LatestN(1)))
    handler = ogds.GdsCheckpointHandler(ogds.Options(delta=ogds.EveryN(9)))
    handler.save(tmp_path / "one" / "0" / "default", ogds.args.GdsSave({"w": 1}))
    assert why_not(tmp_path / "one") is None
    handler.close()
    assert "directory" in why_not(tmp_path / "other")
    assert why_not(tmp_path / "one") is None
    del policy


def test_linked_steps_need_only_the_last_one_besides(tmp_path):
    with manager(tmp_path, KeepBases(LatestN(1)), ogds.EveryN(9)) as saves:
        for step in range(4):
            saves.save(step, args=ogds.args.GdsSave(tree(step)))
        saves.wait_until_finished()
    assert sorted(os.listdir(tmp_path)) == ["2", "3"]


def test_a_manager_that_is_closed_keeps_no_steps(tmp_path):
    for root, n_steps in (("closed", 3), ("open", 6)):
        with manager(tmp_path / root, KeepBases(LatestN(1)), ogds.EveryN(9)) as saves:
            for step in range(n_steps):
                saves.save(step, args=ogds.args.GdsSave({"w": state(step)["n"]}))
            saves.wait_until_finished()
            if root == "closed":
                held = saves  # not collected before the end
    assert sorted(os.listdir(tmp_path / "open")) == ["4", "5"]
    held.close()


class Fixed:
    """Keeps the steps it was given."""

    def __init__(self, steps):
        self.steps = steps

    def should_preserve(self, checkpoints, *, context):
        return [info.step in self.steps for info in checkpoints]


class Info:
    def __init__(self, step):
        self.step = step


def preserved(root, kept, steps):
    policy = KeepBases(Fixed(kept), root)
    answer = policy.should_preserve([Info(step) for step in steps], context=None)
    return [step for step, keep in zip(steps, answer, strict=True) if keep]


def chain(root, n, *, linked):
    items = steps_of(root, n)
    leaf = {"w": np.arange(N_WORDS, dtype=np.uint16), "still": np.ones(N_WORDS, np.uint16)}
    for item, each in zip(items, drifting(leaf, n), strict=True):
        ogds.save(item, each)
    follow(items, linked=linked)
    return items


def test_only_manifests_that_need_others_keep_them(tmp_path):
    chain(tmp_path / "a", 3, linked=False)
    assert preserved(tmp_path / "a", {2}, [0, 1, 2]) == [0, 1, 2]
    assert preserved(tmp_path / "a", {1}, [0, 1, 2]) == [0, 1]
    assert preserved(tmp_path / "a", {0}, [0, 1, 2]) == [0]
    assert preserved(tmp_path / "a", set(), [0, 1, 2]) == []
    assert preserved(tmp_path / "a", {3}, [0, 1, 2, 3]) == [0, 1, 2, 3]  # 3 is being saved
    chain(tmp_path / "b", 3, linked=True)
    assert preserved(tmp_path / "b", {2}, [0, 1, 2]) == [2]
    assert preserved(tmp_path / "none", {2}, [0, 1, 2]) == [2]


def test_a_step_kept_for_another_root_keeps_what_it_follows_from(tmp_path, monkeypatch):
    chain(tmp_path / "a", 3, linked=False)
    for step in ("a/4", "b/2"):
        ogds.save(tmp_path / step / "default", {"w": np.ones(9)})
    roots = {tmp_path / root: [] for root in ("a", "b")}
    monkeypatch.setattr(retention, "known_roots", lambda: roots)
    # 5 is being saved, under b perhaps from 2
    assert preserved(None, {5}, range(6)) == [0, 1, 2, 4, 5]
    del roots[tmp_path / "b"]
    assert preserved(None, {5}, range(6)) == [4, 5]


def test_the_last_step_of_each_item_stays_where_some_are_saved_more_rarely(tmp_path):
    for step, name in ((0, "state"), (1, "weights"), (1, "log"), (2, "log")):
        ogds.save(tmp_path / str(step) / name, {"w": np.ones(9)})
    assert preserved(tmp_path, {3}, [0, 1, 2, 3]) == [0, 1, 2, 3]
    assert preserved(tmp_path, {2}, [0, 1, 2]) == [2]


def test_where_orbax_writes_in_place_the_last_step_that_it_committed_stays(tmp_path):
    for step in range(3):
        ogds.save(tmp_path / str(step) / "default", {"w": np.ones(9)})
        if step < 2:
            (tmp_path / str(step) / "commit_success.txt").touch()
    assert preserved(tmp_path, {3}, [0, 1, 2, 3]) == [1, 2, 3]


def test_a_root_that_cannot_be_read_keeps_all_and_a_damaged_step_needs_nothing(tmp_path):
    items = chain(tmp_path, 3, linked=False)
    (items[2] / "manifest.json").write_text("{")
    assert preserved(tmp_path, {2}, [0, 1, 2]) == [0, 1, 2]  # as if 2 were being saved
    assert preserved(tmp_path, {1}, [0, 1, 2]) == [0, 1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "iterdir", lambda self: (_ for _ in ()).throw(PermissionError(13, "")))
        assert preserved(tmp_path, {2}, [0, 1, 2]) == [0, 1, 2]


def test_a_step_that_is_deleted_meanwhile_takes_no_other_with_it(tmp_path):
    chain(tmp_path, 3, linked=False)
    (tmp_path / "7").mkdir()
    iterdir = Path.iterdir

    def listed(path):
        if path.name == "7":
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return iterdir(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "iterdir", listed)
        assert preserved(tmp_path, {2}, [0, 1, 2]) == [0, 1, 2]


def test_what_is_known_of_deleted_steps_is_let_go(tmp_path):
    items = chain(tmp_path, 3, linked=True)
    policy = KeepBases(Fixed({2}), tmp_path)
    for left in (3, 1):
        policy.should_preserve([Info(1), Info(2)], context=None)
        assert len(policy._known) == left
        for item in items[:2]:
            shutil.rmtree(item.parent, ignore_errors=True)


JUNK = ("p00007.ogds", "manifest.json.pending", "manifest.json.tmp", "p00000.pending")
JUNK += ("p00001.probe", "p00000.report.json.pending", "base/" + "ab" * 16 + ".ogds")
MINE = ("notes.txt", "manifest.json.bak", "p0.ogds.old", "base/mine.txt", "weights.ogds.txt")


def readable(root):
    """What every step that can be read restores to."""
    found = {}
    for manifest in sorted(root.glob("*/*/manifest.json")):
        with contextlib.suppress(ogds.errors.OgdsError):
            found[manifest.parent] = ogds.restore(manifest.parent)
    return found


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_pruning_takes_nothing_that_a_readable_step_needs(data):
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        items = chain(root, 4, linked=data.draw(st.booleans()))
        gone = data.draw(st.sets(st.integers(0, 3), max_size=3), label="deleted")
        for step in gone:
            shutil.rmtree(items[step].parent)
        left = [item for n, item in enumerate(items) if n not in gone]
        junk = []
        for item in data.draw(st.lists(st.sampled_from(left), unique=True), label="littered"):
            (item / "base").mkdir(exist_ok=True)
            names = data.draw(st.sets(st.sampled_from(JUNK)))
            for name in (*names, *MINE):
                (item / name).write_bytes(b"x" * 10)
            junk += [item / name for name in names]
        for name in data.draw(st.sets(st.sampled_from(["9.orbax-checkpoint-tmp", "7"]))):
            shutil.copytree(left[0], root / name / "default")
            if name == "7":
                manifest = root / name / "default" / "manifest.json"
                manifest.rename(manifest.with_name("manifest.json.pending"))
                for mine in MINE:  # with which it would stay
                    (root / name / "default" / mine).unlink(missing_ok=True)
            junk.append(root / name if name != "7" else root / name / "default")
        cut = data.draw(st.sampled_from([None, *left]), label="manifest lost")
        if cut is not None and not any(cut in each.parents for each in junk):
            (cut / "manifest.json").unlink()
        before = readable(root)
        files = {path for path in root.rglob("*") if path.is_file()}
        listed = prune(root, unfinished=True, min_age_secs=0)
        assert {path for path in root.rglob("*") if path.is_file()} == files
        assert {Path(orphan.path) for orphan in listed} == set(junk)
        assert prune(root, unfinished=True) == []  # all of it is young
        deleted = prune(root, dry_run=False, unfinished=True, min_age_secs=0)
        assert deleted == listed
        assert orphans(root, unfinished=True, min_age_secs=0) == []
        after = readable(root)
        kept = {item for item in before if ".orbax" not in str(item)}
        assert after.keys() == kept
        for item in kept:
            assert_same_bits(after[item], before[item])
        for item in left:
            assert all((item / name).exists() for name in MINE if (item / name) in files)


def test_where_a_manifest_cannot_be_read_no_stripe_is_an_orphan(tmp_path):
    items = chain(tmp_path, 2, linked=True)
    for item in items:
        shutil.copy(item / "p00000.ogds", item / "p00003.ogds")
        (item / "p00009.ogds").write_bytes(b"no stripe")
        (item / "p00000.pending").write_bytes(b"{}")
    found = {Path(each.path).name for each in orphans(tmp_path, min_age_secs=0)}
    assert found == {"p00009.ogds", "p00000.pending"}  # 3 has a uuid that is named
    (items[0] / "manifest.json").write_text("{")
    found = {Path(each.path).name for each in orphans(tmp_path, min_age_secs=0)}
    assert found == {"p00000.pending"}


def test_a_directory_that_holds_other_things_is_no_unfinished_save(tmp_path):
    (item,) = chain(tmp_path, 1, linked=True)
    (item / "manifest.json").rename(item / "manifest.json.pending")
    (item / "base").mkdir()
    assert [each.path for each in orphans(tmp_path, unfinished=True, min_age_secs=0)] == [str(item)]
    (item / "notes").mkdir()
    (item / "notes" / "mine").touch()
    assert orphans(tmp_path, unfinished=True, min_age_secs=0) == []


def test_stripes_behind_a_link_are_left_alone(tmp_path):
    (item,) = chain(tmp_path / "root", 1, linked=True)
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / f"{0:032x}.ogds").touch()
    (item / "base").symlink_to(tmp_path / "shared")
    assert orphans(tmp_path / "root", min_age_secs=0) == []


def test_a_save_that_goes_on_after_it_was_found_is_not_deleted(tmp_path, monkeypatch):
    (item,) = chain(tmp_path, 1, linked=True)
    pending = item / "manifest.json.pending"
    (item / "manifest.json").rename(pending)
    search = pruning.orphans

    def found(*arguments, **options):
        listed = search(*arguments, **options)
        pending.rename(item / "manifest.json")
        return listed

    monkeypatch.setattr(pruning, "orphans", found)
    assert prune(tmp_path, dry_run=False, unfinished=True, min_age_secs=0) == []
    assert ogds.verify(item) == []


@pytest.mark.parametrize("name", ["1", "1/default", "0/default/p00000.pending"])
def test_what_a_job_deletes_while_it_is_listed_is_left_out(tmp_path, monkeypatch, name):
    items = chain(tmp_path, 2, linked=True)
    (items[0] / "p00000.pending").touch()
    (items[0] / "p00001.probe").touch()
    children = pruning._children

    def then_gone(directory):
        listed = children(directory)
        if tmp_path / name in listed:
            path = tmp_path / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return listed

    monkeypatch.setattr(pruning, "_children", then_gone)
    left = {Path(each.path).name for each in orphans(tmp_path, min_age_secs=0)}
    assert left == {"p00001.probe"} | ({"p00000.pending"} if name[0] == "1" else set())


def test_what_is_freed_counts_no_file_that_has_another_link(tmp_path):
    items = chain(tmp_path, 2, linked=True)
    shutil.copytree(items[1], tmp_path / "5.orbax-checkpoint-tmp" / "default")
    inside = tmp_path / "5.orbax-checkpoint-tmp" / "default"
    (inside / "p00000.ogds").unlink()
    os.link(items[1] / "p00000.ogds", inside / "p00000.ogds")
    (only,) = orphans(tmp_path, unfinished=True, min_age_secs=0)
    files = [path for path in inside.rglob("*") if path.is_file() and path.stat().st_nlink == 1]
    assert (only.path, only.kind) == (str(inside.parent), "unfinished")
    assert only.n_bytes == sum(path.stat().st_size for path in files)


def test_the_command_deletes_only_when_asked(tmp_path):
    items = chain(tmp_path, 2, linked=True)
    (items[0] / "p00001.probe").write_bytes(b"1234")
    left = ["--older-than", "0s"]
    nothing = run("prune", tmp_path).stderr
    assert "holds nothing" in nothing
    assert "--unfinished" in nothing
    assert "--older-than" in nothing
    assert "Left out" not in run("prune", items[1], "--unfinished", *left).stderr
    done = run("prune", tmp_path, *left)
    assert done.exit_code == 0
    assert done.stdout.split() == ["leftover", "4", "B", str(items[0] / "p00001.probe")]
    assert "--delete would" in done.stderr
    found = json.loads(run("prune", tmp_path, *left, "--json").stdout)
    assert (found["dry_run"], found["n_bytes"], len(found["orphans"])) == (True, 4, 1)
    assert (items[0] / "p00001.probe").exists()
    assert "deleted" in run("prune", tmp_path, *left, "--delete").stderr
    assert not (items[0] / "p00001.probe").exists()
    assert run("prune", tmp_path / "gone").exit_code == 2
    assert run("prune", tmp_path, "--older-than", "soon").exit_code == 2


def test_a_save_that_runs_is_left_alone_unless_asked(tmp_path):
    items = chain(tmp_path, 2, linked=True)
    shutil.copytree(items[1], tmp_path / "2.orbax-checkpoint-tmp" / "default")
    assert orphans(tmp_path, min_age_secs=0) == []
    assert orphans(tmp_path, unfinished=True) == []
    old = pruning.time.time() - 2 * pruning.DAY_SECS
    for path in (tmp_path / "2.orbax-checkpoint-tmp").rglob("*"):
        os.utime(path, (old, old))
    assert orphans(tmp_path, unfinished=True) == []  # its directory is young
    os.utime(tmp_path / "2.orbax-checkpoint-tmp", (old, old))
    assert len(orphans(tmp_path, unfinished=True)) == 1


def test_chains_are_counted(tmp_path):
    lengths = [named_stripes(item).chain_length for item in chain(tmp_path, 3, linked=True)]
    assert lengths == [0, 1, 2]
