"""Laws of item metadata and of the `_METADATA` sidecar: what Orbax and its users see of an item."""

import dataclasses
import json
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

import orbax_gds as ogds
from orbax_gds import sidecar
from orbax_gds.args import GdsRestore, GdsSave
from orbax_gds.errors import Unsupported
from orbax_gds.manifest import LeafSpec


class Pair(NamedTuple):
    left: object
    right: object


class Nothing(NamedTuple):
    pass


def tree() -> dict:
    mesh = jax.make_mesh((len(jax.devices()),), ("x",))
    return {
        "sharded": jax.device_put(
            jnp.ones((8, 4), jnp.bfloat16), NamedSharding(mesh, PartitionSpec("x", None))
        ),
        "single": jnp.arange(3),
        "numpy": np.ones((2, 3), np.float64),
        "scalars": [True, 3, 2.5, np.float32(1.5), "text"],
        "pair": Pair(jnp.ones(2), {"deep": jnp.zeros((), jnp.int8)}),
        "tuple": (jnp.ones(1), Nothing(), None),
        "empty": {"dict": {}, "list": [], "tuple": ()},
        "keys": {"one": jax.random.key(0), "many": jax.random.split(jax.random.key(1), 3)},
    }


def metadata_of(path, handler, args):
    with ocp.Checkpointer(handler) as checkpointer:
        checkpointer.save(path, args=args)
    return handler.metadata(path)


def flat(metadata_tree):
    return jax.tree_util.tree_flatten_with_path(
        metadata_tree, is_leaf=lambda node: not jax.tree_util.tree_leaves(node)
    )[0]


@pytest.mark.slow
def test_metadata_equals_what_orbax_says_of_the_same_tree(tmp_path):
    custom = {"epoch": 3, "tags": ["a"]}
    theirs = metadata_of(
        tmp_path / "theirs",
        ocp.PyTreeCheckpointHandler(),
        ocp.args.PyTreeSave(tree(), custom_metadata=custom),
    )
    ours = metadata_of(
        tmp_path / "ours", ogds.GdsCheckpointHandler(), GdsSave(tree(), custom_metadata=custom)
    )
    assert type(ours) is type(theirs)
    assert ours.custom_metadata == theirs.custom_metadata == custom
    assert [path for path, _ in flat(ours.tree)] == [path for path, _ in flat(theirs.tree)]
    for (path, our), (_, their) in zip(flat(ours.tree), flat(theirs.tree), strict=True):
        name = jax.tree_util.keystr(path)
        assert type(our) is type(their), name
        if isinstance(their, ocp.metadata.value.Metadata):
            assert our.name == their.name, name
        if isinstance(their, ocp.metadata.ArrayMetadata):
            assert (our.shape, our.dtype) == (their.shape, their.dtype), name
            assert our.sharding == their.sharding, name


def test_metadata_is_a_target_that_restores_everything_as_saved(tmp_path):
    saved = tree()
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(0, args=GdsSave(saved))
        manager.wait_until_finished()
        by_metadata = manager.restore(0, args=GdsRestore(manager.item_metadata(0)))
        plainly = manager.restore(0, args=GdsRestore())
    assert jax.tree.structure(by_metadata) == jax.tree.structure(plainly)
    for (path, left), (_, right) in zip(flat(by_metadata), flat(plainly), strict=True):
        assert type(left) is type(right), jax.tree_util.keystr(path)
    assert by_metadata["sharded"].sharding == saved["sharded"].sharding
    assert by_metadata["sharded"].dtype == jnp.bfloat16
    assert by_metadata["keys"]["many"].dtype == saved["keys"]["many"].dtype
    assert np.array_equal(
        jax.random.key_data(by_metadata["keys"]["many"]),
        jax.random.key_data(saved["keys"]["many"]),
    )
    assert by_metadata["scalars"][1:3] == [3, 2.5]


def test_metadata_changed_by_the_user_is_a_target_too(tmp_path):
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(0, args=GdsSave({"w": jnp.ones((2, 2)), "n": np.ones(3)}))
        manager.wait_until_finished()
        metadata = manager.item_metadata(0)
        metadata["w"].dtype = jnp.bfloat16
        restored = manager.restore(0, args=GdsRestore(metadata))
    assert restored["w"].dtype == jnp.bfloat16
    assert type(restored["n"]) is np.ndarray


def test_metadata_of_a_fresh_manager_with_registry_needs_no_restore_before(tmp_path):
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(0, args=GdsSave({"w": jnp.ones(3)}, custom_metadata={"a": 1}))
        manager.wait_until_finished()
    registry = ogds.handler_registry(items=["default"])
    with ocp.CheckpointManager(tmp_path, handler_registry=registry) as manager:
        assert manager.item_metadata(0)["w"].shape == (3,)
        assert manager.item_metadata(0).custom_metadata == {"a": 1}


def test_single_leaf_and_nothing_have_metadata_that_restore_them(tmp_path):
    handler = ogds.GdsCheckpointHandler()
    for name, tree in {"leaf": jnp.arange(3), "none": None, "empty": {}}.items():
        handler.save(tmp_path / name, GdsSave(tree))
        metadata = handler.metadata(tmp_path / name)
        restored = handler.restore(tmp_path / name, GdsRestore(metadata))
        assert jax.tree.structure(restored) == jax.tree.structure(tree)
        assert jax.tree.map(np.array_equal, restored, tree) in (True, None, {})


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Lookalike:
    """A node of the user's that has the fields of Orbax's TreeMetadata."""

    tree: object
    custom_metadata: object


def test_nodes_that_look_like_metadata_are_trees(tmp_path):
    handler, mine = ogds.GdsCheckpointHandler(), Lookalike({"w": jnp.arange(3)}, np.ones(2))
    handler.save(tmp_path / "x", GdsSave(mine))
    restored = handler.restore(tmp_path / "x", GdsRestore(mine))
    assert jax.tree.structure(restored) == jax.tree.structure(mine)
    assert restored.tree["w"].tolist() == [0, 1, 2]
    with pytest.raises(Unsupported, match="TreeMetadata"):
        GdsSave(handler.metadata(tmp_path / "x"))


def test_integer_keys_stay_integers(tmp_path):
    ours = metadata_of(
        tmp_path / "x", ogds.GdsCheckpointHandler(), GdsSave({10: jnp.ones(1), 2: jnp.ones(2)})
    )
    assert [(key, value.shape) for key, value in sorted(ours.items())] == [(2, (2,)), (10, (1,))]


def read_by_orbax(path: Path):
    """What Orbax's own PyTree handler makes of the sidecar."""
    return ocp.PyTreeCheckpointHandler().metadata(path)


def test_orbax_reads_structure_and_custom_metadata_of_the_sidecar(tmp_path):
    ours = metadata_of(
        tmp_path / "x", ogds.GdsCheckpointHandler(), GdsSave(tree(), custom_metadata={"a": [1]})
    )
    seen = read_by_orbax(ocp.path.step.epath.Path(tmp_path / "x"))
    assert seen.custom_metadata == {"a": [1]}
    assert [p for p, _ in flat(seen.tree)] == [p for p, _ in flat(ours.tree)]
    assert seen["pair"]["right"]["deep"].name == "pair.right.deep"


keys = st.lists(
    st.one_of(
        st.tuples(st.sampled_from("ka"), st.sampled_from(["", "a", "a.b", "1", "1#2", "/", "é"])),
        st.tuples(st.sampled_from("kin"), st.integers(0, 2)),
    ),
    min_size=1,
    max_size=3,
).map(tuple)


def leaves_at(paths):
    return [LeafSpec(path=path, type="jax.Array", dtype="float32", shape=(2,)) for path in paths]


def is_tree(paths) -> bool:
    """Whether no path is a part of another and sequences are numbered from 0, in order."""
    return not any(a != b and b[: len(a)] == a for a in paths for b in paths)


@settings(max_examples=15)
@given(st.lists(keys, min_size=1, max_size=6, unique=True).filter(is_tree))
def test_orbax_counts_as_many_leaves_as_there_are_whatever_the_keys(tmp_path_factory, paths):
    path = tmp_path_factory.mktemp("sidecar")
    (path / sidecar.NAME).write_bytes(
        sidecar.encode(sidecar.encode_tree(leaves_at(sorted(paths, key=repr))), None)
    )
    seen = read_by_orbax(ocp.path.step.epath.Path(path))
    assert len(jax.tree.leaves(seen.tree)) == len(paths)


def test_custom_metadata_that_is_not_json_is_refused():
    with pytest.raises(Unsupported, match="custom_metadata cannot be written as JSON"):
        sidecar.encode("{}", {"x": object()})


def test_sidecar_is_ascii_json_without_paths_of_the_machine(tmp_path):
    metadata_of(tmp_path / "x", ogds.GdsCheckpointHandler(), GdsSave({"é": jnp.ones(1)}))
    text = (tmp_path / "x" / sidecar.NAME).read_bytes().decode("ascii")
    assert list(json.loads(text)["tree_metadata"]) == ["('é',)"]
    assert str(tmp_path) not in text


def test_metadata_needs_no_file_of_an_item_but_its_manifest(tmp_path):
    saved = tree()
    with ocp.CheckpointManager(tmp_path) as manager:
        manager.save(0, args=GdsSave(saved, custom_metadata={"a": 1}))
        manager.wait_until_finished()
        expected = manager.item_metadata(0)
        item = tmp_path / "0" / "default"
        removed = [path for path in item.iterdir() if path.name != "manifest.json"]
        assert {"p00000.ogds", sidecar.NAME} <= {path.name for path in removed}
        for path in removed:
            path.unlink()
        metadata = manager.item_metadata(0)
    assert metadata.custom_metadata == {"a": 1}
    assert repr(metadata) == repr(expected)
    assert metadata["sharded"].sharding == expected["sharded"].sharding
