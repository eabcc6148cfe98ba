"""Laws of the drop-in: code for Orbax's own argument classes runs unchanged under our registry."""

import gc
from typing import NamedTuple

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.experimental.layout import Format, Layout
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

import orbax_gds as ogds
from orbax_gds import manifest
from orbax_gds.errors import Mismatch, Unsupported


class Moments(NamedTuple):
    mu: jax.Array
    nu: jax.Array


def state() -> dict:
    kernel = jnp.asarray(np.random.default_rng(0).standard_normal((8, 4)), jnp.bfloat16)
    return {
        "w": kernel,
        "opt": (Moments(kernel.astype(jnp.float32), jnp.ones((8, 4))), ()),
        "table": np.arange(6).reshape(2, 3),
        "step": 7,
        "rate": 0.5,
        "key": jax.random.key(3),
    }


def abstract(tree):
    """What training code makes of a state to restore into."""
    return jax.tree.map(ocp.utils.to_shape_dtype_struct, tree)


def equal(left, right) -> bool:
    def same(a, b) -> bool:
        if isinstance(a, jax.Array) and jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            return a.dtype == b.dtype and same(jax.random.key_data(a), jax.random.key_data(b))
        if isinstance(a, jax.Array | np.ndarray):
            kinds = isinstance(a, jax.Array) == isinstance(b, jax.Array)
            return kinds and a.dtype == b.dtype and a.tobytes() == b.tobytes()
        return type(a) is type(b) and a == b

    same_structure = jax.tree.structure(left) == jax.tree.structure(right)
    return same_structure and jax.tree.all(jax.tree.map(same, left, right))


PLAIN = pytest.param("orbax", marks=[pytest.mark.slow, pytest.mark.filterwarnings("ignore")])


@pytest.fixture(params=["ours", PLAIN])
def run(request, tmp_path):
    """A manager under our registry, and a plain one: what holds for both is what Orbax promises."""
    registry = ogds.handler_registry() if request.param == "ours" else None
    with ocp.CheckpointManager(tmp_path, handler_registry=registry) as manager:
        yield manager
    if registry is None:
        gc.collect()  # coroutines that Orbax leaves behind on errors warn here, not in another test


@pytest.fixture
def ours(tmp_path):
    with ocp.CheckpointManager(tmp_path, handler_registry=ogds.handler_registry()) as manager:
        yield manager


def save(manager, args, step: int = 0) -> None:
    manager.save(step, args=args)
    manager.wait_until_finished()


ARGS = {
    "standard": (ocp.args.StandardSave, ocp.args.StandardRestore),
    "pytree": (ocp.args.PyTreeSave, ocp.args.PyTreeRestore),
}


@pytest.mark.parametrize("kind", ARGS)
def test_code_for_orbax_runs_unchanged(run, kind):
    save_args, restore_args = ARGS[kind]
    tree = state()
    save(run, save_args(tree, custom_metadata={"epoch": 2}))
    assert run.latest_step() == 0
    assert run.item_metadata(0).custom_metadata == {"epoch": 2}
    assert equal(run.restore(0, args=restore_args(abstract(tree))), tree)
    untargeted = run.restore(0, args=restore_args())
    assert equal(untargeted["opt"][0]["nu"], tree["opt"][0].nu)
    if kind == "pytree":  # Orbax's StandardRestore takes no metadata of its own
        assert equal(run.restore(0, args=restore_args(run.item_metadata(0))), untargeted)


def test_files_are_ours_only_under_our_registry(run, tmp_path, request):
    save(run, ocp.args.StandardSave({"w": jnp.ones(2)}))
    ours = request.node.callspec.params["run"] == "ours"
    assert (tmp_path / "0" / "default" / "manifest.json").exists() == ours


def test_only_the_named_items_are_ours(tmp_path):
    registry = ogds.handler_registry(items=["state"])
    with ocp.CheckpointManager(tmp_path, handler_registry=registry) as manager:
        args = ocp.args.Composite(
            state=ocp.args.StandardSave({"w": jnp.ones(2)}),
            other=ocp.args.StandardSave({"w": jnp.ones(2)}),
            extra=ocp.args.JsonSave({"a": 1}),
        )
        save(manager, args)
        restored = manager.restore(0)
    assert (tmp_path / "0" / "state" / "manifest.json").exists()
    assert not (tmp_path / "0" / "other" / "manifest.json").exists()
    assert equal(restored.state, {"w": jnp.ones(2)})


def test_every_item_is_ours_by_default(ours, tmp_path):
    args = ocp.args.Composite(a=ocp.args.StandardSave({"w": 1}), b=ocp.args.PyTreeSave({"w": 2}))
    save(ours, args)
    assert all((tmp_path / "0" / item / "manifest.json").exists() for item in "ab")
    restored = ours.restore(
        0, args=ocp.args.Composite(a=ocp.args.StandardRestore(), b=ocp.args.PyTreeRestore())
    )
    assert (restored.a, restored.b) == ({"w": 1}, {"w": 2})


@pytest.mark.parametrize("change", ["missing", "extra"])
@pytest.mark.parametrize("kind", ARGS)
def test_other_structure_is_a_value_error(run, kind, change):
    save_args, restore_args = ARGS[kind]
    tree = {"a": jnp.ones(2), "b": jnp.ones(2)}
    save(run, save_args(tree))
    target = {"a": jnp.ones(2)} if change == "missing" else tree | {"new": jnp.ones(2)}
    with pytest.raises(ValueError, match="b" if change == "missing" else "new"):
        run.restore(0, args=restore_args(target))


def test_standard_restore_is_strict_unless_told_otherwise(run):
    save(run, ocp.args.StandardSave({"w": jnp.arange(6.0).reshape(2, 3) + 1}))
    one = SingleDeviceSharding(jax.devices()[0])
    target = {"w": jax.ShapeDtypeStruct((3, 2), jnp.float32, sharding=one)}
    with pytest.raises(ValueError, match=r"shape|2,"):
        run.restore(0, args=ocp.args.StandardRestore(target))
    restored = run.restore(0, args=ocp.args.StandardRestore(target, strict=False))["w"]
    assert restored.tolist() == [[1, 2], [4, 5], [0, 0]]


def test_dtype_of_the_target_is_what_is_restored(run):
    save(run, ocp.args.StandardSave({"w": jnp.arange(4.0), "n": np.arange(4)}))
    target = {"w": jnp.zeros(4, jnp.bfloat16), "n": np.zeros(4, np.float32)}
    restored = run.restore(0, args=ocp.args.StandardRestore(target))
    assert restored["w"].dtype == jnp.bfloat16
    assert restored["n"].dtype == np.float32
    assert restored["n"].tolist() == [0, 1, 2, 3]


def test_target_without_sharding_takes_the_saved_one(run):
    mesh = jax.make_mesh((len(jax.devices()),), ("x",))
    sharding = NamedSharding(mesh, PartitionSpec("x"))
    save(run, ocp.args.StandardSave({"w": jax.device_put(jnp.ones((8, 2)), sharding)}))
    target = {"w": jax.ShapeDtypeStruct((8, 2), jnp.float32)}
    restored = run.restore(0, args=ocp.args.StandardRestore(target))["w"]
    assert restored.sharding.is_equivalent_to(sharding, 2)


def test_layout_of_the_target_is_taken_with_support_layout(run):
    columns_first = Format(Layout((1, 0)), SingleDeviceSharding(jax.devices()[0]))
    tree = {"w": jnp.arange(6.0).reshape(2, 3)}
    target = {"w": jax.device_put(tree["w"], columns_first)}
    save(run, ocp.args.StandardSave(tree))
    for support, expected in ((True, target), (False, tree)):
        args = ocp.args.StandardRestore(target, support_layout=support)
        restored = run.restore(0, args=args)
        assert equal(restored, tree)
        assert restored["w"].format.layout == expected["w"].format.layout


def test_fallback_sharding_is_only_a_fallback(run):
    tree = {"w": jnp.ones(4)}
    save(run, ocp.args.StandardSave(tree))
    fallback = SingleDeviceSharding(jax.devices()[-1])
    restored = run.restore(0, args=ocp.args.StandardRestore(fallback_sharding=fallback))
    assert restored["w"].sharding.device_set == tree["w"].sharding.device_set


def test_fallback_sharding_is_taken_where_the_saved_one_does_not_fit(ours, tmp_path):
    save(ours, ocp.args.StandardSave({"w": jnp.ones(4)}))
    path = tmp_path / "0" / "default" / "manifest.json"
    saved = manifest.decode(path.read_bytes(), str(path))
    elsewhere = tuple(msgspec.structs.replace(s, device=99) for s in saved.shardings)
    path.write_bytes(manifest.encode(msgspec.structs.replace(saved, shardings=elsewhere)))
    fallback = SingleDeviceSharding(jax.devices()[-1])
    for item in (None, {"w": jax.ShapeDtypeStruct((4,), jnp.float32)}):
        args = ocp.args.StandardRestore(item, fallback_sharding=fallback)
        assert ours.restore(0, args=args)["w"].sharding == fallback


def test_save_args_cast_what_they_name(run):
    tree = {"w": jnp.arange(3.0) + 0.5, "n": np.arange(3.0) + 0.5, "f": 2.75, "keep": jnp.ones(2)}
    to = {
        "w": ocp.SaveArgs(dtype=jnp.dtype(jnp.bfloat16)),
        "n": ocp.SaveArgs(dtype=np.dtype(np.int32), chunk_byte_size=1024),
        "f": ocp.SaveArgs(dtype=np.dtype(np.int32)),
        "keep": ocp.SaveArgs(),
    }
    save(run, ocp.args.PyTreeSave(tree, to))
    restored = run.restore(0, args=ocp.args.PyTreeRestore())
    expected = {
        "w": (jnp.arange(3.0) + 0.5).astype(jnp.bfloat16),
        "n": np.arange(3, dtype=np.int32),
        "f": 2,
        "keep": jnp.ones(2),
    }
    assert equal(restored, expected)


def test_pytree_restore_takes_only_the_structure_of_its_item(run):
    save(run, ocp.args.PyTreeSave({"w": jnp.arange(3.0), "s": 4}))
    restored = run.restore(0, args=ocp.args.PyTreeRestore({"w": 0, "s": jnp.ones(7)}))
    assert equal(restored, {"w": jnp.arange(3.0), "s": 4})


@pytest.mark.parametrize("with_item", [True, False])
def test_restore_args_say_how_each_leaf_is_restored(run, with_item):
    tree = {
        "w": jnp.arange(4.0),
        "v": jnp.arange(4.0),
        "n": np.arange(4, dtype=np.int32),
        "i": 3,
        "as": 1.5,
    }
    save(run, ocp.args.PyTreeSave(tree))
    mesh = jax.make_mesh((1,), ("x",), devices=jax.devices()[:1])
    restore_args = {
        "w": ocp.RestoreArgs(restore_type=np.ndarray, dtype=np.int32),
        "v": ocp.ArrayRestoreArgs(dtype=jnp.bfloat16, mesh=mesh, mesh_axes=PartitionSpec("x")),
        "n": ocp.ArrayRestoreArgs(sharding=SingleDeviceSharding(jax.devices()[-1])),
        "i": ocp.RestoreArgs(restore_type=float),
        "as": ocp.RestoreArgs(),
    }
    item = dict.fromkeys(tree, 0) if with_item else None
    restored = run.restore(0, args=ocp.args.PyTreeRestore(item, restore_args))
    assert type(restored["w"]) is np.ndarray
    assert restored["w"].dtype == np.int32
    assert restored["v"].dtype == jnp.bfloat16
    assert restored["v"].sharding == NamedSharding(mesh, PartitionSpec("x"))
    assert restored["n"].sharding.device_set == {jax.devices()[-1]}
    assert (type(restored["i"]), restored["i"], restored["as"]) == (float, 3.0, 1.5)


def test_constructed_restore_args_restore_the_target(run):
    tree = state()
    del tree["key"]
    save(run, ocp.args.PyTreeSave(tree))
    restore_args = ocp.checkpoint_utils.construct_restore_args(abstract(tree))
    restored = run.restore(0, args=ocp.args.PyTreeRestore(tree, restore_args))
    assert equal(restored, tree)


def test_strictness_is_of_each_leaf(run):
    save(run, ocp.args.PyTreeSave({"a": jnp.ones(2), "b": jnp.ones(2)}))
    longer = {
        "a": ocp.ArrayRestoreArgs(global_shape=(3,), strict=False),
        "b": ocp.ArrayRestoreArgs(global_shape=(2,)),
    }
    restored = run.restore(0, args=ocp.args.PyTreeRestore(restore_args=longer))
    assert restored["a"].tolist() == [1, 1, 0]
    longer["b"] = ocp.ArrayRestoreArgs(global_shape=(3,))
    with pytest.raises(ValueError, match=r"strict=False"):
        run.restore(0, args=ocp.args.PyTreeRestore(restore_args=longer))


def test_a_loose_leaf_leaves_prng_keys_in_peace(ours):
    tree = {"a": jnp.ones(2), "keys": jax.random.split(jax.random.key(3), 4)}
    save(ours, ocp.args.PyTreeSave(tree))
    restore_args = {
        "a": ocp.ArrayRestoreArgs(global_shape=(3,), strict=False),
        "keys": ocp.ArrayRestoreArgs(global_shape=(4,)),
    }
    restored = ours.restore(0, args=ocp.args.PyTreeRestore(restore_args=restore_args))
    assert restored["a"].tolist() == [1, 1, 0]
    assert equal(restored["keys"], tree["keys"])
    restore_args["keys"] = ocp.ArrayRestoreArgs(global_shape=(5,))
    with pytest.raises(Mismatch, match="'keys'"):
        ours.restore(0, args=ocp.args.PyTreeRestore(restore_args=restore_args))


class OwnKey:
    """A key of no class that jax defines."""

    def __init__(self, text):
        self.text = text

    def __str__(self):
        return self.text


@jax.tree_util.register_pytree_with_keys_class
class OwnNode:
    def __init__(self, left, right):
        self.children = left, right

    def tree_flatten_with_keys(self):
        return tuple(zip((OwnKey(".left"), OwnKey(".right")), self.children, strict=True)), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


def test_nodes_with_keys_of_their_own_are_restored(ours):
    tree = {"node": OwnNode(jnp.ones(2), jnp.zeros(3))}
    save(ours, ocp.args.PyTreeSave(tree))
    restore_args = jax.tree.map(lambda _: ocp.ArrayRestoreArgs(dtype=jnp.bfloat16), tree)
    restored = ours.restore(0, args=ocp.args.PyTreeRestore(tree, restore_args))
    assert equal(restored, jax.tree.map(lambda x: x.astype(jnp.bfloat16), tree))
    assert equal(ours.restore(0, args=ocp.args.PyTreeRestore(tree)), tree)


@pytest.mark.parametrize("with_item", [True, False])
def test_none_in_tree_and_restore_args_is_no_leaf(run, with_item):
    tree = {"a": jnp.ones(2), "none": None, "empty": {}}
    save(run, ocp.args.PyTreeSave(tree))
    restore_args = ocp.checkpoint_utils.construct_restore_args(tree)
    item = tree if with_item else None
    assert equal(run.restore(0, args=ocp.args.PyTreeRestore(item, restore_args)), tree)


def test_key_that_no_leaf_can_have_is_refused_by_name(ours):
    save(ours, ocp.args.PyTreeSave({"a": jnp.ones(2)}))
    with pytest.raises(Unsupported, match=r"'a/1\.5' has the key"):
        ours.restore(0, args=ocp.args.PyTreeRestore({"a": {1.5: 0}}))


def test_partial_restore_reads_what_the_item_names(run):
    tree = state()
    save(run, ocp.args.PyTreeSave(tree))
    part = {"w": tree["w"], "step": 0}
    restored = run.restore(0, args=ocp.args.PyTreeRestore(part, partial_restore=True))
    assert equal(restored, {"w": tree["w"], "step": 7})


def test_partial_restore_takes_restore_args_of_the_part(run):
    save(run, ocp.args.PyTreeSave({"a": jnp.ones(2), "b": jnp.ones(2)}))
    restore_args = {"a": ocp.ArrayRestoreArgs(dtype=jnp.bfloat16)}
    args = ocp.args.PyTreeRestore({"a": 0}, restore_args, partial_restore=True)
    assert equal(run.restore(0, args=args), {"a": jnp.ones(2, jnp.bfloat16)})


def test_partial_restore_of_what_is_not_stored_raises(ours):
    save(ours, ocp.args.PyTreeSave({"a": jnp.ones(2)}))
    part = {"a": 0, "b": {"c": 0}}
    with pytest.raises(Mismatch, match="'b/c'"):
        ours.restore(0, args=ocp.args.PyTreeRestore(part, partial_restore=True))


def test_placeholder_is_left_in_place(run):
    tree = state()
    save(run, ocp.args.PyTreeSave(tree))
    restored = run.restore(0, args=ocp.args.PyTreeRestore(tree | {"w": ocp.PLACEHOLDER}))
    assert restored.pop("w") is ocp.PLACEHOLDER
    del tree["w"]
    assert equal(restored, tree)


@pytest.mark.parametrize(
    "args",
    [
        ocp.args.PyTreeRestore({"a": 0}, transforms={}),
        ocp.args.PyTreeRestore({"a": 0}, legacy_transform_fn=lambda *trees: trees),
    ],
    ids=["transforms", "legacy_transform_fn"],
)
def test_transforms_are_refused_with_the_way_out(ours, args):
    save(ours, ocp.args.PyTreeSave({"a": jnp.ones(2)}))
    with pytest.raises(Unsupported, match="partial_restore"):
        ours.restore(0, args=args)


def test_restore_args_of_another_tree_are_refused(ours):
    save(ours, ocp.args.PyTreeSave({"a": jnp.ones(2), "b": 1}))
    other = {"a": ocp.RestoreArgs(), "c": ocp.RestoreArgs()}
    with pytest.raises(Mismatch, match=r"lacks \['b'\] and has \['c'\]"):
        ours.restore(0, args=ocp.args.PyTreeRestore(restore_args=other))


def test_unknown_restore_type_is_refused(ours):
    save(ours, ocp.args.PyTreeSave({"a": jnp.ones(2)}))
    args = ocp.args.PyTreeRestore(restore_args={"a": ocp.RestoreArgs(restore_type=set)})
    with pytest.raises(Unsupported, match=r"set.*'a'"):
        ours.restore(0, args=args)


def test_cast_that_jax_would_not_do_is_refused(ours):
    args = ocp.args.PyTreeSave({"a": {"b": jnp.ones(2)}}, {"a": {"b": ocp.SaveArgs(dtype="f8")}})
    with pytest.raises(Unsupported, match=r"float64 at 'a/b'"):
        ours.save(0, args=args)


def test_nothing_to_save_is_an_error(ours):
    with pytest.raises(ValueError, match="None"):
        ours.save(0, args=ocp.args.StandardSave(None))


def test_arrays_of_other_libraries_are_saved_as_numpy(ours):
    class Foreign:
        def __array__(self, dtype=None, copy=None):
            return np.arange(3)

    save(ours, ocp.args.StandardSave({"x": Foreign()}))
    assert equal(ours.restore(0), {"x": np.arange(3)})


def test_more_than_orbax_takes_is_taken(ours):
    tree = {
        "zero": jnp.zeros((0, 3)),
        "u4": jnp.arange(7, dtype=jnp.uint4),
        "bytes": b"\x00\xff",
        "text": "é",
        "big": 1 << 80,
        7: {"a": {"b": jnp.ones(1)}, "a.b": jnp.zeros(1)},
    }
    tree = {"all": [*tree.values()], "keyed": {7: tree[7]}}
    save(ours, ocp.args.StandardSave(tree))
    assert equal(ours.restore(0, args=ocp.args.StandardRestore()), tree)
