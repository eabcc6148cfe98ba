"""The command `orbax-gds`: look at checkpoints, check, compare, convert and tidy them, without jax.

Data goes to stdout, talk to stderr. Exit status: 0 all is well, 1 problems were found, 2 wrong
usage, nothing that could be read, or a defect of ours.
"""

import importlib.resources
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Any, NoReturn

import click
import msgspec

from orbax_gds import kept_reports
from orbax_gds._version import __version__
from orbax_gds.bench.lineup import LineUp, measure_streams
from orbax_gds.bench.lineup import total as sum_up
from orbax_gds.bench.sources import Streams, open_sources, read_streams
from orbax_gds.bench.timing import keep_freed_memory
from orbax_gds.commands.convert import convert
from orbax_gds.commands.diff import diff
from orbax_gds.commands.printing import (
    json_option,
    path_argument,
    print_json,
    print_table,
    progress_bar,
    rounds,
)
from orbax_gds.commands.prune import prune
from orbax_gds.commands.verify import verify
from orbax_gds.commit import io_context
from orbax_gds.dtypes import dtype_by_name
from orbax_gds.errors import Corrupt, NotFound, OgdsError
from orbax_gds.listing import Entry, find_item, is_item, list_items
from orbax_gds.manifest import FORMAT_VERSION
from orbax_gds.options import parse_size
from orbax_gds.page import page
from orbax_gds.report import ItemReport, LeafReport, inspect
from orbax_gds.terminal import item_text, line_up_text, save_report_text
from orbax_gds.wording import derived_text, leaf_text, shown, size_text

PROBLEMS, UNREADABLE = 1, 2
_DEFECT = "This is a defect of orbax-gds; `python -X dev -m orbax_gds` shows where."
_FEW_BYTES = 16 << 10  # chosen: below, a call costs more than coding


class _SampleSize(click.ParamType):
    """A size such as 64MiB, or `all`."""

    name = "SIZE"

    def convert(self, value: Any, param: Any, ctx: Any) -> int | None:
        if value is None or value == "all":
            return None
        try:
            return parse_size(value)
        except OgdsError as err:
            self.fail(str(err), param, ctx)


class _Group(click.Group):
    """Turns errors into a message on stderr and an exit status."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except OgdsError as err:
            lines = [shown(line) for line in str(err).split("\n")]
            click.echo("orbax-gds: " + "\n".join(lines), err=True)
            ctx.exit(PROBLEMS if isinstance(err, Corrupt) else UNREADABLE)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise  # click's own
        except Exception as err:  # 1 would say that problems were found
            if sys.flags.dev_mode:
                traceback.print_exc()
            click.echo(f"orbax-gds: {shown(repr(err))}. {_DEFECT}", err=True)
            ctx.exit(UNREADABLE)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, package_name="orbax-gds")
def main() -> None:
    """Look at checkpoints of orbax_gds; check, compare, convert and tidy them.

    PATH is an item, a step with one item, or a checkpoint root, which means its latest step.

    Exit status: 0 all is well, 1 problems were found, 2 wrong usage or nothing that could be read.
    """


@main.command(short_help="List steps and items, or the leaves of an item.")
@path_argument
@json_option
def ls(path: FilePath, as_json: bool) -> None:
    """List the steps and items under a root or a step, or the leaves of an item.

    Of an item: its bytes, whether it is full or a delta of a step (or of an id, where that step is
    gone), the bytes that it alone has and those that other steps have, too.
    """
    if is_item(path):
        report = inspect(path)
        if as_json:
            print_json({"path": report.path, "leaves": report.leaves})
        else:
            print_table([_leaf_row(leaf) for leaf in report.leaves])
        return
    entries = list_items(path)
    if as_json:
        print_json({"path": str(path), "items": entries})
    if not entries:
        click.echo(shown(f"{path} holds no item of orbax_gds."), err=True)
        sys.exit(UNREADABLE)
    if as_json:
        return
    print_table([_entry_row(entry) for entry in entries])
    for reason in filter(None, (entry.reason for entry in entries)):
        click.echo(shown(f"Broken: {reason}"), err=True)


@main.command("inspect", short_help="Show what an item holds and how it was coded.")
@path_argument
@json_option
@click.option(
    "--sample",
    "sample_bytes",
    type=_SampleSize(),
    default="64MiB",
    show_default=True,
    help="Read so much of the frames for bits a plane and exponents; 'all', or 0 for none.",
)
@click.option("--top", type=int, default=20, show_default=True, help="Most leaves to list.")
@click.option(
    "--html", type=click.Path(path_type=FilePath, dir_okay=False), help="Write a page to this file."
)
def inspect_command(
    path: FilePath, as_json: bool, sample_bytes: int | None, top: int, html: FilePath | None
) -> None:
    """Show what an item holds, what it takes on disk, and how it was coded."""
    item = find_item(path)
    with progress_bar(shown(f"Reading {item.name}")) as progress:
        report = inspect(item, sample_bytes=sample_bytes, progress=progress)
    if html is not None:
        content = page(report).encode()
        with io_context(html, "write"):
            html.write_bytes(content)
        click.echo(shown(f"{html}: a page of {size_text(len(content))}."), err=True)
    if as_json:
        print_json(_item_json(report))
    elif html is None:
        item_text(report, n_leaves=max(0, top))


@main.command("report", short_help="Show what the save of an item took.")
@path_argument
@json_option
def report_command(path: FilePath, as_json: bool) -> None:
    """Show what the save of an item took: seconds by stage, bytes by codec, and the path used.

    Each process has left its own report beside its stripe, before the item was published: what
    publication took is in none.
    """
    item = find_item(path)
    kept = kept_reports.read(item)
    if as_json:
        rows = {"reports": kept.reports, "problems": kept.problems}
        print_json({"path": str(item), **rows})
    elif kept.reports:
        save_report_text(kept.reports)
    for problem in kept.problems:
        click.echo(shown(f"{item}: {problem}. The item itself does not need it."), err=True)
    if kept.problems:
        sys.exit(PROBLEMS)


main.add_command(convert)
main.add_command(diff)
main.add_command(prune)
main.add_command(verify)


@main.group()
def bench() -> None:
    """Measure on this machine, with your own data."""


@bench.command("codec", short_help="Run every codec and installed peer on your arrays.")
@path_argument
@json_option
@click.option(
    "--threads",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Threads of each codec, and of memcpy; some peers use one whatever is given.",
)
@click.option(
    "--limit",
    "limit_bytes",
    type=_SampleSize(),
    default="64MiB",
    show_default=True,
    help="Code so much of the data, spread evenly over it; 'all' for the whole. Takes up to 16 "
    "times as much memory, of which zipnn alone takes half.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0),
    default=20,
    show_default=True,
    help="Begin no repetition after this time.",
)
@click.option("--dtype", "dtypes", multiple=True, help="Only this dtype; may be repeated.")
@click.option(
    "--view",
    "views",
    multiple=True,
    metavar="HELD=DTYPE",
    help="Take the words of a dtype for another, such as uint16=bfloat16; may be repeated.",
)
def bench_codec(
    path: FilePath,
    as_json: bool,
    threads: int,
    limit_bytes: int | None,
    seconds: float,
    dtypes: tuple[str, ...],
    views: tuple[str, ...],
) -> None:
    """Run every codec, and the peers that are installed, on the arrays of FILE or STEP.

    PATH is a .npy, .npz or .safetensors file, or a saved step or item. The front holds what no
    other row beats in ratio and both speeds.
    """
    opened, sources, left_out = open_sources(path, _views(views))
    with opened:
        streams = read_streams(sources, limit_bytes=limit_bytes, dtypes=dtypes)
    streams, few = _worth_timing(streams)
    for line in (*left_out, *few):
        click.echo(shown(f"left out: {line}"), err=True)
    if not streams:
        raise NotFound(f"{path} holds no words to code{' of these dtypes' if dtypes else ''}.")
    keep_freed_memory()
    parts = list(_measured(streams, threads, seconds))
    line_ups = [*parts, sum_up(parts)] if len(parts) > 1 else parts
    if as_json:
        print_json({"path": str(path), "threads": threads, "line_ups": line_ups})
        return
    for line_up in line_ups:
        line_up_text(line_up)


def _worth_timing(streams: list[Streams]) -> tuple[list[Streams], list[str]]:
    """Leave out the dtypes of which there is next to nothing, unless there are no others."""
    worth = [one for one in streams if one.n_bytes >= _FEW_BYTES] or streams
    few = [f"{s.dtype}: {size_text(s.of_bytes)} are too few" for s in streams if s not in worth]
    return worth, few


def _measured(streams: list[Streams], threads: int, seconds: float) -> Iterator[LineUp]:
    """Measure one dtype after the other, each for its part of the time."""
    n_bytes = sum(one.n_bytes for one in streams)
    for one in streams:
        with rounds(shown(f"Coding {one.dtype}, {size_text(one.n_bytes)}")) as progress:
            budget_secs = seconds * one.n_bytes / n_bytes
            yield measure_streams(
                one, n_threads=threads, budget_secs=budget_secs, progress=progress
            )


def _views(texts: tuple[str, ...]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for held, equals, dtype in pairs:
        if not (held and equals and dtype):
            raise click.UsageError(f"--view {held}{equals}{dtype}: write it as uint16=bfloat16.")
        dtype_by_name(dtype)
    return {held: dtype for held, _, dtype in pairs}


@main.command()
@json_option
def spec(as_json: bool) -> None:
    """Print FORMAT.md, the normative description of the format."""
    text = importlib.resources.files("orbax_gds").joinpath("FORMAT.md").read_text("utf-8")
    if as_json:
        print_json({"format": FORMAT_VERSION, "text": text})
    else:
        click.echo(text, nl=False)


@main.command(short_help="Train, be killed while saving, resume, compare.")
@click.option("--keep", type=click.Path(path_type=FilePath), help="Leave the checkpoints here.")
@json_option
def demo(keep: FilePath | None, as_json: bool) -> NoReturn:
    """Train, be killed while saving, resume, and prove the state bit-identical."""
    try:
        from orbax_gds.demo import main as run  # an optional extra, and it needs jax
    except ImportError as err:
        message = f"the demo needs more packages ({err}): pip install 'orbax_gds[demo]'"
        raise click.UsageError(message) from err
    sys.exit(run(keep=keep, as_json=as_json))


def _item_json(report: ItemReport) -> dict[str, Any]:
    """The report with the ratios, which are properties."""
    rows = msgspec.to_builtins(report)
    rows["ratio"] = report.ratio
    for name in ("leaves", "dtypes"):
        for row, one in zip(rows[name], getattr(report, name), strict=True):
            row["ratio"] = one.ratio
    return rows


def _entry_row(entry: Entry) -> tuple[str, ...]:
    kind = entry.kind or ""
    if entry.base is not None:
        kind = f"delta of {entry.base}, chain of {entry.chain_length}"
    return (
        entry.step or "",
        entry.item,
        size_text(entry.n_bytes),
        kind,
        f"{size_text(entry.own_bytes)} own",
        f"{size_text(entry.shared_bytes)} shared",
        entry.state,
    )


def _leaf_row(leaf: LeafReport) -> tuple[str, ...]:
    if leaf.dtype is None or leaf.shape is None:
        return leaf.name, "", leaf.type, "", "", ""
    return (
        leaf.name,
        leaf_text(leaf),
        leaf.type if leaf.prng is None else f"PRNG key {leaf.prng}",
        size_text(leaf.raw_bytes),
        size_text(leaf.stored_bytes),
        derived_text(leaf),
    )
