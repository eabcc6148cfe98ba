"""The end of a save by several processes: done when each has stored its part, failed when one has.

Orbax's own barrier only knows that some process is missing, and those that wait at it learn of a
failure when their time is up.
"""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path as FilePath
from typing import Any, NoReturn

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint.future import Future

from orbax_gds.barrier import late_processes
from orbax_gds.commit import check_sealed, leave_failure
from orbax_gds.errors import CommitError
from orbax_gds.pending import Failure, missing_processes, processes_text, read_failure

_AT_ONCE_MS = 1  # chosen: a barrier that is given up fails for all, also for those that come later


class AllStored:
    """A future that is done when this process and all others have stored their parts.

    It starts nothing: what it waits for runs already. When all have stored their parts, process 0
    checks that these fit together, so that all raise where they do not. All processes wait for the
    same items in the same order, as Orbax does.

    Args:
        own: what this process stores.
        directory: of the item, the same on all processes.
        attempt: how often saves into that directory have failed before in this job.
        on_failure: called if the save fails.
    """

    def __init__(
        self, own: Future, directory: FilePath, attempt: int, on_failure: Callable[[], None]
    ) -> None:
        self._own, self._directory = own, directory
        self._on_failure = on_failure
        # A barrier that has failed cannot be used again.
        self._keys = [f"orbax_gds_{what} {attempt} {directory}" for what in ("stored", "checked")]
        self._barrier = ocp.multihost.get_barrier_sync_fn()

    def result(self, timeout: float | None = None) -> Any:
        """Wait for all.

        Args:
            timeout: seconds; None takes Orbax's default.

        Raises:
            CommitError: another process has failed, or is not done in time, or was given another
                tree; it is named.
            TimeoutError: this process is not done in time.
            OgdsError: this process has failed.
        """
        try:
            self._wait(timeout or ocp.AsyncOptions().timeout_secs)
        except BaseException:
            self._on_failure()
            raise

    def cancel(self) -> bool | None:
        """Cancel what this process stores."""
        return self._own.cancel()

    def _wait(self, timeout: float) -> None:
        end = time.monotonic() + timeout
        self._do(lambda: self._own.result(timeout=timeout), timeout, end, self._keys[0])
        checks = jax.process_index() == 0
        self._do(lambda: checks and check_sealed(self._directory), timeout, end, self._keys[1])

    def _do(self, part: Callable[[], Any], timeout: float, end: float, key: str) -> None:
        """Do this process's part of a save, meet the others, and see that none has failed."""
        try:
            part()
        except BaseException as err:
            self._tell(err, key)
            raise
        left_ms = max(_AT_ONCE_MS, int((end - time.monotonic()) * 1000))
        try:
            self._barrier(key=key, timeout_ms=left_ms)
        except RuntimeError as err:  # jax's, from its coordination service
            self._refuse(timeout, err)
        if read_failure(self._directory) is not None:
            self._refuse(timeout, None)

    def _tell(self, err: BaseException, key: str) -> None:
        """Tell the others that this process has failed, so that they need not wait."""
        text = f"{type(err).__name__}: {err}"
        with contextlib.suppress(OSError, RuntimeError):  # they find out when their time is up
            leave_failure(self._directory, Failure(process=jax.process_index(), error=text))
            self._barrier(key=key, timeout_ms=_AT_ONCE_MS)

    def _refuse(self, timeout: float, err: RuntimeError | None) -> NoReturn:
        failure = read_failure(self._directory)
        n_processes = jax.process_count()
        unsealed = missing_processes(self._directory, n_processes)
        missing = sorted({*unsealed, *(late_processes(err) if err else ())})
        if failure is not None:
            missing = []
            what = f"process {failure.process} failed with {failure.error.rstrip('.')}"
        elif missing:
            what = (
                f"{timeout:.0f} s were not enough for {processes_text(missing)} of {n_processes}: "
                + (
                    "failed, dead or still writing"
                    if unsealed
                    else "dead or cut off, its part stored"
                )
            )
        else:
            what = f"every process has stored its part, but not all could say so: {err}"
        raise CommitError(
            f"{self._directory} is not published: {what}. The last committed step is untouched. "
            "See the log of that process, then save again; AsyncOptions(timeout_secs=...) says "
            "how long to wait.",
            missing,
        ) from err
