"""`save`: what a save costs the training loop, the machine and the disk, beside the peers."""

import argparse
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from benchmarks.progress import say
from benchmarks.result import Bar, Row, find_row, make_bar
from benchmarks.save_spec import SAVES, Answer, Spec
from benchmarks.state import train_state
from benchmarks.table import Column, Table

ROOT = Path(__file__).parents[1]
GROUP = "bf16+fp32 tree"
OURS, BASELINE = "orbax_gds", "orbax default"
# Name in benchmarks.methods.METHODS, and the package that must be there.
METHOD_PACKAGES = {
    OURS: "orbax_gds",
    "orbax_gds codec off": "orbax_gds",
    BASELINE: "orbax",
    "orbax uncompressed": "orbax",
    "safetensors": "safetensors",
    "torch DCP": "torch",
    "torch DCP async": "torch",
    "raw O_DIRECT write": "orbax_gds",
    "memcpy": "orbax_gds",
}
CELL_TIMEOUT_SECS = 900  # chosen: some hundred times what a cell takes

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
    "Restore: a fresh process, imports and construction outside. Cold: page cache emptied; a "
    "hypervisor may still cache. Warm: once more in the same process; direct reads do not "
    "warm the page cache. Restored bits are compared outside the timed part.",
    "torch DCP: one process, no process group; its tensors are made outside the timed part and "
    "stay torch tensors. raw: as many bytes, O_DIRECT, blocks of 4 MiB, fsync. memcpy: one copy.",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `save`."""
    parser.add_argument("--gigabytes", type=float, default=1.5, help="size of the tree (1.5)")
    parser.add_argument("--leaves", type=int, default=200, help="leaves of the tree (200)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds over all methods (3)")
    parser.add_argument(
        "--methods",
        type=lambda text: text.split(","),
        default=list(METHOD_PACKAGES),
        help="comma-separated names, all without it",
    )
    parser.add_argument("--state", type=Path, help="train state (.npz); trained when not given")


def measure(arguments: argparse.Namespace) -> tuple[list[Row], list[Bar], list[str]]:
    """Run `save` and return its rows, bars and notes.

    Raises:
        SystemExit: A method is unknown, or there is too little disk.
    """
    unknown = [name for name in arguments.methods if name not in METHOD_PACKAGES]
    if unknown:
        raise SystemExit(f"no method {unknown[0]!r}; there are {', '.join(METHOD_PACKAGES)}")
    n_bytes = round(arguments.gigabytes * 1e9)
    needed, free = 5 * n_bytes // 2, shutil.disk_usage(arguments.directory).free
    if free < needed:
        raise SystemExit(f"{arguments.directory} has {free:,} bytes free, {needed:,} are needed")
    state, origin = train_state(arguments.state, arguments.directory)
    rows = {name: Row(group=GROUP, name=name, skipped=_missing(name)) for name in arguments.methods}
    cold_by = set()
    for turn in range(arguments.rounds):
        for name in _rotated(arguments.methods, turn):
            if rows[name].skipped is not None:
                continue
            say(f"save: round {turn + 1} of {arguments.rounds}, {name}")
            spec = Spec(
                action="save",
                method=name,
                directory="",
                n_bytes=n_bytes,
                n_leaves=arguments.leaves,
                state=str(state),
            )
            try:
                answer = measure_cell(spec, arguments.directory)
            except CellError as error:
                say(f"save: {name}: {error}\n{error.log}")
                rows[name] = msgspec.structs.replace(rows[name], skipped=f"failed: {error}")
                continue
            cold_by.add(answer.cold_by)
            for quantity, figure in answer.figures.items():
                rows[name].samples.setdefault(quantity, []).append(figure)
    notes = [*NOTES, f"Train state: {origin}. Page cache emptied by {', '.join(sorted(cold_by))}."]
    return list(rows.values()), _bars(list(rows.values())), notes


class CellError(RuntimeError):
    """A cell failed; `log` holds the end of what it said."""

    def __init__(self, message: str, log: str) -> None:
        super().__init__(message)
        self.log = log


def measure_cell(spec: Spec, directory: Path) -> Answer:
    """Save in one process and restore in another, in a directory that is then removed.

    Raises:
        CellError: A process failed, or ran out of time.
    """
    with tempfile.TemporaryDirectory(dir=directory, prefix="cell-") as place:
        spec = msgspec.structs.replace(spec, directory=place)
        saved = _run_cell(spec)
        spec = msgspec.structs.replace(spec, action="restore", checksums=saved.checksums)
        restored = _run_cell(spec)
    return msgspec.structs.replace(restored, figures=saved.figures | restored.figures)


def _run_cell(spec: Spec) -> Answer:
    command = [sys.executable, "-m", "benchmarks.save_cell", msgspec.json.encode(spec).decode()]
    environment = {"JAX_PLATFORMS": "cpu", **os.environ}
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, log = process.communicate(timeout=CELL_TIMEOUT_SECS)
    except subprocess.TimeoutExpired:
        raise CellError(f"{spec.action} took over {CELL_TIMEOUT_SECS} s", "") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode != 0:
        last = log.strip().splitlines()[-1:] or [f"exit status {process.returncode}"]
        raise CellError(f"{spec.action}: {last[0][:200]}", log[-4000:])
    return msgspec.json.decode(output.strip().splitlines()[-1], type=Answer)


def _missing(method: str) -> str | None:
    package = METHOD_PACKAGES[method]
    if importlib.util.find_spec(package) is not None:
        return None
    return f"{package} is not installed (extra [bench])"


def _rotated(names: Sequence[str], turn: int) -> Iterator[str]:
    """Yield the methods, beginning elsewhere in each round: none is always first."""
    start = turn * 2 % len(names)
    yield from names[start:]
    yield from names[:start]


def _bars(rows: list[Row]) -> list[Bar]:
    ours = find_row(rows, group=GROUP, name=OURS)
    baseline = find_row(rows, group=GROUP, name=BASELINE)
    promises = (
        *((f"durable, {n} save", f"durable_s_{n}", 0.75) for n in SAVES),
        *((f"CPU, {n} save", f"cpu_s_{n}", 0.5) for n in SAVES),
        *((f"blocking, {n} save", f"blocking_s_{n}", 1.0) for n in SAVES),
        *((f"restore, {state}", f"restore_s_{state}", 0.7) for state in ("cold", "warm")),
    )
    bars = []
    for name, quantity, limit in promises:
        own = ours and ours.median(quantity)
        other = baseline and baseline.median(quantity)
        ratio = own / other if own and other else None
        bars.append(make_bar(f"{name}: {OURS} / {BASELINE}", ratio, "<=", limit))
    return bars
