"""Which frames of a stripe, and of those that it follows from, are read at once."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

MAX_GAP_BYTES = 64 << 10  # chosen: reading over a gap this small is cheaper than another read
READ_BYTES = 4 << 20  # chosen: stored bytes of one read and decode call
DECODED_BYTES = 16 << 20  # chosen: and decoded ones, so that zeros too are shared out to threads
# Measured: of several files, whose pieces are short and decoded one after the other. A restore of
# 8 takes 1.15 times as long with 4 MiB, 1.05 times with 16 MiB of decoded bytes.
CHAIN_BYTES = 8 << 20
CHAIN_DECODED_BYTES = 32 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Link:
    """What a read needs of one of the stripes that its own follows from.

    Attributes:
        number: of the stripe in the chain, from the oldest on.
        offset, n_bytes: the range of its file.
        records: RECORD[k], index rows of the read's chunks; all zero where none is needed.
    """

    number: int
    offset: int
    n_bytes: int
    records: np.ndarray


def groups(
    files: Sequence[tuple[np.ndarray, np.ndarray]], decoded: np.ndarray
) -> Iterator[tuple[int, int]]:
    """Yield the ranges of the needed chunks, in their order, that are read at once.

    Args:
        files: of each file, offsets and lengths of the chunks' frames: int64[k] each. A length of
            0 is that of a chunk that needs none.
        decoded: int64[k], bytes of the chunks' words, as often as they are decoded.
    """
    k = len(decoded)
    begins, ends = [], []
    cut = np.zeros(k, bool)
    for offsets, sizes in files:
        here = np.flatnonzero(sizes)
        if len(here):
            gaps = offsets[here[1:]] - (offsets[here[:-1]] + sizes[here[:-1]])
            cut[here[1:]] |= gaps > MAX_GAP_BYTES
            after = np.searchsorted(here, np.arange(k))  # the next frame, or none is left
            last = np.searchsorted(here, np.arange(k), "right") - 1  # the frame before, or none
            file_ends = np.append(offsets[here] + sizes[here], 0)
            begins.append(np.append(offsets[here], file_ends.max())[after].tolist())
            ends.append(file_ends[last].tolist())
    most_bytes, most_decoded = READ_BYTES, DECODED_BYTES
    if len(begins) > 1:
        most_bytes, most_decoded = CHAIN_BYTES, CHAIN_DECODED_BYTES
    first, n_bytes = 0, sum(decoded[:1].tolist())
    for i, (more, apart) in enumerate(zip(decoded.tolist()[1:], cut.tolist()[1:], strict=True), 1):
        n_bytes += more
        grown = sum(max(0, e[i] - b[first]) for b, e in zip(begins, ends, strict=True))
        if apart or grown > most_bytes or n_bytes > most_decoded:
            yield first, i
            first, n_bytes = i, more
    if k:
        yield first, k


def places(records: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of frames in their file: offsets and lengths, int64[k] each."""
    return records["offset"].astype(np.int64), records["frame_bytes"].astype(np.int64)


def links_met(rows_of: Sequence[np.ndarray]) -> Iterator[Link]:
    """Yield what a read needs of each link that has any of its frames."""
    for number, records in enumerate(rows_of):
        here = records["frame_bytes"].nonzero()[0]
        if len(here):
            last, offset = records[here[-1]], int(records["offset"][here[0]])
            n_bytes = int(last["offset"]) + int(last["frame_bytes"]) - offset
            yield Link(number=number, offset=offset, n_bytes=n_bytes, records=records)
