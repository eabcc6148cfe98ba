"""Typed key paths of deep trees: neither written, read nor rebuilt beyond their limit."""

import jax
import pytest

from orbax_gds import leaves, paths
from orbax_gds.errors import Unsupported
from orbax_gds.manifest import MAX_PATH_KEYS, LeafSpec


def nested(depth):
    tree = 1
    for _ in range(depth):
        tree = {"k": tree}
    return tree


def test_the_deepest_path_is_rebuilt_without_recursion():
    spec = LeafSpec(path=(("k", "k"),) * MAX_PATH_KEYS, type="int", dtype="int64", shape=())
    tree = paths.unflatten([spec], [7])
    for _ in range(MAX_PATH_KEYS):
        (tree,) = tree.values()
    assert tree == 7


def test_a_path_beyond_the_limit_is_refused_before_anything_is_written(monkeypatch):
    monkeypatch.setattr(paths, "MAX_PATH_KEYS", 20)
    leaves.flatten(nested(20))
    with pytest.raises(Unsupported, match="lies 21 keys deep"):
        leaves.flatten(nested(21))


def test_a_tree_too_deep_for_jax_is_refused(monkeypatch):
    # jax itself is not asked: once it has run into its limit it does not recover.
    def too_deep(*_, **__):
        try:
            raise RecursionError("maximum recursion depth exceeded in flatten")
        except RecursionError as error:
            raise SystemError("returned a result with an exception set") from error

    monkeypatch.setattr(jax.tree_util, "tree_flatten_with_path", too_deep)
    with pytest.raises(Unsupported, match="nested too deeply"):
        leaves.flatten({"a": 1})
