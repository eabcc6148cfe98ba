"""A restore gives what was asked for, or names what differs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from trees import assert_same

import orbax_gds as ogds
from orbax_gds import restoring
from orbax_gds.errors import (
    Mismatch,
    NotFound,
)


def test_structures_that_differ_are_named(tmp_path):
    ogds.save(tmp_path / "item", {"a": 1, "b": {"c": 2}})
    with pytest.raises(Mismatch, match=r"Not stored: 'z'. Stored but not asked for: 'b/c'"):
        ogds.restore(tmp_path / "item", {"a": 0, "z": 0})
    assert ogds.restore(tmp_path / "item", {"a": 0}, partial=True) == {"a": 1}
    with pytest.raises(Mismatch, match="'z'"):
        ogds.restore(tmp_path / "item", {"z": 0}, partial=True)


def test_a_shape_that_differs_is_named(tmp_path):
    ogds.save(tmp_path / "item", {"w": jnp.ones((2, 3))})
    with pytest.raises(Mismatch, match=r"'w'.*2.*3"):
        ogds.restore(tmp_path / "item", {"w": jnp.ones((3, 2))})


def test_keys_that_read_alike_stay_apart(tmp_path):
    tree = {"a": {"b": jnp.ones(3)}, "a.b": jnp.zeros(3), "a/b": 1, "": 2, ".": 3, "..": 4}
    tree |= {"x" * 300: 5, "é\u2028": 6, "nul\0": 7}
    ogds.save(tmp_path / "item", tree)
    assert_same(ogds.restore(tmp_path / "item"), tree)
    assert_same(ogds.restore(tmp_path / "item", tree), tree)
    numbers = {0: jnp.ones(2), 1: {"0": 5}}
    ogds.save(tmp_path / "numbers", numbers)
    assert_same(ogds.restore(tmp_path / "numbers"), numbers)


def test_a_dict_may_ask_for_what_another_container_saved(tmp_path):
    ogds.save(tmp_path / "item", {"a": (1, 2)})
    assert ogds.restore(tmp_path / "item", {"a": {"0": 0, "1": 0}}) == {"a": {"0": 1, "1": 2}}


def test_chosen_leaves_are_restored_alone(tmp_path):
    ogds.save(tmp_path / "item", {"a": {"b": 1, "c": 2}, "ab": 3, "d": [4, 5]})
    path = tmp_path / "item"
    assert ogds.restore(path, leaves=["a"]) == {"a": {"b": 1, "c": 2}}
    assert ogds.restore(path, leaves=["a/c", (("k", "ab"),)]) == {"a": {"c": 2}, "ab": 3}
    assert ogds.restore(path, leaves="a") == {"a": {"b": 1, "c": 2}}
    with pytest.raises(NotFound, match="'nowhere'"):
        ogds.restore(path, leaves=["nowhere"])


def test_words_are_decoded_into_the_memory_that_jax_then_takes(tmp_path, monkeypatch):
    arrays = [np.full(n + 4 * i, i, np.uint8) for n in (60_001, 5) for i in range(9)]
    tree = {f"{i:02}": jax.device_put(array) for i, array in enumerate(arrays)}
    tree |= {f"n{i}": np.full(100 + i, i, np.uint8) for i in range(4)}
    ogds.save(tmp_path / "item", tree)
    given = []
    make = restoring.aligned_pieces
    monkeypatch.setattr(restoring, "aligned_pieces", lambda *a: given.extend(make(*a)) or given)
    got = ogds.restore(tmp_path / "item")
    assert_same(got, tree)
    places = [
        value.ctypes.data if isinstance(value, np.ndarray) else value.unsafe_buffer_pointer()
        for value in got.values()
    ]
    assert set(places) == {piece.ctypes.data for piece in given}
    assert [place % 64 for place in places] == [0] * len(tree)
