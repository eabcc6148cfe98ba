"""Save and restore one state with orbax_gds and with plain Orbax, in the same run."""

import dataclasses
import os
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import orbax.checkpoint as ocp

from orbax_gds.args import GdsRestore, GdsSave
from orbax_gds.demo import model

N_REPEATS = 5  # chosen: the median of 5 is steady enough for the digits shown, in seconds


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """What one way to save cost: the median over the repeats, after one warm-up.

    Attributes:
        name: the way to save.
        blocking_secs: until `save` returned and training could go on.
        durable_secs: until every file and directory of the step was committed and fsynced.
        cpu_secs: CPU seconds of this process in that time.
        disk_bytes: length of all files of the step.
        restore_secs: from disk, the page cache emptied of the step before.
    """

    name: str
    blocking_secs: float
    durable_secs: float
    cpu_secs: float
    disk_bytes: int
    restore_secs: float


@dataclasses.dataclass(kw_only=True)
class _Way:
    name: str
    checkpoints: ocp.CheckpointManager
    save_args: Callable[[Any], Any]
    restore_args: Callable[[Any], Any]
    runs: list[Row] = dataclasses.field(default_factory=list)


def compare(state: Any, directory: pathlib.Path, *, n_repeats: int = N_REPEATS) -> list[Row]:
    """Return one row for orbax_gds and one for plain Orbax with its defaults.

    The two take turns, so that a slow moment of the machine does not fall on one alone.

    Args:
        state: the PyTree of jax.Arrays to save.
        directory: an existing directory; the checkpoints stay in it.
        n_repeats: saves and restores measured of each.
    """
    ways = [
        _Way(
            name="orbax_gds",
            checkpoints=ocp.CheckpointManager(directory / "orbax_gds"),
            save_args=GdsSave,
            restore_args=GdsRestore,
        ),
        _Way(
            name="plain Orbax",
            checkpoints=ocp.CheckpointManager(directory / "orbax"),
            save_args=ocp.args.StandardSave,
            restore_args=ocp.args.StandardRestore,
        ),
    ]
    for repeat in range(1 + n_repeats):
        for way in ways:
            run = _save_and_restore(way, state, repeat)
            if repeat > 0:
                way.runs.append(run)
    for way in ways:
        way.checkpoints.close()
    return [_median(way) for way in ways]


def newest(steps: pathlib.Path) -> Any:
    """Return the state of the newest step that the training job committed in `steps`."""
    abstract = model.abstract_state(model.new_training())
    with ocp.CheckpointManager(steps) as checkpoints:
        return checkpoints.restore(checkpoints.latest_step(), args=GdsRestore(abstract))


def raw_write_secs(n_bytes: int, directory: pathlib.Path) -> float:
    """Return the seconds to write `n_bytes` of one file and fsync it: the floor of any save."""
    content = os.urandom(n_bytes)
    path = directory / "raw"
    start = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        file.write(content)
        os.fsync(file.fileno())
    secs = time.perf_counter() - start
    path.unlink()
    return secs


def _save_and_restore(way: _Way, state: Any, step: int) -> Row:
    start, cpu_start = time.perf_counter(), time.process_time()
    way.checkpoints.save(step, args=way.save_args(state))
    blocking_secs = time.perf_counter() - start
    way.checkpoints.wait_until_finished()
    path = pathlib.Path(way.checkpoints.directory) / str(step)
    files = [file for file in path.rglob("*") if file.is_file()]
    _sync(path, files)
    durable_secs, cpu_secs = time.perf_counter() - start, time.process_time() - cpu_start
    _evict(files)
    start = time.perf_counter()
    jax.block_until_ready(way.checkpoints.restore(step, args=way.restore_args(state)))
    return Row(
        name=way.name,
        blocking_secs=blocking_secs,
        durable_secs=durable_secs,
        cpu_secs=cpu_secs,
        disk_bytes=sum(file.stat().st_size for file in files),
        restore_secs=time.perf_counter() - start,
    )


def _sync(path: pathlib.Path, files: list[pathlib.Path]) -> None:
    """Fsync what a step consists of, since neither way syncs every file and the last rename."""
    directories = {path.parent, path, *(file.parent for file in files)}
    for entry in [*files, *directories]:
        descriptor = os.open(entry, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _evict(files: list[pathlib.Path]) -> None:
    for file in files:
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _median(way: _Way) -> Row:
    def of(field: str) -> float:
        return statistics.median(getattr(run, field) for run in way.runs)

    return Row(
        name=way.name,
        blocking_secs=of("blocking_secs"),
        durable_secs=of("durable_secs"),
        cpu_secs=of("cpu_secs"),
        disk_bytes=int(of("disk_bytes")),
        restore_secs=of("restore_secs"),
    )
