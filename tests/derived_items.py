"""Leaves that follow from others, the rule word for word, and items by the NumPy reference."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from orbax_gds.codecs import reference
from orbax_gds.codecs.reference import Shard
from orbax_gds.derived import Rule
from orbax_gds.dtypes import Dtype, dtype_by_name, dtype_of, words_of
from orbax_gds.errors import OgdsError
from orbax_gds.item import Item
from orbax_gds.manifest import LeafSpec
from orbax_gds.testing import famous_words
from orbax_gds.verifying import verify

FP32, BF16 = dtype_by_name("float32"), dtype_by_name("bfloat16")
COPY, ROUND = 1, 2
SHAPE = (150, 220)  # more than is pooled, of bfloat16 too


def write_item(
    directory: Path, arrays: list[np.ndarray], stored: list[int], derived: list[Shard], **changes
) -> None:
    """Write an item whose leaves `stored` are each a chunk; the others have derived shards."""
    shards, frames = list(derived), []
    for number in stored:
        array = arrays[number]
        whole = {"start": (0,) * array.ndim, "extent": array.shape, "chunk_extent": array.shape}
        shards.append(Shard(leaf=number, first_chunk=len(frames), **whole))
        dtype = dtype_of(array.dtype)
        frames.append(reference.encode_frame(words_of(array), dtype, chunk=len(frames)))
    stripe = reference.write_stripe(directory, shards, frames, uuid=bytes(16))
    write_manifest(directory, arrays, stripe, **changes)


def write_manifest(directory: Path, arrays: list[np.ndarray], stripe: dict, **changes) -> None:
    """Write the manifest of an item whose leaves are these, in one stripe."""
    leaves = [
        {
            "path": [["k", str(number)]],
            "type": "numpy.ndarray",
            "dtype": array.dtype.name,
            "shape": list(array.shape),
        }
        for number, array in enumerate(arrays)
    ]
    fields = {"format": 1, "requires": ["derived"], "writer": "test", "leaves": leaves}
    fields |= {"shardings": [], "stripes": [stripe], "sidecars": {}, "options": {}} | changes
    (directory / "manifest.json").write_bytes(reference.encode_manifest(fields))


def derived(leaf: int, source: int, rule: int, extent: tuple[int, ...], start=None) -> Shard:
    zeros = (0,) * len(extent)
    return Shard(
        leaf=leaf,
        source=source,
        rule=rule,
        first_chunk=0,
        start=start or zeros,
        extent=extent,
        chunk_extent=zeros,
    )


def rounded(array: np.ndarray) -> np.ndarray:
    """Round to bfloat16 by ml_dtypes, but for NaNs, which keep their upper bits and are quiet."""
    with np.errstate(all="ignore"):
        result = array.astype(ml_dtypes.bfloat16)
    nan = np.isnan(array)
    result.view(np.uint16)[nan] = (array.view(np.uint32)[nan] >> 16).astype(np.uint16) | 0x40
    return result


def master(seed: int = 0, shape: tuple[int, ...] = SHAPE) -> np.ndarray:
    """Weights, with every famous word among them: NaN payloads, -0.0, denormals, ties."""
    array = np.asarray(np.random.default_rng(seed).normal(0, 0.02, shape), np.float32)
    famous = np.concatenate([famous_words(FP32), famous_words(FP32) ^ 0x8000])
    array.reshape(-1).view(np.uint32)[5 : 5 + famous.size] = famous[: max(0, array.size - 5)]
    return array


def flipped(array: np.ndarray, at: int = -1) -> np.ndarray:
    """Return a copy with the lowest bit of a word turned."""
    copy = array.copy()
    words_of(copy)[at] ^= 1
    return copy


def derived_of(path: Path) -> list[tuple[str, str, Rule]]:
    """Return (leaf, source, rule) of every derived shard of an item, by name."""
    with Item(path) as item:
        shards = [shard for stripe in item.stripes for shard in stripe.derived]
        assert item.manifest.requires == (("derived",) if shards else ())
        return [(item.leaf_name(s.leaf), item.leaf_name(s.source), s.rule) for s in shards]


def specs_of(arrays: list[np.ndarray]) -> tuple[LeafSpec, ...]:
    return tuple(
        LeafSpec(
            path=(("k", str(i)),), type="numpy.ndarray", dtype=array.dtype.name, shape=array.shape
        )
        for i, array in enumerate(arrays)
    )


def arrays_of(*dtypes: Dtype, shape: tuple[int, ...] = (4,)) -> list[np.ndarray]:
    return [np.zeros(shape, dtype.numpy_dtype) for dtype in dtypes]


def read_leaves(directory: Path) -> list[np.ndarray]:
    """Read every leaf by the engine."""
    with Item(directory) as item:
        return [item.read_leaf(leaf) for leaf in range(len(item.dtypes))]


def assert_refused(directory: Path, error: type[OgdsError]) -> None:
    """Check that the reference and the engine refuse an item, and that verify sees it."""
    for read in (reference.read_item, read_leaves):
        with pytest.raises(error):
            read(directory)
    assert verify(directory)
