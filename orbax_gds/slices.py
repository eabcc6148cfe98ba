"""Parts of a box that lie in one piece in memory, and where it is best cut into such parts."""

import math
from collections.abc import Iterator

from orbax_gds.plan import Indices, ShardBox

__all__ = ["cut_point", "slices_of"]


def cut_point(extent: Indices, wanted: int, unit: int) -> int:
    """Return a place near a wanted one to cut a box, so that few and simple boxes come out.

    Args:
        extent: of the box, in elements.
        wanted: number of elements before the cut, in C order; it may be outside the box.
        unit: of elements; the cut is at most half of it away from the wanted place if that is
            inside. A border of the slowest dimension is preferred, then one of the next.

    Returns:
        A number of elements, from 0 to that of the box. It does not fall where `wanted` rises.
    """
    n_elements = math.prod(extent)
    wanted = min(max(wanted, 0), n_elements)
    for axis in range(len(extent) + 1):
        step = math.prod(extent[axis:])
        is_last = step <= unit
        if is_last:
            step *= unit // step
        nearest = min((wanted + step // 2) // step * step, n_elements)
        if is_last or 2 * abs(nearest - wanted) <= unit:
            return nearest
    return wanted


def slices_of(box: ShardBox, begin: int, end: int) -> list[ShardBox]:
    """Return the boxes that hold some consecutive elements of a box, each in one piece of it.

    Args:
        box: in elements.
        begin, end: which of its elements, in C order.

    Returns:
        In order, at most 2 rank - 1 boxes.
    """
    return [
        ShardBox(
            leaf=box.leaf,
            start=tuple(map(sum, zip(box.start, start, strict=True))),
            extent=extent,
        )
        for start, extent in _slices(box.extent, begin, end)
    ]


def _slices(extent: Indices, begin: int, end: int) -> Iterator[tuple[Indices, Indices]]:
    """Yield start and extent: a part of the first row, the whole rows, a part of the last row."""
    below = math.prod(extent[1:])
    rows_begin = min(-(-begin // below) * below, end)
    rows_end = max(end // below * below, rows_begin)
    yield from _in_row(extent, begin, rows_begin)
    if rows_begin < rows_end:
        start = (rows_begin // below, *(0 for _ in extent[1:]))
        yield start, ((rows_end - rows_begin) // below, *extent[1:])
    yield from _in_row(extent, rows_end, end)


def _in_row(extent: Indices, begin: int, end: int) -> Iterator[tuple[Indices, Indices]]:
    if begin == end:
        return
    below = math.prod(extent[1:])
    row = begin // below
    for start, inner in _slices(extent[1:], begin - row * below, end - row * below):
        yield (row, *start), (1, *inner)
