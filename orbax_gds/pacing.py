"""A cap on the rate at which a save writes, for storage that training needs too."""

import threading
import time

_BURST_SECS = 0.1  # chosen: what was not written in time is made up for that long, not longer


class Pace:
    """Makes threads wait so that together they keep a rate, those of several saves too.

    Args:
        bytes_per_second: the rate; None never waits.
    """

    def __init__(self, bytes_per_second: int | None) -> None:
        self._rate = bytes_per_second
        self._free_at = time.monotonic()  # when what was let through is paid for
        self._lock = threading.Lock()

    def wait(self, n_bytes: int, stopped: threading.Event) -> None:
        """Wait until so many bytes may be written, or until nobody will write them.

        They count from then on.
        """
        if self._rate is None:
            return
        with self._lock:
            now = time.monotonic()
            begins = max(self._free_at, now - _BURST_SECS)
            self._free_at = begins + n_bytes / self._rate
        stopped.wait(max(0.0, begins - now))
