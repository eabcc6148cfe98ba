"""What an item holds and what it takes on disk, without jax."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from orbax_gds.chains import is_delta, links_of
from orbax_gds.item import Item
from orbax_gds.manifest import LeafSpec, Path, ShardingSpec, path_text
from orbax_gds.options import Options
from orbax_gds.sampling import PLANES, SampledFrames, sample_frames
from orbax_gds.shares import CodecShare, Derivation, Shares

__all__ = [
    "BaseReport",
    "CodecShare",
    "Derivation",
    "DtypeReport",
    "ItemReport",
    "LeafReport",
    "PlaneBits",
    "Sample",
    "StripeReport",
    "inspect",
]

_N_HISTOGRAMS = 12  # chosen: leaves whose exponents are counted; a page shows so many


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlaneBits:
    """Stored bits a word by plane, measured in frames that were read. See `sampling.PLANES`.

    Attributes:
        n_words: the words measured.
        sign, exponent, mantissa, low, whole, change, side: bits a word; they sum up to `total`.
    """

    n_words: int
    sign: float
    exponent: float
    mantissa: float
    low: float
    whole: float
    change: float
    side: float

    @property
    def total(self) -> float:
        """Stored bits a word."""
        return sum(getattr(self, name) for name in PLANES)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Measured:
    """What is said of leaves and of dtypes alike.

    Attributes:
        raw_bytes: length of the words in memory.
        stored_bytes: length of the frames; leaves that share a frame share its length.
        codecs: one entry for each codec in use.
        planes: bits a word; None where no frame was read.
        exponents: words by exponent, of the frames that were read; None where it was not counted.
    """

    raw_bytes: int
    stored_bytes: int
    codecs: tuple[CodecShare, ...]
    planes: PlaneBits | None
    exponents: tuple[int, ...] | None

    @property
    def ratio(self) -> float | None:
        """Bytes in memory by bytes on disk; None where nothing is stored."""
        return self.raw_bytes / self.stored_bytes if self.stored_bytes else None


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeafReport(_Measured):
    """One leaf.

    Attributes:
        path: typed key path, as in the manifest.
        name: the path as text; not always unique.
        type: type of the value, such as "jax.Array".
        dtype, shape: of the stored elements; None for a leaf without words.
        sharding: how the elements lay on devices, as text; None if on none.
        prng: name of the PRNG implementation of a key, else None.
        n_shards: boxes it consists of, those that are not stored among them.
        derived: what of it is not stored.
    """

    path: Path
    name: str
    type: str
    dtype: str | None
    shape: tuple[int, ...] | None
    sharding: str | None
    prng: str | None
    n_shards: int
    derived: tuple[Derivation, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DtypeReport(_Measured):
    """All leaves of one dtype.

    Attributes:
        dtype: its name.
        n_leaves: how many.
        derived_bytes: length in memory of the words that are not stored.
    """

    dtype: str
    n_leaves: int
    derived_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class StripeReport:
    """One stripe.

    Attributes:
        file, uuid, n_bytes: as the manifest has them.
        n_chunks, n_shards: what it holds.
        base: uuid of the stripe of an earlier step that it follows from; None of a full one.
        chain_length: number of stripes of earlier steps that it needs.
        n_deltas: chunks that follow from its base.
    """

    file: str
    uuid: str
    n_bytes: int
    n_chunks: int
    n_shards: int
    base: str | None
    chain_length: int
    n_deltas: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class BaseReport:
    """What an item needs of earlier steps.

    Attributes:
        chain_length: number of earlier steps, of the stripe that needs most.
        n_bytes: bytes of their stripes, which other items may share.
        needed_bytes: bytes of frames in them that a restore of the whole item reads.
        linked: whether they lie in the item.
    """

    chain_length: int
    n_bytes: int
    needed_bytes: int
    linked: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """The frames that were read for planes and exponents, of all there are."""

    n_frames: int
    n_bytes: int
    of_frames: int
    of_bytes: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class ItemReport:
    """One item.

    Attributes:
        path: its directory.
        format: version of the format.
        writer: name and version of what wrote it.
        raw_bytes: bytes of all words in memory.
        stored_bytes: bytes of its own stripes.
        base: what it needs of earlier steps; None of a full item.
        leaves, stripes: in the order of the manifest.
        dtypes: one entry for each dtype, by name.
        codecs: one entry for each codec in use; derived words are in none.
        sample: the frames that were read.
        options: resolved options of the save.
        custom_metadata: the user's own.
    """

    path: str
    format: int
    writer: str
    raw_bytes: int
    stored_bytes: int
    base: BaseReport | None
    leaves: tuple[LeafReport, ...]
    stripes: tuple[StripeReport, ...]
    dtypes: tuple[DtypeReport, ...]
    codecs: tuple[CodecShare, ...]
    sample: Sample
    options: dict[str, Any]
    custom_metadata: Any

    @property
    def ratio(self) -> float:
        """Bytes in memory by bytes of its own on disk; 1.0 for an item without stripes."""
        return self.raw_bytes / self.stored_bytes if self.stored_bytes else 1.0


def inspect(
    path: str | os.PathLike[str],
    *,
    options: Options | None = None,
    sample_bytes: int | None = 0,
    progress: Callable[[int, int], None] | None = None,
) -> ItemReport:
    """Say what an item holds, from its manifest, layouts and indexes, and from a sample of frames.

    Args:
        path: directory of the item.
        options: how to read; None takes the defaults and the environment.
        sample_bytes: bytes of frames to read, for the bits a plane and the exponents; 0 reads no
            frame, None reads all.
        progress: called with bytes of frames read and to be read.

    Raises:
        NotFound: there is no published item.
        Corrupt: manifest, layout, index or a frame that was read is damaged. `verify` reads all.

    Example:
        >>> import tempfile, numpy as np, orbax_gds as ogds
        >>> path = tempfile.mkdtemp() + "/item"
        >>> _ = ogds.save(path, {"w": np.ones(3)}, custom_metadata={"run": 7})
        >>> report = ogds.inspect(path)
        >>> report.leaves[0].name, report.raw_bytes, report.custom_metadata
        ('w', 24, {'run': 7})
    """
    with Item(path, options=options) as item:
        shares = Shares(item)
        frames = None
        if sample_bytes != 0:
            largest = np.argsort(-shares.stored.sum(axis=1), kind="stable")[:_N_HISTOGRAMS]
            frames = sample_frames(
                item, n_bytes=sample_bytes, leaves=largest.tolist(), progress=progress
            )
        manifest = item.manifest
        leaves = tuple(
            _leaf(number, spec, manifest.shardings, shares, frames)
            for number, spec in enumerate(manifest.leaves)
        )
        return ItemReport(
            path=os.fspath(item.path),
            format=manifest.format,
            writer=manifest.writer,
            raw_bytes=sum(leaf.raw_bytes for leaf in leaves),
            stored_bytes=sum(spec.bytes for spec in manifest.stripes),
            base=_base(item),
            leaves=leaves,
            stripes=tuple(
                StripeReport(
                    file=spec.file,
                    uuid=spec.uuid,
                    n_bytes=spec.bytes,
                    n_chunks=len(stripe.records),
                    n_shards=len(stripe.shards) + len(stripe.derived),
                    base=spec.base,
                    chain_length=len(stripe.chain),
                    n_deltas=int(is_delta(stripe.records).sum()),
                )
                for spec, stripe in zip(manifest.stripes, item.stripes, strict=True)
            ),
            dtypes=tuple(
                _dtype(name, leaves, shares, frames)
                for name in sorted({leaf.dtype for leaf in leaves if leaf.dtype is not None})
            ),
            codecs=shares.of_item(),
            sample=_sample(item, frames),
            options=manifest.options,
            custom_metadata=manifest.custom_metadata,
        )


def _base(item: Item) -> BaseReport | None:
    base = item.manifest.base
    if base is None:
        return None
    needed = 0
    for stripe in item.stripes:
        chunks = np.arange(len(stripe.records))
        for rows in links_of(stripe.records, stripe.chain, chunks):
            needed += int(rows["frame_bytes"].sum(dtype=np.int64))
    return BaseReport(
        chain_length=max(len(stripe.chain) for stripe in item.stripes),
        n_bytes=sum(spec.bytes for spec in base.stripes),
        needed_bytes=needed,
        linked=base.linked,
    )


def _leaf(
    number: int,
    spec: LeafSpec,
    shardings: Sequence[ShardingSpec],
    shares: Shares,
    frames: SampledFrames | None,
) -> LeafReport:
    sharding = None if spec.sharding is None else shardings[spec.sharding]
    derived = tuple(shares.derived.get(number, ()))
    counts = None if frames is None else frames.leaf_exponents.get(number)
    return LeafReport(
        path=spec.path,
        name=path_text(spec.path),
        type=spec.type,
        dtype=spec.dtype,
        shape=spec.shape,
        sharding=None if sharding is None else _sharding_text(sharding),
        prng=spec.prng,
        raw_bytes=round(shares.raw[number].sum()) + sum(d.raw_bytes for d in derived),
        stored_bytes=round(shares.stored[number].sum()),
        n_shards=int(shares.n_shards[number]),
        codecs=shares.of_leaf(number),
        derived=derived,
        planes=_planes(frames, [number]),
        exponents=None if counts is None else tuple(counts.tolist()),
    )


def _dtype(
    name: str, leaves: Sequence[LeafReport], shares: Shares, frames: SampledFrames | None
) -> DtypeReport:
    numbers = [number for number, leaf in enumerate(leaves) if leaf.dtype == name]
    counts = None if frames is None else frames.dtype_exponents.get(name)
    return DtypeReport(
        dtype=name,
        n_leaves=len(numbers),
        raw_bytes=sum(leaves[number].raw_bytes for number in numbers),
        stored_bytes=round(shares.stored[numbers].sum()),
        derived_bytes=sum(d.raw_bytes for number in numbers for d in leaves[number].derived),
        codecs=shares.of_dtype(name),
        planes=_planes(frames, numbers),
        exponents=None if counts is None else tuple(counts.tolist()),
    )


def _planes(frames: SampledFrames | None, leaves: Sequence[int]) -> PlaneBits | None:
    n_words = 0 if frames is None else int(frames.leaf_words[leaves].sum())
    if frames is None or n_words == 0:
        return None
    bits = frames.leaf_bits[leaves].sum(axis=0) / n_words
    return PlaneBits(n_words=n_words, **dict(zip(PLANES, bits.tolist(), strict=True)))


def _sample(item: Item, frames: SampledFrames | None) -> Sample:
    sizes = [stripe.records["frame_bytes"] for stripe in item.stripes]
    return Sample(
        n_frames=0 if frames is None else frames.n_frames,
        n_bytes=0 if frames is None else frames.n_bytes,
        of_frames=sum(map(len, sizes)),
        of_bytes=sum(int(some.sum(dtype=np.int64)) for some in sizes),
    )


def _sharding_text(sharding: ShardingSpec) -> str:
    if sharding.axes is None or sharding.spec is None:
        return sharding.type
    mesh = ", ".join(f"{name}={size}" for name, size in sharding.axes)
    axes = ", ".join("+".join(names) if names else "whole" for names in sharding.spec)
    return f"({axes}) over {mesh}"
