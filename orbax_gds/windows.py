"""Parts of leaves that are held at once, where a leaf may be larger than memory."""

import math
from collections.abc import Iterator

from orbax_gds.plan import ShardBox

__all__ = ["split"]


def split(box: ShardBox, most_elements: int, step: int = 1) -> Iterator[ShardBox]:
    """Cut a box along its first dimensions, so that each part lies in one piece of it.

    Args:
        box: to cut; an empty one is one part.
        most_elements: of a part.
        step: where a dimension is cut, parts begin at multiples of this within the box, if as many
            fit.

    Yields:
        The parts in C order: their words, one after another, are those of the box.

    Example:
        >>> [part.extent for part in split(ShardBox(leaf=0, start=(0, 0), extent=(5, 4)), 8)]
        [(2, 4), (2, 4), (1, 4)]
    """
    n_elements = box.n_elements
    if n_elements <= max(1, most_elements):
        yield box
        return
    axis = next(axis for axis, n in enumerate(box.extent) if n > 1)
    rows = max(1, most_elements // math.prod(box.extent[axis + 1 :]))
    rows = rows // step * step if rows >= step else rows
    for at in range(0, box.extent[axis], rows):
        n = min(rows, box.extent[axis] - at)
        start = (*box.start[:axis], box.start[axis] + at, *box.start[axis + 1 :])
        extent = (*box.extent[:axis], n, *box.extent[axis + 1 :])
        yield from split(ShardBox(leaf=box.leaf, start=start, extent=extent), most_elements, step)
