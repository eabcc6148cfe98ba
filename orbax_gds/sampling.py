"""What the frames of an item are made of: bits a plane and exponents, of all frames or of some.

Only frames are looked at here; what the indexes say without them is in `report`.
"""

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from orbax_gds import _native
from orbax_gds.chains import links_of
from orbax_gds.chunk_reader import Stripe
from orbax_gds.dtypes import SPLITS, Dtype, dtype_by_id
from orbax_gds.errors import Corrupt
from orbax_gds.frame_check import FRAME_HEADER_BYTES
from orbax_gds.item import Item
from orbax_gds.loaded_frames import at_fault, buffer_bytes, decode, load
from orbax_gds.read_ranges import links_met
from orbax_gds.staging import aligned_empty

__all__ = ["PLANES", "Pieces", "SampledFrames", "pieces_of", "plane_bits", "sample_frames"]

PLANES = ("sign", "exponent", "mantissa", "low", "whole", "change", "side")
"""Where the bits of a frame go. `mantissa` is what the first field of the rest (FORMAT §7.2) holds
of it, `low` the other fields; `whole` are words that are not split: raw, zstd and huffman.
Where ans codes exponents together with four bits of the mantissa, four bits a word are
`mantissa` and what it takes beyond is `exponent`.
`change` is what the words of a delta differ by from those of its base.
`side` is what describes them: headers, counts, tables, block maps, constants and zeros at the end.
"""

_SIGN, _EXPONENT, _MANTISSA, _LOW, _WHOLE, _CHANGE, _SIDE = range(len(PLANES))
_BLOCK_WORDS = 256  # required: FORMAT §7.1
_MODELLED, _ANS, _DELTA = 2, 3, 6  # required: FORMAT §7
_SIGN_SLOT = 2  # required: FORMAT §7.6, a bitmap of level 0 stands where the signs would
_NO_SIGNS = 2  # required: FORMAT §7.7
_JOINED_BITS = 4  # required: FORMAT §7.7, of the mantissa, coded with the exponent
_STREAM_PLANES = {
    "base": _SIDE,
    "block_map": _SIDE,
    "constants": _SIDE,
    "heads": _SIDE,
    "offsets": _SIDE,
    "counts": _SIDE,
    "lengths": _SIDE,
    "raw": _WHOLE,
    "zstd": _WHOLE,
    "huffman": _WHOLE,
    "escapes": _EXPONENT,
}
_BEFORE_CODED = ("base", "block_map", "constants")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pieces:
    """The parts of a stripe's chunks that belong to one leaf each: columns of equal length.

    Attributes:
        leaf, chunk, first_word, n_words: int64[p].
    """

    leaf: np.ndarray
    chunk: np.ndarray
    first_word: np.ndarray
    n_words: np.ndarray


@dataclasses.dataclass(frozen=True, kw_only=True)
class SampledFrames:
    """Sums over the frames that were read.

    Attributes:
        n_frames, n_bytes: how many, and their length.
        leaf_bits: float64[leaves, planes], stored bits; a pool's are shared by its words.
        leaf_words: int64[leaves].
        dtype_exponents: dtype name → int64[2^X], words by exponent.
        leaf_exponents: the same by leaf, for those asked for.
    """

    n_frames: int
    n_bytes: int
    leaf_bits: np.ndarray
    leaf_words: np.ndarray
    dtype_exponents: Mapping[str, np.ndarray]
    leaf_exponents: Mapping[int, np.ndarray]


def pieces_of(item: Item, stripe: Stripe) -> Pieces:
    """List what every chunk of a stripe holds, in the order of its shards."""
    rows = []
    for shard in stripe.shards:
        dtype = item.dtypes[shard.leaf]
        assert dtype is not None, f"leaf {shard.leaf} has a shard but no dtype"
        n_words = math.prod(shard.extent) * dtype.words_per_element
        rows.append((shard.leaf, shard.first_chunk, shard.n_chunks, shard.word_offset, n_words))
    table = np.array(rows, np.int64).reshape(-1, 5)
    n_chunks = table[:, 2]
    starts = np.cumsum(n_chunks) - n_chunks
    within = np.arange(n_chunks.sum()) - np.repeat(starts, n_chunks)
    leaf, first_chunk, _, first_word, shard_words = np.repeat(table, n_chunks, axis=0).T
    chunk = first_chunk + within
    pooled = np.repeat([shard.pooled for shard in stripe.shards], n_chunks).astype(bool)
    n_words = np.where(pooled, shard_words, stripe.table.n_words[chunk])
    return Pieces(leaf=leaf, chunk=chunk, first_word=first_word, n_words=n_words)


def plane_bits(info: Mapping[str, Any], frame: np.ndarray) -> np.ndarray:
    """Return the stored bits of a frame by plane: float64[planes]; they sum to all its bits.

    Args:
        info: `_native.frame_info` of it.
        frame: uint8[frame_bytes].
    """
    bits = np.zeros(len(PLANES))
    streams: dict[str, int] = info["stream_bytes"]
    for name, n_bytes in streams.items():
        if info["codec"] == _DELTA and _STREAM_PLANES.get(name) != _SIDE:
            bits[_CHANGE] += 8 * n_bytes
        elif name == "fields":
            bits += _rest_bits(8 * n_bytes, info, frame)
        elif name.startswith("level "):
            bits[_EXPONENT] += 8 * n_bytes
        elif name == "ans":
            bits += _ans_bits(8 * n_bytes, info)
        else:
            bits[_STREAM_PLANES[name]] += 8 * n_bytes
    bits[_SIDE] += 8 * info["frame_bytes"] - bits.sum()
    return bits


def _coded_words(info: Mapping[str, Any]) -> int:
    """Words of the normal blocks, about: all blocks of the map are whole ones but the last."""
    apart = ("n_zero_blocks", "n_constant_blocks", "n_same_blocks")
    n_apart = _BLOCK_WORDS * sum(info[name] for name in apart)
    return max(0, info["n_words"] - n_apart)


def _ans_bits(n_bits: int, info: Mapping[str, Any]) -> np.ndarray:
    """Share the stream of ans among the planes."""
    bits = np.zeros(len(PLANES))
    bits[_MANTISSA] = min(n_bits, _JOINED_BITS * _coded_words(info))
    bits[_EXPONENT] = n_bits - bits[_MANTISSA]
    return bits


def _rest_bits(n_bits: int, info: Mapping[str, Any], frame: np.ndarray) -> np.ndarray:
    """Share the fields of the rest among the planes: the sign is on top of the first."""
    split = SPLITS[dtype_by_id(info["dtype"]).split or ""]
    streams = info["stream_bytes"]
    n_words = _coded_words(info)
    at = FRAME_HEADER_BYTES + sum(streams.get(name, 0) for name in _BEFORE_CODED)
    flags, top, n_signs, rest = int(frame[at]), _SIGN, split.sign_bits, split.rest_bits
    if info["codec"] == _MODELLED and flags & _SIGN_SLOT:
        top = _EXPONENT
    elif info["codec"] == _ANS:
        rest -= _JOINED_BITS
        n_signs *= not flags & _NO_SIGNS
    bits = np.zeros(len(PLANES))
    bits[top] = min(n_bits, n_signs * n_words)
    upper = n_bits if rest <= 8 else min(n_bits, 8 * n_words)
    bits[_MANTISSA] = max(0, upper - bits[top])
    bits[_LOW] = n_bits - bits[top] - bits[_MANTISSA]
    return bits


def sample_frames(
    item: Item,
    *,
    n_bytes: int | None = None,
    leaves: Collection[int] = (),
    progress: Callable[[int, int], None] | None = None,
) -> SampledFrames:
    """Read frames, spread evenly over the item, and sum up what they are made of.

    Args:
        item: An opened item.
        n_bytes: Most bytes of frames to read, but at least one frame of each stripe; None for all.
        leaves: Numbers of the leaves whose exponents are counted for themselves.
        progress: Called with bytes done and bytes in all.

    Raises:
        Corrupt: A frame is damaged.
    """
    all_bytes = sum(int(stripe.records["frame_bytes"].sum()) for stripe in item.stripes)
    share = 1.0 if n_bytes is None else min(1.0, n_bytes / max(1, all_bytes))
    chosen = [(stripe, _spread(stripe, share)) for stripe in item.stripes]
    total = sum(int(stripe.records["frame_bytes"][chunks].sum()) for stripe, chunks in chosen)
    sums = _Sums(item, frozenset(leaves))
    for stripe, chunks in chosen:
        pieces = pieces_of(item, stripe)
        order = np.argsort(pieces.chunk, kind="stable")
        bounds = np.searchsorted(pieces.chunk[order], [chunks, chunks + 1])
        for chunk, first, end in zip(chunks.tolist(), *bounds.tolist(), strict=True):
            sums.add(stripe, chunk, pieces, order[first:end])
            if progress is not None:
                progress(sums.n_bytes, total)
    return sums.result()


def _spread(stripe: Stripe, share: float) -> np.ndarray:
    """Numbers of chunks that hold about a share of the stripe's frames, spread evenly over it."""
    sizes = stripe.records["frame_bytes"].astype(np.float64)
    if share >= 1.0 or not len(sizes):
        return np.arange(len(sizes))
    ends, n = np.cumsum(sizes), max(1, int(len(sizes) * share))
    while True:  # frames that hold marks at equal distances; long ones hold more of them
        chosen = np.unique(np.searchsorted(ends, (np.arange(n) + 0.5) * ends[-1] / n))
        excess = sizes[chosen].sum() / (share * ends[-1])
        if excess <= 1.0 or n == 1:
            return chosen
        n = max(1, min(n - 1, int(n / excess)))


class _Sums:
    """Adds frames up."""

    def __init__(self, item: Item, leaves: frozenset[int]) -> None:
        self.item, self.leaves = item, leaves
        self.n_frames = self.n_bytes = 0
        self.leaf_bits = np.zeros((len(item.dtypes), len(PLANES)))
        self.leaf_words = np.zeros(len(item.dtypes), np.int64)
        self.dtype_exponents: dict[str, np.ndarray] = {}
        self.leaf_exponents: dict[int, np.ndarray] = {}

    def add(self, stripe: Stripe, chunk: int, pieces: Pieces, own: np.ndarray) -> None:
        """Read one frame and add it to the sums of the leaves whose pieces are `own`."""
        dtype = dtype_by_id(int(stripe.table.dtypes[chunk]))
        frame, words = _read_chunk(stripe, chunk, dtype)
        info = _native.frame_info(frame)
        self.n_frames += 1
        self.n_bytes += len(frame)
        bits = plane_bits(info, frame)
        for piece in own.tolist():
            leaf, n_words = int(pieces.leaf[piece]), int(pieces.n_words[piece])
            self.leaf_bits[leaf] += bits * (n_words / len(words))
            self.leaf_words[leaf] += n_words
            if leaf in self.leaves:
                first = int(pieces.first_word[piece])
                counts = _exponent_counts(words[first : first + n_words], dtype)
                _count(self.leaf_exponents, leaf, counts)
        _count(self.dtype_exponents, dtype.name, _exponent_counts(words, dtype))

    def result(self) -> SampledFrames:
        return SampledFrames(
            n_frames=self.n_frames,
            n_bytes=self.n_bytes,
            leaf_bits=self.leaf_bits,
            leaf_words=self.leaf_words,
            dtype_exponents=self.dtype_exponents,
            leaf_exponents=self.leaf_exponents,
        )


def _count(sums: dict[Any, np.ndarray], key: Any, counts: np.ndarray | None) -> None:
    if counts is not None:
        sums[key] = sums[key] + counts if key in sums else counts


def _exponent_counts(words: np.ndarray, dtype: Dtype) -> np.ndarray | None:
    """Count words by exponent: int64[2^X]; None for a dtype without one."""
    if dtype.split is None:
        return None
    split = SPLITS[dtype.split]
    mask = (1 << split.exponent_bits) - 1
    exponents = (words >> split.mantissa_bits) & words.dtype.type(mask)
    return np.bincount(exponents.astype(np.uint16), minlength=mask + 1)


def _read_chunk(stripe: Stripe, chunk: int, dtype: Dtype) -> tuple[np.ndarray, np.ndarray]:
    """Read a chunk through its chain: return the bytes of its own frame, and its words."""
    record, rows = stripe.records[chunk], np.array([chunk])
    links = list(links_met(links_of(stripe.records, stripe.chain, rows)))
    place = int(record["offset"]), int(record["frame_bytes"])
    memory = aligned_empty(buffer_bytes((place[1], *(link.n_bytes for link in links))))
    frames = load(stripe.chain, links, stripe, rows, *place, memory)
    words = np.empty(int(stripe.table.n_words[chunk]), dtype.word_dtype)
    row = np.array([[chunk, words.size, dtype.id, 1]], np.uint32)
    whole = np.array([[0, 0, 0, words.size, 0]], np.uint64)
    status, _ = decode(frames, slice(0, 1), row, [words], whole)
    if status:
        wrong, status = at_fault(frames, 0, row, status)
        at = int(wrong.records["offset"][0])
        raise Corrupt(
            f"{wrong.path}: chunk {chunk} at byte {at}: {_native.STATUS[status]}. "
            "`orbax-gds verify` lists all that is wrong."
        )
    begin = place[0] - frames[-1].begin
    return frames[-1].memory[begin : begin + place[1]], words
