"""Chunks of open stripes, read and decoded through their chains into the caller's memory."""

import dataclasses
import functools
import math
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path as FilePath
from typing import NoReturn

import numpy as np

from orbax_gds import stripe as stripes
from orbax_gds.chunk_table import ChunkTable
from orbax_gds.derived import DerivedShard
from orbax_gds.drivers import File
from orbax_gds.dtypes import DTYPES, Dtype
from orbax_gds.loaded_frames import LoadedFrames, at_fault, decode, load
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Loaded:
    """A read whose frames lie in memory: those of its chain, from the oldest on, and its own."""

    stripe: Stripe
    read: Read
    frames: Sequence[LoadedFrames]


class ChunkReader:
    """Does the reads of one call, in any number of threads.

    Args:
        leaf_name: path of a leaf by its number, for messages.
        dtypes: dtype of each leaf.
        all_stripes: of the item.
        parts: what is wanted.
        buffers: uint8[n], of each want.
        pool: buffers of at least the `buffer_bytes` of each read's ranges.
        n_reading: how many threads read at once. The others decode, or would share the device: so
            the first have something to decode while the next read.
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
        n_reading: int,
    ) -> None:
        self._leaf_name, self._dtypes, self._all_stripes = leaf_name, dtypes, all_stripes
        self._parts, self._buffers, self._pool = parts, buffers, pool
        self._reading = threading.Semaphore(n_reading)

    def read(self, stripe: Stripe, read: Read) -> None:
        """Read a row of frames and decode what is wanted of them.

        Raises:
            Corrupt: a frame is damaged; the buffers then hold nothing of use.
            Unsupported: a newer version wrote a frame.
            IoError: the operating system refused a read.
        """
        with self._pool.acquire() as buffer:
            place = read.offset, read.n_bytes
            with self._reading:
                frames = load(stripe.chain, read.links, stripe, read.chunks, *place, buffer.memory)
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
        status, at = decode(loaded.frames, rows, chunks, buffers, segments)
        if status:
            self._raise(loaded, int(rows[at]), chunks[at : at + 1], status)

    def _raise(self, loaded: _Loaded, row: int, chunks: np.ndarray, status: int) -> NoReturn:
        stripe, chunk = loaded.stripe, int(chunks[0, 0])
        frames, status = at_fault(loaded.frames, row, chunks, status)
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
        at = int(frames.records["offset"][row])
        needed = "" if frames is loaded.frames[-1] else f", which {stripe.path} follows from"
        raise kind(
            f"{frames.path}: chunk {chunk} at byte {at}, of leaf {named}{needed}: {what}. "
            "Restore another step or a copy of this one."
        )


def _alike(strided: Sequence[Strided]) -> dict[tuple[int, int, int], list[Strided]]:
    """Group what is copied of the same words, by the same rule: chunk, word offset and rule."""
    groups: dict[tuple[int, int, int], list[Strided]] = defaultdict(list)
    for each in strided:
        groups[each.chunk, each.word_offset, segment_rule(each.part)].append(each)
    return groups
