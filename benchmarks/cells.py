"""Cells: what is measured runs in a fresh process, several times over, methods in turn."""

import argparse
import fcntl
import importlib.util
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from benchmarks.progress import say
from benchmarks.result import Row

ROOT = Path(__file__).parents[1]
OURS, BASELINE = "orbax_gds", "orbax default"
BEHIND = "raw O_DIRECT write behind"  # beside a training loop only: there is nothing to restore
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
    BEHIND: "orbax_gds",
    "memcpy": "orbax_gds",
}
CELL_TIMEOUT_SECS = 900  # chosen: several times what the slowest cell takes

Samples = dict[str, list[float]]
Key = TypeVar("Key", bound=Hashable)
Reply = TypeVar("Reply")


class CellError(RuntimeError):
    """A cell failed; `log` holds the end of what it said."""

    def __init__(self, message: str, log: str) -> None:
        super().__init__(message)
        self.log = log


def add_lock_argument(parser: argparse.ArgumentParser) -> None:
    """Declare --lock, for a machine that others measure on, too."""
    help_text = "lock this file exclusively while a cell runs"
    parser.add_argument("--lock", type=Path, metavar="FILE", help=help_text)


def run_cell(
    module: str,
    spec: msgspec.Struct,
    reply: type[Reply],
    *,
    lock: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Reply:
    """Run one module of this package in a fresh process, and return its last line of stdout.

    Args:
        module: Such as "benchmarks.save_cell"; it gets the spec as JSON in its only argument.
        spec: What the cell does.
        reply: Type of what it prints as JSON.
        lock: File that is locked exclusively while the cell runs, for a machine that is shared.
        environment: Variables beside those of this process.

    Raises:
        CellError: The process failed, or ran out of time.
    """
    command = [sys.executable, "-m", module, msgspec.json.encode(spec).decode()]
    with locked(lock):
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={"JAX_PLATFORMS": "cpu", **os.environ, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            output, log = process.communicate(timeout=CELL_TIMEOUT_SECS)
        except subprocess.TimeoutExpired:
            raise CellError(f"{module} took over {CELL_TIMEOUT_SECS} s", "") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if process.returncode != 0:
        last = log.strip().splitlines()[-1:] or [f"exit status {process.returncode}"]
        raise CellError(f"{module}: {last[0][:200]}", log[-4000:])
    return msgspec.json.decode(output.strip().splitlines()[-1], type=reply)


def run_rounds(
    rows: dict[Key, Row],
    measure: Callable[[Key], Mapping[str, Sequence[float]]],
    rounds: Mapping[Key, int],
) -> None:
    """Measure every row in turn, round by round, and add to its samples.

    Args:
        rows: By key; one that fails is replaced by a skipped one, and skipped ones are left out.
        measure: Runs the cells of a row and returns the new samples of each quantity.
        rounds: How often each row is measured.
    """
    for turn in range(max(rounds.values(), default=0)):
        for key in rotated([key for key in rows if turn < rounds[key]], turn):
            row = rows[key]
            if row.skipped is not None:
                continue
            say(f"round {turn + 1} of {rounds[key]}: {row.group}, {row.name}")
            try:
                samples = measure(key)
            except CellError as error:
                say(f"{row.name}: {error}\n{error.log}")
                rows[key] = msgspec.structs.replace(row, skipped=f"failed: {error}")
                continue
            for quantity, figures in samples.items():
                row.samples.setdefault(quantity, []).extend(figures)


def make_row(group: str, method: str) -> Row:
    """Return the empty row of a method, skipped with the reason where its package is missing."""
    package = METHOD_PACKAGES[method]
    if importlib.util.find_spec(package) is not None:
        return Row(group=group, name=method)
    reason = f"{package} is not installed (extra [bench])"
    return Row(group=group, name=method, skipped=reason)


def check_methods(methods: Sequence[str], known: Sequence[str] = tuple(METHOD_PACKAGES)) -> None:
    """Refuse a method that a benchmark does not have.

    Raises:
        SystemExit: One is unknown; names it.
    """
    unknown = [name for name in methods if name not in known]
    if unknown:
        raise SystemExit(f"no method {unknown[0]!r}; there are {', '.join(known)}")


def quotient(row: Row | None, other: Row | None, quantity: str) -> float | None:
    """Return the median of one row over that of another, None where one was not measured."""
    upper = row and row.median(quantity)
    lower = other and other.median(quantity)
    return upper / lower if upper is not None and lower else None


def rotated(keys: Sequence[Key], turn: int) -> Iterator[Key]:
    """Yield the keys, beginning elsewhere in each round: none is always first."""
    start = turn * 2 % max(1, len(keys))
    yield from keys[start:]
    yield from keys[:start]


@contextmanager
def locked(path: Path | None) -> Iterator[None]:
    """Hold the lock of --lock while the block runs; without one, just run it."""
    if path is None:
        yield
        return
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
