"""A copy of an item that needs no other: what is coded against a base is coded by itself.

Stripes, layouts and shardings stay; frames that follow from nothing are copied as they are, once
their checksums were found right.
"""

import os
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path as FilePath
from typing import BinaryIO

import msgspec
import numpy as np

from orbax_gds import _native
from orbax_gds import manifest as manifests
from orbax_gds import stripe as stripes
from orbax_gds._version import __version__
from orbax_gds.chains import is_delta
from orbax_gds.chunk_reader import Stripe
from orbax_gds.commit import COMPLETE_NAME, io_context, sync_directory, write_synced
from orbax_gds.drivers.protocol import byte_view
from orbax_gds.dtypes import Dtype, dtype_by_id
from orbax_gds.errors import Corrupt
from orbax_gds.frame_check import why_unsound
from orbax_gds.item import Item
from orbax_gds.manifest import MANIFEST_NAME, StripeSpec
from orbax_gds.options import Options
from orbax_gds.plan import ShardBox, StoredShard, cell_counts, matrix_columns
from orbax_gds.stripe_specs import DELTA
from orbax_gds.weighing import Coding, as_asked
from orbax_gds.writing import new_directory

__all__ = ["copy_full"]

_FRAME_BYTES = 64  # required: FORMAT §6, what a frame is a multiple of
_WINDOW_BYTES = 16 << 20  # chosen: of frames or words that are held at once
Progress = Callable[[int, int], None]


def copy_full(
    item: Item,
    directory: FilePath,
    *,
    options: Options | None = None,
    progress: Progress | None = None,
) -> None:
    """Write an item again, without bases.

    Args:
        item: opened; its bases are read where they are needed.
        directory: of the new item, where nothing is yet.
        options: `codec` is for what was a delta; None takes the defaults and the environment.
        progress: called with the bytes of frames copied so far and in all.

    Raises:
        Exists: there is something at the directory.
        Corrupt: a frame is damaged.
        IoError: the system refused; nothing is left behind.
    """
    options = options or Options.from_environment()
    old = item.manifest
    with new_directory(directory):
        copier = _Copier(item, as_asked(options.codec), progress or (lambda done, total: None))
        specs = [
            copier.copy(stripe, directory / spec.file)
            for stripe, spec in zip(item.stripes, old.stripes, strict=True)
        ]
        for name in old.sidecars:
            with io_context(item.path / name, "read"):
                data = (item.path / name).read_bytes()
            write_synced(directory / name, data)
        manifest = msgspec.structs.replace(
            old,
            requires=tuple(name for name in old.requires if name != DELTA),
            writer=f"orbax_gds {__version__}",
            stripes=tuple(specs),
            base=None,
        )
        write_synced(directory / COMPLETE_NAME, manifests.encode(manifest))
        sync_directory(directory)
        with io_context(directory / MANIFEST_NAME, "publish"):
            os.rename(directory / COMPLETE_NAME, directory / MANIFEST_NAME)
        sync_directory(directory)


class _Copier:
    """Copies stripes of one item."""

    def __init__(self, item: Item, coding: Coding, progress: Progress) -> None:
        self._item, self._coding, self._progress = item, coding, progress
        self._done, self._total = 0, sum(spec.bytes for spec in item.manifest.stripes)

    def copy(self, stripe: Stripe, path: FilePath) -> StripeSpec:
        """Write a stripe; durable when it returns, but for its name."""
        process = int(path.stem[1:].partition("-")[0])  # FORMAT §2
        layout = stripes.encode_layout((*stripe.shards, *stripe.derived))
        own_uuid = uuid.uuid4().bytes
        records = stripe.records.copy()
        head = stripes.encode_head(
            process=process, uuid=own_uuid, layout=layout, n_chunks=len(records)
        )
        with io_context(path, "write"), path.open("xb") as file:
            file.write(head)
            self._copy_frames(stripe, records, file)
            index, index_at = records.tobytes(), file.tell()
            layout_crc32c = _native.crc32c(layout)
            footer = stripes.encode_footer(
                index_at=index_at, index=index, uuid=own_uuid, layout_crc32c=layout_crc32c
            )
            file.write(index + footer)
            file.flush()
            os.fsync(file.fileno())
            n_bytes = file.tell()
        return StripeSpec(
            file=path.name,
            uuid=own_uuid.hex(),
            bytes=n_bytes,
            layout_crc32c=f"{layout_crc32c:08x}",
            index_crc32c=manifests.crc_text(index),
        )

    def _copy_frames(self, stripe: Stripe, records: np.ndarray, file: BinaryIO) -> None:
        """Write the frames in order; `records` becomes the index of what is written."""
        chunks = _Chunks(stripe)
        for first, end, follows in _ranges(stripe.records, chunks.n_bytes):
            at = file.tell()
            if follows:
                frames, rows = self._coded(chunks, first, end)
                records[first:end] = rows
                records["offset"][first:end] += np.uint64(at)
            else:
                begin = int(records["offset"][first])
                last = stripe.records[end - 1]
                frames = np.empty(int(last["offset"] + last["frame_bytes"]) - begin, np.uint8)
                stripe.file.read(begin, frames)
                _check(stripe, first, end, frames)
                records["offset"][first:end] -= np.uint64(begin)
                records["offset"][first:end] += np.uint64(at)
            file.write(byte_view(frames))
            self._done += int(stripe.records["frame_bytes"][first:end].sum())
            self._progress(self._done, self._total)

    def _coded(self, chunks: "_Chunks", first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Return chunks coded by themselves: their frames, and index records that count from 0."""
        words = [np.zeros(chunks.n_bytes[number], np.uint8) for number in range(first, end)]
        boxes: list[ShardBox] = []
        buffers: list[np.ndarray] = []
        rows, segments, most_bytes = [], [], _FRAME_BYTES
        for place, number in enumerate(range(first, end)):
            for box, at, n_bytes in chunks.boxes(number):
                boxes.append(box)
                buffers.append(words[place][at : at + n_bytes])
            dtype, n_words = chunks.dtype(number), int(chunks.table.n_words[number])
            rows.append((number, n_words, dtype.id, 1, chunks.columns(number)))
            segments.append((place, 0, 0, n_words))
            most_bytes += _native.max_frame_bytes(n_words, dtype.id)
        self._item.read(boxes, buffers)
        out = np.empty(most_bytes, np.uint8)
        records = np.zeros(end - first, stripes.RECORD)
        n_bytes = _native.encode_run(
            words,
            np.array(segments, np.uint64),
            np.array(rows, np.uint32),
            out,
            records.view(np.uint8).reshape(-1, stripes.RECORD_BYTES),
            codec=self._coding.codec,
            zstd_level=self._coding.zstd_level,
            align_bytes=_FRAME_BYTES,
        )
        return out[:n_bytes], records


def _check(stripe: Stripe, first: int, end: int, frames: np.ndarray) -> None:
    """Refuse frames, of some chunks of a stripe, that are not as they were written."""
    begin = int(stripe.records["offset"][first])
    for chunk in range(first, end):
        record = stripe.records[chunk]
        at = int(record["offset"])
        frame = frames[at - begin : at - begin + int(record["frame_bytes"])]
        what = why_unsound(frame, record, chunk)
        if what is not None:
            raise Corrupt(
                f"{stripe.path}: chunk {chunk} at byte {at}: {what}. `orbax-gds verify` lists all "
                "that is wrong. Convert another step or a copy of this one."
            )


def _ranges(records: np.ndarray, n_bytes: np.ndarray) -> Iterator[tuple[int, int, bool]]:
    """Yield ranges of chunks that are all deltas, or none is, and at most a window long."""
    deltas = is_delta(records).tolist()
    sizes = records["frame_bytes"].tolist()
    first, held = 0, 0
    for chunk, follows in enumerate(deltas):
        size = int(n_bytes[chunk]) if follows else sizes[chunk]
        if chunk > first and (follows != deltas[first] or held + size > _WINDOW_BYTES):
            yield first, chunk, deltas[first]
            first, held = chunk, 0
        held += size
    if deltas:
        yield first, len(deltas), deltas[first]


class _Chunks:
    """Where the words of each chunk of a stripe belong."""

    def __init__(self, stripe: Stripe) -> None:
        self.table = stripe.table
        self.n_bytes: np.ndarray = stripe.frames[2]
        self._pooled: dict[int, list[StoredShard]] = defaultdict(list)
        cut = [shard for shard in stripe.shards if not shard.pooled]
        self._cut = sorted(cut, key=lambda shard: shard.first_chunk)
        self._firsts = np.array([shard.first_chunk for shard in self._cut], np.int64)
        for shard in stripe.shards:
            if shard.pooled:
                self._pooled[shard.first_chunk].append(shard)

    def dtype(self, chunk: int) -> Dtype:
        """Return the dtype of a chunk."""
        return dtype_by_id(int(self.table.dtypes[chunk]))

    def boxes(self, chunk: int) -> Iterator[tuple[ShardBox, int, int]]:
        """Yield the boxes that a chunk holds: each, its byte in the chunk, and its bytes."""
        dtype = self.dtype(chunk)
        for shard in self._pooled.get(chunk, ()):
            box = ShardBox(leaf=shard.leaf, start=shard.start, extent=shard.extent)
            at = shard.word_offset * dtype.container_bytes
            yield box, at, box.n_elements * dtype.element_bytes
        if chunk not in self._pooled:
            box = self._cell(chunk)
            yield box, 0, box.n_elements * dtype.element_bytes

    def columns(self, chunk: int) -> int:
        """Return the columns of a chunk that is a matrix, as in a save."""
        if chunk in self._pooled or self.dtype(chunk).words_per_element > 1:
            return 0
        return matrix_columns(self._cell(chunk).extent)

    def _cell(self, chunk: int) -> ShardBox:
        shard = self._cut[int(np.searchsorted(self._firsts, chunk, "right")) - 1]
        counts = cell_counts(shard.extent, shard.chunk_extent)
        cell = np.unravel_index(chunk - shard.first_chunk, counts) if counts else ()
        lows = [int(i) * step for i, step in zip(cell, shard.chunk_extent, strict=True)]
        return ShardBox(
            leaf=shard.leaf,
            start=tuple(a + b for a, b in zip(shard.start, lows, strict=True)),
            extent=tuple(
                min(step, n - low)
                for n, step, low in zip(shard.extent, shard.chunk_extent, lows, strict=True)
            ),
        )
