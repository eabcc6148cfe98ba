"""`orbax-gds diff`: what differs between two items."""

import sys
from pathlib import Path as FilePath

import click
import msgspec

from orbax_gds.commands.printing import print_json, progress_bar
from orbax_gds.comparing import Comparison, LeafDifference, compare
from orbax_gds.errors import Corrupt
from orbax_gds.listing import find_item
from orbax_gds.terminal import comparison_text
from orbax_gds.wording import counted_text, share_text, shown

__all__ = ["diff"]

_DIFFERENT, _TROUBLE = 1, 2


@click.command(short_help="Show which words of two steps differ, and by how much.")
@click.argument("a", type=click.Path(path_type=FilePath))
@click.argument("b", type=click.Path(path_type=FilePath))
@click.option("as_json", "--json", is_flag=True, help="Print one JSON object, of all leaves.")
@click.option("--top", type=int, help="Most leaves to list; all without it.")
def diff(a: FilePath, b: FilePath, as_json: bool, top: int | None) -> None:
    """Compare the words of A and B, and their custom metadata: items, steps with one, or roots.

    Of floats the difference is in ULP, steps from one word to the next. Exit status: 0 they are
    equal, 1 they differ, 2 one of them cannot be read.
    """
    places = find_item(a), find_item(b)
    try:
        with progress_bar("Comparing") as progress:
            comparison = compare(*places, progress=progress)
    except Corrupt as err:
        lines = map(shown, str(err).split("\n"))
        click.echo("orbax-gds: " + "\n".join(lines), err=True)
        sys.exit(_TROUBLE)
    if as_json:
        rows = [msgspec.to_builtins(leaf) for leaf in comparison.leaves]
        print_json(
            {
                "a": comparison.a,
                "b": comparison.b,
                "equal": comparison.equal,
                "custom_metadata_equal": comparison.custom_metadata_equal,
                "leaves": rows,
            }
        )
    else:
        _show(comparison, top)
    if not comparison.equal:
        sys.exit(_DIFFERENT)


def _show(comparison: Comparison, top: int | None) -> None:
    rows: list[LeafDifference] = comparison.differing
    if rows:
        comparison_text(rows if top is None else rows[: max(0, top)])
    if not comparison.custom_metadata_equal:
        click.echo("The custom metadata differs; `orbax-gds inspect` shows each.")
    n_words = sum(leaf.n_words for leaf in comparison.leaves)
    n_changed = sum(leaf.n_changed for leaf in comparison.leaves)
    leaves = counted_text(len(comparison.leaves), "leaf", "leaves")
    share = f"{n_changed:,} of {n_words:,} words compared ({share_text(n_changed, n_words)})"
    click.echo(f"{len(rows):,} of {leaves} differ; {share} changed.", err=True)
