"""Whole steps of `delta`: after every kind of change, in a chain of eight, and over a run."""

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from benchmarks.cells import CellError, Samples, quotient, run_cell, run_rounds
from benchmarks.delta_spec import (
    CHANGES,
    DELTAS,
    FULL,
    FULL_EVERY,
    METHODS,
    NOTHING,
    OTHER,
    RANDOM,
    SPARSE,
    Answer,
    Source,
    Spec,
)
from benchmarks.result import Bar, Row, find_row, make_bar
from benchmarks.save import MIB_MB

CELL = "benchmarks.delta_cell"
CHAIN = "1 % of the elements changed in each step"
ALL_KINDS = ["params_bf16", "master_f32", "mu_f32", "nu_f32"]
# Group of a run: phase of the run, and the kinds that a step holds.
RUNS = {
    "training, whole state": ("training", ALL_KINDS),
    "fine-tuning, whole state": ("fine-tuning", ALL_KINDS),
    "fine-tuning, bf16 weights": ("fine-tuning", ["params_bf16"]),
}


def change_rows(source: Source, arguments: argparse.Namespace) -> list[Row]:
    """Measure a step after each change beside a full step of the same tree, in one process."""
    rows = {change: Row(group=change, name=DELTAS.split()[0]) for change in CHANGES}

    def measure(_: str) -> Samples:
        with tempfile.TemporaryDirectory(dir=arguments.directory, prefix="cell-") as place:
            spec = Spec(action="changes", method=DELTAS, directory=place, source=source)
            return run_cell(CELL, spec, Answer, lock=arguments.lock).samples

    together = {"": Row(group="steps after a change", name="one process")}
    run_rounds(together, measure, {"": arguments.rounds})
    done = together[""]
    for change, row in rows.items():
        for key, figures in done.samples.items():
            of_change, _, quantity = key.partition(":")
            if of_change == change:
                row.samples[quantity] = figures
        for over, quantity in (("share", "mb"), ("durable_x_full", "durable_s")):
            pairs = zip(
                row.samples.get(f"step_{quantity}", []),
                row.samples.get(f"full_{quantity}", []),
                strict=True,
            )
            row.samples[over] = [step / full for step, full in pairs]
        if done.skipped is not None:
            rows[change] = msgspec.structs.replace(row, skipped=done.skipped)
    return list(rows.values())


def change_bars(rows: list[Row]) -> list[Bar]:
    """Judge steps after a change against the promises."""
    limits = (
        (SPARSE, "share", "size / full step", 0.05),
        (NOTHING, "share", "size / full step", 0.001),
        (OTHER, "share", "size / full step", 1.01),
        (RANDOM, "share", "size / full step", 1.01),
        (OTHER, "durable_x_full", "durable / full step", 1.3),
        (RANDOM, "durable_x_full", "durable / full step", 1.3),
    )
    bars = []
    for change, quantity, what, limit in limits:
        row = next((row for row in rows if row.group == change), None)
        bars.append(make_bar(f"{change}: {what}", row and row.median(quantity), "<=", limit))
    return bars


def chain_rows(source: Source, arguments: argparse.Namespace) -> list[Row]:
    """Measure the restore of the last step of a chain, and of the same tree in a full step."""
    rows = {method: Row(group=CHAIN, name=f"{method}, 8th step") for method in (DELTAS, FULL)}
    with tempfile.TemporaryDirectory(dir=arguments.directory, prefix="chain-") as place:
        specs: dict[str, Spec] = {}

        def measure(method: str) -> Samples:
            if method not in specs:
                directory = Path(place) / str(list(rows).index(method))
                specs[method] = _saved(method, source, directory, arguments)[0]
            spec = specs[method]
            last = msgspec.structs.replace(
                spec, steps=[FULL_EVERY - 1], checksums=spec.checksums[-1:]
            )
            samples = run_cell(CELL, last, Answer, lock=arguments.lock).samples
            extra = [peak - source.n_bytes / 1e6 for peak in samples.get("peak_mb", [])]
            return {
                "chain_restore_s": samples["restore_s"],
                "chain_restore_cpu_s": samples["restore_cpu_s"],
                "chain_extra_mb": extra,
            }

        run_rounds(rows, measure, dict.fromkeys(rows, arguments.rounds + 2))
    return list(rows.values())


def chain_bars(rows: list[Row]) -> list[Bar]:
    """Judge the restore of a chain against that of a full step."""
    deltas, full = (find_row(rows, group=CHAIN, name=f"{m}, 8th step") for m in (DELTAS, FULL))
    extra = None
    if deltas and full and deltas.median("chain_extra_mb") is not None:
        extra = (deltas.median("chain_extra_mb") or 0) - (full.median("chain_extra_mb") or 0)
    name = f"{CHAIN}: restore of a chain of 8"
    return [
        make_bar(f"{name} / of a full step", quotient(deltas, full, "chain_restore_s"), "<=", 2.5),
        make_bar(f"{name}: peak RSS above that of a full step, MB", extra, "<=", 64 * MIB_MB),
    ]


def run_rows(files: Mapping[str, list[Path]], arguments: argparse.Namespace) -> list[Row]:
    """Save the steps of a run by every method, and restore each of them in a fresh process."""
    rows = {(group, method): Row(group=group, name=method) for group in RUNS for method in METHODS}

    def measure(key: tuple[str, str]) -> Samples:
        phase, kinds = RUNS[key[0]]
        source = Source(files=[str(path) for path in files[phase]], kinds=kinds)
        with tempfile.TemporaryDirectory(dir=arguments.directory, prefix="run-") as place:
            spec, saved = _saved(key[1], source, Path(place) / "steps", arguments)
            spec = msgspec.structs.replace(
                spec, steps=list(range(len(source.files))), has_warm_up=True
            )
            restored = run_cell(CELL, spec, Answer, lock=arguments.lock).samples
        return run_samples(saved.samples, restored)

    run_rounds(rows, measure, dict.fromkeys(rows, arguments.rounds))
    return list(rows.values())


def run_samples(saved: Mapping[str, list[float]], restored: Mapping[str, list[float]]) -> Samples:
    """Return the figures of each step by its number, and those of the tables."""
    samples: Samples = {}
    for name, series in (("mb", saved["mb"]), ("restore_s", restored["restore_s"])):
        samples |= {f"{name}_{step:02d}": [figure] for step, figure in enumerate(series)}
    samples["run_mb"] = [sum(saved["mb"])]
    samples["run_mean_mb"] = [sum(saved["mb"]) / len(saved["mb"])]
    samples["run_step_mb"] = saved["mb"]
    samples["run_durable_s"] = saved["durable_s"][1:]  # the first makes buffers and threads
    samples["run_blocking_s"] = saved["blocking_s"][1:]
    samples["run_restore_s"] = restored["restore_s"]
    samples["run_restore_s_8th"] = restored["restore_s"][FULL_EVERY - 1 :: FULL_EVERY]
    return samples


def run_bars(rows: list[Row]) -> list[Bar]:
    """Judge the restore of the eighth steps against that of full ones."""
    bars = []
    for group in RUNS:
        deltas, full = (find_row(rows, group=group, name=method) for method in (DELTAS, FULL))
        ratio = quotient(deltas, full, "run_restore_s_8th")
        bars.append(
            make_bar(f"{group}: restore of a chain of 8 / of a full step", ratio, "<=", 2.5)
        )
    return bars


def _saved(
    method: str, source: Source, directory: Path, arguments: argparse.Namespace
) -> tuple[Spec, Answer]:
    """Save all steps of a source, and return what restores them and what was measured."""
    directory.mkdir(exist_ok=True)
    spec = Spec(action="save", method=method, directory=str(directory), source=source)
    saved = run_cell(CELL, spec, Answer, lock=arguments.lock)
    if not saved.checksums:
        raise CellError(f"{method} saved no step", "")
    return msgspec.structs.replace(spec, action="restore", checksums=saved.checksums), saved
