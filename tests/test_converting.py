"""A restore that casts or fills up holds a window of what is stored, and gives the same values."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from in_memory import assert_same_bits, mesh
from jax.sharding import NamedSharding, PartitionSpec

import orbax_gds as ogds
from orbax_gds import converting
from orbax_gds.item import Item

WINDOW = 1 << 10
DTYPES = [np.dtype(t) for t in (np.float32, np.int8, np.float16, ml_dtypes.bfloat16, np.bool_)]


@pytest.fixture
def held(monkeypatch):
    """Bytes that each read of a small window brought in."""
    sizes = []
    read = Item.read

    def noted(item, wants, buffers):
        sizes.append(sum(buffer.nbytes for buffer in buffers))
        read(item, wants, buffers)

    monkeypatch.setattr(Item, "read", noted)
    monkeypatch.setattr(converting, "_WINDOW_BYTES", WINDOW)
    return sizes


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=4), *[st.sampled_from(DTYPES)] * 2, st.integers(0, 3))
def test_any_shape_and_dtype_is_cast_as_numpy_would(tmp_path_factory, shape, stored, wanted, more):
    values = np.random.default_rng(len(shape)).integers(0, 100, shape).astype(stored)
    path = tmp_path_factory.mktemp("item") / "item"
    ogds.save(path, {"a": values, "b": jnp.asarray(values)})
    target = jax.ShapeDtypeStruct([n + more for n in shape], wanted)
    expected = np.zeros([n + more for n in shape], wanted)
    expected[tuple(map(slice, shape))] = values.astype(wanted)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(converting, "_WINDOW_BYTES", WINDOW)
        restored = ogds.restore(path, {"a": target, "b": target}, strict=False)
    for value in restored.values():
        assert value.dtype == wanted
        assert np.asarray(value).tobytes() == expected.tobytes()


def test_no_more_than_a_window_is_held_of_one_leaf_or_of_many(tmp_path, held):
    rng = np.random.default_rng(0)
    tree = {f"w{i}": rng.standard_normal(n, np.float32) for i, n in enumerate([2000, 3, 70, 50])}
    tree |= {"m": rng.standard_normal((3, 999), np.float32), "as_is": np.arange(5000)}
    ogds.save(tmp_path / "item", tree)
    targets = {
        name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype if name == "as_is" else jnp.bfloat16)
        for name, leaf in tree.items()
    }
    restored = ogds.restore(tmp_path / "item", targets)
    assert_same_bits(restored, {name: tree[name].astype(targets[name].dtype) for name in tree})
    assert held[0] == tree["as_is"].nbytes
    assert max(held[1:]) <= WINDOW
    assert sum(held[1:]) == sum(leaf.nbytes for leaf in tree.values()) - held[0]


def test_devices_get_their_pieces_of_what_was_cast(tmp_path, held):
    values = np.random.default_rng(0).standard_normal((16, 100), np.float32)
    ogds.save(tmp_path / "item", {"w": values})
    for spec in (PartitionSpec("x"), PartitionSpec(None, "x"), PartitionSpec()):
        sharding = NamedSharding(mesh(4), spec)
        target = jax.ShapeDtypeStruct(values.shape, jnp.bfloat16, sharding=sharding)
        restored = ogds.restore(tmp_path / "item", {"w": target})["w"]
        assert restored.sharding == sharding
        assert_same_bits(restored, jax.device_put(values.astype(jnp.bfloat16), sharding))
    assert max(held) <= WINDOW


PEAK = """
import sys
from pathlib import Path
import jax, jax.numpy as jnp, orbax_gds as ogds

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))

where = jax.sharding.SingleDeviceSharding(jax.devices()[0])
shape = [int(n) for n in sys.argv[2].split("x")]
names = ["w%d" % i for i in range(int(sys.argv[3]))]
target = {name: jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=where) for name in names}
jax.block_until_ready(jnp.ones(9) + 1)
before = peak()
tree = jax.block_until_ready(ogds.restore(sys.argv[1], target))
print((peak() - before - sum(array.nbytes for array in tree.values())) >> 20)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "n"), [((4096, 4096), 10), ((10, 4096, 4096), 1)])
def test_a_state_that_is_cast_takes_256_mib_more_than_the_result(tmp_path, shape, n):
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    options = ogds.Options(codec="off", derive=False)
    ogds.save(tmp_path / "item", {f"w{i}": values for i in range(n)}, options=options)
    arguments = [str(tmp_path / "item"), "x".join(map(str, shape)), str(n)]
    done = subprocess.run(
        [sys.executable, "-c", PEAK, *arguments],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout.split()[-1]) <= 256, done.stdout
