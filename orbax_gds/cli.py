"""The command `orbax-gds`: look at checkpoints and check them, without jax.

Data goes to stdout, talk to stderr. Exit status: 0 all is well, 1 problems were found, 2 wrong
usage or nothing that could be read.
"""

import importlib.resources
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path as FilePath
from typing import Any, NoReturn

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from orbax_gds._version import __version__
from orbax_gds.errors import Corrupt, OgdsError
from orbax_gds.listing import find_item, is_item, list_items
from orbax_gds.manifest import FORMAT_VERSION
from orbax_gds.report import ItemReport, LeafReport, inspect
from orbax_gds.verifying import verify

PROBLEMS, UNREADABLE = 1, 2

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_path_argument = click.argument("path", type=click.Path(path_type=FilePath))
_json_option = click.option("as_json", "--json", is_flag=True, help="Print one JSON object.")


class _Group(click.Group):
    """Turns our errors into a message on stderr and an exit status."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except OgdsError as err:
            lines = [_shown(line) for line in str(err).split("\n")]
            click.echo("orbax-gds: " + "\n".join(lines), err=True)
            ctx.exit(PROBLEMS if isinstance(err, Corrupt) else UNREADABLE)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, package_name="orbax-gds")
def main() -> None:
    """Look at checkpoints of orbax_gds and check them.

    PATH is an item, a step with one item, or a checkpoint root, which means its latest step.
    """


@main.command()
@_path_argument
@_json_option
def ls(path: FilePath, as_json: bool) -> None:
    """List the steps and items under a root or a step, or the leaves of an item."""
    if is_item(path):
        report = inspect(path)
        if as_json:
            _print_json({"path": report.path, "leaves": report.leaves})
        else:
            _print_table([_leaf_row(leaf) for leaf in report.leaves])
        return
    entries = list_items(path)
    if as_json:
        _print_json({"path": str(path), "items": entries})
        return
    if not entries:
        click.echo(_shown(f"{path} holds no item of orbax_gds."), err=True)
    _print_table([(e.step or "", e.item, size_text(e.n_bytes), e.state) for e in entries])


@main.command("inspect")
@_path_argument
@_json_option
def inspect_command(path: FilePath, as_json: bool) -> None:
    """Show what an item holds, what it takes on disk, and how it was saved."""
    report = inspect(find_item(path))
    if as_json:
        _print_json({**msgspec.to_builtins(report), "ratio": report.ratio})
    else:
        _print_item(report)


@main.command("verify")
@_path_argument
@_json_option
def verify_command(path: FilePath, as_json: bool) -> None:
    """Read and decode every byte of an item; list all that is wrong."""
    item = find_item(path)
    with _progress(_shown(f"Verifying {item.name}")) as progress:
        problems = verify(item, progress=progress)
    if as_json:
        rows = [{**msgspec.to_builtins(p), "where": p.where} for p in problems]
        _print_json({"path": str(item), "ok": not problems, "problems": rows})
    else:
        for problem in problems:
            click.echo(_shown(f"{problem.where}: {problem.what}"))
    if problems:
        counted = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        done = f"{item}: {counted}. Restore another step or a copy of this one."
        click.echo(_shown(done), err=True)
        sys.exit(PROBLEMS)
    click.echo(_shown(f"{item}: every byte is as it was written."), err=True)


@main.command()
@_json_option
def spec(as_json: bool) -> None:
    """Print FORMAT.md, the normative description of the format."""
    text = importlib.resources.files("orbax_gds").joinpath("FORMAT.md").read_text("utf-8")
    if as_json:
        _print_json({"format": FORMAT_VERSION, "text": text})
    else:
        click.echo(text, nl=False)


@main.command()
@click.option("--keep", type=click.Path(path_type=FilePath), help="Leave the checkpoints here.")
@_json_option
def demo(keep: FilePath | None, as_json: bool) -> NoReturn:
    """Train, be killed while saving, resume, and prove the state bit-identical."""
    try:
        from orbax_gds.demo import main as run  # an optional extra, and it needs jax
    except ImportError as err:
        message = f"the demo needs more packages ({err}): pip install 'orbax_gds[demo]'"
        raise click.UsageError(message) from err
    sys.exit(run(keep=keep, as_json=as_json))


def size_text(n_bytes: int) -> str:
    """Return a size with an IEC unit.

    Example:
        >>> size_text(1536)
        '1.5 KiB'
    """
    size, unit = float(n_bytes), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.1f} {_UNITS[unit]}" if unit else f"{n_bytes} B"


@contextmanager
def _progress(label: str) -> Iterator[Callable[[int, int], None]]:
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


def _print_json(value: Any) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


def _print_table(texts: Sequence[tuple[str, ...]]) -> None:
    rows = [tuple(map(_shown, row)) for row in texts]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


def _leaf_row(leaf: LeafReport) -> tuple[str, ...]:
    if leaf.dtype is None or leaf.shape is None:
        return leaf.name, "", leaf.type, "", ""
    extents = ",".join(map(str, leaf.shape))
    return (
        leaf.name,
        f"{leaf.dtype}[{extents}]",
        leaf.type if leaf.prng is None else f"PRNG key {leaf.prng}",
        size_text(leaf.raw_bytes),
        size_text(leaf.stored_bytes),
    )


def _print_item(report: ItemReport) -> None:
    dtypes: dict[str, list[int]] = {}
    for leaf in report.leaves:
        if leaf.dtype is not None:
            sums = dtypes.setdefault(leaf.dtype, [0, 0, 0])
            for i, n in enumerate((1, leaf.raw_bytes, leaf.stored_bytes)):
                sums[i] += n
    rows: list[tuple[str, ...]] = [
        ("path", report.path),
        ("writer", f"{report.writer}, format {report.format}"),
        ("leaves", str(len(report.leaves))),
        ("in memory", size_text(report.raw_bytes)),
        ("on disk", f"{size_text(report.stored_bytes)} (1 : {report.ratio:.3f})"),
    ]
    rows += [
        (f"stripe {s.file}", f"{size_text(s.n_bytes)}, {s.n_chunks} chunks, {s.n_shards} shards")
        for s in report.stripes
    ]
    rows += [
        (f"codec {c.codec}", _share(c.raw_bytes, c.stored_bytes, f"{c.n_chunks} chunks"))
        for c in report.codecs
    ]
    rows += [
        (f"dtype {name}", _share(raw, stored, f"{n} leaves"))
        for name, (n, raw, stored) in sorted(dtypes.items())
    ]
    rows += [(f"option {name}", str(value)) for name, value in report.options.items()]
    if report.custom_metadata is not None:
        rows.append(("custom metadata", msgspec.json.encode(report.custom_metadata).decode()))
    _print_table(rows)


def _share(raw_bytes: int, stored_bytes: int, counted: str) -> str:
    return f"{size_text(raw_bytes)} in {size_text(stored_bytes)}, {counted}"


def _shown(text: str) -> str:
    """Text on one line: what a terminal would obey or hide is escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
