"""Codings of `delta`: size and speed against a base, ours and the peers', on one thread.

Processors change their speed from one second to the next, those of virtual machines by half and
more, and a memcpy changes less than a coder does. So nothing is timed in one burst: there are
several passes over all steps, and in each repetition of a step every way has its turn, ours and
the peers' alike. A call is compared with the memcpys just before and just after it, the mean of
their times: that is one ratio. Caches are swept before every timed call. What is reported are
medians over all repetitions of all passes, none left out but the first of each pass, in which
memory is touched.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from benchmarks.cells import locked
from benchmarks.progress import say
from benchmarks.result import Bar, Row, find_row, make_bar
from benchmarks.state import read_leaves
from orbax_gds import _native
from orbax_gds.bench.timing import keep_freed_memory, pinned
from orbax_gds.dtypes import Dtype, dtype_by_name

CHUNK_BYTES, RUN_BYTES, ALIGN_BYTES = 1 << 20, 8 << 20, 4096  # the engine's
WORKING_SET_BYTES = 16_000_000  # chosen: with bases, frames and destination, above the caches
SWEEP_BYTES = 64 << 20
OURS, DIRECT, XOR, ZIPNN = "orbax_gds", "orbax_gds without base", "XOR + zstd-1", "zipnn delta"
KINDS = {"params_bf16": "bfloat16", "master_f32": "float32"}
UNCHANGED_SHARE = 0.95
PASSES = 3  # chosen: half a minute and more apart


@dataclass
class Run:
    """Words of one step, coded through the calls of the engine."""

    words: np.ndarray
    dtype: Dtype
    pieces: list[tuple[Any, ...]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        n_words = CHUNK_BYTES // self.words.itemsize
        for at in range(0, self.words.size, RUN_BYTES // self.words.itemsize):
            part = self.words[at : at + RUN_BYTES // self.words.itemsize]
            counts = [min(n_words, part.size - first) for first in range(0, part.size, n_words)]
            chunks = np.array([[i, n, self.dtype.id, 1, 0] for i, n in enumerate(counts)], "u4")
            segments = np.array([[0, CHUNK_BYTES * i, 0, n, 0] for i, n in enumerate(counts)], "u8")
            room = sum(_native.max_frame_bytes(n, self.dtype.id) for n in counts) + ALIGN_BYTES
            records = np.zeros((len(counts), 32), np.uint8)
            out = np.full(room, 1, np.uint8)
            self.pieces.append((part, chunks, segments, out, records, np.ones_like(part)))

    def encode(self, base: "Run | None") -> None:
        """Code the words, against a base if there is one."""
        self.sizes = [
            _native.encode_run(
                [part],
                np.ascontiguousarray(segments[:, :4]),
                chunks,
                out,
                records,
                codec="auto",
                align_bytes=ALIGN_BYTES,
                bases=[] if base is None else [base.link(i)],
            )
            for i, (part, chunks, segments, out, records, _) in enumerate(self.pieces)
        ]

    def link(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        """Return frames and records of a run."""
        return self.pieces[i][3][: self.sizes[i]], self.pieces[i][4]

    def decode(self, base: "Run | None") -> None:
        """Decode what was coded.

        Raises:
            RuntimeError: The core refused it.
        """
        for i, (_, chunks, segments, _, records, words) in enumerate(self.pieces):
            status = _native.decode_run(
                self.link(i)[0],
                records,
                np.ascontiguousarray(chunks[:, :4]),
                [words],
                segments,
                bases=[] if base is None else [base.link(i)],
            )
            if status != (0, 0):
                raise RuntimeError(f"delta: {_native.STATUS[status[0]]}")

    def frame_bytes(self) -> int:
        """Bytes of all frames, each padded to 64 bytes only."""
        payload = [piece[4][:, 16:20].copy().view("u4") for piece in self.pieces]
        return int(sum(((32 + bytes_ + 63) // 64 * 64).sum() for bytes_ in payload))

    def came_back(self) -> bool:
        """Whether the words that were decoded are those that were coded."""
        return all((part == words).all() for part, *_, words in self.pieces)


@dataclass(frozen=True)
class Step:
    """Words to code against those of a base; there are as many of each."""

    group: str
    dtype: Dtype
    base: np.ndarray
    words: np.ndarray


def coding_rows(
    series: Mapping[str, Sequence[Path]], *, repetitions: int, lock: Path | None = None
) -> tuple[list[Row], list[Bar]]:
    """Code steps against their base on one thread, ours and the peers'.

    Args:
        series: Name to train states: the base, then the steps to code against it, each named by
            how its file is called.
        repetitions: Timed repetitions of each way, in equal parts (rounded up) in each pass.
        lock: File that is locked while a step is coded, for a machine that is shared.

    A further step is made of the first base: 95 % of its words are the base's.
    """
    keep_freed_memory()
    found: dict[str, list[Row]] = {}
    dtypes: dict[str, Dtype] = {}
    with pinned(1):
        for number in range(PASSES):
            say(f"delta: codings, pass {number + 1} of {PASSES}")
            for step in _steps(series):
                with locked(lock):
                    rows = compare(step, repetitions=-(-repetitions // PASSES))
                earlier = found.get(step.group)
                found[step.group] = _joined(earlier, rows) if earlier else rows
                dtypes[step.group] = step.dtype
    rows = [row for of_group in found.values() for row in of_group]
    bars = [bar for group in found for bar in _bars(rows, group, dtypes[group])]
    return rows, bars


def _steps(series: Mapping[str, Sequence[Path]]) -> Iterator[Step]:
    for kind, name in KINDS.items():
        dtype = dtype_by_name(name)
        for number, (base_path, *later) in enumerate(series.values()):
            base = _words(base_path, kind)
            for path in later:
                yield Step(f"{kind}, {path.stem}", dtype, base, _words(path, kind))
            if number == 0:
                near = np.random.default_rng(1).random(base.size) > UNCHANGED_SHARE
                yield Step(f"{kind}, unchanged", dtype, base, base + near.astype(base.dtype))


def _joined(earlier: Sequence[Row], later: Sequence[Row]) -> list[Row]:
    """Rows with the samples of both; sizes are the same in every pass."""
    return [
        replace(
            row,
            samples={
                quantity: samples if quantity == "bits" else samples + more.samples[quantity]
                for quantity, samples in row.samples.items()
            },
        )
        for row, more in zip(earlier, later, strict=True)
    ]


def _words(path: Path, kind: str) -> np.ndarray:
    leaves = read_leaves(path)[kind]
    word = np.uint16 if kind == "params_bf16" else np.uint32
    return np.concatenate([leaf.reshape(-1).view(word) for leaf in leaves.values()])


def compare(step: Step, *, repetitions: int, sweep_bytes: int = SWEEP_BYTES) -> list[Row]:
    """Code a step against its base in every way, and without it.

    Args:
        step: The words.
        repetitions: Timed repetitions; one more is run first and discarded.
        sweep_bytes: Memory that is written before each timed call, so that caches hold nothing.

    Raises:
        RuntimeError: Our coding returned other words than it was given.
    """
    group, dtype = step.group, step.dtype
    n_copies = -(-WORKING_SET_BYTES // step.words.nbytes)
    of_base, ours, alone = (
        Run(np.tile(some, n_copies), dtype) for some in (step.base, step.words, step.words)
    )
    of_base.encode(None)
    ways: dict[str, Peer] = {
        OURS: (partial(ours.encode, of_base), partial(ours.decode, of_base), ours.frame_bytes),
        DIRECT: (partial(alone.encode, None), partial(alone.decode, None), alone.frame_bytes),
    }
    skipped = {}
    for name, make in ((XOR, _xor_zstd), (ZIPNN, _zipnn)):
        try:
            ways[name] = make(of_base.words, ours.words, dtype)
        except ImportError as error:
            skipped[name] = Row(group=group, name=name, skipped=f"{error.name} is not installed")
    timed = _time(ours.words, ways, repetitions, sweep_bytes)
    for name, run in ((OURS, ours), (DIRECT, alone)):
        if not run.came_back():
            raise RuntimeError(f"{group}: {name} returned other words.")
    for name, (_, _, coded_bytes) in ways.items():
        timed[name]["bits"] = [8 * coded_bytes() / ours.words.size]
    rows = {name: Row(group=group, name=name, samples=some) for name, some in timed.items()}
    return [(rows | skipped)[name] for name in (OURS, DIRECT, XOR, ZIPNN)]


def _time(
    words: np.ndarray, ways: "Mapping[str, Peer]", repetitions: int, sweep_bytes: int
) -> dict[str, dict[str, list[float]]]:
    sweep, target = np.ones(sweep_bytes, np.uint8), np.ones_like(words)

    def seconds(call: Callable[[], object]) -> float:
        np.add(sweep, 1, out=sweep)
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    copy = partial(np.copyto, target, words)
    samples: dict[str, dict[str, list[float]]] = {name: {} for name in ways}
    for repetition in range(repetitions + 1):
        after = seconds(copy)
        for name, (encode, decode, _) in ways.items():
            copies, calls = [after], []
            for call in (encode, decode):
                calls.append(seconds(call))
                copies.append(after := seconds(copy))
            if repetition == 0:
                continue
            of_way = samples[name]
            for i, what in enumerate(("encode", "decode")):
                of_way.setdefault(f"{what}_gbps", []).append(words.nbytes / calls[i] / 1e9)
                beside = (copies[i] + copies[i + 1]) / 2
                of_way.setdefault(f"{what}_x_memcpy", []).append(beside / calls[i])
            of_way.setdefault("memcpy_gbps", []).append(3 * words.nbytes / sum(copies) / 1e9)
    return samples


Peer = tuple[Callable[[], object], Callable[[], object], Callable[[], int]]


def _xor_zstd(base: np.ndarray, words: np.ndarray, dtype: Dtype) -> Peer:
    import zstandard

    coder, reader = zstandard.ZstdCompressor(level=1), zstandard.ZstdDecompressor()
    width = words.itemsize
    coded: dict[bool, list[bytes]] = {}

    def encode(planes: bool) -> None:
        octets = (words ^ base).view(np.uint8)
        pieces = octets.reshape(-1, width).T if planes else [octets]
        coded[planes] = [coder.compress(np.ascontiguousarray(piece).data) for piece in pieces]

    def n_bytes(planes: bool) -> int:
        return sum(map(len, coded[planes]))

    encode(True)
    encode(False)
    best = n_bytes(True) < n_bytes(False)

    def decode() -> np.ndarray:
        pieces = [np.frombuffer(reader.decompress(piece), np.uint8) for piece in coded[best]]
        octets = np.stack(pieces, axis=1).reshape(-1) if best else pieces[0]
        return octets.view(words.dtype) ^ base

    return lambda: encode(best), decode, lambda: n_bytes(best)


def _zipnn(base: np.ndarray, words: np.ndarray, dtype: Dtype) -> Peer:
    import zipnn

    coder = zipnn.ZipNN(
        input_format="byte", bytearray_dtype=dtype.name, threads=1, delta_compressed_type="byte"
    )
    coded: list[bytes] = []

    def encode() -> None:
        # it changes what it is given
        coded[:] = [coder.compress(bytearray(words.tobytes()), delta_second_data=base.tobytes())]

    def decode() -> object:
        return coder.decompress(coded[0], delta_second_data=base.tobytes())

    encode()
    return encode, decode, lambda: len(coded[0])


def _bars(rows: list[Row], group: str, dtype: Dtype) -> list[Bar]:
    def median(name: str, quantity: str) -> float | None:
        row = find_row(rows, group=group, name=name)
        return None if row is None else row.median(quantity)

    def smaller_than(peer: str) -> float | None:
        theirs, ours = median(peer, "bits"), median(OURS, "bits")
        return None if theirs is None or ours is None else theirs / ours

    is_bf16 = dtype.name == "bfloat16"
    bars = []
    if group.endswith("unchanged"):
        bits = median(OURS, "bits")
        share = None if bits is None else bits / dtype.bits
        bars.append(make_bar(f"{group}: share of the words' size", share, "<=", 0.06))
    else:
        limit = 1.12 if is_bf16 else 1.05
        bars.append(make_bar(f"{group}: smaller than {XOR}", smaller_than(XOR), ">=", limit))
        if is_bf16:
            bars.append(make_bar(f"{group}: smaller than {ZIPNN}", smaller_than(ZIPNN), ">=", 1.12))
    encode = 0.15 if is_bf16 else 0.20
    for way, limit in (("encode", encode), ("decode", 0.25)):
        measured = median(OURS, f"{way}_x_memcpy")
        bars.append(make_bar(f"{group}: {way} x memcpy", measured, ">=", limit))
    return bars
