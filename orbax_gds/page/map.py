"""The treemap of a page: stored bytes by leaf, grouped by the first key in which paths differ."""

import dataclasses
from collections.abc import Sequence

from orbax_gds.page.markup import Markup, tag
from orbax_gds.page.treemap import Rectangle, squarify
from orbax_gds.report import ItemReport, LeafReport
from orbax_gds.wording import leaf_text, ratio_text, shares_text, shown, size_text

__all__ = ["LIGHT_FILLS", "main_codec", "treemap"]

_WIDTH, _HEIGHT = 1100.0, 540.0
_MOST_CELLS = 800  # chosen: smaller leaves would be dots, and the page heavy
_LABEL_HEIGHT = 20.0
_LETTER_WIDTH = 7.0  # chosen: a mean letter of 12 pixels; longer names are cut
LIGHT_FILLS = ("zstd", "other")  # fills that carry dark text


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Cell:
    name: str
    detail: str
    n_bytes: int
    codec: str


def main_codec(leaf: LeafReport) -> str:
    """Return the codec of most of a leaf's words; "derived" where none is stored."""
    if not leaf.codecs:
        return "derived" if leaf.derived else "other"
    return max(leaf.codecs, key=lambda share: share.raw_bytes).codec


def treemap(report: ItemReport) -> Markup:
    """Draw the stored bytes of an item: a cell a leaf, its colour the codec of most of it.

    Args:
        report: of an item of which at least one leaf is stored.
    """
    stored = sorted(
        (leaf for leaf in report.leaves if leaf.stored_bytes), key=lambda leaf: -leaf.stored_bytes
    )
    total = sum(leaf.stored_bytes for leaf in stored)
    groups = _groups(stored[:_MOST_CELLS], stored[_MOST_CELLS:])
    frames = squarify([_sum(cells) for _, cells in groups], Rectangle(0, 0, _WIDTH, _HEIGHT))
    parts = []
    for (name, cells), frame in zip(groups, frames, strict=True):
        inner = frame
        if name and frame.width > 60 and frame.height > 3 * _LABEL_HEIGHT:
            inner = Rectangle(
                frame.x, frame.y + _LABEL_HEIGHT, frame.width, frame.height - _LABEL_HEIGHT
            )
            text = _cut(f"{name} · {size_text(_sum(cells))}", frame.width - 6)
            parts.append(tag("text", text, x=frame.x + 3, y=frame.y + 14, class_="group"))
        boxes = squarify([cell.n_bytes for cell in cells], inner)
        parts += [_drawn(cell, box) for cell, box in zip(cells, boxes, strict=True)]
    return tag(
        "svg",
        *parts,
        viewBox=f"0 0 {_WIDTH:.0f} {_HEIGHT:.0f}",
        class_="map",
        role="img",
        aria_label=f"Stored bytes by leaf: {len(stored)} in {size_text(total)}, the largest "
        f"{stored[0].name} with {size_text(stored[0].stored_bytes)}",
    )


def _groups(
    leaves: Sequence[LeafReport], rest: Sequence[LeafReport]
) -> list[tuple[str, list[_Cell]]]:
    """Group leaves by the first key in which their paths differ, the largest first."""
    keys = [tuple(str(value) for _, value in leaf.path) for leaf in leaves]
    depth = 0
    while keys and all(len(key) > depth + 1 for key in keys) and len({k[depth] for k in keys}) == 1:
        depth += 1
    groups: dict[str, list[_Cell]] = {}
    for key, leaf in zip(keys, leaves, strict=True):
        name = "/".join(key[: depth + 1]) if len(key) > depth + 1 else ""
        short = "/".join(key[depth + 1 :] if name else key[depth:]) or leaf.name
        groups.setdefault(name, []).append(_cell(leaf, short))
    if rest:
        n_bytes = sum(leaf.stored_bytes for leaf in rest)
        text = f"{len(rest)} smaller leaves"
        cell = _Cell(
            name=text, detail=f"{text}\n{size_text(n_bytes)}", n_bytes=n_bytes, codec="other"
        )
        groups.setdefault("", []).append(cell)
    return sorted(groups.items(), key=lambda group: -_sum(group[1]))


def _cell(leaf: LeafReport, short: str) -> _Cell:
    detail = (
        f"{shown(leaf.name)}\n{leaf_text(leaf)}\n{size_text(leaf.raw_bytes)} in "
        f"{size_text(leaf.stored_bytes)}, 1 : {ratio_text(leaf.ratio)}\n{shares_text(leaf.codecs)}"
    )
    return _Cell(name=short, detail=detail, n_bytes=leaf.stored_bytes, codec=main_codec(leaf))


def _drawn(cell: _Cell, box: Rectangle) -> Markup:
    # A tooltip may have lines: each is escaped by itself.
    title = tag("title", *_lines(cell.detail))
    parts = [
        tag("rect", x=box.x, y=box.y, width=box.width, height=box.height, rx=3, class_=cell.codec)
    ]
    if box.width > 44 and box.height > 22:
        parts.append(tag("text", _cut(cell.name, box.width - 10), x=box.x + 6, y=box.y + 16))
        size = size_text(cell.n_bytes)
        if box.height > 40 and size == _cut(size, box.width - 10):  # no number is cut
            parts.append(tag("text", size, x=box.x + 6, y=box.y + 31, class_="size"))
    return tag("g", title, *parts, class_="onlight" if cell.codec in LIGHT_FILLS else None)


def _lines(text: str) -> list[str]:
    lines: list[str] = []
    for line in text.split("\n"):
        lines += [Markup("&#10;"), line] if lines else [line]
    return lines


def _cut(text: str, width: float) -> str:
    """Return the end of a name that fits: the last keys say most."""
    room = int(width / _LETTER_WIDTH)
    return text if len(text) <= room else "…" + text[len(text) - room + 1 :] if room > 1 else ""


def _sum(cells: Sequence[_Cell]) -> int:
    return sum(cell.n_bytes for cell in cells)
