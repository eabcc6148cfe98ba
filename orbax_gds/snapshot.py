"""The part of a save that must block: taking the words of shards, whatever happens to them later.

What can be known of a structure beforehand stands in `Picks`, so that a save of the same structure
only takes references.
"""

import dataclasses
import threading
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import filterfalse
from operator import attrgetter, methodcaller
from typing import Any

import jax
import msgspec
import numpy as np
from jax.experimental.layout import Layout
from jax.sharding import Sharding, SingleDeviceSharding

from orbax_gds import _native
from orbax_gds.dtypes import dtype_by_name
from orbax_gds.errors import Unsupported
from orbax_gds.leaves import Flat, layout_key
from orbax_gds.manifest import LeafSpec
from orbax_gds.pieces import Pieces, divide, picker
from orbax_gds.plan import POOL_BELOW_BYTES, ShardBox, Window
from orbax_gds.shardings import Box, Device, boxes_by_device

__all__ = ["Picks", "Snapshot", "pinned_copies"]

_ABSENT = np.empty(0, np.uint8)
_ADDRESS = methodcaller("unsafe_buffer_pointer")
_AS_BYTES = methodcaller("view", np.uint8)
_COPY = methodcaller("copy")
_IN_ONE_ROW = methodcaller("reshape", -1)
_IS_DELETED = methodcaller("is_deleted")
_IS_NATIVE = attrgetter("dtype.isnative")
_LAYOUT = attrgetter("format.layout")
_LAYOUT_AT_ONCE = attrgetter("_pjrt_layout")  # what `format` is made of, in a fifth of the time
_MATRIX_BELOW_BYTES = 16 << 10  # measured: above it a copy takes as long as a view


class Picks:
    """How the words of shards are taken from a tree of one structure.

    Holds no value, so that it is good for any number of trees.

    Args:
        flat: a tree of the structure.
        shards: boxes that lie on devices of this process, or slices of these, from `owned_shards`.
    """

    def __init__(self, flat: Flat, shards: Sequence[ShardBox]) -> None:
        self._n_shards, self._specs = len(shards), flat.specs
        self._copied: list[_Pick] = []
        ours: list[_Pick] = []
        vectors: list[_Pick] = []
        matrices: list[_Pick] = []
        views: list[_Pick] = []
        self._far: list[_Pick] = []
        self._n_pieces: dict[int, int] = {}
        layouts: dict[Hashable, _Layout] = {}
        loads: dict[Device, int] = defaultdict(int)  # bytes that are taken from each
        for number, shard in enumerate(shards):
            spec, value = flat.specs[shard.leaf], flat.values[shard.leaf]
            n_bytes = dtype_by_name(spec.dtype or "").element_bytes * shard.n_elements
            if spec.sharding is None:
                kind = self._copied if spec.type == "numpy.ndarray" else ours
                kind.append(_Pick(number=number, leaf=shard.leaf, n_bytes=n_bytes))
                continue
            key = layout_key(spec, value)
            layout = layouts.get(key) or layouts.setdefault(key, _layout(value))
            place = part = None
            if layout.places is not None:
                held = layout.held(shard)
                place = _least_loaded(layout.places[held], loads)
                loads[place[1]] += n_bytes
                part = _part(shard, held)
                self._n_pieces[shard.leaf] = layout.n_pieces
            if layout.is_far:
                kind = self._far
            elif part is None and _is_small(spec, n_bytes):
                kind = matrices if len(shard.extent) > 1 else vectors
            else:
                kind = views
            pick = _Pick(number=number, leaf=shard.leaf, place=place, part=part, n_bytes=n_bytes)
            kind.append(pick)
        self._users = _Host(self._copied, are_copied=True)
        self._ours = _Host(ours, are_copied=False)
        self._views = self._viewed(views)
        self._all_far = self._viewed(self._far)
        self._staged = [pick.number for pick in (*self._far, *self._copied)]
        self._gathers: list[_Gather] = []
        if vectors:
            self._gathers.append(_Gather(vectors, self._pieces(vectors), apart=None))
        if matrices:
            apart = self._viewed(matrices)
            self._gathers.append(_Gather(matrices, self._pieces(matrices), apart=apart))

    def _pieces(self, picks: Sequence["_Pick"]) -> Pieces:
        leaves, places = [pick.leaf for pick in picks], [pick.place for pick in picks]
        return Pieces(leaves, places, self._n_pieces, self._specs)

    def _viewed(self, picks: Sequence["_Pick"]) -> "_Views":
        return _Views(picks, self._pieces(picks))

    def staged_bytes(self) -> list[int]:
        """Return what the copy of each shard takes in host memory; 0 where it is viewed there.

        Those of small jax arrays do not count: they are copied with the first window.
        """
        sizes = [0] * self._n_shards
        for pick in (*self._far, *self._copied):
            sizes[pick.number] = pick.n_bytes
        return sizes

    def take(self, values: Sequence[Any], *, staged: Sequence[int] | None = None) -> list[Any]:
        """Take the words, so that the tree may be changed or donated afterwards.

        NumPy arrays are copied, and small arrays in host memory. Of other jax arrays in host
        memory a view is held: jax then copies instead of donating in place, so that the words
        stay. From accelerators all shards are copied to pinned host memory at once.

        Args:
            values: of the leaves, as in `Flat.values`.
            staged: of the shards on accelerators and the NumPy arrays take only these, by number;
                None takes all.

        Returns:
            uint8[n] for each shard: its words in C order. Read-only where it is a view. Empty where
            it was not to be taken.

        Raises:
            Unsupported: another thread donated an array meanwhile.
        """
        words: list[Any] = [_ABSENT] * self._n_shards
        self.take_more(words, values, self._staged if staged is None else staged)
        self._ours.into(words, values)
        self._views.into(words, values)
        for gather in self._gathers:
            gather.into(words, values)
        return words

    def take_more(self, words: list[Any], values: Sequence[Any], staged: Sequence[int]) -> None:
        """Put the words of further staged shards, by number, among those taken."""
        far, users = self._all_far, self._users
        if len(staged) < len(self._staged):
            wanted = set(staged)
            far = self._viewed([pick for pick in self._far if pick.number in wanted])
            copied = [pick for pick in self._copied if pick.number in wanted]
            users = _Host(copied, are_copied=True)
        far.into(words, values, are_far=True)
        users.into(words, values)


class Snapshot:
    """The words of a save's shards; of those that are copied, a window of the plan at a time.

    Args:
        picks: of the tree's structure.
        values: of its leaves, as in `Flat.values`.
        windows: of the plan whose shards these are; the words of the first are taken at once.

    Attributes:
        words: uint8[n] for each shard, empty for what is not in host memory.
        staged: set when the tree is not needed any more.
    """

    def __init__(self, picks: Picks, values: Sequence[Any], windows: Sequence[Window]) -> None:
        self._picks, self._values, self._windows = picks, values, windows
        if len(windows) > 1:  # another thread takes the rest, while training goes on
            divide(values)
        self.words: list[Any] = picks.take(values, staged=windows[0].taken)
        self.staged = threading.Event()
        if len(windows) == 1:
            self.finish()

    def each_window(self) -> Iterator[range]:
        """Yield the runs whose words lie in host memory; afterwards take those of the next."""
        for number, window in enumerate(self._windows):
            if number > 0:
                self._picks.take_more(self.words, self._values, window.taken)
            if number + 1 == len(self._windows):
                self.finish()
            yield window.runs
            for shard in window.left:
                self.words[shard] = _ABSENT

    def finish(self) -> None:
        """Let go of the tree: all is taken, or nothing more will be."""
        self._values = ()
        self.staged.set()


class _Pick(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How one shard is taken.

    Attributes:
        number: its position among the shards.
        leaf: number of the leaf.
        place: the piece of a jax array with its box, as number and device; None if all is one.
        part: which part of that is the shard; None if it is all of it.
        n_bytes: of its words.
    """

    number: int
    leaf: int
    place: tuple[int, Device] | None = None
    part: tuple[slice, ...] | None = None
    n_bytes: int = 0


class _Host:
    """Takes what is no jax array: what users may write into is copied."""

    def __init__(self, picks: Sequence[_Pick], *, are_copied: bool) -> None:
        self._numbers = [pick.number for pick in picks]
        self._pick = picker([pick.leaf for pick in picks])
        self._are_copied = are_copied

    def into(self, words: list[Any], values: Sequence[Any]) -> None:
        """Put the words of the leaves among those of the shards."""
        arrays = self._pick(values)
        if all(map(_IS_NATIVE, arrays)):
            _put(words, self._numbers, map(_COPY, arrays) if self._are_copied else arrays)
        else:
            swapped = (_little_endian(array, copy=self._are_copied) for array in arrays)
            _put(words, self._numbers, swapped)


class _Views:
    """Takes arrays on one device each, or slices: views in host memory, or copies there."""

    def __init__(self, picks: Sequence[_Pick], pieces: Pieces) -> None:
        self._numbers = [pick.number for pick in picks]
        self._parts = [(at, p.part) for at, p in enumerate(picks) if p.part is not None]
        self._pieces = pieces

    def into(self, words: list[Any], values: Sequence[Any], *, are_far: bool = False) -> None:
        """Put the words of the pieces among those of the shards.

        Raises:
            Unsupported: another thread donated an array meanwhile; or a piece lies on another
                device than planned.
        """
        if not self._numbers:
            return
        pieces = self._pieces.of(values)
        try:
            _put(words, self._numbers, self._copied(pieces) if are_far else self._viewed(pieces))
        except RuntimeError as error:
            self._pieces.refuse_deleted(values, error)
            raise  # what computes them failed

    def _viewed(self, pieces: Sequence[jax.Array]) -> Iterable[Any]:
        if not self._parts:
            return pieces
        arrays = list(map(np.asarray, pieces))
        for at, part in self._parts:
            arrays[at] = arrays[at][part]
        return arrays

    def _copied(self, pieces: Sequence[jax.Array]) -> list[jax.Array]:
        """Slice where the pieces lie: no more than that is to be copied from there."""
        arrays = list(pieces)
        for at, part in self._parts:
            begin, end = [s.start for s in part], [s.stop for s in part]
            arrays[at] = jax.lax.slice(arrays[at], begin, end)
        return pinned_copies(arrays)


class _Gather:
    """Copies many small arrays at once: a view of each takes jax longer (measured: 12 µs).

    Args:
        small: how the shards are taken.
        pieces: the same as single-device arrays.
        apart: how they are taken where their words do not all lie in C order; None of vectors,
            whose words always do.
    """

    def __init__(self, small: Sequence[_Pick], pieces: Pieces, *, apart: _Views | None) -> None:
        self._of, self._apart = pieces, apart
        sizes = np.array([each.n_bytes for each in small], np.uint64)
        self._pieces = np.stack([np.zeros_like(sizes), sizes], axis=1)
        ends = np.cumsum(sizes).tolist()
        self._places = [
            (each.number, end - each.n_bytes, end) for each, end in zip(small, ends, strict=True)
        ]
        self._n_bytes = ends[-1]

    def into(self, words: list[Any], values: Sequence[Any]) -> None:
        """Put copies of the leaves' words among the words of the shards.

        Raises:
            Unsupported: another thread donated an array meanwhile.
        """
        arrays = self._of.of(values)
        if self._apart is not None and not self._are_in_c_order(arrays, values):
            self._apart.into(words, values)
            return
        arena = self._gathered(arrays, values)
        for number, begin, end in self._places:
            words[number] = arena[begin:end]

    def _are_in_c_order(self, arrays: Sequence[jax.Array], values: Sequence[Any]) -> bool:
        n_layouts, distinct = _layouts(arrays)
        if n_layouts != len(arrays):
            self._of.refuse_deleted(values, None)
        return all(map(_is_c_order, distinct))

    def _gathered(self, arrays: Sequence[jax.Array], values: Sequence[Any]) -> np.ndarray:
        """Return the words of all in one array.

        The second look at the addresses fails if a donation has begun since the first: jax waits
        for one that is under way and then refuses to give the address.
        """
        arena = np.empty(self._n_bytes, np.uint8)
        pieces = self._pieces.copy()
        try:
            jax.block_until_ready(arrays if self._of.are_whole else self._of.whole(values))
            pieces[:, 0] = addresses = _addresses(arrays)
            _native.gather(pieces, arena)
            again = _addresses(arrays)
        except (RuntimeError, ValueError) as error:
            self._of.refuse_deleted(values, error)
            raise  # what computes them failed
        if not np.array_equal(addresses, again):
            raise Unsupported("An array moved while it was saved. Save from the training thread.")
        return arena


def _addresses(arrays: Sequence[jax.Array]) -> np.ndarray:
    return np.fromiter(map(_ADDRESS, arrays), np.uint64, len(arrays))


def _is_small(spec: LeafSpec, n_bytes: int) -> bool:
    """Whether copying a shard's words costs less than a view of them.

    Words of less than 8 bits may be packed. Of a matrix jax must be asked for the layout, too.
    """
    if dtype_by_name(spec.dtype or "").bits % 8 != 0:
        return False
    is_matrix = len(spec.shape or ()) > 1
    return n_bytes < (_MATRIX_BELOW_BYTES if is_matrix else POOL_BELOW_BYTES)


def _layouts(arrays: Sequence[jax.Array]) -> tuple[int, Collection[Layout | None]]:
    """Return how many of the arrays are not deleted, and the distinct layouts of these.

    To ask a deleted array crashes jax (0.10), so no other thread may run between the two questions:
    all is one call into C.
    """
    try:
        found = list(map(_LAYOUT_AT_ONCE, filterfalse(_IS_DELETED, arrays)))
        return len(found), list(map(Layout.from_pjrt_layout, set(found)))
    except AttributeError:  # no part of jax's public interface
        found = list(map(_LAYOUT, filterfalse(_IS_DELETED, arrays)))
        return len(found), set(found)


def _is_c_order(layout: Layout | None) -> bool:
    if layout is None or layout.tiling:
        return False
    return layout.major_to_minor == tuple(range(len(layout.major_to_minor)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Layout:
    """Where the pieces lie that arrays of one sharding and shape are made of.

    Attributes:
        is_far: whether that is outside host memory.
        places: for each box the pieces with it, by number and device; None if all is one piece.
    """

    is_far: bool
    places: Mapping[Box, Sequence[tuple[int, Device]]] | None

    @property
    def n_pieces(self) -> int:
        """How many pieces there are, on the devices of this process."""
        return 1 if self.places is None else sum(map(len, self.places.values()))

    def held(self, shard: ShardBox) -> Box:
        """Return the box on a device that is the shard, or that the shard is a slice of."""
        assert self.places is not None, "all is one piece"
        if (shard.start, shard.extent) in self.places:
            return shard.start, shard.extent
        return next(box for box in self.places if _is_inside(shard, box))


def _layout(value: jax.Array) -> _Layout:
    """Work out where the pieces lie: jax has them in the order of the sharding's devices.

    `Pieces` refuses those that lie elsewhere. It is the thread that plans which must not ask the
    array, see `divide`.
    """
    is_spread, is_far = _spread(value.sharding)
    if not is_spread:
        return _Layout(is_far=is_far, places=None)
    boxes = boxes_by_device(value.sharding, value.shape)
    ours = filter(value.sharding.addressable_devices.__contains__, boxes)
    places: dict[Box, list[tuple[int, Device]]] = defaultdict(list)
    for number, device in enumerate(ours):
        places[boxes[device]].append((number, device))
    return _Layout(is_far=is_far, places=places)


def _is_inside(shard: ShardBox, box: Box) -> bool:
    return all(
        low <= begin and begin + n <= low + most
        for begin, n, low, most in zip(shard.start, shard.extent, *box, strict=True)
    )


def _part(shard: ShardBox, held: Box) -> tuple[slice, ...] | None:
    """Return which part of a box on a device is the shard; None if it is all of it."""
    if (shard.start, shard.extent) == held:
        return None
    return tuple(
        slice(begin - low, begin - low + n)
        for begin, n, low in zip(shard.start, shard.extent, held[0], strict=True)
    )


def _least_loaded(
    places: Sequence[tuple[int, Device]], loads: Mapping[Device, int]
) -> tuple[int, Device]:
    """Return the replica to take, so that the devices of a process share the copying."""
    return places[0] if len(places) == 1 else min(places, key=lambda place: loads[place[1]])


def _spread(sharding: Sharding) -> tuple[bool, bool]:
    """Return whether there are several devices, and whether they are not CPUs."""
    devices = sharding.device_set
    return len(devices) > 1, next(iter(devices)).platform != "cpu"


def pinned_copies(arrays: list[jax.Array]) -> list[jax.Array]:
    """Copy arrays, each on one device, to pinned host memory of that device, all in one dispatch.

    Where a device has no pinned host memory the transfer to plain host memory is started instead.
    """
    devices = [next(iter(array.devices())) for array in arrays]
    kinds = {device: {m.kind for m in device.addressable_memories()} for device in set(devices)}
    if all("pinned_host" in held for held in kinds.values()):
        places = [SingleDeviceSharding(device, memory_kind="pinned_host") for device in devices]
        return jax.device_put(arrays, places)
    for array in arrays:
        array.copy_to_host_async()
    return arrays


def _little_endian(array: np.ndarray, *, copy: bool) -> np.ndarray:
    if array.dtype.byteorder == ">":
        return array.byteswap().view(array.dtype.newbyteorder("="))
    return array.copy(order="C") if copy else array


def _put(words: list[Any], numbers: Sequence[int], arrays: Iterable[Any]) -> None:
    """Put arrays among the words as their bytes in C order, copied only if they do not lie so."""
    flat = map(_IN_ONE_ROW, map(np.ascontiguousarray, map(np.asarray, arrays)))
    for number, array in zip(numbers, map(_AS_BYTES, flat), strict=True):
        words[number] = array
