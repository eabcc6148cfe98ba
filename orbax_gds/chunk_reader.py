"""Chunks of open stripes, read and decoded through their chains into the caller's memory."""

import dataclasses
import functools
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path as FilePath
from typing import NoReturn

import numpy as np

from orbax_gds import _native
from orbax_gds import stripe as stripes
from orbax_gds.chunk_table import ChunkTable
from orbax_gds.derived import DerivedShard
from orbax_gds.drivers import File
from orbax_gds.dtypes import DTYPES, Dtype
from orbax_gds.parts import Part
from orbax_gds.plan import StoredShard
from orbax_gds.read_plan import (
    Read,
    Strided,
    copy_rows,
    numbers_by_leaf,
    read_segments,
    segment_rule,
)
from orbax_gds.staging import BufferPool
from orbax_gds.stripe_file import StripeFile

_NO_SEGMENTS = np.empty((0, 5), np.uint64)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stripe:
    """An opened stripe whose header, layout, index and footer agree with the manifest.

    Attributes:
        path, file: it.
        shards: those that are stored in it.
        derived: those that its layout derives from leaves of any stripe.
        table: what the layout says of each chunk.
        records: RECORD[n_chunks], the index.
        chain: the stripes that its deltas follow from, the oldest first. FORMAT §3.5.
    """

    path: FilePath
    file: File
    shards: list[StoredShard]
    derived: list[DerivedShard]
    table: ChunkTable
    records: np.ndarray
    chain: tuple[StripeFile, ...] = ()

    @functools.cached_property
    def by_leaf(self) -> dict[int, list[int]]:
        """Numbers of the shards of each leaf."""
        return numbers_by_leaf(self.shards)

    @functools.cached_property
    def frames(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Offsets and lengths of the frames, and bytes of their words: int64[n_chunks] each."""
        offsets, sizes = self.records["offset"], self.records["frame_bytes"]
        widths = np.zeros(256, np.int64)
        for dtype in DTYPES:
            widths[dtype.id] = dtype.container_bytes
        decoded = self.table.n_words * widths[self.table.dtypes]
        return offsets.astype(np.int64), sizes.astype(np.int64), decoded


def buffer_bytes(read: Read) -> int:
    """Return how much memory a read takes: each of its ranges in whole pages of the file."""
    return sum(
        stripes.align(n_bytes, stripes.PAGE_BYTES) + stripes.PAGE_BYTES
        for n_bytes in (read.n_bytes, *(link.n_bytes for link in read.links))
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Frames:
    """Frames that lie in memory, of one file.

    Attributes:
        path: the file.
        begin: its byte that `memory` begins with.
        memory: uint8[n], what was read of it.
        records: RECORD[k], a row for each chunk of the read, whose offset counts from the start
            of `memory`; all zero where the chunk has no frame in the file.
    """

    path: FilePath
    begin: int
    memory: np.ndarray
    records: np.ndarray

    def of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return memory and records of some of the chunks, as the native core takes them."""
        records = self.records[rows].view(np.uint8)
        return self.memory, records.reshape(-1, stripes.RECORD_BYTES)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Loaded:
    """A read whose frames lie in memory: those of its chain, from the oldest on, and its own."""

    stripe: Stripe
    read: Read
    frames: Sequence[_Frames]


class ChunkReader:
    """Does the reads of one call, in any number of threads.

    Args:
        leaf_name: path of a leaf by its number, for messages.
        dtypes: dtype of each leaf.
        all_stripes: of the item.
        parts: what is wanted.
        buffers: uint8[n], of each want.
        pool: buffers of at least the `buffer_bytes` of each read.
    """

    def __init__(
        self,
        *,
        leaf_name: Callable[[int], str],
        dtypes: Sequence[Dtype | None],
        all_stripes: Sequence[Stripe],
        parts: Sequence[Part],
        buffers: Sequence[np.ndarray],
        pool: BufferPool,
    ) -> None:
        self._leaf_name, self._dtypes, self._all_stripes = leaf_name, dtypes, all_stripes
        self._parts, self._buffers, self._pool = parts, buffers, pool

    def read(self, stripe: Stripe, read: Read) -> None:
        """Read a row of frames and decode what is wanted of them.

        Raises:
            Corrupt: a frame is damaged; the buffers then hold nothing of use.
            Unsupported: a newer version wrote a frame.
            IoError: the operating system refused a read.
        """
        with self._pool.acquire() as buffer:
            rest = buffer.memory
            frames = []
            for link in read.links:
                source = stripe.chain[link.number]
                frames.append(_load(source, link.records, link.offset, link.n_bytes, rest))
                rest = rest[stripes.align(len(frames[-1].memory), stripes.PAGE_BYTES) :]
            own = stripe.records[read.chunks]
            frames.append(_load(stripe, own, read.offset, read.n_bytes, rest))
            self._decode(_Loaded(stripe=stripe, read=read, frames=frames))

    def _decode(self, loaded: _Loaded) -> None:
        stripe, read = loaded.stripe, loaded.read
        segments, counts, strided = read_segments(read, stripe.shards, self._parts, self._dtypes)
        used = np.unique(segments[:, 0])
        segments[:, 0] = np.searchsorted(used, segments[:, 0])
        met = np.flatnonzero(counts)
        buffers = [self._buffers[i] for i in used.tolist()]
        self._run(loaded, met, counts[met], buffers, segments)
        for (chunk, offset, rule), rows in _alike(strided).items():
            self._copy(loaded, chunk, offset, rule, rows)

    def _copy(
        self, loaded: _Loaded, chunk: int, offset: int, rule: int, rows: Sequence[Strided]
    ) -> None:
        """Decode the words of one shard in a chunk by themselves, and copy what is wanted of them.

        Only one chunk of a thread is held so.
        """
        into = self._dtypes[rows[0].part.into.leaf]
        assert into is not None
        n_elements = math.prod(rows[0].extent)
        words = np.empty(n_elements * into.element_bytes, np.uint8)
        segment = [[0, 0, offset, n_elements * into.words_per_element, rule]]
        row, counts = np.searchsorted(loaded.read.chunks, [chunk]), np.ones(1, np.uint32)
        self._run(loaded, row, counts, [words], np.array(segment, np.uint64))
        for each in rows:
            target = self._buffers[each.part.want].view(into.word_dtype)
            copy_rows(each, words.view(into.word_dtype), target)

    def _run(
        self,
        loaded: _Loaded,
        rows: np.ndarray,
        counts: np.ndarray,
        buffers: Sequence[np.ndarray],
        segments: np.ndarray,
    ) -> None:
        """Decode the chunks that are some rows of a read."""
        if not len(rows):
            return
        table, numbers = loaded.stripe.table, loaded.read.chunks[rows]
        chunks = np.empty((len(numbers), 4), np.uint32)
        chunks[:, 0] = numbers
        chunks[:, 1], chunks[:, 2] = table.n_words[numbers], table.dtypes[numbers]
        chunks[:, 3] = counts
        *bases, own = (frames.of(rows) for frames in loaded.frames)
        status, at = _native.decode_run(*own, chunks, list(buffers), segments, bases=bases)
        if status:
            self._raise(loaded, rows[at : at + 1], chunks[at : at + 1], status)

    def _raise(self, loaded: _Loaded, row: np.ndarray, chunks: np.ndarray, status: int) -> NoReturn:
        stripe, chunk = loaded.stripe, int(chunks[0, 0])
        frames, status = _at_fault(loaded.frames, row, chunks, status)
        hit = {
            shard.leaf
            for shard in stripe.shards
            if shard.first_chunk <= chunk < shard.first_chunk + shard.n_chunks
        }
        derived = {
            shard.leaf
            for each in self._all_stripes
            for shard in each.derived
            if shard.source in hit
        }
        leaves = sorted(map(self._leaf_name, hit | derived))
        named = ", ".join(map(repr, leaves[:5])) + (" …" if len(leaves) > 5 else "")
        kind, what = stripes.frame_problem(status)
        at = frames.begin + int(frames.records["offset"][row[0]])
        needed = "" if frames is loaded.frames[-1] else f", which {stripe.path} follows from"
        raise kind(
            f"{frames.path}: chunk {chunk} at byte {at}, of leaf {named}{needed}: {what}. "
            "Restore another step or a copy of this one."
        )


def _load(
    source: Stripe | StripeFile,
    records: np.ndarray,
    offset: int,
    n_bytes: int,
    memory: np.ndarray,
) -> _Frames:
    """Read a range of a file, in whole pages, into the front of a buffer's memory."""
    begin = offset - offset % stripes.PAGE_BYTES
    frames_end = int(source.records["offset"][-1] + source.records["frame_bytes"][-1])
    end = min(stripes.align(offset + n_bytes, stripes.PAGE_BYTES), frames_end)
    memory = memory[: end - begin]
    source.file.read(begin, memory)
    records = records.copy()
    records["offset"][records["frame_bytes"] > 0] -= np.uint64(begin)
    return _Frames(path=source.path, begin=begin, memory=memory, records=records)


def _at_fault(
    frames: Sequence[_Frames], row: np.ndarray, chunks: np.ndarray, status: int
) -> tuple[_Frames, int]:
    """Return which file of a chain the frame of a chunk that cannot be decoded is in, and why."""
    for number, link in enumerate(frames[:-1]):
        if link.records["frame_bytes"][row[0]]:
            bases = [older.of(row) for older in frames[:number]]
            failed, _ = _native.decode_run(
                *link.of(row), chunks, [], _NO_SEGMENTS, check_only=True, bases=bases
            )
            if failed:
                return link, failed
    return frames[-1], status


def _alike(strided: Sequence[Strided]) -> dict[tuple[int, int, int], list[Strided]]:
    """Group what is copied of the same words, by the same rule: chunk, word offset and rule."""
    groups: dict[tuple[int, int, int], list[Strided]] = defaultdict(list)
    for each in strided:
        groups[each.chunk, each.word_offset, segment_rule(each.part)].append(each)
    return groups
