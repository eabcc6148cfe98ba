"""One table on stdout, as wide as the terminal."""

import sys
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from orbax_gds.wording import shown

__all__ = ["console", "table"]

_NO_TERMINAL_COLUMNS = 1000  # chosen: a line of a file or a pipe is never cut
_GAP = 3  # rich puts so much between columns
_LEAST_TEXT_WIDTH = 12  # chosen: shorter lines of a name are hard to read


def table(
    title: str,
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    left: int = 1,
    optional: int = 0,
) -> None:
    """Print a table on stdout.

    Args:
        title: stands above it.
        heads: one a column.
        rows: cells as text; what a terminal would obey is escaped.
        left: columns from the left that hold words; the others hold numbers, to the right.
        optional: columns from the right that are left out where the terminal is too narrow.
    """
    out, cells = console(), [[shown(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    if optional and sum(widths) + _GAP * len(widths) > out.width:
        heads, title = heads[:-optional], f"{title} (a wider terminal shows bits by plane)"
    drawn = Table(
        title=Text(shown(title)),
        box=box.SIMPLE_HEAD,
        title_justify="left",
        title_style="bold",
        show_edge=False,
        pad_edge=False,
    )
    for column, head in enumerate(heads):
        is_text = column < left
        drawn.add_column(
            Text(head),
            justify="left" if is_text else "right",
            no_wrap=not is_text,
            overflow="fold",
            min_width=min(widths[column], _LEAST_TEXT_WIDTH) if is_text else widths[column],
        )
    for row in cells:
        drawn.add_row(*(Text(cell) for cell in row[: len(heads)]))
    out.print()
    out.print(drawn)


def console() -> Console:
    """Return stdout for rich: as wide as the terminal, or as any line where there is none."""
    out = Console(file=sys.stdout, highlight=False)
    return out if out.is_terminal else Console(file=sys.stdout, width=_NO_TERMINAL_COLUMNS)
