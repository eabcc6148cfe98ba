"""A cap on the rate at which a process writes, for storage that training needs too."""

import threading
import time
from collections.abc import Callable
from typing import Protocol

__all__ = ["Pace", "pace_of"]

_LATE_SECS = 0.1  # chosen: who comes so late makes up for it; who comes later has not been waiting


class _Stop(Protocol):
    """A `threading.Event`, as far as it is needed."""

    def wait(self, timeout: float | None = None, /) -> bool:
        """Wait so many seconds, or until it is set."""
        ...


class Pace:
    """Makes threads wait so that together they keep a rate, those of several saves too.

    Args:
        bytes_per_second: the rate; None never waits.
        clock: seconds that never go back.
    """

    def __init__(
        self, bytes_per_second: int | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate, self._clock = bytes_per_second, clock
        self._free_at = clock()  # when all that was let through, or waits, has had its time
        self._lock = threading.Lock()

    def wait(self, n_bytes: int, stopped: _Stop) -> None:
        """Wait for as long as so many bytes may take, behind all who wait already; then write them.

        Ends early when nobody will write them; they count all the same.
        """
        if self._rate is None:
            return
        with self._lock:
            now = self._clock()
            begins = now if now - self._free_at > _LATE_SECS else self._free_at
            self._free_at = begins + n_bytes / self._rate
            left = self._free_at - now
        if left > 0:
            stopped.wait(left)


_paces: dict[int | None, Pace] = {}
_paces_lock = threading.Lock()


def pace_of(bytes_per_second: int | None) -> Pace:
    """Return the pace of a rate, which all who ask for that rate in this process keep together.

    It is kept for good: a save that begins just after another must know what that has written.
    """
    with _paces_lock:
        if bytes_per_second not in _paces:
            _paces[bytes_per_second] = Pace(bytes_per_second)
        return _paces[bytes_per_second]
