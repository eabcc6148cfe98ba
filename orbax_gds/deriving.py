"""Find shards whose words follow from others of the same process, so that they are not stored.

By content alone: a sample of the words groups the shards that may follow from one another, and
then every word is looked at. What a shard is called, or who made it from what, plays no role.
"""

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence

import numpy as np

from orbax_gds import _native
from orbax_gds.derived import DerivedShard, Rule
from orbax_gds.dtypes import Dtype, dtype_by_name
from orbax_gds.manifest import LeafSpec
from orbax_gds.plan import StoredShard
from orbax_gds.threads import run_tasks

_SAMPLE_WORDS = 64  # chosen: 1 µs a shard; words of two trained tensors differ in the first already
_MAX_SOURCES = 4  # chosen: shards that agree in the sample and yet differ are rare; bounds the time

_FLOAT32, _BFLOAT16 = "float32", "bfloat16"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Member:
    """A shard among those that may follow from one another; `number` is its place in the plan."""

    number: int
    dtype: str
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
    found: list[tuple[int, int, Rule]] = []
    n_threads = min(n_threads, len(groups))
    run_tasks(groups, lambda group: found.extend(list(_follow(group, buffers))), n_threads)
    return {
        number: DerivedShard(
            leaf=shards[number].leaf,
            start=shards[number].start,
            extent=shards[number].extent,
            source=shards[source].leaf,
            rule=rule,
        )
        for number, source, rule in sorted(found)
    }


def _groups(
    shards: Sequence[StoredShard], buffers: Sequence[np.ndarray], leaves: Sequence[LeafSpec]
) -> Iterator[list[_Member]]:
    """Yield the shards of one box, of leaves of one shape, whose samples follow from another."""
    places: dict[Hashable, dict[str, list[int]]] = defaultdict(dict)
    for number, shard in enumerate(shards):
        leaf = leaves[shard.leaf]
        if not shard.pooled and leaf.dtype is not None:
            kinds = places[leaf.shape, shard.start, shard.extent]
            kinds.setdefault(leaf.dtype, []).append(number)
    for kinds in places.values():
        can_round = _FLOAT32 in kinds and _BFLOAT16 in kinds
        groups: dict[tuple[str, bytes], list[_Member]] = defaultdict(list)
        for name, numbers in kinds.items():
            if len(numbers) == 1 and not (can_round and name in (_FLOAT32, _BFLOAT16)):
                continue
            is_rounded = can_round and name == _FLOAT32
            samples = _samples([buffers[number] for number in numbers], dtype_by_name(name))
            keys = _rounded(samples) if is_rounded else samples
            for number, sample, key in zip(numbers, samples, keys, strict=True):
                member = _Member(number=number, dtype=name, sample=sample.tobytes())
                groups[_BFLOAT16 if is_rounded else name, key.tobytes()].append(member)
        yield from (group for group in groups.values() if len(group) > 1)


def _samples(buffers: Sequence[np.ndarray], dtype: Dtype) -> np.ndarray:
    """Return words from all over each of equally long buffers: [buffers, words]."""
    step = max(1, len(buffers[0]) // dtype.container_bytes // _SAMPLE_WORDS)
    return np.stack([buffer.view(dtype.word_dtype)[::step][:_SAMPLE_WORDS] for buffer in buffers])


def _rounded(words: np.ndarray) -> np.ndarray:
    """Return what float32 words become by rule 2 of FORMAT §4.2: uint32 as uint16."""
    high = words >> 16
    nearest = (words.astype(np.uint64) + 32767 + (high & 1)) >> 16
    is_nan = (words & 0x7FFFFFFF) > 0x7F800000
    return np.where(is_nan, high | 64, nearest).astype(np.uint16)


def _follow(
    group: Sequence[_Member], buffers: Sequence[np.ndarray]
) -> Iterator[tuple[int, int, Rule]]:
    """Yield which member follows from which, and by what rule; what others follow from is kept."""
    floats: list[_Member] = []  # of the kept ones, those that others may be rounded from
    alike: dict[tuple[str, bytes], list[_Member]] = defaultdict(list)
    for member in sorted(group, key=lambda m: (m.dtype == _BFLOAT16, m.number)):
        same = alike[member.dtype, member.sample]
        rounds = floats if member.dtype == _BFLOAT16 else ()
        for source in itertools.islice(itertools.chain(rounds, same), _MAX_SOURCES):
            rule = Rule.COPY if source.dtype == member.dtype else Rule.ROUND
            if _native.derives(buffers[source.number], buffers[member.number], rule):
                yield member.number, source.number, rule
                break
        else:
            same.append(member)
            if member.dtype == _FLOAT32:
                floats.append(member)
