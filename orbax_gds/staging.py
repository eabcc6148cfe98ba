"""Host memory for a save or restore: aligned, in huge pages, bounded and used again.

The first touch of fresh memory costs as much processor time as writing it out, so buffers live as
long as whoever saves, and waiting for a free one is what bounds the memory of a save.

Large memory lies in huge pages where the kernel has them. Its first touch then costs a fifth, and
a direct read or write is one long row of memory to the device, instead of pages of 4 KiB from all
over: a virtual disk that reads 0.7 GB/s into these reads 2.6 GB/s into huge ones.
"""

import contextlib
import mmap
import threading
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

import numpy as np

from orbax_gds.errors import CommitError

__all__ = ["Buffer", "BufferPool", "aligned_empty", "aligned_pieces"]

_PAGE_BYTES = 4096  # chosen: the largest alignment that direct I/O asks for
_HUGE_BYTES = 2 << 20  # required: a huge page; where they are larger, asking has no effect
_SHARED_BYTES = 8 << 20  # chosen: mostly huge pages; a small array that is kept keeps it alive


def aligned_empty(n_bytes: int, alignment: int = _PAGE_BYTES) -> np.ndarray:
    """Return uninitialised memory that begins at a multiple of `alignment`.

    Args:
        n_bytes: Length.
        alignment: A power of two, in bytes. 64 lets jax take the memory without a copy.

    Returns:
        uint8[n_bytes], C-contiguous.

    Example:
        >>> aligned_empty(100, 64).ctypes.data % 64
        0
    """
    if n_bytes >= _HUGE_BYTES >= alignment:
        return _huge_empty(n_bytes)
    raw = np.empty(n_bytes + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + n_bytes]


def _huge_empty(n_bytes: int) -> np.ndarray:
    """Return memory that begins with a huge page; its end, a part of one, lies in small pages.

    NumPy would ask for the end and the unused begin, too, which then become resident.
    """
    try:
        block = mmap.mmap(-1, n_bytes + _HUGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as err:
        raise MemoryError(f"Cannot allocate {n_bytes} bytes: {err.strerror}.") from err
    raw = np.frombuffer(block, np.uint8)
    start = -raw.ctypes.data % _HUGE_BYTES
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages
            block.madvise(mmap.MADV_HUGEPAGE, start, n_bytes // _HUGE_BYTES * _HUGE_BYTES)
    return raw[start : start + n_bytes]


def aligned_pieces(sizes: Iterable[int], alignment: int) -> list[np.ndarray]:
    """Return uninitialised memory of many lengths; short pieces share allocations.

    So they too lie in huge pages, and 20,000 pieces of 1 KiB take a fifth of the time of an
    allocation each. A shared one lives as long as any piece of it, so it is not much longer than
    a piece may be.

    Args:
        sizes: lengths.
        alignment: of every piece: a power of two, in bytes.

    Returns:
        uint8[n], C-contiguous, for every length; no two overlap.
    """
    lengths = list(sizes)
    padded = [-(-n // alignment) * alignment for n in lengths]
    pieces = [np.empty(0, np.uint8)] * len(lengths)

    def place(numbers: Sequence[int]) -> None:
        block, at = aligned_empty(sum(padded[i] for i in numbers), alignment), 0
        for i in numbers:
            pieces[i] = block[at : at + lengths[i]]
            at += padded[i]

    shared: list[int] = []
    n_shared = 0
    for i, n_bytes in enumerate(padded):
        if n_bytes >= _HUGE_BYTES:
            place([i])
            continue
        shared.append(i)
        n_shared += n_bytes
        if n_shared >= _SHARED_BYTES:
            place(shared)
            shared, n_shared = [], 0
    place(shared)
    return pieces


class Buffer(AbstractContextManager["Buffer"]):
    """A buffer lent by a pool; leaving the `with` block gives it back.

    Attributes:
        memory: uint8[buffer_bytes], 4096-aligned. Its content is whatever the last user left.
    """

    def __init__(self, pool: "BufferPool", memory: np.ndarray) -> None:
        self.memory = memory
        self._pool = pool

    def release(self) -> None:
        """Give the buffer back; the memory must not be touched afterwards."""
        self._pool._take_back(self)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class BufferPool:
    """A fixed number of equal buffers in one arena, shared by threads.

    Args:
        buffer_bytes: Least length of a buffer; it is rounded up to a multiple of 4096.
        n_buffers: How many there are, at least 1.
        is_touched: Whether their memory is made resident now. Else whoever uses it first does that,
            which is free where threads wait for what they read into it.

    Attributes:
        buffer_bytes: Length of every buffer.

    Example:
        >>> with BufferPool(1 << 20, 2) as pool, pool.acquire() as buffer:
        ...     buffer.memory.nbytes
        1048576
    """

    def __init__(self, buffer_bytes: int, n_buffers: int, *, is_touched: bool = True) -> None:
        assert min(buffer_bytes, n_buffers) > 0, (buffer_bytes, n_buffers)
        self.buffer_bytes = -(-buffer_bytes // _PAGE_BYTES) * _PAGE_BYTES
        arena = aligned_empty(self.buffer_bytes * n_buffers)
        if is_touched:
            arena[::_PAGE_BYTES] = 0
        rows = arena.reshape(n_buffers, self.buffer_bytes)
        self._free = [Buffer(self, row) for row in rows]
        self._changed = threading.Condition()
        self._closed = False

    def acquire(self) -> Buffer:
        """Return a free buffer; wait for one while all are lent.

        Raises:
            CommitError: The pool is closed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._free or self._closed)
            if self._closed:
                raise CommitError("The buffers of this save were closed while it still ran.")
            return self._free.pop()

    def close(self) -> None:
        """Lend no more and free the memory once the last buffer is back; may be repeated."""
        with self._changed:
            self._closed = True
            self._free.clear()
            self._changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _take_back(self, buffer: Buffer) -> None:
        with self._changed:
            assert buffer not in self._free, "a buffer was released twice"
            if not self._closed:
                self._free.append(buffer)
                self._changed.notify()
