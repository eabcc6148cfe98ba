"""`save`: what a save costs the training loop, the machine and the disk, beside the peers."""

import argparse
import shutil
import tempfile
from pathlib import Path

import msgspec

from benchmarks.cells import (
    BASELINE,
    BEHIND,
    METHOD_PACKAGES,
    OURS,
    add_lock_argument,
    check_methods,
    make_row,
    quotient,
    run_cell,
    run_rounds,
)
from benchmarks.result import Bar, Row, find_row, make_bar
from benchmarks.save_spec import SAVES, Answer, Spec
from benchmarks.state import train_state
from benchmarks.table import Column, Table

GROUP = "bf16+fp32 tree"
CELL = "benchmarks.save_cell"
MIB_MB = 2**20 / 1e6  # MB, as in the tables, of a MiB

TITLE = "Saves and restores of one tree"
TABLES = (
    Table(
        caption="Save. Seconds; 1st and 2nd save of a process; median of the rounds "
        "[least, greatest]",
        columns=(
            *(Column(title=f"blocking {n}", quantity=f"blocking_s_{n}") for n in SAVES),
            *(Column(title=f"durable {n}", quantity=f"durable_s_{n}") for n in SAVES),
            *(Column(title=f"CPU {n}", quantity=f"cpu_s_{n}") for n in SAVES),
            Column(title="stored GB", quantity="stored_gb", digits=3),
            Column(title="files", quantity="n_files", digits=0),
            *(
                Column(title=f"peak RSS +MB {n}", quantity=f"peak_rss_mb_{n}", digits=0)
                for n in SAVES
            ),
        ),
    ),
    Table(
        caption="Restore. Seconds, in a fresh process",
        columns=(
            Column(title="cold", quantity="restore_s_cold"),
            Column(title="warm", quantity="restore_s_warm"),
            Column(title="CPU cold", quantity="restore_cpu_s_cold"),
            Column(title="CPU warm", quantity="restore_cpu_s_warm"),
            Column(title="peak RSS +MB", quantity="restore_peak_rss_mb_cold", digits=0),
        ),
    ),
)
NOTES = (
    "Tree: two bf16 leaves for three fp32, 0.05 to 4 in relative size; half of each gaussian "
    "(synthetic), half cut from a real train state (bf16 parameters; fp32 master, mu, nu), tiled.",
    "One fresh process per cell, two saves in it, the file system synced before each. "
    "Blocking: until save returns. Durable: until the library says it is done, then syncfs, for "
    "every method alike, because the libraries sync different parts themselves: safetensors "
    "nothing, Orbax its data, torch DCP its files, orbax_gds everything.",
    "CPU: user and system time of the process; writeback by the kernel's own threads is not in it, "
    "which favours the buffered methods. Peak RSS: above that at the start of the save.",
    "Restore: a fresh process, imports and construction outside. Cold: its files dropped from the "
    "page cache by posix_fadvise; a hypervisor may still cache. Warm: once more in the same "
    "process; ours reads the device again, around the page cache. Restored bits are compared "
    "outside the timed part.",
    "torch DCP: one process, no process group; its tensors are made outside the timed part and "
    "stay torch tensors. raw: as many bytes, O_DIRECT, 4 MiB of huge pages each, fsync. memcpy: "
    "one copy.",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `save`."""
    parser.add_argument("--gigabytes", type=float, default=1.5, help="size of the tree (1.5)")
    parser.add_argument("--leaves", type=int, default=200, help="leaves of the tree (200)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds over all methods (3)")
    parser.add_argument(
        "--methods",
        type=lambda text: text.split(","),
        default=[name for name in METHOD_PACKAGES if name != BEHIND],
        help="comma-separated names, all without it",
    )
    parser.add_argument("--state", type=Path, help="train state (.npz); trained when not given")
    add_lock_argument(parser)


def measure(arguments: argparse.Namespace) -> tuple[list[Row], list[Bar], list[str]]:
    """Run `save` and return its rows, bars and notes.

    Raises:
        SystemExit: A method is unknown, or there is too little disk.
    """
    check_methods(arguments.methods)
    n_bytes = round(arguments.gigabytes * 1e9)
    need_disk(arguments.directory, 5 * n_bytes // 2)
    state, origin = train_state(arguments.state, arguments.directory)

    def measure_method(name: str) -> dict[str, list[float]]:
        spec = Spec(
            action="save",
            method=name,
            directory="",
            n_bytes=n_bytes,
            n_leaves=arguments.leaves,
            state=str(state),
        )
        figures = measure_cell(spec, arguments.directory, arguments.lock).figures
        return {quantity: [figure] for quantity, figure in figures.items()}

    rows = {name: make_row(GROUP, name) for name in arguments.methods}
    run_rounds(rows, measure_method, dict.fromkeys(rows, arguments.rounds))
    notes = [*NOTES, f"Train state: {origin}."]
    return list(rows.values()), _bars(list(rows.values())), notes


def need_disk(directory: Path, n_bytes: int) -> None:
    """Refuse to begin what the disk cannot hold.

    Raises:
        SystemExit: Fewer than n_bytes are free.
    """
    free = shutil.disk_usage(directory).free
    if free < n_bytes:
        raise SystemExit(f"{directory} has {free:,} bytes free, {n_bytes:,} are needed")


def measure_cell(spec: Spec, directory: Path, lock: Path | None = None) -> Answer:
    """Save in one process and restore in another, in a directory that is then removed.

    Raises:
        CellError: A process failed, or ran out of time.
    """
    with tempfile.TemporaryDirectory(dir=directory, prefix="cell-") as place:
        spec = msgspec.structs.replace(spec, directory=place)
        saved = run_cell(CELL, spec, Answer, lock=lock)
        spec = msgspec.structs.replace(spec, action="restore", checksums=saved.checksums)
        restored = run_cell(CELL, spec, Answer, lock=lock)
    return msgspec.structs.replace(restored, figures=saved.figures | restored.figures)


def _bars(rows: list[Row]) -> list[Bar]:
    ours = find_row(rows, group=GROUP, name=OURS)
    baseline = find_row(rows, group=GROUP, name=BASELINE)
    promises = (
        *((f"durable, {n} save", f"durable_s_{n}", 0.65) for n in SAVES),
        *((f"CPU, {n} save", f"cpu_s_{n}", 0.35) for n in SAVES),
        *((f"blocking, {n} save", f"blocking_s_{n}", 1.0) for n in SAVES),
        *((f"restore, {state}", f"restore_s_{state}", 0.5) for state in ("cold", "warm")),
    )
    bars = []
    for name, quantity, limit in promises:
        ratio = quotient(ours, baseline, quantity)
        bars.append(make_bar(f"{name}: {OURS} / {BASELINE}", ratio, "<=", limit))
    for n in SAVES:
        peak = ours and ours.median(f"peak_rss_mb_{n}")
        bars.append(make_bar(f"peak RSS, {n} save: MB above the state", peak, "<=", 300 * MIB_MB))
    return bars
