"""Pieces of the pictures that benchmarks draw as SVG."""

from xml.sax.saxutils import escape

OURS_COLOUR, PEER_COLOUR, QUIET = "#1f5fbf", "#c4541c", "#888"


def line(x1: float, y1: float, x2: float, y2: float) -> str:
    """Return a straight line in the colour of what is around it."""
    return f'<path d="M{x1:.0f} {y1:.0f}L{x2:.0f} {y2:.0f}"/>'


def text(
    x: float, y: float, words: str, size: int, *, anchor: str = "start", colour: str = "#000"
) -> str:
    """Return a line of text; its usual size is 10, its usual anchor the start."""
    plain = (("font-size", str(size), "10"), ("text-anchor", anchor, "start"))
    given = (*plain, ("fill", colour, "#000"))
    more = "".join(f' {name}="{value}"' for name, value, usual in given if value != usual)
    return f'<text x="{x:.0f}" y="{y:.0f}"{more}>{escape(words)}</text>'
