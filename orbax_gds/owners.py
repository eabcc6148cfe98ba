"""Which process stores a box that several hold: worked out alike by all, without talking."""

import heapq
import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence

import msgspec

from orbax_gds.plan import Indices, ShardBox

__all__ = ["Replicated", "owners"]


class Replicated(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A box of a leaf, on devices of several processes.

    Attributes:
        box: where in the leaf.
        shape: of the leaf.
        dtype: its name.
        n_bytes: of the words in the box.
        holders: numbers of the processes that hold it, ascending.
    """

    box: ShardBox
    shape: Indices
    dtype: str
    n_bytes: int
    holders: Indices

    @property
    def place(self) -> Hashable:
        """Equal for boxes whose words can follow from one another. FORMAT §4.2."""
        return self.shape, self.box.start, self.box.extent


def owners(boxes: Sequence[Replicated]) -> list[int]:
    """Choose the process that stores each box, among those that hold it.

    What may follow from one another stays together, as a process derives only from what it stores
    itself: parameters with their fp32 masters. Only content tells which those are, and no process
    sees that of the others; so the i-th leaf of one dtype goes where the i-th leaf of any other
    dtype goes that has the same place. As trees of parameters, masters and moments are of
    one structure, these are of one layer.

    Args:
        boxes: in the order of the leaves; each group of equal holders is shared by itself.

    Returns:
        The owner of each. Within a group of holders the bytes differ by no more than one lot, and
        a lot above a fair share is at most one leaf of each dtype.
    """
    groups: dict[Indices, list[int]] = defaultdict(list)
    for number, each in enumerate(boxes):
        groups[each.holders].append(number)
    found = [0] * len(boxes)
    for holders, numbers in groups.items():
        loads = [(0, process) for process in holders]
        fair_bytes = sum(boxes[i].n_bytes for i in numbers) // len(holders)
        lots = [
            (sum(boxes[i].n_bytes for i in lot), lot) for lot in _lots(boxes, numbers, fair_bytes)
        ]
        for n_bytes, lot in sorted(lots, key=lambda sized: -sized[0]):  # the rest fills the gaps
            load, process = loads[0]
            heapq.heapreplace(loads, (load + n_bytes, process))
            for number in lot:
                found[number] = process
    return found


def _lots(
    boxes: Sequence[Replicated], numbers: Sequence[int], fair_bytes: int
) -> Iterator[list[int]]:
    """Yield the boxes that stay together, in the order of the first of each.

    With n parameters of a place and 3 n of master and moments, those whose numbers are equal
    modulo n are of one layer, whatever their order; so it is with the greatest common divisor. A
    lot above a fair share is split into the i-th of each dtype.
    """
    places: dict[Hashable, dict[str, list[int]]] = defaultdict(dict)
    for number in numbers:
        each = boxes[number]
        places[each.place].setdefault(each.dtype, []).append(number)
    for dtypes in places.values():
        period = math.gcd(*map(len, dtypes.values()))
        rounds: list[dict[int, list[int]]] = [defaultdict(list) for _ in range(period)]
        for members in dtypes.values():
            for i, number in enumerate(members):
                rounds[i % period][i // period].append(number)
        for lot in rounds:
            whole = [number for each in lot.values() for number in each]
            if sum(boxes[number].n_bytes for number in whole) <= fair_bytes:
                yield whole
            else:
                yield from lot.values()
