"""`delta`: what it measures, how it judges that, and what it draws."""

import argparse
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1]))  # last, so that it hides no installed package

import orbax_gds as ogds
from benchmarks import delta, delta_cell, delta_codings, delta_steps, run
from benchmarks.cells import CellError
from benchmarks.delta_codings import DIRECT, OURS, XOR, ZIPNN
from benchmarks.delta_picture import delta_svg, series_of
from benchmarks.delta_spec import (
    CHANGES,
    DELTAS,
    FULL,
    FULL_EVERY,
    METHODS,
    NOTHING,
    ORBAX,
    OTHER,
    ROWS,
    SPARSE,
    Answer,
    Source,
    Spec,
)
from benchmarks.delta_steps import CHAIN, RUNS
from benchmarks.delta_train import PHASES, run_files
from benchmarks.delta_trees import changed, first_tree, trees
from benchmarks.machine import machine_card
from benchmarks.result import RESULTS_DIRECTORY, Bar, Result, Row, write_result
from benchmarks.state import FP32_KINDS
from benchmarks.weights import as_bfloat16, gaussian
from orbax_gds.commit import read_manifest
from orbax_gds.dtypes import dtype_by_name

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
N_STEPS = 9


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine steps of each phase, of which each changes little of the one before."""
    directory = tmp_path_factory.mktemp("run")
    rng = np.random.default_rng(0)
    for phase in PHASES:
        words = gaussian(40_000, seed=3).reshape(-1, 100)
        for step in range(N_STEPS):
            state = {"params_bf16/w": as_bfloat16(words).view(np.uint16)}
            state |= {f"{kind}/w": words.view(np.uint32) for kind in FP32_KINDS}
            np.savez(directory / f"{phase}-{step:02d}.npz", **state)
            words = words.copy()
            words[rng.integers(0, len(words), 3)] *= np.float32(1.01)
    return directory


@pytest.fixture
def source(files: Path) -> Source:
    return Source(state=str(files / "training-00.npz"), n_bytes=400_000, n_leaves=10, n_steps=3)


@pytest.fixture
def no_disk_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the machine's page cache alone: only the measuring is tested here."""
    monkeypatch.setattr(delta_cell, "sync_file_system", lambda directory: None)
    monkeypatch.setattr(delta_cell, "empty_page_cache", lambda directory: None)


def _differing(one: dict, other: dict) -> float:
    """The share of elements whose words differ."""
    pairs = [(one[name], other[name]) for name in one]
    assert all((a.dtype, a.shape) == (b.dtype, b.shape) for a, b in pairs)
    words = {2: np.uint16, 4: np.uint32}
    n_differing = sum(
        int((a.view(words[a.itemsize]) != b.view(words[b.itemsize])).sum()) for a, b in pairs
    )
    return n_differing / sum(a.size for a, _ in pairs)


def test_a_change_changes_as_much_as_it_says(source: Source) -> None:
    first = first_tree(source)
    shares = {change: _differing(first, changed(first, change, source)) for change in CHANGES}
    assert shares[NOTHING] == 0
    assert 0.005 < shares[SPARSE] <= 0.011
    assert 0 < shares[ROWS] <= 0.2  # a row at least of each leaf, however short
    assert min(shares[change] for change in CHANGES[3:]) > 0.9
    with pytest.raises(ValueError, match="no change 'half'"):
        changed(first, "half", source)


def test_steps_of_a_tree_follow_from_each_other(source: Source, files: Path) -> None:
    first, second, third = trees(source)
    assert 0 < _differing(first, second) <= 0.011
    assert 0 < _differing(second, third) <= 0.011
    source = Source(files=[str(files / "training-00.npz")], kinds=["params_bf16", "mu_f32"])
    (tree,) = trees(source)
    assert tree.keys() == {"params_bf16.w", "mu_f32.w"}


@pytest.mark.usefixtures("no_disk_wait")
@pytest.mark.parametrize("method", [DELTAS, FULL])
def test_cell_saves_every_step_and_restores_it(method: str, files: Path, tmp_path: Path) -> None:
    found, _ = run_files(files, tmp_path)
    steps = [str(path) for path in found["training"]]
    source = Source(files=steps, kinds=["params_bf16", *FP32_KINDS])
    spec = Spec(action="save", method=method, directory=str(tmp_path), source=source)
    saved = delta_cell.save(spec)
    assert len(set(saved.checksums)) == len(steps) == N_STEPS
    sizes = saved.samples["mb"]
    if method == DELTAS:
        assert max(sizes[1:FULL_EVERY]) < 0.5 * min(sizes[0], sizes[FULL_EVERY])
        bases = read_manifest(tmp_path / "7" / "default").base
        assert len(bases.stripes) == FULL_EVERY - 1
    else:
        assert max(sizes) < 1.5 * min(sizes)  # a busy machine codes some of them faster and longer
    spec = msgspec.structs.replace(
        spec, steps=[7, 0], checksums=[saved.checksums[7], saved.checksums[0]], has_warm_up=True
    )
    restored = delta_cell.restore(spec)
    assert len(restored.samples["restore_s"]) == 2
    wrong = msgspec.structs.replace(spec, checksums=[1, 2])
    with pytest.raises(ValueError, match="step 7 came back with other bits"):
        delta_cell.restore(wrong)


@pytest.mark.usefixtures("no_disk_wait")
def test_cell_measures_a_step_after_every_change(source: Source, tmp_path: Path) -> None:
    spec = Spec(action="changes", method=DELTAS, directory=str(tmp_path), source=source)
    samples = delta_cell.changes(spec).samples
    sizes = {
        change: samples[f"{change}:step_mb"][0] / samples[f"{change}:full_mb"][0]
        for change in CHANGES
    }
    assert sizes[NOTHING] < sizes[SPARSE] < 0.5 < sizes[OTHER] < 1.1
    assert len(samples) == 6 * len(CHANGES)


def test_changes_become_one_row_each_with_their_ratios(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cell(module: str, spec: Spec, reply: type, *, lock: Path | None) -> Answer:
        figures = {"step_mb": 2.0, "full_mb": 8.0, "step_durable_s": 1.0, "full_durable_s": 2.0}
        return Answer(
            samples={f"{change}:{name}": [f] for change in CHANGES for name, f in figures.items()}
        )

    monkeypatch.setattr(delta_steps, "run_cell", cell)
    arguments = argparse.Namespace(directory=tmp_path, rounds=2, lock=None)
    rows = delta_steps.change_rows(source, arguments)
    assert [row.group for row in rows] == list(CHANGES)
    assert all(row.samples["share"] == [0.25, 0.25] for row in rows)
    assert all(row.samples["durable_x_full"] == [0.5, 0.5] for row in rows)


def test_a_cell_that_fails_skips_its_rows(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cell(module: str, spec: Spec, reply: type, *, lock: Path | None) -> Answer:
        raise CellError("no space", "")

    monkeypatch.setattr(delta_steps, "run_cell", cell)
    arguments = argparse.Namespace(directory=tmp_path, rounds=1, lock=None)
    rows = delta_steps.change_rows(source, arguments) + delta_steps.chain_rows(source, arguments)
    assert {row.skipped for row in rows} == {"failed: no space"}
    judged = delta_steps.change_bars(rows) + delta_steps.chain_bars(rows) + delta_steps.run_bars([])
    assert {bar.verdict for bar in judged} == {"not measured"}


def test_chain_saves_once_and_restores_the_last_step_in_every_round(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Spec] = []

    def cell(module: str, spec: Spec, reply: type, *, lock: Path | None) -> Answer:
        asked.append(spec)
        if spec.action == "save":
            return Answer(samples={}, checksums=list(range(FULL_EVERY)))
        seconds, peak = (2.0, 99.0) if spec.method == DELTAS else (1.0, 10.0)
        samples = {"restore_s": [seconds], "restore_cpu_s": [1.0], "peak_mb": [peak]}
        return Answer(samples=samples)

    monkeypatch.setattr(delta_steps, "run_cell", cell)
    arguments = argparse.Namespace(directory=tmp_path, rounds=1, lock=None)
    bars = delta_steps.chain_bars(delta_steps.chain_rows(source, arguments))
    assert [spec.action for spec in asked].count("save") == 2
    restored = [spec for spec in asked if spec.action == "restore"]
    assert len(restored) == 6
    assert {(tuple(spec.steps), tuple(spec.checksums)) for spec in restored} == {((7,), (7,))}
    assert [(bar.measured, bar.verdict) for bar in bars] == [(2.0, "pass"), (89.0, "FAIL")]


def test_codings_are_compared_with_the_peers_and_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def absent(*_: object) -> None:  # importing it takes seconds, as it takes torch along
        raise ImportError("no such package", name="zipnn")

    monkeypatch.setattr(delta_codings, "_zipnn", absent)
    base = as_bfloat16(gaussian(600_000, seed=1)).view(np.uint16)
    words = base + (np.random.default_rng(2).random(base.size) > 0.95).astype(np.uint16)
    step = delta_codings.Step("g", dtype_by_name("bfloat16"), base, words)
    rows = delta_codings.compare(step, repetitions=1, sweep_bytes=4096)
    assert [row.name for row in rows] == [OURS, DIRECT, XOR, ZIPNN]
    assert rows[3].skipped == "zipnn is not installed"
    ours, direct, xor = (row.median("bits") for row in rows[:3])
    assert ours is not None
    assert ours < xor < direct
    for column in delta.TABLES[0].columns:
        assert len(rows[0].samples[column.quantity]) == 1


def test_every_pass_codes_every_step_and_all_repetitions_count(
    monkeypatch: pytest.MonkeyPatch, files: Path
) -> None:
    asked: list[tuple[str, int]] = []

    def compare(step: delta_codings.Step, *, repetitions: int) -> list[Row]:
        asked.append((step.group, repetitions))
        ratios = [len(asked) + i / 8 for i in range(repetitions)]
        quantities = dict.fromkeys(("encode_x_memcpy", "decode_x_memcpy"), ratios)
        return [Row(group=step.group, name=OURS, samples={**quantities, "bits": [2.0]})]

    monkeypatch.setattr(delta_codings, "compare", compare)
    monkeypatch.setattr(delta_codings, "keep_freed_memory", lambda: None)
    series = delta.coded_series(run_files(files, Path("absent"))[0], None)
    rows, bars = delta_codings.coding_rows(series, repetitions=5)
    groups = [row.group for row in rows]
    assert asked == [(group, 2) for group in groups * delta_codings.PASSES]
    n = len(groups)
    assert rows[1].samples["bits"] == [2.0]
    assert rows[1].samples["decode_x_memcpy"] == [
        2,
        2.125,
        n + 2,
        n + 2.125,
        2 * n + 2,
        2 * n + 2.125,
    ]
    measured = {bar.name: bar.measured for bar in bars}
    assert measured[f"{groups[1]}: decode x memcpy"] == n + 2.0625


def test_coded_steps_are_those_of_the_user_and_one_and_ten_steps_on(files: Path) -> None:
    found, origin = run_files(files, Path("absent"))
    assert origin == "given"
    series = delta.coded_series(found, [Path("a"), Path("b")])
    assert series["given"] == [Path("a"), Path("b")]
    assert [path.stem for path in series["training"]] == ["training-00", "training-01"]
    longer = delta.coded_series({"p": [Path(f"p-{i:02d}") for i in range(24)]}, None)
    assert [path.stem for path in longer["p"]] == ["p-00", "p-01", "p-10"]


def test_a_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="holds no file training-00"):
        run_files(tmp_path, tmp_path)
    arguments = argparse.Namespace(parts=["codings", "guesses"])
    with pytest.raises(SystemExit, match="no part 'guesses'; there are codings"):
        delta.measure(arguments)


def run_rows() -> list[Row]:
    """A row for every method and group; deltas restore in twice the time of full steps."""
    rows = []
    for group in RUNS:
        for method, mb, seconds in zip(METHODS, (1.0, 2.0, 3.0), (0.2, 0.1, 0.3), strict=True):
            saved = {"mb": [mb] * 24, "durable_s": [0.5] * 24, "blocking_s": [0.1] * 24}
            restored = {"restore_s": [seconds] * 24}
            samples = delta_steps.run_samples(saved, restored)
            rows.append(Row(group=group, name=method, samples=samples))
    return rows


def test_the_tables_show_what_the_parts_measure() -> None:
    samples = run_rows()[0].samples
    assert samples["run_mb"] == [24.0]
    assert len(samples["run_restore_s_8th"]) == 3
    assert {column.quantity for column in delta.TABLES[3].columns} <= samples.keys()
    assert [(bar.measured, bar.verdict) for bar in delta_steps.run_bars(run_rows())] == [
        (2.0, "pass")
    ] * len(RUNS)


def test_the_picture_is_well_formed_and_shows_every_step_of_every_method() -> None:
    rows = run_rows()
    assert len(series_of(rows[0], "mb")) == 24
    svg = ElementTree.fromstring(delta_svg(rows, list(RUNS)))
    namespace = "{http://www.w3.org/2000/svg}"
    assert len(list(svg.iter(f"{namespace}polyline"))) == 2 * len(METHODS) * len(RUNS)
    assert len(list(svg.iter(f"{namespace}circle"))) == 2 * 24 * 2 * len(RUNS)
    texts = [element.text for element in svg.iter(f"{namespace}text")]
    for group in RUNS:
        assert f"{group}: MB a step" in texts
    assert delta_svg([], list(RUNS)).count("<polyline") == 0


def test_bars_hold_sizes_and_times_against_their_limits() -> None:
    rows = [
        Row(group=SPARSE, name=OURS, samples={"share": [0.06]}),
        Row(group=NOTHING, name=OURS, samples={"share": [0.0009]}),
        Row(group=OTHER, name=OURS, samples={"share": [1.0], "durable_x_full": [1.4, 1.2, 1.2]}),
    ]
    found: dict[str, Bar] = {bar.name: bar for bar in delta_steps.change_bars(rows)}
    assert found[f"{SPARSE}: size / full step"].verdict == "FAIL"
    assert found[f"{NOTHING}: size / full step"].verdict == "pass"
    assert found[f"{OTHER}: durable / full step"].measured == 1.2
    chain = [
        Row(group=CHAIN, name=f"{method}, 8th step", samples={"chain_restore_s": [seconds]})
        for method, seconds in ((DELTAS, 3.0), (FULL, 1.0))
    ]
    assert [bar.verdict for bar in delta_steps.chain_bars(chain)] == ["FAIL", "not measured"]


def test_the_names_say_the_policy_and_a_full_step_comes_every_eighth() -> None:
    assert repr(ogds.EveryN(FULL_EVERY)) in DELTAS
    assert METHODS == (DELTAS, FULL, ORBAX)


def test_what_the_readme_shows_is_what_was_recorded() -> None:
    readme = (ROOT / "README.md").read_text()
    assert "<!-- delta -->\n" in readme
    assert readme == run.filled_in(readme, RESULTS_DIRECTORY)


def test_a_result_is_filled_in_between_its_marks_alone(tmp_path: Path) -> None:
    result = Result(
        benchmark="delta",
        started="2000-01-01T00:00:00+00:00",
        settings={},
        notes=[],
        machine=machine_card(tmp_path),
        rows=run_rows(),
        bars=[],
    )
    text = "before\n<!-- delta -->\nold\n<!-- /delta -->\nafter"
    assert run.filled_in(text, tmp_path) == text
    write_result(result, tmp_path / "delta.json")
    part = delta.readme_part(result)
    filled = run.filled_in(text, tmp_path)
    assert filled == f"before\n<!-- delta -->\n{part}\n<!-- /delta -->\nafter"
    assert run.filled_in(filled, tmp_path) == filled
    assert f"| {next(iter(RUNS))} | {DELTAS} | 1.0 | 0.50 | 0.200 | 0.200 |" in part
    assert run.picture_of(result) == delta_svg(run_rows(), list(RUNS))


def test_delta_runs_from_the_command_line_and_leaves_no_files(tmp_path: Path, files: Path) -> None:
    scratch = tmp_path / "scratch"
    command = [sys.executable, "-m", "benchmarks.run", "delta", "--json", "--run", str(files)]
    command += ["--gigabytes", "0.002", "--leaves", "50", "--rounds", "1", "--repetitions", "1"]
    finished = subprocess.run(
        [*command, "--directory", str(scratch)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert finished.returncode in (0, 1), finished.stderr  # bars mean nothing at this size
    result = msgspec.json.decode(finished.stdout, type=Result)
    assert [row.skipped for row in result.rows if row.name != ZIPNN] == [None] * sum(
        row.name != ZIPNN for row in result.rows
    )
    ours = [bar.verdict for bar in result.bars if ZIPNN not in bar.name]  # it may not be installed
    assert set(ours) <= {"pass", "FAIL"}
    assert list(scratch.iterdir()) == []
