"""The demo from its beginning to its end, and what it prints."""

import contextlib
import dataclasses
import importlib.util
import json
import logging
import pathlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

import rich.box
from rich.console import Console
from rich.table import Table

from orbax_gds.demo import crash
from orbax_gds.errors import Unsupported

SAVE_EVERY = 4  # chosen: the whole demo takes about a minute on two cores
KILL_FROM = 12  # chosen: two steps are committed by then

Result = dict[str, Any]


def main(*, keep: pathlib.Path | None = None, as_json: bool = False) -> int:
    """Run the demo: talk on stderr, the result on stdout.

    Args:
        keep: new or empty directory to leave the checkpoints and logs in; None uses a temporary
            one and removes it.
        as_json: print the result as one JSON object instead of text and a table.

    Returns:
        0 if the resumed state was bit-identical to the committed one, else 1.

    Raises:
        Unsupported: flax or optax is not installed, or `keep` is not empty.
        DemoFailed: the training job failed, or no save could be cut short.
    """
    _require("flax", "optax")
    with _directory(keep) as directory:
        result = run(directory, talk=Console(stderr=True, highlight=False))
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        show(result, Console(highlight=False))
    return 0 if result["identical"] else 1


def run(directory: pathlib.Path, *, talk: Console) -> Result:
    """Run the demo in `directory` and return all that it found, ready for JSON."""
    start = time.perf_counter()
    steps = directory / "training"
    with talk.status("1/3 A child process trains a language model and saves it as it goes …"):
        killed = crash.train_and_kill(steps, from_step=KILL_FROM, every=SAVE_EVERY)
    talk.print(f"1/3 Trained to step {killed.step}; SIGKILL in the middle of saving it.")
    with talk.status("2/3 A second child process resumes from the last committed step …"):
        resumed = crash.resume(steps, until=killed.step + SAVE_EVERY, every=SAVE_EVERY)
    talk.print(f"2/3 Resumed from step {resumed.resumed_step}, trained to {max(resumed.losses)}.")
    with talk.status("3/3 The same state is saved and restored beside plain Orbax …"):
        measured = _measure(directory, steps)
    talk.print("3/3 Saved and restored the same state beside plain Orbax.")
    judgement = crash.judge(killed, resumed)
    return {
        "identical": judgement.identical,
        **dataclasses.asdict(judgement),
        "killed_step": killed.step,
        "killed_stripe_bytes": killed.stripe_bytes,
        **measured,
        "seconds": time.perf_counter() - start,
    }


def show(result: Result, console: Console) -> None:
    """Print a result of `run` as text and a table."""
    same = result["sha256_saved"] == result["sha256_resumed"]
    for line in (
        "",
        f"SIGKILL while step {result['killed_step']} was being written,"
        f" {_mib(result['killed_stripe_bytes'])} into its stripe;"
        f" the newest committed step was {result['committed_step']}.",
        f"Resumed from step {result['resumed_step']}. SHA-256 of all leaves:",
        f"    saved    {result['sha256_saved']}",
        f"    resumed  {result['sha256_resumed']}  {'identical' if same else 'DIFFERENT'}",
        f"Steps {_listed(result['steps_again'])} trained again:"
        f" {'the same losses, bit for bit' if result['same_losses'] else 'other losses'}.",
        "",
    ):
        console.print(line, soft_wrap=True)
    console.print(_table(result))
    for line in (
        f"Floor: {_mib(result['state_bytes'])} written raw and fsynced"
        f" in {result['raw_write_secs']:.2f} s.",
        "Medians of runs that take turns. Durable: every file and directory fsynced.",
        "Restored with the page cache of the step emptied before.",
        f"One save in its own words: {result['report']}",
        "",
        f"{'PROVEN' if result['identical'] else 'FAILED'}: the resumed state is"
        f" {'' if result['identical'] else 'not '}bit-identical to the committed one."
        f" ({result['seconds']:.0f} s)",
    ):
        console.print(line, soft_wrap=True)


def _measure(directory: pathlib.Path, steps: pathlib.Path) -> Result:
    from orbax_gds.demo import compare, model  # of the extra, and two seconds of imports
    from orbax_gds.saving import save

    logging.getLogger("absl").setLevel(logging.ERROR)  # Orbax's, at every wait
    state = compare.newest(steps)
    rows = compare.compare(state, directory)
    n_bytes = model.state_bytes(state)
    return {
        "state_bytes": n_bytes,
        "raw_write_secs": compare.raw_write_secs(n_bytes, directory),
        "report": save(directory / "once", state).line(),
        "rows": [dataclasses.asdict(row) for row in rows],
    }


def _table(result: Result) -> Table:
    title = f"The train state of this model, {_mib(result['state_bytes'])}"
    table = Table(title=title, title_justify="left", box=rich.box.SIMPLE_HEAD)
    for column in ("", "blocking s", "durable s", "CPU s", "on disk", "restore s"):
        table.add_column(column, justify="right" if column else "left")
    for row in result["rows"]:
        table.add_row(
            row["name"],
            f"{row['blocking_secs']:.3f}",
            f"{row['durable_secs']:.2f}",
            f"{row['cpu_secs']:.2f}",
            _mib(row["disk_bytes"]),
            f"{row['restore_secs']:.2f}",
        )
    return table


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:.1f} MiB"


def _listed(steps: Sequence[int]) -> str:
    return ", ".join(map(str, steps)) or "none"


@contextlib.contextmanager
def _directory(keep: pathlib.Path | None) -> Iterator[pathlib.Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="orbax-gds-demo-") as directory:
            yield pathlib.Path(directory)
        return
    keep.mkdir(parents=True, exist_ok=True)
    if any(keep.iterdir()):
        raise Unsupported(f"{keep} is not empty. Name a new or an empty directory to keep.")
    yield keep.resolve()


def _require(*packages: str) -> None:
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        raise Unsupported(
            f"The demo needs {' and '.join(missing)}. Run: pip install 'orbax-gds[demo]'"
        )
