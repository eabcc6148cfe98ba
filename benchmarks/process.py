"""What a process costs and what the disk still owes: time, CPU, peak memory, page cache."""

import ctypes
import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(kw_only=True)
class Cost:
    """Cost of a `with` block.

    Attributes:
        seconds: Wall time.
        cpu_seconds: User and system time of this process and its finished children.
        peak_rss_mb: Peak resident memory above that at the start, in 1e6 bytes; None where the
            kernel does not let the peak be reset.
    """

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_rss_mb: float | None = None


@contextmanager
def cost() -> Iterator[Cost]:
    """Measure the block: `with cost() as spent: …`, then read `spent`."""
    spent = Cost()
    can_reset = _reset_peak()
    resident = _status_bytes("VmRSS")
    cpu, start = _cpu_seconds(), time.perf_counter()
    yield spent
    spent.seconds = time.perf_counter() - start
    spent.cpu_seconds = _cpu_seconds() - cpu
    if can_reset:
        spent.peak_rss_mb = max(0, _status_bytes("VmHWM") - resident) / 1e6


def sync_file_system(directory: Path) -> None:
    """Make everything on a directory's file system durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), f"syncfs of {directory} failed")
    finally:
        os.close(descriptor)


def empty_page_cache(directory: Path) -> None:
    """Make the next read of a directory's files cold; needs no privilege.

    The kernel drops only what is clean, so that everything is made durable first.
    """
    sync_file_system(directory)
    for path in directory.rglob("*"):
        if path.is_file():
            _forget(path)


def directory_size(directory: Path) -> tuple[int, int]:
    """Return the bytes and the number of the files under a directory."""
    sizes = [path.stat().st_size for path in directory.rglob("*") if path.is_file()]
    return sum(sizes), len(sizes)


def own_bytes(step: Path) -> int:
    """Return the bytes that a step adds to those before it: without links to their stripes."""
    files = [path for path in step.rglob("*") if path.is_file() and path.parent.name != "base"]
    return sum(path.stat().st_size for path in files)


def allocated_bytes(directory: Path) -> int:
    """Return the disk space of everything under a directory, in whole blocks, as `du` does."""
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*"))


def _forget(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _cpu_seconds() -> float:
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def _reset_peak() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")
