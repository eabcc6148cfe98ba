"""`leaves`: what a save and a restore cost when the leaves are many, small or stacked."""

import argparse
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from benchmarks.cells import (
    BASELINE,
    OURS,
    Samples,
    add_lock_argument,
    check_methods,
    make_row,
    quotient,
    run_cell,
    run_rounds,
)
from benchmarks.leaves_spec import Answer, Spec
from benchmarks.result import Bar, Row, make_bar
from benchmarks.table import Column, Table

CELL = "benchmarks.leaves_cell"
MANY, SMALL, GROWN = "20,000 leaves x 256", "5,000 leaves 64x32", ("10,000 x 256", "40,000 x 256")
STACKED, APART = "one leaf 60x512x512", "60 leaves 512x512"
FULL_LEAVES = 20_000


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A tree of equal leaves: how many, their shape, whether half are bf16, and who saves it."""

    n_leaves: int
    shape: tuple[int, ...]
    is_mixed: bool = True
    methods: tuple[str, ...] = (OURS,)


WORKLOADS: Mapping[str, Workload] = {
    MANY: Workload(n_leaves=FULL_LEAVES, shape=(256,), methods=(OURS, "safetensors", BASELINE)),
    SMALL: Workload(n_leaves=5_000, shape=(64, 32), methods=(OURS, "safetensors", BASELINE)),
    GROWN[0]: Workload(n_leaves=10_000, shape=(256,)),
    GROWN[1]: Workload(n_leaves=40_000, shape=(256,)),
    STACKED: Workload(n_leaves=1, shape=(60, 512, 512), is_mixed=False),
    APART: Workload(n_leaves=60, shape=(512, 512), is_mixed=False),
}
METHODS = (OURS, "safetensors", BASELINE)

TITLE = "Many leaves, small leaves, stacked leaves"
TABLES = (
    Table(
        caption="Save. Seconds; 1st save of a process and later ones; median [least, greatest]",
        columns=(
            *(
                Column(title=f"{title} {n}", quantity=f"{quantity}_{n}", digits=3)
                for title, quantity in (
                    ("blocking", "blocking_s"),
                    ("durable", "durable_s"),
                    ("CPU", "cpu_s"),
                )
                for n in ("1st", "later")
            ),
            Column(title="files", quantity="n_files", digits=0),
            Column(title="disk MB", quantity="disk_mb", digits=1),
            Column(title="disk / data", quantity="disk_per_data"),
        ),
    ),
    Table(
        caption="Restore. Seconds, 1st of a fresh process and later ones, all cold",
        columns=(
            Column(title="item_metadata", quantity="item_metadata_s", digits=3),
            *(
                Column(title=f"{title} {n}", quantity=f"{quantity}_{n}", digits=3)
                for title, quantity in (("restore", "restore_s"), ("CPU", "restore_cpu_s"))
                for n in ("1st", "later")
            ),
        ),
    ),
)
NOTES = (
    "Trees are flat, of gaussian words (synthetic); every other leaf bf16, the rest fp32; the "
    "stacked leaf and its 60 twins are fp32.",
    "One process saves, a fresh one restores; the file system is synced before each save, and the "
    "page cache emptied before each restore. Blocking: until save returns. Durable: until the "
    "library says it is done, then syncfs, for every method alike. CPU: user and system time of "
    "the process.",
    "item_metadata: the first call of the restoring process, cold. Disk: whole blocks, as du "
    "counts them. Restored bits are compared outside the timed part.",
    f"{BASELINE}: one process for saves and one for restores, two saves and one restore, because "
    "20,000 leaves take it minutes; CheckpointManager with StandardSave, which is its default "
    "PyTree handler.",
    "Stacked against apart: later saves and restores, because what the first of a process costs "
    "beyond them is alike for both and would hide the difference.",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `leaves`."""
    parser.add_argument(
        "--leaves",
        type=int,
        default=FULL_LEAVES,
        help="leaves of the largest comparison (20,000); the other trees shrink with it",
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds of all but Orbax (3)")
    parser.add_argument("--repeats", type=int, default=3, help="later saves, restores a cell (3)")
    parser.add_argument(
        "--methods",
        type=lambda text: text.split(","),
        default=list(METHODS),
        help=f"comma-separated, of {', '.join(METHODS)}",
    )
    parser.add_argument(
        "--trees",
        type=lambda text: text.split(";"),
        default=list(WORKLOADS),
        help="which, separated by semicolons, all without it",
    )
    add_lock_argument(parser)


def measure(arguments: argparse.Namespace) -> tuple[list[Row], list[Bar], list[str]]:
    """Run `leaves` and return its rows, bars and notes.

    Raises:
        SystemExit: A method or tree is unknown.
    """
    check_methods(arguments.methods, METHODS)
    unknown = [name for name in arguments.trees if name not in WORKLOADS]
    if unknown:
        raise SystemExit(f"no tree {unknown[0]!r}; there are {'; '.join(WORKLOADS)}")
    rows = {
        (tree, method): make_row(tree, method)
        for tree in arguments.trees
        for method in WORKLOADS[tree].methods
        if method in arguments.methods
    }
    rounds = {key: 1 if key[1] == BASELINE else arguments.rounds for key in rows}

    def measure_tree(key: tuple[str, str]) -> Samples:
        tree, method = key
        n_repeats = arguments.repeats if method != BASELINE else 0
        return _measure_cell(
            _scaled(WORKLOADS[tree], arguments.leaves), method, n_repeats, arguments
        )

    run_rounds(rows, measure_tree, rounds)
    return list(rows.values()), make_bars(rows), list(NOTES)


def make_bars(rows: Mapping[tuple[str, str], Row]) -> list[Bar]:
    """Judge the rows, by tree and method, against the promises."""
    ours, orbax = rows.get((MANY, OURS)), rows.get((MANY, BASELINE))
    bars = []
    for name, quantity, limit, factor in (
        ("blocking, later save", "blocking_s_later", 0.25, 30),
        ("durable, later save", "durable_s_later", 1.2, 50),
        ("restore", "restore_s_1st", 3.0, 12),
    ):
        bars.append(make_bar(f"{MANY}: {name}, s", _median(ours, quantity), "<=", limit))
        ratio = quotient(orbax, ours, quantity)
        bars.append(make_bar(f"{MANY}: {name}: {BASELINE} / {OURS}", ratio, ">=", factor))
    for name, quantity, limit in (
        ("files", "n_files", 8),
        ("disk / data", "disk_per_data", 1.1),
        ("item_metadata, s", "item_metadata_s", 0.5),
    ):
        bars.append(make_bar(f"{MANY}: {name}", _median(ours, quantity), "<=", limit))
    small, peer = rows.get((SMALL, OURS)), rows.get((SMALL, "safetensors"))
    bars += [
        make_bar(f"{SMALL}: durable, s", _median(small, "durable_s_later"), "<=", 0.45),
        make_bar(f"{SMALL}: restore, s", _median(small, "restore_s_1st"), "<=", 1.2),
        make_bar(
            f"{SMALL}: durable: {OURS} / safetensors + syncfs",
            quotient(small, peer, "durable_s_later"),
            "<=",
            1.0,
        ),
    ]
    few, many = (rows.get((tree, OURS)) for tree in GROWN)
    stacked, apart = rows.get((STACKED, OURS)), rows.get((APART, OURS))
    for name, quantity in (("durable", "durable_s_later"), ("restore", "restore_s_later")):
        growth = quotient(many, few, quantity)
        bars.append(make_bar(f"{GROWN[1]} / {GROWN[0]}: {name}", growth, "<=", 4.4))
    for name, quantity in (("durable", "durable_s_later"), ("restore", "restore_s_later")):
        ratio = quotient(stacked, apart, quantity)
        apart_by = ratio and max(ratio, 1 / ratio)
        bars.append(
            make_bar(f"{STACKED} and {APART}: {name}, slower / faster", apart_by, "<=", 1.2)
        )
    return bars


def _median(row: Row | None, quantity: str) -> float | None:
    return row and row.median(quantity)


def _scaled(workload: Workload, n_leaves: int) -> Workload:
    if workload.n_leaves == 1:  # a stack of leaves
        n_stacked, *shape = workload.shape
        scaled = max(2, n_stacked * n_leaves // FULL_LEAVES)
        return replace(workload, shape=(scaled, *shape))
    scaled = max(2, workload.n_leaves * n_leaves // FULL_LEAVES)
    return replace(workload, n_leaves=scaled)


def _measure_cell(
    workload: Workload, method: str, n_repeats: int, arguments: argparse.Namespace
) -> Samples:
    with tempfile.TemporaryDirectory(dir=arguments.directory, prefix="cell-") as place:
        spec = Spec(
            action="save",
            method=method,
            directory=place,
            n_leaves=workload.n_leaves,
            shape=workload.shape,
            is_mixed=workload.is_mixed,
            n_repeats=max(1, n_repeats),  # there is a later save of every method
        )
        saved = run_cell(CELL, spec, Answer, lock=arguments.lock)
        spec = msgspec.structs.replace(
            spec, action="restore", n_repeats=n_repeats, checksum=saved.checksum
        )
        restored = run_cell(CELL, spec, Answer, lock=arguments.lock)
    return saved.samples | restored.samples
