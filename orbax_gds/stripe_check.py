"""Check one stripe part by part: what is sound is used, what is not is noted. FORMAT §8."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path as FilePath

import numpy as np

from orbax_gds import stripe as stripes
from orbax_gds.chains import is_delta, links_of
from orbax_gds.chunk_table import ChunkTable, chunk_table
from orbax_gds.derived import DerivedShard
from orbax_gds.drivers import File
from orbax_gds.dtypes import Dtype
from orbax_gds.errors import OgdsError
from orbax_gds.frame_check import (
    FRAME_HEADER_BYTES,
    Finding,
    FrameCheck,
    Frames,
    header_fields,
)
from orbax_gds.manifest import StripeSpec, crc_text
from orbax_gds.plan import StoredShard
from orbax_gds.stripe_file import StripeFile


@dataclasses.dataclass(frozen=True, kw_only=True)
class Findings:
    """What a check found, and the shards of the layout; no `shards` if that cannot be read."""

    findings: list[Finding]
    shards: list[StoredShard] | None
    derived: list[DerivedShard]


class StripeCheck:
    """The check of one open stripe against its entry in the manifest.

    Args:
        path, file: the stripe, open for reading.
        spec: its entry.
        dtypes: dtype of every leaf of the item, None for leaves without words.
        n_workers: threads that read and decode.
        chain: the stripes that it follows from, the oldest first. None if they cannot be read: of
            deltas only the checksums are looked at then.
        has_frames: whether to look at the frames, too.
    """

    def __init__(
        self,
        path: FilePath,
        file: File,
        spec: StripeSpec,
        dtypes: Sequence[Dtype | None],
        n_workers: int,
        *,
        chain: Sequence[StripeFile] | None = (),
        has_frames: bool = True,
    ) -> None:
        self._path, self._file, self._spec, self._dtypes = path, file, spec, dtypes
        self._n_workers, self._chain, self._has_frames = n_workers, chain, has_frames
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
        if self._has_frames and records is None and header:
            records = self._scan(header)
        if self._has_frames and records is not None:
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
        fields = header_fields(self._read(at, FRAME_HEADER_BYTES), chunk)
        if fields is None:
            return None
        frame_bytes, _, payload_bytes, *_ = fields
        fits = FRAME_HEADER_BYTES + payload_bytes <= frame_bytes <= self._n_bytes - at
        return (at, *fields) if fits and not frame_bytes % 64 else None

    def _check_frames(
        self, records: np.ndarray, table: ChunkTable | None, progress: Callable[[int], None]
    ) -> None:
        chunks = np.zeros((len(records), 4), np.uint32)
        chunks[:, 0] = np.arange(len(records))
        chunks[:, 1], chunks[:, 2] = records["n_words"], records["dtype"]
        if table is not None and len(table.n_words) >= len(records):
            chunks[:, 1] = table.n_words[: len(records)]
            chunks[:, 2] = table.dtypes[: len(records)]
        decodes, needed = self._plan_decodes(records)
        frames = Frames(
            path=self._path,
            file=self._file,
            records=records,
            chunks=chunks,
            decodes=decodes,
            chain=self._chain or (),
            needed=needed,
        )
        self._findings += FrameCheck(frames, self._leaves, self._n_workers).run(progress)

    def _plan_decodes(self, records: np.ndarray) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        """Return which frames can be decoded, and what each needs of its chain."""
        decodes = np.ones(len(records), bool)
        deltas = is_delta(records)
        if not deltas.any():
            return decodes, ()
        links = self._chain
        if links and {len(link.records) for link in links} != {len(records)}:
            self._note(f"{len(records)} chunks are left, those that it follows from have others")
            links = None
        if not links:
            rows = np.flatnonzero(deltas)
            leaves = sorted({leaf for row in rows.tolist() for leaf in self._leaves(row, row + 1)})
            what = f"{len(rows)} chunks follow from an earlier step that cannot be read"
            self._note(what, chunk=int(rows[0]), leaves=tuple(leaves))
            return decodes & ~deltas, ()
        return decodes, links_of(records, links, np.arange(len(records)))

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


def _bare(err: OgdsError, file: str) -> str:
    """The message without the file's name in front, which is known where it is shown."""
    return str(err).removeprefix(f"{file}: ")
