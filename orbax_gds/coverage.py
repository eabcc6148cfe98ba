"""Whether the boxes of a leaf's shards tile it: every element in exactly one."""

import math
from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from orbax_gds.derived import DerivedShard
from orbax_gds.errors import Corrupt
from orbax_gds.plan import Indices, ShardBox, StoredShard

_PRIME = np.uint64(2**31 - 1)  # products of two numbers below it fit 64 bits


def check_coverage(
    leaf: str,
    shape: Indices,
    boxes: Sequence[ShardBox | StoredShard | DerivedShard],
    known: dict[Hashable, bool] | None = None,
) -> None:
    """Check that boxes tile a leaf: every element in exactly one.

    Args:
        leaf: its path, for the message.
        shape: its global shape.
        boxes: in elements; each start and extent is below 2^62.
        known: pass the same empty dict for all leaves of an item, and those that are cut alike
            are worked out once.

    Raises:
        Corrupt: an element is in no box or in two, or a box reaches outside.
    """
    cuts = tuple((box.start, box.extent) for box in boxes)
    known = {} if known is None else known
    if (shape, cuts) not in known:
        known[shape, cuts] = cuts == (((0,) * len(shape), shape),) or _tile(shape, cuts)
    if not known[shape, cuts]:
        covered = sum(box.n_elements for box in boxes)
        raise Corrupt(
            f"Leaf {leaf!r} of shape {list(shape)} is not tiled by its {len(boxes)} shards: "
            f"they hold {covered} of {math.prod(shape)} elements. A stripe or the manifest "
            "belongs to another item; restore another step or a copy of this one."
        )


def _tile(shape: Indices, cuts: Sequence[tuple[Indices, Indices]]) -> bool:
    """Return whether boxes cover every element of a shape once, in time O(n log n).

    Give every coordinate of every axis a variable X. Then boxes tile the shape just if
    Σ ∏ (X[end] - X[start]), the sum over the boxes and the product over the axes, is the same
    polynomial as ∏ (X[n] - X[0]): inside, every box's corners must cancel those of its neighbours.
    Two polynomials are compared at random points, modulo a prime. Equal ones always agree there;
    others do by a chance below (rank / 2^31)^2, and nobody can know the points beforehand.
    """
    if any(len(extent) != len(shape) for _, extent in cuts):
        return False
    whole = ((0,) * len(shape), shape)
    both = np.array([whole, *cuts], np.int64).reshape(1 + len(cuts), 2, len(shape))
    products = _products(both[:, 0], both[:, 0] + both[:, 1])
    return bool((products[1:].sum(axis=0) % _PRIME == products[0]).all())


def _products(lows: np.ndarray, highs: np.ndarray) -> np.ndarray:
    """Return ∏ (X[high] - X[low]) of boxes of one rank, at two random points: uint64[boxes, 2].

    Args:
        lows, highs: int64[boxes, rank].
    """
    random = np.random.default_rng()
    products = np.ones((len(lows), 2), np.uint64)
    for low, high in zip(lows.T, highs.T, strict=True):
        edges, places = np.unique(np.concatenate((low, high)), return_inverse=True)
        points = random.integers(_PRIME, size=(len(edges), 2), dtype=np.uint64)
        of_low, of_high = points[places].reshape(2, -1, 2)
        products = products * ((of_high + _PRIME - of_low) % _PRIME) % _PRIME
    return products


def untiled(
    shapes: Sequence[Indices | None], boxes: Mapping[int, tuple[np.ndarray, ...]]
) -> np.ndarray:
    """Return the leaves that boxes do not tile, as `check_coverage` does but all leaves at once.

    Args:
        shapes: of every leaf; None for a leaf without words, which no box may name.
        boxes: by rank, the boxes of all leaves: number of the leaf, uint32[boxes], start and
            extent, uint64[boxes, rank]; each of these is below 2^62 and no extent is 0.

    Returns:
        Numbers of leaves, ascending; also such as there are none of.
    """
    ranks = np.array([-1 if shape is None else len(shape) for shape in shapes], np.int64)
    found: set[int] = set()
    for rank in {*ranks.tolist(), *boxes} - {-1}:
        members = np.flatnonzero(ranks == rank)
        wholes = np.array([shapes[leaf] for leaf in members.tolist()], np.int64).reshape(
            len(members), rank
        )
        nothing = np.zeros((0, rank), np.uint64)
        leaf, start, extent = boxes.get(rank, (np.zeros(0, np.uint32), nothing, nothing))
        place = np.searchsorted(members, leaf)
        known = np.isin(leaf, members)
        found.update(leaf[~known].tolist())
        lows = np.concatenate((np.zeros_like(wholes), start.astype(np.int64)))
        highs = np.concatenate((wholes, (start + extent).astype(np.int64)))
        of_leaves, of_boxes = np.split(_products(lows, highs), [len(members)])
        sums = np.zeros_like(of_leaves)
        np.add.at(sums, place[known], of_boxes[known])
        found.update(members[(sums % _PRIME != of_leaves).any(axis=1)].tolist())
    return np.array(sorted(found), np.int64)
