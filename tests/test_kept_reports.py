"""What the processes of a save leave in the item about it: shown where asked for, else ignored."""

import dataclasses
import errno
import json
import logging
import os
import shutil
from pathlib import Path

import jax
import msgspec
import numpy as np
import pytest
from click.testing import CliRunner
from trees import assert_same, large_tree, small_tree

import orbax_gds as ogds
from orbax_gds import commit, kept_reports, saving
from orbax_gds.cli import main
from orbax_gds.codecs import reference
from orbax_gds.errors import Corrupt, NotFound
from orbax_gds.monitoring import CodecBytes, ProcessReport, SaveReport
from orbax_gds.testing.faults import Fault, faulty_system

FORMAT = (Path(ogds.__file__).parent / "FORMAT.md").read_text()
GOLDEN = Path(__file__).parent / "golden" / "p00003.report.json"
NAME = "p00000.report.json"

EXAMPLE = SaveReport(
    path=Path("/checkpoints/100/default"),
    state="synced",
    process=3,
    n_leaves=12,
    n_chunks=5,
    bytes_in=5000,
    bytes_out=4160,
    n_derived=1,
    bytes_derived=1000,
    coding="auto",
    coding_reason="the storage cannot be measured: Cannot open '/checkpoints/100/default/p0.probe'",
    codecs={"ladder": CodecBytes(bytes_in=4000, bytes_out=3000)},
    driver="buffered",
    driver_reason="direct: '/checkpoints/100/default' is on tmpfs, which lies in the page cache",
    plan_known=True,
    blocking_secs=0.25,
    blocking_cpu_secs=0.5,
    background_secs=2.0,
    cpu_secs=1.5,
    seconds={"plan": 0.125, "write": 1.0},
)
STRIPE = bytes(range(16))


def run(*arguments):
    return CliRunner().invoke(main, ["report", *map(os.fspath, arguments)])


@pytest.fixture
def item(tmp_path):
    ogds.save(tmp_path / "item", small_tree())
    return tmp_path / "item"


def save_by(n_processes, path, tree, monkeypatch):
    """Save a tree as several processes would; its arrays all belong to process 0."""
    tree = jax.tree.map(lambda leaf: np.asarray(leaf) if hasattr(leaf, "shape") else leaf, tree)
    monkeypatch.setattr(jax, "process_count", lambda: n_processes)
    reports = []
    path.mkdir()
    for process in range(n_processes):
        monkeypatch.setattr(jax, "process_index", lambda number=process: number)
        reports.append(saving.prepare(tree).write(path))
    commit.publish(path)
    return reports


def test_the_kept_file_equals_the_report_that_is_returned(item):
    shutil.rmtree(item)
    report = ogds.save(item, large_tree())
    (kept,) = kept_reports.read(item).reports
    same = [field.name for field in dataclasses.fields(ProcessReport)]
    assert {n: getattr(kept, n) for n in same if "reason" not in n} == {
        n: getattr(report, n) for n in same if "reason" not in n
    }
    assert {"plan", "snapshot", "encode", "write", "sync", "commit"} <= set(kept.seconds)
    assert 0 < kept.seconds["commit"] < 60


def test_commit_is_shown_of_the_process_that_has_published(item):
    shown = run(item).stdout.partition("Seconds, by process")[2].partition("Bytes, by")[0]
    head, row = (line.split() for line in shown.splitlines()[1:4:2])
    assert head[-1] == "commit"
    assert float(row[-1]) == pytest.approx(
        kept_reports.read(item).reports[0].seconds["commit"], 0, 1e-3
    )


def test_whoever_publishes_completes_what_process_0_has_left(tmp_path, caplog):
    report = saving.prepare(small_tree()).write(tmp_path)
    before = (tmp_path / NAME).read_bytes()
    with caplog.at_level(logging.INFO, "orbax_gds"):
        done = saving.commit(tmp_path)  # without what only the process that saved has in memory
        assert saving.commit(tmp_path) is None
    (record,) = caplog.records
    assert record.getMessage() == done.line()
    assert (done.state, done.bytes_out, done.path) == ("published", report.bytes_out, tmp_path)
    (kept,) = kept_reports.read(tmp_path).reports
    assert set(kept.seconds) == {*report.seconds, "commit"}
    assert kept.seconds["commit"] == done.seconds["commit"]
    assert (tmp_path / NAME).read_bytes() != before
    assert not list(tmp_path.glob("*.pending"))


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_a_lost_report_is_said_in_the_line_and_fails_no_publication(tmp_path, caplog, damage):
    saving.prepare(small_tree()).write(tmp_path)
    (tmp_path / NAME).unlink() if damage == "missing" else (tmp_path / NAME).write_bytes(b"{")
    with caplog.at_level(logging.INFO, "orbax_gds"):
        assert saving.commit(tmp_path) is None
    (record,) = caplog.records
    assert record.getMessage() == f"published {tmp_path.name}, whose report is lost"
    assert_same(ogds.restore(tmp_path), small_tree())


def test_a_report_that_cannot_be_completed_stays_as_it_is(tmp_path, monkeypatch, caplog):
    saving.prepare(small_tree()).write(tmp_path)
    rename = os.rename

    def refuse_reports(source, to):
        if os.fspath(to).endswith(NAME):
            raise OSError(errno.ENOSPC, "No space left on device", str(to))
        rename(source, to)

    monkeypatch.setattr(os, "rename", refuse_reports)
    assert saving.commit(tmp_path).seconds["commit"] > 0
    assert "stays without the seconds of commit" in caplog.text
    (kept,) = kept_reports.read(tmp_path).reports
    assert "commit" not in kept.seconds
    assert not list(tmp_path.glob("*.pending"))


def test_a_report_comes_back_without_the_path_it_speaks_of():
    kept = kept_reports.decode(kept_reports.encode(EXAMPLE, STRIPE), STRIPE.hex())
    assert kept == ProcessReport(
        **{f.name: getattr(kept, f.name) for f in dataclasses.fields(ProcessReport)}
    )
    assert kept.coding_reason == "the storage cannot be measured: Cannot open 'p0.probe'"
    assert kept.driver_reason == ("direct: the directory is on tmpfs, which lies in the page cache")
    reasons = {"coding_reason": "", "driver_reason": ""}
    expected = {f.name: getattr(EXAMPLE, f.name) for f in dataclasses.fields(ProcessReport)}
    assert dataclasses.replace(kept, **reasons) == ProcessReport(**(expected | reasons))


def test_a_short_relative_path_leaves_the_words_of_a_reason_alone():
    reason = "each of 2 workers has 0.5 of a core at 1.2 GB/s; a/p0.probe is gone"
    report = dataclasses.replace(EXAMPLE, path=Path("a"), coding_reason=reason)
    kept = kept_reports.decode(kept_reports.encode(report, STRIPE), STRIPE.hex())
    assert kept.coding_reason == reason.replace("a/p0", "p0")


def test_a_path_that_is_not_utf8_is_no_obstacle(tmp_path):
    path = tmp_path / os.fsdecode(b"\xff") / "item"
    report = dataclasses.replace(EXAMPLE, path=path, driver_reason=f"{path}x: refused")
    kept_reports.decode(kept_reports.encode(report, STRIPE), STRIPE.hex())


def test_the_committed_file_is_read_and_written_for_ever():
    data = GOLDEN.read_bytes()
    assert kept_reports.encode(EXAMPLE, STRIPE) == data
    assert kept_reports.decode(data, STRIPE.hex()).codecs == EXAMPLE.codecs


def test_the_fields_are_those_of_the_format():
    section = FORMAT.partition("### 3.4 Reports")[2].partition("\n## ")[0]
    rows = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `")]
    names = [name.strip("|` ") for row in rows for name in row.split(", ")]
    assert sorted(names) == sorted(json.loads(GOLDEN.read_bytes()))


@pytest.mark.parametrize("n_bytes", [0, 1, 20, 21, 300, -1])
def test_a_cut_file_is_refused_and_harms_nothing_else(item, n_bytes):
    path = item / NAME
    path.write_bytes(path.read_bytes()[:n_bytes])
    assert_harmless(item)
    done = run(item)
    assert done.exit_code == 1
    assert f"{NAME} cannot be read: CRC32C is" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda fields: fields | {"format": 2}, "format 2 is unknown"),
        (lambda fields: fields | {"stripe": "0" * 32}, "another save"),
        (lambda fields: fields | {"seconds": {"plan": "long"}}, "a field is wrong"),
        (lambda fields: fields | {"cpu_secs": None}, "a field is wrong"),
        (lambda fields: {"stripe": fields["stripe"]}, "a field is wrong"),
        (lambda fields: fields | {"more": 1}, None),
    ],
)
def test_a_file_that_does_not_fit_is_refused_by_name(item, change, what):
    path = item / NAME
    fields = json.loads(path.read_bytes())
    del fields["crc32c"]
    path.write_bytes(kept_reports.with_crc(msgspec.json.encode(change(fields))))
    assert_harmless(item)
    kept = kept_reports.read(item)
    if what is None:
        assert kept.problems == ()
    else:
        (problem,) = kept.problems
        assert problem.startswith(f"{NAME} cannot be read: ")
        assert what in problem


def test_what_is_no_file_of_a_report_is_refused(item):
    (item / NAME).write_bytes(b"x" * (1 << 21))
    assert "2097152 bytes" in run(item).stderr
    (item / NAME).unlink()
    (item / NAME).mkdir()
    assert "is no file" in run(item).stderr
    assert_harmless(item)


def test_an_item_without_a_report_says_so(item):
    (item / NAME).unlink()
    assert_harmless(item)
    done = run(item)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "holds no report of its save" in done.stderr


def assert_harmless(item):
    assert_same(ogds.restore(item), small_tree())
    assert ogds.verify(item) == []
    assert CliRunner().invoke(main, ["ls", str(item)]).exit_code == 0
    reference.read_item(item)


def test_the_reports_of_all_processes_are_shown(tmp_path, monkeypatch):
    reports = save_by(3, tmp_path / "item", large_tree(), monkeypatch)
    done = run(tmp_path / "item", "--json")
    assert done.exit_code == 0
    shown = json.loads(done.stdout)
    assert (shown["path"], shown["problems"]) == (str(tmp_path / "item"), [])
    assert [(r["process"], r["bytes_out"]) for r in shown["reports"]] == [
        (report.process, report.bytes_out) for report in reports
    ]
    text = run(tmp_path / "item").stdout
    by_process = text.partition("Seconds, by process")[2].partition("Bytes, by process")[0]
    assert [line.split()[0] for line in by_process.splitlines()[3:] if line] == ["0", "1", "2"]
    assert "(3 processes)" in text
    assert "ladder" in text


def test_a_missing_report_of_several_is_named_and_the_others_are_shown(tmp_path, monkeypatch):
    save_by(2, tmp_path / "item", small_tree(), monkeypatch)
    (tmp_path / "item" / "p00001.report.json").unlink()
    done = run(tmp_path / "item")
    assert done.exit_code == 1
    assert "Seconds, by process" in done.stdout
    assert "p00001.report.json is missing" in done.stderr
    as_json = json.loads(run(tmp_path / "item", "--json").stdout)
    assert len(as_json["reports"]) == len(as_json["problems"]) == 1


def test_a_report_that_an_earlier_save_left_is_not_taken_for_this_ones(tmp_path, monkeypatch):
    saving.prepare({"w": np.zeros(9)}).write(tmp_path)
    stale = (tmp_path / NAME).read_bytes()
    saving.prepare({"w": np.ones(9)}).write(tmp_path)
    (tmp_path / NAME).write_bytes(stale)
    commit.publish(tmp_path)
    (problem,) = kept_reports.read(tmp_path).problems
    assert "another save" in problem


def test_an_unpublished_item_has_no_report_to_show(tmp_path):
    saving.prepare({"w": np.ones(9)}).write(tmp_path)
    with pytest.raises(NotFound, match="never published"):
        kept_reports.read(tmp_path)


def test_a_report_costs_no_sync_and_one_that_cannot_be_written_fails_no_save(
    tmp_path, monkeypatch, caplog
):
    with faulty_system(Fault(None)) as fault:
        ogds.save(tmp_path / "a", small_tree())
    synced = [name for name in fault.operations if name.startswith("fsync")]
    assert not [name for name in synced if ".report.json" in name]

    def refuse(path, data):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    assert ogds.save(tmp_path / "b", small_tree()).state == "committed"
    assert "cannot be kept" in caplog.text
    assert_same(ogds.restore(tmp_path / "b"), small_tree())


def test_no_text_of_a_report_reaches_the_terminal_as_a_command(item):
    evil = "a\x1b[31m\x9b2J\n"
    manifest = commit.read_manifest(item)
    codecs = {evil: CodecBytes(bytes_in=1, bytes_out=1)}
    report = dataclasses.replace(
        EXAMPLE,
        **dict.fromkeys(("coding", "coding_reason", "driver", "driver_reason"), evil),
        codecs=codecs,
        seconds={evil: 1.0},
    )
    (item / NAME).write_bytes(kept_reports.encode(report, bytes.fromhex(manifest.stripes[0].uuid)))
    done = run(item)
    assert done.exit_code == 0
    assert all(c.isprintable() for line in done.output.splitlines() for c in line)


def test_decoding_takes_any_bytes():
    data = kept_reports.encode(EXAMPLE, STRIPE)
    for at in range(0, len(data), 7):
        with pytest.raises(Corrupt):
            kept_reports.decode(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], STRIPE.hex())
