"""Derived shards: boxes of leaves whose words follow from those of another leaf. FORMAT §4.2."""

import dataclasses
import enum
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from orbax_gds.manifest import Manifest, path_text
from orbax_gds.plan import Indices, ShardBox, StoredShard

FEATURE = "derived"
"""What an item with derived shards names in `requires`. FORMAT §9."""


class Rule(enum.IntEnum):
    """How the words follow from those of the source."""

    COPY = 1
    ROUND = 2

    def fits(self, source: str | None, target: str | None) -> bool:
        """Return whether words of the one dtype can follow from words of the other."""
        if self is Rule.COPY:
            return source is not None and source == target
        return (source, target) == ("float32", "bfloat16")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DerivedShard:
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


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Stored words that a want is made of.

    Attributes:
        leaf, start, extent: the box that is read: of the wanted leaf, or of a source of it.
        want: number of the want.
        into: the want, whose box this one is a part of.
        rule: how the words that are read become those that are wanted.
    """

    leaf: int
    start: Indices
    extent: Indices
    want: int
    into: ShardBox
    rule: Rule = Rule.COPY

    @property
    def is_whole(self) -> bool:
        """Whether the want needs nothing else."""
        return self.start == self.into.start and self.extent == self.into.extent


def parts_of(
    wants: Sequence[ShardBox], derived: Mapping[int, Sequence[DerivedShard]]
) -> list[Part]:
    """Say which boxes of stored leaves the wants are made of.

    Args:
        wants: boxes inside their leaves; empty ones are allowed.
        derived: the derived shards of an item, by leaf.

    Returns:
        For each want its own box, as far as that is stored, and boxes of the sources of the rest.
    """
    parts = []
    for i, want in enumerate(wants):
        box = {"want": i, "into": want}
        parts.append(Part(leaf=want.leaf, start=want.start, extent=want.extent, **box))
        for shard in derived.get(want.leaf, ()):
            shared = _shared(shard, want)
            if shared is not None:
                start, extent = shared
                parts.append(
                    Part(leaf=shard.source, start=start, extent=extent, rule=shard.rule, **box)
                )
    return parts


def _shared(shard: DerivedShard, want: ShardBox) -> tuple[Indices, Indices] | None:
    if (shard.start, shard.extent) == (want.start, want.extent):
        return shard.start, shard.extent
    low = tuple(map(max, shard.start, want.start))
    ends = (map(sum, zip(box.start, box.extent, strict=True)) for box in (shard, want))
    extent = tuple(high - at for high, at in zip(map(min, *ends), low, strict=True))
    return (low, extent) if min(extent, default=1) > 0 else None


def by_leaf(derived: Iterable[DerivedShard]) -> dict[int, list[DerivedShard]]:
    """Group derived shards by their leaf."""
    groups: dict[int, list[DerivedShard]] = defaultdict(list)
    for shard in derived:
        groups[shard.leaf].append(shard)
    return groups


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
    for shard in _chained(stored, sound):
        leaf, source = (path_text(manifest.leaves[i].path) for i in (shard.leaf, shard.source))
        yield shard, f"leaf {leaf!r} is derived from {source!r}, which is itself derived there"


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
) -> Iterator[DerivedShard]:
    """Find the derived shards whose source is derived itself somewhere in their box."""
    leaves = by_leaf(derived)
    chained = [shard for shard in derived if shard.source in leaves]
    sources = {shard.source for shard in chained}
    whole = {(s.leaf, s.start, s.extent) for s in stored if s.leaf in sources}
    boxes: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for shard in chained:
        if (shard.source, shard.start, shard.extent) in whole:
            continue  # as every shard of ours: one that is stored, and no other is there
        if shard.source not in boxes:
            starts = np.array([s.start for s in leaves[shard.source]], np.int64)
            extents = np.array([s.extent for s in leaves[shard.source]], np.int64)
            boxes[shard.source] = starts, starts + extents
        starts, ends = boxes[shard.source]
        start = np.array(shard.start, np.int64)
        meets = (starts < start + np.array(shard.extent, np.int64)) & (start < ends)
        if meets.all(axis=1).any():
            yield shard
