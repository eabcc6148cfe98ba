"""Check one stripe part by part: what is sound is used, what is not is noted. FORMAT §8."""

import contextlib
import dataclasses
import functools
import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from orbax_gds import _native
from orbax_gds import stripe as stripes
from orbax_gds.chunk_table import ChunkTable, chunk_table
from orbax_gds.derived import DerivedShard
from orbax_gds.drivers import File
from orbax_gds.dtypes import Dtype
from orbax_gds.errors import OgdsError
from orbax_gds.manifest import StripeSpec, crc_text
from orbax_gds.plan import StoredShard
from orbax_gds.read_plan import READ_BYTES
from orbax_gds.staging import BufferPool

FRAME_HEADER_BYTES = 32
FRAME_MAGIC = b"OGF1"

_FRAME_HEADER = struct.Struct("<4sBBHIIIIII")  # FORMAT §6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong with a stripe; `leaves` are numbers."""

    what: str
    offset: int | None = None
    chunk: int | None = None
    leaves: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Findings:
    """What a check found, and the shards of the layout; no `shards` if that cannot be read."""

    findings: list[Finding]
    shards: list[StoredShard] | None
    derived: list[DerivedShard]


class StripeCheck:
    """The check of one open stripe against its entry in the manifest.

    Args:
        file: the stripe, open for reading.
        spec: its entry.
        dtypes: dtype of every leaf of the item, None for leaves without words.
        n_workers: threads that read and decode.
    """

    def __init__(
        self, file: File, spec: StripeSpec, dtypes: Sequence[Dtype | None], n_workers: int
    ) -> None:
        self._file, self._spec, self._dtypes = file, spec, dtypes
        self._n_workers = n_workers
        self._n_bytes = file.n_bytes()
        self._findings: list[Finding] = []
        self._shards: list[StoredShard] | None = None
        self._derived: list[DerivedShard] = []

    def run(self, progress: Callable[[int], None]) -> Findings:
        """Check everything; `progress` is called with the bytes of frames checked so far."""
        if self._n_bytes != self._spec.bytes:
            what = f"{self._n_bytes} bytes long, but the manifest says {self._spec.bytes}"
            self._note(what, offset=min(self._n_bytes, self._spec.bytes))
        header = self._check_header()
        footer = self._check_footer(header)
        table = self._check_layout(header) if header else None
        records = self._check_index(header, footer) if footer else None
        if records is None and header:
            records = self._scan(header)
        if records is not None:
            self._check_frames(records, table, progress)
        return Findings(findings=self._findings, shards=self._shards, derived=self._derived)

    def _check_header(self) -> stripes.Header | None:
        with self._noting(offset=0):
            data = self._read(0, min(self._n_bytes, stripes.HEADER_BYTES))
            header = stripes.decode_header(data, self._spec.file)
            self._compare("header", 0, "uuid", header.uuid.hex(), self._spec.uuid)
            crc = f"{header.layout_crc32c:08x}"
            self._compare("header", 0, "layout CRC32C", crc, self._spec.layout_crc32c)
            return header
        return None

    def _check_footer(self, header: stripes.Header | None) -> stripes.Footer | None:
        offset = max(0, self._n_bytes - stripes.FOOTER_BYTES)
        with self._noting(offset=offset):
            data = self._read(offset, self._n_bytes - offset)
            footer = stripes.decode_footer(data, self._spec.file)
            self._compare("footer", offset, "uuid", footer.uuid.hex(), self._spec.uuid)
            for name, crc, said in (
                ("layout CRC32C", footer.layout_crc32c, self._spec.layout_crc32c),
                ("index CRC32C", footer.index_crc32c, self._spec.index_crc32c),
            ):
                self._compare("footer", offset, name, f"{crc:08x}", said)
            if header is not None and header.n_chunks != footer.n_chunks:
                what = f"the header says {header.n_chunks} chunks, the footer {footer.n_chunks}"
                self._note(what, offset=offset)
            return footer
        return None

    def _check_layout(self, header: stripes.Header) -> ChunkTable | None:
        at = stripes.HEADER_BYTES
        if header.frames_at > self._n_bytes:
            self._note(f"the layout would end at byte {header.frames_at}", offset=at)
            return None
        if header.n_chunks * stripes.RECORD_BYTES > self._n_bytes:
            self._note(f"the index of {header.n_chunks} chunks would exceed the file", offset=0)
            return None
        with self._noting(offset=at):
            head = self._read(at, header.frames_at - at)
            layout, padding = head[: header.layout_bytes], head[header.layout_bytes :]
            if not self._compare(
                "layout", at, "CRC32C", crc_text(layout), f"{header.layout_crc32c:08x}"
            ):
                return None
            if any(padding):
                at += header.layout_bytes + len(padding) - len(padding.lstrip(b"\0"))
                self._note("a byte between layout and frames is not zero", offset=at)
            shards, derived = stripes.parted(stripes.decode_layout(layout, self._spec.file))
            table = chunk_table(shards, self._dtypes, header.n_chunks, self._spec.file)
            self._shards, self._derived = shards, derived
            return table
        return None

    def _check_index(
        self, header: stripes.Header | None, footer: stripes.Footer
    ) -> np.ndarray | None:
        at = footer.index_at
        if footer.file_bytes != self._n_bytes:
            self._note(f"the footer ends a file of {footer.file_bytes} bytes", offset=at)
            return None
        with self._noting(offset=at):
            index = self._read(at, stripes.RECORD_BYTES * footer.n_chunks)
            if self._compare("index", at, "CRC32C", crc_text(index), f"{footer.index_crc32c:08x}"):
                header = header or _stand_in(index, footer)
                return stripes.decode_index(index, header, footer, self._spec.file)
        return None

    def _scan(self, header: stripes.Header) -> np.ndarray:
        """Follow the frames from header to header, for want of an index. FORMAT §8.

        Returns:
            RECORD[k], what an index would say of the frames found.
        """
        rows, at = [], header.frames_at
        while len(rows) < header.n_chunks:
            row = self._scan_frame(at, len(rows))
            if row is None:
                what = "without a sound index, the frames cannot be followed past this byte"
                leaves = self._leaves(len(rows), header.n_chunks)
                self._note(what, offset=at, chunk=len(rows), leaves=leaves)
                break
            rows.append(row)
            at += row[1]
        return np.array(rows, stripes.RECORD)

    def _scan_frame(self, at: int, chunk: int) -> tuple[int, ...] | None:
        if at + FRAME_HEADER_BYTES > self._n_bytes:
            return None
        data = self._read(at, FRAME_HEADER_BYTES)
        magic, codec, dtype, flags, n_words, payload_bytes, frame_bytes, number, crc, own_crc = (
            _FRAME_HEADER.unpack(data)
        )
        sound = (magic, number, own_crc) == (FRAME_MAGIC, chunk, _native.crc32c(data[:28]))
        fits = FRAME_HEADER_BYTES + payload_bytes <= frame_bytes <= self._n_bytes - at
        if not sound or not fits or frame_bytes % 64:
            return None
        return at, frame_bytes, n_words, payload_bytes, crc, codec, dtype, flags, 0

    def _check_frames(
        self, records: np.ndarray, table: ChunkTable | None, progress: Callable[[int], None]
    ) -> None:
        """Check and decode every frame, window by window, with several threads."""
        chunks = np.zeros((len(records), 4), np.uint32)
        chunks[:, 0] = np.arange(len(records))
        chunks[:, 1], chunks[:, 2] = records["n_words"], records["dtype"]
        if table is not None and len(table.n_words) >= len(records):
            chunks[:, 1] = table.n_words[: len(records)]
            chunks[:, 2] = table.dtypes[: len(records)]
        windows = list(_windows(records["frame_bytes"]))
        if not windows:
            return
        longest = max(_end(records[end - 1]) - int(records["offset"][at]) for at, end in windows)
        buffer_bytes = longest + stripes.PAGE_BYTES  # a read begins at the page before its frame
        n_threads = min(self._n_workers, len(windows))
        with BufferPool(buffer_bytes, n_threads) as pool, ThreadPoolExecutor(n_threads) as threads:
            checked = threads.map(
                lambda window: self._check_window(records, chunks, window, pool), windows
            )
            for (_, end), findings in zip(windows, checked, strict=True):
                self._findings.extend(findings)
                progress(_end(records[end - 1]))

    def _check_window(
        self, records: np.ndarray, chunks: np.ndarray, window: tuple[int, int], pool: BufferPool
    ) -> list[Finding]:
        first, end = window
        begin = int(records["offset"][first]) // stripes.PAGE_BYTES * stripes.PAGE_BYTES
        n_bytes = _end(records[end - 1]) - begin
        with pool.acquire() as buffer:
            memory = buffer.memory[:n_bytes]
            try:
                self._file.read(begin, memory)
                return self._decode(records, chunks, window, memory, begin)
            except OgdsError as err:
                unreadable = Finding(
                    what=_bare(err, self._spec.file),
                    offset=int(records["offset"][first]),
                    chunk=first,
                    leaves=self._leaves(first, end),
                )
        if end - first == 1:
            return [unreadable]
        middle = (first + end) // 2  # halve, to find the chunks that cannot be read
        halves = ((first, middle), (middle, end))
        return [f for half in halves for f in self._check_window(records, chunks, half, pool)]

    def _decode(
        self,
        records: np.ndarray,
        chunks: np.ndarray,
        window: tuple[int, int],
        memory: np.ndarray,
        begin: int,
    ) -> list[Finding]:
        findings = []
        first, last = window
        relative = records[first:last].copy()
        relative["offset"] -= np.uint64(begin)
        rows = relative.view(np.uint8).reshape(-1, stripes.RECORD_BYTES)
        at, step = first, last - first
        while at < last:
            end = min(at + step, last)
            status, failed = _native.decode_run(
                memory,
                rows[at - first : end - first],
                chunks[at:end],
                [],
                np.empty((0, 5), np.uint64),
                check_only=True,
            )
            if not status:
                at, step = end, 2 * step
                continue
            chunk = at + failed
            _, what = stripes.frame_problem(status)
            findings.append(
                Finding(
                    what=what,
                    offset=int(records["offset"][chunk]),
                    chunk=chunk,
                    leaves=self._leaves(chunk, chunk + 1),
                )
            )
            at, step = (
                chunk + 1,
                1,
            )  # a call looks at all its rows, so many bad ones need short calls
        return findings

    def _leaves(self, first: int, end: int) -> tuple[int, ...]:
        """The leaves that have words in a range of chunks."""
        firsts, ends, leaves = self._placed
        low, high = np.searchsorted(ends, first, "right"), np.searchsorted(firsts, end, "left")
        return tuple(np.unique(leaves[low:high]).tolist())

    @functools.cached_property
    def _placed(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """First chunk, end and leaf of every shard, by chunk: int64[s] each.

        Shards share whole chunks or none, so the ends ascend too.
        """
        rows = sorted((s.first_chunk, s.n_chunks, s.leaf) for s in self._shards or ())
        firsts, counts, leaves = np.array(rows, np.int64).reshape(-1, 3).T
        return firsts, firsts + counts, leaves

    def _read(self, offset: int, n_bytes: int) -> bytes:
        return stripes.read_block(self._file, offset, n_bytes)

    def _compare(self, part: str, offset: int, name: str, found: str, expected: str) -> bool:
        if found != expected:
            self._note(f"the {part}'s {name} is {found}, but {expected} was expected", offset)
        return found == expected

    def _note(
        self,
        what: str,
        offset: int | None = None,
        chunk: int | None = None,
        leaves: tuple[int, ...] = (),
    ) -> None:
        self._findings.append(Finding(what=what, offset=offset, chunk=chunk, leaves=leaves))

    @contextlib.contextmanager
    def _noting(self, offset: int) -> Iterator[None]:
        try:
            yield
        except OgdsError as err:
            self._note(_bare(err, self._spec.file), offset)


def _stand_in(index: bytes, footer: stripes.Footer) -> stripes.Header:
    """A header for an index whose own is lost, which believes where the first frame begins."""
    frames_at = int.from_bytes(index[:8], "little") if index else footer.index_at
    return stripes.Header(
        process=0,
        uuid=footer.uuid,
        layout_bytes=max(0, frames_at - stripes.HEADER_BYTES),
        n_chunks=footer.n_chunks,
        layout_crc32c=footer.layout_crc32c,
    )


def _windows(sizes: np.ndarray) -> Iterator[tuple[int, int]]:
    """Group frames, in order, into ranges of chunks that are read at once."""
    first, n_bytes = 0, 0
    for chunk, size in enumerate(sizes.tolist()):
        if chunk > first and n_bytes + size > READ_BYTES:
            yield first, chunk
            first, n_bytes = chunk, 0
        n_bytes += size
    if len(sizes):
        yield first, len(sizes)


def _end(record: np.void) -> int:
    return int(record["offset"]) + int(record["frame_bytes"])


def _bare(err: OgdsError, file: str) -> str:
    """The message without the file's name in front, which is known where it is shown."""
    return str(err).removeprefix(f"{file}: ")
