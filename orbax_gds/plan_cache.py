"""What stays the same from save to save: how a tree is described, cut up and taken apart.

A training loop saves one structure over and over. Describing and planning it takes tens of µs a
leaf; to see that it is the same takes less than one.
"""

import dataclasses
import functools
import hashlib
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from itertools import chain
from operator import attrgetter, methodcaller
from typing import Any

import jax
import msgspec
import numpy as np

from orbax_gds import leaves, sidecar
from orbax_gds import stripe as stripes
from orbax_gds._version import __version__
from orbax_gds.derived import DerivedShard
from orbax_gds.dtypes import dtype_by_name
from orbax_gds.errors import Unsupported
from orbax_gds.manifest import LeafList, LeafSpec, ShardingSpec, list_leaves
from orbax_gds.pieces import picker
from orbax_gds.plan import Cut, ShardBox, Window, make_plan, windows
from orbax_gds.shardings import boxes_by_device
from orbax_gds.snapshot import Picks
from orbax_gds.uncollected import uncollected

__all__ = ["PlanCache", "Planned"]

logger = logging.getLogger(__name__)

_MOST_STRUCTURES = 8  # chosen: a handler serves a few items, each of one structure

_SIGNATURE = attrgetter("aval", "sharding")
_OF_HOST = attrgetter("dtype", "shape")
_OF_KEY = attrgetter("_impl", "_base_array.aval", "_base_array.sharding")
_KEY_DATA = attrgetter("_base_array")  # what `key_data` gives, in a thousandth of the time
_IS_DELETED = methodcaller("is_deleted")


class Planned:
    """All that the save of one process has to know of a tree but its values.

    Args:
        flat: a tree of the structure.
        boxes: the shards that this process stores, from `leaves.owned_shards`.
        process: its number.
        chunk_bytes: upper bound of a chunk's words in bytes.

    Attributes:
        process: number of the process.
        specs: what the manifest says of the leaves.
        shardings: distinct shardings, which `LeafSpec.sharding` counts in.
        picks: how the words of `whole.plan.shards` are taken.
        whole: what is stored where nothing is derived.
    """

    def __init__(
        self, flat: leaves.Flat, boxes: Sequence[ShardBox], process: int, chunk_bytes: int
    ) -> None:
        self.specs: tuple[LeafSpec, ...] = tuple(flat.specs)
        self.shardings: tuple[ShardingSpec, ...] = tuple(flat.shardings)
        self.process = process
        self._chunk_bytes = chunk_bytes
        self._unnamed = _boxes_of_unnamed(flat)
        self.picks = Picks(flat, boxes)
        self.whole = self._cut(boxes, ())
        self._windows: dict[int | None, Sequence[Window]] = {}
        self._last: tuple[Mapping[int, DerivedShard], Cut] = ({}, self.whole)

    def without(self, derived: Mapping[int, DerivedShard]) -> Cut:
        """Return what is stored when some shards, by their number, are derived."""
        known, cut = self._last
        if known != derived:
            boxes = [
                ShardBox(leaf=shard.leaf, start=shard.start, extent=shard.extent)
                for number, shard in enumerate(self.whole.plan.shards)
                if number not in derived
            ]
            cut = self._cut(boxes, tuple(derived.values()))
            self._last = (dict(derived), cut)
        return cut

    def windows(self, most_bytes: int | None) -> Sequence[Window]:
        """Return the windows of `whole.plan` in which the copies of its words fit a bound."""
        if most_bytes not in self._windows:
            sizes = self.picks.staged_bytes()
            whole = self.whole.plan
            most = sum(sizes) if most_bytes is None else most_bytes
            self._windows[most_bytes] = windows(whole, sizes, most)
        return self._windows[most_bytes]

    def _cut(self, boxes: Sequence[ShardBox], derived: Sequence[DerivedShard]) -> Cut:
        dtypes = [None if s.dtype is None else dtype_by_name(s.dtype) for s in self.specs]
        plan = make_plan(boxes, dtypes, self._chunk_bytes)
        return Cut(plan=plan, layout=stripes.encode_layout((*plan.shards, *derived)))

    def encode(self) -> None:
        """Encode now what is encoded once for all saves."""
        _ = self.leaf_list, self.tree_json, self.digest

    @functools.cached_property
    def leaf_list(self) -> LeafList:
        """The leaves as the manifest has them."""
        return list_leaves(self.specs)

    @functools.cached_property
    def digest(self) -> str:
        """A digest of what all processes must agree on, so that their parts fit together.

        That is all that decides how the tree is divided, the version of this package too. Of
        leaves that are not jax arrays it is the path: process 0 alone stores them, and theirs
        may differ.
        """
        agreed = [
            (spec.path,)
            if spec.sharding is None
            else (spec.path, spec.dtype, spec.shape, spec.sharding, spec.prng)
            for spec in self.specs
        ]
        n_processes = jax.process_count()
        of_job = (__version__, n_processes, self._chunk_bytes)
        all_of_it = (agreed, self.shardings, self._unnamed, of_job)
        return hashlib.blake2b(msgspec.json.encode(all_of_it), digest_size=16).hexdigest()

    @functools.cached_property
    def tree_json(self) -> str:
        """The leaves as Orbax's `_METADATA` has them."""
        return sidecar.encode_tree(self.specs)


def _boxes_of_unnamed(flat: leaves.Flat) -> list[tuple[Any, ...]]:
    """Return the boxes on each device under shardings that the manifest only knows by class."""
    unnamed = {
        number
        for number, sharding in enumerate(flat.shardings)
        if sharding.devices is None and sharding.device is None
    }
    found: dict[tuple[Any, ...], list[Any]] = {}
    for spec, value in zip(flat.specs, flat.values, strict=True) if unnamed else ():
        layout = (spec.sharding, spec.shape)
        if spec.sharding in unnamed and layout not in found:
            boxes = boxes_by_device(value.sharding, value.shape)
            found[layout] = sorted((device.id, box) for device, box in boxes.items())
    return list(found.items())


class PlanCache:
    """The structures that were saved last, or restored. Threads may share one.

    It holds no values, but for those of an expected tree while that is planned.

    Args:
        chunk_bytes: upper bound of a chunk's words in bytes.
        process: number of this process.
    """

    def __init__(self, chunk_bytes: int, process: int) -> None:
        self._chunk_bytes, self._process = chunk_bytes, process
        self._known: list[_Structure] = []  # the one used last is the first
        self._expected: list[tuple[threading.Event, int]] = []  # and the process that plans
        self._lock = threading.Lock()

    def expect(self, tree: Any) -> None:
        """Plan a tree in a thread of its own, as one of its structure may be saved soon.

        A job that starts again saves what it has restored: its first save then finds the plan
        known. The thread has the priority of any other, as it holds the GIL, and who waits for that
        must not wait for more.

        Args:
            tree: any; nothing is raised if it cannot be saved. It is held until it is planned.
        """
        done = threading.Event()
        with self._lock:
            waiting = [each for each in self._expected if not each[0].is_set()]
            self._expected = [*waiting, (done, os.getpid())]
        args = ([tree], done)
        try:
            threading.Thread(target=self._foresee, args=args, name="orbax_gds_plan").start()
        except RuntimeError:  # no thread is to be had: the first save plans by itself
            done.set()

    def await_expected(self) -> None:
        """Wait until all that is expected is planned."""
        with self._lock:
            expected = self._expected
        for done, planning in expected:
            if planning == os.getpid():  # after a fork the child has none of the threads
                done.wait()

    def _foresee(self, held: list[Any], done: threading.Event) -> None:
        try:
            with uncollected():
                planned, _, _ = self._plan(held.pop())
        except Exception as error:  # no tree to save, such as a part of one; arrays that were
            # donated since; or whatever a node of a user's raises
            logger.debug("A restored tree is not planned ahead: %s", type(error).__name__)
            return
        finally:
            done.set()
        with uncollected():
            planned.encode()

    def plan(self, tree: Any) -> tuple[Planned, Sequence[Any], bool]:
        """Describe and plan a tree, or find that its structure is known.

        Returns:
            What is known of it, its values as in `Flat.values`, and whether it was known before.

        Raises:
            Unsupported: leaves that cannot be saved; each is named.
        """
        self.await_expected()
        return self._plan(tree)

    def _plan(self, tree: Any) -> tuple[Planned, Sequence[Any], bool]:
        taken = _take_apart(tree)
        if taken is not None:
            with self._lock:
                known = list(self._known)
            for structure in known:
                values = structure.values_of(taken)
                if values is not None:
                    self._keep(structure)
                    return structure.planned, values, True
        flat = leaves.flatten(tree)
        boxes = leaves.owned_shards(flat, self._process)
        planned = Planned(flat, boxes, self._process, self._chunk_bytes)
        if taken is not None and _is_in_order(tree, taken.values):
            self._keep(_Structure(taken, flat, planned))
        return planned, flat.values, False

    def _keep(self, structure: "_Structure") -> None:
        with self._lock:
            others = [each for each in self._known if each is not structure]
            self._known = [structure, *others][:_MOST_STRUCTURES]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Taken:
    """A tree as jax takes it apart: without its empty nodes, which are part of the treedef."""

    treedef: Any
    kinds: list[type]
    values: list[Any]

    @functools.cached_property
    def text(self) -> str | None:
        """The treedef as text, which tells True from 1 (measured: 0.2 µs a leaf); None without."""
        try:
            return str(self.treedef)
        except Exception:  # whatever the `repr` of a user's data raises
            return None

    def is_as(self, treedef: Any, text: str | None) -> bool:
        """Whether the treedef is this one, which has this text.

        Equal ones may differ in their paths, as jax compares keys and a node's own data by `==`.
        """
        try:
            return bool(self.treedef == treedef) and text is not None and self.text == text
        except Exception:  # whatever the `==` of a user's data raises, such as NumPy's
            return False


def _take_apart(tree: Any) -> _Taken | None:
    """Take a tree apart; None if jax cannot, which `leaves.flatten` then explains."""
    try:
        values, treedef = jax.tree_util.tree_flatten(tree)
    except (ValueError, TypeError, RecursionError, SystemError):
        return None
    return _Taken(treedef=treedef, kinds=list(map(type, values)), values=values)


class _Structure:
    """What must be equal for a plan to be good, and the plan.

    Of jax arrays that is type, abstract value and sharding, of NumPy's dtype and shape. Other
    leaves are few or small: they are described anew, as their description may depend on the value
    (a text has a length).
    """

    def __init__(self, taken: _Taken, flat: leaves.Flat, planned: Planned) -> None:
        self.planned = planned
        self._treedef, self._text, self._kinds = taken.treedef, taken.text, taken.kinds
        self._numbering = flat.numbering
        held = [number for number, spec in enumerate(flat.specs) if spec.has_words]
        self._loose: list[tuple[int, int]] = []  # position among the values, number of the leaf
        arrays: list[int] = []
        keys: list[int] = []
        host: list[int] = []
        for at, number in enumerate(held):
            spec, value = flat.specs[number], taken.values[at]
            if spec.sharding is not None and spec.prng is None:
                arrays.append(at)
            elif spec.prng is not None and _has_data(value, flat.values[number]):
                keys.append(at)
            elif type(value) is np.ndarray:
                host.append(at)
            else:
                self._loose.append((at, number))
        self._arrays, self._keys, self._host = picker(arrays), picker(keys), picker(host)
        self._signature = self._signed(taken.values)
        position = {number: at for at, number in enumerate(held)}
        nothing = len(held)  # where a None is put behind the values, and the data of keys
        data = {at: nothing + 1 + nth for nth, at in enumerate(keys)}
        positions = [position.get(number, nothing) for number in range(len(flat.specs))]
        self._spread = picker([data.get(at, at) for at in positions])

    def _signed(self, values: Sequence[Any]) -> list[Any]:
        """Return what must be equal of the leaves that are not described anew."""
        return [
            *map(_SIGNATURE, self._arrays(values)),
            *map(_OF_KEY, self._keys(values)),
            *map(_OF_HOST, self._host(values)),
        ]

    def values_of(self, taken: _Taken) -> list[Any] | None:
        """Return the values of a tree of this structure, by leaf; None if it is of another."""
        if taken.kinds != self._kinds or not taken.is_as(self._treedef, self._text):
            return None
        signature = self._signed(taken.values)
        key_data = list(map(_KEY_DATA, self._keys(taken.values)))
        if signature != self._signature:
            return None
        if any(map(_IS_DELETED, chain(self._arrays(taken.values), key_data))):
            return None
        self._signature = signature  # the same objects come again, and are equal at a glance
        values = list(self._spread([*taken.values, None, *key_data]))
        for at, number in self._loose:
            try:
                path = self.planned.specs[number].path
                spec, values[number] = leaves.read_leaf(path, taken.values[at], self._numbering)
            except Unsupported:
                return None  # `flatten` says why, of all leaves
            if spec != self.planned.specs[number]:
                return None
        return values


def _has_data(key: Any, data: jax.Array) -> bool:
    """Whether a key holds what jax gives as its data, and says where (no public interface)."""
    try:
        (_, aval, sharding), held = _OF_KEY(key), _KEY_DATA(key)
    except AttributeError:
        return False
    return isinstance(held, jax.Array) and aval == data.aval and sharding == data.sharding


def _is_in_order(tree: Any, values: Sequence[Any]) -> bool:
    """Whether jax gives the same leaves in the same order when it is asked for their paths.

    A node of a user's may not; then the treedef does not say which leaf has which path.
    """
    with_paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    return len(with_paths) == len(values) and all(
        there is here for (_, there), here in zip(with_paths, values, strict=True)
    )
