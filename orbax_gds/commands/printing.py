"""What the commands print, and how they show that they work."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path as FilePath
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)

from orbax_gds.wording import shown

__all__ = ["json_option", "path_argument", "print_json", "print_table", "progress_bar", "rounds"]

path_argument = click.argument("path", type=click.Path(path_type=FilePath))
json_option = click.option("as_json", "--json", is_flag=True, help="Print one JSON object.")


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr that only a terminal sees."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def rounds(label: str) -> Iterator[Callable[[], None]]:
    """A spinner on stderr that only a terminal sees; it counts what was run."""
    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}, {task.completed} runs", markup=False),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(label, total=None)
        yield lambda: bar.advance(task)


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    try:
        text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    except UnicodeEncodeError:  # a path that is not UTF-8: the bytes as Python names them, escaped
        text = json.dumps(msgspec.to_builtins(value), indent=2)
    click.echo(text)


def print_table(texts: Sequence[tuple[str, ...]]) -> None:
    """Print rows of texts in columns, each row on a line."""
    rows = [tuple(map(shown, row)) for row in texts]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())
