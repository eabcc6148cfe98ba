"""`orbax-gds verify`: read and decode every byte of an item, or of all steps of a root."""

import sys
from collections.abc import Sequence
from pathlib import Path as FilePath
from typing import Any

import click
import msgspec

from orbax_gds.commands.printing import json_option, path_argument, print_json, progress_bar
from orbax_gds.errors import NotFound, OgdsError
from orbax_gds.listing import Entry, find_item, list_items
from orbax_gds.manifest import MANIFEST_NAME
from orbax_gds.verifying import Problem, SoundStripes
from orbax_gds.verifying import verify as check
from orbax_gds.wording import counted_text, shown

__all__ = ["verify"]

_PROBLEMS = 1
_REMEDY = "Restore another step or a copy of this one."


@click.command(short_help="Read and decode every byte of an item, or of all steps.")
@path_argument
@json_option
@click.option(
    "--all", "every", is_flag=True, help="All published items under PATH, not the latest step's."
)
def verify(path: FilePath, as_json: bool, every: bool) -> None:
    """Read and decode every byte of an item; list all that is wrong.

    Of the stripes of earlier steps no frames are read but those that the item needs. With --all
    every step is checked so; saves that were never published are left out.
    """
    if every:
        _verify_all(path, as_json)
        return
    item = find_item(path)
    problems = _checked(item, None)
    if as_json:
        print_json({"path": str(item), "ok": not problems, "problems": _rows(problems)})
    else:
        for problem in problems:
            click.echo(shown(f"{problem.where}: {problem.what}"))
    if problems:
        counted = counted_text(len(problems), "problem", "problems")
        click.echo(shown(f"{item}: {counted}. {_REMEDY}"), err=True)
        sys.exit(_PROBLEMS)
    click.echo(shown(f"{item}: every byte it needs is as it was written."), err=True)


def _checked(item: FilePath, sound: SoundStripes | None) -> list[Problem]:
    with progress_bar(shown(f"Verifying {item.name}")) as progress:
        return check(item, progress=progress, sound=sound)


def _rows(problems: Sequence[Problem]) -> list[dict[str, Any]]:
    return [{**msgspec.to_builtins(problem), "where": problem.where} for problem in problems]


def _verify_all(path: FilePath, as_json: bool) -> None:
    entries = list_items(path)
    published = [entry for entry in entries if entry.state != "unfinished"]
    if not published:
        raise NotFound(
            f"{path} holds no published item. `orbax-gds ls {path}` lists what is there."
        )
    sound = SoundStripes()  # earlier steps come first, and their stripes are decoded then
    found: list[tuple[FilePath, list[Problem]]] = []
    for entry in published:
        item = FilePath(entry.path)
        problems = _all_problems(item, sound)
        if problems and not (item / MANIFEST_NAME).exists():
            click.echo(shown(f"{item}: deleted meanwhile."), err=True)
            continue
        found.append((item, problems))
        if not as_json:
            for problem in problems:
                click.echo(shown(f"{item}: {problem.where}: {problem.what}"))
    _conclude(path, as_json, found, entries)


def _all_problems(item: FilePath, sound: SoundStripes) -> list[Problem]:
    """Return what is wrong with an item; one that cannot be read hides none that come later."""
    try:
        return _checked(item, sound)
    except OgdsError as err:
        return [Problem(file=MANIFEST_NAME, what=str(err))]


def _conclude(
    path: FilePath,
    as_json: bool,
    found: Sequence[tuple[FilePath, list[Problem]]],
    entries: Sequence[Entry],
) -> None:
    bad = [item for item, problems in found if problems]
    if as_json:
        items = [
            {"path": str(item), "ok": not problems, "problems": _rows(problems)}
            for item, problems in found
        ]
        print_json({"path": str(path), "ok": not bad, "items": items})
    if n_unfinished := sum(entry.state == "unfinished" for entry in entries):
        saves = counted_text(n_unfinished, "save", "saves")
        click.echo(f"Left out: {saves}, never published.", err=True)
    items = counted_text(len(found), "item", "items")
    if bad:
        n_problems = sum(len(problems) for _, problems in found)
        problems = counted_text(n_problems, "problem", "problems")
        done = f"{path}: {problems} in {len(bad):,} of {items}. Restore another step or a copy."
        click.echo(shown(done), err=True)
        sys.exit(_PROBLEMS)
    click.echo(shown(f"{path}: every byte that {items} need is as it was written."), err=True)
