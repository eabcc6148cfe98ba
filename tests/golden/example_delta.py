"""The worked example of FORMAT §7.12, made by the reference."""

from collections.abc import Iterator

import numpy as np
from golden.example import WORDS, bytes_table, frame_header_fields, ladder_frame, rows_table

from orbax_gds.codecs import reference
from orbax_gds.codecs.reference import Base, Delta
from orbax_gds.codecs.reference_delta import ESCAPE, MAX_PLANES, differences, exponents_of
from orbax_gds.codecs.reference_frame import parse_frame_header
from orbax_gds.codecs.reference_levels import encode_levels
from orbax_gds.dtypes import dtype_by_name

HEADING = "### 7.12 Worked example of delta\n"
NEXT_HEADING = "## 8. Reading\n"

BF16 = dtype_by_name("bfloat16")
CHANGED = np.frombuffer(
    bytes.fromhex(
        "3f00 bf13 3e82 3f33 be9a 3f80 3f01 3dd0 bf54 3f0a"
        "3ee5 3f62 bd48 3f2b 8001 3eb1 bf80 3f1a 3e4b 7fc1"
    ),
    ">u2",
).astype(np.uint16)
DELTA = Delta(
    shift=126,
    widths=(1, 2, 4),
    symbols=(0, 1, 2, 4, 15, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14),
    exponents=True,
)
BASE = Base(words=WORDS, payload_crc32c=parse_frame_header(ladder_frame()).payload_crc32c)


def delta_frame() -> bytes:
    """Return the frame of the example."""
    return reference.encode_frame(CHANGED, BF16, codec="delta", chunk=7, delta=DELTA, base=BASE)


def section() -> str:
    """Return FORMAT §7.12, its heading included."""
    return "\n".join([HEADING, *_lines(), "", ""])


def _lines() -> Iterator[str]:
    frame = delta_frame()
    z = differences(CHANGED, WORDS, BF16).astype(int)
    k = np.clip(DELTA.shift - exponents_of(WORDS, BF16), 0, MAX_PLANES)
    symbols = np.minimum(z >> k, ESCAPE)
    (level_1, level_2), bitmaps = encode_levels(symbols, DELTA.widths, DELTA.symbols)
    yield "In the next step chunk 7 of §7.5 has become these words, and its frame there is their"
    yield "base's. They are coded with exponents and shift = 126: of 0.5 to 1, whose exponent is"
    yield "126, no bit is below the symbol, and one more for each halving."
    yield ""
    yield from rows_table(
        "words 0 to 19",
        {
            "word of the base": [f"{word:04x}" for word in WORDS],
            "word": [f"{word:04x}" for word in CHANGED],
            "d": np.where(z % 2 == 0, z // 2, -(z + 1) // 2),
            "z = y": z,
            "k": k,
            "q": z >> k,
            "symbol": symbols,
            "rank": np.argsort(DELTA.symbols)[symbols],
        },
    )
    yield ""
    yield "bf13 is below bf12: d = -1. Word 14 went through 0, from 0001 by way of 0000 and 8000 to"
    yield "8001: d = -3; it has the exponent 0, so 7 bits are below. Word 16 changed more than a"
    yield "symbol says: an escape. Plane 0 is bit 0 of y for each word whose k is above 0, in"
    yield f"order: {_bits(z, k, 0)}. Plane 1 is bit 1 for those above 1: {_bits(z, k, 1)},"
    yield f"and so on to plane 6, of word 14 alone: {_bits(z, k, 6)}. The frame:"
    yield ""
    yield from bytes_table(frame, _fields(frame, k, level_1, level_2, bitmaps))
    yield ""
    yield "With f = 1 the low byte of each z would stand before the planes, in the order of words:"
    yield f"`{z.astype(np.uint8).tobytes().hex(' ')}`, and every y would be 0."
    yield ""
    yield "Had all words stayed as they were, `04 00` would follow the CRC32C, and then zeros."


def _bits(z: np.ndarray, k: np.ndarray, plane: int) -> str:
    return " ".join(str(bit) for bit in z[k > plane] >> plane & 1)


def _fields(
    frame: bytes, k: np.ndarray, level_1: int, level_2: int, bitmaps: list[bytes]
) -> list[tuple[int, str]]:
    sizes = [int((k > plane).sum()) for plane in range(MAX_PLANES)]
    counts = {1: level_1, 2: level_1}
    return [
        *frame_header_fields(frame, "codec 6, delta", "dtype 16, bfloat16"),
        (4, "CRC32C that stands in byte 24 of the base's frame: 734e3d18"),
        (2, "flags: exponents"),
        (2, "shift 126"),
        (2, "levels: widths 1, 2, 4"),
        (8, "symbols of ranks 0 to 15: 0, 1, 2, 4, 15, 3, …, 14"),
        (1, "no low bytes"),
        (1, "0"),
        (2, f"level 1 holds {level_1} ranks"),
        (2, f"level 2 holds {level_2} ranks"),
        (2, "1 escape"),
        (1, "7 planes"),
        (1, "the first bitmap of level 0 is not coded"),
        *((2, f"plane {plane} has {size} bits") for plane, size in enumerate(sizes)),
        (len(bitmaps[0]), "level 0: 20 values, bit 0"),
        *((len(bitmaps[i]), f"level 1: {counts[i]} values, bit {i - 1}") for i in (1, 2)),
        *((len(bitmaps[3 + bit]), f"level 2: {level_2} values, bit {bit}") for bit in range(4)),
        (2, "y of the escape: 31"),
        *((-(-size // 8), f"plane {plane}") for plane, size in enumerate(sizes)),
    ]
