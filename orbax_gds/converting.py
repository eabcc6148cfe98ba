"""Leaves that are cast or filled up in a restore, a window of stored words at a time.

So what is held beside the restored values is bounded, however large a leaf or all of them are.
"""

import math
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from orbax_gds.dtypes import Dtype, dtype_by_name, dtype_of
from orbax_gds.errors import Unsupported
from orbax_gds.item import Item
from orbax_gds.plan import Indices, ShardBox
from orbax_gds.staging import aligned_empty, aligned_pieces
from orbax_gds.wants import Want

__all__ = ["convert", "is_converted"]

_WINDOW_BYTES = 64 << 20  # chosen: a quarter of what a restore may take beside its state
_ALIGNMENT = 64  # chosen: jax takes memory that begins so without a copy
_LEAST_COST = 4  # chosen: bytes an element counts at least, as some casts go by way of float32


class _Task(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A part of a leaf to read, and the elements to make of it."""

    box: ShardBox
    stored: Dtype
    into: np.ndarray

    @property
    def n_bytes(self) -> int:
        """Length of the stored words, in whole units of alignment."""
        n_bytes = self.box.n_elements * self.stored.element_bytes
        return -(-n_bytes // _ALIGNMENT) * _ALIGNMENT


def is_converted(want: Want) -> bool:
    """Whether a leaf is an array whose elements do not lie in memory as they are stored."""
    if want.type not in ("jax.Array", "numpy.ndarray"):
        return False
    if want.dtype is not None:
        try:
            dtype_of(want.dtype)
        except Unsupported:  # what only NumPy has, such as big-endian words
            return False
        return True
    boxes = (piece for piece in want.pieces if piece.box is not None)
    return any(want.boxes[piece.box or 0][1] != piece.extent for piece in boxes)


def convert(item: Item, wants: Sequence[Want]) -> list[tuple[Want, list[np.ndarray]]]:
    """Read leaves and convert them.

    Args:
        item: what holds them.
        wants: of leaves that are converted.

    Returns:
        For each a want of what it is now, which asks for no conversion, and its words: one
        uint8[n], 64-aligned, for each of its boxes.

    Raises:
        Corrupt, IoError: as `Item.read`.
    """
    done: list[tuple[Want, list[np.ndarray]]] = []
    tasks: list[_Task] = []
    for want in wants:
        dtype = dtype_by_name(want.spec.dtype or "") if want.dtype is None else dtype_of(want.dtype)
        numbers = dict.fromkeys((p.box, p.extent) for p in want.pieces)
        sizes = [math.prod(extent) * dtype.element_bytes for _, extent in numbers]
        words = aligned_pieces(sizes, _ALIGNMENT)
        for (box, extent), buffer in zip(numbers, words, strict=True):
            tasks += _tasks(want, box, dtype.elements(buffer, extent))
        done.append((_as_converted(want, dtype, list(numbers)), words))
    _run(item, tasks)
    return done


def _as_converted(want: Want, dtype: Dtype, boxes: Sequence[tuple[int | None, Indices]]) -> Want:
    """Return the want of a leaf as if it were stored so, in these boxes."""
    pieces = []
    for piece in want.pieces:
        number = boxes.index((piece.box, piece.extent))
        pieces.append(type(piece)(device=piece.device, box=number, extent=piece.extent))
    return msgspec.structs.replace(
        want,
        boxes=tuple(((0,) * len(extent), extent) for _, extent in boxes),
        spec=msgspec.structs.replace(want.spec, dtype=dtype.name),
        dtype=None,
        pieces=tuple(pieces),
    )


def _tasks(want: Want, box: int | None, into: np.ndarray) -> Iterator[_Task]:
    """Zero what is not stored of a piece, and yield the tasks that fill in the rest."""
    within = (0,) * into.ndim if box is None else want.boxes[box][1]
    if box is None or within != into.shape:
        into[...] = np.zeros((), into.dtype)
    if box is None:
        return
    first, stored = want.boxes[box][0], dtype_by_name(want.spec.dtype or "")
    most = _WINDOW_BYTES // max(stored.element_bytes, _LEAST_COST)
    for start, extent in _split((0,) * into.ndim, within, most):
        where = (*(slice(at, at + n) for at, n in zip(start, extent, strict=True)), ...)
        begin = tuple(a + b for a, b in zip(first, start, strict=True))
        part = ShardBox(leaf=want.leaf, start=begin, extent=extent)
        yield _Task(box=part, stored=stored, into=into[where])


def _split(start: Indices, extent: Indices, most: int) -> Iterator[tuple[Indices, Indices]]:
    """Cut a box into boxes of so many elements at most, along its first dimensions."""
    n_elements = math.prod(extent)
    if n_elements <= most:
        yield start, extent
        return
    axis = next(axis for axis, n in enumerate(extent) if n > 1)
    step = max(1, most // (n_elements // extent[axis]))
    for at in range(0, extent[axis], step):
        n = min(step, extent[axis] - at)
        yield from _split(
            (*start[:axis], start[axis] + at, *start[axis + 1 :]),
            (*extent[:axis], n, *extent[axis + 1 :]),
            most,
        )


def _run(item: Item, tasks: Sequence[_Task]) -> None:
    """Do tasks, as many at once as a window holds."""
    arena = aligned_empty(min(_WINDOW_BYTES, sum(task.n_bytes for task in tasks)), _ALIGNMENT)
    first = 0
    while first < len(tasks):
        last = first
        buffers: list[np.ndarray] = []
        at = 0
        while last < len(tasks) and at + tasks[last].n_bytes <= len(arena):
            task = tasks[last]
            buffers.append(arena[at : at + task.box.n_elements * task.stored.element_bytes])
            at, last = at + task.n_bytes, last + 1
        item.read([task.box for task in tasks[first:last]], buffers)
        for task, words in zip(tasks[first:last], buffers, strict=True):
            _cast(task.stored.elements(words, task.box.extent), task.into)
        first = last


def _cast(elements: np.ndarray, into: np.ndarray) -> None:
    with np.errstate(invalid="ignore", over="ignore"):  # what does not fit is as in Orbax
        try:
            np.copyto(into, elements, casting="unsafe")
        except TypeError:  # NumPy knows no way from some of ml_dtypes' types to others
            np.copyto(into, elements.astype(np.float32), casting="unsafe")
