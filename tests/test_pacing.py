"""A pace keeps its rate over all threads, whatever they write, and can be called off."""

import threading
import time

import numpy as np
import orbax.checkpoint as ocp
import pytest

import orbax_gds as ogds
from orbax_gds import pacing, saving
from orbax_gds.drivers import posix
from orbax_gds.errors import IoError
from orbax_gds.pacing import Pace

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
    assert took >= 39 / 100 - pacing._BURST_SECS - 0.01
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
    assert time.monotonic() - began >= 0.3 - pacing._BURST_SECS - 0.01


def test_who_waits_goes_on_when_it_is_called_off():
    pace = Pace(MIB)
    pace.wait(3600 * MIB, NEVER)
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


def test_the_items_of_a_step_share_their_io_rate(tmp_path):
    arrays = np.random.default_rng(0).integers(0, 255, (2, 12 * MIB), np.uint8)
    options = ogds.Options(io_rate=40 * MIB, codec="off", workers=2, derive=False)
    handler = ogds.GdsCheckpointHandler(options)
    with ocp.CheckpointManager(tmp_path, item_handlers={"a": handler, "b": handler}) as manager:
        began = time.monotonic()
        items = {"a": ogds.args.GdsSave(arrays[0]), "b": ogds.args.GdsSave(arrays[1])}
        manager.save(0, args=ocp.args.Composite(**items))
        manager.wait_until_finished()
    assert time.monotonic() - began >= (24 - 8) / 40 - pacing._BURST_SECS


def test_a_paced_save_that_fails_does_not_wait(tmp_path, monkeypatch):
    tree = {"w": np.random.default_rng(0).integers(0, 255, 40 * MIB, np.uint8)}
    prepared = saving.prepare(tree, options=ogds.Options(io_rate=MIB, codec="off", workers=2))

    def fails(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("orbax_gds.drivers.posix.os.pwrite", fails, raising=False)
    monkeypatch.setattr("orbax_gds.drivers.posix.os.pwritev", fails, raising=False)
    began = time.monotonic()
    with pytest.raises(IoError):
        prepared.write(tmp_path)
    assert time.monotonic() - began < 5


def test_who_waits_while_another_thread_fails_writes_nothing_more(tmp_path, monkeypatch):
    tree = {"w": np.random.default_rng(0).integers(0, 255, 12 * MIB, np.uint8)}
    options = ogds.Options(io_rate=MIB, codec="off", workers=2, driver="buffered")
    both_wait, written = threading.Barrier(2, timeout=10), []

    class Failing:
        """Of two threads that wait, one fails; the other comes back after that."""

        def wait(self, n_bytes, stopped):
            if both_wait.wait() == 0:
                raise OSError(5, "failed while it waited")
            assert stopped.wait(10)

    write = posix.PosixFile.write
    monkeypatch.setattr(
        posix.PosixFile, "write", lambda f, at, data: written.append(at) or write(f, at, data)
    )
    with pytest.raises(OSError, match="failed while it waited"):
        saving.prepare(tree, options=options).write(tmp_path, pace=Failing())
    assert written == [0]  # header and layout
