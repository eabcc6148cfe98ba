"""Fair timing: interleaved, caches swept, memory touched before, a memcpy beside every codec.

A codec is bound to the arrays anew for each run and freed after it: only one is held at a time,
and as freed memory is kept, its successor lands in memory that was touched before.
"""

import contextlib
import ctypes
import dataclasses
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from orbax_gds.bench.coders import Coder, source_bytes
from orbax_gds.bench.contenders import Contender, bind
from orbax_gds.dtypes import dtype_of

__all__ = [
    "SWEEP_BYTES",
    "Samples",
    "Timing",
    "copies_of",
    "keep_freed_memory",
    "pinned",
    "time_contenders",
]

SWEEP_BYTES = 64 << 20  # chosen: above the last-level cache
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # glibc, malloc.h

Samples = dict[str, list[float]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
    """What `time_contenders` found.

    Attributes:
        samples: for each contender that ran `ratio` and `coded_bytes` of all copies, once, and
            for each repetition `encode_gbps`, `decode_gbps`, `memcpy_gbps`, `encode_x_memcpy`,
            `decode_x_memcpy`; GB/s counts source bytes.
        skipped: why the others did not run.
        n_copies: how many copies of the arrays were coded.
    """

    samples: dict[str, Samples]
    skipped: dict[str, str]
    n_copies: int


def time_contenders(
    contenders: Sequence[Contender],
    arrays: Sequence[np.ndarray],
    *,
    repetitions: int,
    n_threads: int = 1,
    working_set_bytes: int = 0,
    sweep_bytes: int = SWEEP_BYTES,
    budget_secs: float | None = None,
    progress: Callable[[], None] | None = None,
) -> Timing:
    """Time contenders on the same arrays, interleaved, and compare what they return.

    Args:
        contenders: Our modes and the peers. A peer that is missing or fails is skipped.
        arrays: Not empty, of one dtype.
        repetitions: Timed repetitions; one more is run first and discarded.
        n_threads: Threads of every contender that has any, and of the memcpy.
        working_set_bytes: Least bytes to code for each thread; copies make up what is missing.
        sweep_bytes: Memory read before each timed part to empty the caches.
        budget_secs: No further repetition begins after this time; one is always timed. None: no
            bound.
        progress: Called whenever a contender has run once.

    Raises:
        RuntimeError: Our codec returned other bits than it was given.
    """
    dtype = dtype_of(arrays[0].dtype).name
    missing = {one.name: one.missing(dtype) for one in contenders}
    skipped = {name: reason for name, reason in missing.items() if reason is not None}
    samples: dict[str, Samples] = {one.name: {} for one in contenders if one.name not in skipped}
    copies = copies_of(arrays, n_threads * working_set_bytes)
    source = source_bytes([array for copy in copies for array in copy])
    target = np.full(source.size, 0xFF, np.uint8)
    scratch = np.ones(max(1, sweep_bytes // 8), np.uint64)
    start = time.perf_counter()
    with pinned(n_threads):
        for repetition in range(repetitions + 1):
            spent = time.perf_counter() - start
            if repetition > 1 and budget_secs is not None and spent > budget_secs:
                break
            for one in contenders:
                if one.name in skipped:
                    continue
                try:
                    # Bound in the call, so that no coder outlives its run.
                    figures = _time_once(
                        bind(one, copies, n_threads), source, target, scratch, n_threads
                    )
                except Exception as error:
                    if one.package is None:
                        raise RuntimeError(f"{one.name}: {error}") from error
                    skipped[one.name] = repr(error)
                    del samples[one.name]
                    continue
                if repetition > 0:
                    for quantity, figure in figures.items():
                        samples[one.name].setdefault(quantity, []).append(figure)
                if progress is not None:
                    progress()
    for own in samples.values():
        for quantity in ("ratio", "coded_bytes"):  # the same in every repetition
            del own[quantity][1:]
    return Timing(samples=samples, skipped=skipped, n_copies=len(copies))


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
    """Time a memcpy, an encode and a decode; return speeds and ratios.

    Raises:
        RuntimeError: The coder returned other bits than it was given.
    """
    n_bytes = source.nbytes
    copy = _seconds(lambda: _copy(source, target, n_threads), scratch)
    coded_bytes = 0

    def encode() -> None:
        nonlocal coded_bytes
        coded_bytes = coder.encode()

    encoding = _seconds(encode, scratch)
    decoding = _seconds(coder.decode, scratch)
    if not np.array_equal(coder.decoded(), source):
        raise RuntimeError("the decoded bits differ from the source")
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
