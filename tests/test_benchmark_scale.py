"""`leaves`, `restore` and `training`: what they measure, and how they judge it."""

import argparse
import dataclasses
import fcntl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1]))  # last, so that it hides no installed package

from benchmarks import cells, leaves, leaves_cell, restore, save_spec, training, training_cell
from benchmarks.cells import BASELINE, OURS, CellError, run_cell, run_rounds
from benchmarks.leaves_spec import Answer, Spec
from benchmarks.result import Bar, Result, Row
from benchmarks.stretch import Clocks, Stretch, read_clocks, save_samples, take_steps
from benchmarks.training_spec import ALL_CORES, ONE_CORE, PYTHON
from benchmarks.training_spec import Spec as TrainingSpec

ROOT = Path(__file__).parents[1]


@pytest.fixture
def state_file(tmp_path: Path) -> Path:
    """A train state of 1,000 words a kind."""
    kinds = {"params_bf16": np.uint16, "master_f32": np.uint32}
    kinds |= {"mu_f32": np.uint32, "nu_f32": np.uint32}
    path = tmp_path / "state.npz"
    np.savez(path, **{f"{kind}/a": np.arange(1_000, dtype=word) for kind, word in kinds.items()})
    return path


@pytest.fixture
def no_disk_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the machine's page cache alone: only the measuring is tested here."""
    for module in (leaves_cell, training_cell):
        monkeypatch.setattr(module, "sync_file_system", lambda directory: None)
    monkeypatch.setattr(leaves_cell, "empty_page_cache", lambda directory: None)


def _spec(directory: Path, method: str) -> Spec:
    directory.mkdir()
    return Spec(
        action="save",
        method=method,
        directory=str(directory),
        n_leaves=12,
        shape=(8,),
        is_mixed=True,
        n_repeats=1,
    )


def _verdicts(bars: list[Bar]) -> dict[str, tuple[float | None, str]]:
    return {bar.name: (bar.measured, bar.verdict) for bar in bars}


@pytest.mark.usefixtures("no_disk_wait")
def test_leaves_cell_measures_what_the_tables_show(tmp_path: Path) -> None:
    spec = _spec(tmp_path / "steps", OURS)
    saved = leaves_cell.save(spec)
    restored = leaves_cell.restore(msgspec.structs.replace(spec, checksum=saved.checksum))
    quantities = saved.samples.keys() | restored.samples.keys()
    for table in leaves.TABLES:
        assert {column.quantity for column in table.columns} <= quantities
    assert saved.samples["n_files"][0] >= 3  # manifest, stripe, Orbax's metadata


@pytest.mark.usefixtures("no_disk_wait")
def test_leaves_cell_refuses_other_bits_and_missing_leaves(tmp_path: Path) -> None:
    spec = _spec(tmp_path / "steps", OURS)
    checksum = leaves_cell.save(spec).checksum
    with pytest.raises(ValueError, match="12 leaves of 12 came back, with the checksum"):
        leaves_cell.restore(msgspec.structs.replace(spec, checksum=checksum ^ 1))
    with pytest.raises(ValueError, match="item_metadata shows 12 leaves, not 13"):
        leaves_cell.restore(msgspec.structs.replace(spec, checksum=checksum, n_leaves=13))


def test_leaves_shrink_together_and_keep_the_stack_beside_its_twins() -> None:
    scaled = {name: leaves._scaled(tree, 2_000) for name, tree in leaves.WORKLOADS.items()}
    assert scaled[leaves.MANY].n_leaves == 2_000
    assert scaled[leaves.GROWN[1]].n_leaves == 4 * scaled[leaves.GROWN[0]].n_leaves
    assert scaled[leaves.STACKED].shape == (scaled[leaves.APART].n_leaves, 512, 512)


def test_leaves_bars_hold_seconds_and_ratios_against_their_limits() -> None:
    def row(tree: str, method: str, **figures: float) -> None:
        samples = {quantity: [figure] for quantity, figure in figures.items()}
        rows[tree, method] = Row(group=tree, name=method, samples=samples)

    rows: dict[tuple[str, str], Row] = {}
    row(leaves.MANY, OURS, blocking_s_later=0.25, durable_s_later=1.0, n_files=9.0)
    row(leaves.MANY, BASELINE, blocking_s_later=7.5, durable_s_later=49.0)
    row(leaves.GROWN[0], OURS, durable_s_later=1.0)
    row(leaves.GROWN[1], OURS, durable_s_later=4.5)
    row(leaves.STACKED, OURS, durable_s_later=1.0, restore_s_later=1.0)
    row(leaves.APART, OURS, durable_s_later=1.25, restore_s_later=0.9)
    found = _verdicts(leaves.make_bars(rows))
    many = leaves.MANY
    assert found[f"{many}: blocking, later save, s"] == (0.25, "pass")
    assert found[f"{many}: blocking, later save: {BASELINE} / {OURS}"] == (30.0, "pass")
    assert found[f"{many}: durable, later save: {BASELINE} / {OURS}"] == (49.0, "FAIL")
    assert found[f"{many}: files"] == (9.0, "FAIL")
    assert found[f"{many}: restore, s"] == (None, "not measured")
    assert found["40,000 x 256 / 10,000 x 256: durable"] == (4.5, "FAIL")
    pair = f"{leaves.STACKED} and {leaves.APART}"
    assert found[f"{pair}: durable, slower / faster"] == (1.25, "FAIL")
    assert found[f"{pair}: restore, slower / faster"][1] == "pass"


def test_leaves_measures_orbax_once_and_the_others_in_every_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Spec] = []

    def cell(module: str, spec: Spec, reply: type, *, lock: Path | None) -> Answer:
        asked.append(spec)
        return Answer(samples={f"{spec.action}_s": [1.0]}, checksum=5)

    monkeypatch.setattr(leaves, "run_cell", cell)
    arguments = argparse.Namespace(leaves=100, rounds=2, repeats=3, methods=[OURS, BASELINE])
    arguments.trees, arguments.directory, arguments.lock = [leaves.MANY], tmp_path, None
    rows, _, _ = leaves.measure(arguments)
    assert [row.samples["save_s"] for row in rows] == [[1.0, 1.0], [1.0]]
    repeats = {(spec.method, spec.action): spec.n_repeats for spec in asked}
    assert repeats == {
        (OURS, "save"): 3,
        (OURS, "restore"): 3,
        (BASELINE, "save"): 1,
        (BASELINE, "restore"): 0,
    }
    assert {spec.checksum for spec in asked if spec.action == "restore"} == {5}


def test_restore_saves_once_and_reads_in_a_fresh_process_each_round(
    tmp_path: Path, state_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[save_spec.Spec] = []

    def cell(
        module: str, spec: save_spec.Spec, reply: type, *, lock: Path | None
    ) -> save_spec.Answer:
        asked.append(spec)
        assert Path(spec.directory).is_dir()
        if spec.action == "save":
            return save_spec.Answer(figures={}, checksums={"leaf0000": 1})
        seconds = 1.0 if spec.method == OURS else 2.0
        figures = {"restore_s_cold": seconds, "restore_s_warm": 1.0}
        return save_spec.Answer(figures=figures | {"restore_peak_rss_mb_cold": 301.0})

    monkeypatch.setattr(restore, "run_cell", cell)
    arguments = argparse.Namespace(gigabytes=0.001, leaves=50, rounds=2, methods=[OURS, BASELINE])
    arguments.state, arguments.directory, arguments.lock = state_file, tmp_path, None
    _, bars, _ = restore.measure(arguments)
    actions = [(spec.method, spec.action) for spec in asked]
    assert actions.count((OURS, "save")) == actions.count((BASELINE, "save")) == 1
    assert actions.count((OURS, "restore")) == actions.count((BASELINE, "restore")) == 2
    assert [(bar.measured, bar.verdict) for bar in bars] == [
        (0.5, "pass"),
        (1.0, "FAIL"),
        (300.0, "FAIL"),
    ]


def test_stretch_goes_on_until_the_save_has_landed() -> None:
    answers = iter([True, True, True, False])
    stretch = take_steps(lambda: None, 0.0, lambda: next(answers))
    assert (stretch.n_in_flight, len(stretch.step_s)) == (3, 3)
    assert stretch.begin.wall < stretch.landed.wall <= stretch.end.wall
    quiet = take_steps(lambda: None, 0.002)
    assert quiet.n_in_flight == 0
    assert quiet.end.wall - quiet.begin.wall >= 0.002


def test_thread_that_shares_the_gil_with_another_is_seen_to_wait_for_it() -> None:
    def spin() -> None:
        for _ in range(300):
            pass

    def hog() -> None:
        while not stop.is_set():
            spin()

    alone = take_steps(spin, 0.1)
    stop = threading.Event()
    thread = threading.Thread(target=hog)
    thread.start()
    try:
        beside = take_steps(spin, 0.2)
    finally:
        stop.set()
        thread.join()
    # as shares of the time in which a core was there, so that a busy machine changes nothing
    shares = []
    for stretch in (alone, beside):
        waited = stretch.end.waited(stretch.begin)
        if waited is None:  # a kernel without run-queue times
            assert read_clocks().queued is None
            return
        ran = stretch.end.thread_cpu - stretch.begin.thread_cpu
        shares.append(waited / (waited + ran))
    assert shares[0] < 0.1
    assert shares[1] > 0.2  # two threads that never let go take turns


def _stretch(step_s: list[float], *, n_in_flight: int = 0, waited_s: float = 0.0) -> Stretch:
    def clocks(wall: float, waited: float = 0.0) -> Clocks:
        return Clocks(wall=wall, thread_cpu=wall - waited - 1, process_cpu=2 * wall, queued=1.0)

    landed = clocks(sum(step_s[:n_in_flight]), waited_s)
    return Stretch(
        begin=clocks(0.0),
        landed=landed,
        end=clocks(sum(step_s), waited_s),
        step_s=step_s,
        n_in_flight=n_in_flight,
    )


def test_what_was_stolen_from_the_cores_is_no_wait_for_the_gil() -> None:
    begin = Clocks(wall=0.0, thread_cpu=0.0, process_cpu=0.0, queued=0.0, busy=9.0, stolen=5.0)
    end = Clocks(wall=4.0, thread_cpu=2.0, process_cpu=3.0, queued=0.5, busy=13.0, stolen=6.0)
    assert end.waited(begin) == pytest.approx(4.0 - 2.0 - 0.5 - 1.0 * 2 / 4)
    alone = dataclasses.replace(end, busy=9.0)  # a kernel that does not count
    assert alone.waited(begin) == pytest.approx(1.5)
    assert read_clocks().busy > 0


def test_save_is_compared_with_the_steps_before_and_after_it() -> None:
    before, after = _stretch([1.0, 1.0, 1.0]), _stretch([2.0, 2.0, 2.0], waited_s=0.9)
    during = _stretch([3.0, 3.0, 6.0, 1.5], n_in_flight=3, waited_s=2.4)
    found = save_samples(before, during, after, blocking_s=0.5)
    assert found == pytest.approx(
        {
            "blocking_s": 0.5,
            "save_s": 12.5,
            "step_ms": 1500.0,
            "step_cores": 2.0,
            "lost_s": 0.5 + 13.5 - 4 * 1.5,
            "dilation_median": 2.0,
            "dilation_mean": 4.0 / 1.5,
            "gil_wait_s": 2.4 - 0.9 / 9 * 12,
            "gil_wait_share": (2.4 - 1.2) / 12.5,
        }
    )


def test_save_that_landed_at_once_dilates_no_step() -> None:
    quiet = _stretch([1.0])
    found = save_samples(quiet, _stretch([1.0]), quiet, blocking_s=0.5)
    assert "dilation_mean" not in found
    assert found["lost_s"] == 0.5


@pytest.mark.slow
@pytest.mark.usefixtures("no_disk_wait")
def test_training_cell_measures_every_save_but_the_first(tmp_path: Path, state_file: Path) -> None:
    directory = tmp_path / "steps"
    directory.mkdir()
    spec = TrainingSpec(
        loop=PYTHON,
        method=OURS,
        directory=str(directory),
        n_bytes=100_000,
        n_leaves=10,
        state=str(state_file),
        n_saves=2,
        least_seconds=0.01,
    )
    samples = training_cell.train(spec).samples
    assert [len(samples[name]) for name in ("lost_s", "save_s", "step_ms")] == [2, 2, 2]
    assert {path.name for path in directory.iterdir()} == {"0", "1", "2"}
    alone = tmp_path / "alone"
    alone.mkdir()
    raw = msgspec.structs.replace(spec, method="raw O_DIRECT write behind", directory=str(alone))
    assert len(training_cell.train(raw).samples["lost_s"]) == 2
    assert (alone / "2" / "raw").stat().st_size >= spec.n_bytes
    with pytest.raises(TypeError, match="memcpy does not say whether a save is in flight"):
        training_cell.train(msgspec.structs.replace(spec, method="memcpy"))


def test_training_bars_judge_jitted_steps_and_the_gil() -> None:
    rows = [
        Row(group=ALL_CORES, name=OURS, samples={"dilation_median": [1.1, 1.1, 1.3]}),
        Row(group=ONE_CORE, name=BASELINE, samples={"dilation_median": [1.0]}),
        Row(group=PYTHON, name=OURS, samples={"gil_wait_share": [0.02]}),
    ]
    found = _verdicts(training.make_bars(rows))
    assert found[f"{ALL_CORES}: dilation, median step"] == (1.1, "pass")
    assert found[f"{ONE_CORE}: dilation, median step"] == (None, "not measured")
    assert found[f"{PYTHON}: GIL wait / save"] == (0.02, "FAIL")


def test_unknown_trees_loops_and_methods_are_refused_by_name(tmp_path: Path) -> None:
    arguments = argparse.Namespace(methods=[OURS], trees=["tall"], loops=["endless"])
    with pytest.raises(SystemExit, match="no tree 'tall'; there are 20,000 leaves"):
        leaves.measure(arguments)
    with pytest.raises(SystemExit, match="no loop 'endless'; there are jitted step"):
        training.measure(arguments)
    arguments.methods = ["memcpy"]
    with pytest.raises(SystemExit, match="no method 'memcpy'; there are orbax_gds"):
        training.measure(arguments)


def test_rounds_rotate_and_a_failed_row_says_why() -> None:
    def measure(key: str) -> dict[str, list[float]]:
        order.append(key)
        if key == "b":
            raise CellError("save: no space", "")
        return {"s": [1.0]}

    order: list[str] = []
    rows = {key: Row(group="g", name=key, samples={}) for key in ("a", "b", "c")}
    run_rounds(rows, measure, {"a": 1, "b": 2, "c": 2})
    assert order == ["a", "b", "c", "c"]
    assert rows["b"].skipped == "failed: save: no space"
    assert rows["c"].samples == {"s": [1.0, 1.0]}


def test_cell_that_fails_says_what_it_said_last(tmp_path: Path) -> None:
    with pytest.raises(CellError, match=r"benchmarks\.absent: .*No module named"):
        run_cell("benchmarks.absent", _spec(tmp_path / "steps", OURS), Answer)


def test_lock_is_held_while_a_cell_runs(tmp_path: Path) -> None:
    def others() -> Iterator[bool]:
        with path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield True
            except BlockingIOError:
                yield False

    path = tmp_path / "lock"
    with cells.locked(path):
        assert list(others()) == [False]
    assert list(others()) == [True]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("benchmark", "sizes"),
    [
        ("leaves", "--leaves 200 --rounds 1 --repeats 1"),
        ("restore", "--gigabytes 0.002 --leaves 50 --rounds 1"),
        ("training", "--gigabytes 0.02 --rounds 1 --saves 1 --seconds 0.2"),
    ],
)
def test_benchmark_runs_from_the_command_line_and_leaves_no_files(
    benchmark: str, sizes: str, tmp_path: Path, state_file: Path
) -> None:
    scratch = tmp_path / "scratch"
    command = [sys.executable, "-m", "benchmarks.run", benchmark, "--json", *sizes.split()]
    command += ["--directory", str(scratch), "--methods", f"{OURS},{BASELINE}"]
    if benchmark != "leaves":
        command += ["--state", str(state_file)]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert finished.returncode in (0, 1), finished.stderr  # bars mean nothing at this size
    result = msgspec.json.decode(finished.stdout, type=Result)
    assert [row.skipped for row in result.rows] == [None] * len(result.rows)
    assert not any(bar.verdict == "not measured" for bar in result.bars if "safe" not in bar.name)
    assert list(scratch.iterdir()) == []
