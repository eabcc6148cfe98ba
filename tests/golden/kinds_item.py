"""The golden item whose leaves are listed by kinds, written by the reference."""

from pathlib import Path

import numpy as np
from golden.words import narrow

from orbax_gds.codecs import reference
from orbax_gds.codecs.reference import Shard
from orbax_gds.dtypes import dtype_by_name, dtype_of, words_of


def write_kinds_item(directory: Path) -> None:
    """Write an item of three kinds in one pool: vectors, numbers, and leaves without words."""
    directory.mkdir(parents=True)
    bf16 = dtype_by_name("bfloat16")
    arrays = [bf16.elements(narrow(bf16, 4, 71 + i), (4,)) for i in range(3)]
    arrays += [bf16.elements(narrow(bf16, 1, 75 + i), ()) for i in range(2)]
    shards = [
        Shard(
            leaf=leaf,
            first_chunk=0,
            start=(0,) * array.ndim,
            extent=array.shape,
            chunk_extent=array.shape,
            pooled=True,
            offset_words=sum(before.size for before in arrays[:leaf]),
        )
        for leaf, array in enumerate(arrays)
    ]
    words = words_of(np.concatenate([array.reshape(-1) for array in arrays]))
    frame = reference.encode_frame(words, dtype_of(arrays[0].dtype), chunk=0)
    stripe = reference.write_stripe(directory, shards, [frame], uuid=bytes(range(16)), process=0)
    array = {"type": "jax.Array", "dtype": "bfloat16"}
    fields = {
        "format": 1,
        "requires": ["kinds"],
        "writer": "reference",
        "leaves": [{"path": [["i", i]], "kind": 0 if i < 3 else 2} for i in range(5)]
        + [{"path": [["i", 5], ["k", "none"]], "kind": 1}],
        "kinds": [array | {"shape": [4]}, {"type": "None"}, array | {"shape": []}],
    }
    fields |= {"shardings": [], "stripes": [stripe], "sidecars": {}, "options": {}}
    (directory / "manifest.json").write_bytes(reference.encode_manifest(fields))
