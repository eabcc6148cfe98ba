"""The bytes of a stripe around its frames: header, layout, index, footer. FORMAT §4."""

import dataclasses
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from orbax_gds import _native
from orbax_gds.derived import DerivedShard, Rule
from orbax_gds.drivers import File
from orbax_gds.errors import Corrupt, OgdsError, Truncated, Unsupported
from orbax_gds.manifest import MAX_RANK
from orbax_gds.plan import MAX_CHUNK_WORDS, StoredShard
from orbax_gds.staging import aligned_empty

STRIPE_VERSION = 1
HEADER_BYTES = 64
FOOTER_BYTES = 64
RECORD_BYTES = 32
PAGE_BYTES = 4096  # required: FORMAT §4, where the frames begin

MAGIC = b"\x89OGDS\r\n\x1a"
END_MAGIC = b"OGDSEND\n"

_HEADER = struct.Struct("<8sHHI16sQII12s")
_FOOTER = struct.Struct("<QII16sI16s")
_CRC = struct.Struct("<I")
_SECTION = struct.Struct("<II")
_POOLED = 1
_DERIVED = 2
DELTA_FLAG = 2  # of a frame, which needs the words of its base. FORMAT §6
_MAX_EXTENT = 1 << 62  # required: FORMAT §8.2, of start and extent
_FROM_LATER = frozenset({"unknown codec", "unknown dtype", "unknown frame flag"})
"""What the core says of frames that a newer version may have written. FORMAT §8."""

RECORD = np.dtype(
    [
        ("offset", "<u8"),
        ("frame_bytes", "<u4"),
        ("n_words", "<u4"),
        ("payload_bytes", "<u4"),
        ("payload_crc32c", "<u4"),
        ("codec", "u1"),
        ("dtype", "u1"),
        ("flags", "<u2"),
        ("zero", "<u4"),
    ]
)
"""One record of the index. FORMAT §4.3."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Header:
    """What the first 64 bytes say, and where the frames begin."""

    process: int
    uuid: bytes
    layout_bytes: int
    n_chunks: int
    layout_crc32c: int

    @property
    def frames_at(self) -> int:
        """Offset of the first frame."""
        return align(HEADER_BYTES + self.layout_bytes, PAGE_BYTES)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Footer:
    """What the last 64 bytes say."""

    index_at: int
    n_chunks: int
    index_crc32c: int
    uuid: bytes
    layout_crc32c: int

    @property
    def file_bytes(self) -> int:
        """Length of the file that this footer ends."""
        return self.index_at + RECORD_BYTES * self.n_chunks + FOOTER_BYTES


def align(n: int, unit: int) -> int:
    """Return the smallest multiple of `unit` that is at least `n`."""
    return -(-n // unit) * unit


def read_block(file: File, offset: int, n_bytes: int) -> bytes:
    """Read a part of a stripe whose length was checked.

    Raises:
        Truncated: the file ends inside it.
        IoError: the operating system refused.
    """
    out = aligned_empty(n_bytes)
    file.read(offset, out)
    return out.tobytes()


def frame_problem(status: int) -> tuple[type[OgdsError], str]:
    """Return the error that a status of the native core means, and what to say of the frame."""
    text = _native.STATUS[status]
    if text in _FROM_LATER:
        return Unsupported, f"{text}. A newer version may have written it: update orbax_gds"
    return Corrupt, text


def file_name(process: int) -> str:
    """Return the name of a process's first stripe. FORMAT §2."""
    return f"p{process:05d}.ogds"


def encode_head(*, process: int, uuid: bytes, layout: bytes, n_chunks: int) -> bytes:
    """Return header and layout, filled with zeros up to where the frames begin."""
    body = _HEADER.pack(
        MAGIC,
        STRIPE_VERSION,
        0,
        process,
        uuid,
        len(layout),
        n_chunks,
        _native.crc32c(layout),
        bytes(12),
    )
    head = body + _CRC.pack(_native.crc32c(body)) + layout
    return head.ljust(align(len(head), PAGE_BYTES), b"\0")


def decode_header(data: bytes, where: str) -> Header:
    """Read and check a header.

    Raises:
        Truncated: fewer than 64 bytes.
        Corrupt: magic, checksum or a reserved field is wrong.
        Unsupported: the stripe's format is newer.
    """
    if len(data) < HEADER_BYTES:
        raise Truncated(f"{where}: {len(data)} bytes, a stripe's header has {HEADER_BYTES}.")
    magic, version, flags, process, uuid, layout_bytes, n_chunks, layout_crc, zeros = (
        _HEADER.unpack_from(data)
    )
    (crc,) = _CRC.unpack_from(data, _HEADER.size)
    if magic != MAGIC or crc != _native.crc32c(data[: _HEADER.size]):
        raise Corrupt(f"{where}: the header (bytes 0 to 63) is damaged or this is no stripe.")
    if version != STRIPE_VERSION:
        raise Unsupported(f"{where}: stripe format {version}; this orbax_gds reads 1. Update it.")
    if flags or any(zeros):
        raise Corrupt(f"{where}: reserved bits of the header are set.")
    return Header(
        process=process,
        uuid=uuid,
        layout_bytes=layout_bytes,
        n_chunks=n_chunks,
        layout_crc32c=layout_crc,
    )


def encode_footer(*, index_at: int, index: bytes, uuid: bytes, layout_crc32c: int) -> bytes:
    """Return the 64 bytes that end a stripe, for an index that begins at `index_at`."""
    body = _FOOTER.pack(
        index_at,
        len(index) // RECORD_BYTES,
        _native.crc32c(index),
        uuid,
        layout_crc32c,
        bytes(16),
    )
    return body + _CRC.pack(_native.crc32c(body)) + END_MAGIC


def decode_footer(data: bytes, where: str) -> Footer:
    """Read and check a footer.

    Raises:
        Truncated: fewer than 64 bytes, or they do not end a stripe.
        Corrupt: the checksum or a reserved field is wrong.
    """
    if len(data) < FOOTER_BYTES or data[56:64] != END_MAGIC:
        raise Truncated(
            f"{where}: the last 64 bytes are no footer: the stripe was never sealed, or cut short."
        )
    (crc,) = _CRC.unpack_from(data, _FOOTER.size)
    index_at, n_chunks, index_crc, uuid, layout_crc, zeros = _FOOTER.unpack_from(data)
    if crc != _native.crc32c(data[: _FOOTER.size]) or any(zeros):
        raise Corrupt(f"{where}: the footer (last 64 bytes) is damaged.")
    return Footer(
        index_at=index_at,
        n_chunks=n_chunks,
        index_crc32c=index_crc,
        uuid=uuid,
        layout_crc32c=layout_crc,
    )


def _shard_dtype(rank: int) -> np.dtype:
    fields = [
        ("leaf", "<u4"),
        ("first_chunk", "<u4"),
        ("n_chunks", "<u4"),
        ("flags", "<u4"),
        ("word_offset", "<u8"),
        ("start", "<u8", (rank,)),
        ("extent", "<u8", (rank,)),
        ("chunk_extent", "<u8", (rank,)),
    ]
    return np.dtype(fields)


def encode_layout(shards: Sequence[StoredShard | DerivedShard]) -> bytes:
    """Return the layout block. FORMAT §4.2."""
    by_rank: dict[int, list[StoredShard | DerivedShard]] = {}
    for shard in shards:
        by_rank.setdefault(len(shard.extent), []).append(shard)
    sections = []
    for rank in sorted(by_rank):
        rows = by_rank[rank]
        table = np.empty(len(rows), _shard_dtype(rank))
        for name, column in zip(_COLUMNS, zip(*map(_row, rows), strict=True), strict=True):
            table[name] = column
        sections += _SECTION.pack(rank, len(rows)), table.tobytes()
    return b"".join(sections)


_COLUMNS = _shard_dtype(0).names or ()


def _row(s: StoredShard | DerivedShard) -> tuple[Any, ...]:
    if isinstance(s, DerivedShard):
        no_chunk = (0,) * len(s.extent)
        return s.leaf, s.source, 0, _DERIVED, s.rule, s.start, s.extent, no_chunk
    box = s.start, s.extent, s.chunk_extent
    return s.leaf, s.first_chunk, s.n_chunks, s.pooled * _POOLED, s.word_offset, *box


def decode_layout(data: bytes, where: str) -> list[StoredShard | DerivedShard]:
    """Read a layout block whose checksum was checked.

    Raises:
        Corrupt: a section or a shard is malformed.
        Unsupported: a shard is derived by a rule that a newer version knows.
    """
    shards: list[StoredShard | DerivedShard] = []
    for rank, section in _sections(data, where):
        shards.extend(_decode_section(section, rank, where))
    return shards


def boxes_by_rank(layout: bytes, where: str) -> dict[int, tuple[np.ndarray, ...]]:
    """Return the boxes of all shards of a layout block, but not how they are stored.

    Returns:
        By rank: number of the leaf, uint32[shards]; start and extent, uint64[shards, rank].

    Raises:
        Corrupt: a section or a shard is malformed.
    """
    tables = {rank: _table(section, rank, where) for rank, section in _sections(layout, where)}
    return {
        rank: (table["leaf"], table["start"], table["extent"]) for rank, table in tables.items()
    }


def has_derived(layout: bytes, where: str) -> bool:
    """Return whether a layout block has a derived shard, without a look at the others.

    Raises:
        Corrupt: a section is malformed.
    """
    return any(
        (np.frombuffer(section, _shard_dtype(rank))["flags"] & _DERIVED).any()
        for rank, section in _sections(layout, where)
    )


def parted(
    shards: Sequence[StoredShard | DerivedShard],
) -> tuple[list[StoredShard], list[DerivedShard]]:
    """Return the shards of a layout that have chunks, and those that are derived."""
    stored = [shard for shard in shards if isinstance(shard, StoredShard)]
    return stored, [shard for shard in shards if isinstance(shard, DerivedShard)]


def _sections(data: bytes, where: str) -> Iterator[tuple[int, bytes]]:
    at, last_rank = 0, -1
    while at < len(data):
        if len(data) - at < _SECTION.size:
            raise Corrupt(f"{where}: the layout ends inside a section's head at byte {at}.")
        rank, count = _SECTION.unpack_from(data, at)
        at += _SECTION.size
        n_bytes = count * (24 + 24 * rank)
        if not last_rank < rank <= MAX_RANK or not 0 < n_bytes <= len(data) - at:
            raise Corrupt(f"{where}: the layout's section of rank {rank} is malformed.")
        yield rank, data[at : at + n_bytes]
        at, last_rank = at + n_bytes, rank


def _table(section: bytes, rank: int, where: str) -> np.ndarray:
    """Return the rows of a section, each of which can be a shard."""
    table = np.frombuffer(section, _shard_dtype(rank))
    malformed = _malformed(table)
    if malformed.any():
        row = table[malformed][0]
        kind = "derived shard" if row["flags"] == _DERIVED else "shard"
        raise Corrupt(f"{where}: the layout's {kind} of leaf {row['leaf']} is malformed.")
    return table


def _decode_section(data: bytes, rank: int, where: str) -> list[StoredShard | DerivedShard]:
    table = _table(data, rank, where)
    scalars = (table[name].tolist() for name in ("leaf", "first_chunk", "n_chunks", "flags"))
    boxes = (map(tuple, table[name].tolist()) for name in ("start", "extent", "chunk_extent"))
    columns = zip(*scalars, table["word_offset"].tolist(), *boxes, strict=True)
    return [
        DerivedShard(
            leaf=leaf,
            start=start,
            extent=extent,
            source=first_chunk,
            rule=_rule(word_offset, leaf, where),
        )
        if flags == _DERIVED
        else StoredShard(
            leaf=leaf,
            start=start,
            extent=extent,
            chunk_extent=chunk_extent,
            first_chunk=first_chunk,
            n_chunks=n_chunks,
            word_offset=word_offset,
            pooled=flags == _POOLED,
        )
        for leaf, first_chunk, n_chunks, flags, word_offset, start, extent, chunk_extent in columns
    ]


def _malformed(table: np.ndarray) -> np.ndarray:
    """Return which rows of a section can be no shard: bool[rows]."""
    flags, starts, extents = table["flags"], table["start"], table["extent"]
    steps, n_chunks = table["chunk_extent"], table["n_chunks"]
    sound = (starts < _MAX_EXTENT).all(axis=1)
    sound &= ((extents > 0) & (extents < _MAX_EXTENT)).all(axis=1)
    derived = flags == _DERIVED
    is_derived = sound & (n_chunks == 0) & ~steps.any(axis=1)
    sound &= ((steps > 0) & (steps < _MAX_EXTENT)).all(axis=1)
    sound &= _products(np.minimum(extents, steps), MAX_CHUNK_WORDS) <= MAX_CHUNK_WORDS
    whole = (flags == _POOLED) & (n_chunks == 1) & (steps == extents).all(axis=1)
    counts = (extents + (steps - 1)) // np.maximum(steps, 1)
    cut = (flags == 0) & (table["word_offset"] == 0) & (n_chunks == _products(counts, 1 << 32))
    return ~np.where(derived, is_derived, sound & (whole | cut))


def _products(factors: np.ndarray, most: int) -> np.ndarray:
    """Return the product of each row, `most` + 1 where it is more, so that none wraps around.

    Args:
        factors: uint64[rows, n]; a row with a zero counts it as one.
        most: below 2^63.
    """
    limit = np.uint64(most)
    products = np.ones(len(factors), np.uint64)
    for column in np.maximum(factors, 1).T:
        fits = column <= limit // products
        products = np.where(fits, products * np.where(fits, column, 1), limit + np.uint64(1))
    return products


def _rule(number: int, leaf: int, where: str) -> Rule:
    try:
        return Rule(number)
    except ValueError as error:
        raise Unsupported(
            f"{where}: leaf {leaf} is derived by rule {number}, unknown to this orbax_gds. "
            "A newer version may have written it: update orbax_gds."
        ) from error


def decode_index(data: bytes, header: Header, footer: Footer, where: str) -> np.ndarray:
    """Read an index block whose checksum was checked.

    Returns:
        RECORD[n_chunks].

    Raises:
        Corrupt: frames do not lie end to end, or a length is impossible.
    """
    if header.frames_at > footer.index_at:
        raise Corrupt(
            f"{where}: the layout would end at byte {header.frames_at}, "
            f"but the index begins at {footer.index_at}."
        )
    records = np.frombuffer(data, RECORD)
    sizes = records["frame_bytes"].astype(np.uint64)
    ends = header.frames_at + np.cumsum(sizes, dtype=np.uint64)
    end = int(ends[-1]) if len(ends) else header.frames_at
    payload_ends = records["payload_bytes"].astype(np.uint64) + 32
    sound = (
        end == footer.index_at
        and np.array_equal(records["offset"], ends - sizes)
        and not (sizes % 64).any()
        and (payload_ends <= sizes).all()
        and (sizes < 1 << 31).all()
        and not records["zero"].any()
    )
    if not sound:
        raise Corrupt(f"{where}: the index does not describe frames that lie end to end.")
    return records
