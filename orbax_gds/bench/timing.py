"""Fair timing: interleaved, caches swept, memory touched before, a memcpy beside every codec."""

import contextlib
import ctypes
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from orbax_gds.bench.coders import Coder, source_bytes

__all__ = ["SWEEP_BYTES", "Samples", "copies_of", "keep_freed_memory", "pinned", "time_coders"]

SWEEP_BYTES = 64 << 20  # chosen: above the last-level cache
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # glibc, malloc.h

Samples = dict[str, list[float]]


def time_coders(
    coders: Mapping[str, Coder],
    arrays: Sequence[np.ndarray],
    *,
    repetitions: int,
    sweep_bytes: int = SWEEP_BYTES,
    budget_secs: float | None = None,
    n_threads: int = 1,
    progress: Callable[[], None] | None = None,
) -> dict[str, Samples]:
    """Time coders that are bound to the same arrays, interleaved, and compare what they return.

    Args:
        coders: By name.
        arrays: What they are bound to.
        repetitions: Timed repetitions; one more is run first and discarded.
        sweep_bytes: Memory read before each timed part to empty the caches.
        budget_secs: No further repetition begins after this time; two always run. None: no bound.
        n_threads: Threads of the memcpy; those of the coders are theirs.
        progress: Called whenever a coder has run once.

    Returns:
        For each coder `ratio` and `coded_bytes`, once, and for each repetition `encode_gbps`,
        `decode_gbps`, `memcpy_gbps`, `encode_x_memcpy`, `decode_x_memcpy`; GB/s counts source
        bytes.

    Raises:
        RuntimeError: A coder returned other bits than it was given.
    """
    samples: dict[str, Samples] = {name: {} for name in coders}
    source = source_bytes(arrays)
    target = np.full(source.size, 0xFF, np.uint8)
    scratch = np.ones(max(1, sweep_bytes // 8), np.uint64)
    start = time.perf_counter()
    for repetition in range(repetitions + 1):
        spent = time.perf_counter() - start
        if repetition > 1 and budget_secs is not None and spent > budget_secs:
            break
        for name, coder in coders.items():
            figures = _time_once(coder, source, target, scratch, n_threads)
            if progress is not None:
                progress()
            if repetition > 0:
                for quantity, figure in figures.items():
                    samples[name].setdefault(quantity, []).append(figure)
    for name, coder in coders.items():
        if not np.array_equal(coder.decoded(), source):
            raise RuntimeError(f"{name}: the decoded bits differ from the source")
        for quantity in ("ratio", "coded_bytes"):  # the same in every repetition
            samples[name][quantity] = samples[name][quantity][:1]
    return samples


def copies_of(arrays: Sequence[np.ndarray], least_bytes: int) -> list[list[np.ndarray]]:
    """Return so many copies of arrays, each in memory of its own, that they are least_bytes long.

    Data that lies in a cache is not what a checkpoint codes.
    """
    n_bytes = max(1, sum(array.nbytes for array in arrays))
    n_copies = max(1, -(-least_bytes // n_bytes))
    return [[np.array(array, order="C") for array in arrays] for _ in range(n_copies)]


def _time_once(
    coder: Coder, source: np.ndarray, target: np.ndarray, scratch: np.ndarray, n_threads: int
) -> dict[str, float]:
    """Time a memcpy, an encode and a decode; return speeds and ratios."""
    n_bytes = source.nbytes
    coder.reset()
    copy = _seconds(lambda: _copy(source, target, n_threads), scratch)
    coded_bytes = 0

    def encode() -> None:
        nonlocal coded_bytes
        coded_bytes = coder.encode()

    encoding = _seconds(encode, scratch)
    decoding = _seconds(coder.decode, scratch)
    return {
        "ratio": n_bytes / coded_bytes,
        "coded_bytes": float(coded_bytes),
        "encode_x_memcpy": copy / encoding,
        "decode_x_memcpy": copy / decoding,
        "encode_gbps": n_bytes / encoding / 1e9,
        "decode_gbps": n_bytes / decoding / 1e9,
        "memcpy_gbps": n_bytes / copy / 1e9,
    }


def _copy(source: np.ndarray, target: np.ndarray, n_threads: int) -> None:
    """Copy with glibc's memcpy, without the GIL, in as many pieces as threads."""
    bounds = np.linspace(0, source.nbytes, n_threads + 1).astype(int).tolist()
    first, *others = [
        (target.ctypes.data + start, source.ctypes.data + start, end - start)
        for start, end in itertools.pairwise(bounds)
    ]
    threads = [threading.Thread(target=ctypes.memmove, args=piece) for piece in others]
    for thread in threads:
        thread.start()
    ctypes.memmove(*first)
    for thread in threads:
        thread.join()


def _seconds(timed: Callable[[], object], scratch: np.ndarray) -> float:
    scratch.sum()
    start = time.perf_counter()
    timed()
    return time.perf_counter() - start


@contextlib.contextmanager
def pinned(n_processors: int = 1) -> Iterator[None]:
    """Keep this thread, and those it starts, on some processors: the last it may use."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(before)[-n_processors:]))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def keep_freed_memory() -> None:
    """Tell malloc to reuse freed memory instead of returning it: no page faults in timed parts."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
