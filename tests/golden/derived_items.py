"""Golden items with derived shards: one by the package, one by the reference in another cut."""

from pathlib import Path

import numpy as np
from golden.words import narrow

import orbax_gds
from orbax_gds.codecs import reference
from orbax_gds.codecs.reference import Shard
from orbax_gds.dtypes import dtype_by_name, dtype_of, words_of


def derived_leaves() -> dict[str, np.ndarray]:
    """Return a master with NaNs, ties and denormals, what follows from it, and what nearly does."""
    f32, bf16 = dtype_by_name("float32"), dtype_by_name("bfloat16")
    words = narrow(f32, 40 * 60, 51)
    words[:8] = 0x7F800001, 0xFFFFFFFF, 0x7FC00000, 0x80000000, 1, 0x8000, 0x18000, 0x8001
    words[8:12] = 0
    master = f32.elements(words, (40, 60))
    high = words >> 16
    is_nan = words & 0x7FFFFFFF > 0x7F800000
    nearest = (words.astype(np.uint64) + 0x7FFF + (high & 1)) >> 16
    rounded = np.where(is_nan, high | 0x40, nearest).astype(np.uint16)
    nearly = rounded.copy()
    nearly[-1] ^= 1
    return {
        "params": bf16.elements(rounded, (40, 60)),
        "master": master,
        "ema": master.copy(),
        "nearly": bf16.elements(nearly, (40, 60)),
    }


def write_saved_derived_item(directory: Path) -> None:
    """Save leaves of which two follow from a third by the package itself."""
    report = orbax_gds.save(
        directory, derived_leaves(), options=orbax_gds.Options(chunk_bytes=4096)
    )
    assert report.n_derived == 2


def write_derived_item(directory: Path) -> None:
    """Write two stripes whose derived shards follow from a source in both, cut otherwise."""
    directory.mkdir(parents=True)
    tree = derived_leaves()
    numbers = {name: number for number, name in enumerate(tree)}
    leaves = [
        {
            "path": [["k", name]],
            "type": "numpy.ndarray",
            "dtype": array.dtype.name,
            "shape": list(array.shape),
        }
        for name, array in tree.items()
    ]

    def stored(name: str, first: int, end: int, chunk: int) -> tuple[Shard, bytes]:
        rows = tree[name][first:end]
        box = {"start": (first, 0), "extent": rows.shape, "chunk_extent": rows.shape}
        frame = reference.encode_frame(
            words_of(rows), dtype_of(rows.dtype), codec="ladder", chunk=chunk
        )
        return Shard(leaf=numbers[name], first_chunk=chunk, **box), frame

    def derived(name: str, first: int, end: int, source: str, rule: int) -> Shard:
        return Shard(
            leaf=numbers[name],
            first_chunk=0,
            start=(first, 0),
            extent=(end - first, 60),
            chunk_extent=(0, 0),
            source=numbers[source],
            rule=rule,
        )

    held = (
        [stored("master", 0, 25, 0), stored("nearly", 30, 40, 1)],
        [stored("master", 25, 40, 0), stored("ema", 0, 10, 1)],
    )
    follows = (
        [derived("params", 0, 10, "master", 2), derived("ema", 10, 40, "master", 1)],
        [derived("params", 10, 40, "master", 2), derived("nearly", 0, 30, "master", 2)],
    )
    entries = [
        reference.write_stripe(
            directory,
            [*(shard for shard, _ in own), *rest],
            [frame for _, frame in own],
            uuid=bytes(range(process, process + 16)),
            process=process,
        )
        for process, (own, rest) in enumerate(zip(held, follows, strict=True))
    ]
    fields = {"format": 1, "requires": ["derived"], "writer": "reference", "leaves": leaves}
    fields |= {"shardings": [], "stripes": entries, "sidecars": {}, "options": {}}
    (directory / "manifest.json").write_bytes(reference.encode_manifest(fields))
