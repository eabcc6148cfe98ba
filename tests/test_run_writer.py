"""Threads that code and write runs in one native call: the same file, whoever writes what."""

import os
import threading
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import orbax_gds as ogds
from orbax_gds import _native, saving, stripe, stripe_writer
from orbax_gds.codecs import zstd
from orbax_gds.drivers import open_driver, posix
from orbax_gds.dtypes import dtype_by_name
from orbax_gds.staging import aligned_empty
from orbax_gds.testing.faults import Fault, FaultyDriver
from orbax_gds.threads import run_threads

N_WORDS, N_CHUNKS, OFFSET = 3000, 2, 8192
ROOM_BYTES = 64 << 10


class Runs:
    """Runs of two chunks each, and the records that coding fills."""

    def __init__(self, n_runs: int, dtype: str = "float32") -> None:
        rng = np.random.default_rng(n_runs)
        shape = n_runs, N_CHUNKS * N_WORDS
        self.words = (rng.normal(0, 0.02, shape) + np.eye(*shape)).astype(np.float32)
        self.records = np.zeros(N_CHUNKS * n_runs, stripe.RECORD)
        self.rows = self.records.view(np.uint8).reshape(n_runs, N_CHUNKS, stripe.RECORD_BYTES)
        first = [(0, 4 * N_WORDS * i, 0, N_WORDS) for i in range(N_CHUNKS)]
        self.segments = np.array(first, np.uint64)
        self.dtype = dtype_by_name(dtype).id

    def arguments(self):
        for number, (words, rows) in enumerate(zip(self.words, self.rows, strict=True)):
            at = N_CHUNKS * number
            chunks = [(at + i, N_WORDS, self.dtype, 1, 0) for i in range(N_CHUNKS)]
            yield [words.view(np.uint8)], self.segments, np.array(chunks, np.uint32), rows, (), None

    def writer(self, zstd_level: int = 0) -> _native.RunWriter:
        return _native.RunWriter(
            self.arguments(), offset=OFFSET, codec="auto", align_bytes=512, zstd_level=zstd_level
        )

    def expected(self) -> tuple[bytes, np.ndarray]:
        """The bytes from OFFSET on, and the records, coded run by run."""
        out, frames, records = np.zeros(ROOM_BYTES, np.uint8), b"", []
        for buffers, segments, chunks, *_ in self.arguments():
            rows = np.zeros((N_CHUNKS, stripe.RECORD_BYTES), np.uint8)
            n_bytes = _native.encode_run(
                buffers, segments, chunks, out, rows, codec="auto", align_bytes=512
            )
            made = rows.view(stripe.RECORD).reshape(N_CHUNKS)
            made["offset"] += np.uint64(OFFSET + len(frames))
            records.append(made)
            frames += out[:n_bytes].tobytes()
        return frames, np.concatenate(records)


@settings(max_examples=15, deadline=None)
@given(
    n_runs=st.integers(1, 9),
    hows=st.lists(st.sampled_from(["code", "one", "all"]), min_size=1, max_size=4),
)
def test_file_and_records_are_the_same_whatever_the_threads_do(tmp_path_factory, n_runs, hows):
    runs = Runs(n_runs)
    path = tmp_path_factory.mktemp("runs") / "file"
    path.touch()
    todo, lock = list(hows), threading.Lock()
    writer = runs.writer()
    with path.open("r+b") as file:

        def work() -> None:
            with lock:
                how = todo.pop()
            out = np.zeros(ROOM_BYTES, np.uint8)
            while True:
                if how == "code":
                    placed = writer.code(out)
                    if placed is not None:
                        os.pwrite(file.fileno(), out[: placed[1]], placed[0])
                else:
                    secs = 0.0 if how == "one" else 10.0
                    placed = writer.write(file.fileno(), out, most_secs=secs)
                    assert placed in (None, (0, 0))
                if placed is None:
                    return

        run_threads(len(hows), work, lambda error: writer.stop())
    frames, records = runs.expected()
    assert path.read_bytes() == bytes(OFFSET) + frames
    assert (runs.records == records).all()
    assert writer.offset == OFFSET + len(frames)
    assert writer.secs()["encode"] > 0


def test_a_run_that_the_system_refuses_is_left_to_the_caller(tmp_path):
    runs = Runs(3)
    writer, out = runs.writer(), np.zeros(ROOM_BYTES, np.uint8)
    path = tmp_path / "file"
    path.touch()
    frames, _ = runs.expected()
    with path.open("rb") as read_only:
        placed = writer.write(read_only.fileno(), out, most_secs=10.0)
    assert placed is not None
    offset, n_bytes = placed
    assert offset == OFFSET
    assert out[:n_bytes].tobytes() == frames[:n_bytes]
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), out[:n_bytes], offset)
        assert writer.write(file.fileno(), out, most_secs=10.0) is None
    assert path.read_bytes() == bytes(OFFSET) + frames


def test_what_was_measured_is_that_of_the_writes(tmp_path):
    runs = Runs(4)
    writer, out = runs.writer(), np.zeros(ROOM_BYTES, np.uint8)
    began = time.perf_counter()
    with (tmp_path / "file").open("w+b") as file:
        assert writer.write(file.fileno(), out, most_secs=10.0) is None
    took = time.perf_counter() - began
    secs = writer.secs()
    assert 0 < secs["busy"] == pytest.approx(secs["write"])  # one thread
    assert secs["encode"] + secs["write"] <= took
    assert 0 < secs["write_cpu"] <= took
    assert 0 <= secs["write_queued"] <= took


def test_an_error_of_one_thread_and_a_stop_end_the_waiting_of_others(monkeypatch):
    runs = Runs(2, "int32")
    writer = runs.writer(zstd_level=3)
    entered, go_on = threading.Event(), threading.Event()
    ended: list[object] = []

    def compress(content: memoryview, level: int) -> bytes:
        entered.set()
        assert go_on.wait(20)
        raise MemoryError("no room")

    monkeypatch.setattr(zstd, "compress", compress)

    def first() -> None:
        try:
            writer.code(np.zeros(ROOM_BYTES, np.uint8))
        except MemoryError as error:
            ended.append(str(error))
            writer.stop()

    thread = threading.Thread(target=first)
    thread.start()
    assert entered.wait(20)
    monkeypatch.setattr(zstd, "compress", lambda content, level: b"")
    second = threading.Thread(
        target=lambda: ended.append(writer.code(np.zeros(ROOM_BYTES, np.uint8)))
    )
    second.start()  # it waits for the place of the first run
    with pytest.raises(ValueError, match="stop it and wait"):
        writer.close()
    go_on.set()
    thread.join(20)
    second.join(20)
    assert ended == ["no room", None]
    assert writer.code(np.zeros(ROOM_BYTES, np.uint8)) is None
    writer.close()


def test_a_closed_writer_has_no_runs_left():
    runs, out = Runs(3), np.zeros(ROOM_BYTES, np.uint8)
    writer = runs.writer()
    assert writer.code(out) is not None
    writer.close()
    assert writer.code(out) is None


def test_wrong_arguments_are_refused():
    runs = Runs(1)
    out = np.zeros(ROOM_BYTES, np.uint8)
    with pytest.raises(ValueError, match="multiple of 64, not 100"):
        _native.RunWriter(runs.arguments(), offset=0, codec="auto", align_bytes=100)
    with pytest.raises(ValueError, match="not 'ladder'"):
        _native.RunWriter(runs.arguments(), offset=0, codec="ladder", align_bytes=64)
    too_few: Any = [([], out)]
    with pytest.raises(ValueError, match="not 2 objects"):
        _native.RunWriter(too_few, offset=0, codec="auto", align_bytes=64)
    buffers, segments, chunks, rows, *_ = next(runs.arguments())
    with pytest.raises(ValueError, match="records has 1 rows, but there are 2 chunks"):
        _native.RunWriter(
            [(buffers, segments, chunks, rows[:1], (), None)],
            offset=0,
            codec="auto",
            align_bytes=64,
        )
    writer = runs.writer()
    with pytest.raises(ValueError, match="out has 100 bytes; a run may need"):
        writer.code(out[:100])
    memory = np.zeros(2 * ROOM_BYTES, np.uint8)
    inside = memory[ROOM_BYTES - 100 :][: buffers[0].nbytes]
    over = _native.RunWriter(
        [([inside], segments, chunks, rows, (), None)], offset=0, codec="auto", align_bytes=64
    )
    with pytest.raises(ValueError, match="out shares memory with buffer 0"):
        over.code(memory[:ROOM_BYTES])
    with pytest.raises(ValueError, match="most_secs must be 0 to 60"):
        writer.write(0, out, most_secs=float("nan"))


class _Counted:
    """A native writer whose calls are counted."""

    calls = 0
    native = _native.RunWriter

    def __init__(self, *arguments, **options) -> None:
        self._inner = self.native(*arguments, **options)

    def __getattr__(self, name: str):
        _Counted.calls += name in ("code", "write")
        return getattr(self._inner, name)


def test_a_thread_comes_back_to_python_by_time_and_not_by_run(tmp_path, monkeypatch):
    monkeypatch.setattr(stripe_writer._native, "RunWriter", _counted_writer())
    tree = {f"w{i}": np.ones(1 << 20, np.float32) for i in range(8)}
    options = ogds.Options(codec="off", chunk_bytes="64KiB", workers=1, derive=False)
    monkeypatch.setattr("orbax_gds.plan.RUN_BYTES", 1 << 20)
    began = time.perf_counter()
    prepared = saving.prepare(tree, options=options)
    assert len(prepared.plan.runs) >= 32
    (tmp_path / "item").mkdir()
    prepared.write(tmp_path / "item")
    took = time.perf_counter() - began
    assert _Counted.calls <= 1 + took / stripe_writer._SLICE_SECS


def test_a_paced_save_codes_and_writes_run_by_run(tmp_path, monkeypatch):
    monkeypatch.setattr(stripe_writer._native, "RunWriter", _counted_writer())
    tree = {f"w{i}": np.ones(1 << 20, np.float32) for i in range(4)}
    options = ogds.Options(codec="off", workers=1, derive=False, io_rate="100GiB")
    prepared = saving.prepare(tree, options=options)
    (tmp_path / "item").mkdir()
    prepared.write(tmp_path / "item")
    assert _Counted.calls == len(prepared.plan.runs) + 1


def _counted_writer() -> type[_Counted]:
    _Counted.calls = 0
    return _Counted


def test_what_the_native_writer_cannot_write_goes_through_the_file(tmp_path, monkeypatch):
    tree = {f"w{i}": np.arange(i, (1 << 20) + i, dtype=np.float32) for i in range(5)}
    fault = Fault(None)
    with open(os.devnull, "rb") as read_only:

        class Refusing(FaultyDriver):
            def open(self, path, mode):
                file = super().open(path, mode)
                file.descriptor = read_only.fileno()
                return file

        driver = Refusing(open_driver("buffered", tmp_path), fault)
        monkeypatch.setattr(saving, "open_driver", lambda name, path: driver)
        prepared = saving.prepare(tree, options=ogds.Options(codec="off", derive=False))
        (tmp_path / "item").mkdir()
        prepared.write(tmp_path / "item")
    saving.commit(tmp_path / "item")
    restored = ogds.restore(tmp_path / "item")
    for name, words in tree.items():
        assert (np.asarray(restored[name]) == words).all()
    n_writes = sum(operation.startswith("write") for operation in fault.operations)
    assert n_writes == len(prepared.plan.runs) + 2  # and the head, and the end


def test_an_error_of_the_system_reaches_the_caller(tmp_path):
    file = posix.PosixFile("/dev/full", "w", direct=False)
    runs = Runs(1)
    writer, out = runs.writer(), aligned_empty(ROOM_BYTES)
    assert file.descriptor is not None
    placed = writer.write(file.descriptor, out, most_secs=1.0)
    assert placed is not None
    with pytest.raises(ogds.errors.IoError, match="Free space"):
        file.write(placed[0], out[: placed[1]])
    file.close()
