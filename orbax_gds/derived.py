"""Derived shards: boxes of leaves whose words follow from those of another leaf. FORMAT §4.2."""

import enum
import functools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np

from orbax_gds.manifest import Manifest, path_text
from orbax_gds.plan import Indices, StoredShard

FEATURE = "derived"
"""What an item with derived shards names in `requires`. FORMAT §9."""


MAX_LOOKS = 1 << 25
"""Pairs of boxes that are compared when an item is opened, about 0.2 s; our own items need none.

FORMAT §4.2 lets a reader refuse what would take more.
"""


class Rule(enum.IntEnum):
    """How the words follow from those of the source."""

    COPY = 1
    ROUND = 2

    def fits(self, source: str | None, target: str | None) -> bool:
        """Return whether words of the one dtype can follow from words of the other."""
        if self is Rule.COPY:
            return source is not None and source == target
        return (source, target) == ("float32", "bfloat16")


class DerivedShard(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A shard that is not stored: one record of the layout.

    Attributes:
        leaf, start, extent: the box, in elements.
        source: the leaf that its words follow from, by those in the same box.
        rule: how.
    """

    leaf: int
    start: Indices
    extent: Indices
    source: int
    rule: Rule

    @property
    def n_elements(self) -> int:
        """Number of elements in the box."""
        return math.prod(self.extent)


class DerivedBoxes:
    """The derived shards of one leaf, to be asked for boxes many times.

    Attributes:
        shards: at least one, all of one rank.
    """

    def __init__(self, shards: Sequence[DerivedShard]) -> None:
        self.shards = shards
        self._known: dict[tuple[Indices, Indices], DerivedShard] = {}
        for shard in shards:
            self._known.setdefault((shard.start, shard.extent), shard)

    def equal_to(self, start: Indices, extent: Indices) -> DerivedShard | None:
        """Return a shard with just this box, at the cost of a look into a dictionary."""
        return self._known.get((start, extent))

    def meeting(self, start: Indices, extent: Indices) -> list[DerivedShard]:
        """Return the shards that share an element with a box; every one of them is looked at."""
        low = np.array(start, np.int64)
        starts, ends = self._edges
        meets = (starts < low + np.array(extent, np.int64)) & (low < ends)
        return [self.shards[i] for i in np.flatnonzero(meets.all(axis=1)).tolist()]

    @functools.cached_property
    def _edges(self) -> tuple[np.ndarray, np.ndarray]:
        """Starts and ends of the boxes: int64[shards, rank] each."""
        rank = len(self.shards[0].start)
        starts = np.array([s.start for s in self.shards], np.int64).reshape(-1, rank)
        return starts, starts + np.array([s.extent for s in self.shards], np.int64).reshape(
            -1, rank
        )


def by_leaf(derived: Iterable[DerivedShard]) -> dict[int, DerivedBoxes]:
    """Group derived shards by their leaf; those of one leaf have its rank."""
    groups: dict[int, list[DerivedShard]] = defaultdict(list)
    for shard in derived:
        groups[shard.leaf].append(shard)
    return {leaf: DerivedBoxes(shards) for leaf, shards in groups.items()}


def problems(
    manifest: Manifest, stored: Iterable[StoredShard], derived: Sequence[DerivedShard]
) -> Iterator[tuple[DerivedShard, str]]:
    """Find the derived shards that have no source, or one that they cannot follow from.

    Args:
        manifest: of the item.
        stored, derived: all shards of the item; whether they tile its leaves is not checked here.

    Returns:
        The shards, and what is wrong with them.
    """
    sound = []
    for shard in derived:
        if problem := _misfit(shard, manifest):
            yield shard, problem
        else:
            sound.append(shard)
    if sound and FEATURE not in manifest.requires:
        yield sound[0], f"there are derived shards, but `requires` does not name {FEATURE!r}"
    for shard, what in _chained(stored, sound):
        leaf, source = (path_text(manifest.leaves[i].path) for i in (shard.leaf, shard.source))
        yield shard, f"leaf {leaf!r} is derived from {source!r}, which is {what}"


def _misfit(shard: DerivedShard, manifest: Manifest) -> str | None:
    """Return why a shard cannot follow from its source by what the manifest says, else None."""
    for number in (shard.leaf, shard.source):
        if number >= len(manifest.leaves) or not manifest.leaves[number].has_words:
            return (
                f"leaf {shard.leaf} is derived from leaf {shard.source}, but {number} is none of "
                f"the {len(manifest.leaves)} leaves or has no words"
            )
    leaf, source = manifest.leaves[shard.leaf], manifest.leaves[shard.source]
    same = leaf.shape == source.shape and len(leaf.shape or ()) == len(shard.extent)
    if same and shard.rule.fits(source.dtype, leaf.dtype):
        return None
    return (
        f"leaf {path_text(leaf.path)!r}, {leaf.dtype}{list(leaf.shape or ())}, is derived from "
        f"{path_text(source.path)!r}, {source.dtype}{list(source.shape or ())}, "
        f"by {shard.rule.name.lower()} in a box of {list(shard.extent)}, which is impossible"
    )


def _chained(
    stored: Iterable[StoredShard], derived: Sequence[DerivedShard]
) -> Iterator[tuple[DerivedShard, str]]:
    """Find the derived shards whose source is derived itself somewhere in their box, and say so."""
    leaves = by_leaf(derived)
    maybe = [shard for shard in derived if shard.source in leaves]
    sources = {shard.source for shard in maybe}
    whole = {(s.leaf, s.start, s.extent) for s in stored if s.leaf in sources}
    n_looks = 0
    for shard in maybe:
        boxes = leaves[shard.source]
        if (shard.source, shard.start, shard.extent) in whole:
            continue  # as every shard of ours: one that is stored, and no other is there
        if boxes.equal_to(shard.start, shard.extent):
            yield shard, "itself derived there"
            continue
        n_looks += len(boxes.shards)
        if n_looks > MAX_LOOKS:
            yield shard, "itself derived in so many boxes that it would take too long to look there"
            return
        if boxes.meeting(shard.start, shard.extent):
            yield shard, "itself derived there"
