"""A stripe, opened and checked against its entry in a manifest; its frames are not looked at."""

import dataclasses
import functools
from pathlib import Path as FilePath

import numpy as np

from orbax_gds import stripe as stripes
from orbax_gds.drivers import Driver, File
from orbax_gds.errors import Corrupt, IoError, Truncated
from orbax_gds.manifest import StripeSpec, crc_text

_END_BYTES = 32 << 10  # chosen: of layout and index, those of a thousand chunks


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class StripeFile:
    """An open stripe whose header, layout, index and footer agree with its entry.

    Attributes:
        path: it.
        spec: its entry in the manifest of the item that needs it.
        file: to read frames from; close it in the end.
        layout: the layout block.
        records: RECORD[n_chunks], the index.
    """

    path: FilePath
    spec: StripeSpec
    file: File
    layout: bytes
    records: np.ndarray

    @functools.cached_property
    def has_deltas(self) -> bool:
        """Whether any of its frames needs that of a base."""
        return bool((self.records["flags"] & stripes.DELTA_FLAG).any())


def open_stripe(driver: Driver, path: FilePath, spec: StripeSpec) -> StripeFile:
    """Open a stripe and check all of it but its frames.

    Args:
        driver: how to read it.
        path: where it lies, which `spec.file` does not say of stripes of other items.
        spec: its entry in a manifest.

    Raises:
        NotFound: it is missing.
        Corrupt: length, header, layout, index or footer are not as the entry says, or it has
            deltas, whose base the entry does not name.
        Unsupported: a newer version wrote it.
        IoError: the operating system refused a read.
    """
    file = driver.open(path, "r")
    try:
        return _checked(file, path, spec)
    except BaseException:
        file.close()
        raise


class _Blocks:
    """Blocks of a file that lie near its ends: two reads have them all, where they are short."""

    def __init__(self, file: File, n_bytes: int) -> None:
        self._file = file
        self._head = self._end(0, min(n_bytes, _END_BYTES))
        self._tail_at = max(len(self._head), n_bytes - _END_BYTES)
        self._tail = self._end(self._tail_at, n_bytes - self._tail_at)

    def _end(self, offset: int, n_bytes: int) -> bytes:
        try:
            return stripes.read_block(self._file, offset, n_bytes)
        except IoError:  # of a frame, perhaps: the others can be read without it
            return b""

    def read(self, offset: int, n_bytes: int) -> bytes:
        for at, block in ((0, self._head), (self._tail_at, self._tail)):
            if at <= offset and offset + n_bytes <= at + len(block):
                return block[offset - at : offset - at + n_bytes]
        return stripes.read_block(self._file, offset, n_bytes)


def _checked(file: File, path: FilePath, spec: StripeSpec) -> StripeFile:
    where = str(path)
    n_bytes = file.n_bytes()
    if n_bytes != spec.bytes:
        kind = Truncated if n_bytes < spec.bytes else Corrupt
        raise kind(
            f"{where} has {n_bytes} bytes, the manifest says {spec.bytes}. It was cut, or "
            "belongs to another save; restore another step or a copy of this one."
        )
    read = _Blocks(file, n_bytes).read
    header = stripes.decode_header(read(0, min(n_bytes, stripes.HEADER_BYTES)), where)
    footer_at = max(0, n_bytes - stripes.FOOTER_BYTES)
    footer = stripes.decode_footer(read(footer_at, n_bytes - footer_at), where)
    _check_ends(header, footer, spec, where)
    head = read(stripes.HEADER_BYTES, header.frames_at - stripes.HEADER_BYTES)
    layout, padding = head[: header.layout_bytes], head[header.layout_bytes :]
    index = read(footer.index_at, stripes.RECORD_BYTES * footer.n_chunks)
    for name, data, crc in (
        ("layout", layout, spec.layout_crc32c),
        ("index", index, spec.index_crc32c),
    ):
        if crc_text(data) != crc:
            raise Corrupt(
                f"{where}: the {name}'s CRC32C is {crc_text(data)}, the manifest says {crc}. "
                "Restore another step or a copy of this one."
            )
    if any(padding):
        raise Corrupt(f"{where}: bytes between layout and frames are not zero.")
    records = stripes.decode_index(index, header, footer, where)
    opened = StripeFile(path=path, spec=spec, file=file, layout=layout, records=records)
    if opened.has_deltas and spec.base is None:
        raise Corrupt(
            f"{where}: frames are deltas, but the manifest names no base of the stripe. It "
            "belongs to another item; restore another step or a copy of this one."
        )
    return opened


def _check_ends(
    header: stripes.Header, footer: stripes.Footer, spec: StripeSpec, where: str
) -> None:
    agree = (
        header.uuid == footer.uuid == bytes.fromhex(spec.uuid)
        and header.n_chunks == footer.n_chunks
        and header.layout_crc32c == footer.layout_crc32c
        and f"{header.layout_crc32c:08x}" == spec.layout_crc32c
        and f"{footer.index_crc32c:08x}" == spec.index_crc32c
        and footer.file_bytes == spec.bytes
        and header.frames_at <= footer.index_at
    )
    if not agree:
        raise Corrupt(
            f"{where}: header, footer and manifest do not belong together. A stripe was swapped "
            "or damaged; restore another step or a copy of this one."
        )
