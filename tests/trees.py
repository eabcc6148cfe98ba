"""Trees that several tests save, and what it means to get one back."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np


def small_tree():
    rng = np.random.default_rng(0)
    return {
        "w": jnp.asarray(rng.standard_normal((8, 40)) * 0.02, jnp.bfloat16),
        "m": {"mu": jnp.asarray(np.zeros(300, np.float32)), "step": 7},
        "name": "run 1",
        "none": None,
    }


def large_tree():
    """More than one run of chunks, of several dtypes, with leaves of one and of many chunks."""
    rng = np.random.default_rng(1)
    normal = rng.standard_normal((1200, 1100), np.float32)
    tree = {
        "a": normal,
        "b": (normal * 0.02).astype(jnp.bfloat16),
        "c": [rng.integers(0, 255, 70_000, np.uint8), np.ones((300, 300), np.float32)],
        "d": {str(i): np.full(i + 1, i, np.int32) for i in range(200)},
    }
    return jax.device_put(tree)


def assert_same(got, expected):
    got_leaves, got_def = jax.tree.flatten(got)
    leaves, treedef = jax.tree.flatten(expected)
    assert got_def == treedef
    for one, other in zip(got_leaves, leaves, strict=True):
        assert type(one) is type(other)
        assert np.asarray(one).dtype == np.asarray(other).dtype
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def files_of(item: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(item.iterdir())}
