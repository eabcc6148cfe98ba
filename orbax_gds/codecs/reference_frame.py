"""Frames in plain NumPy, written from FORMAT §6 and §7 and nothing else.

Slow and clear: every table of the document is a line here. Entered through `codecs.reference`.
"""

import struct
from dataclasses import dataclass

import numpy as np

from orbax_gds.codecs.reference_ans import Ans, decode_ans, encode_ans
from orbax_gds.codecs.reference_bytes import Cursor, align, check_crc, crc32c
from orbax_gds.codecs.reference_delta import Delta, decode_delta, encode_delta
from orbax_gds.codecs.reference_huffman import decode_huffman, encode_huffman
from orbax_gds.codecs.reference_ladder import Ladder, decode_ladder, encode_ladder
from orbax_gds.codecs.reference_modelled import (
    Model,
    decode_modelled,
    encode_modelled,
)
from orbax_gds.codecs.reference_prediction import CodedWords
from orbax_gds.codecs.reference_zstd import decode_zstd, encode_zstd
from orbax_gds.dtypes import SPLITS, Dtype, dtype_by_id
from orbax_gds.errors import Corrupt, Truncated, Unsupported

FRAME = struct.Struct("<4sBBHIIIIII")
FRAME_MAGIC = b"OGF1"
CODECS = {0: "raw", 1: "ladder", 2: "modelled", 3: "ans", 4: "zstd", 5: "huffman", 6: "delta"}
BLOCK_MAP_FLAG, DELTA_FLAG = 1, 2
BLOCK_WORDS = 256
NORMAL, ZERO, CONSTANT, SAME = 0, 1, 2, 3  # block codes
MAX_CHUNK_WORDS = 1 << 28
MAX_FRAME_BYTES = (1 << 31) - 1


def supports(codec: str, dtype: Dtype) -> bool:
    """Return whether a codec codes words of a dtype. FORMAT §7."""
    if codec == "ladder":
        return dtype.split is not None
    if codec == "huffman":
        return dtype.bits <= 8
    return codec not in ("modelled", "ans") or dtype.is_modelled


@dataclass(frozen=True, kw_only=True)
class FrameHeader:
    """The header of a frame, checked. FORMAT §6."""

    codec: int
    dtype: Dtype
    flags: int
    n_words: int
    payload_bytes: int
    frame_bytes: int
    chunk: int
    payload_crc32c: int


def parse_frame_header(data: bytes, where: str = "frame") -> FrameHeader:
    """Read and check the first 32 bytes of a frame.

    Args:
        data: The frame, or at least its header.
        where: Coordinates for messages.

    Raises:
        Truncated: There are fewer than 32 bytes.
        Corrupt: Magic, CRC or a length is wrong.
        Unsupported: Codec, dtype or a flag is unknown.
    """
    header = Cursor(data, where).take(FRAME.size, "the frame header")
    magic, codec, dtype_id, flags, n_words, payload_bytes, frame_bytes, chunk, payload_crc, crc = (
        FRAME.unpack(header)
    )
    if magic != FRAME_MAGIC:
        raise Corrupt(f"{where}: no frame begins here: magic is {magic!r}, not {FRAME_MAGIC!r}.")
    check_crc(header[:28], crc, f"{where}: frame header")
    if codec not in CODECS:
        raise Unsupported(f"{where}: codec {codec} is unknown; known are {CODECS}.")
    if CODECS[codec] == "delta" and not flags & DELTA_FLAG:
        raise Unsupported(f"{where}: codec delta in a frame without the flag of one.")
    if flags & ~(BLOCK_MAP_FLAG | DELTA_FLAG):
        raise Corrupt(f"{where}: frame flags {flags:#06x} hold a reserved bit.")
    dtype = dtype_by_id(dtype_id)
    if not supports(CODECS[codec], dtype):
        error = Corrupt if CODECS[codec] == "ladder" else Unsupported
        raise error(f"{where}: codec {CODECS[codec]} does not code dtype {dtype.name}.")
    if not 1 <= n_words <= MAX_CHUNK_WORDS:
        raise Corrupt(f"{where}: a chunk of {n_words} words; 1 to {MAX_CHUNK_WORDS} are allowed.")
    if (
        frame_bytes % 64
        or frame_bytes < align(FRAME.size + payload_bytes, 64)
        or frame_bytes > MAX_FRAME_BYTES
    ):
        raise Corrupt(f"{where}: frame_bytes {frame_bytes} for a payload of {payload_bytes}.")
    return FrameHeader(
        codec=codec,
        dtype=dtype,
        flags=flags,
        n_words=n_words,
        payload_bytes=payload_bytes,
        frame_bytes=frame_bytes,
        chunk=chunk,
        payload_crc32c=payload_crc,
    )


@dataclass(frozen=True, kw_only=True)
class Base:
    """What a delta follows from. FORMAT §7.11.

    Attributes:
        words: Those of the base, as many as the chunk has.
        payload_crc32c: What the header of the base's frame says.
    """

    words: np.ndarray
    payload_crc32c: int


def decode_frame(
    frame: bytes, where: str = "frame", *, base: Base | None = None
) -> tuple[FrameHeader, np.ndarray]:
    """Decode one whole frame.

    Args:
        frame: Its bytes and no more.
        where: Coordinates for messages.
        base: What a delta follows from; other frames do not need it.

    Returns:
        The header and the words, 1-d of the dtype's word type, bits above `bits` 0.

    Raises:
        Corrupt, Truncated, Unsupported: See FORMAT §8.
    """
    frame = bytes(frame)
    header = parse_frame_header(frame, where)
    if len(frame) < header.frame_bytes:
        raise Truncated(f"{where}: {len(frame)} bytes of a frame of {header.frame_bytes}.")
    if len(frame) > header.frame_bytes:
        raise Corrupt(f"{where}: {len(frame)} bytes hold a frame of {header.frame_bytes}.")
    check_crc(frame[FRAME.size :], header.payload_crc32c, f"{where}: payload")
    payload = frame[FRAME.size : FRAME.size + header.payload_bytes]
    if any(frame[FRAME.size + header.payload_bytes :]):
        raise Corrupt(f"{where}: bytes after the payload are not 0.")
    return header, _decode_payload(Cursor(payload, where), header, base)


def encode_frame(
    words: np.ndarray,
    dtype: Dtype,
    *,
    codec: str = "raw",
    chunk: int = 0,
    block_map: bool = False,
    align_bytes: int = 64,
    columns: int = 0,
    ladder: Ladder | None = None,
    model: Model | None = None,
    ans: Ans | None = None,
    lengths: np.ndarray | None = None,
    delta: Delta | None = None,
    base: Base | None = None,
) -> bytes:
    """Code one chunk as a frame.

    Args:
        words: 1-d, 1 to 2**28 words of the dtype's word type.
        dtype: What the words are.
        codec: Name of the codec; it is used even where it does not pay.
        chunk: Number of the chunk in its stripe.
        block_map: Write a block map (FORMAT §7.1).
        align_bytes: Lengthen the frame with zeros to a multiple of this.
        columns: Words in a row of the chunk as a matrix, so that modelled and ans predict
            exponents; 0 = no prediction.
        ladder: Header of the ladder; by default one that fits the words.
        model: Header of the modelled coding, likewise.
        ans: Header of the ans coding, likewise.
        lengths: Code lengths of the huffman coding, likewise: int64[256].
        delta: Header of the delta coding, likewise.
        base: Make a frame that needs this base; codec delta needs one.
    """
    words = words.astype(dtype.word_dtype) & dtype.word_dtype.type((1 << dtype.bits) - 1)
    if not supports(codec, dtype):
        raise Unsupported(f"Codec {codec} does not code dtype {dtype.name}.")
    base_words = None if base is None else base.words
    payload, places = b"", np.arange(words.size)
    if block_map:
        payload, places = _encode_blocks(words, base_words)
    if base is not None:
        payload = struct.pack("<I", base.payload_crc32c) + payload
    normal = words[places]
    if codec == "raw":
        payload += encode_raw(normal, dtype)
    elif codec == "ladder":
        payload += encode_ladder(normal, dtype, ladder)
    elif codec in ("modelled", "ans"):
        coded = CodedWords(
            words=normal,
            split=SPLITS[str(dtype.split)],
            places=places,
            n_words=words.size,
            columns=columns,
        )
        payload += encode_ans(coded, ans) if codec == "ans" else encode_modelled(coded, model)
    elif codec == "huffman":
        payload += encode_huffman(normal, lengths)
    elif codec == "delta":
        if base is None:
            raise Unsupported("Codec delta needs a base.")
        payload += encode_delta(normal, base.words[places], dtype, delta)
    else:
        payload += encode_zstd(normal, dtype)
    return frame_payload(
        payload,
        dtype,
        words.size,
        codec=codec,
        chunk=chunk,
        flags=BLOCK_MAP_FLAG * block_map | DELTA_FLAG * (base is not None),
        align_bytes=align_bytes,
    )


def frame_payload(
    payload: bytes,
    dtype: Dtype,
    n_words: int,
    *,
    codec: str,
    chunk: int = 0,
    flags: int = 0,
    align_bytes: int = 64,
) -> bytes:
    """Put a header before a payload and zeros behind it."""
    number = next(number for number, name in CODECS.items() if name == codec)
    frame_bytes = align(FRAME.size + len(payload), align_bytes)
    body = payload.ljust(frame_bytes - FRAME.size, b"\0")
    fields = (FRAME_MAGIC, number, dtype.id, flags, n_words, len(payload), frame_bytes, chunk)
    header = FRAME.pack(*fields, crc32c(body), 0)[:28]
    return header + struct.pack("<I", crc32c(header)) + body


def _encode_blocks(words: np.ndarray, base: np.ndarray | None) -> tuple[bytes, np.ndarray]:
    """Return the block map with its constants, and the places of the normal words."""
    blocks = [words[at : at + BLOCK_WORDS] for at in range(0, words.size, BLOCK_WORDS)]
    codes = [
        NORMAL if (block != block[0]).any() else CONSTANT if block[0] else ZERO for block in blocks
    ]
    for b, code in enumerate(codes):
        piece = slice(b * BLOCK_WORDS, (b + 1) * BLOCK_WORDS)
        if base is not None and code == NORMAL and (words[piece] == base[piece]).all():
            codes[b] = SAME
    block_map = bytearray(-(-len(blocks) // 4))
    for b, code in enumerate(codes):
        block_map[b // 4] |= code << 2 * (b % 4)
    constants = [block[:1] for block, code in zip(blocks, codes, strict=True) if code == CONSTANT]
    is_normal = np.repeat(np.array(codes) == NORMAL, BLOCK_WORDS)[: words.size]
    mapped = bytes(block_map) + np.concatenate([words[:0], *constants]).tobytes()
    return mapped, np.flatnonzero(is_normal)


def _check_base(payload: Cursor, header: FrameHeader, base: Base | None) -> np.ndarray | None:
    """Return the words of the base, or None if the frame needs none."""
    if not header.flags & DELTA_FLAG:
        return None
    if base is None:
        raise Corrupt(f"{payload.where}: a delta: the words of its base are needed.")
    (crc,) = struct.unpack("<I", payload.take(4, "the CRC32C of the base"))
    if base.payload_crc32c != crc or base.words.shape != (header.n_words,):
        raise Corrupt(
            f"{payload.where}: coded against a base with CRC32C {crc:08x}, not "
            f"{base.payload_crc32c:08x}."
        )
    return base.words


def _decode_payload(payload: Cursor, header: FrameHeader, base: Base | None) -> np.ndarray:
    dtype = header.dtype
    base_words = _check_base(payload, header, base)
    if not header.flags & BLOCK_MAP_FLAG:
        words = _decode_words(payload, header, np.arange(header.n_words), base_words)
        payload.finish()
        return words
    n_blocks = -(-header.n_words // BLOCK_WORDS)
    block_map = payload.array("u1", -(-n_blocks // 4), "the block map")
    codes = ((block_map[:, None] >> np.array([0, 2, 4, 6], np.uint8)) & 3).reshape(-1)
    if codes[n_blocks:].any():
        raise Corrupt(f"{payload.where}: unused bits of the block map are not 0.")
    codes = codes[:n_blocks]
    if base_words is None and codes.max() > CONSTANT:
        raise Corrupt(f"{payload.where}: block code 3 in a frame without a base.")
    n_constants = int((codes == CONSTANT).sum())
    constants = payload.array(dtype.word_dtype, n_constants, "the words of constant blocks")
    if (constants >> (dtype.bits - 1) > 1).any():
        raise Corrupt(f"{payload.where}: a constant word has more than {dtype.bits} bits.")
    is_normal = np.repeat(codes == NORMAL, BLOCK_WORDS)[: header.n_words]
    normal = _decode_words(payload, header, np.flatnonzero(is_normal), base_words)
    payload.finish()
    per_block = np.zeros(n_blocks, dtype.word_dtype)
    per_block[codes == CONSTANT] = constants
    words = np.repeat(per_block, BLOCK_WORDS)[: header.n_words]
    words[is_normal] = normal
    if base_words is not None:
        is_same = np.repeat(codes == SAME, BLOCK_WORDS)[: header.n_words]
        words[is_same] = base_words[is_same]
    return words


def _decode_words(
    payload: Cursor, header: FrameHeader, places: np.ndarray, base: np.ndarray | None
) -> np.ndarray:
    """Decode the words at these places of the chunk."""
    codec, dtype = CODECS[header.codec], header.dtype
    if codec == "raw":
        return decode_raw(payload, places.size, dtype)
    if codec == "ladder":
        return decode_ladder(payload, places.size, dtype)
    if codec == "modelled":
        return decode_modelled(payload, dtype, places, header.n_words)
    if codec == "ans":
        return decode_ans(payload, dtype, places, header.n_words)
    if codec == "huffman":
        return decode_huffman(payload, places.size, dtype)
    if base is not None and codec == "delta":
        return decode_delta(payload, base[places], dtype)
    return decode_zstd(payload, places.size, dtype)


def encode_raw(words: np.ndarray, dtype: Dtype) -> bytes:
    """Pack the low bits of each word, least significant first. FORMAT §7.3."""
    octets = np.ascontiguousarray(words).view(np.uint8)
    bits = np.unpackbits(octets.reshape(words.size, words.itemsize), axis=1, bitorder="little")
    return np.packbits(bits[:, : dtype.bits].reshape(-1), bitorder="little").tobytes()


def decode_raw(payload: Cursor, n_words: int, dtype: Dtype) -> np.ndarray:
    """Undo `encode_raw`."""
    packed = payload.array("u1", -(-n_words * dtype.bits // 8), f"raw: {n_words} words")
    bits = np.unpackbits(packed, bitorder="little")
    if bits[n_words * dtype.bits :].any():
        raise Corrupt(f"{payload.where}: raw: unused bits of the last byte are not 0.")
    container = np.zeros((n_words, 8 * dtype.container_bytes), np.uint8)
    container[:, : dtype.bits] = bits[: n_words * dtype.bits].reshape(n_words, dtype.bits)
    return np.packbits(container.reshape(-1), bitorder="little").view(dtype.word_dtype)
