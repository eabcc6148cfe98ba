"""What is saved on any devices is restored on any others, and every word is stored once."""

import math

import jax
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from in_memory import MEMORY_KINDS, bits
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import orbax_gds as ogds
from orbax_gds.item import Item

MESHES = [(1,), (2,), (3,), (5,), (7,), (8,), (2, 2), (3, 2), (2, 3), (4, 2), (2, 2, 2), (1, 6)]
DTYPES = ["bool", "int4", "uint8", "bfloat16", "float8_e4m3fn", "float16", "float32", "complex64"]
LENGTHS = [1, 2, 3, 5, 7, 11, 30, 210, 840]  # primes, and what most meshes divide


@st.composite
def shardings(draw, shape):
    """Any way to put an array on some of eight devices, in any order, that jax allows."""
    order = np.array(draw(st.permutations(jax.devices())))
    if draw(st.integers(0, 5)) == 0:
        return SingleDeviceSharding(order[0])
    sizes = draw(st.sampled_from(MESHES))
    over = Mesh(order[: math.prod(sizes)].reshape(sizes), tuple("xyz"[: len(sizes)]))
    axes = list(draw(st.permutations(over.axis_names)))
    parts = []
    for length in shape:
        names = []
        while axes and draw(st.booleans()):
            names.append(axes.pop())
        divides = length % math.prod(over.shape[name] for name in names) == 0
        parts.append(tuple(names) if names and divides else None)
    kind = draw(st.sampled_from(MEMORY_KINDS))
    return NamedSharding(over, PartitionSpec(*parts), memory_kind=kind)


@st.composite
def placed(draw):
    """An array, and where it is saved and restored."""
    shape = tuple(draw(st.lists(st.sampled_from(LENGTHS), max_size=3)))
    shape = shape if math.prod(shape) <= 1 << 16 else shape[:1]
    dtype = jax.numpy.dtype(draw(st.sampled_from(DTYPES)))
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    words = rng.integers(0, 256, math.prod(shape) * dtype.itemsize, np.uint8)
    if dtype.name == "bool":
        words &= 1
    if dtype.name == "int4":
        array = (words.astype(np.int8) >> 4).astype(dtype).reshape(shape)
    else:
        array = words.view(dtype).reshape(shape)
    return array, draw(shardings(shape)), draw(shardings(shape))


@given(st.lists(placed(), min_size=1, max_size=5))
@settings(max_examples=10)
def test_what_is_saved_on_any_mesh_is_restored_on_any_other(tmp_path_factory, given_leaves):
    item = tmp_path_factory.mktemp("any") / "item"
    tree = [jax.device_put(array, saved) for array, saved, _ in given_leaves]
    ogds.save(item, tree)
    expected = [jax.device_put(array, asked) for array, _, asked in given_leaves]
    target = [
        jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding)
        for array in expected
    ]
    assert list(map(bits, ogds.restore(item, target))) == list(map(bits, expected))
    assert list(map(bits, ogds.restore(item))) == list(map(bits, tree))
    assert_stored_once(item)


def assert_stored_once(item) -> None:
    """Check that the shards of each leaf have as many elements as the leaf, derived or stored."""
    with Item(item) as opened:
        held = [0] * len(opened.dtypes)
        for stripe in opened.stripes:
            for shard in [*stripe.shards, *stripe.derived]:
                held[shard.leaf] += math.prod(shard.extent)
        assert held == [math.prod(spec.shape) for spec in opened.manifest.leaves]
