"""What a restore is asked for is what it gives; what does not fit is refused by name."""

import logging

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest
from in_memory import assert_same_bits, bits, enable_x64, restored, round_trip, stored_arrays
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from orbax_gds import leaves
from orbax_gds.errors import Mismatch, Unsupported
from orbax_gds.leaves import Target
from orbax_gds.manifest import LeafSpec, ShardingSpec
from orbax_gds.snapshot import Picks

LAST = SingleDeviceSharding(jax.devices()[7])
EIGHT = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec("x"))


def saved(tree):
    flat = leaves.flatten(tree)
    shards = leaves.owned_shards(flat, 0)
    return flat, stored_arrays(flat, shards, Picks(flat, shards).take(flat.values))


def asked(value, target, **how):
    """Save one value at the path "at" and restore it as the target says."""
    flat, arrays = saved({"at": value})
    (got,) = restored(flat, arrays, [target], **how)
    return got


@pytest.mark.parametrize(
    ("value", "target"),
    [
        (np.ones((2, 3), np.int8), Target(type="numpy.ndarray", shape=(2, 3), dtype="int8")),
        (np.float32(1), Target(type="numpy.generic", shape=(), dtype="float32")),
        (np.float64(1), Target(type="numpy.generic", shape=(), dtype="float64")),
        (True, Target(type="bool")),
        (3, Target(type="int")),
        (1.5, Target(type="float")),
        (2j, Target(type="complex")),
        ("a", Target(type="str")),
        (b"a", Target(type="bytes")),
        (int, Target(type="int")),
        (np.ndarray, Target(type="numpy.ndarray")),
        (jax.Array, Target(type="jax.Array")),
        (np.float16, Target(type="numpy.generic", dtype="float16")),
        (Target(dtype="int8"), Target(dtype="int8")),
    ],
)
def test_a_value_asks_for_its_like(value, target):
    assert leaves.target_of(value) == target


@pytest.mark.slow
def test_arrays_and_their_descriptions_ask_for_the_same():
    array = jax.device_put(jnp.ones((8, 2), jnp.bfloat16), EIGHT)
    described = jax.ShapeDtypeStruct((8, 2), jnp.bfloat16, sharding=EIGHT)
    expected = Target(type="jax.Array", shape=(8, 2), dtype=jnp.bfloat16, sharding=EIGHT)
    assert leaves.target_of(array) == leaves.target_of(described) == expected
    keys = jax.random.split(jax.random.key(0, impl="rbg"), 4)
    target = leaves.target_of(jax.eval_shape(lambda: keys))
    assert (target.prng, target.shape, target.dtype) == ("rbg", (4,), None)
    assert leaves.target_of(keys).prng == "rbg"


def test_orbax_metadata_asks_for_what_was_saved():
    tree = {"a": jnp.ones((2, 3)), "n": np.ones(3), "i": 7, "s": "text", "k": jax.random.key(1)}
    scalar = ocp.metadata.ScalarMetadata(name="i", directory=None, dtype=np.dtype("int64"))
    array = ocp.metadata.ArrayMetadata

    def of(shape, dtype):
        return array(name="", directory=None, shape=shape, sharding=None, dtype=np.dtype(dtype))

    target = {
        "a": of((2, 3), "float32"),
        "n": of((3,), "float64"),
        "i": scalar,
        "s": ocp.metadata.StringMetadata(name="s", directory=None),
        "k": of((2,), "uint32"),
    }
    assert_same_bits(round_trip(tree, target), tree)


def test_leaves_that_ask_for_nothing_are_named_at_once():
    with pytest.raises(Unsupported, match=r"(?s)'a' is <object.*'b/0' is the type set"):
        leaves.flatten_target({"a": object(), "b": [set], "c": 1})


def test_a_placeholder_stays_one():
    flat, _ = leaves.flatten_target({"a": ..., "b": 1})
    assert flat == [((("k", "a"),), ...), ((("k", "b"),), Target(type="int"))]


NUMBER = 3
CONVERSIONS = [
    (jnp.float32(NUMBER), Target(type="numpy.ndarray"), np.array(NUMBER, np.float32)),
    (jnp.float32(NUMBER), Target(type="numpy.generic"), np.float32(NUMBER)),
    (jnp.bfloat16(NUMBER), Target(type="float"), 3.0),
    (jnp.float32(NUMBER), Target(type="int"), 3),
    (np.int64(NUMBER), Target(type="bool"), True),
    (NUMBER, Target(type="complex"), 3 + 0j),
    (NUMBER, Target(type="numpy.generic", dtype=np.int8), np.int8(3)),
    (np.uint64(2**64 - 1), Target(type="int"), 2**64 - 1),
    (2.5, Target(type="numpy.ndarray", dtype=np.float16), np.array(2.5, np.float16)),
    (np.arange(3.0), Target(type="numpy.ndarray", dtype=jnp.int4), np.arange(3).astype(jnp.int4)),
    (np.array([1 + 2j]), Target(dtype=np.complex64), np.array([1 + 2j], np.complex64)),
]


@pytest.mark.parametrize(("value", "target", "expected"), CONVERSIONS)
def test_values_are_converted_as_asked(value, target, expected):
    assert bits(asked(value, target)) == bits(expected)


def test_numbers_become_arrays_of_the_dtype_asked_for():
    for value in (NUMBER, np.int64(NUMBER), np.array(NUMBER), jnp.int8(NUMBER)):
        got = asked(value, Target(type="jax.Array", dtype=np.int32, sharding=LAST))
        assert bits(got) == bits(jax.device_put(np.array(NUMBER, np.int32), LAST))


def test_a_description_without_sharding_gives_the_kind_of_array_that_was_saved():
    described = leaves.target_of(jax.ShapeDtypeStruct((3,), np.float32))
    for value in (np.ones(3, np.float32), jnp.ones(3)):
        assert bits(asked(value, described)) == bits(value)
    placed = leaves.target_of(jax.ShapeDtypeStruct((3,), np.float32, sharding=LAST))
    assert bits(asked(np.ones(3, "f"), placed)) == bits(jax.device_put(np.ones(3, "f"), LAST))


def test_a_cast_is_logged_once_with_the_path(caplog):
    caplog.set_level(logging.INFO, "orbax_gds")
    array = jax.device_put(np.array([1.0, 1e9, np.nan], np.float32), EIGHT.mesh.devices[0])
    got = asked(array, Target(type="jax.Array", dtype=jnp.bfloat16))
    assert bits(got) == bits(array.astype(jnp.bfloat16))
    (record,) = caplog.records
    assert record.getMessage() == (
        "Leaf 'at' is float32[3] on disk; converted to bfloat16, as asked."
    )
    caplog.clear()
    asked(array, Target(type="jax.Array", dtype=np.float32))
    assert caplog.records == []


@pytest.mark.parametrize(
    ("value", "target", "message"),
    [
        (
            jnp.ones((4, 2), jnp.bfloat16),
            Target(type="jax.Array", shape=(2, 4), dtype=np.float32),
            r"Leaf 'at' is bfloat16\[4,2\] on disk but float32\[2,4\] was asked for.",
        ),
        (jnp.ones(2), Target(type="float"), r"'at' is float32\[2\] .* but float32\[\] was asked"),
        (jnp.ones(2), Target(type="str"), "but str was asked for"),
        ("text", Target(type="jax.Array"), "'at' is str on disk, but jax.Array was asked for"),
        (b"raw", Target(type="str"), "'at' is bytes on disk, but str"),
        (2**70, Target(type="jax.Array"), "'at' is int on disk, but jax.Array"),
        (np.array([1j]), Target(dtype=np.float32), "imaginary"),
        (np.ones(2), Target(type="jax.Array"), "cannot hold float64 while jax_enable_x64 is off"),
        (jnp.ones(2), Target(type="jax.Array", prng="rbg"), "wrap_key_data"),
        (jnp.ones(3), Target(type="jax.Array", sharding=EIGHT), "Ask for a sharding that fits"),
        (jnp.ones(3), Target(type="jax.Array", sharding="x"), "Give a jax sharding"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(value, target, message):
    with pytest.raises(Mismatch, match=message) as raised:
        asked(value, target)
    assert "'at'" in str(raised.value)


@pytest.mark.slow
def test_prng_keys_never_change_their_implementation():
    keys = jax.random.split(jax.random.key(0, impl="rbg"), 3)
    with pytest.raises(Mismatch, match=r"'rbg', but keys of 'threefry2x32' were asked for"):
        asked(keys, leaves.target_of(jax.random.split(jax.random.key(0), 3)))
    with pytest.raises(Mismatch, match=r"int32\[3,4\] was asked for"):
        asked(keys, leaves.target_of(jnp.zeros((3, 4), jnp.int32)))
    with pytest.raises(Mismatch, match=r"\[2,4\] was asked for"):
        asked(keys, leaves.target_of(keys[:2]))
    with pytest.raises(Mismatch, match="numpy"):
        asked(keys, Target(type="numpy.ndarray"))
    spec = LeafSpec(path=(), type="jax.Array", dtype="uint32", shape=(2,), prng="dice")
    with pytest.raises(Unsupported, match="'dice' is not known"):
        leaves.want(0, spec, [], Target(type="jax.Array", shape=(), prng="dice"))


def test_dtypes_that_jax_only_names_are_restored_to_numpy():
    array = np.arange(3).astype(ml_dtypes.float6_e2m3fn)
    assert bits(asked(array, None)) == bits(array)
    with pytest.raises(Unsupported, match="cannot hold arrays of float6_e2m3fn"):
        asked(array, Target(type="jax.Array"))


def test_x64_leaves_come_back_only_where_jax_can_hold_them():
    with enable_x64(True):
        array = jnp.arange(3, dtype=jnp.float64)
        assert bits(asked(array, None)) == bits(array)
        flat, arrays = saved([array])
    with pytest.raises(Mismatch, match="jax_enable_x64"):
        restored(flat, arrays)
    (got,) = restored(flat, arrays, [Target(dtype=np.float32)])
    assert bits(got) == bits(jnp.arange(3.0))


@pytest.mark.parametrize("sharding", [None, EIGHT])
def test_without_strictness_a_shape_is_cut_or_filled_with_zeros(sharding):
    array = np.arange(1, 13, dtype=np.float32).reshape(4, 3)
    target = Target(type="jax.Array", shape=(16, 2), sharding=sharding)
    expected = np.zeros((16, 2), np.float32)
    expected[:4] = array[:, :2]
    np.testing.assert_array_equal(asked(array, target, strict=False), expected)
    host = asked(array, Target(type="numpy.ndarray", shape=(1, 5)), strict=False)
    np.testing.assert_array_equal(host, [[1, 2, 3, 0, 0]])
    with pytest.raises(Mismatch, match="strict=False"):
        asked(array, Target(shape=(12,)), strict=False)


def test_shardings_named_by_device_layout_and_metadata_are_honoured():
    array = jnp.arange(8.0)
    assert asked(array, Target(sharding=jax.devices()[3])).devices() == {jax.devices()[3]}
    layout = pytest.importorskip("jax.experimental.layout")
    wide = jnp.arange(12.0).reshape(3, 4)
    form = layout.Format(layout.Layout(major_to_minor=(1, 0)), LAST)
    got = asked(wide, Target(type="jax.Array", sharding=form))
    assert got.format.layout.major_to_minor == (1, 0)
    assert got.sharding == LAST
    np.testing.assert_array_equal(got, wide)
    described = ocp.metadata.SingleDeviceShardingMetadata(device_str=str(jax.devices()[5]))
    assert asked(array, Target(sharding=described)).devices() == {jax.devices()[5]}


def test_metadata_of_devices_that_are_not_here_asks_for_nothing_with_one_log_line(caplog):
    caplog.set_level(logging.INFO, "orbax_gds")
    far = Target(sharding=ocp.metadata.SingleDeviceShardingMetadata(device_str="TPU_99"))
    flat, arrays = saved([jnp.arange(3.0), jnp.arange(4.0)])
    got = restored(flat, arrays, [far, far])
    assert_same_bits(got, [jnp.arange(3.0), jnp.arange(4.0)])
    (record,) = caplog.records
    assert "The sharding asked for leaf '0' does not fit" in record.getMessage()


def test_keys_go_to_any_kind_of_sharding():
    keys = jax.random.split(jax.random.key(0), 8)
    expected = jax.device_put(keys, EIGHT)
    target = leaves.target_of(expected)
    assert bits(asked(keys, target)) == bits(expected)


SINGLE = ShardingSpec(type="SingleDeviceSharding", device=99)
FAR = ShardingSpec(
    type="NamedSharding", axes=(("x", 2),), devices=(0, 99), spec=(("x",),), memory_kind="core"
)


@pytest.mark.parametrize("saved", [SINGLE, FAR, ShardingSpec(type="other")])
def test_a_saved_sharding_that_does_not_fit_falls_back_with_one_log_line(saved, caplog):
    caplog.set_level(logging.INFO, "orbax_gds")
    spec = LeafSpec(path=(("k", "at"),), type="jax.Array", dtype="int8", shape=(8,), sharding=0)
    cache: dict = {}
    wants = [leaves.want(i, spec, [saved], None, cache=cache) for i in range(3)]
    assert {want.sharding for want in wants} == {SingleDeviceSharding(jax.devices()[0])}
    (record,) = caplog.records
    assert "Leaf 'at' was saved with a sharding that does not fit" in record.getMessage()
    assert leaves.want(0, spec, [saved], None, fallback_sharding=EIGHT).sharding == EIGHT
    with jax.default_device(jax.devices()[2]):
        (device,) = leaves.want(0, spec, [saved], None).sharding.device_set
    assert device == jax.devices()[2]


def test_a_memory_kind_that_is_not_there_is_left_out():
    spec = LeafSpec(path=(), type="jax.Array", dtype="int8", shape=(8,), sharding=0)
    kinds = {memory.kind for memory in jax.devices()[1].addressable_memories()}
    default = jax.devices()[1].default_memory().kind
    other = (kinds - {default} or {default}).pop()
    kept = ShardingSpec(type="SingleDeviceSharding", device=1, memory_kind=other)
    gone = ShardingSpec(type="SingleDeviceSharding", device=1, memory_kind="core")
    assert leaves.want(0, spec, [kept], None).sharding.memory_kind == other
    assert leaves.want(0, spec, [gone], None).sharding.memory_kind == default
