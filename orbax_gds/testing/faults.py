"""Faults at a chosen operation: what a full disk, a broken device or a crash leave behind."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, NoReturn
from unittest import mock

from orbax_gds.drivers import Driver, File, Mode
from orbax_gds.drivers.protocol import byte_view
from orbax_gds.errors import IoError, OgdsError

if TYPE_CHECKING:
    from orbax_gds.drivers.protocol import Sink, Source

Action = Literal["error", "short", "kill"]

_WRITES = ("pwrite", "write")
_SYSTEM_CALLS = (
    *_WRITES,
    "open",
    "preadv",
    "ftruncate",
    "fsync",
    "rename",
    "replace",
    "mkdir",
    "link",
    "unlink",
    "remove",
    "rmdir",
)


class Fault:
    """Counts operations and strikes once, at the n-th.

    Args:
        at: Number of the operation that is struck, from 0. None counts and never strikes, to learn
            how many operations there are.
        action: "error" raises in place of the operation; "short" writes only the first half and,
            for a driver's write, then raises; "kill" does the operation and then ends the process
            with SIGKILL.
        number: The errno of the error.

    Attributes:
        operations: What has been asked for so far, in order, as text such as "sync p00000.ogds".
    """

    def __init__(
        self, at: int | None, action: Action = "error", number: int = errno.ENOSPC
    ) -> None:
        self.operations: list[str] = []
        self.action = action
        self.number = number
        self._at = at
        self._lock = threading.Lock()

    def run(self, operation: str, call: Callable[[], Any], shorter: Callable[[], Any]) -> Any:
        """Do an operation, or what the fault makes of it; `shorter` does its first half."""
        with self._lock:
            struck = len(self.operations) == self._at
            self.operations.append(operation)
        if not struck:
            return call()
        if self.action == "short":
            return shorter()
        if self.action == "error":
            raise OSError(self.number, os.strerror(self.number), operation)
        call()
        self._kill()

    @staticmethod
    def _kill() -> NoReturn:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("SIGKILL did not end the process")


class FaultyDriver(Driver):
    """A driver whose operations, over all its files, pass through a fault."""

    def __init__(self, inner: Driver, fault: Fault) -> None:
        self.name = inner.name
        self.reason = inner.reason
        self._inner = inner
        self._fault = fault

    def available(self, directory: str | os.PathLike[str]) -> str | None:
        return self._inner.available(directory)

    def open(self, path: str | os.PathLike[str], mode: Mode) -> FaultyFile:
        def call() -> FaultyFile:
            return FaultyFile(self._inner.open(path, mode), os.fspath(path), self._fault)

        return _strike(self._fault, f"open {os.path.basename(path)}", call, call)


class FaultyFile(File):
    """A file whose operations pass through a fault."""

    def __init__(self, inner: File, path: str, fault: Fault) -> None:
        self._inner = inner
        self._path = path
        self._name = os.path.basename(path)
        self._fault = fault
        self._mirror()

    def write(self, offset: int, data: Source) -> None:
        view = byte_view(data)

        def shorter() -> None:
            unit = self.alignment
            self._inner.write(offset, view[: len(view) // 2 // unit * unit])
            raise OSError(self._fault.number, os.strerror(self._fault.number), self._path)

        operation = f"write {self._name} {offset} {len(view)}"
        self._run(operation, lambda: self._inner.write(offset, view), shorter)

    def read(self, offset: int, out: Sink) -> None:
        operation = f"read {self._name} {offset} {byte_view(out).nbytes}"
        self._run(operation, lambda: self._inner.read(offset, out))

    def n_bytes(self) -> int:
        return self._inner.n_bytes()

    def sync(self, n_bytes: int) -> None:
        self._run(f"sync {self._name} {n_bytes}", lambda: self._inner.sync(n_bytes))

    def close(self) -> None:
        self._inner.close()

    def _run(
        self, operation: str, call: Callable[[], None], shorter: Callable[[], None] | None = None
    ) -> None:
        _strike(self._fault, operation, call, shorter or call)
        self._mirror()

    def _mirror(self) -> None:
        self.alignment, self.carried = self._inner.alignment, self._inner.carried
        self.reason = self._inner.reason


def _strike(
    fault: Fault, operation: str, call: Callable[[], Any], shorter: Callable[[], Any]
) -> Any:
    """Run an operation and turn the fault's bare OSError into what a driver raises."""
    try:
        return fault.run(operation, call, shorter)
    except OgdsError:
        raise
    except OSError as err:
        raise IoError(err.errno, f"Cannot {operation}, {err.strerror}", err.filename) from err


@contextlib.contextmanager
def faulty_system(fault: Fault) -> Iterator[Fault]:
    """Pass the file operations of `os`, whoever calls them, through a fault.

    Reaches what no driver sees: manifests, renames and the syncs of directories. "short" makes a
    write return early, as the system may, which must change nothing.

    Example:
        >>> with faulty_system(Fault(None)) as fault:
        ...     os.close(os.open(os.devnull, os.O_RDONLY))
        >>> fault.operations
        ['open /dev/null']
    """
    with contextlib.ExitStack() as patches:
        for name in _SYSTEM_CALLS:
            patches.enter_context(mock.patch.object(os, name, _faulty_call(name, fault)))
        yield fault


def _faulty_call(name: str, fault: Fault) -> Callable[..., Any]:
    original = getattr(os, name)

    def call(first: Any, *rest: Any, **options: Any) -> Any:
        def shorter() -> Any:
            if name not in _WRITES:
                return original(first, *rest, **options)
            view = byte_view(rest[0])
            return original(first, view[: (len(view) + 1) // 2], *rest[1:], **options)

        where = f"{name} {first if isinstance(first, str) else os.fspath(_name_of(first))}"
        return fault.run(where, lambda: original(first, *rest, **options), shorter)

    return call


def _name_of(target: Any) -> Any:
    """The path of a descriptor, so that a list of operations can be read."""
    return os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else target
