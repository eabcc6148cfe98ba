"""What an item holds and what it takes on disk, without jax and without reading a frame."""

import dataclasses
import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from orbax_gds.codecs import codec_by_id
from orbax_gds.dtypes import DTYPES
from orbax_gds.item import Item, Stripe
from orbax_gds.manifest import LeafSpec, Path, ShardingSpec, path_text
from orbax_gds.options import Options

__all__ = ["CodecShare", "ItemReport", "LeafReport", "StripeReport", "inspect"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeafReport:
    """One leaf.

    Attributes:
        path: typed key path, as in the manifest.
        name: the path as text; not always unique.
        type: type of the value, such as "jax.Array".
        dtype, shape: of the stored elements; None for a leaf without words.
        sharding: how the elements lay on devices, as text; None if on none.
        prng: name of the PRNG implementation of a key, else None.
        raw_bytes: length of its words in memory.
        stored_bytes: length of its frames; leaves that share a frame share its length.
        n_shards: boxes it is stored as.
    """

    path: Path
    name: str
    type: str
    dtype: str | None
    shape: tuple[int, ...] | None
    sharding: str | None
    prng: str | None
    raw_bytes: int
    stored_bytes: int
    n_shards: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class CodecShare:
    """What one codec coded: chunks, and the bytes of their words and frames."""

    codec: str
    n_chunks: int
    raw_bytes: int
    stored_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class StripeReport:
    """One stripe."""

    file: str
    uuid: str
    n_bytes: int
    n_chunks: int
    n_shards: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class ItemReport:
    """One item.

    Attributes:
        path: its directory.
        format: version of the format.
        writer: name and version of what wrote it.
        raw_bytes: bytes of all words in memory.
        stored_bytes: bytes of all stripes.
        leaves, stripes: in the order of the manifest.
        codecs: one entry for each codec in use.
        options: resolved options of the save.
        custom_metadata: the user's own.
    """

    path: str
    format: int
    writer: str
    raw_bytes: int
    stored_bytes: int
    leaves: tuple[LeafReport, ...]
    stripes: tuple[StripeReport, ...]
    codecs: tuple[CodecShare, ...]
    options: dict[str, Any]
    custom_metadata: Any

    @property
    def ratio(self) -> float:
        """Bytes in memory by bytes on disk; 1.0 for an item without stripes."""
        return self.raw_bytes / self.stored_bytes if self.stored_bytes else 1.0


def inspect(path: str | os.PathLike[str], *, options: Options | None = None) -> ItemReport:
    """Say what an item holds, from its manifest, layouts and indexes.

    Args:
        path: directory of the item.
        options: how to read; None takes the defaults and the environment.

    Raises:
        NotFound: there is no published item.
        Corrupt: manifest, layout or index is damaged. Frames are not looked at: see `verify`.

    Example:
        >>> import tempfile, numpy as np, orbax_gds as ogds
        >>> path = tempfile.mkdtemp() + "/item"
        >>> _ = ogds.save(path, {"w": np.ones(3)}, custom_metadata={"run": 7})
        >>> report = ogds.inspect(path)
        >>> report.leaves[0].name, report.raw_bytes, report.custom_metadata
        ('w', 24, {'run': 7})
    """
    with Item(path, options=options) as item:
        raw = np.zeros(len(item.dtypes), np.int64)
        stored = np.zeros(len(item.dtypes), np.float64)
        n_shards = np.zeros(len(item.dtypes), np.int64)
        for stripe in item.stripes:
            _add_shards(item, stripe, raw, stored, n_shards)
        manifest = item.manifest
        leaves = tuple(
            _leaf(spec, manifest.shardings, int(raw[i]), round(stored[i]), int(n_shards[i]))
            for i, spec in enumerate(manifest.leaves)
        )
        return ItemReport(
            path=os.fspath(item.path),
            format=manifest.format,
            writer=manifest.writer,
            raw_bytes=int(raw.sum()),
            stored_bytes=sum(spec.bytes for spec in manifest.stripes),
            leaves=leaves,
            stripes=tuple(
                StripeReport(
                    file=spec.file,
                    uuid=spec.uuid,
                    n_bytes=spec.bytes,
                    n_chunks=len(stripe.records),
                    n_shards=len(stripe.shards),
                )
                for spec, stripe in zip(manifest.stripes, item.stripes, strict=True)
            ),
            codecs=_codec_shares(item),
            options=manifest.options,
            custom_metadata=manifest.custom_metadata,
        )


def _add_shards(
    item: Item, stripe: Stripe, raw: np.ndarray, stored: np.ndarray, n_shards: np.ndarray
) -> None:
    """Add what the shards of a stripe take to the sums of their leaves."""
    ends = np.concatenate([[0], np.cumsum(stripe.records["frame_bytes"], dtype=np.int64)])
    for shard in stripe.shards:
        dtype = item.dtypes[shard.leaf]
        assert dtype is not None, f"leaf {shard.leaf} has a shard but no dtype"
        n_elements = math.prod(shard.extent)
        frames = ends[shard.first_chunk + shard.n_chunks] - ends[shard.first_chunk]
        share = 1.0
        if shard.pooled:
            n_words = int(stripe.table.n_words[shard.first_chunk])
            share = n_elements * dtype.words_per_element / n_words
        raw[shard.leaf] += n_elements * dtype.element_bytes
        stored[shard.leaf] += frames * share
        n_shards[shard.leaf] += 1


def _leaf(
    spec: LeafSpec, shardings: Sequence[ShardingSpec], raw: int, stored: int, n_shards: int
) -> LeafReport:
    sharding = None if spec.sharding is None else shardings[spec.sharding]
    return LeafReport(
        path=spec.path,
        name=path_text(spec.path),
        type=spec.type,
        dtype=spec.dtype,
        shape=spec.shape,
        sharding=None if sharding is None else _sharding_text(sharding),
        prng=spec.prng,
        raw_bytes=raw,
        stored_bytes=stored,
        n_shards=n_shards,
    )


def _sharding_text(sharding: ShardingSpec) -> str:
    if sharding.axes is None or sharding.spec is None:
        return sharding.type
    mesh = ", ".join(f"{name}={size}" for name, size in sharding.axes)
    axes = ", ".join("+".join(names) if names else "whole" for names in sharding.spec)
    return f"({axes}) over {mesh}"


def _codec_shares(item: Item) -> tuple[CodecShare, ...]:
    sums: dict[int, list[int]] = {}
    for stripe in item.stripes:
        width = np.zeros(256, np.int64)
        for dtype in DTYPES:
            width[dtype.id] = dtype.container_bytes
        raw = stripe.table.n_words * width[stripe.table.dtypes]
        for codec in np.unique(stripe.records["codec"]).tolist():
            own = stripe.records["codec"] == codec
            stored = stripe.records["frame_bytes"][own].sum(dtype=np.int64)
            found = (int(own.sum()), int(raw[own].sum()), int(stored))
            sums[codec] = [a + b for a, b in zip(sums.get(codec, (0, 0, 0)), found, strict=True)]
    return tuple(
        CodecShare(codec=codec_by_id(codec).name, n_chunks=n, raw_bytes=raw, stored_bytes=stored)
        for codec, (n, raw, stored) in sorted(sums.items())
    )
