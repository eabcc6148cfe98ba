"""What a driver is: how bytes reach a file and come back."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, cast

import numpy as np

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

    # NumPy's stubs call an array a buffer only from Python 3.12 on.
    Source: TypeAlias = ReadableBuffer | np.ndarray
    Sink: TypeAlias = WriteableBuffer | np.ndarray

Mode = Literal["w", "r"]


class File(AbstractContextManager["File"], Protocol):
    """One open file: positioned writes or reads from any number of threads.

    Calls block, release the GIL while bytes move, and either do all that was asked or raise.
    Threads may write disjoint ranges at once.

    Attributes:
        alignment: What the offset, the length and the address of a write are multiples of, in
            bytes: a power of two, at most 4096. It may fall to 1 while the file is open.
        carried: The path that carries the bytes: "direct", "buffered" or "memory". It is
            "buffered" as soon as one byte went through the page cache.
        reason: Why not "direct", when direct was wanted; else None.
        descriptor: Of the operating system's file, for who writes to it without `write` or reads
            without `read`: aligned in the same way, and what the system refuses again by these.
            None where there is none.
    """

    alignment: int
    carried: str
    reason: str | None
    descriptor: int | None = None

    def write(self, offset: int, data: Source) -> None:
        """Write all of `data` at byte `offset`.

        Args:
            offset: Byte of the file, a multiple of `alignment`.
            data: Any C-contiguous buffer; its length and address are multiples of `alignment`.

        Raises:
            IoError: The system refused; `errno` and `filename` say what and where.
            Unsupported: Direct I/O was insisted on and the file system refused it.
        """
        ...

    def read(self, offset: int, out: Sink) -> None:
        """Fill `out` with the bytes at byte `offset`; nothing need be aligned.

        Nothing is copied when offset, length and address are multiples of `alignment`.

        Args:
            offset: Byte of the file.
            out: Any writable C-contiguous buffer.

        Raises:
            Truncated: The file ends before `offset + len(out)`.
            IoError: The system refused.
        """
        ...

    def n_bytes(self) -> int:
        """Return the length of the file in bytes."""
        ...

    def sync(self, n_bytes: int) -> None:
        """Cut or extend the file to `n_bytes` and make it durable, but not its directory entry.

        Raises:
            IoError: The system refused. What was written may be lost and a second call cannot
                tell, so it raises too: write the file anew.
        """
        ...

    def close(self) -> None:
        """Release the file, without making it durable; closing twice is allowed."""
        ...

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class Driver(Protocol):
    """A way to open files.

    Attributes:
        name: "direct", "buffered" or "memory".
        reason: Why the drivers that were preferred to this one cannot be used; else None.
    """

    name: str
    reason: str | None

    def available(self, directory: str | os.PathLike[str]) -> str | None:
        """Return None if files in `directory` can be opened, else the reason why not."""
        ...

    def open(self, path: str | os.PathLike[str], mode: Mode) -> File:
        """Open a file: "w" creates or empties it and only writes, "r" only reads.

        Raises:
            NotFound: There is no such file, or no such directory.
            IoError: The system refused.
            Unsupported: Direct I/O was insisted on and the file system refused it.
        """
        ...


def byte_view(data: Source) -> memoryview:
    """View any C-contiguous buffer as its bytes, also an empty one, which cannot be cast."""
    view = memoryview(cast("ReadableBuffer", data))
    return view.cast("B") if view.nbytes else memoryview(bytearray())
