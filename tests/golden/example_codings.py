"""The worked examples of FORMAT §7.10, made by the reference."""

from collections.abc import Iterator

import numpy as np
from golden.example import bytes_table, frame_header_fields, rows_table

from orbax_gds.codecs import reference
from orbax_gds.codecs.reference import Ans, Model, Prediction
from orbax_gds.codecs.reference_ans_table import N_STATES, Table
from orbax_gds.codecs.reference_levels import encode_levels
from orbax_gds.codecs.reference_prediction import predicted, symbols_of
from orbax_gds.dtypes import dtype_by_name

HEADING = "### 7.10 Worked examples of modelled and ans\n"
NEXT_HEADING = "### 7.11 delta\n"

MOMENTS = np.frombuffer(
    bytes.fromhex("3fa0 3f08 3f98 3ee0 3ec0 3e80 0000 3e90 4040 3fc0 3ff0 7f80"), ">u2"
).astype(np.uint32) << np.uint32(16)
MODEL = Model(
    emax=127,
    widths=(1, 2, 4),
    symbols=(0, 1, 14, 15, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13),
    prediction=Prediction(columns=4, row_offsets=(0, 255, 1), column_offsets=(0, 255, 0, 0)),
    sign_slot=True,
)
ONES = np.frombuffer(
    bytes.fromhex("3f80 3fc0 3f80 3f00 3f80 3f80 3fc0 3f80 3f00 3f80")
    + bytes.fromhex("3f80 3fc0 3f80 3f80 3f00 3fc0 3f80 3fc0 3f80 3f80"),
    ">u2",
).astype(np.uint16)
_COUNTS = {0: 2048, 8: 1024, 16: 1024}
ANS = Ans(counts=tuple(_COUNTS.get(y, 0) for y in range(256)), emax=127, no_signs=True)


def section() -> str:
    """Return FORMAT §7.10, its heading included."""
    return "\n".join([HEADING, *_modelled_part(), "", *_ans_part(), "", ""])


def modelled_frame() -> bytes:
    """Return the frame of the first example."""
    return reference.encode_frame(
        MOMENTS, dtype_by_name("float32"), codec="modelled", chunk=9, model=MODEL
    )


def ans_frame() -> bytes:
    """Return the frame of the second example."""
    return reference.encode_frame(ONES, dtype_by_name("bfloat16"), codec="ans", chunk=10, ans=ANS)


def _modelled_part() -> Iterator[str]:
    frame = modelled_frame()
    exponents = (MOMENTS >> 23).astype(int)
    expected = predicted(MODEL.prediction, MODEL.emax, np.arange(12), 8)
    symbols = symbols_of(exponents, expected, 8)
    ranks = np.argsort(MODEL.symbols)[symbols]
    (level_1, _), bitmaps = encode_levels(symbols, MODEL.widths, MODEL.symbols)
    rest = MOMENTS >> 16 & 0x7F
    slot = np.minimum(ranks, 1)
    yield "Chunk 9 is these 12 words of float32 that came from bfloat16, all positive: 3 rows of 4"
    yield "columns, coded with a prediction, the sign slot and 16 trimmed bits."
    yield ""
    yield from rows_table(
        "words 0 to 11",
        {
            "word": [f"{word:08x}" for word in MOMENTS],
            "e": exponents,
            "p": expected,
            "k": symbols,
            "rank": ranks,
            "upper 7 bits of the mantissa": [f"{byte:02x}" for byte in rest],
            "with the sign slot": [f"{byte:02x}" for byte in rest | slot << 7],
        },
    )
    yield ""
    yield "The offsets of the rows are 0, 255 (one less) and 1, those of the columns 0, 255, 0 and"
    yield "0. Word 6 is 0 and has symbol 14, word 11 is infinite and escapes. The frame:"
    yield ""
    yield from bytes_table(
        frame,
        [
            *frame_header_fields(frame, "codec 2, modelled", "dtype 18, float32"),
            (2, "flags: prediction and sign slot"),
            (2, "emax 127"),
            (2, "levels: widths 1, 2, 4"),
            (8, "symbols of ranks 0 to 15: 0, 1, 14, 15, 2, 3, …, 13"),
            (2, "0"),
            (4, "4 columns"),
            (3, "offsets of the rows, mod 256"),
            (4, "offsets of the columns"),
            (1, "16 trimmed bits"),
            (1, "size 0: all 12 words"),
            (2, f"level 1 holds {level_1} ranks"),
            (2, "level 2 holds 1 rank"),
            (2, "1 escape"),
            (12, "bytes of the first and only field; bit 7 is bit 0 of level 0"),
            (len(bitmaps[1]), f"level 1: {level_1} values, bit 0"),
            (len(bitmaps[2]), f"level 1: {level_1} values, bit 1"),
            *((len(bitmaps[3 + bit]), f"level 2: 1 value, bit {bit}") for bit in range(4)),
            (1, "escape: exponent 255"),
        ],
    )


def _ans_part() -> Iterator[str]:
    frame = ans_frame()
    table = Table.of(np.array(ANS.counts))
    stream_bytes = int.from_bytes(frame[32 + 50 : 32 + 54], "little")
    stream = int.from_bytes(frame[32 + 54 : 32 + 54 + stream_bytes], "little")
    at = (stream & -stream).bit_length()
    skipped, steps, states = at, [], []
    for _ in range(8):
        states.append(stream >> at & N_STATES - 1)
        at += 12
    for i in range(ONES.size):
        state = states[i % 8]
        n_bits = int(table.n_bits[state])
        bits = stream >> at & (1 << n_bits) - 1
        at += n_bits
        states[i % 8] = int(table.base[state]) + bits
        steps.append((i % 8, state, table.bytes[state], n_bits, table.base[state], bits))
        steps[-1] = (*steps[-1], states[i % 8])
    names = ["lane", "state s", "y", "nb(s)", "base(s)", "the bits", "next state"]
    yield "Chunk 10 is these 20 words of bfloat16, 1, 1.5 and 0.5, coded by ans with emax = 127, so"
    yield "that their y are 0, 8 and 16, and f(0) = 2048, f(8) = f(16) = 1024. No signs and no"
    yield "other bits of the mantissa are left. The positions 0, 2563, 1030, 3593, … hold y = 0"
    yield "until there are 2048 of them, then y = 8 follows, then y = 16. As these counts are"
    yield f"powers of 2, all states of a byte take as many bits. {skipped} bits are skipped, eight"
    yield "states follow, then the bits of these words:"
    yield ""
    columns = dict(zip(names, zip(*steps, strict=True), strict=True))
    yield from rows_table("words 0 to 19", {"word": [f"{word:04x}" for word in ONES], **columns})
    yield ""
    yield "The frame, from its first byte:"
    yield ""
    yield from bytes_table(
        frame,
        [
            *frame_header_fields(frame, "codec 3, ans", "dtype 16, bfloat16"),
            (2, "flags: no signs"),
            (2, "emax 127"),
            (4, "no columns"),
            (32, "bitmap of the bytes that occur: 0, 8 and 16"),
            (6, "counts 2048, 1024, 1024"),
            (1, "3 trimmed bits, which is all"),
            (1, "0"),
            (2, "no escapes"),
            (4, f"{stream_bytes} bytes of stream"),
            (stream_bytes, f"the stream, from bit 0 of its first byte: {skipped} bits skipped, …"),
        ],
    )
