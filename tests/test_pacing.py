"""A pace keeps its rate over all threads, whatever they write, and can be called off."""

import threading
import time

import numpy as np
import orbax.checkpoint as ocp
import pytest
from hypothesis import given
from hypothesis import strategies as st

import orbax_gds as ogds
from orbax_gds import pacing, saving
from orbax_gds.bandwidth import WriteMeter, probe
from orbax_gds.drivers import open_driver, posix
from orbax_gds.errors import IoError
from orbax_gds.pacing import Pace
from orbax_gds.staging import aligned_empty

pytestmark = pytest.mark.slow

MIB = 1 << 20
NEVER = threading.Event()


@pytest.mark.parametrize("n_threads", [1, 4])
def test_threads_keep_the_rate_together(n_threads):
    pace = Pace(100 * MIB)
    began = time.monotonic()

    def write():
        for _ in range(40 // n_threads):
            pace.wait(MIB, NEVER)

    threads = [threading.Thread(target=write) for _ in range(n_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took = time.monotonic() - began
    assert took >= 40 / 100 - 0.01
    assert took < 2


def test_without_a_rate_nobody_waits():
    began = time.monotonic()
    for _ in range(1000):
        Pace(None).wait(1 << 40, NEVER)
    assert time.monotonic() - began < 1


def test_time_that_was_not_used_is_not_saved_up():
    pace = Pace(10 * MIB)
    pace._free_at -= 3600
    began = time.monotonic()
    for _ in range(4):
        pace.wait(MIB, NEVER)
    assert time.monotonic() - began >= 0.4 - 0.01


def test_who_waits_goes_on_when_it_is_called_off():
    pace = Pace(MIB)
    pace._free_at += 3600
    stopped = threading.Event()
    waiting = threading.Thread(target=pace.wait, args=(1, stopped), daemon=True)
    waiting.start()
    stopped.set()
    waiting.join(10)
    assert not waiting.is_alive()


def test_a_save_keeps_its_io_rate(tmp_path):
    tree = {"w": np.random.default_rng(0).integers(0, 255, 24 * MIB, np.uint8)}
    options = ogds.Options(io_rate=40 * MIB, codec="off", workers=2)
    report = ogds.save(tmp_path / "item", tree, options=options)
    assert report.seconds["pace"] > 0.2
    assert ogds.restore(tmp_path / "item")["w"].tobytes() == tree["w"].tobytes()


class Time:
    """A clock that only waiting moves, and what is waited on."""

    now = 100.0

    def clock(self):
        return self.now

    def wait(self, secs):
        self.now += secs


@given(st.lists(st.tuples(st.integers(1, 8 * MIB), st.floats(0, 0.3)), min_size=1, max_size=20))
def test_over_any_time_no_more_is_written_than_the_rate_allows(writes):
    time_, rate = Time(), 40 * MIB
    pace = Pace(rate, time_.clock)
    done = []
    for n_bytes, secs_between in writes:
        time_.now += secs_between
        pace.wait(n_bytes, time_)
        done.append((time_.now, n_bytes))
    for first in range(len(done)):
        for last in range(first, len(done)):
            written = sum(n for _, n in done[first + 1 : last + 1])
            secs = done[last][0] - done[first][0]
            assert written <= rate * (secs + pacing._LATE_SECS) + 1
    assert sum(n for _, n in done) <= rate * (done[-1][0] - 100 + 1e-6) + 1


def test_all_who_ask_for_a_rate_keep_one_pace_and_other_rates_have_their_own():
    assert pacing.pace_of(7 * MIB) is pacing.pace_of(7 * MIB)
    assert pacing.pace_of(7 * MIB) is not pacing.pace_of(8 * MIB)


def fake_pace(monkeypatch, rate):
    """Let all who ask for a rate keep a pace of a clock that only waiting moves."""
    time_ = Time()
    monkeypatch.setitem(pacing._paces, rate, Pace(rate, time_.clock))
    wait = Pace.wait
    monkeypatch.setattr(Pace, "wait", lambda pace, n_bytes, _: wait(pace, n_bytes, time_))
    return time_


def test_saves_and_handlers_of_one_process_share_a_rate(tmp_path, monkeypatch):
    rate = 33 * MIB
    time_ = fake_pace(monkeypatch, rate)
    tree = {"w": np.random.default_rng(0).integers(0, 255, 2 * MIB, np.uint8)}
    options = ogds.Options(io_rate=rate, codec="off", workers=1)
    for number in range(2):
        ogds.save(tmp_path / f"save{number}", tree, options=options)
        handler = ogds.GdsCheckpointHandler(options)
        handler.save(tmp_path / f"handler{number}", ogds.args.GdsSave(tree))
    stripes = sum(path.stat().st_size for path in tmp_path.glob("*/*.ogds"))
    padding = 4 * 4096  # of the last block of each
    assert stripes / rate <= time_.now - 100 + 1e-6
    assert time_.now - 100 <= (stripes + padding) / rate + 1e-6


def test_measuring_the_storage_keeps_the_rate_and_is_not_slower_for_it(tmp_path, monkeypatch):
    rate = 34 * MIB
    time_ = fake_pace(monkeypatch, rate)
    driver = open_driver("auto", tmp_path)
    written = []
    write = posix.PosixFile.write

    def count(file, offset, data):
        written.append(len(data))
        write(file, offset, data)

    monkeypatch.setattr(posix.PosixFile, "write", count)
    probe(
        driver,
        tmp_path / "p.probe",
        aligned_empty(MIB),
        WriteMeter,
        n_bytes=2 * MIB,
        n_threads=2,
        pace=pacing.pace_of(rate),
    )
    assert time_.now - 100 == pytest.approx(sum(written) / rate)


def test_the_items_of_a_step_share_their_io_rate(tmp_path):
    arrays = np.random.default_rng(0).integers(0, 255, (2, 12 * MIB), np.uint8)
    options = ogds.Options(io_rate=40 * MIB, codec="off", workers=2, derive=False)
    handlers = {name: ogds.GdsCheckpointHandler(options) for name in "ab"}
    with ocp.CheckpointManager(tmp_path, item_handlers=handlers) as manager:
        began = time.monotonic()
        items = {"a": ogds.args.GdsSave(arrays[0]), "b": ogds.args.GdsSave(arrays[1])}
        manager.save(0, args=ocp.args.Composite(**items))
        manager.wait_until_finished()
    assert time.monotonic() - began >= 24 / 40 - pacing._LATE_SECS


def test_a_paced_save_that_fails_does_not_wait(tmp_path, monkeypatch):
    tree = {"w": np.random.default_rng(0).integers(0, 255, 40 * MIB, np.uint8)}
    prepared = saving.prepare(tree, options=ogds.Options(io_rate=8 * MIB, codec="off", workers=2))

    def fails(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("orbax_gds.drivers.posix.os.pwrite", fails, raising=False)
    monkeypatch.setattr("orbax_gds.drivers.posix.os.pwritev", fails, raising=False)
    began = time.monotonic()
    with pytest.raises(IoError):
        prepared.write(tmp_path)
    assert time.monotonic() - began < 3


def test_who_waits_while_another_thread_fails_writes_nothing_more(tmp_path, monkeypatch):
    tree = {"w": np.random.default_rng(0).integers(0, 255, 12 * MIB, np.uint8)}
    options = ogds.Options(io_rate=MIB, codec="off", workers=2, driver="buffered")
    both_wait, written = threading.Barrier(2, timeout=10), []

    class Failing:
        """Of two threads that wait, one fails; the other comes back after that."""

        def wait(self, n_bytes, stopped):
            if n_bytes < MIB:
                return  # header and layout
            if both_wait.wait() == 0:
                raise OSError(5, "failed while it waited")
            assert stopped.wait(10)

    write = posix.PosixFile.write
    monkeypatch.setitem(pacing._paces, MIB, Failing())
    monkeypatch.setattr(
        posix.PosixFile, "write", lambda f, at, data: written.append(at) or write(f, at, data)
    )
    with pytest.raises(OSError, match="failed while it waited"):
        saving.prepare(tree, options=options).write(tmp_path)
    assert written == [0]  # header and layout
