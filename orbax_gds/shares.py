"""What layouts and indexes say of an item: bytes and chunks by leaf, dtype and codec."""

import dataclasses

import numpy as np

from orbax_gds.chunk_reader import Stripe
from orbax_gds.codecs import codec_by_id
from orbax_gds.derived import Rule
from orbax_gds.item import Item
from orbax_gds.sampling import pieces_of

__all__ = ["CodecShare", "Derivation", "Shares"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CodecShare:
    """What one codec coded: chunks, and the bytes of their words and frames.

    A leaf has the chunks that hold a part of it, and of a chunk that it shares its part.
    """

    codec: str
    n_chunks: int
    raw_bytes: int
    stored_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Derivation:
    """Words that are not stored, as they follow from those of another leaf. FORMAT §4.2.

    Attributes:
        source: name of the leaf they follow from.
        rule: "copy" or "round".
        raw_bytes: length of the words in memory.
    """

    source: str
    rule: str
    raw_bytes: int


class Shares:
    """Sums over all stripes, without a look at a frame.

    Args:
        item: an opened item.

    Attributes:
        chunks, raw, stored: float64[leaves, codecs], chunks, bytes of words and bytes of frames.
        n_shards: int64[leaves].
        derived: what is not stored, by leaf.
    """

    def __init__(self, item: Item) -> None:
        codecs = [int(stripe.records["codec"].max(initial=0)) for stripe in item.stripes]
        shape = (len(item.dtypes), 1 + max(codecs, default=0))
        self.chunks, self.raw, self.stored = np.zeros((3, *shape))
        self.n_shards = np.zeros(shape[0], np.int64)
        # A chunk is counted once here, though several leaves may share it.
        self._dtype_chunks: dict[int, np.ndarray] = {}
        self._dtype_ids = np.array([0 if d is None else d.id for d in item.dtypes], np.int64)
        self._ids = {dtype.name: dtype.id for dtype in item.dtypes if dtype is not None}
        self._widths = np.array([0 if d is None else d.container_bytes for d in item.dtypes])
        for stripe in item.stripes:
            self._add(item, stripe)
        self.derived = _derived(item)

    def of_leaf(self, leaf: int) -> tuple[CodecShare, ...]:
        """Return the codecs of one leaf."""
        return self._shares(slice(leaf, leaf + 1), self.chunks[leaf])

    def of_dtype(self, name: str) -> tuple[CodecShare, ...]:
        """Return the codecs of all leaves of a dtype."""
        number = self._ids[name]
        counts = self._dtype_chunks.get(number, np.zeros(0, np.int64))
        return self._shares(self._dtype_ids == number, counts)

    def of_item(self) -> tuple[CodecShare, ...]:
        """Return the codecs of the item."""
        counts = np.zeros(self.chunks.shape[1], np.int64)
        for some in self._dtype_chunks.values():
            counts += some
        return self._shares(slice(None), counts)

    def _shares(self, leaves: slice | np.ndarray, counts: np.ndarray) -> tuple[CodecShare, ...]:
        raw, stored = self.raw[leaves].sum(axis=0), self.stored[leaves].sum(axis=0)
        return tuple(
            CodecShare(
                codec=codec_by_id(codec).name,
                n_chunks=int(counts[codec]),
                raw_bytes=round(raw[codec]),
                stored_bytes=round(stored[codec]),
            )
            for codec in np.flatnonzero(counts).tolist()
        )

    def _add(self, item: Item, stripe: Stripe) -> None:
        pieces, codecs = pieces_of(item, stripe), stripe.records["codec"]
        at = (pieces.leaf, codecs[pieces.chunk])
        part = pieces.n_words / np.maximum(1, stripe.table.n_words[pieces.chunk])
        np.add.at(self.chunks, at, 1)
        np.add.at(self.raw, at, pieces.n_words * self._widths[pieces.leaf])
        np.add.at(self.stored, at, stripe.records["frame_bytes"][pieces.chunk] * part)
        for number in np.unique(stripe.table.dtypes).tolist():
            counts = np.bincount(
                codecs[stripe.table.dtypes == number], minlength=self.chunks.shape[1]
            )
            self._dtype_chunks[number] = self._dtype_chunks.get(number, 0) + counts
        leaves = np.array([shard.leaf for shard in (*stripe.shards, *stripe.derived)], np.int64)
        self.n_shards += np.bincount(leaves, minlength=len(self.n_shards))


def _derived(item: Item) -> dict[int, list[Derivation]]:
    """Return what is not stored of each leaf, one entry for all shards of a source and rule."""
    n_bytes: dict[tuple[int, int, Rule], int] = {}
    for shard in (shard for stripe in item.stripes for shard in stripe.derived):
        dtype = item.dtypes[shard.leaf]
        assert dtype is not None, f"leaf {shard.leaf} has a shard but no dtype"
        key = shard.leaf, shard.source, shard.rule
        n_bytes[key] = n_bytes.get(key, 0) + shard.n_elements * dtype.element_bytes
    derived: dict[int, list[Derivation]] = {}
    for leaf, source, rule in sorted(n_bytes):
        derivation = Derivation(
            source=item.leaf_name(source),
            rule=rule.name.lower(),
            raw_bytes=n_bytes[leaf, source, rule],
        )
        derived.setdefault(leaf, []).append(derivation)
    return derived
