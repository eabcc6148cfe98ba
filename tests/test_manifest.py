"""The manifest: one JSON object under a checksum, read strictly and forward-compatibly."""

import json

import msgspec
import pytest
from google_crc32c import value as crc32c
from hypothesis import given
from hypothesis import strategies as st

from orbax_gds import manifest as manifests
from orbax_gds.errors import Corrupt, Unsupported
from orbax_gds.manifest import LeafSpec, Manifest, ShardingSpec, SidecarSpec, StripeSpec

STRIPE = StripeSpec(
    file="p00000.ogds",
    uuid="0" * 32,
    bytes=4224,
    layout_crc32c="0" * 8,
    index_crc32c="f" * 8,
)


def make(**changes) -> Manifest:
    fields = {
        "format": 1,
        "requires": (),
        "writer": "a test",
        "leaves": (
            LeafSpec(path=(("k", "w"),), type="jax.Array", dtype="float32", shape=(2,), sharding=0),
            LeafSpec(path=(("k", "n"),), type="None"),
        ),
        "shardings": (ShardingSpec(type="SingleDeviceSharding", device=0),),
        "stripes": (STRIPE,),
        "sidecars": {"_METADATA": SidecarSpec(bytes=1, crc32c="0" * 8)},
        "options": {"codec": "auto"},
    }
    return Manifest(**(fields | changes))


def sealed(fields: dict) -> bytes:
    body = json.dumps(fields)[1:].encode()
    return b'{"crc32c":"%08x",' % crc32c(body) + body


def as_dict(manifest: Manifest) -> dict:
    return msgspec.to_builtins(manifest)


keys = st.one_of(
    st.tuples(st.sampled_from("ka"), st.text(st.characters(exclude_categories=["Cs"]))),
    st.tuples(st.sampled_from("kin"), st.integers(-(2**63), 2**63 - 1)),
)
paths = st.lists(keys, max_size=5).map(tuple)


@given(st.lists(paths, unique=True, max_size=6))
def test_any_typed_paths_round_trip(found):
    leaves = tuple(LeafSpec(path=path, type="None") for path in found)
    again = manifests.decode(manifests.encode(make(leaves=leaves)), "here")
    assert [leaf.path for leaf in again.leaves] == found
    assert [[type(key) for _, key in leaf.path] for leaf in again.leaves] == [
        [type(key) for _, key in path] for path in found
    ]


def test_every_field_round_trips():
    manifest = make(custom_metadata={"run": [1, 2.5, None, "x"]})
    assert manifests.decode(manifests.encode(manifest), "here") == manifest


def test_every_flipped_bit_is_refused():
    data = manifests.encode(make())
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt, match="here"):
            manifests.decode(bytes(flipped), "here")


def test_every_truncation_and_addition_is_refused():
    data = manifests.encode(make())
    for n in range(len(data)):
        with pytest.raises(Corrupt):
            manifests.decode(data[:n], "here")
    with pytest.raises(Corrupt):
        manifests.decode(data + b" ", "here")


def test_unknown_fields_are_ignored():
    fields = as_dict(make()) | {"novelty": {"a": 1}}
    assert manifests.decode(sealed(fields), "here") == make()


@pytest.mark.parametrize(
    ("change", "text"),
    [({"format": 2}, "format 2.*Update"), ({"requires": ["telepathy"]}, "telepathy.*Update")],
)
def test_what_only_newer_versions_know_is_unsupported_by_name(change, text):
    with pytest.raises(Unsupported, match=text):
        manifests.decode(sealed(as_dict(make()) | change), "here")


def _leaf(**changes):
    return {
        "leaves": [
            {"path": [["k", "w"]], "type": "jax.Array", "dtype": "int8", "shape": [2]} | changes
        ]
    }


def _mesh(**changes):
    mesh = {"type": "NamedSharding", "axes": [["x", 2]], "devices": [0, 1], "spec": [None, ["x"]]}
    return {"shardings": [mesh | changes], "leaves": []}


@pytest.mark.parametrize(
    "change",
    [
        {"format": 0},
        {"format": -1},
        {"leaves": "none"},
        {"leaves": [{"path": [], "type": "None"}] * 2},
        {"stripes": [msgspec.to_builtins(STRIPE)] * 2},
        {"stripes": [msgspec.to_builtins(STRIPE) | {"file": "../p00000.ogds"}]},
        {"stripes": [msgspec.to_builtins(STRIPE) | {"file": "p00000.ogds\n"}]},
        {"stripes": [msgspec.to_builtins(STRIPE) | {"uuid": "0" * 31}]},
        {"stripes": [msgspec.to_builtins(STRIPE) | {"bytes": -1}]},
        {"stripes": [msgspec.to_builtins(STRIPE) | {"index_crc32c": "F" * 8}]},
        {"sidecars": {"../x": {"bytes": 1, "crc32c": "0" * 8}}},
        {"base": {}},
        _leaf(path=[["z", "w"]]),
        _leaf(path=[["k", 1.5]]),
        _leaf(path=[["k", True]]),
        _leaf(path=[["k"]]),
        _leaf(shape=[-1]),
        _leaf(shape=None),
        _leaf(dtype=None),
        _leaf(path=[["k", "w"]] * 901),
        _leaf(shape=[1] * 65),
        _leaf(shape=[2**58]),
        _leaf(shape=[2**29, 0, 2**29]),
        _leaf(type="None"),
        _leaf(type="list", dtype=None),
        _leaf(dtype=None, shape=None),
        _leaf(type="numpy.generic"),
        _leaf(type="float", dtype="float32", shape=[]),
        _leaf(type="float", dtype="float64", shape=[1]),
        _leaf(type="int", dtype="int8", shape=[]),
        _leaf(type="int", dtype="int64", shape=[1]),
        _leaf(type="str", dtype="int8"),
        _leaf(type="bytes", dtype="uint8", shape=[]),
        _leaf(prng="threefry2x32"),
        _leaf(prng="threefry2x32", dtype="uint32", type="numpy.ndarray"),
        _mesh(axes=[["x", 0]]),
        _mesh(axes=[["x", -1], ["y", -2]]),
        _mesh(axes=[["x", 1], ["x", 2]]),
        _mesh(spec=[["y"]]),
        _mesh(spec=[["x"], ["x"]]),
        {"stripes": [msgspec.to_builtins(STRIPE) | {"file": "p0000\u0661.ogds"}]},
        _leaf(sharding=1),
        _leaf(sharding=-1),
    ],
)
def test_malformed_fields_are_corrupt(change):
    with pytest.raises(Corrupt, match="here"):
        manifests.decode(sealed(as_dict(make()) | change), "here")


def test_the_leaves_and_meshes_that_the_malformed_ones_came_from_are_read():
    decoded = manifests.decode(sealed(as_dict(make()) | _leaf()), "here")
    assert decoded.leaves[0].shape == (2,)
    assert manifests.decode(sealed(as_dict(make()) | _mesh()), "here").shardings


@pytest.mark.parametrize(
    ("kind", "dtype", "shape"),
    [
        ("jax.Array", "bfloat16", [3, 0]),
        ("numpy.ndarray", "uint1", [1] * 64),
        ("numpy.generic", "int4", []),
        ("bool", "bool", []),
        ("int", "int64", []),
        ("int", "uint8", [9]),
        ("float", "float64", []),
        ("complex", "complex128", []),
        ("str", "uint8", [0]),
        ("bytes", "uint8", [5]),
        *((kind, None, None) for kind in ("None", "dict", "list", "tuple", "node")),
    ],
)
def test_every_type_is_read_as_it_is_stored(kind, dtype, shape):
    leaf = {"path": [["i", 0]] * 900, "type": kind, "dtype": dtype, "shape": shape}
    (decoded,) = manifests.decode(sealed(as_dict(make()) | {"leaves": [leaf]}), "here").leaves
    assert (decoded.type, decoded.dtype) == (kind, dtype)


def test_an_unknown_type_of_leaf_is_unsupported():
    with pytest.raises(Unsupported, match=r"'set'.*Update"):
        manifests.decode(sealed(as_dict(make()) | _leaf(type="set")), "here")


def test_a_manifest_is_neither_written_nor_read_beyond_its_limit(monkeypatch):
    data = manifests.encode(make())
    monkeypatch.setattr(manifests, "MAX_MANIFEST_BYTES", len(data) - 1)
    with pytest.raises(Corrupt, match="at most"):
        manifests.decode(data, "here")
    with pytest.raises(Unsupported, match="fewer leaves"):
        manifests.encode(make())


@pytest.mark.parametrize("missing", ["format", "requires", "leaves", "stripes", "sidecars"])
def test_missing_fields_are_corrupt(missing):
    fields = as_dict(make())
    del fields[missing]
    with pytest.raises(Corrupt, match="here"):
        manifests.decode(sealed(fields), "here")


@pytest.mark.parametrize(
    "custom",
    [{1, 2}, object(), b"x", {"x": "\ud800"}, float("nan"), [float("inf")], {1: 2}, [{None: 1}]],
)
def test_custom_metadata_that_would_not_come_back_is_refused(custom):
    with pytest.raises(Unsupported, match="custom_metadata"):
        manifests.check_custom_metadata(custom)


@pytest.mark.parametrize("custom", [None, {"run": [1, 2.5, None, "x"]}, (1, 2), 2**70, "é"])
def test_custom_metadata_that_is_json_is_accepted(custom):
    manifests.check_custom_metadata(custom)
