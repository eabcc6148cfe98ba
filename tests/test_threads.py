"""Threads end with the call that started them, whatever happens."""

import os
import signal
import sys
import threading
import time

import numpy as np
import pytest

import orbax_gds as ogds
from orbax_gds import threads
from orbax_gds.threads import BACKGROUND_NICENESS, cpu_secs, give_way, run_tasks, run_threads


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


def test_an_interrupted_caller_waits_however_often_it_is_interrupted_again():
    stopped, never, main = threading.Event(), threading.Event(), threading.get_ident()
    ended = []

    def work():
        if threading.get_ident() == main:
            return
        for _ in range(3):  # the first while the caller joins, the others while it has stopped us
            signal.pthread_kill(main, signal.SIGINT)
            never.wait(0.03)
        ended.append(stopped.is_set())

    with pytest.raises(KeyboardInterrupt):
        run_threads(2, work, lambda error: stopped.set())
    assert ended == [True]


def test_a_caller_interrupted_while_it_starts_a_thread_leaves_none_at_work(monkeypatch):
    stopped, never = threading.Event(), threading.Event()
    begun, ended = [], []
    original = threading.Thread.start

    def start(thread):
        original(thread)
        raise KeyboardInterrupt

    def work():
        begun.append(1)
        stopped.wait()
        never.wait(0.03)
        ended.append(1)

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(KeyboardInterrupt):
        run_threads(2, work, lambda error: stopped.set())
    assert begun == ended


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


@pytest.mark.parametrize("n_threads", [0, 1, 2, 5])
def test_every_task_is_done_once_by_any_number_of_threads(n_threads):
    done = []
    before = threading.active_count()
    run_tasks((task for task in range(1000)), done.append, n_threads)
    assert sorted(done) == list(range(1000))
    assert threading.active_count() == before


def test_a_task_may_be_anything_and_there_may_be_none():
    done = []
    run_tasks([None, 0, (), False], done.append, 1)
    assert done == [None, 0, (), False]
    run_tasks([], done.append, 3)
    assert len(done) == 4


def test_no_task_is_taken_by_two_threads_that_take_turns_all_the_time():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(300):
            done = []
            run_tasks([1, 2], done.append, 2)
            assert sorted(done) == [1, 2]
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("n_threads", [1, 3])
def test_after_an_error_no_task_is_taken_and_the_caller_gets_it(n_threads):
    taken = []

    def work(task):
        taken.append(task)
        raise ValueError(task)

    with pytest.raises(ValueError, match=r"^\d$"):
        run_tasks(range(100), work, n_threads)
    assert 1 <= len(taken) <= n_threads


def test_an_error_of_the_tasks_themselves_reaches_the_caller():
    def tasks():
        yield 1
        raise KeyError("second")

    with pytest.raises(KeyError, match="second"):
        run_tasks(tasks(), lambda task: None, 3)


def test_the_clock_of_a_thread_counts_the_threads_it_ran_and_no_others():
    def spin(_=None):
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            pass

    other = threading.Thread(target=spin)
    began = cpu_secs()
    other.start()
    other.join()
    assert cpu_secs() - began < 0.02
    run_tasks(range(3), lambda _: run_tasks(range(2), spin, 2), 3)
    assert 0.12 <= cpu_secs() - began < 0.24


def test_the_clock_counts_what_a_failed_job_took():
    def fail(_):
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            pass
        raise ValueError("failed")

    began = cpu_secs()
    with pytest.raises(ValueError, match="failed"):
        run_tasks(range(2), fail, 2)
    assert cpu_secs() - began >= 0.02


def niceness() -> int:
    """The niceness of the calling thread, not of the process."""
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def in_a_thread(work) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_who_gives_way_takes_its_threads_along_and_nobody_else():
    before, seen = niceness(), []

    def work() -> None:
        give_way()
        seen.append(niceness())
        run_threads(2, lambda: seen.append(niceness()), lambda error: None)

    in_a_thread(work)
    lowered = max(before, BACKGROUND_NICENESS) if sys.platform == "linux" else before
    assert seen == [lowered] * 3
    assert niceness() == before
    in_a_thread(lambda: seen.append(niceness()))
    assert seen[-1] == before


def test_a_system_that_forbids_it_is_no_error(monkeypatch):
    def refuse(which: int, who: int, priority: int) -> None:
        raise PermissionError("forbidden here")

    monkeypatch.setattr(os, "setpriority", refuse)
    in_a_thread(give_way)
    give_way()


def test_a_system_that_has_it_for_processes_alone_is_left_as_it_is(monkeypatch):
    asked: list[tuple[int, ...]] = []
    monkeypatch.setattr(os, "setpriority", lambda *arguments: asked.append(arguments))
    monkeypatch.setattr(threads.sys, "platform", "darwin")
    give_way()
    assert asked == []


@pytest.mark.parametrize("workers", [1, 3])
def test_a_save_starts_no_more_threads_than_it_may(tmp_path, monkeypatch, workers):
    started = []
    start = threading.Thread.start
    monkeypatch.setattr(
        threading.Thread, "start", lambda thread: started.append(thread.name) or start(thread)
    )
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 255, 4 << 20, np.uint8) for _ in range(6)]  # three runs
    groups = [np.full(20_000 + i, i, np.float32) for i in range(6) for _ in range(2)]
    options = ogds.Options(workers=workers, codec="off", driver="buffered")
    report = ogds.save(tmp_path / "item", [arrays, groups], options=options)
    assert report.n_derived == 6
    assert started.count("orbax_gds") == len(started) == 2 * (workers - 1)  # derive, write
