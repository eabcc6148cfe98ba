"""Malformed frames under CRCs that hold, each with the error it deserves."""

from collections.abc import Iterator

from golden import example
from golden.refused_codings import refused_codings
from golden.resealing import resealed
from golden.words import blocks, noise

from orbax_gds.codecs import reference
from orbax_gds.codecs.reference import Ladder
from orbax_gds.dtypes import dtype_by_name


def refused() -> Iterator[tuple[str, bytes, str]]:
    """Yield name, bytes and expected error of every malformed frame."""
    nibbles = reference.encode_frame(noise(dtype_by_name("uint4"), 5, 1), dtype_by_name("uint4"))
    yield "empty", b"", "Truncated"
    yield "half a header", nibbles[:31], "Truncated"
    yield "half a frame", nibbles[:63], "Truncated"
    yield "magic", b"OGF2" + nibbles[4:], "Corrupt"
    yield "header crc", nibbles[:28] + b"\0\0\0\0" + nibbles[32:], "Corrupt"
    yield "payload crc", nibbles[:32] + b"\xff" + nibbles[33:], "Corrupt"
    yield "codec 2", resealed(nibbles, {4: 2}), "Unsupported"
    yield "ladder without a split", resealed(nibbles, {4: 1}), "Corrupt"
    yield "dtype 0", resealed(nibbles, {5: 0}), "Unsupported"
    yield "dtype 31", resealed(nibbles, {5: 31}), "Unsupported"
    yield "flag 1", resealed(nibbles, {6: 2}), "Corrupt"
    yield "flag 15", resealed(nibbles, {7: 0x80}), "Corrupt"
    yield "no words", resealed(nibbles, {8: 0}), "Corrupt"
    yield "payload past the frame", resealed(nibbles, {12: 33}), "Corrupt"
    yield "frame of 96 bytes", resealed(nibbles + bytes(32), {16: 96}), "Corrupt"
    yield "payload short", resealed(nibbles, {}, 2), "Truncated"
    yield "payload long", resealed(nibbles, {}, 4), "Corrupt"
    yield "padding not zero", resealed(nibbles, {35: 1}), "Corrupt"
    yield "raw unused bits", resealed(nibbles, {34: nibbles[34] | 0x10}), "Corrupt"

    mapped = reference.encode_frame(
        blocks(dtype_by_name("int4")), dtype_by_name("int4"), block_map=True
    )
    yield "block code 3", resealed(mapped, {32: mapped[32] | 3}), "Corrupt"
    yield "map unused bits", resealed(mapped, {32: mapped[32] | 0x40}), "Corrupt"
    yield "constant above its bits", resealed(mapped, {33: mapped[33] | 0x10}), "Corrupt"
    yield "payload after a map long", resealed(mapped, {}, 2 + 11 + 1), "Corrupt"
    yield "map cut", resealed(mapped, {}, 0), "Truncated"
    yield "constant cut", resealed(mapped, {}, 1), "Truncated"

    yield from refused_ladders()
    yield from refused_codings()


def refused_ladders() -> Iterator[tuple[str, bytes, str]]:
    """Yield the malformed ladder payloads: 20 words in three levels, from byte 32 on.

    Header 32 to 43, counts 44 to 47, escapes 48, s plane 50 to 69, level 0 from 70: 3 bytes.
    """
    bf16 = dtype_by_name("bfloat16")
    ladder = Ladder(emax=126, widths=(1, 1, 4), symbols=tuple(range(16)))
    frame = reference.encode_frame(example.WORDS, bf16, codec="ladder", ladder=ladder)
    n_payload = int.from_bytes(frame[12:16], "little")
    level_1, held = 73, int.from_bytes(frame[44:46], "little")
    level_2 = level_1 + -(-held // 8)
    yield "ladder reserved byte", resealed(frame, {33: 1}), "Corrupt"
    yield "ladder without levels", resealed(frame, {34: 0}), "Corrupt"
    yield "ladder without width 4", resealed(frame, {34: 0b0101}), "Corrupt"
    yield "ladder level after width 4", resealed(frame, {34: 0b01_11_01_01}), "Corrupt"
    yield "ladder gap in the levels", resealed(frame, {34: 0b11_00_01_01}), "Corrupt"
    yield "ladder two width 4", resealed(frame, {34: 0b11_11_01}), "Corrupt"
    yield "ladder symbols", resealed(frame, {36: 0x00}), "Corrupt"
    yield "ladder count", resealed(frame, {44: held + 1}), "Corrupt"
    yield "ladder count of nothing", resealed(frame, {44: 0}), "Corrupt"
    yield "ladder count 65535", resealed(frame, {44: 255, 45: 255}), "Corrupt"
    yield "ladder escapes", resealed(frame, {48: frame[48] + 1}), "Corrupt"
    yield "ladder no escapes", resealed(frame, {48: 0}), "Corrupt"
    yield "ladder level 0", resealed(frame, {70: frame[70] ^ 1}), "Corrupt"
    rank_17 = {level_2 + at: 255 for at in range(n_payload + 32 - level_2 - 1)}
    yield "ladder rank above 15", resealed(frame, rank_17), "Corrupt"
    for n in (0, 11, 12, 17, 18, 37, 38, n_payload - 1):
        yield f"ladder cut to {n} bytes", resealed(frame, {}, n), "Truncated"
    yield "ladder long", resealed(frame, {}, n_payload + 1), "Corrupt"
