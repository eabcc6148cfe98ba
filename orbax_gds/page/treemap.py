"""Squarified treemaps: rectangles of given areas, as near to squares as they get.

Bruls, Huizing and van Wijk, Squarified Treemaps, 2000.
"""

import dataclasses
from collections.abc import Sequence

__all__ = ["Rectangle", "squarify"]


@dataclasses.dataclass(frozen=True)
class Rectangle:
    """A rectangle: left, top, width and height."""

    x: float
    y: float
    width: float
    height: float

    @property
    def area(self) -> float:
        """Width times height."""
        return self.width * self.height


def squarify(weights: Sequence[float], within: Rectangle) -> list[Rectangle]:
    """Cut a rectangle into one for each weight, with areas in the same proportions.

    Args:
        weights: above 0; the cells are squarest where they descend.
        within: what is cut.

    Returns:
        Rectangles in the order of the weights; together they fill `within` without overlap.

    Example:
        >>> squarify([2, 1, 1], Rectangle(0, 0, 4, 2))[0]
        Rectangle(x=0, y=0, width=2.0, height=2.0)
    """
    scale = within.area / sum(weights) if weights else 0.0
    areas = [weight * scale for weight in weights]
    cells: list[Rectangle] = []
    left, at = within, 0
    while at < len(areas):
        side = min(left.width, left.height)
        end = at + 1
        total = areas[at]
        worst = _worst(areas[at], areas[at], total, side)
        while end < len(areas):
            longer = total + areas[end]
            low, high = min(areas[at : end + 1]), max(areas[at : end + 1])
            if (found := _worst(low, high, longer, side)) > worst:
                break
            worst, total, end = found, longer, end + 1
        row, left = _lay(areas[at:end], total, left)
        cells += row
        at = end
    return cells


def _worst(low: float, high: float, total: float, side: float) -> float:
    """Return the greatest ratio of sides in a row with these areas along a side."""
    if min(low, side) <= 0:
        return float("inf")
    return max(side * side * high / (total * total), total * total / (side * side * low))


def _lay(
    areas: Sequence[float], total: float, within: Rectangle
) -> tuple[list[Rectangle], Rectangle]:
    """Lay a row along the shorter side; return its cells and what is left."""
    upright = within.width >= within.height
    side = within.height if upright else within.width
    depth = min(total / side if side else 0.0, max(within.width, within.height))
    cells, at = [], 0.0
    for area in areas:
        length = side * area / total if total else 0.0
        if upright:
            cells.append(Rectangle(within.x, within.y + at, depth, length))
        else:
            cells.append(Rectangle(within.x + at, within.y, length, depth))
        at += length
    x, y, width, height = within.x, within.y, within.width, within.height
    if upright:
        return cells, Rectangle(x + depth, y, width - depth, height)
    return cells, Rectangle(x, y + depth, width, height - depth)
