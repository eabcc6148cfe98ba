"""What saves and restores tell `jax.monitoring` is what docs/events.md lists."""

import collections
import contextlib
import logging
import re
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from trees import assert_same, large_tree

import orbax_gds as ogds
from orbax_gds import commit, events, saving, weighing

DOCUMENT = (Path(__file__).parent.parent / "docs" / "events.md").read_text()
TABLE = {
    name: (kind, unit)
    for name, kind, unit in re.findall(r"^\| `(/\S+)` \| (\S+) \| ([^|]+) \|", DOCUMENT, re.M)
}


class Told:
    """What a listener of each kind was called with, of ours."""

    def __init__(self):
        self.secs, self.scalars, self.events = [], [], []
        self.threads = set()

    def on_secs(self, name, secs, **labels):
        self._add(self.secs, name, (name, secs, labels))

    def on_scalar(self, name, value, **labels):
        self._add(self.scalars, name, (name, value, labels))

    def on_event(self, name, **labels):
        self._add(self.events, name, (name, labels))

    def _add(self, to, name, what):
        if name.startswith(events.PREFIX):
            self.threads.add(threading.current_thread())
            to.append(what)

    def kinds(self):
        """Each name that came, with its kind."""
        of = {"duration": self.secs, "scalar": self.scalars, "event": self.events}
        return {what[0]: kind for kind, told in of.items() for what in told}


@contextlib.contextmanager
def listening(to):
    with contextlib.ExitStack() as registered:
        for kind, listener in (
            ("event_duration", to.on_secs),
            ("scalar", to.on_scalar),
            ("event", to.on_event),
        ):
            register = {"event_duration": "event_duration_secs"}.get(kind, kind)
            getattr(jax.monitoring, f"register_{register}_listener")(listener)
            registered.callback(registry(kind).remove, listener)
        yield to


def registry(kind):
    """The listeners that jax holds; not all its versions can unregister one by its public names."""
    names = {"event_duration": "_event_duration_secs_listeners"}
    return getattr(jax._src.monitoring, names.get(kind, f"_{kind}_listeners"))


@pytest.fixture
def told():
    with listening(Told()) as told:
        yield told


def derivable():
    weights = np.linspace(1, 2, 1 << 17, dtype=np.float32)
    return jax.device_put({"w": weights, "ema": weights, "n": jnp.arange(9)})


def test_the_events_are_told_once_a_save_with_the_values_of_its_report(tmp_path, told):
    report = ogds.save(tmp_path / "item", derivable())
    secs = {name: secs for name, secs, _ in told.secs}
    assert secs == {
        f"/orbax_gds/save/{name}": value
        for name, value in {
            "blocking_secs": report.blocking_secs,
            "blocking_cpu_secs": report.blocking_cpu_secs,
            "background_secs": report.background_secs,
            "cpu_secs": report.cpu_secs,
            **{f"{stage}_secs": took for stage, took in report.seconds.items()},
        }.items()
    }
    plain = {name: value for name, value, labels in told.scalars if not labels}
    assert plain == {
        f"/orbax_gds/save/{name}": int(getattr(report, name))
        for name in (
            *("bytes_in", "bytes_out", "bytes_derived"),
            *("n_leaves", "n_chunks", "n_derived", "plan_known", "chain_length"),
        )
    }
    assert report.n_derived == 1
    coded = {(n, labels["codec"]): value for n, value, labels in told.scalars if labels}
    assert coded == {
        (f"/orbax_gds/save/codec_{way}", codec): getattr(both, way)
        for codec, both in report.codecs.items()
        for way in ("bytes_in", "bytes_out")
    }
    assert len(told.secs) == len(secs)
    assert len(told.scalars) == len(plain) + len(coded)
    ((name, labels),) = told.events
    assert name == "/orbax_gds/save/synced"
    assert labels == {
        "process": 0,
        "driver": report.driver,
        "driver_reason": report.driver_reason or "",
        "coding": report.coding,
        "coding_reason": report.coding_reason,
        "base": "",
        "delta_reason": "",
    }


def test_the_table_lists_what_is_told_and_nothing_else(tmp_path, told, monkeypatch):
    monkeypatch.setattr(weighing, "PROBE_ABOVE_BYTES", 1)
    options = ogds.Options(io_rate="1GiB", delta=ogds.EveryN(2))
    reports = [ogds.save(tmp_path / str(step), derivable(), options=options) for step in (1, 2)]
    ogds.restore(tmp_path / "2")
    labels = [labels for _, labels in told.events]
    assert [each["delta_reason"] for each in labels] == [reports[0].delta_reason, ""]
    assert [each["base"] for each in labels] == ["", reports[1].base]
    assert {name: kind for name, (kind, _) in TABLE.items()} == told.kinds()
    for name, (kind, unit) in TABLE.items():
        if kind == "duration":
            assert name.endswith("_secs")
            assert unit == "seconds"
        assert ("bytes" in name) == (unit == "bytes"), name


def test_a_restore_tells_its_times_and_the_bytes_it_read(tmp_path, told):
    ogds.save(tmp_path / "item", large_tree())
    told.__init__()
    ogds.restore(tmp_path / "item", leaves=["b"])
    secs = {name.removeprefix("/orbax_gds/restore/"): secs for name, secs, _ in told.secs}
    assert set(secs) == {"open_secs", "restore_secs", "cpu_secs"}
    assert 0 < secs["open_secs"] <= secs["restore_secs"]
    ((name, n_bytes, labels),) = told.scalars
    assert (name, labels) == ("/orbax_gds/restore/bytes_read", {})
    leaves = {leaf.name: leaf.stored_bytes for leaf in ogds.inspect(tmp_path / "item").leaves}
    assert leaves["b"] <= n_bytes < sum(leaves.values())


def test_a_manager_tells_each_save_from_its_background_and_its_publication_once(tmp_path, told):
    tree = {"w": jnp.ones((300, 300))}
    with ocp.CheckpointManager(tmp_path) as manager:
        for step in range(2):
            manager.save(step, args=ogds.args.GdsSave(tree))
            manager.wait_until_finished()
        commit.publish(tmp_path / "1" / "default")  # nothing is left to publish
        manager.wait_until_finished()
    counts = collections.Counter(name for name, *_ in (*told.secs, *told.events))
    assert set(counts.values()) == {2}
    assert "/orbax_gds/save/commit_secs" in counts
    known = [value for name, value, _ in told.scalars if name.endswith("plan_known")]
    assert known == [0, 1]


def test_listeners_that_raise_break_neither_saves_nor_restores(tmp_path, caplog):
    class Broken(Told):
        def _add(self, to, name, what):
            if name.startswith(events.PREFIX):
                raise RuntimeError(f"no {name}")

    tree = large_tree()
    with listening(Broken()), caplog.at_level(logging.WARNING, "orbax_gds"):
        report = ogds.save(tmp_path / "item", tree)
        assert_same(ogds.restore(tmp_path / "item"), tree)
    assert report.state == "committed"
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 3  # the save, its publication, the restore
    assert "RuntimeError('no /orbax_gds/save/blocking_secs')" in warnings[0]
    assert all("unregister" in text for text in warnings)


def test_a_save_that_fails_tells_nothing(tmp_path, told):
    ogds.save(tmp_path / "item", {"w": np.ones(3)})
    told.__init__()
    with pytest.raises(ogds.errors.Exists):
        ogds.save(tmp_path / "item", {"w": np.ones(3)})
    assert told.kinds() == {}


def test_one_line_is_logged_a_save(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(weighing, "PROBE_ABOVE_BYTES", 1)
    with caplog.at_level(logging.INFO, "orbax_gds"):
        report = ogds.save(tmp_path / "item", {"w": np.ones(1 << 16)})
    (record,) = caplog.records
    line = record.getMessage()
    assert line.startswith("committed item: 1 leaves, plan new, 0.5 MB in")
    assert f"coding {report.coding} ({report.coding_reason})" in line
    assert "storage takes" in line
    assert f"blocking {report.blocking_secs:.3f}s" in line
    assert "\n" not in line


def test_one_line_is_logged_a_step_and_item_of_a_manager_by_their_final_names(tmp_path, caplog):
    names = ("state", "data")
    items = ocp.args.Composite(**{name: ogds.args.GdsSave({"w": jnp.ones(9)}) for name in names})
    with caplog.at_level(logging.INFO, "orbax_gds"), ocp.CheckpointManager(tmp_path) as manager:
        for step in (12, 13):
            manager.save(step, args=items)
            manager.wait_until_finished()
    lines = sorted(r.getMessage() for r in caplog.records if r.name.startswith("orbax_gds"))
    begins = sorted(f"published {step}/{name}: 1 leaves" for step in (12, 13) for name in names)
    assert [line[: len(begin)] for line, begin in zip(lines, begins, strict=True)] == begins
    assert all(" sync " in line and " commit " in line for line in lines)
    assert not [line for line in lines if "tmp" in line.partition(":")[0]]


def test_the_line_of_another_process_is_logged_when_its_part_is_synced(
    tmp_path, caplog, monkeypatch
):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    step = tmp_path / "12.orbax-checkpoint-tmp" / "default.orbax-checkpoint-tmp"
    step.mkdir(parents=True)
    with caplog.at_level(logging.INFO, "orbax_gds"):
        saving.prepare({"w": np.ones(9)}).write(step)
    (record,) = caplog.records
    assert record.getMessage().startswith("synced 12/default (process 1): 1 leaves")
