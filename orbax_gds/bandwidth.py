"""How fast storage takes bytes: remembered from earlier saves, or probed before the first.

What a write costs is parted: the time for which the device made a thread wait is the storage's,
the processor time is not. Only so a save can tell a slow disk from a busy machine, and memory that
is called a disk from one.
"""

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path as FilePath

import numpy as np

from orbax_gds import _native
from orbax_gds.drivers import Driver, File
from orbax_gds.pacing import Pace
from orbax_gds.threads import run_tasks

_PIECE_BYTES = 8 << 20  # chosen: what a save writes at once
_PROBE_BYTES = 16 << 20  # chosen: some ms on any device
_PROBE_SHARE = 32  # chosen: at most so small a part of a state is written for a look
_LOOK_SHARE = 8  # chosen: and of that at first; memory shows in less than a millisecond
_NOISE_BYTES = 1 << 20  # chosen: repeated only beyond what storage that compresses looks back
_PAGE_BYTES = 4096  # required: what direct writes are multiples of
_LEAST_BYTES = 16 << 20  # chosen: less is dominated by the sync, and says little of large saves
_LEAST_LOOK_BYTES = 256 << 10  # chosen: less is dominated by the calls
_LEAST_SECS = 1e-9
_MOSTLY = 4  # chosen: so many times as long
_LIKE = 4  # chosen: a small file says enough of states up to so many times as large

StorageKey = tuple[int, str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Storage:
    """What writing costs, syncs included.

    Attributes:
        bytes_per_sec: that the device takes; far above any codec where it is memory.
        cpu_secs_per_byte: processor time of the thread that writes.
    """

    bytes_per_sec: float
    cpu_secs_per_byte: float

    @property
    def waits(self) -> bool:
        """Whether a writer waits for the device, and not for its own processor above all."""
        return 1 / self.bytes_per_sec > self.cpu_secs_per_byte / _MOSTLY


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThreadTimes:
    """What a thread had so far, in seconds: a processor, and a place in the queue for one."""

    cpu: float
    queued: float


def thread_times() -> ThreadTimes:
    """Return the times of the calling thread; where the kernel does not count, it never queued."""
    queued = _native.queued_secs()
    return ThreadTimes(cpu=time.thread_time(), queued=queued)  # the latter last: reading takes time


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clocks:
    """What costs are measured by.

    Attributes:
        seconds: that passed.
        times: of the calling thread.
    """

    seconds: Callable[[], float] = time.perf_counter
    times: Callable[[], ThreadTimes] = thread_times


class WriteMeter:
    """Measures what the writes and syncs of a file cost, whatever threads they run in."""

    def __init__(self, clocks: Clocks | None = None) -> None:
        self._clocks = clocks or Clocks()
        self._lock = threading.Lock()
        self._n_inside = 0
        self._began = 0.0
        self._busy_secs = 0.0  # at least one thread was inside
        self._thread_secs = 0.0  # summed over threads, as are the next
        self._cpu_secs = 0.0
        self._queued_secs = 0.0

    @contextlib.contextmanager
    def measure(self) -> Iterator[None]:
        """Count what the block costs; threads may be in such blocks at once."""
        before = self._clocks.times()
        with self._lock:
            began = self._clocks.seconds()
            if self._n_inside == 0:
                self._began = began
            self._n_inside += 1
        try:
            yield
        finally:
            after = self._clocks.times()
            with self._lock:
                now = self._clocks.seconds()
                self._n_inside -= 1
                if self._n_inside == 0:
                    self._busy_secs += now - self._began
                self._thread_secs += now - began
                self._cpu_secs += after.cpu - before.cpu
                self._queued_secs += after.queued - before.queued

    def add(
        self, *, busy_secs: float, thread_secs: float, cpu_secs: float, queued_secs: float
    ) -> None:
        """Count writes that were measured elsewhere.

        The rare ones that ran during one measured here, as where the system refused a native write
        of another thread, have their time counted twice as busy.

        Args:
            busy_secs: in which at least one thread wrote.
            thread_secs, cpu_secs, queued_secs: summed over the threads.
        """
        with self._lock:
            self._busy_secs += busy_secs
            self._thread_secs += thread_secs
            self._cpu_secs += cpu_secs
            self._queued_secs += queued_secs

    def storage(self, n_bytes: int) -> Storage:
        """Return what so many bytes, all that was written, say of the storage."""
        waited = max(0.0, self._thread_secs - self._cpu_secs - self._queued_secs)
        device_secs = self._busy_secs * waited / max(self._thread_secs, _LEAST_SECS)
        return Storage(
            bytes_per_sec=n_bytes / max(device_secs, _LEAST_SECS),
            cpu_secs_per_byte=max(self._cpu_secs, 0.0) / n_bytes,
        )


class KnownStorage:
    """What was last measured, by device and driver; for any number of threads.

    Keep one for many saves. Only the first is then preceded by a probe.

    Args:
        clocks: of its meters.
    """

    def __init__(self, clocks: Clocks | None = None) -> None:
        self.clocks = clocks or Clocks()
        self._known: dict[StorageKey, tuple[Storage, int]] = {}  # and by how many bytes
        self._lock = threading.Lock()

    def meter(self) -> WriteMeter:
        """Return a meter that has measured nothing yet."""
        return WriteMeter(self.clocks)

    def remember(self, key: StorageKey, meter: WriteMeter, n_bytes: int) -> None:
        """Note what a file of so many bytes cost; of a few bytes only while not of many.

        Args:
            key: from `storage_key`.
            meter: that measured the file and nothing else.
            n_bytes: of the file, at least 1.
        """
        with self._lock:
            _, by_bytes = self._known.get(key, (None, 0))
            least = _LEAST_BYTES if by_bytes >= _LEAST_BYTES else by_bytes // _LIKE
            if n_bytes >= least:
                self._known[key] = meter.storage(n_bytes), n_bytes

    def recall(self, key: StorageKey, state_bytes: int) -> Storage | None:
        """Return what is known; None if nothing that says much of a state of so many bytes."""
        with self._lock:
            storage, by_bytes = self._known.get(key, (None, 0))
        return storage if by_bytes >= min(_LEAST_BYTES, state_bytes // _LIKE) else None


def storage_key(directory: str | os.PathLike[str], driver: Driver) -> StorageKey:
    """Return what tells one storage from another: the device, and the way to it."""
    return os.stat(directory).st_dev, driver.name


def probe_bytes(state_bytes: int) -> int:
    """Return how much to write at most before a state of so many bytes: 1/32, up to 16 MiB."""
    return min(_PROBE_BYTES, state_bytes // _PROBE_SHARE)


def probe(
    driver: Driver,
    path: FilePath,
    memory: np.ndarray,
    new_meter: Callable[[], WriteMeter],
    *,
    n_bytes: int,
    n_threads: int,
    pace: Pace | None = None,
) -> Storage:
    """Write and sync a temporary file and return what it cost.

    An eighth, or 256 KiB, is written first. Where that did not wait for a device, it was memory,
    and more would only take time from the save.

    Its name is removed as soon as it is open, so that not even a killed process leaves its bytes.

    Args:
        driver: that the save will use.
        path: of the temporary file, in the directory of the save.
        memory: uint8[n], 4096-aligned, at least 4096; what is written is filled with noise, as
            some storage takes anything else faster.
        new_meter: makes meters that measure nothing else.
        n_bytes: to write beside that, if it is more; at least 4096 a thread are.
        n_threads: that write at once, as many as the save has.
        pace: to keep; waiting for it is not measured.

    Raises:
        OSError: the system refused; the file is gone if the system lets it.
    """
    try:
        with driver.open(path, "w") as file:
            path.unlink(missing_ok=True)
            look_bytes = max(_LEAST_LOOK_BYTES, n_bytes // _LOOK_SHARE)
            look = _write_noise(file, memory, new_meter(), look_bytes, n_threads, pace)
            if not look.waits or n_bytes <= look_bytes:
                return look
            return _write_noise(file, memory, new_meter(), n_bytes, n_threads, pace)
    finally:
        path.unlink(missing_ok=True)


def _write_noise(
    file: File,
    memory: np.ndarray,
    meter: WriteMeter,
    n_bytes: int,
    n_threads: int,
    pace: Pace | None,
) -> Storage:
    """Write and sync so many bytes from the start of a file, but at least a page a thread."""
    most = min(_PIECE_BYTES, len(memory), n_bytes // n_threads)
    piece = memory[: max(_PAGE_BYTES, most - most % _PAGE_BYTES)]
    noise = np.random.default_rng(0).bytes(min(_NOISE_BYTES, len(piece)))
    for at in range(0, len(piece), len(noise)):
        piece[at : at + len(noise)] = np.frombuffer(noise, np.uint8)[: len(piece) - at]
    n_bytes = max(n_threads, n_bytes // len(piece)) * len(piece)

    never = threading.Event()

    def write(offset: int) -> None:
        if pace is not None:
            pace.wait(len(piece), never)
        with meter.measure():
            file.write(offset, piece)

    run_tasks(range(0, n_bytes, len(piece)), write, n_threads)
    with meter.measure():
        file.sync(n_bytes)
    return meter.storage(n_bytes)
