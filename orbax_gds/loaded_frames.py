"""Frames of a chain that were read from their files, as the native core decodes them."""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path as FilePath
from typing import Protocol, TypeAlias

import numpy as np

from orbax_gds import _native
from orbax_gds import stripe as stripes
from orbax_gds.drivers import File, read_together
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
        records: RECORD[k], index rows of the chunks; all zero where a chunk has no frame in the
            file.
    """

    path: FilePath
    begin: int
    memory: np.ndarray
    records: np.ndarray

    def of(self, rows: Rows) -> tuple[np.ndarray, np.ndarray, int]:
        """Return memory and records of some of the chunks, as the native core takes them."""
        records = self.records[rows].view(np.uint8)
        return self.memory, records.reshape(-1, stripes.RECORD_BYTES), self.begin


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
    reads = []
    for source, records, first, n in (
        *((chain[link.number], link.records, link.offset, link.n_bytes) for link in links),
        (own, own.records[chunks], offset, n_bytes),
    ):
        begin = first - first % stripes.PAGE_BYTES  # whole pages, up to the end of the frames
        last = source.records[-1]
        frames_end = int(last["offset"]) + int(last["frame_bytes"])
        end = min(stripes.align(first + n, stripes.PAGE_BYTES), frames_end)
        here = memory[: end - begin]
        memory = memory[stripes.align(end - begin, stripes.PAGE_BYTES) :]
        reads.append((source.file, begin, here))
        frames.append(LoadedFrames(path=source.path, begin=begin, memory=here, records=records))
    read_together(reads)
    return frames


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
    *bases, (memory, records, start) = (each.of(rows) for each in frames)
    return _native.decode_run(memory, records, chunks, buffers, segments, bases=bases, start=start)


def check(frames: Sequence[LoadedFrames], rows: Rows, chunks: np.ndarray) -> tuple[int, int]:
    """Decode some of the chunks into nothing. Args, Returns: as `decode`."""
    *bases, (memory, records, start) = (each.of(rows) for each in frames)
    return _native.decode_run(
        memory, records, chunks, [], _NO_SEGMENTS, check_only=True, bases=bases, start=start
    )


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
