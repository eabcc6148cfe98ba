"""The `codec` benchmark: its data, its rows, its bars and its picture."""

import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

sys.path.append(str(Path(__file__).parents[1]))  # last, so that it hides no installed package

from benchmarks import codec, codec_bars, streams, whole_state
from benchmarks.pareto import Point, frontier, pareto_svg
from benchmarks.result import RESULTS_DIRECTORY, Row, find_row, read_result
from benchmarks.state import read_leaves, train_state
from benchmarks.weights import as_bfloat16, as_float8, gaussian, read_tensors
from orbax_gds.bench.coders import BytesCoder, Coder, FrameCoder
from orbax_gds.bench.contenders import CONTENDERS, OURS, Contender

OWN = Contender(name=OURS, make=lambda arrays, n_threads: FrameCoder(arrays, n_threads=n_threads))
ABSENT = Contender(name="absent", package="no_such_package", make=OWN.make)
FLOAT8 = ["float8_e4m3fn", "float8_e5m2"]


def plain(arrays: list[np.ndarray], n_threads: int) -> Coder:
    """A peer that copies."""
    return BytesCoder(arrays, bytes, bytes)


PLAIN = Contender(name="zipnn", package="numpy", make=plain)


def test_codec_samples_every_column_for_each_repetition_and_thread_count():
    tensors = [as_bfloat16(gaussian(30_000, seed=seed)).reshape(-1, 100) for seed in range(3)]
    ours, peer = codec.compare(
        "gaussian bf16", tensors, repetitions=2, contenders=[OWN, PLAIN], sweep_bytes=4096
    )
    assert ours.skipped is None
    assert ours.samples["ratio"][0] > 1.4
    for table in codec.TABLES:
        for column in table.columns:
            assert len(ours.samples[column.quantity]) == (1 if column.title == "ratio" else 2)
    assert ours.samples["encode_x_zipnn_2t"] == [
        own / other
        for own, other in zip(
            ours.samples["encode_gbps_2t"], peer.samples["encode_gbps_2t"], strict=True
        )
    ]


def test_small_data_is_coded_in_copies_apart_with_the_ratio_of_one():
    tensors = [gaussian(20_000, seed=0).reshape(-1, 200), gaussian(17_000, seed=1)]
    seen: list[list[np.ndarray]] = []

    def remember(arrays: list[np.ndarray], n_threads: int) -> Coder:
        seen.append(arrays)
        return plain(arrays, n_threads)

    peer = Contender(name="peer", package="numpy", make=remember)
    ours, other = codec.compare(
        "g", tensors, repetitions=1, contenders=[OWN, peer], working_set_bytes=400_000
    )
    assert (ours.samples["copies"], ours.samples["copies_2t"]) == ([3.0], [6.0])
    assert other.samples["ratio"] == [1.0]
    # Each copy by itself, once to warm up and once to time, on one and on two threads.
    assert [len(arrays) for arrays in seen] == [2] * (2 * 3 + 2 * 6)
    addresses = {array.ctypes.data for arrays in seen[:3] for array in arrays}
    assert len(addresses) == 6


def test_codec_row_of_an_absent_peer_says_why():
    values = gaussian(10, seed=0)
    (row,) = codec.compare("tiny", [values], repetitions=1, contenders=[ABSENT], sweep_bytes=8)
    assert row.skipped == "no_such_package is not installed (extra [bench])"
    assert row.samples == {}


def test_codec_refuses_a_coder_that_changes_a_bit():
    class Wrong(FrameCoder):
        def decoded(self) -> np.ndarray:
            return super().decoded() ^ np.uint8(1)

    wrong = Contender(name="wrong", make=lambda arrays, n_threads: Wrong(arrays))
    with pytest.raises(RuntimeError, match="tiny: wrong: the decoded bits differ"):
        codec.compare("tiny", [gaussian(10, seed=0)], repetitions=1, contenders=[wrong])


@pytest.mark.parametrize("dtype", FLOAT8)
@given(
    hnp.arrays(np.float32, st.integers(1, 50), elements=st.floats(-(2.0**100), 2.0**100, width=32))
)
def test_float8_cast_is_finite_and_reaches_the_greatest_of_the_dtype(
    dtype: str, values: np.ndarray
):
    cast = as_float8(values, dtype)
    found = cast.astype(np.float32)
    assert np.isfinite(found).all()
    greatest = float(ml_dtypes.finfo(cast.dtype).max)
    assert np.abs(found).max() == (greatest if np.abs(values).max() > 0 else 0)


@pytest.mark.parametrize("dtype", FLOAT8)
def test_float8_cast_of_zeros_is_zeros(dtype: str):
    assert as_float8(np.zeros((2, 3), np.float32), dtype).tobytes() == bytes(6)


def test_read_tensors_takes_only_the_fp32_tensors_of_a_safetensors_file(tmp_path: Path):
    values = np.arange(6, dtype=np.float32)
    entries = {
        "b": {"dtype": "F32", "shape": [2], "data_offsets": [24, 32]},
        "ids": {"dtype": "I64", "shape": [1], "data_offsets": [16, 24]},
        "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
        "__metadata__": {"format": "pt"},
    }
    header = msgspec.json.encode(entries)
    content = values[:4].tobytes() + bytes(8) + values[4:].tobytes()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + content)
    tensors = read_tensors(path)
    assert list(tensors) == ["a", "b"]
    assert tensors["a"].tolist() == [[0, 1], [2, 3]]
    assert tensors["b"].tolist() == [4, 5]


def test_first_bytes_cuts_the_last_tensor_after_a_whole_row():
    tensors = (np.zeros(3, np.float32), np.zeros((10, 5), np.float32), np.zeros(2, np.float32))
    assert [t.shape for t in streams.first_bytes(tensors, 12 + 2 * 20 + 19)] == [(3,), (2, 5)]
    assert [t.shape for t in streams.first_bytes(tensors, 12 + 200 + 4)] == [(3,), (10, 5), (1,)]
    assert [t.shape for t in streams.first_bytes(tensors, 12)] == [(3,)]


def state_of(embedding: np.ndarray) -> dict[str, dict[str, np.ndarray]]:
    dense = np.ones((40, 10), np.float32)
    leaves = {"embed": embedding, "up": dense, "scale": np.zeros(5, np.float32)}
    params = {name: as_bfloat16(leaf) for name, leaf in leaves.items()}
    return {"params_bf16": params, **{kind: leaves for kind in ("master_f32", "mu_f32", "nu_f32")}}


def test_leaves_with_zero_rows_stand_apart_from_dense_ones():
    embedding = np.ones((100, 7), np.float32)
    embedding[::3] = 0
    found, origin = streams.train_streams(state_of(embedding))
    by_name = {stream.name: stream for stream in found}
    assert tuple(by_name) == streams.TRAIN
    assert [t.shape for t in by_name[streams.MU_ROWS].tensors] == [(100, 7)]
    assert [t.shape for t in by_name[streams.NU_DENSE].tensors] == [(40, 10), (5,)]
    assert [t.dtype.name for t in by_name[streams.MU_BF16].tensors] == ["bfloat16"] * 2
    assert len(by_name[streams.MASTER].tensors) == 3
    assert origin == "rows of zeros: real, in embed (34%)"


def test_a_state_without_zero_rows_gets_the_same_ones_in_both_moments():
    found, origin = streams.train_streams(state_of(np.ones((100, 7), np.float32)))
    by_name = {stream.name: stream for stream in found}
    (mu,), (nu,) = by_name[streams.MU_ROWS].tensors, by_name[streams.NU_ROWS].tensors
    assert streams.zero_row_share(mu) == 0.5
    assert np.array_equal(mu, nu)
    assert len(by_name[streams.MU_DENSE].tensors) == 3
    assert "made, half of the rows of embed" in origin


@pytest.fixture
def state_file(tmp_path: Path) -> Path:
    """A train state whose params are the rounded master."""
    path = tmp_path / "state.npz"
    master = gaussian(60_000, seed=5).reshape(-1, 100)
    np.savez(
        path,
        **{
            "params_bf16/w": as_bfloat16(master).view(np.uint16),
            "master_f32/w": master.view(np.uint32),
            "mu_f32/w": gaussian(60_000, seed=6).reshape(-1, 100).view(np.uint32),
            "nu_f32/w": gaussian(60_000, seed=7).reshape(-1, 100).view(np.uint32),
        },
    )
    return path


def test_a_given_state_is_read_leaf_by_leaf(state_file: Path, tmp_path: Path):
    path, origin = train_state(state_file, tmp_path / "absent")
    kinds = read_leaves(path)
    assert origin == "given, state.npz"
    assert kinds["params_bf16"]["w"].dtype == ml_dtypes.bfloat16
    assert {leaf.shape for leaves in kinds.values() for leaf in leaves.values()} == {(600, 100)}


def test_whole_state_counts_the_bytes_of_the_files(state_file: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(whole_state, "CONTENDERS", [OWN, ABSENT, PLAIN])
    rows, note = whole_state.whole_state_rows(read_leaves(state_file), tmp_path)
    by_name = {row.name: row for row in rows}
    assert by_name["absent"].skipped is not None
    assert by_name["zipnn"].samples["ratio"] == [1.0]
    assert by_name["zipnn"].samples["coded_bytes"] == [14 * 60_000]
    assert 0.8 < by_name[f"{OURS} codec off"].samples["ratio"][0] < 1.2
    assert by_name[OURS].samples["ratio"][0] > by_name[f"{OURS} codec off"].samples["ratio"][0]
    assert "codec became" in note
    assert list(tmp_path.iterdir()) == [state_file]


def measured_rows() -> Iterator[Row]:
    """A row for every codec and array that the bars name, with figures that meet every bar."""
    for data in (*streams.MINILM, *streams.TRAIN, *streams.RANDOM, codec_bars.WHOLE_STATE):
        for name, ratio in ((OURS, 3.0), (codec_bars.MAX, 3.0), ("zipnn", 2.0)):
            samples = {"ratio": [ratio], "crc_gbps": [20.0]}
            for end in ("", "_2t"):
                for way in ("encode", "decode"):
                    samples[f"{way}_x_memcpy{end}"] = [0.9, 0.7, 0.8]
                    samples[f"{way}_x_zipnn{end}"] = [6.0]
                    samples[f"{way}_gbps{end}"] = [4.0]
                samples[f"memcpy_gbps{end}"] = [5.0]
            yield Row(group=data, name=name, samples=samples)
        yield Row(group=data, name=codec_bars.BLOSC2, samples={"ratio": [2.0]})


def test_every_bar_is_judged_and_named_once():
    bars = codec_bars.codec_bars(list(measured_rows()))
    assert [bar.name for bar in bars if bar.verdict != "pass"] == []
    assert len({bar.name for bar in bars}) == len(bars)
    unmeasured = codec_bars.codec_bars([])
    assert [bar.name for bar in unmeasured] == [bar.name for bar in bars]
    assert {bar.verdict for bar in unmeasured} == {"not measured"}


def test_a_row_below_its_bar_fails_it():
    rows = [row for row in measured_rows() if (row.group, row.name) != (streams.NU_ROWS, OURS)]
    samples = {"ratio": [2.05], "encode_x_memcpy": [0.37], "decode_x_memcpy": [0.48]}
    rows.append(Row(group=streams.NU_ROWS, name=OURS, samples=samples))
    failed = [bar.name for bar in codec_bars.codec_bars(rows) if bar.verdict != "pass"]
    assert failed == [
        f"{streams.NU_ROWS}: ratio / zipnn's",
        f"{streams.NU_ROWS}: ratio / blosc2 zstd-1 shuffle's",
        f"{streams.NU_ROWS}: encode, x memcpy",
    ]


def test_speed_without_the_checksum_takes_its_time_off():
    # 1 GB takes 0.25 s and becomes 0.5 GB, whose checksum takes 0.05 s; a memcpy takes 0.2 s.
    samples = {"ratio": [2.0], "crc_gbps": [10.0], "encode_gbps": [4.0], "memcpy_gbps": [5.0]}
    row = Row(group="g", name=OURS, samples=samples)
    assert codec_bars.without_checksum(row, "encode") == pytest.approx(1.0)
    assert codec_bars.without_checksum(None, "encode") is None


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1))
def test_the_frontier_is_what_nothing_beats_in_both(pairs: list[tuple[int, int]]):
    points = [Point(label="", speed=float(s), ratio=float(r)) for s, r in pairs]
    best = {(p.speed, p.ratio) for p in frontier(points)}
    expected = {
        (s, r)
        for s, r in pairs
        if not any((t, q) != (s, r) and t >= s and q >= r for t, q in pairs)
    }
    assert best == expected


def test_the_picture_is_well_formed_and_shows_every_codec_of_a_data_set():
    result = read_result(RESULTS_DIRECTORY / "codec.json")
    rows = [row for row in measured_rows() if row.group == streams.MINILM_BF16]
    rows.append(Row(group="unmeasured <&>", name=OURS, skipped="absent"))
    svg = ElementTree.fromstring(pareto_svg(msgspec.structs.replace(result, rows=rows)))
    texts = [element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")]
    for label in ("auto", "max", "zipnn", "memcpy"):
        assert texts.count(label) == 2  # encode and decode
    assert f"{streams.MINILM_BF16}: decode" in texts


def test_every_contender_has_a_name_of_its_own():
    assert len({one.name for one in CONTENDERS}) == len(CONTENDERS)
    assert {OURS, codec_bars.MAX, codec_bars.ZIPNN, codec_bars.BLOSC2} <= {
        one.name for one in CONTENDERS
    }


def test_the_codec_table_of_the_readme_is_what_was_recorded():
    recorded = read_result(RESULTS_DIRECTORY / "codec.json").rows
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    lines = re.findall(r"^\| (\w+ [^|:]+): ([^|]+) \| (\S+) \| (\S+) \| (\S+) \|$", readme, re.M)
    assert len(lines) > 5
    for group, name, *figures in lines:
        row = find_row(recorded, group=group, name=name)
        assert row is not None, (group, name)
        medians = [row.median(q) for q in ("ratio", "encode_x_memcpy", "decode_x_memcpy")]
        expected = [f"{medians[0]:.3f}", f"{medians[1]:.2f}", f"{medians[2]:.2f}"]
        assert figures == expected, (group, name)
