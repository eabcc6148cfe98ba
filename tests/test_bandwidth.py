"""What writing costs is measured, told from a busy machine, and leaves nothing behind."""

from pathlib import Path

import numpy as np
import pytest
from paced_storage import Clock, PacedDriver

import orbax_gds as ogds
from orbax_gds import saving
from orbax_gds.bandwidth import (
    KnownStorage,
    Storage,
    WriteMeter,
    probe,
    probe_bytes,
    thread_times,
)
from orbax_gds.drivers import File
from orbax_gds.listing import list_items
from orbax_gds.staging import aligned_empty
from orbax_gds.testing.faults import Fault, FaultyDriver

MIB = 1 << 20
PROBES = [  # threads, bytes; bytes and number of pieces
    (1, 16 * MIB, 8 * MIB, 2),
    (2, 16 * MIB, 8 * MIB, 2),
    (4, 16 * MIB, 4 * MIB, 4),
    (3, 2 * MIB, 696_320, 3),
    (5, 300 << 10, 61_440, 5),
    (200, 300 << 10, 4096, 200),
]
SMALL = {"n_bytes": 8192, "n_threads": 2}


def metered(*spent: dict[str, float], n_bytes: int) -> Storage:
    clock = Clock()
    meter = WriteMeter(clock.clocks())
    for one in spent:
        clock.now += 100  # between the blocks
        with meter.measure():
            clock.spend(**one)
    return meter.storage(n_bytes)


def test_a_device_is_told_from_a_busy_machine():
    disk = metered({"cpu": 1.0, "waited": 3.0}, {"waited": 6.0}, n_bytes=90)
    assert disk.bytes_per_sec == pytest.approx(10)
    assert disk.cpu_secs_per_byte == pytest.approx(1 / 90)
    same = metered({"cpu": 1.0, "queued": 50.0, "waited": 9.0}, n_bytes=90)
    assert same.bytes_per_sec == pytest.approx(10)
    memory = metered({"cpu": 1.0, "queued": 9.0}, n_bytes=90)
    assert memory.bytes_per_sec > 1e6


def test_threads_that_wait_at_once_wait_for_one_device():
    clock = Clock()
    meter = WriteMeter(clock.clocks())
    with meter.measure(), meter.measure():
        clock.spend(waited=4.0)
    assert meter.storage(40).bytes_per_sec == pytest.approx(10)


def test_thread_times_only_grow():
    before = thread_times()
    sum(range(10_000))
    after = thread_times()
    assert after.cpu > before.cpu
    assert after.queued >= before.queued >= 0


def test_a_few_bytes_say_nothing_of_a_storage_and_the_last_save_says_most():
    def meter(secs: float) -> WriteMeter:
        clock = Clock()
        meter = WriteMeter(clock.clocks())
        with meter.measure():
            clock.spend(waited=secs)
        return meter

    known = KnownStorage()
    known.remember((1, "direct"), meter(1), 1 << 20)
    assert known.recall((1, "direct"), 4 << 20) is not None
    assert known.recall((1, "direct"), 5 << 20) is None
    known.remember((1, "direct"), meter(2), 1 << 19)
    assert known.recall((1, "direct"), 1) == Storage(bytes_per_sec=1 << 18, cpu_secs_per_byte=0.0)
    known.remember((1, "direct"), meter(1), 1 << 30)
    known.remember((1, "direct"), meter(2), 1 << 30)
    known.remember((1, "direct"), meter(3), 1 << 20)
    assert known.recall((1, "direct"), 1) == Storage(bytes_per_sec=1 << 29, cpu_secs_per_byte=0.0)
    assert known.recall((1, "direct"), 1 << 40) is not None
    assert known.recall((1, "buffered"), 1) is None
    assert known.recall((2, "direct"), 1) is None


@pytest.mark.slow
@pytest.mark.parametrize(("n_threads", "n_bytes", "piece_bytes", "n_pieces"), PROBES)
def test_a_probe_writes_and_syncs_all_and_is_gone(
    tmp_path, n_threads, n_bytes, piece_bytes, n_pieces
):
    clock = Clock()
    driver = PacedDriver(1e6, clock)
    path = tmp_path / "p.probe"
    path.write_bytes(b"left by a crash")
    meters = []

    def new_meter() -> WriteMeter:
        meters.append(WriteMeter(clock.clocks()))
        return meters[-1]

    memory = aligned_empty(9 << 20)
    storage = probe(driver, path, memory, new_meter, n_bytes=n_bytes, n_threads=n_threads)
    if n_threads == 1:
        assert storage.bytes_per_sec == pytest.approx(1e6)
    written = driver.files[str(path)]
    assert len(written) == piece_bytes * n_pieces
    looked_at, all_written = driver.written[:-n_pieces], driver.written[-n_pieces:]
    assert sum(n for _, n in looked_at) <= max(4096 * n_threads, 256 << 10, n_bytes // 8)
    assert sorted(all_written) == [(i * piece_bytes, piece_bytes) for i in range(n_pieces)]
    assert storage == meters[1].storage(piece_bytes * n_pieces)
    assert len(set(written[:4096])) > 200
    assert not path.exists()


def test_where_a_look_does_not_wait_it_is_all_that_is_written(tmp_path):
    clock = Clock()
    driver = PacedDriver(1e18, clock)
    wrote = driver.wrote

    def busy(offset: int, n_bytes: int) -> None:
        clock.spend(cpu=n_bytes / 1e9)
        wrote(offset, n_bytes)

    driver.wrote = busy
    storage = probe(
        driver,
        tmp_path / "p.probe",
        aligned_empty(9 << 20),
        lambda: WriteMeter(clock.clocks()),
        n_bytes=16 * MIB,
        n_threads=1,
    )
    assert driver.written == [(0, 2 * MIB)]
    assert storage.cpu_secs_per_byte == pytest.approx(1e-9)
    assert storage.bytes_per_sec > 1e12


def test_a_probe_of_a_few_bytes_is_a_look(tmp_path):
    driver = PacedDriver(1e6, Clock())
    probe(driver, tmp_path / "p.probe", aligned_empty(8192), WriteMeter, **SMALL)
    assert sorted(driver.written) == [(at, 8192) for at in range(0, 256 << 10, 8192)]


def test_a_probe_is_a_small_part_of_the_state():
    assert probe_bytes(64 << 20) == 2 << 20
    assert probe_bytes(512 << 20) == probe_bytes(1 << 40) == 16 << 20


@pytest.mark.parametrize("at", range(4))
def test_a_failing_probe_raises_and_is_gone(tmp_path, at):
    driver = FaultyDriver(saving.open_driver("buffered", tmp_path), Fault(at))
    with pytest.raises(OSError, match="No space"):
        probe(driver, tmp_path / "p.probe", aligned_empty(8192), WriteMeter, **SMALL)
    assert list(tmp_path.iterdir()) == []


def test_a_probe_has_no_name_while_it_is_written(tmp_path):
    """So that a process killed then leaves nothing."""
    seen = []

    class Looking(PacedDriver):
        def open(self, path, mode) -> File:
            path.write_bytes(b"")  # as a file system has it
            return super().open(path, mode)

        def wrote(self, offset, n_bytes):
            seen.append(list(tmp_path.iterdir()))

    driver = Looking(1e6, Clock())
    probe(driver, tmp_path / "p.probe", aligned_empty(8192), WriteMeter, **SMALL)
    assert len(seen) >= 2
    assert not any(seen)


def test_a_probe_whose_name_cannot_be_removed_raises_and_is_gone(tmp_path, monkeypatch):
    """A fault between opening and removal; the second try succeeds."""
    faults = iter([OSError(5, "Input/output error")])
    unlink = Path.unlink

    def failing(path, missing_ok=False):
        for fault in faults:
            assert path.stat().st_size == 0
            raise fault
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", failing)
    driver = saving.open_driver("buffered", tmp_path)
    with pytest.raises(OSError, match="Input/output"):
        probe(driver, tmp_path / "p.probe", aligned_empty(8192), WriteMeter, **SMALL)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_probe_left_counts_for_nothing_and_goes_with_publication(tmp_path):
    item = tmp_path / "item"
    item.mkdir()
    (item / "p00000.probe").touch()
    assert list_items(tmp_path) == []
    ogds.save(item, {"w": np.ones(3)})
    assert sorted(path.name for path in item.iterdir()) == [
        "_METADATA",
        "manifest.json",
        "p00000.ogds",
        "p00000.report.json",
    ]
