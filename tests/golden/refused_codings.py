"""Malformed payloads of the codings of FORMAT §7.4 to 7.8 but for the ladder of bfloat16."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import zstandard
from golden.resealing import payload_of, resealed, with_payload
from golden.words import narrow, noise

from orbax_gds.codecs import reference
from orbax_gds.codecs.reference import Ladder, Model, Prediction
from orbax_gds.dtypes import dtype_by_name

Refusal = tuple[str, bytes, str]  # name, bytes, expected error

FP16 = dtype_by_name("float16")
UINT4 = dtype_by_name("uint4")
UINT8 = dtype_by_name("uint8")
HALVES = narrow(FP16, 20, 2)
HALVES[[3, 9]] = 0x7C00, 0xFC01  # exponents outside the window, so that there are escapes
WIDTHS, SYMBOLS = (1, 1, 4), tuple(range(16))


def refused_codings() -> Iterator[Refusal]:
    """Yield name, bytes and expected error of each."""
    yield from refused_splits()
    yield from refused_models()
    yield from refused_ans()
    yield from refused_zstd()
    yield from refused_huffman()
    raw = reference.encode_frame(noise(dtype_by_name("float64"), 5, 1), dtype_by_name("float64"))
    for codec, name in ((2, "modelled"), (3, "ans")):
        yield f"{name} float64", resealed(raw, {4: codec}), "Unsupported"
    raw = reference.encode_frame(noise(UINT8, 5, 1), UINT8)
    yield "ans uint8", resealed(raw, {4: 3}), "Unsupported"
    yield "codec 6", resealed(raw, {4: 6}), "Unsupported"
    raw = reference.encode_frame(noise(FP16, 5, 1), FP16)
    yield "huffman float16", resealed(raw, {4: 5}), "Unsupported"


def refused_splits() -> Iterator[Refusal]:
    """Yield ladders whose exponents have more bits than the split."""
    fp64 = dtype_by_name("float64")
    for dtype, bits in ((FP16, 5), (fp64, 11)):
        ladder = Ladder(emax=14, widths=WIDTHS, symbols=SYMBOLS)
        words = HALVES if dtype is FP16 else narrow(dtype, 20, 2)
        frame = reference.encode_frame(words, dtype, codec="ladder", ladder=ladder)
        last = 31 + len(payload_of(frame))
        high = {32: (1 << bits) & 255, 33: 1 << bits >> 8}
        yield f"ladder {dtype.name} emax", resealed(frame, high), "Corrupt"
        escape = {last: 32} if bits == 5 else {last: 8}
        yield f"ladder {dtype.name} escape", resealed(frame, escape), "Corrupt"
        yield f"ladder {dtype.name} cut", resealed(frame, {}, last - 32), "Truncated"
        yield f"ladder {dtype.name} long", resealed(frame, {}, last - 30), "Corrupt"


def refused_models() -> Iterator[Refusal]:
    """Yield malformed modelled payloads: 20 words of float16 in rows of 5.

    Fixed header 32 to 51, rows 52 to 55, columns 56 to 60, sub-block from 61: trimmed bits, size,
    counts 63 to 66, escapes 67, bytes 69 to 88, three bitmaps 89 to 97, level 0 from 98.
    """
    prediction = Prediction(columns=5, row_offsets=(0, 1, 2, 3), column_offsets=(0,) * 5)
    model = Model(emax=14, widths=WIDTHS, symbols=SYMBOLS, prediction=prediction)
    frame = reference.encode_frame(HALVES, FP16, codec="modelled", model=model)
    n_payload = len(payload_of(frame))
    bare = reference.encode_frame(
        HALVES, FP16, codec="modelled", model=replace(model, prediction=None)
    )
    for name, changes in {
        "flags": {32: 1 | 4},
        "flags above": {33: 1},
        "emax": {34: 32},
        "emax above": {35: 1},
        "levels": {36: 0b0101},
        "symbols": {38: 0x11},
        "reserved": {46: 1},
        "no columns": {48: 0},
        "21 columns": {48: 21},
        "2**24 columns": {51: 1},
        "prediction denied": {32: 0},
        "trimmed 4 of 3": {61: 4},
        "trimmed 255": {61: 255},
        "sub-block of size 8": {62: 8},
        "count": {63: frame[63] ^ 1},
        "count 65535": {63: 255, 64: 255},
        "escapes": {67: frame[67] + 1},
        "no escapes": {67: 0},
        "escape 32": {31 + n_payload: 32},
        "level 0": {98: frame[98] ^ 1},
    }.items():
        yield f"modelled {name}", resealed(frame, changes), "Corrupt"
    yield "modelled columns without prediction", resealed(bare, {48: 5}), "Corrupt"
    yield "modelled prediction without rows", resealed(bare, {32: 1, 48: 20}), "Corrupt"
    for n in (0, 19, 20, 23, 24, 28, 30, 36, 56, 57, 66, n_payload - 1):
        yield f"modelled cut to {n} bytes", resealed(frame, {}, n), "Truncated"
    yield "modelled long", resealed(frame, {}, n_payload + 1), "Corrupt"
    slot = reference.encode_frame(
        HALVES & 0x7FFF, FP16, codec="modelled", model=replace(model, sign_slot=True)
    )
    yield "modelled sign slot denied", resealed(slot, {32: 1}), "Corrupt"
    yield "modelled sign slot bit", resealed(slot, {69: slot[69] ^ 0x80}), "Corrupt"


def refused_ans() -> Iterator[Refusal]:
    """Yield malformed ans payloads: 20 words of float16 without a prediction.

    Fixed header 32 to 39, bitmap 40 to 71, counts from 72.
    """
    frame = reference.encode_frame(HALVES, FP16, codec="ans")
    n_bytes = sum(byte.bit_count() for byte in frame[40:72])
    block = 72 + 2 * n_bytes  # trimmed, 0, escapes, length, fields, stream, escapes
    (n_escapes,), n_payload = frame[block + 2 : block + 3], len(payload_of(frame))
    stream, end = block + 8 + 7 * 3, 32 + n_payload - n_escapes
    assert n_escapes == 2
    assert int.from_bytes(frame[block + 4 : block + 8], "little") == end - stream
    both = bytes(2) + sum(np.frombuffer(frame[72:76], "<u2").tolist()).to_bytes(2, "little")
    for name, changes in {
        "flags": {32: 4},
        "flags above": {33: 1},
        "emax": {34: 32},
        "columns without prediction": {36: 5},
        "a count more": {72: frame[72] ^ 1},
        "a count of 0": dict(zip(range(72, 76), both, strict=True)),
        "trimmed 7 of 6": {block: 7},
        "sub-block reserved": {block + 1: 1},
        "escapes": {block + 2: n_escapes + 1},
        "no escapes": {block + 2: 0},
        "no stream": {block + 4: 0},
        "stream without a beginning": {stream: 0},
        "stream that begins later": {stream: frame[stream] & (frame[stream] - 1) or 0x80},
        "states at the end": {end - 1: frame[end - 1] ^ 0x80},
        "escape 32": {31 + n_payload: 32},
    }.items():
        yield f"ans {name}", resealed(frame, changes), "Corrupt"
    yield "ans stream of 2**31 bytes", resealed(frame, {block + 7: 0x80}), "Truncated"
    payload, at, length = payload_of(frame), end - 32, end - stream
    for name, step in (("short", -1), ("long", 1)):
        changed = payload[:at][: at + min(step, 0)] + bytes(max(step, 0)) + payload[at:]
        where = block - 32 + 4
        changed = changed[:where] + (length + step).to_bytes(4, "little") + changed[where + 4 :]
        yield f"ans stream {name}", with_payload(frame, changed), "Corrupt"
    for n in (0, 7, 8, 39, 40, block - 33, block - 32, block - 25, stream - 33, at - 1, at):
        yield f"ans cut to {n} bytes", resealed(frame, {}, n), "Truncated"
    yield "ans long", resealed(frame, {}, n_payload + 1), "Corrupt"
    predicted = reference.encode_frame(HALVES, FP16, codec="ans", columns=5)
    yield "ans no columns", resealed(predicted, {36: 0}), "Corrupt"
    yield "ans 21 columns", resealed(predicted, {36: 21}), "Corrupt"
    yield "ans prediction cut", resealed(predicted, {}, 8 + 8), "Truncated"
    yield "ans no byte", resealed(frame, dict.fromkeys(range(40, 72), 0)), "Corrupt"


def zstd_frame(
    content: bytes, *, descriptor: int, header: bytes, block_bytes: int | None = None
) -> bytes:
    """Return a Zstandard frame of one raw block, its header as given. RFC 8878 §3.1.1."""
    size = len(content) if block_bytes is None else block_bytes
    block = (size << 3 | 1).to_bytes(3, "little")
    return bytes.fromhex("28b52ffd") + bytes([descriptor]) + header + block + content


def refused_zstd() -> Iterator[Refusal]:
    """Yield malformed zstd payloads: 20 words of uint8, so that 20 bytes are the content."""
    words = noise(UINT8, 20, 3)
    content = words.tobytes()
    frame = reference.encode_frame(words, UINT8, codec="zstd")
    single = 0x20
    good = zstd_frame(content, descriptor=single, header=bytes([20]))
    window = bytes([(27 - 10) << 3])
    reference.decode_frame(with_payload(frame, good))
    reference.decode_frame(
        with_payload(
            frame, zstd_frame(content, descriptor=0x80, header=window + (20).to_bytes(4, "little"))
        )
    )
    unknown = zstandard.ZstdCompressor(write_content_size=False).compress(content)
    skippable = bytes.fromhex("502a4d18") + (20).to_bytes(4, "little") + content
    for name, payload in {
        "magic": b"\0" + good[1:],
        "no content size": unknown,
        "content of 19 bytes": zstd_frame(content[:19], descriptor=single, header=bytes([19])),
        "content of 21 bytes": zstd_frame(content + b"\0", descriptor=single, header=bytes([21])),
        "more content than stated": zstd_frame(
            content + b"\0", descriptor=single, header=bytes([20])
        ),
        "less content than stated": zstd_frame(content[:19], descriptor=single, header=bytes([20])),
        "dictionary": zstd_frame(content, descriptor=single | 1, header=bytes([7, 20])),
        "window above 128 MiB": zstd_frame(
            content,
            descriptor=0x80,
            header=bytes([(27 - 10) << 3 | 1]) + (20).to_bytes(4, "little"),
        ),
        "reserved bit": zstd_frame(content, descriptor=single | 8, header=bytes([20])),
        "block past the end": zstd_frame(
            content, descriptor=single, header=bytes([20]), block_bytes=21
        ),
        "no last block": good[:6] + bytes([good[6] & ~1]) + good[7:],
        "checksum": zstd_frame(content, descriptor=single | 4, header=bytes([20])) + bytes(4),
        "skippable frame": skippable,
        "skippable frame after": good + skippable,
        "frame after": good + good,
        "byte after": good + b"\0",
        "nothing": b"",
    }.items():
        yield f"zstd {name}", with_payload(frame, payload), "Corrupt"
    for n in (1, 4, 5, 6, 9, len(good) - 1):
        yield f"zstd cut to {n} bytes", with_payload(frame, good[:n]), "Corrupt"
    nibbles = reference.encode_frame(words % 16, UINT4, codec="zstd")
    yield "zstd above the bits", with_payload(nibbles, good), "Corrupt"


def refused_huffman() -> Iterator[Refusal]:
    """Yield malformed huffman payloads: 20 words of uint4, 0 to 3 with 2 bits each.

    Lengths 32 to 159, lengths of the streams 160 to 175, then 8 streams of a byte.
    """
    lengths = np.array([2, 2, 2, 2] + [0] * 252)
    words = np.resize(np.arange(4, dtype=np.uint8), 20)
    frame = reference.encode_frame(words, UINT4, codec="huffman", lengths=lengths)
    n_payload = len(payload_of(frame))
    assert n_payload == 128 + 16 + 8
    for name, changes in {
        "no lengths": {32: 0, 33: 0},
        "too few codes": {32: 0x20},
        "too many codes": {34: 0x02},
        "12 bits": {32: 0x32, 33: 0x43, 34: 0x65, 35: 0x87, 36: 0xA9, 37: 0xCB, 38: 0x0C},
        "above the bits": {33: 0x02, 40: 0x02},
        "stream of no byte": {160: 0, 162: 2},
        "stream of two bytes": {160: 2, 162: 0},
        "last stream of no byte": {172: 2, 174: 0},
    }.items():
        yield f"huffman {name}", resealed(frame, changes), "Corrupt"
    yield "huffman stream of 65535 bytes", resealed(frame, {174: 255, 175: 255}), "Truncated"
    for n in (0, 127, 128, 143, 144, n_payload - 1):
        yield f"huffman cut to {n} bytes", resealed(frame, {}, n), "Truncated"
    yield "huffman long", resealed(frame, {}, n_payload + 1), "Corrupt"
