"""Leaves by kinds: what many leaves have in common is written once, and read as if it were not."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_manifest import as_dict, make, sealed
from trees import assert_same

import orbax_gds as ogds
from orbax_gds import manifest as manifests
from orbax_gds.codecs import reference
from orbax_gds.errors import Corrupt, Unsupported
from orbax_gds.manifest import KINDS, LeafSpec

ARRAY = {"type": "jax.Array", "dtype": "float32", "shape": [2], "sharding": 0}
W, N = {"path": [["k", "w"]], "kind": 0}, {"path": [["k", "n"]], "kind": 1}
GROUPED = {"requires": [KINDS], "kinds": [ARRAY, {"type": "None"}], "leaves": [W, N]}
"""The leaves of `make()`, by kinds."""

commons = st.sampled_from(
    [
        {"type": "None"},
        {"type": "jax.Array", "dtype": "bfloat16", "shape": (3, 0), "sharding": 0},
        {"type": "jax.Array", "dtype": "uint32", "shape": (2,), "prng": "threefry2x32"},
        {"type": "int", "dtype": "int64", "shape": ()},
    ]
)


@given(st.lists(commons, max_size=12), st.booleans())
def test_leaves_by_kinds_are_those_that_were_listed(found, by_kinds):
    leaves = tuple(LeafSpec(path=(("i", i),), **common) for i, common in enumerate(found))
    manifest = make(leaves=leaves, requires=(KINDS,) if by_kinds else ())
    data = manifests.encode(manifest)
    assert manifests.decode(data, "here") == manifest
    assert ("kinds" in json.loads(data)) == by_kinds
    plain = reference.parse_manifest(manifests.encode(make(leaves=leaves)))["leaves"]
    assert reference.parse_manifest(data)["leaves"] == plain


def test_what_the_document_shows_is_read():
    decoded = manifests.decode(sealed(as_dict(make()) | GROUPED), "here")
    assert decoded.leaves == make().leaves


def test_a_kind_has_the_fields_of_a_leaf_but_for_the_path():
    assert ("path", *manifests._Kind.__struct_fields__) == LeafSpec.__struct_fields__


@pytest.mark.parametrize(
    "change",
    [
        {"leaves": [W, N | {"kind": 2}]},
        {"leaves": [W, N | {"kind": 3}], "kinds": [*GROUPED["kinds"], ARRAY]},
        {"leaves": [W, N | {"kind": -1}]},
        {"leaves": [W, N | {"kind": 1.5}]},
        {"leaves": [W, N | {"kind": "1"}]},
        {"leaves": [W, N | {"kind": True}]},
        {"leaves": [W, {"path": [["k", "n"]], "type": "None"}]},
        {"leaves": [W, {"kind": 1}]},
        {"leaves": [W, N, W]},
        {"leaves": [W]},
        {"leaves": []},
        {"leaves": {}},
        {"kinds": None},
        {"kinds": {}},
        {"kinds": [ARRAY, None]},
        {"kinds": [ARRAY, {}]},
        {"kinds": [ARRAY | {"shape": [-1]}, {"type": "None"}]},
        {"kinds": [ARRAY | {"sharding": 1}, {"type": "None"}]},
        {"kinds": [ARRAY | {"dtype": None}, {"type": "None"}]},
    ],
    ids=str,
)
def test_kinds_that_do_not_fit_their_leaves_are_refused(change):
    fields = as_dict(make()) | GROUPED
    damaged = sealed(fields | change)
    assert reference.parse_manifest(sealed(fields))
    for parse in (manifests.decode, reference.parse_manifest):
        with pytest.raises(Corrupt, match="here"):
            parse(damaged, "here")


def test_an_unknown_kind_is_named_before_one_that_no_leaf_has():
    fields = as_dict(make()) | GROUPED
    for wrong, said in ((-1, "unknown kind -1"), (0, "no leaf is of kind 1")):
        with pytest.raises(Corrupt, match=said):
            manifests.decode(sealed(fields | {"leaves": [W, N | {"kind": wrong}]}), "here")


def test_a_manifest_that_requires_kinds_has_them():
    fields = as_dict(make()) | GROUPED
    del fields["kinds"]
    for parse in (manifests.decode, reference.parse_manifest):
        with pytest.raises(Corrupt, match="kinds"):
            parse(sealed(fields), "here")


def test_a_kind_of_a_type_that_is_not_known_is_unsupported():
    fields = as_dict(make()) | GROUPED | {"kinds": [ARRAY, {"type": "set"}]}
    with pytest.raises(Unsupported, match=r"'n'.*'set'.*Update"):
        manifests.decode(sealed(fields), "here")


def test_kinds_that_are_not_required_are_ignored():
    fields = as_dict(make()) | {"kinds": "of the user's"}
    assert manifests.decode(sealed(fields), "here") == make()
    assert reference.parse_manifest(sealed(fields))


@pytest.mark.parametrize(("n_leaves", "n_kinds"), [(1000, 250), (999, 1), (1000, 251)])
def test_leaves_are_listed_by_kinds_where_that_is_shorter_by_much(n_leaves, n_kinds):
    leaves = [
        LeafSpec(path=(("i", i),), type="jax.Array", dtype="int8", shape=(i % n_kinds,))
        for i in range(n_leaves)
    ]
    assert (manifests.list_leaves(leaves).requires == (KINDS,)) == (
        (n_leaves, n_kinds) == (1000, 250)
    )


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """An item of 1000 leaves in two kinds, two of them derived, and its tree."""
    tree = {f"leaf{i:05d}": np.full(8, i, "f2" if i % 2 else "f4") for i in range(1000)}
    tree["leaf00001"] = tree["leaf00003"] = np.arange(40_000, dtype="f2")
    path = tmp_path_factory.mktemp("kinds") / "item"
    ogds.save(path, tree)
    return path, tree


def test_an_item_of_many_leaves_is_read_by_all(many):
    path, tree = many
    assert set(manifests.decode((path / "manifest.json").read_bytes(), "here").requires) == {
        "derived",
        KINDS,
    }
    assert_same(ogds.restore(path), tree)
    assert ogds.verify(path) == []
    read = reference.read_item(path)
    assert {name: array.tolist() for ((_, name),), array in read.items()} == {
        name: array.tolist() for name, array in tree.items()
    }


def test_a_leaf_of_many_takes_few_bytes_beside_its_words(many):
    path, tree = many

    def a_leaf(name: str) -> float:
        return (path / name).stat().st_size / len(tree)

    assert a_leaf("manifest.json") < 40
    assert a_leaf("_METADATA") < 160


def test_the_golden_item_by_kinds_is_by_kinds():
    item = Path(__file__).parent / "golden" / "items" / "kinds"
    assert "kinds" in json.loads((item / "manifest.json").read_bytes())
