"""A cap on the rate at which a save writes, for storage that training needs too."""

import threading
import time

_BURST_SECS = 0.1  # chosen: what was not written in time is made up for that long, not longer


class Pace:
    """Makes threads wait so that together they keep a rate.

    Args:
        bytes_per_second: the rate; None never waits.
    """

    def __init__(self, bytes_per_second: int | None) -> None:
        self._rate = bytes_per_second
        self._free_at = time.monotonic()  # when what was let through is paid for
        self._lock = threading.Lock()
        self._stopped = threading.Event()

    def wait(self, n_bytes: int) -> None:
        """Wait until so many bytes may be written; they count from then on."""
        if self._rate is None:
            return
        with self._lock:
            now = time.monotonic()
            begins = max(self._free_at, now - _BURST_SECS)
            self._free_at = begins + n_bytes / self._rate
        self._stopped.wait(max(0.0, begins - now))

    def stop(self) -> None:
        """Let all who wait go on at once, as they will not write any more."""
        self._stopped.set()
