"""Check the frames of one stripe, through its chain, and say which are not what was written."""

import dataclasses
import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path as FilePath

import numpy as np

from orbax_gds import _native
from orbax_gds import stripe as stripes
from orbax_gds.drivers import File
from orbax_gds.errors import OgdsError
from orbax_gds.loaded_frames import LoadedFrames, at_fault, buffer_bytes, check, load
from orbax_gds.read_ranges import Link, groups, links_met, places
from orbax_gds.staging import BufferPool
from orbax_gds.stripe_file import StripeFile

FRAME_HEADER_BYTES = 32
FRAME_MAGIC = b"OGF1"
_MOST_BYTES = 256 << 20  # chosen: of frames that all threads hold, unless a chunk has more

_FRAME_HEADER = struct.Struct("<4sBBHIIIIII")  # FORMAT §6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong with a stripe; `leaves` are numbers.

    `file` is that of a stripe which it follows from, as the manifest names it, if it is there.
    """

    what: str
    offset: int | None = None
    chunk: int | None = None
    leaves: tuple[int, ...] = ()
    file: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Frames:
    """The frames of a stripe, and what they are checked against.

    Attributes:
        path, file: of the stripe.
        records: RECORD[k], its index, or what was found of its frames instead.
        chunks: uint32[k, 4], as `decode_run` takes them.
        decodes: bool[k], whether to decode a frame; of others only the checksums are looked at.
        chain: the stripes that it follows from, the oldest first.
        needed: RECORD[k] for each of these: the frames that are decoded before.
    """

    path: FilePath
    file: File
    records: np.ndarray
    chunks: np.ndarray
    decodes: np.ndarray
    chain: Sequence[StripeFile]
    needed: Sequence[np.ndarray]


class FrameCheck:
    """The check of the frames of one stripe, window by window, with several threads.

    Args:
        frames: what is checked.
        leaves_of: numbers of the leaves that have words in a range of chunks.
        n_workers: threads that read and decode.
    """

    def __init__(
        self, frames: Frames, leaves_of: Callable[[int, int], tuple[int, ...]], n_workers: int
    ) -> None:
        self._frames, self._leaves_of, self._n_workers = frames, leaves_of, n_workers

    def run(self, progress: Callable[[int], None]) -> list[Finding]:
        """Check everything; `progress` is called with the byte of the file that was reached."""
        records = self._frames.records
        files = [places(rows) for rows in (records, *self._frames.needed)]
        windows = list(groups(files, np.zeros(len(records), np.int64)))
        findings: list[Finding] = []
        if not windows:
            return findings
        longest = max(buffer_bytes(self._ranges(*window)) for window in windows)
        n_threads = max(1, min(self._n_workers, len(windows), _MOST_BYTES // longest))
        with BufferPool(longest, n_threads) as pool, ThreadPoolExecutor(n_threads) as threads:
            each = map if n_threads == 1 else threads.map  # a thread costs a small item a tenth
            checked = each(lambda window: self._check_window(window, pool), windows)
            for (_, end), found in zip(windows, checked, strict=True):
                findings.extend(found)
                progress(_end(records[end - 1]))
        return findings

    def _links(self, first: int, end: int) -> list[Link]:
        return list(links_met([rows[first:end] for rows in self._frames.needed]))

    def _ranges(self, first: int, end: int) -> list[int]:
        """Bytes of what is read for a window, of each file."""
        records = self._frames.records
        own = _end(records[end - 1]) - int(records["offset"][first])
        return [own, *(link.n_bytes for link in self._links(first, end))]

    def _check_window(self, window: tuple[int, int], pool: BufferPool) -> list[Finding]:
        whole, (first, end) = self._frames, window
        with pool.acquire() as buffer:
            try:
                loaded = load(
                    whole.chain,
                    self._links(first, end),
                    whole,
                    slice(first, end),
                    int(whole.records["offset"][first]),
                    self._ranges(first, end)[0],
                    buffer.memory,
                )
                return [*self._sums(first, loaded[-1]), *self._decode(first, end, loaded)]
            except OgdsError as err:
                unreadable = Finding(
                    what=str(err).removeprefix(f"{whole.path}: "),
                    offset=int(whole.records["offset"][first]),
                    chunk=first,
                    leaves=self._leaves_of(first, end),
                )
        if end - first == 1:
            return [unreadable]
        middle = (first + end) // 2  # halve, to find the chunks that cannot be read
        halves = ((first, middle), (middle, end))
        return [found for half in halves for found in self._check_window(half, pool)]

    def _decode(self, first: int, end: int, loaded: Sequence[LoadedFrames]) -> list[Finding]:
        """Decode the chunks of a window that are to be decoded."""
        findings = []
        rows = np.flatnonzero(self._frames.decodes[first:end])
        chunks = self._frames.chunks[first:end]
        at, step = 0, len(rows)
        while at < len(rows):
            here = rows[at : at + step]
            status, failed = check(loaded, here, chunks[here])
            if not status:
                at, step = at + step, 2 * step
                continue
            row = int(here[failed])
            findings += self._wrong(loaded, first, row, chunks[row : row + 1], status)
            at, step = (
                at + failed + 1,
                1,
            )  # a call looks at all its rows, so bad ones need short calls
        return findings

    def _wrong(
        self,
        loaded: Sequence[LoadedFrames],
        first: int,
        row: int,
        chunk: np.ndarray,
        status: int,
    ) -> Iterator[Finding]:
        """Yield what is wrong with the frames of a chunk and of those that it follows from."""
        frames, status = at_fault(loaded, row, chunk, status)
        yield self._finding(loaded, frames, first, row, stripes.frame_problem(status)[1])
        at = next(number for number, each in enumerate(loaded) if each is frames)
        for newer in loaded[at + 1 :]:  # what can no longer be decoded
            record = newer.records[row]
            if record["frame_bytes"]:
                what = why_unsound(_frame(newer, record), record, first + row)
                if what is not None:
                    yield self._finding(loaded, newer, first, row, what)

    def _finding(
        self, loaded: Sequence[LoadedFrames], frames: LoadedFrames, first: int, row: int, what: str
    ) -> Finding:
        files = {link.path: link.spec.file for link in self._frames.chain}
        return Finding(
            what=what,
            offset=int(frames.records["offset"][row]),
            chunk=first + row,
            leaves=self._leaves_of(first + row, first + row + 1),
            file=files[frames.path] if frames is not loaded[-1] else None,
        )

    def _sums(self, first: int, own: LoadedFrames) -> list[Finding]:
        """Look at the checksums of the frames of a window that are not decoded."""
        findings = []
        for row in np.flatnonzero(~self._frames.decodes[first : first + len(own.records)]).tolist():
            record = own.records[row]
            what = why_unsound(_frame(own, record), record, first + row)
            if what is not None:
                findings.append(self._finding([own], own, first, row, what))
        return findings


def header_fields(data: bytes, chunk: int) -> tuple[int, ...] | None:
    """Return what an index says of a frame behind its offset; None if this is no header of it.

    Args:
        data: the frame, or at least its header.
        chunk: number of the chunk that it should be.
    """
    magic, codec, dtype, flags, n_words, payload_bytes, frame_bytes, number, crc, own_crc = (
        _FRAME_HEADER.unpack_from(data)
    )
    if (magic, number, own_crc) != (FRAME_MAGIC, chunk, _native.crc32c(data[:28])):
        return None
    return frame_bytes, n_words, payload_bytes, crc, codec, dtype, flags, 0


def why_unsound(frame: np.ndarray, record: np.void, chunk: int) -> str | None:
    """Say what is wrong with the header or the checksums of a frame; None if nothing is.

    Args:
        frame: uint8[n], all of it.
        record: its row of the index.
        chunk: number of the chunk that it should be.
    """
    fields = header_fields(frame[:FRAME_HEADER_BYTES].tobytes(), chunk)
    if fields is None:
        return "the frame's header is damaged, or that of another chunk"
    if fields != tuple(record.tolist())[1:]:
        return "the frame's header and the index disagree"
    crc = _native.crc32c(frame[FRAME_HEADER_BYTES:])
    if crc != fields[3]:
        return f"the frame's CRC32C is {crc:08x}, its header says {fields[3]:08x}"
    return None


def _frame(frames: LoadedFrames, record: np.void) -> np.ndarray:
    at = int(record["offset"]) - frames.begin
    return frames.memory[at : at + int(record["frame_bytes"])]


def _end(record: np.void) -> int:
    return int(record["offset"]) + int(record["frame_bytes"])
