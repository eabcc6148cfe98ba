"""Trees of many dtypes that change from step to step, as NumPy arrays, and how they are saved."""

from typing import Any

import jax
import ml_dtypes
import numpy as np
from in_memory import mesh
from jax.sharding import NamedSharding, PartitionSpec

Tree = dict[str, Any]

SPREAD = NamedSharding(mesh(8), PartitionSpec("x"))
N_MASTER = 17_000  # above 64 KiB, so that a leaf that equals it is not stored
# Leaves by name; "jax" and "spread" ones are saved as jax arrays on one and on eight devices.
LEAVES: dict[str, tuple[Any, tuple[int, ...], str]] = {
    "master": (np.float32, (N_MASTER,), "jax"),
    "average": (np.float32, (N_MASTER,), "jax"),
    "params": (ml_dtypes.bfloat16, (8, 900), "spread"),
    "half": (np.float16, (3000,), "numpy"),
    "eight": (ml_dtypes.float8_e4m3fn, (5000,), "jax"),
    "double": (np.float64, (700,), "numpy"),
    "wave": (np.complex64, (600,), "jax"),
    "ids": (np.int32, (1500,), "numpy"),
    "mask": (np.bool_, (4097,), "jax"),
    "tiny": (np.float32, (3,), "jax"),
    "key": (np.uint32, (2,), "key"),
}
WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
CHANGES = ("few", "sparse", "near", "all", "zeros", "nan", "copied")
STRUCTURE = ("removed", "reshaped", "retyped", "moved", "added")


def first_tree(seed: int) -> Tree:
    rng = np.random.default_rng(seed)
    tree: Tree = {"step": 0, "name": f"run {seed}", "none": None}
    for name, (dtype, shape, _) in LEAVES.items():
        values = rng.standard_normal(shape) * 0.02
        tree[name] = (np.abs(values * 1e5) if dtype in (np.int32, np.uint32) else values).astype(
            dtype
        )
    tree["average"] = tree["master"].copy()
    return tree


def words_of(array: np.ndarray) -> np.ndarray:
    """A writable view of an array as words; of complex numbers, of their halves."""
    width = array.itemsize // 2 if array.dtype.kind == "c" else array.itemsize
    return array.reshape(-1).view(WORDS[width])


def change(tree: Tree, name: str, kind: str, seed: int) -> Tree:
    """Return the tree with one leaf changed; a leaf that is not there is made anew."""
    rng = np.random.default_rng(seed)
    if name not in tree:
        dtype, shape, _ = LEAVES[name]
        return tree | {name: np.zeros(shape, dtype)}
    array = tree[name].copy()
    words = words_of(array)
    some = rng.integers(0, words.size, 3 if kind == "few" else 1 + words.size // 100)
    noise = rng.integers(0, 256, words.nbytes, np.uint8).view(words.dtype)
    match kind:
        case "few":
            words[some] += words.dtype.type(1)
        case "sparse":
            words[some] = noise[some]
        case "near":
            words += noise & words.dtype.type(3)
        case "all":
            words[:] = noise
        case "zeros":
            words[: words.size // 2] = 0
        case "nan":
            words[::5] |= words.dtype.type((1 << (8 * words.itemsize - 1)) - 1) - (noise[::5] & 7)
        case "copied":  # of tied leaves one is not stored
            other = tree.get("master" if name == "average" else "average")
            if name in ("average", "master") and other is not None and other.shape == array.shape:
                array = other.view(array.dtype).copy()
    if array.dtype == np.bool_:
        words &= 1
    return tree | {name: array}


def restructure(tree: Tree, name: str, kind: str) -> Tree:
    """Return the tree with another structure; the words of its leaves stay."""
    if name not in tree:
        return change(tree, name, "few", 0)
    array = tree[name]
    match kind:
        case "removed":
            return {key: value for key, value in tree.items() if key != name}
        case "reshaped" if array.size % 2 == 0 and name not in ("key", "params"):
            shape = (2, array.size // 2) if array.ndim == 1 else (array.size,)
            return tree | {name: array.reshape(shape)}
        case "retyped" if array.dtype in (np.float32, np.int32) and name != "key":
            return tree | {name: array.view(np.int32 if array.dtype == np.float32 else np.float32)}
        case "moved":  # to one device, or back
            return tree | {"together": not tree.get("together", False)}
    return tree | {"more": np.arange(5000, dtype=np.float32) + len(tree)}


def to_save(tree: Tree) -> Tree:
    """Return what training would hold: jax arrays, NumPy arrays, keys and scalars."""
    made = dict(tree)
    for name, (_, _, place) in LEAVES.items():
        if name not in tree:
            continue
        if place == "key":
            made[name] = jax.random.wrap_key_data(jax.numpy.asarray(tree[name]))
        elif place == "spread" and not tree.get("together"):
            made[name] = jax.device_put(tree[name], SPREAD)
        elif place != "numpy":
            made[name] = jax.device_put(tree[name])
    return made


def assert_holds(found: Tree, tree: Tree) -> None:
    assert found.keys() == tree.keys()
    for name, expected in tree.items():
        value = found[name]
        if name == "key":
            value = jax.random.key_data(value)
        if not isinstance(expected, np.ndarray):
            assert type(value) is type(expected)
            assert value == expected, name
            continue
        value = np.asarray(value)
        assert (value.dtype, value.shape) == (expected.dtype, expected.shape), name
        assert value.tobytes() == expected.tobytes(), name
