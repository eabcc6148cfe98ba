"""`training`: what a training loop loses to saves, and to the GIL.

One fresh process for each loop and method holds a train state of 0.5 GB and takes steps. Stretches
of steps without a save stand before and after each save, so that a processor that changes its speed
changes both; each save is compared with its two neighbours only. The loop never waits: it takes
steps until the library says that the save is done, and on, for as long as the stretches last.

- Dilation: seconds of the steps that began with a save in flight / of those without one, as
  medians and as means. A mean shows the few steps that a median hides.
- Lost seconds: the save's call, and what all steps from its return to the end of the stretch took
  beyond as many steps without a save. It counts what goes on after the save is said to be done.
- GIL wait: wall time of the loop's thread, less its CPU time, less the time the kernel counts it
  ready to run without a core (/proc/thread-self/schedstat), less its share of what a hypervisor
  stole from the cores (/proc/stat), from the return of the save's call until it is done; less the
  same share of the stretches without a save. The Python step does no I/O and takes no lock, so
  that nothing else is left to wait for. A jitted step waits for XLA, too, so that it has no such
  figure.

One row is no library: a thread that writes as many bytes in a single call, without coding and
without the GIL. What a loop loses to it is the device's and the machine's.

The first save of each process, which makes buffers and threads, is not measured. The trained part
of the state is donated to each step; the rest, which is saved with it, does not change.
"""

import argparse
import tempfile
from pathlib import Path

from benchmarks.cells import (
    BASELINE,
    BEHIND,
    OURS,
    Samples,
    add_lock_argument,
    check_methods,
    make_row,
    run_cell,
    run_rounds,
)
from benchmarks.result import Bar, Row, find_row, make_bar
from benchmarks.save import need_disk
from benchmarks.state import train_state
from benchmarks.table import Column, Table
from benchmarks.training_spec import ALL_CORES, ONE_CORE, PYTHON, Answer, Spec

CELL = "benchmarks.training_cell"
LOOPS = (ALL_CORES, ONE_CORE, PYTHON)
METHODS = (
    OURS,
    "orbax_gds codec off",
    BASELINE,
    "orbax uncompressed",
    BEHIND,
)
XLA_ON_ONE_CORE = {"PJRT_NPROC": "1"}  # --xla_cpu_multi_thread_eigen=false has no effect

TITLE = "What a training loop loses to saves"
TABLES = (
    Table(
        caption="Steps beside a save in flight. Median of the saves [least, greatest]",
        columns=(
            Column(title="step ms, no save", quantity="step_ms"),
            Column(title="cores a step uses", quantity="step_cores"),
            Column(title="dilation, median", quantity="dilation_median", digits=3),
            Column(title="dilation, mean", quantity="dilation_mean", digits=3),
            Column(title="save s", quantity="save_s"),
            Column(title="blocking s", quantity="blocking_s", digits=3),
            Column(title="lost s a save", quantity="lost_s", digits=3),
            Column(title="GIL wait s", quantity="gil_wait_s", digits=4),
            Column(title="GIL wait / save", quantity="gil_wait_share", digits=4),
        ),
    ),
)
NOTES = (
    "Jitted step: Adam on a multi-layer perceptron of 4 x 512 x 512, donated, one XLA call; on all "
    "cores, and with XLA kept to one core as where an accelerator computes. Python step: integer "
    "arithmetic in the interpreter. Saved: what is trained and a tree like that of `save`.",
    "Every save is compared with the steps before and after it in the same process. Dilation: "
    "seconds of steps with a save in flight / without. Lost: the save's call, and what the steps "
    "after it took beyond as many steps without a save.",
    "GIL wait: wall time of the loop's thread less its CPU time, less its time in the kernel's run "
    "queue and less its share of what a hypervisor stole from the cores, from the return of the "
    "save's call until it is done, beyond what the steps without a save show.",
    "Raw O_DIRECT write behind: one call in a thread that writes as many bytes as the save has, "
    "uncoded. What a loop loses to it, it loses to the device: in a virtual machine, the host's "
    "I/O takes the same cores.",
    "Save s: until the library says it is done. Orbax leaves part of its data to the kernel's "
    "writeback, which ends after that; the stretch without a save begins with a sync.",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `training`."""
    parser.add_argument("--gigabytes", type=float, default=0.5, help="size of a save (0.5)")
    parser.add_argument("--leaves", type=int, default=50, help="leaves of it (50)")
    parser.add_argument("--rounds", type=int, default=3, help="processes for each row (3)")
    parser.add_argument("--saves", type=int, default=3, help="measured saves a process (3)")
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="shortest stretch of steps without a save (2)"
    )
    parser.add_argument(
        "--methods",
        type=lambda text: text.split(","),
        default=list(METHODS),
        help=f"comma-separated, of {', '.join(METHODS)}",
    )
    parser.add_argument(
        "--loops",
        type=lambda text: text.split(";"),
        default=list(LOOPS),
        help="which, separated by semicolons, all without it",
    )
    parser.add_argument("--state", type=Path, help="train state (.npz); trained when not given")
    add_lock_argument(parser)


def measure(arguments: argparse.Namespace) -> tuple[list[Row], list[Bar], list[str]]:
    """Run `training` and return its rows, bars and notes.

    Raises:
        SystemExit: A method or loop is unknown, or there is too little disk.
    """
    check_methods(arguments.methods, METHODS)
    unknown = [name for name in arguments.loops if name not in LOOPS]
    if unknown:
        raise SystemExit(f"no loop {unknown[0]!r}; there are {'; '.join(LOOPS)}")
    n_bytes = round(arguments.gigabytes * 1e9)
    need_disk(arguments.directory, (arguments.saves + 2) * n_bytes)
    state, origin = train_state(arguments.state, arguments.directory)

    def measure_loop(key: tuple[str, str]) -> Samples:
        with tempfile.TemporaryDirectory(dir=arguments.directory, prefix="cell-") as place:
            spec = Spec(
                loop=key[0],
                method=key[1],
                directory=place,
                n_bytes=n_bytes,
                n_leaves=arguments.leaves,
                state=str(state),
                n_saves=arguments.saves,
                least_seconds=arguments.seconds,
            )
            environment = XLA_ON_ONE_CORE if spec.loop == ONE_CORE else None
            answer = run_cell(CELL, spec, Answer, lock=arguments.lock, environment=environment)
        return answer.samples

    rows = {
        (loop, method): make_row(loop, method)
        for loop in arguments.loops
        for method in arguments.methods
    }
    run_rounds(rows, measure_loop, dict.fromkeys(rows, arguments.rounds))
    return list(rows.values()), make_bars(list(rows.values())), [*NOTES, f"Train state: {origin}."]


def make_bars(rows: list[Row]) -> list[Bar]:
    """Judge the rows against the promises."""
    bars = []
    for loop in (ALL_CORES, ONE_CORE):
        row = find_row(rows, group=loop, name=OURS)
        for average in ("median", "mean"):
            dilation = row and row.median(f"dilation_{average}")
            bars.append(make_bar(f"{loop}: dilation, {average} step", dilation, "<=", 1.15))
    row = find_row(rows, group=PYTHON, name=OURS)
    share = row and row.median("gil_wait_share")
    bars.append(make_bar(f"{PYTHON}: GIL wait / save", share, "<=", 0.01))
    return bars
