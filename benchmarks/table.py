"""Results as Markdown: medians with their spread, skipped rows with their reason."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.result import Bar, Result, Row


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column: which quantity of `Row.samples`, under which heading, with how many digits."""

    title: str
    quantity: str
    digits: int = 2


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of a benchmark: its caption and columns; every row that has samples shows in it."""

    caption: str
    columns: tuple[Column, ...]


def cell_text(samples: Sequence[float], digits: int) -> str:
    """Write samples as "median [least, greatest]", or one number where they are all equal.

    Example:
        >>> cell_text([3.0, 1.0, 2.0], 1)
        '2.0 [1.0, 3.0]'
    """
    least, greatest = f"{min(samples):.{digits}f}", f"{max(samples):.{digits}f}"
    text = f"{statistics.median(samples):.{digits}f}"
    return text if least == greatest else f"{text} [{least}, {greatest}]"


def table_markdown(table: Table, rows: Sequence[Row]) -> str:
    """Write one table; a row without a quantity has an empty cell, a skipped row its reason."""
    groups = {row.group for row in rows}
    head = [*(["data"] if len(groups) > 1 else []), "method"]
    lines = [
        f"**{table.caption}**",
        "",
        _line([*head, *(column.title for column in table.columns)]),
        _line(["---"] * (len(head) + len(table.columns))),
    ]
    for row in rows:
        cells = _cells(row, table.columns)
        if any(cells):
            lines.append(_line([*([row.group] if len(groups) > 1 else []), row.name, *cells]))
    return "\n".join(lines)


def bars_markdown(bars: Sequence[Bar]) -> str:
    """Write the bars, each with its figure and verdict, and why it was not met where one is."""
    head = ["bar", "measured", "promised", "verdict"]
    has_reasons = any(bar.reason for bar in bars)
    lines = [_line([*head, "reason"] if has_reasons else head)]
    lines.append(_line(["---"] * (len(head) + has_reasons)))
    for bar in bars:
        measured = "" if bar.measured is None else f"{bar.measured:.3f}"
        cells = [bar.name, measured, f"{bar.relation} {bar.limit:.4g}", bar.verdict]
        lines.append(_line([*cells, bar.reason] if has_reasons else cells))
    return "\n".join(lines)


def result_markdown(
    result: Result, tables: Sequence[Table], *, title: str, picture: str | None = None
) -> str:
    """Write a whole result: machine card, method, tables, bars and a link to its picture."""
    machine = result.machine
    versions = ", ".join(f"{name} {version}" for name, version in machine.versions.items())
    settings = ", ".join(f"{name} {value}" for name, value in result.settings.items())
    parts = [
        f"## {title}",
        f"`{result.benchmark}`, {result.started}, commit {machine.commit}. Settings: {settings}.",
        f"Machine: {machine.processor}, {machine.n_cores} cores, {machine.memory_gib} GiB, "
        f"{machine.kernel}, huge pages {machine.huge_pages}; {machine.file_system} on "
        f"{machine.disk}; {versions}.",
        "\n".join(f"- {note}" for note in result.notes),
        *([f"![{title}]({picture})"] if picture else []),
        *(table_markdown(table, result.rows) for table in tables),
        bars_markdown(result.bars),
    ]
    return "\n\n".join(parts) + "\n"


def _cells(row: Row, columns: Sequence[Column]) -> list[str]:
    cells = [
        cell_text(row.samples[column.quantity], column.digits)
        if row.samples.get(column.quantity)
        else ""
        for column in columns
    ]
    if row.skipped is not None:
        cells[0] = f"{cells[0]} skipped: {row.skipped}".strip()
    return cells


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"
