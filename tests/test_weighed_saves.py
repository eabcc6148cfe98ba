"""Saves resolve "auto" by what was measured, once, and store what that came to."""

import json

import ml_dtypes
import numpy as np
import pytest
from paced_storage import OFF, SPLIT, WHOLE, Clock, PacedDriver

import orbax_gds as ogds
from orbax_gds import bandwidth, coding_choice, saving, weighing
from orbax_gds.bandwidth import KnownStorage, Storage, probe
from orbax_gds.codecs.zstd import AUTO_LEVEL, MAX_LEVEL
from orbax_gds.dtypes import dtype_by_name
from orbax_gds.errors import IoError
from orbax_gds.handler import GdsCheckpointHandler, GdsSave

pytestmark = pytest.mark.slow

# Above the state of a test, which then is too small to be weighed.
SMALL = {"split_bytes": 8 << 20, "whole_bytes": 8 << 20}


@pytest.fixture
def paced(monkeypatch):
    """Saves of a few MB are weighed, on a clock that only writing and coding move.

    A storage of our choice waits; coding takes the processor as long as in SPLIT and WHOLE.
    """

    def make(
        bytes_per_sec: float,
        cpu_secs_per_byte: float = 0.0,
        split_bytes: int = 4 << 20,
        whole_bytes: int = 1 << 20,
    ) -> tuple[PacedDriver, KnownStorage]:
        clock = Clock()
        driver = PacedDriver(bytes_per_sec, clock, cpu_secs_per_byte)
        encode = coding_choice.encode

        def timed(save, runs, out, coding):
            split = int(runs[0].chunks[0, 2]) == dtype_by_name("bfloat16").id
            speeds = SPLIT if split else WHOLE
            n_bytes = sum(run.n_bytes for run in runs)
            clock.spend(cpu=n_bytes / speeds.get(coding.codec, OFF).bytes_per_sec)
            return encode(save, runs, out, coding)

        monkeypatch.setattr(coding_choice, "encode", timed)
        monkeypatch.setattr(saving, "open_driver", lambda name, directory: driver)
        monkeypatch.setattr(weighing, "WEIGH_ABOVE_BYTES", split_bytes)
        monkeypatch.setattr(weighing, "PROBE_ABOVE_BYTES", split_bytes)
        monkeypatch.setattr(weighing, "RAW_WHOLE_ABOVE_BYTES", whole_bytes)
        monkeypatch.setattr(weighing, "_SHARE", 8)
        monkeypatch.setattr(weighing, "_WHOLE_SHARE", 32)
        monkeypatch.setattr(bandwidth, "_LEAST_BYTES", 1 << 20)
        return driver, KnownStorage(clock.clocks())

    return make


def state():
    rng = np.random.default_rng(0)
    return {
        "w": (rng.standard_normal((2 << 20,), np.float32) * 0.02).astype(ml_dtypes.bfloat16),
        "ids": (rng.zipf(1.5, 1 << 18) % 30_000).astype(np.int32),
    }


def saved(tmp_path, storage: KnownStorage, number: int = 0, codec: str = "auto"):
    prepared = saving.prepare(state(), options=ogds.Options(codec=codec, workers=1))
    directory = tmp_path / str(number)
    directory.mkdir()
    report = prepared.write(directory, storage=storage)
    return report, json.loads((directory / "manifest.json.pending").read_bytes())


def test_a_save_is_weighed_once_by_a_probe_and_then_by_the_save_before(tmp_path, paced):
    driver, storage = paced(1e7)
    for number in range(3):
        report, manifest = saved(tmp_path, storage, number)
        assert report.coding == "auto"
        assert report.coding_reason.startswith(
            "storage takes 0.01 GB/s for 0.00 CPU s/GB; each of 1 workers has 1.00 of a core and "
            "codes off 5.00 GB/s at 1.00, auto 2.00 GB/s at 1.5"
        )
        assert ", zstd 0.40 GB/s at " in report.coding_reason
        assert report.codecs.keys() == {"ladder", "zstd"}
        assert manifest["options"]["codec"] == "auto"
        assert manifest["options"]["coding"] == "auto"
        assert manifest["options"]["zstd_level"] == AUTO_LEVEL
        assert "weigh" in report.seconds
        assert "coding auto" in report.line()
        assert driver.n_probes == 1
    assert storage.recall(bandwidth.storage_key(tmp_path, driver), 5 << 20) is not None


def test_storage_faster_than_coding_gets_raw_words(tmp_path, paced):
    _, storage = paced(1e13)
    report, manifest = saved(tmp_path, storage)
    assert report.coding == "off"
    assert report.codecs.keys() == {"raw"}
    assert manifest["options"]["codec"] == "auto"
    assert (manifest["options"]["coding"], manifest["options"]["zstd_level"]) == ("off", 0)


def assert_raw(report, manifest):
    assert (report.coding, set(report.codecs)) == ("off", {"raw"})
    assert (manifest["options"]["coding"], manifest["options"]["zstd_level"]) == ("off", 0)
    assert "memory" in report.coding_reason
    assert "weigh" not in report.seconds


def test_a_small_state_is_raw_in_a_file_system_of_memory(tmp_path, paced, monkeypatch):
    driver, storage = paced(1e7, **SMALL)
    asked = []
    monkeypatch.setattr(
        coding_choice, "memory_file_system", lambda path: asked.append(path) or "tmpfs"
    )
    for number in range(2):
        assert_raw(*saved(tmp_path, storage, number))
    assert asked == [tmp_path / "0", tmp_path / "1"]
    assert driver.n_probes == 0
    report, _ = saved(tmp_path, storage, 2, codec="fast")
    assert report.codecs.keys() == {"ladder", "raw"}


def test_a_small_state_is_raw_once_a_save_has_waited_for_nothing(tmp_path, paced):
    driver, storage = paced(1e18, cpu_secs_per_byte=1e-9, **SMALL)
    report, _ = saved(tmp_path, storage)
    assert (report.coding, report.codecs.keys()) == ("auto", {"ladder", "zstd"})
    assert_raw(*saved(tmp_path, storage, 1))
    assert driver.n_probes == 0


def test_a_small_state_is_coded_on_storage_that_waits(tmp_path, paced):
    driver, storage = paced(1e7, **SMALL)
    for number in range(2):
        report, _ = saved(tmp_path, storage, number)
        assert (report.coding, report.codecs.keys()) == ("auto", {"ladder", "zstd"})
        assert report.coding_reason == "not weighed"
    assert driver.n_probes == 0


def test_a_state_too_small_for_a_probe_is_weighed_from_the_second_save_on(
    tmp_path, paced, monkeypatch
):
    driver, storage = paced(1e7)
    monkeypatch.setattr(weighing, "PROBE_ABOVE_BYTES", 8 << 20)
    reasons = [saved(tmp_path, storage, number)[0].coding_reason for number in range(2)]
    assert reasons[0].startswith("not weighed")
    assert reasons[1].startswith("storage takes 0.01 GB/s")
    assert driver.n_probes == 0


@pytest.mark.parametrize("codec", ["fast", "max", "off"])
def test_a_codec_that_was_asked_for_is_not_weighed(tmp_path, paced, codec):
    driver, storage = paced(1e7)
    report, manifest = saved(tmp_path, storage, codec=codec)
    assert (report.coding, report.coding_reason) == (codec, "not weighed")
    assert manifest["options"]["coding"] == codec
    assert manifest["options"]["zstd_level"] == (MAX_LEVEL if codec == "max" else 0)
    assert "weigh" not in report.seconds
    assert driver.n_probes == 0


def test_storage_that_cannot_be_probed_does_not_fail_the_save(tmp_path, paced, monkeypatch, caplog):
    _, storage = paced(1e7)

    def refuse(*_, **__):
        raise IoError(28, "No space for a probe", "p.probe")

    monkeypatch.setattr(coding_choice, "probe", refuse)
    report, _ = saved(tmp_path, storage)
    assert report.coding == "auto"
    assert "No space for a probe" in report.coding_reason
    assert "No space for a probe" in caplog.text


def test_a_handler_probes_once_and_a_save_by_itself_every_time(tmp_path, monkeypatch):
    monkeypatch.setattr(weighing, "PROBE_ABOVE_BYTES", 4 << 20)
    monkeypatch.setattr(bandwidth, "_LEAST_BYTES", 1 << 20)
    seen = []

    def counted(*args, **options):
        seen.append(options["n_bytes"])
        return probe(*args, **options)

    monkeypatch.setattr(coding_choice, "probe", counted)
    handler = GdsCheckpointHandler()
    for number in range(2):
        handler.save(tmp_path / f"h{number}", GdsSave(state()))
    assert seen == [5 << 15]
    for number in range(2):
        ogds.save(tmp_path / f"s{number}", state())
    assert seen == [5 << 15] * 3


def test_an_item_of_any_coding_comes_back(tmp_path, monkeypatch):
    monkeypatch.setattr(weighing, "WEIGH_ABOVE_BYTES", 4 << 20)
    tree = state()
    choices = ((1e7, "auto"), (1e13, "auto"), (1e7, "fast"), (1e7, "max"))
    for number, (bytes_per_sec, codec) in enumerate(choices):
        monkeypatch.setattr(saving, "KnownStorage", lambda speed=bytes_per_sec: Fixed(speed))
        item = tmp_path / str(number)
        report = ogds.save(item, tree, options=ogds.Options(codec=codec))
        assert report.state == "committed"
        got = ogds.restore(item)
        assert all(np.asarray(got[k]).tobytes() == tree[k].tobytes() for k in tree)
        assert ogds.verify(item) == []
        assert not list(item.glob("*.probe"))


class Fixed(KnownStorage):
    """Storage that is known."""

    def __init__(self, bytes_per_sec: float) -> None:
        super().__init__()
        self.storage = Storage(bytes_per_sec=bytes_per_sec, cpu_secs_per_byte=0.0)

    def recall(self, key, state_bytes) -> Storage:
        return self.storage
