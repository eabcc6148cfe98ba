"""Files in the memory of this process: for tests of what writes and reads stripes."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from orbax_gds.drivers.protocol import Driver, File, Mode, byte_view
from orbax_gds.errors import NotFound, Truncated

if TYPE_CHECKING:
    from orbax_gds.drivers.protocol import Sink, Source


class MemoryDriver(Driver):
    """Holds files by path for as long as it lives.

    It has no directories, so it cannot hold an item: publishing is a rename on disk, and a
    published manifest must not stand in front of stripes that are gone with the process.

    Attributes:
        files: Path to the bytes of each file, open to tests that damage them.

    Example:
        >>> driver = MemoryDriver()
        >>> with driver.open("p00000.ogds", "w") as file:
        ...     file.write(0, b"stripe")
        >>> bytes(driver.files["p00000.ogds"])
        b'stripe'
    """

    name = "memory"
    reason = None

    def __init__(self) -> None:
        self.files: dict[str, bytearray] = {}

    def available(self, directory: str | os.PathLike[str]) -> str | None:
        return "an item cannot be published from memory; put it on /dev/shm instead"

    def open(self, path: str | os.PathLike[str], mode: Mode) -> MemoryFile:
        path = os.fspath(path)
        if mode == "w":
            self.files[path] = bytearray()
        elif path not in self.files:
            raise NotFound(f"There is no file {path!r} in memory. Write it with this driver first.")
        return MemoryFile(path, self.files[path])


class MemoryFile(File):
    """A bytearray with the contract of `File`."""

    alignment = 1
    carried = "memory"
    reason = None

    def __init__(self, path: str, content: bytearray) -> None:
        self._path = path
        self._content = content
        self._lock = threading.Lock()

    def write(self, offset: int, data: Source) -> None:
        view = byte_view(data)
        with self._lock:
            self._resize(max(len(self._content), offset + len(view)))
            self._content[offset : offset + len(view)] = view

    def read(self, offset: int, out: Sink) -> None:
        view = byte_view(out)
        with self._lock:
            if offset + len(view) > len(self._content):
                raise Truncated(
                    f"{self._path} ends at byte {len(self._content)}, but bytes {offset} to "
                    f"{offset + len(view)} belong to it."
                )
            view[:] = self._content[offset : offset + len(view)]

    def n_bytes(self) -> int:
        return len(self._content)

    def sync(self, n_bytes: int) -> None:
        with self._lock:
            self._resize(n_bytes)

    def close(self) -> None:
        """Do nothing: the driver keeps the bytes."""

    def _resize(self, n_bytes: int) -> None:
        del self._content[n_bytes:]
        self._content.extend(bytes(n_bytes - len(self._content)))
