"""Threads that share a job with their caller and never outlive the call."""

import threading
from collections.abc import Callable


def run_threads(
    n_threads: int, work: Callable[[], None], stop: Callable[[BaseException], None]
) -> None:
    """Run `work` in the calling thread and in `n_threads` - 1 others, and wait for all.

    Args:
        n_threads: how many, the caller included; with 0 or 1 only the caller works.
        work: takes tasks until there are none; it handles its own errors.
        stop: makes `work` return soon, for the reason given. Called when the caller is
            interrupted or a thread cannot be started, as the others must not go on by themselves.
    """
    started: list[threading.Thread] = []
    try:
        for _ in range(n_threads - 1):
            thread = threading.Thread(target=work, name="orbax_gds")
            thread.start()
            started.append(thread)
        work()
        for thread in started:
            thread.join()
    except BaseException as error:
        stop(error)
        for thread in started:
            thread.join()
        raise
