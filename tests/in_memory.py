"""A save and a restore of a tree without files: only what the jax side of the package does."""

import math

import jax
import numpy as np
from jax.sharding import Mesh

from orbax_gds import leaves
from orbax_gds.dtypes import dtype_by_name, dtype_of
from orbax_gds.snapshot import Picks

enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
MEMORY_KINDS = sorted(memory.kind for memory in jax.devices()[0].addressable_memories())


def mesh(*sizes, **axis_types):
    devices = np.array(jax.devices()[: math.prod(sizes)]).reshape(sizes)
    return Mesh(devices, tuple("xyz"[: len(sizes)]), **axis_types)


def stored_arrays(flat, shards, words):
    """Put the words of all shards together: leaf number → whole array."""
    arrays = {
        i: np.empty(spec.shape, dtype_by_name(spec.dtype).numpy_dtype)
        for i, spec in enumerate(flat.specs)
        if spec.has_words
    }
    for shard, buffer in zip(shards, words, strict=True):
        box = tuple(slice(s, s + e) for s, e in zip(shard.start, shard.extent, strict=True))
        dtype = dtype_by_name(flat.specs[shard.leaf].dtype)
        arrays[shard.leaf][box] = dtype.elements(buffer, shard.extent)
    return arrays


def words_at_64(array):
    """Copy an array's words to an address that is a multiple of 64."""
    raw = np.empty(array.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    words = raw[start : start + array.nbytes]
    words[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return words


def restored(flat, arrays, targets=None, **how):
    """Return the values of the leaves that have words, in order."""
    cache = {}
    numbers = sorted(arrays)
    targets = [None] * len(numbers) if targets is None else targets
    wants = [
        leaves.want(i, flat.specs[i], flat.shardings, target, cache=cache, **how)
        for i, target in zip(numbers, targets, strict=True)
    ]
    words = [
        [
            words_at_64(arrays[w.leaf][tuple(map(slice, start, np.add(start, extent)))])
            for start, extent in w.boxes
        ]
        for w in wants
    ]
    return leaves.assemble(wants, words)


def round_trip(tree, target=None, **how):
    """Save a tree and restore it, into the structure of a target or into plain containers."""
    flat = leaves.flatten(tree)
    shards = leaves.owned_shards(flat, jax.process_index())
    arrays = stored_arrays(flat, shards, Picks(flat, shards).take(flat.values))
    if target is not None:
        asked, treedef = leaves.flatten_target(target)
        assert [path for path, _ in asked] == [s.path for s in flat.specs if s.has_words]
        return treedef.unflatten(restored(flat, arrays, [t for _, t in asked], **how))
    values = dict(zip(sorted(arrays), restored(flat, arrays, **how), strict=True))
    return leaves.unflatten(flat.specs, [values.get(i) for i in range(len(flat.specs))])


def bits(value):
    """Return what makes a leaf itself: type, dtype, shape, bits that count, sharding."""
    if isinstance(value, jax.Array) and jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
        data = np.asarray(jax.random.key_data(value)).tobytes()
        return type(value), str(value.dtype), value.shape, data, value.sharding
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype.byteorder == ">":
            array = array.byteswap().view(array.dtype.newbyteorder())
        words = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if dtype_of(array.dtype).bits < 8:
            words = words & (2 ** dtype_of(array.dtype).bits - 1)
        kind = jax.Array if isinstance(value, jax.Array) else type(value)
        return kind, array.dtype, array.shape, words.tobytes(), getattr(value, "sharding", None)
    if isinstance(value, float | complex):
        return type(value), np.array(value).tobytes()
    return type(value), value


def assert_same_bits(got, expected):
    """Check that two trees are of one structure and that every leaf is the same in every bit."""
    got_leaves, got_def = jax.tree.flatten(got)
    expected_leaves, expected_def = jax.tree.flatten(expected)
    assert got_def == expected_def
    for one, other in zip(got_leaves, expected_leaves, strict=True):
        assert bits(one) == bits(other)
