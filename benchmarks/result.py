"""What a benchmark leaves behind: raw samples, bars and the machine they were measured on."""

import os
import statistics
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from benchmarks.machine import Machine

RESULTS_DIRECTORY = Path(__file__).parent / "results"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a table: every sample of one method on one kind of data.

    Attributes:
        group: What was coded or saved, such as "MiniLM bf16".
        name: The method, such as "zstd-1".
        samples: Quantity to its samples, one a repetition or round; the unit ends the name.
        skipped: Why there are no or fewer samples: the package is missing, or a cell failed.
    """

    group: str
    name: str
    samples: dict[str, list[float]] = {}
    skipped: str | None = None

    def median(self, quantity: str) -> float | None:
        """Return the median of a quantity, or None where it was not measured."""
        samples = self.samples.get(quantity)
        return statistics.median(samples) if samples else None


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """A figure that the project promises, and what was measured.

    Attributes:
        name: What the figure says.
        measured: The figure of this run, None where it could not be measured.
        relation: Whether the figure must be at least or at most `limit`.
        limit: The promise.
        verdict: "pass", "FAIL" or "not measured".
        reason: Why it was not met, written by hand into the recorded result; a later record of
            the same benchmark keeps it for as long as the bar is not met.
    """

    name: str
    measured: float | None
    relation: Literal[">=", "<="]
    limit: float
    verdict: Literal["pass", "FAIL", "not measured"]
    reason: str = ""


def make_bar(name: str, measured: float | None, relation: Literal[">=", "<="], limit: float) -> Bar:
    """Judge a figure against its promise."""
    verdict = "not measured"
    if measured is not None:
        fits = measured >= limit if relation == ">=" else measured <= limit
        verdict = "pass" if fits else "FAIL"
    return Bar(name=name, measured=measured, relation=relation, limit=limit, verdict=verdict)


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run, as it is written to results/*.json.

    Attributes:
        benchmark: Name in the registry of `benchmarks.run`.
        started: UTC time, ISO 8601.
        settings: The arguments of the run.
        notes: How it was measured: data, cold or warm, what was equalised.
        machine: The machine card.
        rows: Raw samples.
        bars: The promises, with what was measured.
    """

    benchmark: str
    started: str
    settings: dict[str, Any]
    notes: list[str]
    machine: Machine
    rows: list[Row]
    bars: list[Bar]


def with_reasons(result: Result, before: Result) -> Result:
    """Return a result whose bars that are not met have the reasons of an earlier record."""
    reasons = {bar.name: bar.reason for bar in before.bars}
    bars = [
        bar if bar.verdict == "pass" else replace(bar, reason=reasons.get(bar.name, bar.reason))
        for bar in result.bars
    ]
    return replace(result, bars=bars)


def find_row(rows: list[Row], *, group: str, name: str) -> Row | None:
    """Return the row of one method on one kind of data, None where there is none."""
    return next((row for row in rows if (row.group, row.name) == (group, name)), None)


def write_result(result: Result, path: Path) -> None:
    """Write a result as indented JSON, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pending = path.with_suffix(".tmp")
    pending.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    os.replace(pending, path)


def read_result(path: Path) -> Result:
    """Read a result that `write_result` wrote."""
    return msgspec.json.decode(path.read_bytes(), type=Result)
