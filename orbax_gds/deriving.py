"""Find shards whose words follow from others of the same process, so that they are not stored.

By content alone: a sample of the words groups the shards that may follow from one another, and
then every word is looked at. What a shard is called, or who made it from what, plays no role.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from orbax_gds import _native
from orbax_gds.derived import DerivedShard, Rule
from orbax_gds.dtypes import Dtype, dtype_by_name
from orbax_gds.manifest import LeafSpec
from orbax_gds.plan import StoredShard

_SAMPLE_WORDS = 64  # chosen: 1 µs a shard; words of two trained tensors differ in the first already
_MAX_SOURCES = 4  # chosen: shards that agree in the sample and yet differ are rare; bounds the time

_FLOAT32, _BFLOAT16 = dtype_by_name("float32"), dtype_by_name("bfloat16")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Member:
    """A shard among those that may follow from one another; `number` is its place in the plan."""

    number: int
    dtype: Dtype
    sample: bytes


def find_derived(
    shards: Sequence[StoredShard],
    buffers: Sequence[np.ndarray],
    leaves: Sequence[LeafSpec],
    n_threads: int,
) -> dict[int, DerivedShard]:
    """Find the shards whose words all follow from those of another.

    Args:
        shards: of this process, in the order of their leaves; pooled ones are left alone.
        buffers: uint8[n] for each shard, its words.
        leaves: what the manifest says of every leaf.
        n_threads: how many look at words at once.

    Returns:
        The derived shards by their position in `shards`. The same for the same words, whatever
        the number of threads. A source is never derived itself.
    """
    groups = list(_groups(shards, buffers, leaves))
    if not groups:
        return {}

    def follow(group: list[_Member]) -> list[tuple[int, int, Rule]]:
        return list(_follow(group, buffers))

    derived: dict[int, DerivedShard] = {}
    with ThreadPoolExecutor(min(n_threads, len(groups))) as threads:
        for found in threads.map(follow, groups):
            for number, source, rule in found:
                shard = shards[number]
                derived[number] = DerivedShard(
                    leaf=shard.leaf,
                    start=shard.start,
                    extent=shard.extent,
                    source=shards[source].leaf,
                    rule=rule,
                )
    return derived


def _groups(
    shards: Sequence[StoredShard], buffers: Sequence[np.ndarray], leaves: Sequence[LeafSpec]
) -> Iterator[list[_Member]]:
    """Yield the shards of one box, of leaves of one shape, whose samples follow from another."""
    places: dict[Hashable, list[int]] = defaultdict(list)
    for number, shard in enumerate(shards):
        if not shard.pooled:
            leaf = leaves[shard.leaf]
            # What can be rounded stands with what it is rounded from.
            kind = _FLOAT32.name if leaf.dtype == _BFLOAT16.name else leaf.dtype
            places[leaf.shape, shard.start, shard.extent, kind].append(number)
    for numbers in places.values():
        if len(numbers) < 2:
            continue
        groups: dict[bytes, list[_Member]] = defaultdict(list)
        for number in numbers:
            dtype = dtype_by_name(leaves[shards[number].leaf].dtype or "")
            words = buffers[number].view(dtype.word_dtype)
            sample = words[:: max(1, len(words) // _SAMPLE_WORDS)][:_SAMPLE_WORDS]
            member = _Member(number=number, dtype=dtype, sample=sample.tobytes())
            groups[_rounded(sample) if dtype is _FLOAT32 else member.sample].append(member)
        yield from (group for group in groups.values() if len(group) > 1)


def _rounded(words: np.ndarray) -> bytes:
    """Return what float32 words become by rule 2 of FORMAT §4.2: uint32[n] as bytes of uint16."""
    high = words >> 16
    nearest = (words.astype(np.uint64) + 32767 + (high & 1)) >> 16
    is_nan = (words & 0x7FFFFFFF) > 0x7F800000
    return np.where(is_nan, high | 64, nearest).astype(np.uint16).tobytes()


def _follow(
    group: Sequence[_Member], buffers: Sequence[np.ndarray]
) -> Iterator[tuple[int, int, Rule]]:
    """Yield which member follows from which, and by what rule; what others follow from is kept."""
    kept: list[_Member] = []
    for member in sorted(group, key=lambda m: (m.dtype is _BFLOAT16, m.number)):
        tried = 0
        for source in kept:
            rule = Rule.COPY if source.dtype is member.dtype else Rule.ROUND
            if tried == _MAX_SOURCES or (rule == Rule.COPY and source.sample != member.sample):
                continue
            tried += 1
            if _native.derives(buffers[source.number], buffers[member.number], rule):
                yield member.number, source.number, rule
                break
        else:
            kept.append(member)
