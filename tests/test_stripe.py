"""The blocks of a stripe: what is encoded decodes, and what is damaged is refused."""

import math
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orbax_gds import _native
from orbax_gds import stripe as stripes
from orbax_gds.errors import Corrupt, Truncated, Unsupported
from orbax_gds.plan import StoredShard, cell_counts

UUID = bytes(range(16))


@st.composite
def stored_shards(draw):
    pooled = draw(st.booleans())
    steps = tuple(draw(st.lists(st.integers(1, 2**5), max_size=5)))
    counts = [1 if pooled else draw(st.integers(1, 2**6)) for _ in steps]
    extent = tuple(n * k - (k > 1) * (n > 1) for n, k in zip(steps, counts, strict=True))
    return StoredShard(
        leaf=draw(st.integers(0, 2**32 - 1)),
        start=tuple(draw(st.integers(0, 2**40)) for _ in extent),
        extent=extent,
        chunk_extent=steps,
        first_chunk=draw(st.integers(0, 2**32 - 1)),
        n_chunks=int(np.prod(cell_counts(extent, steps), dtype=np.int64)),
        word_offset=draw(st.integers(0, 2**40)) if pooled else 0,
        pooled=pooled,
    )


@given(st.lists(stored_shards(), max_size=8))
def test_layout_round_trips_sorted_by_rank(shards):
    decoded = stripes.decode_layout(stripes.encode_layout(shards), "here")
    assert decoded == sorted(shards, key=lambda shard: len(shard.extent))


@given(stored_shards())
def test_a_cut_layout_is_refused(shard):
    layout = stripes.encode_layout([shard])
    for cut in range(1, len(layout)):
        with pytest.raises(Corrupt):
            stripes.decode_layout(layout[:cut], "here")


@pytest.mark.parametrize(
    ("field", "at", "value"),
    [("flags", 20, 2), ("n_chunks", 16, 7), ("word_offset", 24, 1), ("extent", 40, 0)],
)
def test_a_malformed_shard_is_refused(field, at, value):
    shard = StoredShard(
        leaf=0, start=(0,), extent=(5,), chunk_extent=(5,), first_chunk=0, n_chunks=1
    )
    layout = bytearray(stripes.encode_layout([shard]))
    layout[at] = value
    with pytest.raises(Corrupt, match="leaf 0"):
        stripes.decode_layout(bytes(layout), "here")


@pytest.mark.parametrize("pooled", [False, True])
def test_a_chunk_whose_words_would_wrap_around_is_refused(pooled):
    extent = (274177, 67280421310721)  # their product is 2^64 + 1
    shard = StoredShard(
        leaf=0,
        start=(0, 0),
        extent=extent,
        chunk_extent=extent,
        first_chunk=0,
        n_chunks=1,
        pooled=pooled,
    )
    with pytest.raises(Corrupt, match="leaf 0"):
        stripes.decode_layout(stripes.encode_layout([shard]), "here")


def test_a_chunk_may_have_as_many_words_as_the_limit():
    for n, fits in ((2**28, True), (2**28 + 1, False)):
        shard = StoredShard(
            leaf=0, start=(0,), extent=(n,), chunk_extent=(2**40,), first_chunk=0, n_chunks=1
        )
        layout = stripes.encode_layout([shard])
        if fits:
            assert stripes.decode_layout(layout, "here") == [shard]
        else:
            with pytest.raises(Corrupt):
                stripes.decode_layout(layout, "here")


def _head():
    return stripes.encode_head(process=3, uuid=UUID, layout=b"x" * 5000, n_chunks=7)


def test_head_round_trips_and_ends_on_a_page():
    head = _head()
    header = stripes.decode_header(head, "here")
    assert (header.process, header.uuid, header.n_chunks) == (3, UUID, 7)
    assert header.frames_at == len(head) == 8192
    assert head[64:5064] == b"x" * 5000
    assert not any(head[5064:])


def test_every_flipped_bit_of_a_header_is_refused():
    for bit in range(64 * 8):
        head = bytearray(_head())
        head[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt):
            stripes.decode_header(bytes(head), "here")


def _footer():
    return stripes.encode_footer(index_at=4096, index=bytes(64), uuid=UUID, layout_crc32c=5)


def test_footer_round_trips():
    footer = stripes.decode_footer(_footer(), "here")
    assert (footer.index_at, footer.n_chunks, footer.uuid) == (4096, 2, UUID)
    assert footer.file_bytes == 4096 + 64 + 64


def test_every_flipped_bit_of_a_footer_is_refused():
    for bit in range(64 * 8):
        footer = bytearray(_footer())
        footer[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt):
            stripes.decode_footer(bytes(footer), "here")


def test_short_headers_and_footers_are_truncated():
    for n in range(64):
        with pytest.raises(Truncated):
            stripes.decode_header(_head()[:n], "here")
        with pytest.raises(Truncated):
            stripes.decode_footer(_footer()[-n:] if n else b"", "here")


def test_a_newer_stripe_is_unsupported():
    from google_crc32c import value

    head = bytearray(_head())
    head[8] = 2
    head[60:64] = value(bytes(head[:60])).to_bytes(4, "little")
    with pytest.raises(Unsupported, match="Update"):
        stripes.decode_header(bytes(head), "here")


def _index(**changes):
    records = np.zeros(2, stripes.RECORD)
    records["frame_bytes"] = 64, 128
    records["payload_bytes"] = 32, 64
    records["offset"] = 4096, 4160
    for name, values in changes.items():
        records[name] = values
    header = stripes.decode_header(
        stripes.encode_head(process=0, uuid=UUID, layout=b"", n_chunks=2), "here"
    )
    footer = stripes.decode_footer(
        stripes.encode_footer(index_at=4288, index=records.tobytes(), uuid=UUID, layout_crc32c=0),
        "here",
    )
    return stripes.decode_index(records.tobytes(), header, footer, "here")


def test_a_layout_that_ends_behind_the_index_is_refused():
    for layout_bytes in (8000, 2**64 - 1):
        header = stripes.Header(
            process=0, uuid=UUID, layout_bytes=layout_bytes, n_chunks=0, layout_crc32c=0
        )
        footer = stripes.decode_footer(_footer(), "here")
        with pytest.raises(Corrupt, match="layout would end"):
            stripes.decode_index(bytes(64), header, footer, "here")


def test_what_the_core_finds_is_corrupt_unless_a_newer_version_may_have_written_it():
    named = {_native.STATUS[s] for s in _native.STATUS if s and _error(s) is Unsupported}
    assert named == {
        "unknown codec",
        "unknown dtype",
        "unknown frame flag",
    }


def _error(status):
    kind, text = stripes.frame_problem(status)
    assert kind is Corrupt or "update orbax_gds" in text
    return kind


def test_frames_that_lie_end_to_end_are_an_index():
    assert _index()["offset"].tolist() == [4096, 4160]


@pytest.mark.parametrize(
    "changes",
    [
        {"offset": (4096, 4161)},
        {"frame_bytes": (64, 64)},
        {"frame_bytes": (96, 96), "offset": (4096, 4192)},
        {"payload_bytes": (33, 64)},
        {"payload_bytes": (2**32 - 1, 64)},
        {"zero": (0, 1)},
    ],
)
def test_frames_that_do_not_are_refused(changes):
    with pytest.raises(Corrupt, match="end to end"):
        _index(**changes)


def _sound(flags, start, extent, steps, n_chunks, word_offset):
    """What FORMAT §4.2 and §8.2 ask of a record, in Python's integers."""
    if 0 in extent or max((*start, *extent), default=0) >= 1 << 62:
        return False
    if flags == 2:
        return n_chunks == 0 and not any(steps)
    if 0 in steps or max(steps, default=0) >= 1 << 62:
        return False
    if math.prod(map(min, extent, steps)) > 1 << 28:
        return False
    if flags == 1:
        return n_chunks == 1 and steps == extent
    return flags == word_offset == 0 and n_chunks == math.prod(cell_counts(extent, steps))


@st.composite
def records(draw, rank):
    lengths = st.sampled_from([0, 1, 2, 3, 5, 2**28, 2**28 + 1, 2**32, 2**61, 2**62, 2**64 - 1])
    box = st.lists(lengths, min_size=rank, max_size=rank).map(tuple)
    start, extent, steps = draw(box), draw(box), draw(box)
    flags = draw(st.sampled_from([0, 0, 1, 2, 3, 4]))
    if draw(st.booleans()):
        steps = {1: extent, 2: (0,) * rank}.get(flags, steps)
    counts = [0, 1, 2, 2**32 - 1]
    if 0 not in steps:
        counts = [math.prod(cell_counts(extent, steps)) % 2**32, *counts]
    return flags, start, extent, steps, draw(st.sampled_from(counts)), draw(st.integers(0, 1))


@pytest.mark.slow
@settings(max_examples=200)
@given(st.integers(0, 3).flatmap(lambda rank: st.lists(records(rank), min_size=1, max_size=4)))
def test_a_layout_is_read_just_if_each_of_its_records_is_sound(rows):
    rank = len(rows[0][1])
    table = [
        struct.pack(f"<4IQ{3 * rank}Q", leaf, 0, n, flags, offset or flags == 2, *start, *ext, *st)
        for leaf, (flags, start, ext, st, n, offset) in enumerate(rows)
    ]
    layout = struct.pack("<II", rank, len(rows)) + b"".join(table)
    unsound = [leaf for leaf, row in enumerate(rows) if not _sound(*row)]
    if unsound:
        with pytest.raises(Corrupt, match=f"of leaf {unsound[0]} is malformed"):
            stripes.decode_layout(layout, "here")
    else:
        assert stripes.encode_layout(stripes.decode_layout(layout, "here")) == layout
