"""Lazy leaves read what NumPy would select, and little more."""

import numpy as np
import pytest

import orbax_gds as ogds
from orbax_gds import item as items
from orbax_gds.errors import IoError


def test_a_lazy_leaf_reads_what_numpy_would_select(tmp_path):
    array = np.arange(60_000, dtype=np.float32).reshape(30, 20, 100)
    ogds.save(
        tmp_path / "item", {"w": array, "s": np.float32(2)}, options=ogds.Options(chunk_bytes=4096)
    )
    with ogds.open(tmp_path / "item") as item:
        assert list(item) == ["s", "w"]
        leaf = item["w"]
        assert (leaf.shape, leaf.dtype) == (array.shape, array.dtype)
        for index in [
            ...,
            3,
            -1,
            np.s_[2:5],
            np.s_[::-2, 1],
            np.s_[..., 7],
            np.s_[5:5],
            np.s_[1, ..., ::3],
        ]:
            np.testing.assert_array_equal(leaf[index], array[index])
        np.testing.assert_array_equal(np.asarray(leaf), array)
        assert item["s"][()] == 2
        with pytest.raises(IndexError):
            leaf[30]
        with pytest.raises(KeyError, match="nowhere"):
            item["nowhere"]


@pytest.mark.parametrize("index", [True, (0, False), np.True_, [0], 1.0])
def test_indices_that_numpy_takes_otherwise_are_refused(tmp_path, index):
    ogds.save(tmp_path / "item", {"w": np.zeros((3, 3))})
    with ogds.open(tmp_path / "item") as item, pytest.raises(TypeError, match="integers"):
        item["w"][index]


def test_what_is_read_may_be_taken_by_jax_without_a_copy(tmp_path):
    ogds.save(tmp_path / "item", {"w": np.arange(1000)})
    with ogds.open(tmp_path / "item") as item:
        assert item["w"][...].ctypes.data % 64 == 0


def test_reading_a_row_reads_little_more_than_the_row(tmp_path):
    array = np.random.default_rng(0).integers(0, 255, (1000, 4096), np.uint8)
    ogds.save(
        tmp_path / "item", {"w": array, "x": array}, options=ogds.Options(chunk_bytes="16KiB")
    )
    with ogds.open(tmp_path / "item") as item:
        np.testing.assert_array_equal(item["w"][500], array[500])
        assert item.item.bytes_read < 20_000


def test_an_item_that_is_closed_while_it_is_read_stays_open_until_then(tmp_path, monkeypatch):
    array = np.arange(3000)
    ogds.save(tmp_path / "item", {"w": array})
    item, run_tasks = ogds.open(tmp_path / "item"), items.run_tasks

    def close_first(*arguments):
        item.close()
        run_tasks(*arguments)

    monkeypatch.setattr(items, "run_tasks", close_first)
    file = item.item.stripes[0].file
    np.testing.assert_array_equal(item["w"], array)
    assert file.descriptor is None
    with pytest.raises(IoError, match="an item that was closed"):
        item["w"][0]
