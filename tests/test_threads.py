"""Threads end with the call that started them, whatever happens."""

import threading

import pytest

from orbax_gds.threads import run_threads


def test_all_threads_work_and_end():
    seen = []
    barrier = threading.Barrier(3)

    def work():
        barrier.wait()
        seen.append(threading.get_ident())

    before = threading.active_count()
    run_threads(3, work, lambda error: None)
    assert len(set(seen)) == 3
    assert threading.active_count() == before


def test_an_interrupted_caller_stops_the_others_first():
    stopped = threading.Event()
    main = threading.get_ident()

    def work():
        if threading.get_ident() == main:
            raise KeyboardInterrupt
        stopped.wait()

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        run_threads(4, work, lambda error: stopped.set())
    assert threading.active_count() == before


def test_a_thread_that_cannot_start_stops_the_others(monkeypatch):
    stopped = threading.Event()
    starts = []
    original = threading.Thread.start

    def start(thread):
        starts.append(thread)
        if len(starts) == 2:
            raise RuntimeError("can't start new thread")
        original(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(RuntimeError, match="can't start"):
        run_threads(3, stopped.wait, lambda error: stopped.set())
    assert not starts[0].is_alive()
