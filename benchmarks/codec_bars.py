"""The bars of `codec`: what the codings promise on each kind of data."""

import statistics
from collections.abc import Iterator, Sequence

from benchmarks import streams
from benchmarks.result import Bar, Row, find_row, make_bar
from orbax_gds.bench.contenders import OURS

AUTO, MAX = OURS, f"{OURS} codec max"
ZIPNN, BLOSC2 = "zipnn", "blosc2 zstd-1 shuffle"
WHOLE_STATE = "whole state, 14 B/param"

# Data, least ratio, least encode and decode x memcpy with the CRC, and without it.
AUTO_BARS = (
    (streams.MINILM_BF16, 1.50, 0.48, 0.52, 0.55, 0.62),
    (streams.PARAMS, 1.505, 0.48, 0.52, 0.55, 0.62),
    (streams.MASTER, 1.20, 0.50, 0.52, 0.65, 0.68),
    (streams.MINILM_FIRST, 1.255, 0.30, 0.40, None, None),
)
# Data, codec, least ratio as a multiple of each peer's, least encode and decode x memcpy.
PEER_BARS = (
    (streams.MU_DENSE, AUTO, {ZIPNN: 1.015}, 0.38, 0.48),
    (streams.NU_DENSE, AUTO, {ZIPNN: 1.03}, 0.38, 0.48),
    (streams.MU_ROWS, AUTO, {ZIPNN: 1.05, BLOSC2: 1.03}, 0.38, 0.48),
    (streams.NU_ROWS, AUTO, {ZIPNN: 1.05, BLOSC2: 1.03}, 0.38, 0.48),
    (streams.MU_BF16, AUTO, {ZIPNN: 1.03}, 0.40, 0.50),
    (streams.MINILM_E4M3, AUTO, {ZIPNN: 0.975}, 0.32, 0.32),
    (streams.MINILM_E5M2, AUTO, {ZIPNN: 0.975}, 0.32, 0.32),
    (streams.MINILM_E4M3, MAX, {ZIPNN: 1.0}, None, None),
    (streams.MINILM_E5M2, MAX, {ZIPNN: 1.0}, None, None),
)
# Data, codec, least encode and decode as a multiple of zipnn's, suffixes of the thread counts.
ZIPNN_SPEED_BARS = (
    (streams.MINILM_E4M3, MAX, 2.0, 2.0, ("",)),
    (streams.MINILM_E5M2, MAX, 2.0, 2.0, ("",)),
    (streams.MINILM_BF16, AUTO, 5.0, 2.2, ("", "_2t")),
    (streams.PARAMS, AUTO, 5.0, 2.2, ("", "_2t")),
)


def codec_bars(rows: Sequence[Row]) -> list[Bar]:
    """Judge the rows of `codec`; a bar whose rows are absent is not measured."""
    return [
        make_bar(name, measured, ">=", limit) for name, measured, limit in _promises(list(rows))
    ]


def _promises(rows: list[Row]) -> Iterator[tuple[str, float | None, float]]:
    """Yield name, figure and least figure of every bar."""
    for data, ratio, encode, decode, bare_encode, bare_decode in AUTO_BARS:
        row = find_row(rows, group=data, name=AUTO)
        yield f"{data}: ratio", row and row.median("ratio"), ratio
        yield from _speeds(row, f"{data}", encode, decode)
        for way, limit in (("encode", bare_encode), ("decode", bare_decode)):
            if limit is not None:
                yield f"{data}: {way} without CRC, x memcpy", without_checksum(row, way), limit
    for data, codec, peers, encode, decode in PEER_BARS:
        label = _label(data, codec)
        for peer, least in peers.items():
            figure = _ratio_against(rows, data, codec, peer)
            yield f"{label}: ratio / {peer}'s", figure, least
        if encode is not None and decode is not None:
            yield from _speeds(find_row(rows, group=data, name=codec), label, encode, decode)
    for data, codec, encode, decode, ends in ZIPNN_SPEED_BARS:
        row = find_row(rows, group=data, name=codec)
        for end in ends:
            threads = " on two threads" if end else ""
            for way, limit in (("encode", encode), ("decode", decode)):
                figure = row and row.median(f"{way}_x_zipnn{end}")
                yield f"{_label(data, codec)}: {way} / {ZIPNN}'s{threads}", figure, limit
        if codec == AUTO:
            yield f"{data}: ratio / {ZIPNN}'s", _ratio_against(rows, data, codec, ZIPNN), 0.995
    row = find_row(rows, group=streams.MINILM_BF16, name=MAX)
    label = _label(streams.MINILM_BF16, MAX)
    yield f"{label}: ratio", row and row.median("ratio"), 1.514
    yield from _speeds(row, label, 0.10, 0.15)
    figure = _ratio_against(rows, WHOLE_STATE, AUTO, ZIPNN)
    yield f"{WHOLE_STATE}: ratio / {ZIPNN}'s", figure, 1.14
    for data in streams.RANDOM:
        row = find_row(rows, group=data, name=AUTO)
        yield f"{data}: ratio (size <= 1.001 x)", row and row.median("ratio"), 1 / 1.001
        yield from _speeds(row, data, 0.5, 0.5)


def without_checksum(row: Row | None, way: str) -> float | None:
    """Return our speed against memcpy with the time of the checksum taken off, None if unknown."""
    if row is None or not row.median("crc_gbps"):
        return None
    share = 1 / row.samples["ratio"][0] / statistics.median(row.samples["crc_gbps"])
    pairs = zip(row.samples[f"{way}_gbps"], row.samples["memcpy_gbps"], strict=True)
    return statistics.median(1 / (1 / speed - share) / copy for speed, copy in pairs)


def _speeds(
    row: Row | None, label: str, encode: float, decode: float
) -> Iterator[tuple[str, float | None, float]]:
    for way, limit in (("encode", encode), ("decode", decode)):
        yield f"{label}: {way}, x memcpy", row and row.median(f"{way}_x_memcpy"), limit


def _ratio_against(rows: list[Row], data: str, codec: str, peer: str) -> float | None:
    own = find_row(rows, group=data, name=codec)
    other = find_row(rows, group=data, name=peer)
    ratio, theirs = own and own.median("ratio"), other and other.median("ratio")
    return ratio / theirs if ratio and theirs else None


def _label(data: str, codec: str) -> str:
    return data if codec == AUTO else f"{data}, max"
