"""What the layout of a stripe says of each of its chunks."""

import dataclasses
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from orbax_gds.dtypes import Dtype
from orbax_gds.errors import Corrupt
from orbax_gds.plan import MAX_CHUNK_WORDS, StoredShard, cell_sizes


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChunkTable:
    """What the layout says of each chunk of a stripe.

    Attributes:
        n_words: uint32[n_chunks].
        dtypes: uint8[n_chunks], dtype ids.
    """

    n_words: np.ndarray
    dtypes: np.ndarray


def chunk_table(
    shards: Sequence[StoredShard], dtypes: Sequence[Dtype | None], n_chunks: int, where: str
) -> ChunkTable:
    """Work out the words and dtype of every chunk, and check that the layout is one.

    Raises:
        Corrupt: a chunk is missing, given twice, or a pool has a gap or an overlap.
    """
    n_words = np.zeros(n_chunks, np.int64)
    ids = np.zeros(n_chunks, np.uint8)
    pools: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for shard in shards:
        dtype = dtypes[shard.leaf] if shard.leaf < len(dtypes) else None
        end = shard.first_chunk + shard.n_chunks
        if dtype is None or end > n_chunks:
            raise Corrupt(
                f"{where}: a shard of leaf {shard.leaf} names chunks {shard.first_chunk} to {end} "
                f"of {n_chunks}, or a leaf without words. The layout is damaged."
            )
        if shard.pooled:
            words = shard.n_elements * dtype.words_per_element
            pools[shard.first_chunk].append((shard.word_offset, words, dtype.id))
            continue
        own = slice(shard.first_chunk, end)
        if ids[own].any():
            raise Corrupt(f"{where}: chunk {shard.first_chunk} is given to two shards.")
        n_words[own] = cell_sizes(shard.extent, shard.chunk_extent) * dtype.words_per_element
        ids[own] = dtype.id
    for chunk, pieces in pools.items():
        if ids[chunk] or len({dtype_id for _, _, dtype_id in pieces}) > 1:
            raise Corrupt(f"{where}: chunk {chunk} is given to two shards that cannot share it.")
        ids[chunk] = pieces[0][2]
        n_words[chunk] = _pool_words(sorted(pieces), f"{where}: pooled chunk {chunk}")
    if not ids.all() or (n_chunks and n_words.max() > MAX_CHUNK_WORDS):
        raise Corrupt(f"{where}: a chunk has no shard or more than 2^28 words.")
    return ChunkTable(n_words=n_words.astype(np.uint32), dtypes=ids)


def _pool_words(pieces: list[tuple[int, int, int]], where: str) -> int:
    at = 0
    for offset, words, _ in pieces:
        if offset != at:
            raise Corrupt(f"{where}: word {at} belongs to no shard or to two.")
        at += words
    return at
