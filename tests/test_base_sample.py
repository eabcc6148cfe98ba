"""A sample says of which leaves no base need be read; it costs bytes where it is wrong, no bits."""

import numpy as np
import pytest

import orbax_gds as ogds
from orbax_gds import base_sample, delta_save, saving
from orbax_gds.base_step import BaseStep

OPTIONS = ogds.Options(delta=ogds.EveryN(100), chunk_bytes=4096, workers=2, derive=False)
N = 64 << 10  # words of a leaf: 64 chunks


def tree(step: int) -> dict:
    """Weights of which a few change, moments that all do, and many leaves of a chunk each."""
    rng = np.random.default_rng(step)
    weights = np.random.default_rng(99).standard_normal(N).astype(np.float32)
    weights[:: 97 + step] += np.float32(0.1)
    parts = np.random.default_rng(98).standard_normal((20, 1024)).astype(np.float32)
    return {
        "moments": rng.standard_normal(N).astype(np.float32),
        "parts": list(parts),
        "weights": weights,
    }


@pytest.fixture
def gains(monkeypatch):
    """What the samples of a test said."""
    said, sample = [], base_sample.chunks_that_gain

    def noted(*args):
        said.append(sample(*args))
        return said[-1]

    monkeypatch.setattr(delta_save, "chunks_that_gain", noted)
    return said


def test_no_base_is_read_for_leaves_that_gain_nothing(tmp_path, gains, monkeypatch):
    links, links_of = [], BaseStep.links_of

    def noted(base, run):
        found = links_of(base, run)
        used = [records.any(axis=1) & (records[:, 28:] == 0).all(axis=1) for _, records in found]
        links.append(sum(int(each.sum()) for each in used))
        return found

    monkeypatch.setattr(BaseStep, "links_of", noted)
    for step in range(3):
        report = ogds.save(tmp_path / str(step), tree(step), options=OPTIONS)
    assert [(~each).sum() for each in gains] == [64, 64]
    assert sum(links) == 84 + 2 * 84  # of the weights and parts alone, over one link and over two
    assert report.chunks["direct"].n_chunks >= 64
    assert report.chunks["delta"].n_chunks == 64
    assert report.chunks["unchanged"].n_chunks == 20
    for step in range(3):
        got = ogds.restore(tmp_path / str(step))
        for name in ("moments", "weights"):
            assert got[name].tobytes() == tree(step)[name].tobytes()
        assert np.array_equal(got["parts"], tree(step)["parts"])
        assert ogds.verify(tmp_path / str(step)) == []


def test_where_no_leaf_gains_no_base_is_read_and_the_step_is_full(tmp_path):
    for step in range(2):
        words = np.random.default_rng(step).standard_normal((3, N)).astype(np.float32)
        report = ogds.save(tmp_path / str(step), list(words), options=OPTIONS)
    assert report.delta_reason == "no chunk is smaller as a delta"
    assert "read base" not in report.seconds
    assert not (tmp_path / "1" / "base").exists()
    assert np.array_equal(ogds.restore(tmp_path / "1"), words)


def test_a_leaf_of_which_one_part_changes_a_lot_gains(tmp_path, gains):
    words = np.random.default_rng(0).standard_normal(N).astype(np.float32)
    ogds.save(tmp_path / "0", {"w": words}, options=OPTIONS)
    words[: N // 2] = np.random.default_rng(1).standard_normal(N // 2)
    report = ogds.save(tmp_path / "1", {"w": words}, options=OPTIONS)
    assert gains[0].all()
    assert report.chunks["unchanged"].n_chunks == 32
    assert report.chunks["direct"].n_chunks == 32


@pytest.mark.parametrize("n_leaves", [1, 7, 8, 9, 30])
def test_every_chunk_is_in_one_group_and_small_leaves_go_together(tmp_path, n_leaves):
    leaves = [np.full((1024,), n, np.float32) for n in range(n_leaves)]
    leaves += [np.zeros(30_000, np.int16), np.zeros(3, np.int16)]
    plan = saving.prepare(leaves, options=OPTIONS).plan
    groups = list(base_sample._groups(plan))
    assert [start for start, _ in groups] == [0, *(end for _, end in groups[:-1])]
    assert groups[-1][1] == plan.n_chunks
    dtypes = np.concatenate([run.chunks[:, 2] for run in plan.runs])
    for start, end in groups:
        assert len(set(dtypes[start:end].tolist())) == 1
        longer = end - start >= base_sample._LEAST_CHUNKS
        assert longer or end == plan.n_chunks or dtypes[end] != dtypes[start]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_unchanged_chunks_that_no_sample_sees_are_found(tmp_path, gains, dtype):
    rng = np.random.default_rng(0)

    def words():
        drawn = rng.integers(-(2**31), 2**31, N) if dtype == "int32" else rng.standard_normal(N)
        return drawn.astype(dtype)

    leaf, still = words(), words()
    for step in range(4):
        new = words()
        new[: 5 * 2048] = leaf[: 5 * 2048]  # before the first chunk of the sample
        leaf = new
        report = ogds.save(tmp_path / str(step), {"w": leaf, "still": still}, options=OPTIONS)
        if step > 0:
            n_still = len(gains[-1]) // 2
            assert (~gains[-1]).sum() == n_still
            assert report.chunks["unchanged"].n_chunks == n_still + 5 * 2048 * n_still // N
        got = ogds.restore(tmp_path / str(step))
        assert got["w"].tobytes() == leaf.tobytes()
        assert got["still"].tobytes() == still.tobytes()
        assert ogds.verify(tmp_path / str(step)) == []


def test_unchanged_chunks_are_found_where_no_sample_gains(tmp_path, gains):
    words = np.random.default_rng(0).standard_normal(N).astype(np.float32)
    ogds.save(tmp_path / "0", {"w": words}, options=OPTIONS)
    words[5 * 1024 :] = np.random.default_rng(1).standard_normal(N - 5 * 1024)
    words[:5] = 0  # of the first chunk, so that four are left
    report = ogds.save(tmp_path / "1", {"w": words}, options=OPTIONS)
    assert not gains[0].any()
    assert {kind: chunks.n_chunks for kind, chunks in report.chunks.items()} == {
        "unchanged": 4,
        "delta": 0,
        "direct": 60,
    }
    assert np.array_equal(ogds.restore(tmp_path / "1")["w"], words)
    assert ogds.verify(tmp_path / "1") == []
