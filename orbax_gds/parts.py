"""What wanted boxes are made of: stored words of their own leaf, or of sources of derived ones."""

import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from orbax_gds.derived import DerivedBoxes, DerivedShard, Rule
from orbax_gds.plan import Indices, ShardBox

__all__ = ["Part", "parts_of"]


class Part(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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


def parts_of(wants: Sequence[ShardBox], derived: Mapping[int, DerivedBoxes]) -> list[Part]:
    """Say which boxes of stored leaves the wants are made of.

    Args:
        wants: boxes inside their leaves; empty ones are allowed.
        derived: the derived shards of an item, by leaf; with the stored ones they tile the leaf.

    Returns:
        For each want boxes of the sources of what is derived in it, and its own box if that is
        not all of it.
    """
    parts = []
    for i, want in enumerate(wants):
        if 0 in want.extent:
            continue
        boxes = derived.get(want.leaf)
        if boxes is None:
            parts.append(
                Part(leaf=want.leaf, start=want.start, extent=want.extent, want=i, into=want)
            )
            continue
        n_derived = 0
        for shard, start, extent in _shared(boxes, want):
            part = Part(
                leaf=shard.source, start=start, extent=extent, want=i, into=want, rule=shard.rule
            )
            parts.append(part)
            n_derived += math.prod(extent)
        if n_derived < want.n_elements:
            parts.append(
                Part(leaf=want.leaf, start=want.start, extent=want.extent, want=i, into=want)
            )
    return parts


def _shared(boxes: DerivedBoxes, want: ShardBox) -> Iterator[tuple[DerivedShard, Indices, Indices]]:
    """Yield the derived shards that meet a want, and start and extent of what they share."""
    equal = boxes.equal_to(want.start, want.extent)
    if equal is not None:
        yield equal, want.start, want.extent
        return
    for shard in boxes.meeting(want.start, want.extent):
        low = tuple(map(max, shard.start, want.start))
        ends = (map(sum, zip(box.start, box.extent, strict=True)) for box in (shard, want))
        extent = tuple(high - at for high, at in zip(map(min, *ends), low, strict=True))
        yield shard, low, extent
