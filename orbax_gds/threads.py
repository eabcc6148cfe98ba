"""Threads that share a job with their caller and never outlive the call."""

import contextlib
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

Task = TypeVar("Task")

# Chosen: where training leaves a core free, no difference; where it does not, a tenth of what a
# thread of it gets, so that the next save need not wait for this one.
BACKGROUND_NICENESS = 10


class _Others(threading.local):
    """Processor time of the threads that a thread has run and waited for."""

    cpu_secs = 0.0


_others = _Others()


def cpu_secs() -> float:
    """Return the processor time of the calling thread and of those it ran here, as a clock.

    Unlike that of the process it counts no thread that has to do with something else.

    Example:
        >>> cpu_secs() <= cpu_secs()
        True
    """
    return time.thread_time() + _others.cpu_secs


def give_way() -> None:
    """Lower the priority of the calling thread for good, and of the threads it starts from now on.

    Where only processes have priorities, or the system forbids it, nothing changes. A thread that
    has given way more stays as it is.
    """
    if sys.platform != "linux":
        return
    thread = threading.get_native_id()
    with contextlib.suppress(OSError):  # it would be a favour, no more
        if os.getpriority(os.PRIO_PROCESS, thread) < BACKGROUND_NICENESS:
            os.setpriority(os.PRIO_PROCESS, thread, BACKGROUND_NICENESS)


def run_tasks(tasks: Iterable[Task], work: Callable[[Task], None], n_threads: int) -> None:
    """Do `work` for every task, in the calling thread and in others, and wait for all.

    Args:
        tasks: taken one after the other, by one thread at a time.
        work: called with a task, by several threads at once.
        n_threads: how many, the caller included; with 0 or 1 only the caller works.

    Raises:
        BaseException: the first error of `work`, or of an interrupted caller; after it no thread
            takes another task.

    Example:
        >>> done = []
        >>> run_tasks(range(3), done.append, n_threads=2)
        >>> sorted(done)
        [0, 1, 2]
    """
    left, lock = iter(tasks), threading.Lock()
    errors: list[BaseException] = []

    def take() -> list[Task]:
        with lock:
            return [] if errors else list(itertools.islice(left, 1))

    def loop() -> None:
        try:
            while task := take():
                work(*task)
        except BaseException as error:  # carried to the calling thread
            errors.append(error)

    run_threads(n_threads, loop, errors.append)
    if errors:
        raise errors[0]


def run_threads(
    n_threads: int, work: Callable[[], None], stop: Callable[[BaseException], None]
) -> None:
    """Run `work` in the calling thread and in `n_threads` - 1 others, and wait for all.

    Args:
        n_threads: how many, the caller included; with 0 or 1 only the caller works.
        work: takes tasks until there are none; it handles its own errors.
        stop: makes `work` return soon, for the reason given. Called when the caller is
            interrupted or a thread cannot be started, as the others must not go on by themselves;
            called anew where another interrupt comes meanwhile. It raises nothing of its own.

    Raises:
        BaseException: what interrupted the caller last, once no thread works any more.
    """
    started: list[threading.Thread] = []
    working: list[threading.Event] = []  # set when a thread has ended its work
    spent: list[float] = []
    lock, is_over = threading.Lock(), False

    def counted() -> None:
        ended = threading.Event()
        with lock:
            if is_over:  # the caller was interrupted before it knew of this thread
                return
            working.append(ended)
        try:
            work()
        finally:
            spent.append(cpu_secs())  # of all its life, as it does nothing else
            ended.set()

    def end(error: BaseException) -> None:
        nonlocal is_over
        with lock:
            is_over = True
        stop(error)
        for ended in working:  # a thread whose join is interrupted counts as dead (Python 3.11)
            ended.wait()
        for thread in started:
            thread.join()

    try:
        for _ in range(n_threads - 1):
            thread = threading.Thread(target=counted, name="orbax_gds")
            thread.start()
            started.append(thread)
        work()
        for thread in started:
            thread.join()
    except BaseException as error:
        _insist(end, error)
        raise
    finally:
        _others.cpu_secs += sum(spent)


def _insist(end: Callable[[BaseException], None], error: BaseException) -> None:
    """Call `end` until no interrupt ends it; then raise the last of these, if there were any."""
    interrupt: BaseException | None = None
    while True:
        try:
            end(error)
            break
        except BaseException as another:  # raised below
            interrupt = another
    if interrupt is not None:
        raise interrupt
