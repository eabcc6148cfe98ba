"""The worked example of FORMAT §7.5, made by the reference."""

import struct
from collections.abc import Iterator

import numpy as np

from orbax_gds.codecs import reference
from orbax_gds.codecs.reference import Ladder
from orbax_gds.dtypes import dtype_by_name

Field = tuple[int, str]  # length in bytes, meaning

_FLAGS = {0: "no block map", 1: "bit 0, block map", 2: "bit 1, delta"}

HEADING = "### 7.5 Worked example\n"
NEXT_HEADING = "### 7.6 modelled\n"

WORDS = np.frombuffer(
    bytes.fromhex(
        "3f00 bf12 3e80 3f34 be9a 3f7f 3f01 3dcc bf55 3f0a"
        "3ee4 3f61 bd40 3f2b 0001 3eb3 bf70 3f18 3e4d 7fc1"
    ),
    ">u2",
).astype(np.uint16)
LADDER = Ladder(
    emax=126,
    widths=(1, 2, 4),
    symbols=(0, 1, 15, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14),
)
NIBBLES = np.array([0] * 256 + [7] * 256 + [1, 2, 3, 4, 5, 15, 0], np.uint8)


def section() -> str:
    """Return FORMAT §7.5, its heading included."""
    return "\n".join([HEADING, *_ladder_part(), "", *_block_map_part(), "", ""])


def ladder_frame() -> bytes:
    """Return the frame of the first example."""
    return reference.encode_frame(
        WORDS, dtype_by_name("bfloat16"), codec="ladder", chunk=7, ladder=LADDER
    )


def block_map_frame() -> bytes:
    """Return the frame of the second example."""
    return reference.encode_frame(NIBBLES, dtype_by_name("uint4"), chunk=8, block_map=True)


def _ladder_part() -> Iterator[str]:
    frame = ladder_frame()
    exponents = WORDS >> 7 & 0xFF
    s_plane = WORDS >> 8 & 0x80 | WORDS & 0x7F
    symbols = np.minimum((126 - exponents.astype(int)) % 256, 15)
    ranks = np.argsort(LADDER.symbols)[symbols]
    yield "Chunk 7 is these 20 words of bfloat16, coded by the ladder without a block map:"
    yield ""
    yield "| | words 0 to 19 |"
    yield "|---|---|"
    for name, row in {
        "word": [f"{word:04x}" for word in WORDS],
        "s": [f"{s:02x}" for s in s_plane],
        "e": exponents,
        "k": symbols,
        "rank": ranks,
    }.items():
        yield f"| {name} | {' '.join(map(str, row))} |"
    yield ""
    yield "The writer chose emax = 126 (the exponent of 0.5 to 1), the widths 1, 2, 4, and the"
    yield "symbols 0, 1, 15, 2, 3, … by frequency. The escapes are the denormal 0001 and NaN 7fc1."
    yield "Level 0 writes 0 for rank 0, else 1, and hands every other rank on, less 1:"
    level_1 = ranks[ranks >= 1] - 1
    level_2 = level_1[level_1 >= 3] - 3
    yield f"`{_list(level_1)}`. Level 1 writes min(r, 3) and hands on what is left of the threes:"
    yield f"`{_list(level_2)}`. The frame, from its first byte:"
    yield ""
    yield from bytes_table(
        frame,
        [
            *frame_header_fields(frame, "codec 1, ladder", "dtype 16, bfloat16"),
            (1, "emax 126"),
            (1, "0"),
            (2, "levels: codes 1, 2, 3 in bits 0, 2, 4: widths 1, 2, 4"),
            (8, "symbols of ranks 0 to 15, low half first: 0, 1, 15, 2, 3, …, 14"),
            (2, f"level 1 holds {level_1.size} ranks"),
            (2, f"level 2 holds {level_2.size} ranks"),
            (2, f"{(symbols == 15).sum()} escapes"),
            (20, "plane of the s bytes"),
            (3, "level 0: 20 values, bit 0"),
            (2, f"level 1: {level_1.size} values, bit 0"),
            (2, f"level 1: {level_1.size} values, bit 1"),
            (1, "level 2: values 0 and 1, bit 0"),
            (3, "level 2: bits 1, 2, 3"),
            (2, "escapes: exponents 0 and 255"),
        ],
    )


def _block_map_part() -> Iterator[str]:
    frame = block_map_frame()
    yield "Chunk 8 is 519 words of uint4: 256 times 0, 256 times 7, then 1, 2, 3, 4, 5, 15, 0. It"
    yield "is raw, with a block map: block 0 has code 1, block 1 code 2, block 2 (7 words) code 0:"
    yield ""
    yield from bytes_table(
        frame,
        [
            *frame_header_fields(frame, "codec 0, raw", "dtype 11, uint4"),
            (1, "block map: codes 1, 2, 0 in bits 0, 2, 4"),
            (1, "the word of block 1"),
            (4, "7 words of 4 bits; the last half byte is unused"),
        ],
    )


def frame_header_fields(frame: bytes, codec: str, dtype: str) -> list[Field]:
    """Return lengths and meanings of the fields of the header of a frame."""
    n_words, payload_bytes, frame_bytes, chunk = struct.unpack("<4I", frame[8:24])
    return [
        (4, "magic `OGF1`"),
        (1, codec),
        (1, dtype),
        (2, f"flags: {_FLAGS[frame[6]]}"),
        (4, f"n_words {n_words}"),
        (4, f"payload_bytes {payload_bytes}"),
        (4, f"frame_bytes {frame_bytes}"),
        (4, f"chunk {chunk}"),
        (4, f"CRC32C of bytes 32 to {len(frame) - 1}: {frame[27:23:-1].hex()}"),
        (4, f"CRC32C of bytes 0 to 27: {frame[31:27:-1].hex()}"),
    ]


def rows_table(head: str, rows: dict[str, object]) -> Iterator[str]:
    """Yield the lines of a table with a row of values for each name."""
    yield f"| | {head} |"
    yield "|---|---|"
    for name, row in rows.items():
        yield f"| {name} | {' '.join(map(str, row))} |"


def bytes_table(frame: bytes, fields: list[Field]) -> Iterator[str]:
    """Yield the lines of a table of the frame's bytes, up to the zeros at its end."""
    n_zeros = len(frame) - sum(n_bytes for n_bytes, _ in fields)
    yield "| offset | bytes | |"
    yield "|---|---|---|"
    at = 0
    for n_bytes, meaning in [*fields, (n_zeros, f"{n_zeros} zeros")]:
        field = frame[at : at + n_bytes]
        text = field.hex(" ") if n_bytes < 21 or any(field) else "00 … 00"
        yield f"| {at} | `{text}` | {meaning} |"
        at += n_bytes
    assert at == len(frame)


def _list(values: np.ndarray) -> str:
    return " ".join(map(str, values))
