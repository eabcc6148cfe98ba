"""The pieces on single devices that jax arrays are made of, of many arrays at once.

All loops over leaves are in C: a call of Python for each costs more than what is done with it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from operator import attrgetter, itemgetter, methodcaller
from typing import Any, NoReturn

import jax
from jax.sharding import SingleDeviceSharding

from orbax_gds.errors import Unsupported
from orbax_gds.manifest import LeafSpec, path_text
from orbax_gds.shardings import Device

__all__ = ["Pieces", "divide", "picker", "pieces_of"]

_AT_ONCE = attrgetter("_arrays")  # what `addressable_data` picks from; of a deleted array None
_DEVICES = methodcaller("devices")


def picker(positions: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Return a function that picks the values at these positions, in C."""
    if len(positions) > 1:
        return itemgetter(*positions)
    return lambda values: [values[at] for at in positions]


def pieces_of(array: jax.Array) -> Sequence[jax.Array]:
    """Return the pieces of an array on the devices of this process, in the sharding's order."""
    try:
        return _AT_ONCE(array)
    except AttributeError:  # no part of jax's public interface
        numbers = range(len(array.sharding.addressable_devices))
        return [array.addressable_data(number) for number in numbers]


def divide(leaves: Iterable[Any]) -> None:
    """Have jax take arrays on several devices apart now, before other threads ask for the pieces.

    It does so when it is first asked, and keeps the pieces. Of two threads that are the first at
    once, one finds too few, or both find each twice (jax 0.10): `numpy.asarray` then fails.

    Args:
        leaves: of a tree; what is no jax array is passed over.

    Raises:
        RuntimeError: a PRNG key is deleted.
    """
    for leaf in leaves:
        if isinstance(leaf, jax.Array) and not isinstance(leaf.sharding, SingleDeviceSharding):
            pieces_of(leaf)


class Pieces:
    """Picks single-device arrays: leaves that are such, and pieces of leaves on several devices.

    Args:
        leaves: number of the leaf, for each.
        places: of each the number of the piece and its device; None where the leaf is one piece.
        n_pieces: how many pieces leaves have that are several, by leaf.
        specs: of all leaves.

    Attributes:
        are_whole: whether the pieces are the leaves that they belong to, in the same order.
    """

    def __init__(
        self,
        leaves: Sequence[int],
        places: Sequence[tuple[int, Device] | None],
        n_pieces: Mapping[int, int],
        specs: Sequence[LeafSpec],
    ) -> None:
        self._specs = specs
        self._leaves = sorted(set(leaves))
        self._whole = picker(self._leaves)
        several = [leaf for leaf in self._leaves if leaf in n_pieces]
        self._several = picker(several)
        begins: dict[int, int] = {}  # where the pieces of a leaf stand, behind all leaves
        self._n_held = 0
        for leaf in several:
            begins[leaf] = len(specs) + self._n_held
            self._n_held += n_pieces[leaf]
        chosen = list(zip(leaves, places, strict=True))
        self._pick = picker(
            [leaf if place is None else begins[leaf] + place[0] for leaf, place in chosen]
        )
        self._of_several = picker([at for at, place in enumerate(places) if place is not None])
        self._devices = [{place[1]} for place in places if place is not None]
        self.are_whole = not self._devices and self._leaves == list(leaves)

    def whole(self, values: Sequence[Any]) -> Sequence[jax.Array]:
        """Return the leaves that the pieces belong to, each once."""
        return self._whole(values)

    def of(self, values: Sequence[Any]) -> Sequence[jax.Array]:
        """Return the single-device arrays of a tree, from its leaves.

        Raises:
            Unsupported: another thread donated an array meanwhile; or a piece lies on another
                device than in the tree that was planned.
        """
        if not self._devices:
            return self._pick(values)
        try:
            held = _all_pieces(self._several(values))
            self._check_number(len(held))
            pieces = self._pick([*values, *held])
            devices = list(map(_DEVICES, self._of_several(pieces)))
        except (TypeError, RuntimeError) as error:
            self.refuse_deleted(values, error)
            raise
        if devices != self._devices:
            self._refuse_elsewhere(devices)
        return pieces

    def _check_number(self, n_held: int) -> None:
        if n_held != self._n_held:
            raise Unsupported(
                f"Arrays have {n_held} pieces on the devices of this process, and had "
                f"{self._n_held} under equal shardings before. Take a new handler."
            )

    def refuse_deleted(self, values: Sequence[Any], error: Exception | None) -> None:
        """Raise Unsupported that names the first leaf that is deleted, if there is such."""
        for leaf, array in zip(self._leaves, self._whole(values), strict=True):
            if array.is_deleted():
                raise Unsupported(
                    f"Leaf {path_text(self._specs[leaf].path)!r} was deleted or donated by another "
                    "thread while it was saved; nothing was written. Save before donating."
                ) from error

    def _refuse_elsewhere(self, devices: Sequence[set[Device]]) -> NoReturn:
        found, wanted = next(
            (found, wanted)
            for found, wanted in zip(devices, self._devices, strict=True)
            if found != wanted
        )
        raise Unsupported(
            f"A piece of an array lies on {found}, not on {wanted} as in an array of an equal "
            "sharding before. Reshard it, or take a new handler."
        )


def _all_pieces(arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """Return the pieces of all arrays.

    Raises:
        TypeError, RuntimeError: one is deleted.
    """
    try:
        return list(chain.from_iterable(map(_AT_ONCE, arrays)))
    except AttributeError:
        return list(chain.from_iterable(map(pieces_of, arrays)))
