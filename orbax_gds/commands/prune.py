"""`orbax-gds prune`: what saves have left that no step needs."""

import re
from pathlib import Path as FilePath
from typing import Any

import click
import msgspec

from orbax_gds.commands.printing import json_option, path_argument, print_json, print_table
from orbax_gds.pruning import DAY_SECS
from orbax_gds.pruning import prune as delete
from orbax_gds.wording import counted_text, shown, size_text

__all__ = ["prune"]

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": DAY_SECS}
_AGE = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


class _Age(click.ParamType):
    """A time such as 90m or 7d."""

    name = "AGE"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        match = _AGE.fullmatch(value)
        if match is None:
            self.fail(f"{value!r} is no age. Give a number with s, m, h or d, as 12h.", param, ctx)
        return float(match[1]) * _UNITS[match[2]]


@click.command(short_help="Find, and delete if asked, what no step needs.")
@path_argument
@json_option
@click.option(
    "--dry-run/--delete", "dry_run", default=True, show_default=True, help="Only list, or delete."
)
@click.option(
    "--unfinished", is_flag=True, help="Also saves that were never published. Stop running jobs."
)
@click.option(
    "--older-than",
    "min_age_secs",
    type=_Age(),
    default="24h",
    show_default=True,
    help="Leave what changed later, as it may belong to a save that runs.",
)
def prune(
    path: FilePath, as_json: bool, dry_run: bool, unfinished: bool, min_age_secs: float
) -> None:
    """Find what no step under PATH needs: stripes and bases that no manifest names, what saves
    left beside published items, and, if asked, saves that were never published.

    No published item, and nothing that one names, is ever deleted.
    """
    found = delete(path, dry_run=dry_run, unfinished=unfinished, min_age_secs=min_age_secs)
    n_bytes = sum(orphan.n_bytes for orphan in found)
    if as_json:
        rows = msgspec.to_builtins(found)
        print_json({"path": str(path), "dry_run": dry_run, "n_bytes": n_bytes, "orphans": rows})
    elif found:
        print_table([(each.kind, size_text(each.n_bytes), each.path) for each in found])
    if not found:
        left_out = [] if unfinished else ["saves never published (--unfinished)"]
        if min_age_secs:
            left_out.append("what changed lately (--older-than)")
        hint = f" Left out: {', '.join(left_out)}." if left_out else ""
        click.echo(shown(f"{path} holds nothing that no step needs.{hint}"), err=True)
    elif dry_run:
        entries = counted_text(len(found), "entry", "entries")
        click.echo(f"{entries}, {size_text(n_bytes)}; --delete would delete them.", err=True)
    else:
        entries = counted_text(len(found), "entry", "entries")
        click.echo(f"{entries} deleted, {size_text(n_bytes)}.", err=True)
