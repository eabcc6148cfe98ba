"""Which process stores what of a box that several hold: worked out alike by all, without talking.

Small boxes stay whole. Large ones of a kind are laid on one line, and each process stores a stretch
of it: so n processes cut n - 1 times, however many boxes there are.
"""

import heapq
import itertools
import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence

import msgspec

from orbax_gds.plan import Indices, ShardBox
from orbax_gds.slices import cut_point, slices_of

__all__ = ["Replicated", "divided"]

_UNIT_BYTES = 1 << 20  # chosen: a chunk; smaller slices would gain less than their frames cost
_CUT_FROM_BYTES = 2 * _UNIT_BYTES  # chosen: below, halves would differ by more than they gain

_Lot = list[int]  # numbers of boxes that stay together
_Sized = tuple[int, _Lot]  # its bytes first


class Replicated(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A box of a leaf, on devices of several processes.

    Attributes:
        box: where in the leaf.
        shape: of the leaf.
        dtype: its name.
        n_bytes: of the words in the box.
        holders: numbers of the processes that hold it, ascending.
        can_cut: whether a part of the box can be taken without all of it.
    """

    box: ShardBox
    shape: Indices
    dtype: str
    n_bytes: int
    holders: Indices
    can_cut: bool = True

    @property
    def place(self) -> Hashable:
        """Equal for boxes whose words can follow from one another. FORMAT §4.2."""
        return self.shape, self.box.start, self.box.extent


def divided(
    boxes: Sequence[Replicated], held: Mapping[Indices, int]
) -> Iterator[tuple[ShardBox, int]]:
    """Divide boxes among the processes that hold them.

    What may follow from one another stays together and is cut alike, as a process derives only
    from what it stores itself: parameters with their fp32 masters. Only content tells which those
    are, and no process sees that of the others; so the i-th leaf of one dtype goes where the i-th
    leaf of any other dtype goes that has the same place. As trees of parameters, masters and
    moments are of one structure, these are of one layer. As only content tells, too, how much of
    such a lot is stored, all get as much of the lots of each kind.

    Args:
        boxes: in the order of the leaves; each group of equal holders is shared by itself.
        held: bytes in all boxes of the job, by who holds them; of those with one holder, too.

    Yields:
        Boxes, or slices of them that lie in one piece in memory, and the process that stores each.
        Who has least gets most: no process is brought above the level that all bytes of a group
        come to by more than 2 MiB, if all can be cut.
    """
    groups: dict[Indices, list[int]] = defaultdict(list)
    for number, each in enumerate(boxes):
        groups[each.holders].append(number)
    stored = _stored_before(held) if groups else {}
    for holders, numbers in groups.items():
        loads = stored[holders]
        rooms = _rooms(list(loads.values()), held[holders])
        whole, cut = _whole_and_cut(boxes, numbers, max(rooms))
        for lots in sorted(whole, key=lambda lots: -max(lots)[0]):
            yield from _shared_whole(boxes, lots, loads)
        for lots in cut:
            yield from _shared_in_slices(boxes, lots, loads)


def _stored_before(held: Mapping[Indices, int]) -> dict[Indices, dict[int, int]]:
    """Return for each group of holders how many bytes each of them stores before it is shared.

    That is what it alone holds, and of the groups of fewer. These are taken to be divided without
    a remainder, as nobody sees the boxes of all.
    """
    loads: dict[int, int] = defaultdict(int)
    found: dict[Indices, dict[int, int]] = {}
    for holders in sorted(held, key=lambda holders: (len(holders), holders)):
        found[holders] = {process: loads[process] for process in holders}
        rooms = _rooms(list(found[holders].values()), held[holders])
        for process, room in zip(holders, rooms, strict=True):
            loads[process] += room
    return found


def _whole_and_cut(
    boxes: Sequence[Replicated], numbers: Sequence[int], most_bytes: int
) -> tuple[list[list[_Sized]], list[list[_Sized]]]:
    """Return the lots that stay whole, and those that are cut, with their sizes: of each kind."""
    whole: dict[Hashable, list[_Sized]] = defaultdict(list)
    cut: dict[Hashable, list[_Sized]] = defaultdict(list)
    for kind, lot in _lots(boxes, numbers):
        n_bytes = sum(boxes[i].n_bytes for i in lot)
        if n_bytes >= _CUT_FROM_BYTES and all(boxes[i].can_cut for i in lot):
            cut[kind].append((n_bytes, lot))
        elif n_bytes > most_bytes:
            parts = _apart(boxes, lot)
            whole[kind] += [(sum(boxes[i].n_bytes for i in part), part) for part in parts]
        else:
            whole[kind].append((n_bytes, lot))
    return list(whole.values()), list(cut.values())


def _shared_whole(
    boxes: Sequence[Replicated], lots: Sequence[_Sized], loads: dict[int, int]
) -> Iterator[tuple[ShardBox, int]]:
    """Yield boxes with their owners: the largest lots first, and the rest fills the gaps."""
    heap = [(load, process) for process, load in loads.items()]
    heapq.heapify(heap)
    for n_bytes, lot in sorted(lots, key=lambda sized: -sized[0]):
        load, process = heap[0]
        heapq.heapreplace(heap, (load + n_bytes, process))
        for number in lot:
            yield boxes[number].box, process
    loads.update((process, load) for load, process in heap)


def _shared_in_slices(
    boxes: Sequence[Replicated], lots: Sequence[_Sized], loads: dict[int, int]
) -> Iterator[tuple[ShardBox, int]]:
    """Yield slices of lots with their owners, so that the loads become equal."""
    n_all = sum(n_bytes for n_bytes, _ in lots)
    ends = itertools.accumulate(_rooms(list(loads.values()), n_all))
    stretches = iter(list(zip(loads, ends, strict=True)))
    (process, end), n_left = next(stretches), len(loads) - 1
    at = 0  # bytes on the line
    for n_bytes, lot in lots:
        box = boxes[lot[0]].box
        n_elements, done = box.n_elements, 0
        element_bytes = n_bytes // n_elements  # of all in the lot
        unit = max(1, _UNIT_BYTES // element_bytes)
        while True:
            wanted = (end - at) // element_bytes
            is_last = wanted >= n_elements or n_left == 0
            until = n_elements if is_last else cut_point(box.extent, wanted, unit)
            if until > done:
                loads[process] += (until - done) * element_bytes
                for number in lot:
                    whole = boxes[number].box
                    is_whole = until - done == n_elements
                    parts = [whole] if is_whole else slices_of(whole, done, until)
                    for part in parts:
                        yield part, process
                done = until
            if done == n_elements:
                break
            (process, end), n_left = next(stretches), n_left - 1
        at += n_bytes


def _rooms(loads: Sequence[int], n_bytes: int) -> list[int]:
    """Return how many of some bytes go on each load, so that the lowest are filled up alike."""
    ascending = sorted(loads)
    level = 0
    for count, below in enumerate(itertools.accumulate(ascending), 1):
        level = (n_bytes + below) // count
        if count == len(ascending) or level <= ascending[count]:
            break
    return [max(0, level - load) for load in loads]


def _lots(boxes: Sequence[Replicated], numbers: Sequence[int]) -> Iterator[tuple[Hashable, _Lot]]:
    """Yield the boxes that stay together, in the order of the first of each place, and their kind.

    With n parameters of a place and 3 n of master and moments, those whose numbers are equal
    modulo n are of one layer, whatever their order; so it is with the greatest common divisor.
    The kind is how many there are of each dtype.
    """
    places: dict[Hashable, dict[str, list[int]]] = defaultdict(dict)
    for number in numbers:
        each = boxes[number]
        places[each.place].setdefault(each.dtype, []).append(number)
    for dtypes in places.values():
        period = math.gcd(*map(len, dtypes.values()))
        kind = frozenset((name, len(members) // period) for name, members in dtypes.items())
        for i in range(period):
            rounds = [members[i::period] for members in dtypes.values()]
            longest = max(map(len, rounds))
            yield kind, [of[k] for k in range(longest) for of in rounds if k < len(of)]


def _apart(boxes: Sequence[Replicated], lot: _Lot) -> Iterator[_Lot]:
    """Yield a lot above a fair share, that cannot be cut, as the i-th of each dtype."""
    dtypes: dict[str, list[int]] = defaultdict(list)
    for number in lot:
        dtypes[boxes[number].dtype].append(number)
    for members in itertools.zip_longest(*dtypes.values()):
        yield [number for number in members if number is not None]
