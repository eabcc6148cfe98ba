"""Chains of runs in files, as savers hand them to the native writer."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from orbax_gds import _native, stripe
from orbax_gds.dtypes import Dtype, dtype_by_name
from orbax_gds.threads import run_threads

FP32, INT32 = dtype_by_name("float32"), dtype_by_name("int32")
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
                np.isin(np.arange(len(words))[here], self.marked),
            )

    def rows(self, n_steps: int) -> list[np.ndarray]:
        """Return the rows of each link of what follows on so many steps."""
        rows = [step.rows().copy() for step in self.steps[:n_steps]]
        needed = np.ones(len(rows[0]) if rows else 0, bool)
        for step, of_link in zip(self.steps[:n_steps][::-1], rows[::-1], strict=True):
            if self.drops:
                of_link[~needed] = 0
            needed &= step.records["flags"] & 2 != 0
        return rows

    @contextlib.contextmanager
    def links(self, n_steps: int | None = None) -> Iterator[Links]:
        n_steps = len(self.steps) if n_steps is None else n_steps
        flags = os.O_RDONLY | (os.O_DIRECT if self.direct else 0)
        with contextlib.ExitStack() as stack:
            files = [os.open(step.path, flags) for step in self.steps[:n_steps]]
            for descriptor in files:
                stack.callback(os.close, descriptor)
            yield list(zip(files, self.rows(n_steps), strict=True))

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
        for buffers, segments, chunks, own, *_ in self.arguments(step.words, into, ()):
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
