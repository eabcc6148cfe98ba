"""What `diff` prints of leaves that differ."""

from collections.abc import Iterable

from orbax_gds.comparing import LeafDifference
from orbax_gds.terminal.table import table
from orbax_gds.wording import share_text

__all__ = ["comparison_text"]

_HEADS = ("leaf", "elements", "words changed", "share", "largest", "mean", "unit")


def comparison_text(leaves: Iterable[LeafDifference]) -> None:
    """Print a table of leaves, a row for each.

    Args:
        leaves: what differs, from `compare`.
    """
    table("Leaves that differ", _HEADS, map(_row, leaves), left=2)


def _row(leaf: LeafDifference) -> tuple[str, ...]:
    if leaf.what == "words":
        return (
            leaf.name,
            leaf.in_a or "",
            f"{leaf.n_changed:,} of {leaf.n_words:,}",
            share_text(leaf.n_changed, leaf.n_words),
            f"{leaf.largest:,}",
            f"{leaf.mean:,.2f}",
            leaf.unit if leaf.unit == "ULP" else "",
        )
    sides = " \N{RIGHTWARDS ARROW} ".join(filter(None, (leaf.in_a, leaf.in_b)))
    return leaf.name, sides, leaf.what, "", "", "", ""
