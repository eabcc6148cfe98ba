"""`restore`: one tree, read cold and warm in fresh processes, and the memory that takes."""

import argparse
import tempfile
from pathlib import Path

import msgspec

from benchmarks.cells import (
    BASELINE,
    BEHIND,
    METHOD_PACKAGES,
    OURS,
    Samples,
    add_lock_argument,
    check_methods,
    make_row,
    quotient,
    run_cell,
    run_rounds,
)
from benchmarks.result import Bar, Row, find_row, make_bar
from benchmarks.save import CELL, GROUP, MIB_MB, need_disk
from benchmarks.save_spec import Answer, Spec
from benchmarks.state import train_state
from benchmarks.table import Column, Table

STATES = ("cold", "warm")

TITLE = "Restores of one tree"
TABLES = (
    Table(
        caption="Restore. Seconds; median of the processes [least, greatest]",
        columns=(
            *(Column(title=state, quantity=f"restore_s_{state}") for state in STATES),
            *(Column(title=f"CPU {state}", quantity=f"restore_cpu_s_{state}") for state in STATES),
            Column(title="peak RSS beyond the tree, MB", quantity="extra_mb", digits=0),
        ),
    ),
)
NOTES = (
    "The tree of `save`, saved once by each method; every restore runs in a fresh process, imports "
    "and construction outside the timed part.",
    "Cold: the files dropped from the page cache by posix_fadvise after a sync; a hypervisor may "
    "still cache. Warm: once more in the same process; ours reads the device again, "
    "around the page cache. Restored bits are compared outside the timed part.",
    "Peak RSS beyond the tree: the greatest resident memory during the cold restore, above that at "
    "its start, less the bytes of the restored tree.",
    "raw and memcpy give back no tree: they read and copy as many bytes into one block.",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `restore`."""
    parser.add_argument("--gigabytes", type=float, default=1.5, help="size of the tree (1.5)")
    parser.add_argument("--leaves", type=int, default=200, help="leaves of the tree (200)")
    parser.add_argument("--rounds", type=int, default=5, help="processes for each method (5)")
    parser.add_argument(
        "--methods",
        type=lambda text: text.split(","),
        default=[name for name in METHOD_PACKAGES if name not in ("torch DCP async", BEHIND)],
        help="comma-separated names, all without it",
    )
    parser.add_argument("--state", type=Path, help="train state (.npz); trained when not given")
    add_lock_argument(parser)


def measure(arguments: argparse.Namespace) -> tuple[list[Row], list[Bar], list[str]]:
    """Run `restore` and return its rows, bars and notes.

    Raises:
        SystemExit: A method is unknown, or there is too little disk.
    """
    check_methods(arguments.methods)
    n_bytes = round(arguments.gigabytes * 1e9)
    need_disk(arguments.directory, (2 * len(arguments.methods) + 1) * n_bytes)
    state, origin = train_state(arguments.state, arguments.directory)
    rows = {name: make_row(GROUP, name) for name in arguments.methods}
    with tempfile.TemporaryDirectory(dir=arguments.directory, prefix="restore-") as place:
        specs: dict[str, Spec] = {}

        def measure_method(name: str) -> Samples:
            if name not in specs:
                directory = Path(place) / str(len(specs))
                directory.mkdir()
                saving = Spec(
                    action="save",
                    method=name,
                    directory=str(directory),
                    n_bytes=n_bytes,
                    n_leaves=arguments.leaves,
                    state=str(state),
                )
                saved = run_cell(CELL, saving, Answer, lock=arguments.lock)
                specs[name] = msgspec.structs.replace(
                    saving, action="restore", checksums=saved.checksums
                )
            figures = run_cell(CELL, specs[name], Answer, lock=arguments.lock).figures
            return _samples(figures, n_bytes if specs[name].checksums else 0)

        run_rounds(rows, measure_method, dict.fromkeys(rows, arguments.rounds))
    notes = [*NOTES, f"Train state: {origin}."]
    return list(rows.values()), make_bars(list(rows.values())), notes


def make_bars(rows: list[Row]) -> list[Bar]:
    """Judge the rows against the promises."""
    ours = find_row(rows, group=GROUP, name=OURS)
    baseline = find_row(rows, group=GROUP, name=BASELINE)
    bars = [
        make_bar(
            f"{state}: {OURS} / {BASELINE}",
            quotient(ours, baseline, f"restore_s_{state}"),
            "<=",
            0.5,
        )
        for state in STATES
    ]
    extra = ours and ours.median("extra_mb")
    bars.append(make_bar("peak RSS beyond the tree, MB", extra, "<=", 256 * MIB_MB))
    return bars


def _samples(figures: dict[str, float], n_bytes: int) -> Samples:
    samples = {name: [figure] for name, figure in figures.items()}
    peak = figures.get("restore_peak_rss_mb_cold")
    if peak is not None:
        samples["extra_mb"] = [peak - n_bytes / 1e6]
    return samples
