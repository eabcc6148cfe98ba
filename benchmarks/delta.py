"""`delta`: what steps take that store only what changed, to code, on disk, to save and to restore.

Four parts: codings alone, on one thread beside the peers'; whole steps after every kind of change;
the restore of a chain of eight; and a training run that saves every step.
"""

import argparse
from pathlib import Path

from benchmarks.cells import add_lock_argument
from benchmarks.delta_codings import PASSES, coding_rows
from benchmarks.delta_picture import delta_svg
from benchmarks.delta_spec import DELTAS, FULL, FULL_EVERY, ORBAX, Source
from benchmarks.delta_steps import (
    RUNS,
    chain_bars,
    chain_rows,
    change_bars,
    change_rows,
    run_bars,
    run_rows,
)
from benchmarks.delta_train import PHASES, RATES, run_files
from benchmarks.result import Bar, Result, Row, find_row
from benchmarks.save import need_disk
from benchmarks.table import Column, Table

PARTS = ("codings", "changes", "chain", "run")
GAPS = (1, 10)
README_COLUMNS = (
    ("run_mean_mb", 1),
    ("run_durable_s", 2),
    ("run_restore_s", 3),
    ("run_restore_s_8th", 3),
)
PICTURE_TEXT = (
    "Bytes and restore time of each step of a run: deltas with a full step every eighth, full "
    "steps, and Orbax."
)

TITLE = "Deltas"
TABLES = (
    Table(
        caption="Codings, one thread. Ours: reading of the base's frames from memory, their "
        "decoding and CRC32C included; x memcpy is the ratio to memcpys of the step's words timed "
        "just before and after",
        columns=(
            Column(title="bits a word", quantity="bits", digits=3),
            Column(title="encode x memcpy", quantity="encode_x_memcpy"),
            Column(title="decode x memcpy", quantity="decode_x_memcpy"),
            Column(title="encode GB/s", quantity="encode_gbps"),
            Column(title="decode GB/s", quantity="decode_gbps"),
            Column(title="memcpy GB/s", quantity="memcpy_gbps"),
        ),
    ),
    Table(
        caption="A step after a change, beside a full step of the same tree in the same process",
        columns=(
            Column(title="step MB", quantity="step_mb", digits=3),
            Column(title="full MB", quantity="full_mb", digits=1),
            Column(title="step / full", quantity="share", digits=4),
            Column(title="durable s", quantity="step_durable_s"),
            Column(title="full, durable s", quantity="full_durable_s"),
            Column(title="durable, step / full", quantity="durable_x_full"),
        ),
    ),
    Table(
        caption="Restore, cold, in a fresh process",
        columns=(
            Column(title="restore s", quantity="chain_restore_s"),
            Column(title="CPU s", quantity="chain_restore_cpu_s"),
            Column(title="peak RSS beyond the tree, MB", quantity="chain_extra_mb", digits=0),
        ),
    ),
    Table(
        caption="A run of 24 steps, each saved and each restored, cold",
        columns=(
            Column(title="all steps, MB", quantity="run_mb", digits=1),
            Column(title="mean step, MB", quantity="run_mean_mb"),
            Column(title="a step, MB", quantity="run_step_mb"),
            Column(title="durable s", quantity="run_durable_s", digits=3),
            Column(title="blocking s", quantity="run_blocking_s", digits=4),
            Column(title="restore s", quantity="run_restore_s", digits=3),
            Column(title="restore s, 8th steps", quantity="run_restore_s_8th", digits=3),
        ),
    ),
)
NOTES = (
    "Codings: the leaves of a kind end to end; copies that lie apart where they are smaller than "
    f"16 MB. {PASSES} passes over all steps; in each repetition every way has its turn. "
    "Bits a word count frames, padded to 64 bytes each. XOR + zstd-1: the better of the "
    "XORed words and of their byte planes, each in one call; the peers have the base's words in "
    "memory, undecoded. Unchanged: synthetic, 95 % of the words are the base's, the others one "
    "unit away.",
    "A step after a change: the tree of `save`. Per change one after the other in one process: the "
    "changed tree in full, the tree before it in full, the changed tree against that. Elements and "
    "rows that change get the words of others of their leaf, from all over it. Bytes: all files of "
    "a step but links to the stripes of others.",
    "Durable: from the call of save until Orbax says that it is done, and syncfs. Blocking: until "
    "save returns.",
    f"Chain: {DELTAS} and {FULL} (policy Never) each save eight steps of the same trees; the last "
    "one is restored, its files dropped from the page cache by posix_fadvise; a hypervisor may "
    "still cache. Peak RSS above that at the start of the restore, less the tree.",
    "Run: at constant rate, "
    + ", ".join(f"{phase} {RATES[phase]}" for phase in PHASES)
    + "; each step is saved. Whole state: bf16 parameters, fp32 master, mu and nu. One process "
    "saves all steps, a fresh one restores each, after an untimed restore of the first. Steps 8, "
    "16 and 24 end a chain of eight.",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `delta`."""
    parser.add_argument(
        "--state",
        type=Path,
        nargs="+",
        help="train states (.npz) of one run: the base, then the steps to code against it, beside "
        "those of the benchmark's own run",
    )
    parser.add_argument("--run", type=Path, help="its files (delta_train); trained when not given")
    parser.add_argument("--gigabytes", type=float, default=0.5, help="tree of steps, chain (0.5)")
    parser.add_argument("--leaves", type=int, default=200, help="leaves of it (200)")
    parser.add_argument("--rounds", type=int, default=3, help="processes for each row (3)")
    parser.add_argument("--repetitions", type=int, default=9, help="timed codings (9)")
    parser.add_argument(
        "--parts",
        type=lambda text: text.split(","),
        default=list(PARTS),
        help=f"comma-separated, of {', '.join(PARTS)}",
    )
    add_lock_argument(parser)


def measure(arguments: argparse.Namespace) -> tuple[list[Row], list[Bar], list[str]]:
    """Run `delta` and return its rows, bars and notes.

    Raises:
        SystemExit: A part is unknown, or there is too little disk.
    """
    unknown = [name for name in arguments.parts if name not in PARTS]
    if unknown:
        raise SystemExit(f"no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    n_bytes = round(arguments.gigabytes * 1e9)
    need_disk(arguments.directory, 16 * n_bytes + 3_000_000_000 * ("run" in arguments.parts))
    files, origin = run_files(arguments.run, arguments.directory)
    first = next(iter(files.values()))[0]
    source = Source(
        state=str(first), n_bytes=n_bytes, n_leaves=arguments.leaves, n_steps=FULL_EVERY
    )
    rows: list[Row] = []
    bars: list[Bar] = []
    if "codings" in arguments.parts:
        found, judged = coding_rows(
            coded_series(files, arguments.state),
            repetitions=arguments.repetitions,
            lock=arguments.lock,
        )
        rows, bars = rows + found, bars + judged
    for part, measured, judge in (
        ("changes", lambda: change_rows(source, arguments), change_bars),
        ("chain", lambda: chain_rows(source, arguments), chain_bars),
        ("run", lambda: run_rows(files, arguments), run_bars),
    ):
        if part in arguments.parts:
            found = measured()
            rows, bars = rows + found, bars + judge(found)
    return rows, bars, [*NOTES, f"Run: {origin}."]


def coded_series(files: dict[str, list[Path]], given: list[Path] | None) -> dict[str, list[Path]]:
    """Return bases and the steps to code against them: the user's, and those of each phase."""
    series = {"given": given} if given else {}
    for phase, steps in files.items():
        series[phase] = [steps[0], *(steps[gap] for gap in GAPS if gap < len(steps))]
    return series


def picture(result: Result) -> str | None:
    """Return bytes and restore times of the run's steps as SVG, None where it was not measured."""
    measured = [row for row in result.rows if row.group in RUNS and row.samples]
    return delta_svg(measured, list(RUNS)) if measured else None


def readme_part(result: Result) -> str:
    """Return what the README says of the run: the picture and a table of medians."""
    methods = (DELTAS, FULL, ORBAX)
    lines = [f"![{PICTURE_TEXT}](benchmarks/results/delta.svg)", ""]
    lines += [
        "| run of 24 steps | method | MB a step | durable s | restore s | restore s, 8th step |"
    ]
    lines += ["|---|---|---|---|---|---|"]
    for group in RUNS:
        for name in methods:
            row = find_row(result.rows, group=group, name=name)
            medians = [row and row.median(quantity) for quantity, _ in README_COLUMNS]
            digits = [digits for _, digits in README_COLUMNS]
            if row is not None and None not in medians:
                figures = [f"{median:.{n}f}" for median, n in zip(medians, digits, strict=True)]
                lines.append(f"| {group} | {name} | {' | '.join(figures)} |")
    return "\n".join(lines)
