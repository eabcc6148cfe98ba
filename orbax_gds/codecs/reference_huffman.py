"""The huffman coding in plain NumPy, written from FORMAT §7.9 and nothing else."""

import heapq

import numpy as np

from orbax_gds.codecs.reference_bytes import Cursor
from orbax_gds.codecs.reference_ladder import SUB_BLOCK_WORDS
from orbax_gds.dtypes import Dtype
from orbax_gds.errors import Corrupt

MAX_CODE_BITS = 11
N_STREAMS = 8
LENGTHS_BYTES = 128


def fit_lengths(words: np.ndarray) -> np.ndarray:
    """Return the length of each byte's code: those that occur least are merged first."""
    counts = np.bincount(words, minlength=256)
    present = np.flatnonzero(counts).tolist()
    if len(present) == 1:
        present.append(present[0] ^ 1)
    lengths = np.zeros(256, np.int64)
    heap = [(int(counts[y]), y, [y]) for y in present]
    heapq.heapify(heap)
    while len(heap) > 1:
        (a, number, left), (b, _, right) = heapq.heappop(heap), heapq.heappop(heap)
        lengths[left + right] += 1
        heapq.heappush(heap, (a + b, number, left + right))
    return _limited(lengths, counts)


def _limited(lengths: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Shorten what is too long, then lengthen and shorten others until the code is complete."""
    one = 1 << MAX_CODE_BITS
    lengths = np.minimum(lengths, MAX_CODE_BITS)
    present = np.flatnonzero(lengths)
    by_count = present[np.argsort(counts[present], kind="stable")]
    while (excess := int((one >> lengths[present]).sum()) - one) != 0:
        change = 1 if excess > 0 else -1
        for y in by_count if change > 0 else by_count[::-1]:
            gain = one >> int(lengths[y]) >> (change > 0)
            if lengths[y] < MAX_CODE_BITS if change > 0 else gain <= -excess:
                lengths[y] += change
                break
    return lengths


def codes_of(lengths: np.ndarray) -> dict[str, int]:
    """Return the byte of each code, a string of its bits in the order they are written."""
    codes, code = {}, 0
    for length in range(1, MAX_CODE_BITS + 1):
        code *= 2
        for y in np.flatnonzero(lengths == length).tolist():
            codes[f"{code:0{length}b}"] = y
            code += 1
    return codes


def pack_lengths(lengths: np.ndarray) -> bytes:
    """Return the header."""
    return (lengths[0::2] | lengths[1::2] << 4).astype("u1").tobytes()


def parse_lengths(payload: Cursor, bits: int) -> np.ndarray:
    """Read and check the header, for words of so many bits."""
    header = payload.array("u1", LENGTHS_BYTES, "the code lengths").astype(np.int64)
    lengths = np.stack([header & 15, header >> 4], axis=1).reshape(-1)
    shares = (1 << MAX_CODE_BITS >> lengths[lengths > 0]).sum()
    if lengths.max() > MAX_CODE_BITS or lengths[1 << bits :].any() or shares != 1 << MAX_CODE_BITS:
        raise Corrupt(f"{payload.where}: huffman: the lengths are not those of a code.")
    return lengths


def encode_huffman(words: np.ndarray, lengths: np.ndarray | None = None) -> bytes:
    """Code words of up to 8 bits.

    Args:
        words: The coded words; with none there are no bytes.
        lengths: Length of the code of each byte; by default some that fit.
    """
    if not words.size:
        return b""
    lengths = fit_lengths(words) if lengths is None else lengths
    code_of = {y: code for code, y in codes_of(lengths).items()}
    parts = [pack_lengths(lengths)]
    for at in range(0, words.size, SUB_BLOCK_WORDS):
        parts.append(encode_sub_block(words[at : at + SUB_BLOCK_WORDS], code_of))
    return b"".join(parts)


def encode_sub_block(words: np.ndarray, code_of: dict[int, str]) -> bytes:
    """Return the lengths of the streams and the streams of up to 32768 words."""
    streams = []
    for s in range(N_STREAMS):
        bits = "".join(code_of[y] for y in words.tolist()[s::N_STREAMS][::-1])
        ones = np.frombuffer(bits.encode(), "u1") - ord("0")
        streams.append(np.packbits(ones, bitorder="little").tobytes())
    return np.array([len(stream) for stream in streams], "<u2").tobytes() + b"".join(streams)


def decode_huffman(payload: Cursor, n_words: int, dtype: Dtype) -> np.ndarray:
    """Undo `encode_huffman`."""
    words = np.zeros(n_words, dtype.word_dtype)
    if not n_words:
        return words
    codes = codes_of(parse_lengths(payload, dtype.bits))
    for at in range(0, n_words, SUB_BLOCK_WORDS):
        decode_sub_block(payload, codes, words[at : at + SUB_BLOCK_WORDS])
    return words


def decode_sub_block(payload: Cursor, codes: dict[str, int], words: np.ndarray) -> None:
    """Undo `encode_sub_block`, into `words`."""
    sizes = payload.array("<u2", N_STREAMS, "the lengths of huffman streams").tolist()
    streams = [payload.take(size, "a huffman stream") for size in sizes]
    for s, stream in enumerate(streams):
        of_stream = words[s::N_STREAMS]
        of_stream[::-1] = _decode_stream(stream, of_stream.size, codes, payload.where)


def _decode_stream(stream: bytes, n: int, codes: dict[str, int], where: str) -> list[int]:
    ones = np.unpackbits(np.frombuffer(stream, "u1"), bitorder="little")
    bits = (ones + ord("0")).astype("u1").tobytes().decode()
    found, at = [], 0
    for _ in range(n):
        end = at + 1
        while bits[at:end] not in codes:
            end += 1
            if end > len(bits):
                break
        if end > len(bits):
            raise Corrupt(f"{where}: huffman: a stream of {len(stream)} bytes ends too early.")
        found.append(codes[bits[at:end]])
        at = end
    if -(-at // 8) != len(stream):
        raise Corrupt(f"{where}: huffman: a stream of {len(stream)} bytes has {at} bits.")
    return found
