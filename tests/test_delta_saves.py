"""Steps under a manager: which step each is coded against, and that each restores, always."""

import gc
import logging
import shutil
import threading
import weakref

import numpy as np
import orbax.checkpoint as ocp
import pytest
from delta_runs import (
    EVERY,
    Job,
    asked_policy,
    assert_restores,
    base_of,
    item_of,
    manager,
    n_links,
    save,
    state,
)

import orbax_gds as ogds
from orbax_gds import base_step, delta_save, keeping, linked_stripes, saving
from orbax_gds.errors import CommitError, IoError
from orbax_gds.item import Item


@pytest.fixture
def reports(monkeypatch):
    """The reports of all saves of a test, in order."""
    seen, write = [], saving.Prepared.write

    def noted(*args, **kwargs):
        report = write(*args, **kwargs)
        seen.append(report)
        return report

    monkeypatch.setattr(saving.Prepared, "write", noted)
    return seen


def test_every_step_restores_and_every_third_is_full(tmp_path, reports):
    with manager(tmp_path, ogds.Options(delta="EveryN(3)")) as steps:
        for step in range(5):
            save(steps, step)
    assert [base_of(tmp_path, step) for step in range(5)] == [None, 0, 1, None, 3]
    assert [n_links(item_of(tmp_path, step)) for step in range(5)] == [0, 1, 2, 0, 1]
    for step in range(5):
        assert_restores(item_of(tmp_path, step), step)
    assert [report.chain_length for report in reports] == [0, 1, 2, 0, 1]
    assert [report.delta_reason for report in reports] == [
        "there is no earlier step",
        None,
        None,
        "EveryN(3) asks for a full step",
        None,
    ]
    assert reports[1].bytes_out < 0.1 * reports[0].bytes_out


def test_without_the_option_no_step_is_a_delta_and_nothing_is_looked_for(
    tmp_path, reports, monkeypatch
):
    monkeypatch.setattr(delta_save, "find_base", None)
    Job(tmp_path, ogds.Options()).save(0, 1)
    assert [(one.base, one.delta_reason, one.chunks) for one in reports] == [(None, None, {})] * 2
    assert "find base" not in reports[1].seconds


def test_one_step_is_enough_to_restore(tmp_path):
    with manager(tmp_path, max_to_keep=1) as steps:
        for step in range(4):
            save(steps, step)
        assert steps.all_steps() == [3]
    assert n_links(item_of(tmp_path, 3)) == 3
    assert_restores(item_of(tmp_path, 3), 3)
    shutil.copytree(tmp_path / "3", tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "3")
    assert_restores(tmp_path / "elsewhere" / "default", 3)


def test_the_best_steps_are_kept_whatever_they_follow_from(tmp_path):
    best = {"best_fn": lambda metrics: metrics["loss"], "best_mode": "min", "max_to_keep": 1}
    with manager(tmp_path, enable_background_delete=True, **best) as steps:
        for step, loss in enumerate([4.0, 2.0, 3.0, 5.0, 1.0]):
            save(steps, step, metrics={"loss": loss})
        steps.wait_until_finished()
        (kept,) = steps.all_steps()
    assert_restores(item_of(tmp_path, kept), kept)


def test_a_restart_finds_the_last_step_and_its_chain_again(tmp_path):
    for step in range(5):
        Job(tmp_path, ogds.Options(delta=ogds.EveryN(3))).save(step)
    assert [base_of(tmp_path, step) for step in range(5)] == [None, 0, 1, None, 3]


@pytest.mark.parametrize("fresh", [False, True])
def test_after_a_restore_of_an_older_step_that_is_the_base(tmp_path, fresh):
    job = Job(tmp_path)
    job.save(*range(4))
    job = Job(tmp_path) if fresh else job
    job.restore(1)
    job.save(4)
    Job(tmp_path).save(5)
    assert [base_of(tmp_path, step) for step in (4, 5)] == [1, 4]
    assert_restores(item_of(tmp_path, 4), 4)
    assert_restores(item_of(tmp_path, 5), 5)


@pytest.mark.parametrize(
    "asked",
    [
        {"leaves": ["b"]},
        {"item": {"b": 0}, "partial_restore": True},
        {"item": {"b": 0, "w": ..., "step": ...}},
    ],
)
def test_a_restore_of_a_part_changes_no_base(tmp_path, asked):
    job = Job(tmp_path)
    job.save(0, 1)
    if "item" in asked:
        asked["item"]["b"] = state(0)["b"]
    job.restore(0, **asked)
    job.save(2)
    assert base_of(tmp_path, 2) == 1
    job.restore(0, item=state(0), partial_restore=True)  # all of it
    job.save(3)
    assert base_of(tmp_path, 3) == 0


def test_where_links_are_impossible_no_step_but_the_last_serves(tmp_path, monkeypatch, reports):
    job = Job(tmp_path)
    job.save(0, 1)
    shutil.rmtree(item_of(tmp_path, 1) / "base")
    monkeypatch.setattr(linked_stripes.os, "link", _no_link)
    policy = asked_policy(tmp_path)
    job.save(2)
    assert "the last step alone" in reports[-1].delta_reason
    del policy


def test_code_for_orbaxs_own_handlers_saves_deltas(tmp_path):
    with manager(tmp_path) as steps:
        for step in range(2):
            steps.save(step, args=ocp.args.StandardSave(state(step)))
        steps.wait_until_finished()
        got = steps.restore(1, args=ocp.args.StandardRestore(state(1)))
    assert base_of(tmp_path, 1) == 0
    assert got["w"].tobytes() == state(1)["w"].tobytes()


def test_items_of_one_step_follow_from_their_own(tmp_path):
    job = Job(tmp_path)
    for step in range(3):
        job.save(step, name="a")
        job.save(step, name="b_7", seed=1)
    for step in range(3):
        assert_restores(tmp_path / str(step) / "a", step)
        assert_restores(tmp_path / str(step) / "b_7", step, seed=1)
        assert n_links(tmp_path / str(step) / "a") == step
        assert n_links(tmp_path / str(step) / "b_7") == step


def test_two_runs_do_not_mix(tmp_path):
    one, other = Job(tmp_path / "run_1"), Job(tmp_path / "run_2")
    other.handler = one.handler
    for step in range(3):
        one.save(step)
        other.save(step, seed=1)
    for job in (one, other):
        assert [base_of(job.root, step) for step in range(3)] == [None, 0, 1]
    assert_restores(item_of(one.root, 2), 2)
    assert_restores(item_of(other.root, 2), 2, seed=1)


@pytest.mark.parametrize("fresh", [False, True])
def test_a_step_that_is_deleted_and_saved_again_follows_from_the_one_before(tmp_path, fresh):
    job = Job(tmp_path)
    job.save(*range(3))
    shutil.rmtree(tmp_path / "2")
    (Job(tmp_path) if fresh else job).save(2)
    assert base_of(tmp_path, 2) == 1
    assert_restores(item_of(tmp_path, 2), 2)


def test_a_save_that_fails_is_no_base(tmp_path, monkeypatch):
    with manager(tmp_path) as steps:
        save(steps, 0)
        with monkeypatch.context() as patch:
            patch.setattr(saving, "leave_pending", _refuse)
            with pytest.raises(IoError):
                save(steps, 1)
        save(steps, 2)
    assert base_of(tmp_path, 2) == 0
    assert_restores(item_of(tmp_path, 2), 2)


def _refuse(*args, **kwargs):
    raise IoError(5, "Refused")


def test_a_step_that_was_rolled_back_is_no_base(tmp_path):
    job = Job(tmp_path)
    job.save(0, 1)
    (tmp_path / "1").rename(tmp_path / "1.orbax-checkpoint-tmp")  # published, but not committed
    job.save(2)
    assert base_of(tmp_path, 2) == 0


@pytest.mark.parametrize("when", ["found", "linked"])
def test_a_base_that_is_deleted_while_the_save_runs_breaks_nothing(
    tmp_path, monkeypatch, when, reports
):
    job = Job(tmp_path)
    job.save(0, 1)
    name = "link_stripes" if when == "found" else "open_stripe"
    original = getattr(base_step, name)

    def racing(*args):
        for step in (0, 1):
            shutil.rmtree(tmp_path / str(step), ignore_errors=True)
        return original(*args)

    monkeypatch.setattr(base_step, name, racing)
    job.save(2)
    assert (reports[-1].base is None) == (when == "found")
    assert_restores(item_of(tmp_path, 2), 2)


def _no_link(*args, **kwargs):
    raise OSError(18, "Invalid cross-device link")


def test_where_links_are_impossible_and_nothing_keeps_bases_steps_are_full(
    tmp_path, monkeypatch, caplog, reports
):
    monkeypatch.setattr(linked_stripes.os, "link", _no_link)
    monkeypatch.setattr(keeping, "_in_use", weakref.WeakSet())
    with caplog.at_level(logging.WARNING, "orbax_gds"):
        Job(tmp_path).save(*range(3))
    assert caplog.text.count(f"Steps under {tmp_path} are full: stripes of earlier steps") == 1
    assert "KeepBases" in reports[2].delta_reason
    shutil.rmtree(tmp_path / "0")
    shutil.rmtree(tmp_path / "1")
    assert_restores(item_of(tmp_path, 2), 2)


def test_where_links_are_impossible_and_bases_are_kept_a_step_needs_the_others(
    tmp_path, monkeypatch, reports
):
    monkeypatch.setattr(linked_stripes.os, "link", _no_link)
    policy = asked_policy(tmp_path)
    Job(tmp_path).save(*range(4))
    assert [base_of(tmp_path, step) for step in range(4)] == [None, 0, 1, 2]
    for step in range(4):
        assert_restores(item_of(tmp_path, step), step)
        assert not (item_of(tmp_path, step) / "base").exists()
    assert reports[1].base is not None
    shutil.rmtree(tmp_path / "0")
    with pytest.raises(FileNotFoundError, match=reports[1].base):
        ogds.restore(item_of(tmp_path, 3))
    del policy


@pytest.mark.slow
def test_a_policy_that_is_asked_while_a_save_runs_counts_from_the_next_one_on(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(linked_stripes.os, "link", _no_link)
    job, find_base, policies = Job(tmp_path), delta_save.find_base, []
    job.save(0)

    def asked_first(*arguments, **named):
        policies.append(asked_policy(tmp_path))
        return find_base(*arguments, **named)

    monkeypatch.setattr(delta_save, "find_base", asked_first)
    job.save(1, 2)
    assert [base_of(tmp_path, step) for step in range(3)] == [None, None, 1]


def test_a_base_that_is_gone_and_was_not_linked_is_not_published_without(tmp_path, monkeypatch):
    monkeypatch.setattr(linked_stripes.os, "link", _no_link)
    policy = asked_policy(tmp_path)
    job = Job(tmp_path)
    job.save(0)
    publish = saving.publish

    def late(directory):
        shutil.rmtree(tmp_path / "0", ignore_errors=True)
        return publish(directory)

    monkeypatch.setattr(saving, "publish", late)
    with pytest.raises(CommitError, match="gone"):
        job.save(1)
    with pytest.raises(FileNotFoundError):
        ogds.restore(item_of(tmp_path, 1))
    job.save(2)
    assert base_of(tmp_path, 2) is None
    assert_restores(item_of(tmp_path, 2), 2)
    del policy


def test_training_does_not_wait_for_the_base(tmp_path, monkeypatch):
    threads, find = [], delta_save.find_base
    monkeypatch.setattr(
        delta_save,
        "find_base",
        lambda *args, **kwargs: threads.append(threading.current_thread()) or find(*args, **kwargs),
    )
    with manager(tmp_path) as steps:
        save(steps, 0)
        save(steps, 1)
    assert len(threads) == 2
    assert threading.main_thread() not in threads


def test_windows_and_a_paced_save_are_deltas_too(tmp_path):
    for name, options in {
        "windows": ogds.Options(delta=EVERY.delta, staging_bytes=1, derive=False),
        "paced": ogds.Options(delta=EVERY.delta, io_rate="1GiB"),
    }.items():
        for step in (1, 2):
            ogds.save(tmp_path / name / str(step), state(step), options=options)
        assert n_links(tmp_path / name / "2") == 1
        assert_restores(tmp_path / name / "2", 2)


def test_words_that_all_change_give_a_full_step(tmp_path):
    for step in (1, 2):
        words = np.random.default_rng(step).integers(0, 2**32, 50_000, np.uint32)
        report = ogds.save(tmp_path / str(step), {"w": words}, options=EVERY)
    assert (report.base, report.chunks) == (None, {})
    assert report.delta_reason == "no chunk is smaller as a delta"
    assert not (tmp_path / "2" / "base").exists()


def test_a_save_where_an_item_was_deleted_in_part_changes_no_step_that_follows_from_it(tmp_path):
    Job(tmp_path).save(0, 1, 2)
    (item_of(tmp_path, 1) / "manifest.json").unlink()  # the stripe is still there, linked by 2
    Job(tmp_path).save(1, seed=5)
    assert_restores(item_of(tmp_path, 1), 1, seed=5)
    assert_restores(item_of(tmp_path, 2), 2)


@pytest.mark.parametrize("failing", ["leave_pending", "kept_reports.leave", "sync_directory"])
def test_a_save_that_fails_once_its_stripe_is_written_leaves_no_links(
    tmp_path, monkeypatch, failing
):
    job = Job(tmp_path)
    job.save(0)
    with monkeypatch.context() as patch:
        where, _, name = failing.rpartition(".")
        patch.setattr(getattr(saving, where) if where else saving, name, _refuse)
        with pytest.raises(IoError):
            job.save(1)
    assert n_links(item_of(tmp_path, 1)) == 0
    (item_of(tmp_path, 1) / "p00000.ogds").stat()  # written before
    job.save(1)
    assert base_of(tmp_path, 1) == 0
    assert_restores(item_of(tmp_path, 1), 1)


@pytest.mark.parametrize("name", ["find_stripes", "link_stripes"])
def test_where_the_last_step_is_deleted_while_it_is_linked_one_before_it_serves(
    tmp_path, monkeypatch, name, reports, caplog
):
    job = Job(tmp_path)
    job.save(0, 1, 2)
    original = getattr(base_step, name)

    def racing(*args):
        shutil.rmtree(tmp_path / "2", ignore_errors=True)
        return original(*args)

    monkeypatch.setattr(base_step, name, racing)
    job.save(3)
    assert base_of(tmp_path, 3) == 1
    assert (reports[-1].delta_reason, reports[-1].chain_length) == (None, 2)
    assert "is no base for" in caplog.text
    assert_restores(item_of(tmp_path, 3), 3)


def test_a_prepared_save_that_is_written_holds_no_tables_of_its_base(tmp_path):
    ogds.save(tmp_path / "1", state(1), options=EVERY)
    (tmp_path / "2").mkdir()
    prepared = saving.prepare(state(2), options=EVERY)
    held = []
    choose = saving.choose_coding

    def noted(save, *args, **kwargs):
        held.append(weakref.ref(save._delta.base))
        return choose(save, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saving, "choose_coding", noted)
        report = prepared.write(tmp_path / "2")
    assert report.base is not None
    gc.collect()
    assert held[0]() is None


def test_a_text_of_another_length_gives_a_full_step(tmp_path, reports):
    job = Job(tmp_path)
    for step, note in enumerate(["a", "b", "bc"]):
        job.handler.save(item_of(tmp_path, step), ogds.args.GdsSave({**state(step), "n": note}))
    assert [report.base is None for report in reports] == [True, False, True]
    assert "structure" in reports[2].delta_reason


def test_the_frames_of_a_chain_are_bounded_in_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr("orbax_gds.base_step._MOST_BYTES", 350_000)
    rng, words = np.random.default_rng(3), np.linspace(1, 2, 1 << 16, dtype=np.float32)
    options = ogds.Options(delta=ogds.EveryN(8))
    n_deltas = []
    for step in range(6):
        words = words * (1 + 1e-5 * rng.random(words.size, np.float32))
        report = ogds.save(tmp_path / str(step) / "default", {"w": words}, options=options)
        n_deltas.append(report.chunks["delta"].n_chunks if report.chunks else 0)
        with Item(tmp_path / str(step) / "default") as item:
            assert item.read_leaf(0).tobytes() == words.tobytes()
            assert 200_000 < item.bytes_read < 350_000 + report.bytes_out
    assert set(n_deltas[1:]) == {0, 1}
