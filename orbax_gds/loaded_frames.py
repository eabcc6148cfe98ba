"""Frames of a chain that were read from their files, as the native core decodes them."""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path as FilePath
from typing import Protocol, TypeAlias

import numpy as np

from orbax_gds import _native
from orbax_gds import stripe as stripes
from orbax_gds.drivers import File
from orbax_gds.read_ranges import Link

Rows: TypeAlias = np.ndarray | slice
"""Which of the chunks at hand, as an index of their arrays."""

_NO_SEGMENTS = np.empty((0, 5), np.uint64)


class Source(Protocol):
    """An open stripe."""

    @property
    def path(self) -> FilePath: ...
    @property
    def file(self) -> File: ...
    @property
    def records(self) -> np.ndarray: ...


def buffer_bytes(n_bytes: Iterable[int]) -> int:
    """Return how much memory ranges of so many bytes take, each in whole pages of its file."""
    return sum(stripes.align(n, stripes.PAGE_BYTES) + stripes.PAGE_BYTES for n in n_bytes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoadedFrames:
    """Frames of some chunks that lie in memory, of one file.

    Attributes:
        path: the file.
        begin: its byte that `memory` begins with.
        memory: uint8[n], what was read of it.
        records: RECORD[k], a row for each of the chunks, whose offset counts from the start of
            `memory`; all zero where the chunk has no frame in the file.
    """

    path: FilePath
    begin: int
    memory: np.ndarray
    records: np.ndarray

    def of(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Return memory and records of some of the chunks, as the native core takes them."""
        records = self.records[rows].view(np.uint8)
        return self.memory, records.reshape(-1, stripes.RECORD_BYTES)


def load(
    chain: Sequence[Source],
    links: Sequence[Link],
    own: Source,
    chunks: Rows,
    offset: int,
    n_bytes: int,
    memory: np.ndarray,
) -> list[LoadedFrames]:
    """Read what some chunks need of a chain and of their own stripe.

    Args:
        chain: the stripes that `links` number.
        links: what is read of them.
        own: the stripe of the chunks.
        chunks: their numbers.
        offset, n_bytes: the range of its file.
        memory: uint8[at least `buffer_bytes` of all ranges], aligned, where the frames go.

    Returns:
        The frames of the links, from the oldest on, and in the end those of the stripe.

    Raises:
        Truncated: a file ends before.
        IoError: the operating system refused a read.
    """
    frames = []
    for link in links:
        frames.append(_load(chain[link.number], link.records, link.offset, link.n_bytes, memory))
        memory = memory[stripes.align(len(frames[-1].memory), stripes.PAGE_BYTES) :]
    frames.append(_load(own, own.records[chunks], offset, n_bytes, memory))
    return frames


def _load(
    source: Source,
    records: np.ndarray,
    offset: int,
    n_bytes: int,
    memory: np.ndarray,
) -> LoadedFrames:
    """Read a range of a file, in whole pages, into the front of a buffer's memory."""
    begin = offset - offset % stripes.PAGE_BYTES
    frames_end = int(source.records["offset"][-1] + source.records["frame_bytes"][-1])
    end = min(stripes.align(offset + n_bytes, stripes.PAGE_BYTES), frames_end)
    memory = memory[: end - begin]
    source.file.read(begin, memory)
    records = records.copy()
    records["offset"][records["frame_bytes"] > 0] -= np.uint64(begin)
    return LoadedFrames(path=source.path, begin=begin, memory=memory, records=records)


def decode(
    frames: Sequence[LoadedFrames],
    rows: Rows,
    chunks: np.ndarray,
    buffers: Sequence[np.ndarray],
    segments: np.ndarray,
) -> tuple[int, int]:
    """Decode some of the chunks through their chain; arguments and result as of `decode_run`.

    Args:
        frames: from `load`.
        rows: which of its chunks.
        chunks, buffers, segments: of these.
    """
    *bases, own = (each.of(rows) for each in frames)
    return _native.decode_run(*own, chunks, buffers, segments, bases=bases)


def check(frames: Sequence[LoadedFrames], rows: Rows, chunks: np.ndarray) -> tuple[int, int]:
    """Decode some of the chunks into nothing. Args, Returns: as `decode`."""
    *bases, own = (each.of(rows) for each in frames)
    return _native.decode_run(*own, chunks, [], _NO_SEGMENTS, check_only=True, bases=bases)


def at_fault(
    frames: Sequence[LoadedFrames], row: int, chunk: np.ndarray, status: int
) -> tuple[LoadedFrames, int]:
    """Say which frame it is for which a chunk cannot be decoded.

    Args:
        frames: from `load`.
        row: which of its chunks.
        chunk: uint32[1, 4], what `decode` was given of it.
        status: with which that failed.

    Returns:
        The frames of the file at fault, and the status of the frame there.
    """
    rows = slice(row, row + 1)
    for n in range(1, len(frames)):
        if frames[n - 1].records["frame_bytes"][row]:
            failed, _ = check(frames[:n], rows, chunk)
            if failed:
                return frames[n - 1], failed
    return frames[-1], status
