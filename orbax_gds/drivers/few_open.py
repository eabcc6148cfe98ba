"""A driver that keeps few of its files open: an item of many processes and long chains has more
stripes than a process may have descriptors.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from orbax_gds.drivers.protocol import Driver, File, Mode
from orbax_gds.errors import IoError

if TYPE_CHECKING:
    from orbax_gds.drivers.protocol import Sink, Source

_MOST_OPEN = 256  # chosen: two items compared take half of the 1,024 that are usual
_LEAST_OPEN = 4  # chosen: below, a chain would be opened anew for every read


def few_open(driver: Driver, n_files: int) -> Driver:
    """Return what opens so many files for reading: the driver, or a `FewOpen` if they are many."""
    return driver if n_files <= _most_open() else FewOpen(driver)


class FewOpen(Driver):
    """Opens files for reading, closes those that were not read for longest, and opens them again.

    Who reads checks what comes: a path may name another file by then. Frames are compared with
    the index that was read before, so another stripe's are refused.

    Args:
        driver: that opens them.
        most: how many are open at once, but for those that more threads read; None takes a quarter
            of what the process may have, and at most 256.

    Attributes:
        n_open: how many are open now.
    """

    def __init__(self, driver: Driver, most: int | None = None) -> None:
        self.name, self.reason = driver.name, driver.reason
        self.n_open = 0
        self._driver, self._most = driver, _most_open() if most is None else most
        self._idle: dict[_Reopened, None] = {}  # open and not being read, for longest first
        self._lock = threading.Lock()

    def available(self, directory: str | os.PathLike[str]) -> str | None:
        return self._driver.available(directory)

    def open(self, path: str | os.PathLike[str], mode: Mode) -> File:
        """Open a file, which is then there; `mode` is "r"."""
        assert mode == "r", f"{path} is opened to be written"
        opened = _Reopened(self, os.path.abspath(path))
        with self.reading(opened):
            return opened

    @contextlib.contextmanager
    def reading(self, one: _Reopened) -> Iterator[File]:
        """Keep a file open for a block."""
        file = self._take(one)
        try:
            yield file
        finally:
            self._put_back(one)

    def _take(self, one: _Reopened) -> File:
        with self._lock:
            if one.is_closed:
                raise IoError(errno.EBADF, "Cannot read a file that was closed", one.path)
            self._idle.pop(one, None)
            one.n_readers += 1
            if one.file is not None:
                return one.file
        try:
            opened = self._driver.open(one.path, "r")
        except BaseException:
            self._put_back(one)
            raise
        surplus: list[File] = []
        with self._lock:
            if one.file is None:
                one.file, self.n_open = opened, self.n_open + 1
            else:
                surplus.append(opened)  # another thread was faster
            file = one.file
            surplus += self._surplus()
        _close(surplus)
        return file

    def _put_back(self, one: _Reopened) -> None:
        with self._lock:
            one.n_readers -= 1
            surplus = self._without_readers(one)
        _close(surplus)

    def close(self, one: _Reopened) -> None:
        """Close a file for good, as soon as nobody reads it."""
        with self._lock:
            one.is_closed = True
            surplus = self._without_readers(one)
        _close(surplus)

    def _without_readers(self, one: _Reopened) -> list[File]:
        """Say, under the lock, what to close once a file may have no readers any more."""
        if one.n_readers or one.file is None:
            return []
        if one.is_closed:
            return [self._take_away(one)]
        self._idle[one] = None
        return self._surplus()

    def _surplus(self) -> list[File]:
        """Take away, under the lock, the files that are too many."""
        surplus: list[File] = []
        while self.n_open > self._most and self._idle:
            surplus.append(self._take_away(next(iter(self._idle))))
        return surplus

    def _take_away(self, one: _Reopened) -> File:
        file = one.file
        assert file is not None
        self._idle.pop(one, None)
        one.file, self.n_open = None, self.n_open - 1
        return file


class _Reopened(File):
    """A file that is opened whenever it is read and was closed."""

    alignment = 1
    carried = "buffered"
    reason = None

    def __init__(self, files: FewOpen, path: str) -> None:
        self.path = path
        self.file: File | None = None
        self.n_readers = 0
        self.is_closed = False
        self._files = files

    def write(self, offset: int, data: Source) -> None:
        raise AssertionError(f"{self.path} is open for reading")

    def read(self, offset: int, out: Sink) -> None:
        with self._files.reading(self) as file:
            file.read(offset, out)

    def n_bytes(self) -> int:
        with self._files.reading(self) as file:
            return file.n_bytes()

    def sync(self, n_bytes: int) -> None:
        raise AssertionError(f"{self.path} is open for reading")

    def close(self) -> None:
        self._files.close(self)


def _most_open() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_OPEN if soft == resource.RLIM_INFINITY else min(_MOST_OPEN, soft // 4)
    return max(_LEAST_OPEN, most)


def _close(files: list[File]) -> None:
    for file in files:
        file.close()
