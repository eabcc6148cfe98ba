"""Pure planning of a restore: wanted boxes and stored shards → the chunks to read, and where to.

The counterpart of plan.py. A *want* is a box of a leaf with a buffer of its own; it may overlap
any number of shards, and a shard's chunks any number of wants.
"""

import dataclasses
import itertools
import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from orbax_gds.dtypes import Dtype
from orbax_gds.errors import Corrupt
from orbax_gds.plan import Indices, ShardBox, StoredShard, cell_counts, cell_sizes

MAX_GAP_BYTES = 64 << 10  # chosen: reading over a gap this small is cheaper than another read
READ_BYTES = 4 << 20  # chosen: stored bytes of one read and decode call


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Overlap:
    """A wanted box meets a stored shard."""

    want: int
    shard: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChunkTable:
    """What the layout says of each chunk of a stripe.

    Attributes:
        n_words: uint32[n_chunks].
        dtypes: uint8[n_chunks], dtype ids.
    """

    n_words: np.ndarray
    dtypes: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class Read:
    """Chunks of one stripe that are read at once and decoded by one call.

    Attributes:
        offset, n_bytes: the range of the file.
        chunks: chunk numbers, ascending.
        overlaps: what wants a part of them.
    """

    offset: int
    n_bytes: int
    chunks: np.ndarray
    overlaps: tuple[Overlap, ...]


def chunk_table(
    shards: Sequence[StoredShard], dtypes: Sequence[Dtype | None], n_chunks: int, where: str
) -> ChunkTable:
    """Work out the words and dtype of every chunk, and check that the layout is one.

    Raises:
        Corrupt: a chunk is missing, given twice, or a pool has a gap or an overlap.
    """
    n_words = np.zeros(n_chunks, np.int64)
    ids = np.zeros(n_chunks, np.uint8)
    pools: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for shard in shards:
        dtype = dtypes[shard.leaf] if shard.leaf < len(dtypes) else None
        end = shard.first_chunk + shard.n_chunks
        if dtype is None or end > n_chunks:
            raise Corrupt(
                f"{where}: a shard of leaf {shard.leaf} names chunks {shard.first_chunk} to {end} "
                f"of {n_chunks}, or a leaf without words. The layout is damaged."
            )
        own = slice(shard.first_chunk, end)
        if shard.pooled:
            words = math.prod(shard.extent) * dtype.words_per_element
            pools[shard.first_chunk].append((shard.word_offset, words))
            fits = ids[own][0] in (0, dtype.id)
        else:
            n_words[own] = cell_sizes(shard.extent, shard.chunk_extent) * dtype.words_per_element
            fits = not ids[own].any()
        if not fits:
            raise Corrupt(f"{where}: chunk {shard.first_chunk} is given to two shards.")
        ids[own] = dtype.id
    for chunk, pieces in pools.items():
        n_words[chunk] = _pool_words(sorted(pieces), n_words[chunk], f"{where}: pooled {chunk}")
    if not ids.all() or (n_chunks and n_words.max() > 1 << 28):
        raise Corrupt(f"{where}: a chunk has no shard or more than 2^28 words.")
    return ChunkTable(n_words=n_words.astype(np.uint32), dtypes=ids)


def _pool_words(pieces: list[tuple[int, int]], other: int, where: str) -> int:
    at = 0
    for offset, words in pieces:
        if offset != at or other:
            raise Corrupt(f"{where}: word {at} belongs to no shard or to two.")
        at += words
    return at


def check_coverage(leaf: str, shape: Indices, boxes: Sequence[ShardBox | StoredShard]) -> None:
    """Check that boxes tile a leaf: every element in exactly one.

    Raises:
        Corrupt: an element is in no box or in two, or a box reaches outside.
    """
    covered = sum(box.n_elements for box in boxes)
    inside = all(
        len(box.extent) == len(shape)
        and all(s + e <= n for s, e, n in zip(box.start, box.extent, shape, strict=True))
        for box in boxes
    )
    if not inside or covered != math.prod(shape) or (len(boxes) > 1 and _any_overlap(boxes)):
        raise Corrupt(
            f"Leaf {leaf!r} of shape {list(shape)} is not tiled by its {len(boxes)} shards: "
            f"they hold {covered} of {math.prod(shape)} elements. A stripe or the manifest "
            "belongs to another item; restore another step or a copy of this one."
        )


def _any_overlap(boxes: Sequence[ShardBox | StoredShard]) -> bool:
    starts = np.array([box.start for box in boxes], np.int64)
    ends = starts + np.array([box.extent for box in boxes], np.int64)
    for i in range(len(boxes) - 1):
        apart = (starts[i + 1 :] >= ends[i]) | (ends[i + 1 :] <= starts[i])
        if not apart.any(axis=1).all():
            return True
    return False


def plan_reads(
    shards: Sequence[StoredShard], wants: Sequence[ShardBox], offsets: np.ndarray, sizes: np.ndarray
) -> list[Read]:
    """Find the chunks of a stripe that the wants need and group them into reads.

    Args:
        shards: the stripe's layout.
        wants: boxes; want i is restored into buffer i.
        offsets, sizes: int64[n_chunks], the frames' places in the file.

    Returns:
        Reads in the order of the file. Every chunk that meets a want is in exactly one.
    """
    by_leaf: dict[int, list[int]] = defaultdict(list)
    for i, want in enumerate(wants):
        by_leaf[want.leaf].append(i)
    users: dict[int, list[Overlap]] = defaultdict(list)
    for j, shard in enumerate(shards):
        for i in by_leaf.get(shard.leaf, ()):
            for chunk in _chunks_met(shard, wants[i]):
                users[chunk].append(Overlap(want=i, shard=j))
    needed = sorted(users)
    reads = []
    for first, end in _groups(needed, offsets, sizes):
        chunks = np.array(needed[first:end], np.int64)
        overlaps = dict.fromkeys(itertools.chain.from_iterable(users[c] for c in needed[first:end]))
        offset = int(offsets[chunks[0]])
        n_bytes = int(offsets[chunks[-1]] + sizes[chunks[-1]]) - offset
        reads.append(Read(offset=offset, n_bytes=n_bytes, chunks=chunks, overlaps=tuple(overlaps)))
    return reads


def _chunks_met(shard: StoredShard, want: ShardBox) -> Sequence[int]:
    """Return the numbers of the chunks of a shard that a box meets."""
    if want.start == shard.start and want.extent == shard.extent:
        return range(shard.first_chunk, shard.first_chunk + shard.n_chunks)
    numbers = np.full(1, 0, np.int64)
    counts = cell_counts(shard.extent, shard.chunk_extent)
    for axis, count in enumerate(counts):
        low = max(want.start[axis], shard.start[axis]) - shard.start[axis]
        high = (
            min(want.start[axis] + want.extent[axis], shard.start[axis] + shard.extent[axis])
            - shard.start[axis]
        )
        if low >= high:
            return ()
        step = shard.chunk_extent[axis]
        along = np.arange(low // step, (high - 1) // step + 1)
        numbers = np.add.outer(numbers * count, along).reshape(-1)
    return (numbers + shard.first_chunk).tolist()


def _groups(needed: Sequence[int], offsets: np.ndarray, sizes: np.ndarray) -> list[tuple[int, int]]:
    groups = []
    first = 0
    for i in range(1, len(needed) + 1):
        if i < len(needed):
            end = offsets[needed[i - 1]] + sizes[needed[i - 1]]
            grown = offsets[needed[i]] + sizes[needed[i]] - offsets[needed[first]]
            if offsets[needed[i]] - end <= MAX_GAP_BYTES and grown <= READ_BYTES:
                continue
        groups.append((first, i))
        first = i
    return groups if needed else []


def read_segments(
    read: Read,
    shards: Sequence[StoredShard],
    wants: Sequence[ShardBox],
    dtypes: Sequence[Dtype | None],
) -> tuple[np.ndarray, np.ndarray]:
    """Say where the words of a read's chunks go.

    Returns:
        segments: uint64[s, 4]: want, byte offset in its buffer, word offset in the chunk, n_words;
            in the order of the chunks.
        counts: uint32[len(read.chunks)], the number of segments of each.
    """
    pieces: list[np.ndarray] = [np.empty((0, 5), np.int64)]
    for overlap in read.overlaps:
        shard, want = shards[overlap.shard], wants[overlap.want]
        dtype = dtypes[shard.leaf]
        assert dtype is not None, "a stored shard has words"
        pieces.extend(_pieces(read.chunks, shard, overlap.want, want, dtype))
    table = np.concatenate(pieces)
    table = table[np.argsort(table[:, 0], kind="stable")]
    counts = np.bincount(np.searchsorted(read.chunks, table[:, 0]), minlength=len(read.chunks))
    return table[:, 1:].astype(np.uint64), counts.astype(np.uint32)


def _pieces(
    chunks: np.ndarray, shard: StoredShard, buffer: int, want: ShardBox, dtype: Dtype
) -> list[np.ndarray]:
    """Return rows of chunk number and segment for one overlap, for the chunks at hand."""
    low = np.searchsorted(chunks, shard.first_chunk)
    high = np.searchsorted(chunks, shard.first_chunk + shard.n_chunks)
    counts = cell_counts(shard.extent, shard.chunk_extent)
    found = []
    for chunk in chunks[low:high].tolist():
        cell = np.unravel_index(chunk - shard.first_chunk, counts) if counts else ()
        start = tuple(
            s + int(i) * step
            for s, i, step in zip(shard.start, cell, shard.chunk_extent, strict=True)
        )
        extent = tuple(
            min(step, s + n - at)
            for step, s, n, at in zip(
                shard.chunk_extent, shard.start, shard.extent, start, strict=True
            )
        )
        rows = _shared_rows(start, extent, want)
        if rows is None:
            continue
        in_chunk, in_want, n = rows
        piece = np.empty((len(in_chunk), 5), np.int64)
        piece[:, 0] = chunk
        piece[:, 1] = buffer
        piece[:, 2] = in_want * dtype.element_bytes
        piece[:, 3] = in_chunk * dtype.words_per_element + shard.word_offset
        piece[:, 4] = n * dtype.words_per_element
        found.append(piece)
    return found


def _shared_rows(
    start: Indices, extent: Indices, want: ShardBox
) -> tuple[np.ndarray, np.ndarray, int] | None:
    """Return the rows that a chunk's box and a wanted box share.

    Returns:
        Offsets of the rows in the chunk and in the want, in elements, and the elements of a row;
        None if the boxes do not meet. Rows are as long as both boxes allow.
    """
    low = tuple(map(max, start, want.start))
    high = tuple(
        min(s + n, t + m) for s, n, t, m in zip(start, extent, want.start, want.extent, strict=True)
    )
    if any(a >= b for a, b in zip(low, high, strict=True)):
        return None
    rank = len(extent)
    in_chunk = np.zeros(1, np.int64)
    in_want = np.zeros(1, np.int64)
    whole = rank  # from this axis on, rows of both boxes lie in one piece
    while whole and all(
        high[axis] - low[axis] == extent[axis] == want.extent[axis] for axis in range(whole, rank)
    ):
        whole -= 1
    for axis in range(rank):
        shared = np.arange(1 if axis >= whole else high[axis] - low[axis])
        in_chunk = np.add.outer(in_chunk * extent[axis], shared + (low[axis] - start[axis]))
        in_want = np.add.outer(in_want * want.extent[axis], shared + (low[axis] - want.start[axis]))
        in_chunk, in_want = in_chunk.reshape(-1), in_want.reshape(-1)
    n = math.prod(high[axis] - low[axis] for axis in range(whole, rank))
    return in_chunk, in_want, n
