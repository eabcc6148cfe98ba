"""`convert`: to a full step, safetensors and Orbax, and back, without a changed bit."""

import json
import os
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest
import safetensors
from click.testing import CliRunner
from delta_items import drifting, follow, steps_of
from hypothesis import given, settings
from hypothesis import strategies as st
from in_memory import assert_same_bits, enable_x64, mesh

import orbax_gds as ogds
from orbax_gds import exchange, full_copy
from orbax_gds.cli import main
from orbax_gds.commit import read_manifest
from orbax_gds.dtypes import DTYPES, dtype_of
from orbax_gds.errors import Exists
from orbax_gds.safetensors_file import (
    _SAFETENSORS_DTYPES,
    Tensor,
    read_metadata,
    safetensors_arrays,
    safetensors_dtypes,
    write_safetensors,
)
from orbax_gds.writing import new_directory

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(5)


def run(*arguments):
    return CliRunner().invoke(main, [os.fspath(argument) for argument in arguments])


def any_bits(shape, dtype):
    dtype = np.dtype(dtype)
    words = RNG.integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    words &= 1 if dtype == np.bool_ else 255
    return words.view(dtype).reshape(shape)


def state(*, with_empty=True):
    tree = {
        "params": {
            "w": jnp.asarray(any_bits((300, 70), ml_dtypes.bfloat16)),
            "e4": any_bits((33,), ml_dtypes.float8_e4m3fn),
            "e5": any_bits((), ml_dtypes.float8_e5m2),
        },
        "opt": [any_bits((5, 4, 3), np.float32), None, {"z": any_bits((9,), np.complex64)}],
        "count": 7,
        "ok": True,
        "rate": 0.1,
        "none": {},
        "step": np.arange(3, dtype=np.int64),
        "name": "añb",
    }
    if with_empty:
        tree |= {"empty": np.zeros((0, 3), np.float16), "raw": b"\x00\xff", "big": 1 << 80}
        tree |= {"key": jax.random.key(3), "scalar": np.float32(2.5)}
    return tree


def leaves_of(path):
    """Type, dtype, shape and bytes of every leaf of an item, by its typed path."""
    with ogds.open(path) as item:
        specs = item.item.manifest.leaves
        words = [
            item.item.read_leaf(i).tobytes() if spec.has_words else None
            for i, spec in enumerate(specs)
        ]
    return {
        spec.path: (spec.type, spec.dtype, spec.shape, spec.prng, held)
        for spec, held in zip(specs, words, strict=True)
    }


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    root = tmp_path_factory.mktemp("saved")
    ogds.save(root / "7" / "default", state(), custom_metadata={"run": [1, "x"]})
    return root


def test_a_full_step_is_written_where_a_step_is_given_and_an_item_where_an_item_is(saved, tmp_path):
    for source, out, item in (
        (saved, tmp_path / "a", tmp_path / "a" / "default"),
        (saved / "7", tmp_path / "b", tmp_path / "b" / "default"),
        (saved / "7" / "default", tmp_path / "c", tmp_path / "c"),
    ):
        done = run("convert", source, out, "--json")
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout) == {"path": str(source), "out": str(out), "kind": "ogds"}
        assert leaves_of(item) == leaves_of(saved / "7" / "default")
        assert ogds.verify(item) == []
        assert read_manifest(item).custom_metadata == {"run": [1, "x"]}


def test_a_full_copy_keeps_shardings_layouts_derived_leaves_and_frames(tmp_path):
    master = np.cumsum(RNG.standard_normal((512, 64), np.float32), 0)
    there = jax.sharding.NamedSharding(mesh(4), jax.sharding.PartitionSpec("x"))
    tree = {"m": jax.device_put(master, there)}
    tree["p"] = tree["m"].astype(jnp.bfloat16)
    ogds.save(tmp_path / "a", tree, options=ogds.Options(chunk_bytes="16KiB"))
    assert run("convert", tmp_path / "a", tmp_path / "b").exit_code == 0
    one, other = read_manifest(tmp_path / "a"), read_manifest(tmp_path / "b")
    assert other.requires == one.requires == ("derived",)
    assert (one.leaves, one.shardings) == (other.leaves, other.shardings)
    assert one.stripes[0].layout_crc32c == other.stripes[0].layout_crc32c
    assert one.stripes[0].uuid != other.stripes[0].uuid
    assert one.stripes[0].bytes == other.stripes[0].bytes
    assert_same_bits(ogds.restore(tmp_path / "b"), tree)


@settings(max_examples=3, deadline=None)
@given(data=st.data(), window=st.integers(1, 4), linked=st.booleans())
def test_a_delta_step_becomes_a_full_one_that_needs_no_other(
    tmp_path_factory, data, window, linked
):
    root = tmp_path_factory.mktemp("chain")
    tree = {f"l{i}": any_bits((n,), np.uint16) for i, n in enumerate((0, 1, 7, 3000))}
    tree |= {"cut": any_bits((3, 9, 600), np.float32), "m": any_bits((40, 1500), np.float16)}
    tree |= {"still": any_bits((70, 400), ml_dtypes.bfloat16), "pool": any_bits((9,), np.complex64)}
    items = steps_of(root / "run", 3)
    for item, state in zip(items, drifting(tree, 3), strict=True):
        ogds.save(item, state, options=ogds.Options(chunk_bytes=1 << 13, codec="fast"))
    direct = {n for n in range(40) if data.draw(st.booleans())}
    follow(items, linked=linked, is_delta=lambda step, chunk: chunk + step not in direct)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(full_copy, "_WINDOW_BYTES", window << 14)
        assert run("convert", items[2].parent, root / "full").exit_code == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "_WINDOW_BYTES", 1 << 14)
        assert run("convert", items[2], root / "x.safetensors").exit_code == 0
    expected = leaves_of(items[2])
    shutil.rmtree(root / "run")
    manifest = read_manifest(root / "full" / "default")
    assert (manifest.base, manifest.requires, manifest.stripes[0].base) == (None, (), None)
    assert ogds.verify(root / "full" / "default") == []
    assert leaves_of(root / "full" / "default") == expected
    assert run("convert", root / "x.safetensors", root / "back").exit_code == 0
    assert leaves_of(root / "back") == expected


def test_safetensors_and_back_gives_the_same_tree_and_metadata(saved, tmp_path, monkeypatch):
    monkeypatch.setattr(exchange, "_WINDOW_BYTES", 1000)
    out = tmp_path / "x.safetensors"
    done = run("convert", saved, out)
    assert done.exit_code == 0, done.output
    assert sorted(os.listdir(tmp_path)) == ["x.safetensors"]
    assert run("convert", out, tmp_path / "back").exit_code == 0
    assert leaves_of(tmp_path / "back") == leaves_of(saved / "7" / "default")
    assert read_manifest(tmp_path / "back").custom_metadata == {"run": [1, "x"]}
    assert ogds.verify(tmp_path / "back") == []
    assert_same_bits(ogds.restore(tmp_path / "back"), ogds.restore(saved / "7" / "default"))


def test_the_library_reads_what_we_write(saved, tmp_path):
    assert run("convert", saved, tmp_path / "x", "--to", "safetensors").exit_code == 0
    stored = leaves_of(saved / "7" / "default")
    content = (tmp_path / "x").read_bytes()
    assert int.from_bytes(content[:8], "little") % 8 == 0  # so words lie aligned in a mapped file
    found = dict(safetensors.deserialize(content))
    named = {".".join(str(k) for _, k in path): v for path, v in stored.items() if v[1]}
    assert found.keys() == named.keys()
    assert "params.w" in found
    for name, tensor in found.items():
        assert (tuple(tensor["shape"]), bytes(tensor["data"])) == (named[name][2], named[name][4])


@settings(max_examples=20, deadline=None)
@given(st.dictionaries(st.text("ab.é", max_size=5), st.sampled_from(sorted(safetensors_dtypes()))))
def test_files_of_the_library_become_nested_dicts_or_are_refused(tmp_path_factory, names):
    path = tmp_path_factory.mktemp("foreign")
    arrays = {
        name: any_bits((2, i), next(d for d in DTYPES if d.name == dtype).numpy_dtype)
        for i, (name, dtype) in enumerate(names.items())
    }
    entries, at, content = {}, 0, b""
    known = {ours: theirs for theirs, ours in _SAFETENSORS_DTYPES.items()}
    for name, array in arrays.items():
        place = [at, at + array.nbytes]
        entries[name] = {
            "dtype": known[array.dtype.name],
            "shape": array.shape,
            "data_offsets": place,
        }
        content, at = content + array.tobytes(), place[1]
    text = json.dumps(entries).encode()
    (path / "f").write_bytes(len(text).to_bytes(8, "little") + text + content)
    done = run("convert", path / "f", path / "item")
    clash = any(a != b and b.startswith(a + ".") for a in names for b in names)
    assert done.exit_code == (2 if clash else 0), done.output
    assert (path / "item").exists() is not clash
    if not clash:
        found = leaves_of(path / "item")
        assert found == {
            tuple(("k", key) for key in name.split(".")): (
                "numpy.ndarray",
                array.dtype.name,
                array.shape,
                None,
                array.tobytes(),
            )
            for name, array in arrays.items()
        }


@pytest.mark.parametrize("changed", ["left out", "other shape"])
def test_tensors_changed_by_other_tools_are_taken_as_they_are(saved, tmp_path, changed):
    assert run("convert", saved, tmp_path / "x.safetensors").exit_code == 0
    arrays = dict(safetensors_arrays(tmp_path / "x.safetensors"))
    if changed == "left out":
        del arrays["step"]
    else:
        arrays["opt.0"] = arrays["opt.0"].reshape(-1)
    arrays = list(arrays.items())
    tensors = [Tensor(name=n, dtype=dtype_of(a.dtype), shape=a.shape) for n, a in arrays]
    words = [[array.reshape(-1).view(np.uint8)] for _, array in arrays]
    said = read_metadata(tmp_path / "x.safetensors")
    write_safetensors(tmp_path / "y.safetensors", tensors, words, said)
    assert run("convert", tmp_path / "y.safetensors", tmp_path / "item").exit_code == 0
    found = leaves_of(tmp_path / "item")
    assert ((("k", "step"),) in found) == (changed == "other shape")
    shape = (5, 4, 3) if changed == "left out" else (60,)
    assert found[("k", "opt"), ("k", "0")][1:3] == ("float32", shape)


SOUND = {"path": [["k", "a"]], "type": "numpy.ndarray", "dtype": "float32", "shape": [2]}


@pytest.mark.parametrize(
    "leaves",
    [
        [SOUND, SOUND],
        [SOUND | {"path": [["x", "a"]]}],
        [SOUND | {"type": "newer"}],
        [SOUND | {"sharding": 0}],
        [SOUND | {"prng": "threefry2x32"}],
    ],
    ids=["twice", "tag", "type", "sharding", "prng"],
)
def test_a_tree_of_which_no_item_can_be_made_is_refused(tmp_path, leaves):
    path = tmp_path / "x.safetensors"
    tensor = Tensor(name="a", dtype=dtype_of(np.float32), shape=(2,))
    words = [np.zeros(8, np.uint8)]
    write_safetensors(path, [tensor], [words], {"orbax_gds": json.dumps({"leaves": leaves})})
    done = run("convert", path, tmp_path / "out")
    assert done.exit_code in (1, 2)
    assert "leaf 'a'" in done.stderr
    assert os.listdir(tmp_path) == ["x.safetensors"]


def test_leaves_that_a_format_cannot_hold_are_named_and_nothing_is_written(tmp_path):
    tree = {"a.b": np.ones(2), "a": {"b": np.ones(2), "i4": np.ones(3, ml_dtypes.int4)}}
    tree |= {"big": 1 << 70, "by": b"x", "void": np.ones((0, 2))}
    ogds.save(tmp_path / "item", tree)
    done = run("convert", tmp_path / "item", tmp_path / "x.safetensors")
    assert done.exit_code == 2
    assert "'a/i4' is int4" in done.stderr
    del tree["a"]["i4"]
    ogds.save(tmp_path / "other", tree)
    done = run("convert", tmp_path / "other", tmp_path / "x.safetensors")
    assert done.exit_code == 2
    assert done.stderr.count("would be named 'a.b'") == 2
    ogds.save(tmp_path / "named", {"__metadata__": np.ones(2)})
    done = run("convert", tmp_path / "named", tmp_path / "x.safetensors")
    assert done.exit_code == 2
    assert "'__metadata__' would be named '__metadata__', which no" in done.stderr
    done = run("convert", tmp_path / "item", tmp_path / "y", "--to", "orbax")
    assert done.exit_code == 2
    assert all(f"'{name}' is" in done.stderr for name in ("big", "by", "void"))
    assert sorted(os.listdir(tmp_path)) == ["item", "named", "other"]


@pytest.mark.parametrize("kind", ["ogds", "safetensors", "orbax"])
@pytest.mark.parametrize("is_directory", [True, False])
def test_nothing_is_overwritten(saved, tmp_path, kind, is_directory):
    out = tmp_path / "out"
    out.mkdir() if is_directory else out.write_text("mine")
    done = run("convert", saved, out, "--to", kind)
    assert done.exit_code == 2
    assert "exists already" in done.stderr
    assert out.is_dir() if is_directory else out.read_text() == "mine"


@pytest.mark.parametrize("kind", ["ogds", "safetensors", "orbax"])
@pytest.mark.parametrize("byte", [16, 40], ids=["header", "payload"])
def test_a_conversion_that_fails_leaves_nothing(tmp_path, kind, byte):
    item = tmp_path / "step" / "state"
    ogds.save(item, {"w": np.arange(30_000, dtype=np.float32)})
    path = item / "p00000.ogds"
    data = bytearray(path.read_bytes())
    data[4096 + byte] ^= 1
    path.write_bytes(data)
    parent = tmp_path / ("new" if kind == "ogds" else "")
    done = run("convert", tmp_path / "step", parent / "out", "--to", kind)
    assert done.exit_code == 1
    assert "chunk 0" in done.stderr
    assert os.listdir(tmp_path) == ["step"]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(28, "No space left on device"), "No space left on device"),
        (OSError("it failed"), "it failed"),
        (ValueError("OUT_OF_RANGE: File too large"), "Orbax says: OUT_OF_RANGE: File too large"),
    ],
)
def test_a_failure_of_orbax_leaves_nothing(tmp_path, monkeypatch, error, text):
    def fail(handler, directory):
        assert os.listdir(directory)
        raise error

    ogds.save(tmp_path / "item", {"w": np.ones(9)})
    monkeypatch.setattr(ocp.PyTreeCheckpointHandler, "finalize", fail)
    done = run("convert", tmp_path / "item", tmp_path / "new" / "out", "--to", "orbax")
    assert done.exit_code == 2
    assert f"Cannot write {tmp_path / 'new' / 'out'}: {text}" in done.stderr
    assert os.listdir(tmp_path) == ["item"]


def test_other_input_is_refused_by_what_it_is(saved, tmp_path):
    (tmp_path / "text").write_text("hello, world")
    (tmp_path / "nothing").mkdir()
    for source in ("text", "nothing", "missing"):
        done = run("convert", tmp_path / source, tmp_path / "out")
        assert done.exit_code == 2
        assert source in done.stderr
    assert run("convert", saved, tmp_path / "x.safetensors").exit_code == 0
    done = run("convert", tmp_path / "x.safetensors", tmp_path / "y", "--to", "orbax")
    assert done.exit_code == 2
    assert "--to ogds" in done.stderr


def test_of_two_that_write_to_one_place_the_second_takes_nothing_from_the_first(tmp_path):
    with new_directory(tmp_path / "a" / "out"):
        (tmp_path / "a" / "out" / "first").touch()
        with pytest.raises(Exists, match="exists already"), new_directory(tmp_path / "a" / "out"):
            raise AssertionError("it is taken")
    assert (tmp_path / "a" / "out" / "first").exists()
    with pytest.raises(KeyError), new_directory(tmp_path / "b" / "c" / "out"):
        raise KeyError
    assert os.listdir(tmp_path) == ["a"]


def test_leaves_that_orbax_would_take_for_one_are_refused(tmp_path):
    ogds.save(tmp_path / "item", {"a": {"b": np.ones(3)}, "a.b": np.zeros(3), "c": 1})
    done = run("convert", tmp_path / "item", tmp_path / "out", "--to", "orbax")
    assert done.exit_code == 2
    assert "'a.b' would be named 'a.b'" in done.stderr
    assert "2 leaves cannot be written" in done.stderr
    assert os.listdir(tmp_path) == ["item"]


def test_what_orbax_cannot_read_is_refused_and_leaves_nothing(tmp_path):
    (tmp_path / "item").mkdir()
    (tmp_path / "item" / "_METADATA").write_text("{")
    done = run("convert", tmp_path / "item", tmp_path / "out")
    assert done.exit_code == 2
    assert "Orbax cannot restore" in done.stderr
    assert os.listdir(tmp_path) == ["item"]


def test_orbax_restores_what_we_write_and_we_what_it_wrote(tmp_path):
    with enable_x64(True):
        tree = state(with_empty=False) | {"wide": jnp.arange(3, dtype=jnp.float64) / 7}
        tree["key"] = jax.random.key(3)
        ogds.save(tmp_path / "item", tree, custom_metadata={"a": 1})
        done = run("convert", tmp_path / "item", tmp_path / "orbax", "--to", "orbax")
        assert done.exit_code == 0, (done.output, done.exception)
        here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            metadata = checkpointer.metadata(tmp_path / "orbax").item_metadata
            args = jax.tree.map(
                lambda leaf: (
                    ocp.ArrayRestoreArgs(sharding=here)
                    if getattr(leaf, "sharding", None)
                    else ocp.RestoreArgs()
                ),
                metadata.tree,
            )
            restored = checkpointer.restore(
                tmp_path / "orbax", args=ocp.args.PyTreeRestore(restore_args=args)
            )
        assert_same_bits(restored, tree)
    done = run("convert", tmp_path / "orbax", tmp_path / "back")
    assert done.exit_code == 0, (done.output, done.exception)
    assert leaves_of(tmp_path / "back") == leaves_of(tmp_path / "item")
    assert read_manifest(tmp_path / "back").custom_metadata == {"a": 1}
    assert ogds.verify(tmp_path / "back") == []


def test_a_step_of_a_manager_of_orbax_becomes_a_step_of_ours(tmp_path):
    tree = {"w": jnp.asarray(any_bits((8, 4), np.float32)), "n": {"b": any_bits((3,), np.int8)}}
    with ocp.CheckpointManager(tmp_path / "theirs") as manager:
        manager.save(3, args=ocp.args.StandardSave(tree))
        manager.wait_until_finished()
    assert run("convert", tmp_path / "theirs" / "3", tmp_path / "ours" / "3").exit_code == 0
    with ocp.CheckpointManager(tmp_path / "ours") as manager:
        restored = manager.restore(3, args=ogds.args.GdsRestore())
    assert_same_bits(restored, tree)


def test_a_full_step_is_restored_by_a_manager(saved, tmp_path):
    assert run("convert", saved / "7", tmp_path / "8").exit_code == 0
    with ocp.CheckpointManager(tmp_path) as manager:
        assert manager.latest_step() == 8
        restored = manager.restore(8, args=ogds.args.GdsRestore())
    assert_same_bits(restored, ogds.restore(saved / "7" / "default"))


NO_JAX = """
import sys
from click.testing import CliRunner
from orbax_gds.cli import main
for arguments in {commands!r}:
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, (arguments, done.output)
    heavy = [name for name in ("jax", "orbax", "tensorstore") if name in sys.modules]
    assert not heavy, (arguments, heavy)
"""


def test_only_orbax_needs_jax(saved, tmp_path):
    file, item = str(tmp_path / "x.safetensors"), str(tmp_path / "item")
    commands = [["convert", str(saved), file], ["convert", file, item]]
    commands += [["convert", str(saved), str(tmp_path / "full")], ["diff", str(saved), item]]
    script = NO_JAX.format(commands=commands)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
