"""A sample says of which leaves no base need be read; it costs bytes where it is wrong, no bits."""

import jax.numpy as jnp
import numpy as np
import pytest

import orbax_gds as ogds
from orbax_gds import base_sample, delta_save, saving
from orbax_gds.stripe_writer import StripeWriter

pytestmark = pytest.mark.slow

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
    links, looks, arguments = [], [], StripeWriter._arguments

    def noted(writer, run):
        found = arguments(writer, run)
        *_, those, only_if_alike = found
        used = [rows.any(axis=1) & ~only_if_alike for _, rows in those]
        links.append(sum(int(each.sum()) for each in used))
        return found

    smaller = base_sample._smaller
    monkeypatch.setattr(StripeWriter, "_arguments", noted)
    monkeypatch.setattr(
        base_sample, "_smaller", lambda *args: looks.append(len(args[-1])) or smaller(*args)
    )
    for step in range(3):
        report = ogds.save(tmp_path / str(step), tree(step), options=OPTIONS)
    assert [(~each).sum() for each in gains] == [64, 64]
    assert sum(links) == 84 + 2 * 84  # of the weights and parts alone, over one link and over two
    assert looks == [7, 4] * 2  # the first time two of each leaf, then of the moments alone
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


@pytest.mark.parametrize("n_leaves", [1, 3, 4, 7, 30, 300])
def test_every_chunk_is_looked_after_and_small_leaves_of_a_dtype_go_together(n_leaves):
    leaves = [np.full((1024,), n, (np.float32, np.int16)[n % 2]) for n in range(n_leaves)]
    leaves += [np.zeros(80_000, np.int16), np.zeros(3, np.int16)]
    plan = saving.prepare(leaves, options=OPTIONS).plan
    groups = base_sample._groups(plan)
    dtypes = np.concatenate([run.chunks[:, 2] for run in plan.runs])
    assert np.array_equal(np.sort(np.concatenate(groups)), np.arange(plan.n_chunks))
    for group in groups:
        assert len(set(dtypes[group].tolist())) == 1
    short = [group for group in groups if len(group) < base_sample._LEAST_SHARED]
    assert len(short) <= 2  # what is left of each dtype
    assert 40 in [len(group) for group in groups]  # a leaf that is not small is alone
    assert len(groups) < 24


def test_of_very_few_chunks_none_is_coded_twice(tmp_path, gains, monkeypatch):
    monkeypatch.setattr(base_sample, "_smaller", None)
    for step in range(2):
        words = np.random.default_rng(step).standard_normal(31 * 1024).astype(np.float32)
        ogds.save(tmp_path / str(step), {"w": words}, options=OPTIONS)
    assert [each.tolist() for each in gains] == [[True] * 31]


@pytest.mark.parametrize("is_interleaved", [False, True])
def test_where_nothing_gains_a_small_part_is_coded_twice(tmp_path, monkeypatch, is_interleaved):
    looks, smaller = [], base_sample._smaller
    monkeypatch.setattr(
        base_sample, "_smaller", lambda *args: looks.append(len(args[-1])) or smaller(*args)
    )
    for step in range(2):
        rng = np.random.default_rng(step)
        words = [rng.standard_normal(5 * 1024).astype(np.float32) for _ in range(100)]
        if is_interleaved:
            words[1::2] = [each.astype(jnp.bfloat16) for each in words[1::2]]
        report = ogds.save(tmp_path / str(step), words, options=OPTIONS)
    assert report.delta_reason == "no chunk is smaller as a delta"
    (looked,) = looks  # once
    assert looked <= report.n_chunks / 14
    assert report.seconds.get("read base", 0) == 0


def test_of_a_leaf_what_gained_in_the_base_is_looked_at(tmp_path, gains):
    words = np.random.default_rng(0).standard_normal(N).astype(np.float32)
    for step in range(4):
        words = words.copy()
        words[1024:] = np.random.default_rng(step).standard_normal(N - 1024)
        words[step] += 1  # a chunk of 64, that no sample of two sees
        if step == 1:
            words[1024:] = np.random.default_rng(0).standard_normal(N - 1024)
        ogds.save(tmp_path / str(step), {"w": words, "b": np.float32(1)}, options=OPTIONS)
    assert [bool(each[0]) for each in gains] == [True, True, True]


def test_a_base_that_a_sample_cannot_read_is_left_to_the_save(tmp_path, gains):
    for step in range(2):
        report = ogds.save(tmp_path / str(step), tree(step), options=OPTIONS)
        path = tmp_path / "0" / "p00000.ogds"
        data = bytearray(path.read_bytes())
        for frame in range(len(data) // 64):
            if data[frame * 64 : frame * 64 + 4] == b"OGF1":
                data[frame * 64 + 40] ^= 1
        path.write_bytes(data)
    assert gains[0].all()
    assert "cannot be read" in report.delta_reason
    assert np.array_equal(ogds.restore(tmp_path / "1")["moments"], tree(1)["moments"])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_unchanged_chunks_that_no_sample_sees_are_found(tmp_path, gains, dtype):
    rng = np.random.default_rng(0)

    def words():
        drawn = rng.integers(-(2**31), 2**31, N) if dtype == "int32" else rng.standard_normal(N)
        return drawn.astype(dtype)

    leaf, still = words(), words()
    for step in range(4):
        new = words()
        n_kept = 7 * 4096 // new.itemsize  # chunks before the first of the sample
        new[:n_kept] = leaf[:n_kept]
        leaf = new
        report = ogds.save(tmp_path / str(step), {"w": leaf, "still": still}, options=OPTIONS)
        if step > 0:
            n_still = len(gains[-1]) // 2
            assert (~gains[-1]).sum() == n_still
            assert report.chunks["unchanged"].n_chunks == n_still + 7
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
