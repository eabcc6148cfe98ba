"""Which step a save is coded against: never one that does not fit, is damaged or was not saved."""

import dataclasses
import errno
import logging
import shutil
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from click.testing import CliRunner
from delta_runs import (
    EVERY,
    Job,
    assert_restores,
    base_of,
    item_of,
    manager,
    n_links,
    save,
    state,
    stripe,
)

import orbax_gds as ogds
from orbax_gds import coding_choice, commit, kept_reports, saving, weighing
from orbax_gds.cli import main
from orbax_gds.known_steps import Place, place_of

TMP = ".orbax-checkpoint-tmp"


@pytest.mark.parametrize(
    ("path", "root", "item", "number"),
    [
        (f"run/12{TMP}/default{TMP}", "run", "default", 12),
        (f"run/12{TMP}/default", "run", "default", 12),
        (f"run/step_00000012{TMP}/part_3{TMP}", "run", "part_3", 12),
        (f"run_5/12{TMP}", "run_5", None, 12),
        ("run_5/12", "run_5", None, 12),
        ("run_5/step_12", "run_5", None, 12),
        ("run/12/default", "run", "default", 12),
        ("run/12/part_3", "run", "part_3", 12),
    ],
)
def test_a_step_is_known_by_its_name(path, root, item, number):
    found = place_of(Path("/data") / path)
    assert found == (Place(root=Path("/data") / root, item=item), number)


@pytest.mark.parametrize(
    ("beside", "name", "root", "item", "number"),
    [
        ([], "ckpt_10", "7", None, 10),
        (["7/ckpt_9"], "ckpt_10", "7", None, 10),
        (["7/ckpt_9", "6/ckpt_10"], "ckpt_10", "7", None, 10),  # of two jobs
        (["7/model_9"], "model_10", "7", None, 10),
        (["7/model_9", "6/other_10"], "model_10", "7", None, 10),
        (["7/other_9"], "model_10", ".", "model_10", 7),
        (["6/ckpt_10"], "ckpt_10", "7", None, 10),  # the first of the second
        (["6/model_10"], "model_10", ".", "model_10", 7),
        ([], "part_2", ".", "part_2", 7),
        (["7/part_1", "6/part_1", "6/part_2"], "part_2", ".", "part_2", 7),  # of two steps
        (["run/ckpt_10", "7/ckpt", "7/ckpt_x"], "ckpt_10", "7", None, 10),
    ],
)
def test_below_a_number_an_items_name_or_what_lies_beside_says_which_is_the_step(
    tmp_path, beside, name, root, item, number
):
    for each in beside:
        (tmp_path / each).mkdir(parents=True)
        (tmp_path / each / "manifest.json").touch()
    assert place_of(tmp_path / "7" / name) == (Place(root=tmp_path / root, item=item), number)
    within = (Place(root=tmp_path, item=name), 7)
    assert place_of(tmp_path / f"7{TMP}" / name) == within


def test_steps_of_a_job_whose_directory_is_a_number_are_deltas(tmp_path):
    for job in ("123456", "123457"):
        for step in (9, 10):
            report = ogds.save(tmp_path / job / f"ckpt_{step}", state(step), options=EVERY)
            before = tmp_path / job / f"ckpt_{step - 1}"
            assert report.base == (stripe(before).uuid if step > 9 else None)
    assert_restores(tmp_path / "123457" / "ckpt_10", 10)


def test_what_is_no_step_has_no_number():
    assert place_of(Path("/data/run/weights")) is None


def test_a_save_by_itself_follows_from_the_step_beside_it(tmp_path):
    for step in (3, 9, 10):
        ogds.save(tmp_path / f"step_{step}", state(step), options=EVERY)
    assert stripe(tmp_path / "step_10").base == stripe(tmp_path / "step_9").uuid
    report = ogds.save(tmp_path / "step_8", state(8), options=EVERY)
    assert report.base == stripe(tmp_path / "step_3").uuid
    assert_restores(tmp_path / "step_10", 10)
    report = ogds.save(tmp_path / "best_12", state(12), options=EVERY)
    assert report.delta_reason == "there is no earlier step"
    report = ogds.save(tmp_path / "last", state(11), options=EVERY)
    assert report.delta_reason == "the name of its directory has no step number"


def test_a_save_by_itself_is_full_where_it_could_not_hold_what_it_needs(tmp_path, monkeypatch):
    ogds.save(tmp_path / "1", state(1), options=EVERY)
    monkeypatch.setattr("os.link", _refused)
    report = ogds.save(tmp_path / "2", state(2), options=EVERY)
    assert "cannot be linked" in report.delta_reason
    assert_restores(tmp_path / "2", 2)


def _refused(*args, **kwargs):
    raise OSError(errno.EPERM, "Operation not permitted")


def _with(change) -> dict:
    return {**state(2), **change}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tree", "options", "reason"),
    [
        (_with({"more": 1}), {}, "structure"),
        (_with({"w": state(2)["w"][1:]}), {}, "structure"),
        (_with({"w": state(2)["w"].view(np.int32)}), {}, "dtype"),
        (_with({"copy": state(2)["w"].copy()}), {"derive": True}, "structure"),
        (state(2), {"chunk_bytes": 8192}, "chunk_bytes"),
        (state(2), {"codec": "off"}, "codec off"),
        (state(2), {"delta": ogds.EveryN(1)}, "asks for a full step"),
    ],
)
def test_a_step_that_does_not_fit_is_full_by_itself(tmp_path, tree, options, reason):
    options = dataclasses.replace(EVERY, **options)
    ogds.save(tmp_path / "1", state(1), options=EVERY)
    report = ogds.save(tmp_path / "2", tree, options=options)
    assert reason in report.delta_reason
    assert (report.base, report.chain_length, report.chunks) == (None, 0, {})
    assert not (tmp_path / "2" / "base").exists()
    got = ogds.restore(tmp_path / "2")
    assert got["w"].tobytes() == tree["w"].tobytes()


def test_another_sharding_or_number_of_processes_gives_a_full_step(tmp_path, monkeypatch):
    words = np.arange(64_000, dtype=np.float32)
    shardings = [jax.sharding.SingleDeviceSharding(jax.devices()[0])]
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
    shardings.append(jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x")))
    for step, sharding in enumerate(shardings):
        tree = {"w": jax.device_put(words, sharding)}
        report = ogds.save(tmp_path / str(step), tree, options=EVERY)
    assert "sharding" in report.delta_reason
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    (tmp_path / "2").mkdir()
    report = saving.prepare({"w": words}, options=EVERY).write(tmp_path / "2")
    assert report.delta_reason == "another number of processes: 1 then, 2 now"


def test_of_several_processes_each_follows_from_its_own_stripe(tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    for step in range(3):
        path = tmp_path / str(step)
        path.mkdir()
        for process in range(2):  # all words of NumPy arrays are of process 0
            monkeypatch.setattr(jax, "process_index", lambda number=process: number)
            saving.prepare(state(step), options=EVERY).write(path)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(jax, "process_index", lambda: 0)
            assert saving.commit(path) is not None
    first, second = commit.read_manifest(tmp_path / "2").stripes
    assert (first.base, second.base) == (stripe(tmp_path / "1").uuid, None)
    assert n_links(tmp_path / "2") == 2
    monkeypatch.setattr(jax, "process_index", lambda: 0)
    assert_restores(tmp_path / "2", 2)


def test_a_policy_is_told_of_the_chain(tmp_path):
    chains = []

    class Told:
        def is_full(self, chain):
            chains.append(chain)
            return len(chains) == 3

    job = Job(tmp_path, ogds.Options(delta=Told()))
    job.save(*range(5))
    sizes = [stripe(item_of(tmp_path, step)).bytes for step in range(5)]
    assert chains == [
        ogds.Chain(n_deltas=n, bytes_full=sizes[0], bytes_deltas=tuple(sizes[1 : n + 1]))
        for n in range(3)
    ] + [ogds.Chain(n_deltas=0, bytes_full=sizes[3])]
    assert [base_of(tmp_path, step) for step in range(5)] == [None, 0, 1, None, 3]


class Mistaken:
    """A policy that is wrong in a way that its first save does not show."""

    def __init__(self, wrong, shown=None):
        self.wrong, self.shown = wrong, shown

    def is_full(self, chain):
        return self.wrong(chain)


class MistakenToo(Mistaken):
    def __repr__(self):
        return self.shown()


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        (Mistaken(lambda chain: 1 / 0), "test_base_step.Mistaken raised ZeroDivisionError"),
        (Mistaken(lambda chain: chain.length > 2), "Mistaken raised AttributeError"),
        (Mistaken(lambda chain: setattr(chain, "n_deltas", 0)), "raised FrozenInstanceError"),
        (Mistaken(lambda chain: None), "Mistaken said NoneType, neither True nor False"),
        (Mistaken(lambda chain: "full"), "Mistaken said str, neither True nor False"),
        (MistakenToo(lambda chain: 1, lambda: "ByName"), "ByName said int"),
        (MistakenToo(lambda chain: 1, lambda: 1 / 0), "test_base_step.MistakenToo said int"),
    ],
)
def test_a_mistake_in_a_policy_costs_no_state(tmp_path, caplog, policy, reason):
    options = ogds.Options(delta=policy)
    ogds.save(tmp_path / "1", state(1), options=options)
    report = ogds.save(tmp_path / "2", state(2), options=options)
    assert reason in report.delta_reason
    assert f"The step saved in {tmp_path / '2'} is full" in caplog.text
    assert reason.split()[0] in caplog.text
    assert_restores(tmp_path / "2", 2)


@pytest.mark.parametrize("said", [np.True_, np.False_])
def test_a_policy_may_say_what_numpy_says(tmp_path, said):
    options = ogds.Options(delta=Mistaken(lambda chain: said))
    for step in (1, 2):
        report = ogds.save(tmp_path / str(step), state(step), options=options)
    assert (report.base is None) == bool(said)


def _damage(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def _frame_of_first_chunk(path: Path) -> int:
    return path.read_bytes().index(b"OGF1")


def test_a_base_with_a_damaged_frame_gives_a_full_step(tmp_path, caplog):
    job = Job(tmp_path)
    job.save(0)
    path = item_of(tmp_path, 0) / "p00000.ogds"
    _damage(path, _frame_of_first_chunk(path) + 60)
    with caplog.at_level(logging.WARNING, "orbax_gds"):
        job.save(1)
    assert "cannot be read" in caplog.text
    assert base_of(tmp_path, 1) is None
    assert n_links(item_of(tmp_path, 1)) == 0
    job.save(2)
    job.restore(2)
    assert base_of(tmp_path, 2) == 1
    assert_restores(item_of(tmp_path, 2), 2)


@pytest.mark.slow
@pytest.mark.parametrize("is_first", [True, False])
def test_in_windows_what_follows_a_damaged_frame_is_full_in_every_job(tmp_path, is_first, caplog):
    words = np.random.default_rng(0).standard_normal((3, 2 << 20)).astype(np.float32)
    options = ogds.Options(delta=EVERY.delta, staging_bytes=1)

    def save(step):  # three windows, by a job that has just started
        words[:, step * 1000] += 1
        args = ogds.args.GdsSave(list(words.copy()))
        ogds.GdsCheckpointHandler(options).save(item_of(tmp_path, step), args)

    save(0)
    path = item_of(tmp_path, 0) / "p00000.ogds"
    data = path.read_bytes()
    _damage(path, (data.index if is_first else data.rindex)(b"OGF1") + 60)
    for step in (1, 2):
        save(step)
        assert np.array_equal(ogds.restore(item_of(tmp_path, step)), words)
    assert (base_of(tmp_path, 1) is None) == is_first
    assert caplog.text.count("of an earlier step cannot be read") == 1


@pytest.mark.parametrize("at", [0, 70, -40, -10])
def test_a_base_that_is_no_sound_stripe_gives_a_full_step(tmp_path, at, caplog):
    job = Job(tmp_path)
    job.save(0)
    _damage(item_of(tmp_path, 0) / "p00000.ogds", at)
    job.save(1)
    assert base_of(tmp_path, 1) is None
    assert "is full" in caplog.text
    assert n_links(item_of(tmp_path, 1)) == 0
    assert_restores(item_of(tmp_path, 1), 1)


def test_a_step_whose_own_base_is_missing_is_no_base(tmp_path):
    job = Job(tmp_path)
    job.save(0, 1)
    shutil.rmtree(item_of(tmp_path, 1) / "base")
    job.save(2)
    assert base_of(tmp_path, 2) == 0
    assert_restores(item_of(tmp_path, 2), 2)
    shutil.rmtree(item_of(tmp_path, 2) / "base")
    shutil.rmtree(tmp_path / "0")
    job.save(3)
    assert base_of(tmp_path, 3) is None
    assert_restores(item_of(tmp_path, 3), 3)


def test_a_delta_is_coded_even_where_raw_words_would_be_faster(tmp_path, monkeypatch):
    monkeypatch.setattr(coding_choice, "memory_file_system", lambda directory: "tmpfs")
    monkeypatch.setattr(weighing, "WEIGH_ON_MEMORY_ABOVE_BYTES", 1 << 10)
    weighed = []
    weigh = weighing.weigh
    monkeypatch.setattr(weighing, "weigh", lambda *a, **k: weighed.append(1) or weigh(*a, **k))
    reports = [ogds.save(tmp_path / str(n), state(n), options=EVERY) for n in range(3)]
    assert len(weighed) == 1
    assert [one.coding_reason for one in reports[1:]] == ["not weighed: the step is a delta"] * 2
    assert reports[2].bytes_out < 0.1 * reports[0].bytes_in
    assert_restores(tmp_path / "2", 2)


def test_a_report_says_what_of_a_step_is_new(tmp_path, caplog):
    ogds.save(tmp_path / "1", state(1), options=EVERY)
    with caplog.at_level(logging.INFO, "orbax_gds"):
        report = ogds.save(tmp_path / "2", state(2), options=EVERY)
    assert report.base == stripe(tmp_path / "1").uuid
    assert {name: one.n_chunks for name, one in report.chunks.items()} == {
        "unchanged": 1,
        "delta": 1,
        "direct": 1,
    }
    assert sum(one.bytes_in for one in report.chunks.values()) == report.bytes_in
    assert "delta on 1 (chunks: unchanged 1 delta 1 direct 1)" in caplog.text
    assert {"find base", "read base"} <= report.seconds.keys()
    shown = CliRunner().invoke(main, ["report", str(tmp_path / "2")]).stdout
    assert "Chunks of the delta, all processes" in shown
    assert "delta: needs 1 stripe of earlier steps" in shown
    shown = CliRunner().invoke(main, ["report", str(tmp_path / "1")]).stdout
    assert "full: there is no earlier step" in shown
    (kept,) = kept_reports.read(tmp_path / "2").reports
    assert (kept.base, kept.chain_length, kept.chunks) == (report.base, 1, report.chunks)


def test_no_file_of_a_delta_holds_a_path_of_this_machine(tmp_path):
    for step in range(2):
        Job(tmp_path).save(step)
    for path in item_of(tmp_path, 1).rglob("*"):
        if path.is_file():
            assert str(tmp_path).encode() not in path.read_bytes()


@pytest.mark.parametrize("fresh", [False, True])
def test_where_orbax_writes_in_place_a_step_that_it_did_not_commit_is_no_base(tmp_path, fresh):
    job = Job(tmp_path)
    job.save(0, 1)
    (tmp_path / "0" / "commit_success.txt").touch()
    (tmp_path / "2").mkdir()
    said = '{"init_timestamp_nsecs": 1, "commit_timestamp_nsecs": null}'
    (tmp_path / "2" / "_CHECKPOINT_METADATA").write_text(said)
    (Job(tmp_path) if fresh else job).save(2)
    assert base_of(tmp_path, 2) == 0
    (tmp_path / "2" / "_CHECKPOINT_METADATA").write_text(said.replace("null", "2"))
    Job(tmp_path).save(3)  # not by Orbax
    assert base_of(tmp_path, 3) == 2


@pytest.mark.slow
def test_under_orbax_writing_in_place_a_step_that_it_does_not_list_is_no_base(tmp_path):
    kind = ocp.path.atomicity.CommitFileTemporaryPath
    with manager(tmp_path, temporary_path_class=kind) as steps:
        save(steps, 0)
        save(steps, 1)
        assert base_of(tmp_path, 1) == 0
    (tmp_path / "1" / "commit_success.txt").unlink()
    with manager(tmp_path, temporary_path_class=kind) as steps:
        assert steps.all_steps() == [0]
        save(steps, 2)
    assert base_of(tmp_path, 2) == 0
    assert_restores(item_of(tmp_path, 2), 2)
