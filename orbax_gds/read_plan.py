"""Pure planning of a restore: wanted boxes and stored shards → the chunks to read, and where to.

The counterpart of plan.py. A *want* is a box of a leaf with a buffer of its own. Its parts, boxes
of stored leaves, may overlap any number of shards, and a shard's chunks any number of parts.
"""

import dataclasses
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from orbax_gds.derived import Rule
from orbax_gds.dtypes import Dtype
from orbax_gds.parts import Part
from orbax_gds.plan import (
    Indices,
    StoredShard,
    cell_counts,
    cell_sizes,
)
from orbax_gds.read_ranges import Link, groups, links_met, places

_SHORT_BYTES = 256  # chosen: NumPy copies rows below it: a segment takes more memory than one
MANY_ROWS = 256  # chosen: but only where there are more of them


class Overlap(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A part of a want meets a stored shard."""

    part: int
    shard: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Read:
    """Chunks of one stripe that are read at once and decoded by one call.

    Attributes:
        offset, n_bytes: the range of the file.
        decoded_bytes: of all words that its frames, and those of the chain, come to.
        links: the ranges of files of its chain, the oldest first.
        chunks: chunk numbers, ascending.
        rows: int64[r, 6], chunk number and segment (as in `read_segments`) of whole shards.
        overlaps: what else wants a part of the chunks.
    """

    offset: int
    n_bytes: int
    decoded_bytes: int
    chunks: np.ndarray
    rows: np.ndarray
    overlaps: tuple[Overlap, ...]
    links: tuple[Link, ...] = ()

    @property
    def ranges(self) -> tuple[int, ...]:
        """Bytes of each range that is read."""
        return self.n_bytes, *(link.n_bytes for link in self.links)

    @property
    def all_bytes(self) -> int:
        """Bytes that are read, of all files."""
        return sum(self.ranges)


Links = Callable[[np.ndarray], Sequence[np.ndarray]]
"""Which frames of a chain chunks need: from their numbers to RECORD[k] of each link."""


class Wanted:
    """The parts that wants are made of, to be looked up by what a stripe stores.

    Attributes:
        parts: from `parts_of`; want i is restored into buffer i.
        by_leaf: their numbers by the leaf that is read.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts
        self.by_leaf = numbers_by_leaf(parts)
        self._whole: dict[Hashable, list[int]] = {}
        for i, part in enumerate(parts):
            if part.is_whole:
                self._whole.setdefault((part.leaf, part.start, part.extent), []).append(i)

    def whole(self, shard: StoredShard) -> Sequence[int]:
        """Return the numbers of the parts that are a whole want and have the box of a shard."""
        return self._whole.get((shard.leaf, shard.start, shard.extent), ())


def numbers_by_leaf(boxes: Iterable[StoredShard | Part]) -> dict[int, list[int]]:
    """Return the numbers, in order, of the boxes of each leaf."""
    numbers: dict[int, list[int]] = {}
    for i, box in enumerate(boxes):
        if box.leaf in numbers:
            numbers[box.leaf].append(i)
        else:
            numbers[box.leaf] = [i]
    return numbers


def plan_reads(
    shards: Sequence[StoredShard],
    by_leaf: Mapping[int, Sequence[int]],
    wanted: Wanted,
    dtypes: Sequence[Dtype | None],
    offsets: np.ndarray,
    sizes: np.ndarray,
    decoded: np.ndarray,
    links: Links = lambda chunks: (),
) -> list[Read]:
    """Find the chunks of a stripe that the wants need and group them into reads.

    Shards of leaves that nobody wants are not looked at.

    Args:
        shards: what the stripe's layout stores.
        by_leaf: their `numbers_by_leaf`.
        wanted: what is wanted, of any stripe.
        dtypes: dtype of every leaf.
        offsets, sizes: int64[n_chunks], the frames' places in the file.
        decoded: int64[n_chunks], bytes of their words.
        links: which frames of other files the chunks need.

    Returns:
        Reads in the order of the file. Every chunk that meets a part is in exactly one.
    """
    leaves = sorted(wanted.by_leaf.keys() & by_leaf.keys())
    rows, taken = _whole_shards(
        [shards[j] for leaf in leaves for j in by_leaf[leaf]], wanted, dtypes
    )
    users: dict[int, list[Overlap]] = defaultdict(list)
    for leaf in leaves:
        left = [i for i in wanted.by_leaf[leaf] if i not in taken]
        for j in by_leaf[leaf] if left else ():
            for i in left:
                for chunk in _chunks_met(shards[j], wanted.parts[i]):
                    users[chunk].append(Overlap(part=i, shard=j))
    needed = np.unique(np.concatenate((rows[:, 0], np.array(list(users), np.int64))))
    reads = []
    rows_of = [np.asarray(link) for link in links(needed)]
    files = [(offsets[needed], sizes[needed]), *map(places, rows_of)]
    work = decoded[needed] * np.sum([sizes > 0 for _, sizes in files], axis=0)
    for first, end in groups(files, work):
        chunks = needed[first:end]
        used = (users.get(chunk, ()) for chunk in chunks.tolist())
        offset = int(offsets[chunks[0]])
        low, high = np.searchsorted(rows[:, 0], (chunks[0], chunks[-1] + 1))
        reads.append(
            Read(
                offset=offset,
                n_bytes=int(offsets[chunks[-1]] + sizes[chunks[-1]]) - offset,
                links=tuple(links_met([link[first:end] for link in rows_of])),
                decoded_bytes=int(work[first:end].sum()),
                chunks=chunks,
                rows=rows[low:high],
                overlaps=tuple(dict.fromkeys(itertools.chain.from_iterable(used))),
            )
        )
    return reads


def _whole_shards(
    shards: Sequence[StoredShard], wanted: Wanted, dtypes: Sequence[Dtype | None]
) -> tuple[np.ndarray, set[int]]:
    """Deal with the wants that are a whole shard, whose chunks need not be looked at one by one.

    Returns:
        int64[r, 6], as `Read.rows` but for all chunks, in their order; and the numbers of the
        parts that these deal with.
    """
    parts = wanted.parts
    single: list[tuple[int, ...]] = []  # of shards in one chunk
    cut = [np.empty((0, 6), np.int64)]
    taken: set[int] = set()
    for shard in shards:
        users = wanted.whole(shard)
        if not users or (shard.n_chunks > 1 and not _in_order(shard)):
            continue
        taken.update(users)
        dtype = _dtype(dtypes, shard.leaf)
        if shard.n_chunks == 1:
            n_words = shard.n_elements * dtype.words_per_element
            for part in [parts[i] for i in users]:
                place = part.want, 0, shard.word_offset, n_words, segment_rule(part)
                single.append((shard.first_chunk, *place))
            continue
        sizes = cell_sizes(shard.extent, shard.chunk_extent)
        for part in (parts[i] for i in users):
            rows = np.zeros((shard.n_chunks, 6), np.int64)
            rows[:, 0] = np.arange(shard.first_chunk, shard.first_chunk + shard.n_chunks)
            rows[:, 1] = part.want
            rows[:, 2] = (np.cumsum(sizes) - sizes) * _dtype(dtypes, part.into.leaf).element_bytes
            rows[:, 4] = sizes * dtype.words_per_element
            rows[:, 5] = segment_rule(part)
            cut.append(rows)
    table = np.concatenate((np.array(single, np.int64).reshape(-1, 6), *cut))
    return table[np.argsort(table[:, 0], kind="stable")], taken


def _dtype(dtypes: Sequence[Dtype | None], leaf: int) -> Dtype:
    dtype = dtypes[leaf]
    assert dtype is not None, f"leaf {leaf} is read but has no dtype"
    return dtype


def segment_rule(part: Part) -> int:
    """Return the rule of `decode_run`, to which the words of a copy are as they are stored."""
    return 0 if part.rule == Rule.COPY else part.rule


def _in_order(shard: StoredShard) -> bool:
    """Return whether the words of a shard's chunks, end to end, are its words in C order."""
    steps = list(zip(shard.extent, shard.chunk_extent, strict=True))
    while steps and steps[-1][0] <= steps[-1][1]:
        steps.pop()  # axes that no chunk cuts
    return all(min(n, step) == 1 for n, step in steps[:-1])


def _chunks_met(shard: StoredShard, want: Part) -> Sequence[int]:
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


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Strided:
    """A chunk and a part that share many short rows, which a table of segments would not pay for.

    Attributes:
        chunk: its number.
        start, extent: the box of the shard's words in it, in elements.
        word_offset: of these words in the chunk.
        part: the part.
    """

    chunk: int
    start: Indices
    extent: Indices
    word_offset: int
    part: Part


def copy_rows(strided: Strided, source: np.ndarray, target: np.ndarray) -> None:
    """Copy what a chunk and a part share.

    Args:
        strided: which.
        source: the words of the shard in the chunk, as those of the want: `[words]`.
        target: the words of the want: `[words]`.
    """
    part, want = strided.part, strided.part.into
    low, high = _shared_box(strided.start, strided.extent, part)
    views = []
    for words, start, extent in (
        (source, strided.start, strided.extent),
        (target, want.start, want.extent),
    ):
        rows = tuple(slice(a - at, b - at) for a, b, at in zip(low, high, start, strict=True))
        views.append(words.reshape(*extent, -1)[rows])
    views[1][...] = views[0]


def read_segments(
    read: Read,
    shards: Sequence[StoredShard],
    parts: Sequence[Part],
    dtypes: Sequence[Dtype | None],
) -> tuple[np.ndarray, np.ndarray, list[Strided]]:
    """Say where the words of a read's chunks go.

    Returns:
        segments: uint64[s, 5]: want, byte offset in its buffer, word offset in the chunk, n_words,
            rule (as in `decode_run`); in the order of the chunks.
        counts: uint32[len(read.chunks)], the number of segments of each.
        strided: what of the chunks is not in the segments.
    """
    pieces = [read.rows]
    strided: list[Strided] = []
    for overlap in read.overlaps:
        for piece in _pieces(read.chunks, shards[overlap.shard], parts[overlap.part], dtypes):
            if isinstance(piece, Strided):
                strided.append(piece)
            else:
                pieces.append(piece)
    table = np.concatenate(pieces)
    table = table[np.argsort(table[:, 0], kind="stable")]
    counts = np.bincount(np.searchsorted(read.chunks, table[:, 0]), minlength=len(read.chunks))
    return table[:, 1:].astype(np.uint64), counts.astype(np.uint32), strided


def _pieces(
    chunks: np.ndarray, shard: StoredShard, part: Part, dtypes: Sequence[Dtype | None]
) -> Iterator[np.ndarray | Strided]:
    """Yield what one overlap needs of the chunks at hand: rows as in `Read.rows`, or `Strided`."""
    dtype, into_dtype = _dtype(dtypes, shard.leaf), _dtype(dtypes, part.into.leaf)
    low = np.searchsorted(chunks, shard.first_chunk)
    high = np.searchsorted(chunks, shard.first_chunk + shard.n_chunks)
    counts = cell_counts(shard.extent, shard.chunk_extent)
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
        shared = _shared_box(start, extent, part)
        if any(a >= b for a, b in zip(*shared, strict=True)):
            continue
        whole = _whole_axes(shared, extent, part)
        n = math.prod(b - a for a, b in list(zip(*shared, strict=True))[whole:])
        n_rows = math.prod(b - a for a, b in list(zip(*shared, strict=True))[:whole])
        if n_rows > MANY_ROWS and n * into_dtype.element_bytes < _SHORT_BYTES:
            yield Strided(
                chunk=chunk, start=start, extent=extent, word_offset=shard.word_offset, part=part
            )
            continue
        in_chunk, in_want = _shared_rows(start, extent, part, shared, whole)
        piece = np.empty((len(in_chunk), 6), np.int64)
        piece[:, 0] = chunk
        piece[:, 1] = part.want
        piece[:, 2] = in_want * into_dtype.element_bytes
        piece[:, 3] = in_chunk * dtype.words_per_element + shard.word_offset
        piece[:, 4] = n * dtype.words_per_element
        piece[:, 5] = segment_rule(part)
        yield piece


def _shared_box(start: Indices, extent: Indices, part: Part) -> tuple[Indices, Indices]:
    """Return where the box that a chunk and a part share begins and ends, if they share one."""
    low = tuple(map(max, start, part.start))
    high = tuple(
        min(s + n, t + m) for s, n, t, m in zip(start, extent, part.start, part.extent, strict=True)
    )
    return low, high


def _whole_axes(shared: tuple[Indices, Indices], extent: Indices, part: Part) -> int:
    """Return the axis from which on the rows of chunk and want lie in one piece."""
    low, high = shared
    whole = rank = len(extent)
    while whole and all(
        high[axis] - low[axis] == extent[axis] == part.into.extent[axis]
        for axis in range(whole, rank)
    ):
        whole -= 1
    return whole


def _shared_rows(
    start: Indices, extent: Indices, part: Part, shared: tuple[Indices, Indices], whole: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the offsets of the shared rows in the chunk and in the want, in elements."""
    want = part.into
    low, high = shared
    in_chunk = np.zeros(1, np.int64)
    in_want = np.zeros(1, np.int64)
    for axis in range(len(extent)):
        along = np.arange(1 if axis >= whole else high[axis] - low[axis])
        in_chunk = np.add.outer(in_chunk * extent[axis], along + (low[axis] - start[axis]))
        in_want = np.add.outer(in_want * want.extent[axis], along + (low[axis] - want.start[axis]))
        in_chunk, in_want = in_chunk.reshape(-1), in_want.reshape(-1)
    return in_chunk, in_want
