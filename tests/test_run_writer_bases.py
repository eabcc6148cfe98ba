"""Runs coded against bases that lie in files: the bytes are those of bases in memory, words come
back through the chain, and what is wrong with a base is told and never coded against.
"""

import contextlib
import errno
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orbax_gds import _native, stripe
from orbax_gds.codecs import zstd
from orbax_gds.dtypes import Dtype, dtype_by_name
from orbax_gds.testing import dtypes
from orbax_gds.threads import run_threads

FP32, INT32 = dtype_by_name("float32"), dtype_by_name("int32")
STATUS = {text: number for number, text in _native.STATUS.items()}
OFFSET = 4096
Links = Sequence[tuple[int, np.ndarray]]


@dataclass
class Step:
    """Words of chunks, and the file that holds their frames."""

    words: list[np.ndarray]
    path: Path
    records: np.ndarray  # RECORD[n_chunks]

    def rows(self) -> np.ndarray:
        return self.records.view(np.uint8).reshape(-1, stripe.RECORD_BYTES)


class Chain:
    """Steps whose chunks are coded in runs of `per_run` against the steps before."""

    def __init__(self, folder: Path, dtype: Dtype, per_run: int = 100) -> None:
        self.folder, self.dtype, self.per_run = folder, dtype, per_run
        self.steps: list[Step] = []
        self.drops = True  # rows of frames that are not needed
        self.direct = False
        self.marked: list[int] = []  # chunks with a base only where their frames come out alike

    def arguments(self, words: list[np.ndarray], records: np.ndarray, links: Links):
        rows = records.view(np.uint8).reshape(-1, stripe.RECORD_BYTES)
        for first in range(0, len(words), self.per_run):
            here = slice(first, first + self.per_run)
            counts = [chunk.size for chunk in words[here]]
            chunks = [(first + i, n, self.dtype.id, 1, 0) for i, n in enumerate(counts)]
            segments = [(i, 0, 0, n) for i, n in enumerate(counts)]
            yield (
                words[here],
                np.array(segments, np.uint64),
                np.array(chunks, np.uint32),
                rows[here],
                [(descriptor, of_link[here]) for descriptor, of_link in links],
            )

    def rows(self, n_steps: int, *, marks: bool = False) -> list[np.ndarray]:
        """Return the rows of each link of what follows on so many steps."""
        rows = [step.rows().copy() for step in self.steps[:n_steps]]
        needed = np.ones(len(rows[0]) if rows else 0, bool)
        for step, of_link in zip(self.steps[:n_steps][::-1], rows[::-1], strict=True):
            if self.drops:
                of_link[~needed] = 0
            needed &= step.records["flags"] & 2 != 0
            of_link[self.marked, 28] = marks & of_link[self.marked].any(axis=1)
        return rows

    @contextlib.contextmanager
    def links(self, n_steps: int | None = None) -> Iterator[Links]:
        n_steps = len(self.steps) if n_steps is None else n_steps
        flags = os.O_RDONLY | (os.O_DIRECT if self.direct else 0)
        with contextlib.ExitStack() as stack:
            files = [os.open(step.path, flags) for step in self.steps[:n_steps]]
            for descriptor in files:
                stack.callback(os.close, descriptor)
            yield list(zip(files, self.rows(n_steps, marks=True), strict=True))

    def writer(self, words: list[np.ndarray], records: np.ndarray, links: Links, codec="auto"):
        runs = self.arguments(words, records, links)
        return _native.RunWriter(
            runs, offset=OFFSET, codec=codec, align_bytes=4096, zstd_level=3 * (codec == "auto")
        )

    def save(self, words: list[np.ndarray], hows: Sequence[str] = ("write",)) -> Step:
        """Write a step with a thread for each of `hows`."""
        step = self.new_step(words)
        with self.links() as links, step.path.open("w+b") as file:
            writer = self.writer(words, step.records, links)

            def work(how: str) -> None:
                out = self.room(words)
                while how == "code" and (placed := writer.code(out)) is not None:
                    os.pwrite(file.fileno(), out[: placed[1]], placed[0])
                while how == "write" and writer.write(file.fileno(), out, most_secs=0.0):
                    pass

            def stop(error: BaseException) -> None:
                errors.append(error)
                writer.stop()

            def guarded() -> None:
                try:
                    work(todo.pop())
                except _native.BrokenBase as error:
                    stop(error)

            todo, errors = list(hows), []
            run_threads(len(hows), guarded, stop)
            writer.close()
            if errors:
                raise errors[0]
        self.steps.append(step)
        return step

    def new_step(self, words: list[np.ndarray]) -> Step:
        path = self.folder / f"{len(self.steps)}.ogds"
        return Step(words, path, np.zeros(len(words), stripe.RECORD))

    def room(self, words: list[np.ndarray]) -> np.ndarray:
        n = sum(_native.max_frame_bytes(chunk.size, self.dtype.id) for chunk in words)
        return np.empty(n + 4096, np.uint8)

    def code(self, words: list[np.ndarray], links: Links, codec: str = "auto") -> object:
        """Code one run against links, and drop it."""
        writer = self.writer(words, np.zeros(len(words), stripe.RECORD), links, codec)
        try:
            return writer.code(self.room(words))
        finally:
            writer.close()

    def in_memory(self, n_steps: int, number: int) -> tuple[bytes, np.ndarray]:
        """Return frames and records of a step, coded by `encode_run` with its bases."""
        step, frames = self.steps[number], b""
        files = [step.path.read_bytes() for step in self.steps[:n_steps]]
        rows = self.rows(n_steps)
        into = np.zeros(len(step.words), stripe.RECORD)
        for buffers, segments, chunks, own, _ in self.arguments(step.words, into, ()):
            first = int(chunks[0, 0])
            bases = [
                (file, of_link[first : first + len(chunks)])
                for file, of_link in zip(files, rows, strict=True)
            ]
            out = self.room(step.words)
            n_bytes = _native.encode_run(
                buffers, segments, chunks, out, own, codec="auto", zstd_level=3,
                align_bytes=4096, bases=bases,
            )  # fmt: skip
            into["offset"][first : first + len(chunks)] += np.uint64(OFFSET + len(frames))
            frames += out[:n_bytes].tobytes()
        return frames, into

    def restored(self, number: int) -> list[np.ndarray]:
        """Return the words of a step, decoded with its chain."""
        step = self.steps[number]
        outs = [np.zeros_like(chunk) for chunk in step.words]
        chunks = [(i, chunk.size, self.dtype.id, 1) for i, chunk in enumerate(outs)]
        segments = [(i, 0, 0, chunk.size, 0) for i, chunk in enumerate(outs)]
        files = [step.path.read_bytes() for step in self.steps[:number]]
        status = _native.decode_run(
            step.path.read_bytes(), step.rows(), np.array(chunks, np.uint32), outs,
            np.array(segments, np.uint64), bases=list(zip(files, self.rows(number), strict=True)),
        )  # fmt: skip
        assert status == (0, 0), _native.STATUS[status[0]]
        return outs


def drawn_words(rng: np.random.Generator, dtype: Dtype, n: int) -> np.ndarray:
    words = np.exp2(rng.normal(0, 2, n)).astype(np.float32).view(np.uint32).astype(np.uint64)
    words = (words << np.uint64(32) >> np.uint64(64 - dtype.bits)) if dtype.bits < 32 else words
    return (words & np.uint64((1 << dtype.bits) - 1)).astype(dtype.word_dtype)


def changed(rng: np.random.Generator, dtype: Dtype, base: np.ndarray, how: str) -> np.ndarray:
    """Return words all of which, some, or none are the base's."""
    if how == "new":
        return drawn_words(rng, dtype, base.size)
    share = {"same": 0, "few": 0.02, "many": 0.9}[how]
    mask = dtype.word_dtype.type((1 << dtype.bits) - 1)
    return np.where(rng.random(base.size) < share, (base + 1) & mask, base).astype(base.dtype)


def make_chain(folder: Path, dtype: Dtype = FP32, n_steps: int = 3, n_chunks: int = 3) -> Chain:
    """Return steps of chunks of 3000 words, all but the first of which are deltas."""
    rng = np.random.default_rng(n_steps)
    chain = Chain(folder, dtype)
    chain.save([drawn_words(rng, dtype, 3000) for _ in range(n_chunks)])
    for _ in range(n_steps - 1):
        chain.save([changed(rng, dtype, words, "few") for words in chain.steps[-1].words])
        assert (chain.steps[-1].records["flags"] & 2).all()
    return chain


CHANGES = st.sampled_from(["same", "few", "many", "new"])


@settings(max_examples=30, deadline=None)
@given(data=st.data(), dtype=dtypes(), n_steps=st.integers(1, 5), per_run=st.integers(1, 5))
def test_words_come_back_and_bytes_are_those_of_bases_in_memory(
    tmp_path_factory, data: st.DataObject, dtype: Dtype, n_steps: int, per_run: int
) -> None:
    chain = Chain(tmp_path_factory.mktemp("chain"), dtype, per_run)
    chain.drops = data.draw(st.booleans())
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    sizes = data.draw(st.lists(st.integers(1, 3000), min_size=1, max_size=7))
    words = [drawn_words(rng, dtype, n) for n in sizes]
    for number in range(n_steps):
        hows = data.draw(st.lists(st.sampled_from(["code", "write"]), min_size=1, max_size=3))
        step = chain.save(words, hows)
        frames, records = chain.in_memory(number, number)
        assert step.path.read_bytes() == bytes(OFFSET) + frames
        np.testing.assert_array_equal(step.records, records)
        for out, chunk in zip(chain.restored(number), words, strict=True):
            np.testing.assert_array_equal(out, chunk)
        words = [changed(rng, dtype, chunk, data.draw(CHANGES)) for chunk in words]


@settings(max_examples=12, deadline=None)
@given(data=st.data(), dtype=dtypes(), per_run=st.integers(1, 9))
def test_of_marked_chunks_only_the_unchanged_have_bases(
    tmp_path_factory, data: st.DataObject, dtype: Dtype, per_run: int
) -> None:
    chain = Chain(tmp_path_factory.mktemp("chain"), dtype, per_run)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    words = [drawn_words(rng, dtype, n) for n in (3000, 70_000, 1, 900, 300_000, 4000)]
    numbers = st.integers(0, len(words) - 1)
    chain.marked = data.draw(st.lists(numbers, unique=True))
    still = data.draw(st.sets(numbers))
    for number in range(3):
        step = chain.save(words)
        for out, chunk in zip(chain.restored(number), words, strict=True):
            np.testing.assert_array_equal(out, chunk)
        is_delta = step.records["flags"] & 2 != 0
        for chunk in chain.marked if number > 0 else ():
            was = chain.steps[number - 1].words[chunk]
            is_same = (
                np.array_equal(words[chunk], was) and step.records["payload_bytes"][chunk] == 6
            )
            assert is_same or not is_delta[chunk]
        worth = chain.steps[0].records["payload_bytes"] > 100
        assert number == 0 or all(is_delta[chunk] for chunk in still if worth[chunk])
        words = [
            changed(rng, dtype, chunk, "same" if i in still else "new")
            for i, chunk in enumerate(words)
        ]


def test_a_marked_chunk_that_seems_unchanged_is_compared(tmp_path) -> None:
    chain = make_chain(tmp_path, n_steps=1)
    chain.marked = [0, 1, 2]
    words = [chunk.copy() for chunk in chain.steps[0].words]
    words[1][5] += 1
    other = Chain(tmp_path / "other", FP32)
    other.folder.mkdir()
    alike = other.save(words).records["payload_crc32c"][1]
    chain.steps[0].records["payload_crc32c"][1] = alike  # as if the checksums met
    with chain.links() as links:
        error = broken(chain, words, links)
    assert (error.chunk, _native.STATUS[error.status]) == (1, "frame disagrees with the index")


@pytest.mark.parametrize("direct", [False, True])
def test_long_and_many_chunks_and_frames_far_apart_are_read(tmp_path, direct) -> None:
    rng = np.random.default_rng(7)
    chain = Chain(tmp_path, FP32, per_run=1000)
    sizes = [70] * 300 + [400_000, 10, 150_000, 150_000, 5] + [3000] * 40
    words = [drawn_words(rng, FP32, n) for n in sizes]
    chain.save(words)
    words = [changed(rng, FP32, chunk, "few" if i % 9 else "new") for i, chunk in enumerate(words)]
    chain.save(words)
    chain.direct = direct and _reads_directly(chain.steps[0].path)
    words = [changed(rng, FP32, chunk, "few") for chunk in words]
    step = chain.save(words)
    chain.direct = False
    frames, _ = chain.in_memory(2, 2)
    assert step.path.read_bytes() == bytes(OFFSET) + frames
    for out, chunk in zip(chain.restored(2), words, strict=True):
        np.testing.assert_array_equal(out, chunk)


def _reads_directly(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return False
    return True


def test_frames_in_any_order_are_found(tmp_path) -> None:
    chain = make_chain(tmp_path, n_steps=1, n_chunks=5)
    step = chain.steps[0]
    frames = step.path.read_bytes()
    parts = [frames[int(r["offset"]) :][: int(r["frame_bytes"])] for r in step.records]
    moved = b""
    for i in (3, 0, 4, 1, 2):
        step.records["offset"][i] = len(moved)
        moved += parts[i] + bytes(100 + 40_000 * i)
    step.path.write_bytes(moved)
    words = [chunk + 1 for chunk in step.words]
    chain.save(words)
    assert (chain.steps[1].records["flags"] & 2).all()
    for out, chunk in zip(chain.restored(1), words, strict=True):
        np.testing.assert_array_equal(out, chunk)


# --- what is wrong with a base --------------------------------------------------------------------


def broken(chain: Chain, words: list[np.ndarray], links: Links) -> _native.BrokenBase:
    with pytest.raises(_native.BrokenBase) as caught:
        chain.code(words, links)
    return caught.value


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_damaged_frame_is_an_error_that_names_it(tmp_path_factory, data: st.DataObject) -> None:
    chain = make_chain(tmp_path_factory.mktemp("chain"))
    link = data.draw(st.integers(0, 2))
    step, content = chain.steps[link], bytearray(chain.steps[link].path.read_bytes())
    chunk = data.draw(st.integers(0, 2))
    record = step.records[chunk]
    at = int(record["offset"]) + data.draw(st.integers(0, int(record["frame_bytes"]) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    step.path.write_bytes(content)
    with chain.links() as links:
        error = broken(chain, step.words, links)
        assert (error.run, error.chunk, error.link, error.errno) == (0, chunk, link, 0)
        assert f"chunk {chunk}" in str(error)
        assert f"link {link} of 3, from the oldest: {_native.STATUS[error.status]}" in str(error)
        for _, rows in links:
            rows[chunk] = 0
        chain.code(step.words, links)  # it is not read where it is not needed


@settings(max_examples=20, deadline=None)
@given(link=st.integers(0, 2), share=st.floats(0, 0.999))
def test_a_file_that_ends_early_is_an_error(tmp_path_factory, link: int, share: float) -> None:
    chain = make_chain(tmp_path_factory.mktemp("chain"))
    records = chain.steps[link].records
    ends = records["offset"] + records["frame_bytes"]
    n_bytes = int(int(ends[-1]) * share)
    os.truncate(chain.steps[link].path, n_bytes)
    with chain.links() as links:
        error = broken(chain, chain.steps[2].words, links)
    assert (error.link, error.chunk) == (link, int((ends <= n_bytes).sum()))
    assert _native.STATUS[error.status] == "frame is truncated"


def test_another_base_and_one_that_is_not_given_are_errors(tmp_path) -> None:
    chain = make_chain(tmp_path)
    words = chain.steps[2].words
    with chain.links() as links:
        (first, one, two) = links
        error = broken(chain, words, [first, two])
        assert (error.link, error.status) == (
            1,
            STATUS["delta: another base than it was coded against"],
        )
        error = broken(chain, words, [one, two])
        assert (error.link, error.status) == (0, STATUS["delta: the words of the base are needed"])
        swapped = links[0][1][[1, 0, 2]]
        assert (
            broken(chain, words, [(first[0], swapped)]).status
            == STATUS["frame disagrees with the layout"]
        )


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("offset", 1 << 63, "frame is truncated"),
        ("offset", (1 << 64) - 64, "frame is truncated"),
        ("frame_bytes", (1 << 32) - 64, "frame length is not possible"),
        ("frame_bytes", 0, "frame disagrees with the index"),
        ("offset", 64, "frame magic differs"),
        ("payload_crc32c", 5, "frame disagrees with the index"),
        ("codec", 200, "frame disagrees with the index"),
    ],
)
def test_records_that_lie_are_errors(tmp_path, field: str, value: int, text: str) -> None:
    chain = make_chain(tmp_path)
    chain.steps[1].records[field][1] = value
    with chain.links() as links:
        error = broken(chain, chain.steps[2].words, links)
    assert (error.chunk, error.link, _native.STATUS[error.status]) == (1, 1, text)


def test_what_the_system_refuses_is_told_by_its_number(tmp_path) -> None:
    chain = make_chain(tmp_path, n_steps=2)
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        with chain.links() as links:
            error = broken(chain, chain.steps[1].words, [links[0], (folder, links[1][1])])
    finally:
        os.close(folder)
    assert (error.link, error.errno) == (1, errno.EISDIR)
    assert os.strerror(errno.EISDIR) in str(error)


def test_an_error_of_one_thread_stops_the_others(tmp_path) -> None:
    chain = make_chain(tmp_path, n_chunks=12)
    chain.per_run = 1
    content = bytearray(chain.steps[0].path.read_bytes())
    content[int(chain.steps[0].records["offset"][4]) + 50] ^= 1
    chain.steps[0].path.write_bytes(content)
    with pytest.raises(_native.BrokenBase) as caught:
        chain.save(chain.steps[2].words, ["write", "code", "write"])
    assert (caught.value.run, caught.value.chunk, caught.value.link) == (4, 4, 0)


# --- what the writer holds ------------------------------------------------------------------------


def test_files_and_rows_are_held_until_close(tmp_path) -> None:
    chain = make_chain(tmp_path)
    words = [chunk + 1 for chunk in chain.steps[-1].words]
    n_open = len(os.listdir("/proc/self/fd"))
    with chain.links() as links:
        writer = chain.writer(words, np.zeros(3, stripe.RECORD), links)
        rows = [of_link for _, of_link in links]
    assert len(os.listdir("/proc/self/fd")) == n_open + 3
    for of_link in rows:
        with pytest.raises(ValueError, match="resize"):
            of_link.resize((1, 32))  # exported
    assert writer.code(chain.room(words)) is not None
    writer.close()
    assert len(os.listdir("/proc/self/fd")) == n_open


def test_words_that_are_not_coded_need_no_base(tmp_path) -> None:
    chain = make_chain(tmp_path, n_steps=1)
    chain.steps[0].path.write_bytes(b"")
    with chain.links() as links:
        assert chain.code(chain.steps[0].words, links, "off") is not None
        writer = chain.writer(chain.steps[0].words, np.zeros(3, stripe.RECORD), [], "auto")
        writer.code(chain.room(chain.steps[0].words))
    assert (writer.secs()["read_base"], writer.secs()["decode_base"]) == (0, 0)


def test_seconds_of_the_base_are_not_those_of_coding(tmp_path) -> None:
    chain = make_chain(tmp_path)
    words = chain.steps[2].words
    with chain.links() as links:
        writer = chain.writer(words, np.zeros(3, stripe.RECORD), links)
        writer.code(chain.room(words))
    secs = writer.secs()
    assert min(secs["read_base"], secs["decode_base"], secs["encode"]) > 0


def test_a_stop_ends_the_reading_of_bases(tmp_path, monkeypatch) -> None:
    rng = np.random.default_rng(1)
    chain = Chain(tmp_path, INT32)
    words = [rng.integers(0, 9, 200_000).astype(np.uint32) for _ in range(2)]
    chain.save(words)  # read one after the other
    entered, go_on = threading.Event(), threading.Event()
    n_calls, ended = [], []
    decompress = zstd.decompress

    def slow(coded: memoryview, n_bytes: int):
        n_calls.append(n_bytes)
        entered.set()
        assert go_on.wait(20)
        return decompress(coded, n_bytes)

    monkeypatch.setattr(zstd, "decompress", slow)
    with chain.links() as links:
        writer = chain.writer(words, np.zeros(2, stripe.RECORD), links)
        thread = threading.Thread(target=lambda: ended.append(writer.code(chain.room(words))))
        thread.start()
        assert entered.wait(20)
        writer.stop()
        with pytest.raises(ValueError, match="stop it and wait"):
            writer.close()
        go_on.set()
        thread.join(20)
    assert (ended, len(n_calls)) == ([None], 1)
    writer.close()


def test_wrong_links_are_wrong_arguments(tmp_path) -> None:
    chain = make_chain(tmp_path, n_steps=1)
    words = chain.steps[0].words
    with chain.links() as links:
        descriptor, rows = links[0]
        with pytest.raises(ValueError, match="records has 2 rows, but there are 3 chunks"):
            chain.writer(words, np.zeros(3, stripe.RECORD), [(descriptor, rows[:2])])  # cut by run
        for link in ((descriptor,), ("0", rows), (None, rows)):
            run: Any = (*next(chain.arguments(words, chain.steps[0].records, ()))[:4], [link])
            with pytest.raises(ValueError, match="descriptor of a file and records"):
                _native.RunWriter([run], offset=0, codec="auto", align_bytes=64)
        own = chain.steps[0].records.copy()
        with pytest.raises(ValueError, match="records shares memory with records of a base"):
            chain.writer(words, own, [(descriptor, own.view(np.uint8).reshape(3, 32))])
    with pytest.raises(OSError, match="Bad file descriptor"):
        chain.writer(words, own, [(descriptor, rows)])
