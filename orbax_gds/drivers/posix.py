"""Files of the operating system, written past the page cache where the file system allows it.

A direct write costs a tenth of the processor time of a buffered one and leaves the page cache to
others. Reads are direct, too, and neither ask nor fill the page cache: into huge pages (staging.py)
they are faster than buffered ones, cold at least, and what `verify` reads is what the device holds.
The file system has the last word, on open or as late as the first write: then the file goes on
through the page cache and remembers why.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from orbax_gds.drivers.direct import BUFFER_ALIGNMENT, direct_alignment, direct_refusal
from orbax_gds.drivers.protocol import Driver, File, Mode, byte_view
from orbax_gds.errors import IoError, NotFound, Truncated, Unsupported
from orbax_gds.staging import aligned_empty

if TYPE_CHECKING:
    from orbax_gds.drivers.protocol import Sink, Source

BOUNCE_BYTES = 1 << 20  # chosen: bounds the memory of an unaligned read, large enough to stream

_O_DIRECT = getattr(os, "O_DIRECT", 0)
_FLAGS = {"w": os.O_CREAT | os.O_TRUNC | os.O_WRONLY, "r": os.O_RDONLY}
_REFUSALS = (errno.EINVAL, errno.EOPNOTSUPP)
_REMEDIES = {
    errno.ENOSPC: "Free space or save elsewhere",
    errno.EDQUOT: "Raise the quota or save elsewhere",
    errno.EIO: "The device reports a fault: use another one",
}


class PosixDriver(Driver):
    """Opens files of the operating system.

    Args:
        direct: Whether to go past the page cache where that is possible.
        insist: Whether to raise where it is not, instead of going through the page cache.

    Example:
        >>> PosixDriver(direct=True).name
        'direct'
    """

    def __init__(self, *, direct: bool, insist: bool = False) -> None:
        self.name = "direct" if direct else "buffered"
        self.reason: str | None = None
        self._insist = insist

    def available(self, directory: str | os.PathLike[str]) -> str | None:
        return direct_refusal(directory) if self.name == "direct" else None

    def open(self, path: str | os.PathLike[str], mode: Mode) -> PosixFile:
        direct = self.name == "direct"
        return PosixFile(path, mode, direct=direct, insist=self._insist, reason=self.reason)


class PosixFile(File):
    """A file descriptor with the contract of `File`."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        mode: Mode,
        *,
        direct: bool,
        insist: bool = False,
        reason: str | None = None,
    ) -> None:
        self.alignment = 1
        self.carried = "buffered"
        self.reason = reason
        self._path = os.fspath(path)
        self._insist = insist
        self._lock = threading.Lock()
        self._sync_failed = False
        self.descriptor = self._descriptor = self._open(_FLAGS[mode] | os.O_CLOEXEC, direct)

    def write(self, offset: int, data: Source) -> None:
        view = byte_view(data)
        self._check_alignment(offset, view)
        while view:
            n_written = self._transfer(os.pwrite, view, offset, "write")
            view, offset = view[n_written:], offset + n_written

    def read(self, offset: int, out: Sink) -> None:
        view = byte_view(out)
        aligned = not (offset | len(view) | _address(view)) % self.alignment
        n_read = self._fill(offset, view) if aligned else self._fill_bounced(offset, view)
        if n_read < len(view):
            raise Truncated(
                f"{self._path} ends at byte {self.n_bytes()}, but bytes {offset} to "
                f"{offset + len(view)} belong to it: it was cut short. Restore another step or a "
                "copy of this one."
            )

    def n_bytes(self) -> int:
        try:
            return os.fstat(self._descriptor).st_size
        except OSError as err:
            raise self._error(err, "stat") from err

    def sync(self, n_bytes: int) -> None:
        if self._sync_failed:
            raise IoError(errno.EIO, "An earlier sync failed: write the file anew", self._path)
        try:
            os.ftruncate(self._descriptor, n_bytes)
            os.fsync(self._descriptor)
        except OSError as err:
            self._sync_failed = True
            raise self._error(err, f"sync {n_bytes} bytes") from err

    def close(self) -> None:
        descriptor, self._descriptor, self.descriptor = self._descriptor, -1, None
        if descriptor < 0:
            return
        try:
            os.close(descriptor)
        except OSError as err:
            raise self._error(err, "close") from err

    def _open(self, flags: int, direct: bool) -> int:
        try:
            descriptor = os.open(self._path, flags | (_O_DIRECT if direct else 0), 0o666)
        except FileNotFoundError as err:
            raise NotFound(err.errno, "There is no such file or directory", self._path) from err
        except OSError as err:
            if not direct or err.errno not in _REFUSALS:
                raise self._error(err, "open") from err
            self._record_refusal(f"open refused O_DIRECT: {_text(err)}")
            return self._open(flags, direct=False)
        if not direct:
            return descriptor
        unit = direct_alignment(descriptor)
        if unit is None:
            os.close(descriptor)
            self._record_refusal(f"no direct I/O at an alignment of {BUFFER_ALIGNMENT} or less")
            return self._open(flags, direct=False)
        self.carried, self.alignment = "direct", unit
        return descriptor

    def _transfer(
        self, call: Callable[[int, memoryview, int], int], view: memoryview, offset: int, verb: str
    ) -> int:
        was_direct = self.carried == "direct"
        try:
            return call(self._descriptor, view, offset)
        except OSError as err:
            if not was_direct or err.errno not in _REFUSALS:
                raise self._error(err, f"{verb} {len(view)} bytes at byte {offset}") from err
            self._fall_back(f"direct {verb} at byte {offset} refused: {_text(err)}")
        return self._transfer(call, view, offset, verb)

    def _fill(self, offset: int, view: memoryview) -> int:
        n_read = 0
        while n_read < len(view):
            n_more = self._transfer(_preadv, view[n_read:], offset + n_read, "read")
            n_read += n_more
            # Only the end of the file cuts a direct read at an unaligned byte, and a read from
            # there would be refused.
            if not n_more or n_more % self.alignment:
                break
        return n_read

    def _fill_bounced(self, offset: int, view: memoryview) -> int:
        n_read, unit = 0, self.alignment
        covering_bytes = (offset + len(view) + unit - 1) // unit * unit - offset // unit * unit
        bounce = byte_view(aligned_empty(min(covering_bytes, BOUNCE_BYTES)))
        while n_read < len(view):
            skip = (offset + n_read) % unit
            n_wanted = (skip + len(view) - n_read + unit - 1) // unit * unit
            n_got = self._fill(offset + n_read - skip, bounce[:n_wanted])
            piece = bounce[skip : min(n_got, skip + len(view) - n_read)]
            view[n_read : n_read + len(piece)] = piece
            n_read += len(piece)
            if n_got < min(n_wanted, len(bounce)):
                break
        return n_read

    def _fall_back(self, reason: str) -> None:
        """Go on through the page cache; several threads may find out at once."""
        with self._lock:
            if self.carried != "direct":
                return
            self._record_refusal(reason)
            flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags & ~_O_DIRECT)
            self.carried, self.alignment = "buffered", 1

    def _record_refusal(self, reason: str) -> None:
        self.reason = f"{self._path}: {reason}"
        if self._insist:
            raise Unsupported(
                f"Direct I/O was asked for, but {self.reason}. Pass driver='auto' or 'buffered', "
                "or save on another file system."
            )

    def _check_alignment(self, offset: int, view: memoryview) -> None:
        unit = self.alignment
        assert not (offset | len(view) | _address(view)) % unit, (
            f"write of {len(view)} bytes at byte {offset} from {_address(view):#x}, unit {unit}"
        )

    def _error(self, err: OSError, action: str) -> IoError:
        remedy = _REMEDIES.get(err.errno or 0, "Check the path, its permissions and the device")
        return IoError(err.errno, f"Cannot {action}, {_text(err)}. {remedy}", self._path)


def _preadv(descriptor: int, view: memoryview, offset: int) -> int:
    return os.preadv(descriptor, [view], offset)


def _address(view: memoryview) -> int:
    return np.frombuffer(view, np.uint8).ctypes.data if view else 0


def _text(err: OSError) -> str:
    return f"{errno.errorcode.get(err.errno or 0, err.errno)} ({err.strerror})"
