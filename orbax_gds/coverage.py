"""Whether the boxes of a leaf's shards tile it: every element in exactly one."""

import math
from collections.abc import Hashable, Sequence

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
    starts = np.array([start for start, _ in cuts], np.int64).reshape(len(cuts), len(shape))
    extents = np.array([extent for _, extent in cuts], np.int64).reshape(starts.shape)
    random = np.random.default_rng()
    products = np.ones((1 + len(cuts), 2), np.uint64)  # of the shape, then of the boxes
    for axis, n in enumerate(shape):
        low = np.concatenate(([0], starts[:, axis]))
        high = np.concatenate(([n], starts[:, axis] + extents[:, axis]))
        edges, places = np.unique(np.concatenate((low, high)), return_inverse=True)
        points = random.integers(_PRIME, size=(len(edges), 2), dtype=np.uint64)
        of_low, of_high = points[places].reshape(2, -1, 2)
        products = products * ((of_high + _PRIME - of_low) % _PRIME) % _PRIME
    return bool((products[1:].sum(axis=0) % _PRIME == products[0]).all())
