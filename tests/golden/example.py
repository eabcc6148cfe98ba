"""The worked example of FORMAT §7.5, made by the reference."""

from collections.abc import Iterator

import numpy as np

from orbax_gds.codecs import reference
from orbax_gds.codecs.reference import Ladder
from orbax_gds.dtypes import dtype_by_name

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
    yield from _bytes_table(
        frame,
        [
            (4, "magic `OGF1`"),
            (1, "codec 1, ladder"),
            (1, "dtype 16, bfloat16"),
            (2, "flags: no block map"),
            (4, "n_words 20"),
            (4, f"payload_bytes {int.from_bytes(frame[12:16], 'little')}"),
            (4, f"frame_bytes {len(frame)}"),
            (4, "chunk 7"),
            (4, f"CRC32C of bytes 32 to {len(frame) - 1}: {frame[27:23:-1].hex()}"),
            (4, f"CRC32C of bytes 0 to 27: {frame[31:27:-1].hex()}"),
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
            (len(frame) - 83, f"{len(frame) - 83} zeros"),
        ],
    )


def _block_map_part() -> Iterator[str]:
    frame = block_map_frame()
    yield "Chunk 8 is 519 words of uint4: 256 times 0, 256 times 7, then 1, 2, 3, 4, 5, 15, 0. It"
    yield "is raw, with a block map: block 0 has code 1, block 1 code 2, block 2 (7 words) code 0:"
    yield ""
    yield from _bytes_table(
        frame,
        [
            (4, "magic `OGF1`"),
            (1, "codec 0, raw"),
            (1, "dtype 11, uint4"),
            (2, "flags: bit 0, block map"),
            (4, "n_words 519"),
            (4, f"payload_bytes {int.from_bytes(frame[12:16], 'little')}"),
            (4, f"frame_bytes {len(frame)}"),
            (4, "chunk 8"),
            (4, f"CRC32C of bytes 32 to {len(frame) - 1}: {frame[27:23:-1].hex()}"),
            (4, f"CRC32C of bytes 0 to 27: {frame[31:27:-1].hex()}"),
            (1, "block map: codes 1, 2, 0 in bits 0, 2, 4"),
            (1, "the word of block 1"),
            (4, "7 words of 4 bits; the last half byte is unused"),
            (len(frame) - 38, f"{len(frame) - 38} zeros"),
        ],
    )


def _bytes_table(frame: bytes, fields: list[tuple[int, str]]) -> Iterator[str]:
    yield "| offset | bytes | |"
    yield "|---|---|---|"
    at = 0
    for n_bytes, meaning in fields:
        field = frame[at : at + n_bytes]
        text = field.hex(" ") if n_bytes < 21 or any(field) else "00 … 00"
        yield f"| {at} | `{text}` | {meaning} |"
        at += n_bytes
    assert at == len(frame)


def _list(values: np.ndarray) -> str:
    return " ".join(map(str, values))
