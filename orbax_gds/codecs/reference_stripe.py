"""Stripes in plain NumPy, written from FORMAT §4 and nothing else."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from orbax_gds.codecs.reference_bytes import Cursor, align, check_crc, crc32c
from orbax_gds.codecs.reference_frame import (
    FRAME,
    Base,
    FrameHeader,
    decode_frame,
    parse_frame_header,
)
from orbax_gds.errors import Corrupt, NotFound, OgdsError, Truncated, Unsupported

HEADER = struct.Struct("<8sHHI16sQII12sI")  # FORMAT §4.1
HEADER_MAGIC = b"\x89OGDS\r\n\x1a"
SECTION = struct.Struct("<II")  # FORMAT §4.2
SHARD = struct.Struct("<IIIIQ")
POOLED_FLAG = 1
DERIVED_FLAG = 2
RULES = {1: "copy", 2: "round"}
INDEX = struct.Struct("<QIIIIBBHI")  # FORMAT §4.3
FOOTER = struct.Struct("<QII16sI16sI8s")  # FORMAT §4.4
FOOTER_MAGIC = b"OGDSEND\n"
FIRST_FRAME_ALIGN = 4096
VERSION = 1
MAX_RANK = 64


@dataclass(frozen=True, kw_only=True)
class StripeHeader:
    """The header of a stripe, checked. FORMAT §4.1."""

    process: int
    uuid: bytes
    layout_bytes: int
    n_chunks: int
    layout_crc32c: int


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One box of a leaf and the chunks that hold it, or the leaf it follows from. FORMAT §4.2.

    Attributes:
        leaf: Number of the leaf.
        first_chunk: Its first chunk; of a derived shard 0.
        start: Of the box, in the leaf.
        extent: Of the box.
        chunk_extent: Of a chunk; of a derived shard zeros.
        pooled: Whether it shares its chunk.
        offset_words: Place in a shared chunk.
        rule: Of a derived shard: 1 copy, 2 round; else 0.
        source: Of a derived shard: number of the leaf that its words follow from.
    """

    leaf: int
    first_chunk: int
    start: tuple[int, ...]
    extent: tuple[int, ...]
    chunk_extent: tuple[int, ...]
    pooled: bool = False
    offset_words: int = 0
    rule: int = 0
    source: int = 0

    @property
    def n_chunks(self) -> int:
        """Number of chunks that hold it."""
        return 0 if self.rule else prod(self.grid)

    @property
    def grid(self) -> tuple[int, ...]:
        """Number of cells along each dimension; a derived shard has none."""
        return tuple(-(-n // c) for n, c in zip(self.extent, self.chunk_extent, strict=True))

    def cell(self, chunk: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return start, in the leaf, and extent of the cell that a chunk holds."""
        place, start, extent = chunk - self.first_chunk, [], []
        for d in reversed(range(len(self.extent))):
            place, i = divmod(place, self.grid[d])
            offset = i * self.chunk_extent[d]
            start.append(self.start[d] + offset)
            extent.append(min(self.chunk_extent[d], self.extent[d] - offset))
        return tuple(reversed(start)), tuple(reversed(extent))


class Box(NamedTuple):
    """A box of a leaf and the words of a chunk that are its elements, in C order."""

    leaf: int
    start: tuple[int, ...]
    extent: tuple[int, ...]
    words: slice


class Record(NamedTuple):
    """One record of the index. FORMAT §4.3."""

    offset: int
    frame_bytes: int
    n_words: int
    payload_bytes: int
    payload_crc32c: int
    codec: int
    dtype: int
    flags: int
    zero: int = 0

    @classmethod
    def of(cls, offset: int, header: FrameHeader) -> "Record":
        """Return the record of a frame at this offset."""
        return cls(
            offset=offset,
            frame_bytes=header.frame_bytes,
            n_words=header.n_words,
            payload_bytes=header.payload_bytes,
            payload_crc32c=header.payload_crc32c,
            codec=header.codec,
            dtype=header.dtype.id,
            flags=header.flags,
        )


@dataclass(frozen=True, kw_only=True)
class Stripe:
    """A stripe whose header, layout, index and footer were checked against each other."""

    header: StripeHeader
    shards: list[Shard]
    records: list[Record]
    index_crc32c: int


def parse_header(data: bytes, where: str) -> StripeHeader:
    """Read and check the first 64 bytes of a stripe."""
    magic, version, flags, process, uuid, layout_bytes, n_chunks, layout_crc, zeros, crc = (
        HEADER.unpack(Cursor(data, where).take(HEADER.size, "the stripe header"))
    )
    if magic != HEADER_MAGIC:
        raise Corrupt(f"{where}: not a stripe: magic is {magic!r}, not {HEADER_MAGIC!r}.")
    check_crc(data[:60], crc, f"{where}: stripe header")
    if version != VERSION:
        raise Unsupported(f"{where}: stripe version {version}; this reference reads {VERSION}.")
    if flags or any(zeros):
        raise Corrupt(f"{where}: stripe header: flags {flags:#06x} or reserved bytes are not 0.")
    return StripeHeader(
        process=process,
        uuid=uuid,
        layout_bytes=layout_bytes,
        n_chunks=n_chunks,
        layout_crc32c=layout_crc,
    )


def parse_layout(data: bytes, n_chunks: int, where: str) -> list[Shard]:
    """Read and check the layout block of a stripe with `n_chunks` chunks."""
    cursor = Cursor(data, where)
    shards: list[Shard] = []
    last_rank = -1
    while cursor.at < len(data):
        rank, n_shards = SECTION.unpack(cursor.take(SECTION.size, "a section of the layout"))
        if not last_rank < rank <= MAX_RANK or n_shards == 0:
            raise Corrupt(f"{where}: layout: {n_shards} shards of rank {rank} after {last_rank}.")
        last_rank = rank
        for _ in range(n_shards):
            shards.append(_parse_shard(cursor, rank, n_chunks))
    return shards


def _parse_shard(cursor: Cursor, rank: int, n_chunks: int) -> Shard:
    leaf, first, n, flags, offset = SHARD.unpack(cursor.take(SHARD.size, "a shard of the layout"))
    boxes = [tuple(cursor.array("<u8", rank, "a box of the layout").tolist()) for _ in range(3)]
    start, extent, chunk_extent = boxes
    if flags not in (0, POOLED_FLAG, DERIVED_FLAG):
        raise Corrupt(f"{cursor.where}: layout: shard flags {flags:#x} hold a reserved bit.")
    if flags == DERIVED_FLAG:
        if n or any(chunk_extent) or 0 in extent:
            raise Corrupt(f"{cursor.where}: layout: derived shard of leaf {leaf}: {n}, {boxes}.")
        if offset not in RULES:
            raise Unsupported(f"{cursor.where}: layout: rule {offset}; known are {RULES}.")
        return Shard(
            leaf=leaf,
            first_chunk=0,
            start=start,
            extent=extent,
            chunk_extent=chunk_extent,
            rule=offset,
            source=first,
        )
    pooled = bool(flags & POOLED_FLAG)
    if 0 in extent or 0 in chunk_extent:
        raise Corrupt(f"{cursor.where}: layout: an extent of leaf {leaf} is 0.")
    shard = Shard(
        leaf=leaf,
        first_chunk=first,
        start=start,
        extent=extent,
        chunk_extent=chunk_extent,
        pooled=pooled,
        offset_words=offset,
    )
    well_formed = chunk_extent == extent if pooled else offset == 0
    if not well_formed or prod(shard.grid) != n or first + n > n_chunks:
        raise Corrupt(f"{cursor.where}: layout: {shard} says {n} chunks of {n_chunks}.")
    return shard


def owners_of(shards: Sequence[Shard], n_chunks: int, where: str) -> list[list[Shard]]:
    """Return the shards that each of the first `n_chunks` chunks holds, in order of their words.

    Raises:
        Corrupt: A chunk holds nothing, or shards that cannot share it.
    """
    owners: list[list[Shard]] = [[] for _ in range(n_chunks)]
    for shard in shards:
        for chunk in range(shard.first_chunk, min(shard.first_chunk + shard.n_chunks, n_chunks)):
            if owners[chunk] and not (shard.pooled and owners[chunk][0].pooled):
                raise Corrupt(f"{where}: layout: chunk {chunk} is claimed twice.")
            owners[chunk].append(shard)
    for chunk, sharing in enumerate(owners):
        if not sharing:
            raise Corrupt(f"{where}: layout: chunk {chunk} belongs to no shard.")
        sharing.sort(key=lambda shard: shard.offset_words)
    return owners


def boxes_of(
    chunk: int, sharing: Sequence[Shard], n_words: int, words_per_element: int, where: str
) -> list[Box]:
    """Return the boxes that a chunk holds, in order of their words.

    Args:
        chunk: Its number.
        sharing: Its shards, from `owners_of`.
        n_words: Its number of words.
        words_per_element: 2 for a complex dtype, else 1.
        where: Coordinates for messages.

    Raises:
        Corrupt: The boxes do not fill the words exactly.
    """
    boxes = []
    at = 0
    for shard in sharing:
        if shard.offset_words != at:
            raise Corrupt(f"{where}: chunk {chunk}: leaf {shard.leaf} leaves a gap or overlaps.")
        start, extent = shard.cell(chunk)
        end = at + prod(extent) * words_per_element
        boxes.append(Box(shard.leaf, start, extent, slice(at, end)))
        at = end
    if at != n_words:
        raise Corrupt(f"{where}: chunk {chunk} has {n_words} words, the layout says {at}.")
    return boxes


def parse_index(data: bytes, first_offset: int, where: str) -> list[Record]:
    """Read the index block and check that its frames lie end to end from `first_offset`."""
    records = [Record(*fields) for fields in INDEX.iter_unpack(data)]
    offset = first_offset
    for chunk, record in enumerate(records):
        if record.offset != offset or record.zero:
            raise Corrupt(f"{where}: index: chunk {chunk} is {record}, expected at {offset}.")
        offset += record.frame_bytes
    return records


def parse_footer(data: bytes, header: StripeHeader, where: str) -> tuple[int, int]:
    """Read and check the last 64 bytes of a stripe.

    Returns:
        Offset and CRC32C of the index block.
    """
    offset, n_chunks, index_crc, uuid, layout_crc, zeros, crc, magic = FOOTER.unpack(
        Cursor(data, where).take(FOOTER.size, "the stripe footer")
    )
    if magic != FOOTER_MAGIC:
        raise Truncated(f"{where}: no footer at the end: the stripe was never sealed, or was cut.")
    check_crc(data[:52], crc, f"{where}: stripe footer")
    if any(zeros):
        raise Corrupt(f"{where}: stripe footer: reserved bytes are not 0.")
    if (n_chunks, uuid, layout_crc) != (header.n_chunks, header.uuid, header.layout_crc32c):
        raise Corrupt(f"{where}: header and footer belong to different stripes.")
    return offset, index_crc


def read_stripe(file: BinaryIO, where: str) -> Stripe:
    """Read all of an open stripe but its frames, and check it."""
    header, shards, first_offset = _read_front(file, where)
    file_bytes = file.seek(0, 2)
    if file_bytes < first_offset + FOOTER.size:
        raise Truncated(f"{where}: {file_bytes} bytes; the footer is missing.")
    footer_at = file_bytes - FOOTER.size
    index_at, index_crc = parse_footer(_read(file, footer_at, FOOTER.size, where), header, where)
    if index_at < first_offset or index_at + INDEX.size * header.n_chunks != footer_at:
        raise Corrupt(f"{where}: the index at {index_at} does not end at the footer {footer_at}.")
    index = _read(file, index_at, footer_at - index_at, where)
    check_crc(index, index_crc, f"{where}: index")
    records = parse_index(index, first_offset, where)
    if first_offset + sum(record.frame_bytes for record in records) != index_at:
        raise Corrupt(f"{where}: the frames do not end where the index begins, at {index_at}.")
    return Stripe(header=header, shards=shards, records=records, index_crc32c=index_crc)


def read_chunk(
    file: BinaryIO, stripe: Stripe, chunk: int, where: str, base: Base | None = None
) -> tuple[FrameHeader, np.ndarray]:
    """Read and decode one chunk of an open stripe, and check it against its index record.

    A delta needs its base.
    """
    where = f"{where}: chunk {chunk}"
    record = stripe.records[chunk]
    frame = _read(file, record.offset, record.frame_bytes, where)
    header, words = decode_frame(frame, where, base=base)
    if header.chunk != chunk or Record.of(record.offset, header) != record:
        raise Corrupt(f"{where}: frame and index disagree: {header}, {record}.")
    return header, words


def scan_stripe(
    path: str | Path,
) -> tuple[StripeHeader, list[Shard], list[tuple[FrameHeader, np.ndarray]]]:
    """Read what is left of a stripe without its footer. FORMAT §8.

    Returns:
        Header, layout, and the frames up to the first that is invalid, missing or a delta, whose
        base is not here, decoded.

    Raises:
        NotFound: There is no such file.
        Corrupt: Header or layout is damaged; without them no frame has a meaning.
    """
    with open_stripe(path) as file:
        header, shards, offset = _read_front(file, str(path))
        frames: list[tuple[FrameHeader, np.ndarray]] = []
        while len(frames) < header.n_chunks:
            where = f"{path}: chunk {len(frames)}"
            try:
                frame_header = parse_frame_header(_read(file, offset, FRAME.size, where), where)
                frame = _read(file, offset, frame_header.frame_bytes, where)
                frame_header, words = decode_frame(frame, where)
            except OgdsError:
                break  # the first invalid frame ends the scan
            if frame_header.chunk != len(frames):
                break
            frames.append((frame_header, words))
            offset += frame_header.frame_bytes
    return header, shards, frames


def open_stripe(path: str | Path) -> BinaryIO:
    """Open a stripe for reading."""
    try:
        return open(path, "rb")
    except FileNotFoundError as error:
        raise NotFound(f"There is no stripe {path}; copy the whole item again.") from error


def _read_front(file: BinaryIO, where: str) -> tuple[StripeHeader, list[Shard], int]:
    header = parse_header(_read(file, 0, HEADER.size, where), where)
    first_offset = align(HEADER.size + header.layout_bytes, FIRST_FRAME_ALIGN)
    layout = _read(file, HEADER.size, first_offset - HEADER.size, where)
    if any(layout[header.layout_bytes :]):
        raise Corrupt(f"{where}: bytes between the layout and {first_offset} are not 0.")
    layout = layout[: header.layout_bytes]
    check_crc(layout, header.layout_crc32c, f"{where}: layout")
    return header, parse_layout(layout, header.n_chunks, where), first_offset


def _read(file: BinaryIO, offset: int, n_bytes: int, where: str) -> bytes:
    left = file.seek(0, 2) - offset
    if n_bytes > left:
        raise Truncated(f"{where}: {n_bytes} bytes at {offset} are wanted, {left} are left.")
    file.seek(offset)
    return file.read(n_bytes)


def encode_layout(shards: Sequence[Shard]) -> bytes:
    """Return the layout block of these shards."""
    layout = b""
    for rank in sorted({len(shard.extent) for shard in shards}):
        section = [shard for shard in shards if len(shard.extent) == rank]
        layout += SECTION.pack(rank, len(section))
        for shard in section:
            flags = DERIVED_FLAG if shard.rule else POOLED_FLAG * shard.pooled
            first = shard.source if shard.rule else shard.first_chunk
            offset = shard.rule or shard.offset_words
            fields = (shard.leaf, first, shard.n_chunks, flags, offset)
            boxes = [*shard.start, *shard.extent, *shard.chunk_extent]
            layout += SHARD.pack(*fields) + np.array(boxes, "<u8").tobytes()
    return layout


def encode_stripe(
    shards: Sequence[Shard], frames: Sequence[bytes], *, uuid: bytes, process: int = 0
) -> tuple[bytes, dict[str, Any]]:
    """Return a whole stripe, and what the manifest says of it but the file's name.

    Args:
        shards: What each chunk holds.
        frames: From `encode_frame`, in order of their chunks.
        uuid: 16 random bytes.
        process: Number of the process.
    """
    layout = encode_layout(shards)
    layout_crc = crc32c(layout)
    fields = (HEADER_MAGIC, VERSION, 0, process, uuid, len(layout), len(frames), layout_crc)
    header = HEADER.pack(*fields, bytes(12), 0)[:60]
    data = bytearray(header + struct.pack("<I", crc32c(header)) + layout)
    data += bytes(align(len(data), FIRST_FRAME_ALIGN) - len(data))
    index = b""
    for frame in frames:
        index += INDEX.pack(*Record.of(len(data), parse_frame_header(frame)))
        data += frame
    fields = (len(data), len(frames), crc32c(index), uuid, layout_crc, bytes(16))
    footer = FOOTER.pack(*fields, 0, FOOTER_MAGIC)[:52]
    data += index + footer + struct.pack("<I", crc32c(footer)) + FOOTER_MAGIC
    entry = {
        "uuid": uuid.hex(),
        "bytes": len(data),
        "layout_crc32c": f"{layout_crc:08x}",
        "index_crc32c": f"{crc32c(index):08x}",
    }
    return bytes(data), entry
