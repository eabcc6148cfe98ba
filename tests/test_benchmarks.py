"""The benchmarks run, say what they could not measure, and show what was recorded."""

import argparse
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parents[1]))  # last, so that it hides no installed package

from benchmarks import cells, codec, run, save, save_cell
from benchmarks.machine import machine_card
from benchmarks.methods import METHODS
from benchmarks.process import cost
from benchmarks.result import (
    RESULTS_DIRECTORY,
    Bar,
    Result,
    Row,
    make_bar,
    read_result,
    with_reasons,
    write_result,
)
from benchmarks.save_spec import Answer, Spec
from benchmarks.table import Column, Table, bars_markdown, cell_text, table_markdown
from benchmarks.tree import BFLOAT16, fill, plan_leaves, read_state
from benchmarks.weights import gaussian
from orbax_gds.bench.coders import FrameCoder
from orbax_gds.bench.contenders import OURS

ROOT = Path(__file__).parents[1]
TINY_BYTES, TINY_LEAVES = 200_000, 10


@pytest.fixture
def state_file(tmp_path: Path) -> Path:
    """A train state of 5,000 words a kind, in two leaves."""
    path = tmp_path / "state.npz"
    words = np.arange(5_000)
    arrays = {}
    for kind in ("params_bf16", "master_f32", "mu_f32", "nu_f32"):
        word = np.uint16 if kind.endswith("bf16") else np.uint32
        arrays |= {f"{kind}/a": words[:2_000].astype(word), f"{kind}/b": words[2_000:].astype(word)}
    np.savez(path, **arrays)
    return path


def _save_arguments(directory: Path, state: Path, *names: str) -> argparse.Namespace:
    return argparse.Namespace(
        gigabytes=TINY_BYTES / 1e9,
        leaves=TINY_LEAVES,
        rounds=2,
        methods=list(names),
        state=state,
        directory=directory,
        lock=None,
    )


def _spec(directory: Path, state: Path, method: str) -> Spec:
    return Spec(
        action="save",
        method=method,
        directory=str(directory),
        n_bytes=TINY_BYTES,
        n_leaves=TINY_LEAVES,
        state=str(state),
    )


@pytest.fixture
def no_disk_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the machine's page cache alone: only the measuring is tested here."""
    monkeypatch.setattr(save_cell, "sync_file_system", lambda directory: None)
    monkeypatch.setattr(save_cell, "empty_page_cache", lambda directory: None)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize(("mode", "n_threads"), [("auto", 1), ("off", 1), ("auto", 3)])
def test_frame_coder_returns_identical_bits_over_several_runs(
    dtype: type, mode: str, n_threads: int
) -> None:
    n_words = 9 * (1 << 20) // np.dtype(dtype).itemsize + 77  # nine whole chunks and a short one
    values = gaussian(n_words, seed=1).astype(dtype)
    arrays = [values, np.zeros(3, np.int8), values[:0], values[:5].reshape(5, 1)]
    coder = FrameCoder(arrays, codec=mode, n_threads=n_threads)
    assert coder.encode() > 0
    coder.decode()
    assert coder.decoded().tobytes() == b"".join(array.tobytes() for array in arrays)


@given(st.integers(4_000_000, 2_000_000_000))
def test_tree_has_the_size_and_the_balance_that_its_notes_claim(n_bytes: int) -> None:
    leaves = plan_leaves(n_bytes, 200)
    sizes = {leaf.name: leaf.n_words * leaf.dtype.itemsize for leaf in leaves}
    assert len(sizes) == 200
    assert sum(leaf.dtype == BFLOAT16 for leaf in leaves) == 80
    assert sum(sizes.values()) == pytest.approx(n_bytes, rel=0.1)
    gaussians = sum(sizes[leaf.name] for leaf in leaves if leaf.kind is None)
    assert gaussians == pytest.approx(sum(sizes.values()) / 2, rel=0.01)


def test_tree_cuts_its_real_leaves_from_the_state(state_file: Path) -> None:
    leaves = plan_leaves(TINY_BYTES, 50)
    state = read_state(state_file)
    for leaf, (name, values) in zip(leaves, fill(leaves, state), strict=True):
        assert (name, values.shape, values.dtype) == (leaf.name, leaf.shape, leaf.dtype)
        if leaf.kind is not None:
            vector = state[leaf.kind]
            places = (leaf.seed * 65_537 + np.arange(values.size)) % vector.size
            assert values.tobytes() == vector[places].tobytes()


@pytest.mark.usefixtures("no_disk_wait")
def test_save_cell_measures_two_saves_and_two_restores(tmp_path: Path, state_file: Path) -> None:
    directory = tmp_path / "steps"
    directory.mkdir()
    spec = _spec(directory, state_file, save.OURS)
    saved = save_cell.save(spec)
    restored = save_cell.restore(msgspec.structs.replace(spec, checksums=saved.checksums))
    assert len(saved.checksums) == TINY_LEAVES
    figures = saved.figures | restored.figures
    for table in save.TABLES:
        assert {column.quantity for column in table.columns} <= figures.keys()
    assert 0 < saved.figures["stored_gb"] * 1e9 < 1.1 * TINY_BYTES  # raw where files are memory


@pytest.mark.usefixtures("no_disk_wait")
def test_restore_cell_refuses_other_bits(tmp_path: Path, state_file: Path) -> None:
    directory = tmp_path / "steps"
    directory.mkdir()
    spec = _spec(directory, state_file, save.OURS)
    checksums = save_cell.save(spec).checksums
    checksums["leaf0003"] ^= 1
    with pytest.raises(ValueError, match=r"1 of 10 leaves came back with other bits.*leaf0003"):
        save_cell.restore(msgspec.structs.replace(spec, checksums=checksums))


def test_save_keeps_the_row_of_a_method_that_fails(
    tmp_path: Path, state_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cell(spec: Spec, directory: Path, lock: Path | None) -> Answer:
        if spec.method == save.BASELINE:
            raise cells.CellError("restore: no space", "")
        return Answer(figures={"durable_s_1st": 1.0})

    monkeypatch.setattr(save, "measure_cell", cell)
    arguments = _save_arguments(tmp_path, state_file, save.OURS, save.BASELINE)
    rows, bars, notes = save.measure(arguments)
    assert rows[0].samples == {"durable_s_1st": [1.0, 1.0]}
    assert rows[1].skipped == "failed: restore: no space"
    assert {bar.verdict for bar in bars} == {"not measured"}
    assert notes[-1] == "Train state: given, state.npz."


def test_save_bars_compare_medians_with_orbax(
    tmp_path: Path, state_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cell(spec: Spec, directory: Path, lock: Path | None) -> Answer:
        is_ours = spec.method == save.OURS
        figures = {"durable_s_1st": 2.5 if is_ours else 4.0, "cpu_s_1st": 1.0}
        return Answer(figures=figures | {"peak_rss_mb_1st": 314.0})

    monkeypatch.setattr(save, "measure_cell", cell)
    arguments = _save_arguments(tmp_path, state_file, save.OURS, save.BASELINE)
    _, bars, _ = save.measure(arguments)
    verdicts = {bar.name.partition(":")[0]: (bar.measured, bar.verdict) for bar in bars}
    assert verdicts["durable, 1st save"] == (0.625, "pass")
    assert verdicts["peak RSS, 1st save"] == (314.0, "pass")
    assert verdicts["CPU, 1st save"] == (1.0, "FAIL")


def test_save_refuses_an_unknown_method_and_a_full_disk(tmp_path: Path, state_file: Path) -> None:
    with pytest.raises(SystemExit, match="no method 'zip'; there are orbax_gds,"):
        save.measure(_save_arguments(tmp_path, state_file, "zip"))
    arguments = _save_arguments(tmp_path, state_file, save.OURS)
    arguments.gigabytes = 1e9
    with pytest.raises(SystemExit, match="bytes free"):
        save.measure(arguments)


def test_every_method_is_listed_with_its_package() -> None:
    assert METHODS.keys() == cells.METHOD_PACKAGES.keys()


def test_cost_sees_the_memory_that_a_block_touched() -> None:
    with cost() as spent:
        block = np.full(64_000_000, 1, np.uint8)
    assert spent.seconds > 0
    assert spent.peak_rss_mb is None or spent.peak_rss_mb > 0.9 * block.nbytes / 1e6


def test_cell_text_shows_the_median_and_the_spread() -> None:
    assert cell_text([3.0, 1.0, 2.0, 2.0], 1) == "2.0 [1.0, 3.0]"
    assert cell_text([0.501, 0.502], 2) == "0.50"


def test_table_keeps_a_skipped_row_with_its_reason() -> None:
    table = Table(caption="c", columns=(Column(title="s", quantity="seconds"),))
    rows = [
        Row(group="g", name="a", samples={"seconds": [1.0]}),
        Row(group="g", name="b", skipped="b is not installed"),
        Row(group="g", name="c", samples={"seconds": [2.0]}, skipped="failed: a | b"),
    ]
    assert table_markdown(table, rows).splitlines()[2:] == [
        "| method | s |",
        "| --- | --- |",
        "| a | 1.00 |",
        "| b | skipped: b is not installed |",
        "| c | 2.00 skipped: failed: a / b |",
    ]


@pytest.mark.parametrize(
    ("measured", "relation", "verdict"),
    [(0.5, ">=", "pass"), (0.4, ">=", "FAIL"), (0.4, "<=", "pass"), (None, "<=", "not measured")],
)
def test_bar_passes_only_a_figure_within_its_promise(
    measured: float | None, relation: str, verdict: str
) -> None:
    assert make_bar("b", measured, relation, 0.45).verdict == verdict


def test_a_bar_keeps_its_reason_for_as_long_as_it_is_not_met() -> None:
    def result(*bars: Bar) -> Result:
        nothing = {"started": "", "settings": {}, "notes": [], "rows": []}
        machine = machine_card(Path())
        return Result(benchmark="codec", machine=machine, bars=list(bars), **nothing)

    before = [
        msgspec.structs.replace(make_bar(name, 1.0, ">=", 2.0), reason=f"why {name}")
        for name in ("a", "b", "gone")
    ]
    now = [make_bar("a", 1.5, ">=", 2.0), make_bar("b", 2.5, ">=", 2.0), make_bar("c", 0, ">=", 1)]
    kept = with_reasons(result(*now), result(*before)).bars
    assert [bar.reason for bar in kept] == ["why a", "", ""]
    assert bars_markdown(kept).splitlines()[2:4] == [
        "| a | 1.500 | >= 2 | FAIL | why a |",
        "| b | 2.500 | >= 2 | pass |  |",
    ]


def test_result_survives_json_and_renders(tmp_path: Path) -> None:
    result = Result(
        benchmark="codec",
        started="2000-01-01T00:00:00+00:00",
        settings={"repetitions": 1},
        notes=["a note"],
        machine=machine_card(tmp_path),
        rows=[Row(group="g", name=OURS, samples={"ratio": [1.5]})],
        bars=[make_bar("ratio", 1.4, ">=", 1.5)],
    )
    write_result(result, tmp_path / "new" / "codec.json")
    assert read_result(tmp_path / "new" / "codec.json") == result
    page = run.results_markdown(tmp_path / "new")
    for part in (
        codec.TITLE,
        "- a note",
        "| orbax_gds | 1.5000 |",
        "| ratio | 1.400 | >= 1.5 | FAIL |",
    ):
        assert part in page


def test_machine_card_is_filled_in(tmp_path: Path) -> None:
    card = machine_card(tmp_path)
    assert "" not in msgspec.structs.astuple(card)
    assert card.n_cores > 0
    assert "jax" in card.versions


def test_results_page_is_what_the_recorded_results_say() -> None:
    page = (ROOT / "benchmarks" / "RESULTS.md").read_text()
    assert page == run.results_markdown(RESULTS_DIRECTORY)
    for path in RESULTS_DIRECTORY.glob("*.json"):
        picture = run.picture_of(read_result(path))
        assert picture is None or picture == path.with_suffix(".svg").read_text()


@pytest.mark.slow
def test_save_runs_from_the_command_line_and_leaves_no_files(
    tmp_path: Path, state_file: Path
) -> None:
    scratch = tmp_path / "scratch"
    command = [sys.executable, "-m", "benchmarks.run", "save", "--json", "--gigabytes", "0.002"]
    command += ["--leaves", "50", "--rounds", "1", "--methods", f"{save.OURS},{save.BASELINE}"]
    command += ["--state", str(state_file), "--directory", str(scratch)]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert finished.returncode in (0, 1), finished.stderr  # bars mean nothing at this size
    result = msgspec.json.decode(finished.stdout, type=Result)
    for row in result.rows:
        assert row.skipped is None, row.skipped
        assert row.samples["durable_s_2nd"][0] > 0
    assert list(scratch.iterdir()) == []
