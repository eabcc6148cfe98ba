"""A save stores what was there when it was asked for, and says how."""

import errno
import os
import uuid
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trees import assert_same, files_of, large_tree, small_tree

import orbax_gds as ogds
from orbax_gds import _native, commit, saving
from orbax_gds.errors import (
    Exists,
    IoError,
    Unsupported,
)


@pytest.mark.parametrize("tree", [small_tree, large_tree], ids=["small", "large"])
@pytest.mark.parametrize("codec", ["auto", "off"])
def test_what_is_saved_is_restored(tmp_path, tree, codec):
    tree = tree()
    report = ogds.save(tmp_path / "item", tree, options=ogds.Options(codec=codec))
    assert report.state == "committed"
    assert_same(ogds.restore(tmp_path / "item"), tree)
    assert_same(ogds.restore(tmp_path / "item", tree), tree)
    assert ogds.verify(tmp_path / "item") == []


@pytest.mark.slow
def test_bytes_depend_on_neither_threads_nor_instruction_set(tmp_path, monkeypatch):
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=5))
    tree = large_tree()
    seen = []
    default = _native.isa()
    try:
        for number, isa in enumerate([*_native.isas(), default]):
            _native.use_isa(isa)
            for workers in (1, 3):
                item = tmp_path / f"{number}-{workers}"
                ogds.save(item, tree, options=ogds.Options(workers=workers))
                files = files_of(item)
                seen.append(files["p00000.ogds"])
    finally:
        _native.use_isa(default)
    assert len(set(seen)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("chunk_bytes", [4096, 100_000, "64MiB"])
@pytest.mark.parametrize("driver", ["direct", "buffered"])
def test_any_chunk_size_and_driver_restores(tmp_path, chunk_bytes, driver):
    tree = large_tree()
    options = ogds.Options(chunk_bytes=chunk_bytes, driver=driver, staging_bytes=1, workers=3)
    try:
        report = ogds.save(tmp_path / "item", tree, options=options)
    except Unsupported:
        assert driver == "direct"  # the file system of the tests may refuse it, and says so
        return
    assert report.driver == driver
    assert_same(ogds.restore(tmp_path / "item", options=options), tree)


def test_a_report_says_what_was_done(tmp_path):
    tree = large_tree()
    report = ogds.save(tmp_path / "item", tree)
    assert report.bytes_in == sum(leaf.nbytes for leaf in jax.tree.leaves(tree))
    assert report.bytes_out == (tmp_path / "item" / "p00000.ogds").stat().st_size
    assert report.bytes_out < report.bytes_in
    assert set(report.seconds) == {
        *("plan", "snapshot", "derive", "encode", "write", "sync", "commit"),
    }
    assert report.driver in ("direct", "buffered")
    assert (report.driver_reason is None) == (report.driver == "direct")
    assert sum(codec.bytes_out for codec in report.codecs.values()) < report.bytes_out
    assert sum(c.bytes_in for c in report.codecs.values()) + report.bytes_derived == report.bytes_in
    assert "leaves" in report.line()


def test_an_empty_tree_is_an_item(tmp_path):
    for number, tree in enumerate([{}, [], None, {"a": np.zeros((0, 3))}]):
        ogds.save(tmp_path / str(number), tree)
        assert_same(ogds.restore(tmp_path / str(number)), tree)
        assert ogds.verify(tmp_path / str(number)) == []


def test_a_published_item_is_never_overwritten(tmp_path):
    ogds.save(tmp_path / "item", {"a": 1})
    with pytest.raises(Exists, match="item"):
        ogds.save(tmp_path / "item", {"a": 2})
    assert ogds.restore(tmp_path / "item") == {"a": 1}


def test_leaves_that_cannot_be_saved_leave_no_file(tmp_path):
    with pytest.raises(Unsupported, match=r"'f'(.|\n)*'g/0'"):
        ogds.save(tmp_path / "item", {"f": print, "g": [object()], "ok": 1})
    assert not (tmp_path / "item").exists()


def test_an_item_may_be_moved_and_copied(tmp_path):
    tree = small_tree()
    ogds.save(tmp_path / "a" / "item", tree)
    (tmp_path / "a").rename(tmp_path / "b")
    assert_same(ogds.restore(tmp_path / "b" / "item"), tree)
    text = b"".join(files_of(tmp_path / "b" / "item").values())
    assert str(tmp_path).encode() not in text
    assert b"item" not in text


def test_changes_after_prepare_are_not_saved(tmp_path):
    array = np.arange(100_000, dtype=np.float32)
    donated = jnp.arange(200_000, dtype=jnp.float32)
    expected = {"n": array.copy(), "d": np.asarray(donated).copy()}
    custom = {"run": ["a"]}
    prepared = saving.prepare({"n": array, "d": donated}, custom_metadata=custom)
    array[:] = -1
    custom["run"].append("b")
    jax.jit(lambda x: x + 1, donate_argnums=0)(donated).block_until_ready()
    prepared.write(tmp_path)
    commit.publish(tmp_path)
    got = ogds.restore(tmp_path)
    np.testing.assert_array_equal(got["n"], expected["n"])
    np.testing.assert_array_equal(np.asarray(got["d"]), expected["d"])
    assert commit.read_manifest(tmp_path).custom_metadata == {"run": ["a"]}


@pytest.mark.slow
@settings(max_examples=5)
@given(st.data())
def test_restore_returns_identical_bits_for_any_sharding(tmp_path_factory, data):
    devices = np.array(jax.devices())
    shape = (8, 12)
    axes = data.draw(st.sampled_from([(8, 1), (4, 2), (2, 4), (2, 2)]))
    names = st.sampled_from(["x", "y", None])
    values = jnp.asarray(np.random.default_rng(0).standard_normal(shape), jnp.bfloat16)

    def draw_sharding():
        mesh = jax.sharding.Mesh(devices[: axes[0] * axes[1]].reshape(axes), ("x", "y"))
        first, second = data.draw(names), data.draw(names)
        spec = [first, second if second != first else None]
        if spec[1] is not None and shape[1] % axes["xy".index(spec[1])]:
            spec[1] = None
        return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))

    saved, wanted = draw_sharding(), draw_sharding()
    path = tmp_path_factory.mktemp("any") / "item"
    ogds.save(path, {"w": jax.device_put(values, saved)})
    target = {"w": jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=wanted)}
    got = ogds.restore(path, target)["w"]
    assert got.sharding == wanted
    assert np.asarray(got).tobytes() == np.asarray(values).tobytes()
    again = ogds.restore(path)["w"]
    assert again.sharding == saved
    assert np.asarray(again).tobytes() == np.asarray(values).tobytes()


@pytest.mark.slow
def test_a_pool_serves_many_saves(tmp_path):
    options = ogds.Options()
    with saving.make_pool(options) as pool:
        for number in range(2):
            saving.prepare(large_tree(), options=options).write(tmp_path, pool=pool)
            commit.publish(tmp_path)
            assert_same(ogds.restore(tmp_path), large_tree())
            (tmp_path / "manifest.json").unlink()
            assert os.listdir(tmp_path) != [], number


def test_a_directory_must_be_there_to_write_into(tmp_path):
    prepared = saving.prepare({"a": 1})
    with pytest.raises(IoError, match="Make the directory first") as raised:
        prepared.write(tmp_path / "nowhere")
    assert raised.value.errno == errno.ENOENT


@pytest.mark.parametrize("failing", ["find_derived", "open_driver", "storage_key", "make_pool"])
def test_a_save_that_fails_lets_go_of_the_snapshot(tmp_path, monkeypatch, failing):
    def fail(*_):
        raise OSError("refused")

    prepared = saving.prepare({"a": np.ones(30_000), "b": np.ones(30_000)})
    words = [weakref.ref(buffer) for buffer in prepared._snapshot.words]
    monkeypatch.setattr(saving, failing, fail)
    with pytest.raises(OSError, match="refused"):
        prepared.write(tmp_path)
    assert [word() for word in words] == [None, None]
