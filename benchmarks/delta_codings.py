"""Codings of `delta`: size and speed against a base, ours and the peers', on one thread."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

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


def coding_rows(
    series: Mapping[str, Sequence[Path]], *, repetitions: int, lock: Path | None = None
) -> tuple[list[Row], list[Bar]]:
    """Code steps against their base on one thread, ours and the peers'.

    Args:
        series: Name to train states: the base, then the steps to code against it, each named by
            how its file is called.
        repetitions: Timed repetitions of each way.
        lock: File that is locked while a step is coded, for a machine that is shared.

    A further step is made of the first base: 95 % of its words are the base's.
    """
    keep_freed_memory()
    rows: list[Row] = []
    bars: list[Bar] = []
    with pinned(1):
        for kind, name in KINDS.items():
            dtype = dtype_by_name(name)
            for number, (base_path, *later) in enumerate(series.values()):
                base = _words(base_path, kind)
                steps = {f"{kind}, {path.stem}": _words(path, kind) for path in later}
                if number == 0:
                    near = np.random.default_rng(1).random(base.size) > UNCHANGED_SHARE
                    steps[f"{kind}, unchanged"] = base + near.astype(base.dtype)
                for group, words in steps.items():
                    say(f"delta: {group}")
                    with locked(lock):
                        of_group = compare(group, base, words, dtype, repetitions=repetitions)
                    rows += of_group
                    bars += _bars(of_group, group, dtype)
    return rows, bars


def _words(path: Path, kind: str) -> np.ndarray:
    leaves = read_leaves(path)[kind]
    word = np.uint16 if kind == "params_bf16" else np.uint32
    return np.concatenate([leaf.reshape(-1).view(word) for leaf in leaves.values()])


def compare(
    group: str,
    base: np.ndarray,
    words: np.ndarray,
    dtype: Dtype,
    *,
    repetitions: int,
    sweep_bytes: int = SWEEP_BYTES,
) -> list[Row]:
    """Code one step against its base in every way, and without it.

    Args:
        group: Name of the step.
        base: Words of the base.
        words: As many words of the step.
        dtype: What they are.
        repetitions: Timed repetitions; one more is run first and discarded.
        sweep_bytes: Memory that is written before each timed call, so that caches hold nothing.

    Raises:
        RuntimeError: Our coding returned other words than it was given.
    """
    n_copies = -(-WORKING_SET_BYTES // words.nbytes)
    of_base, ours, alone = (Run(np.tile(some, n_copies), dtype) for some in (base, words, words))
    of_base.encode(None)
    n_words = ours.words.size
    rows = []
    for name, run, link in ((OURS, ours, of_base), (DIRECT, alone, None)):
        calls = partial(run.encode, link), partial(run.decode, link)
        samples = _time(run.words, *calls, repetitions, sweep_bytes)
        if not run.came_back():
            raise RuntimeError(f"{group}: {name} returned other words.")
        samples["bits"] = [8 * run.frame_bytes() / n_words]
        rows.append(Row(group=group, name=name, samples=samples))
    for name, make in ((XOR, _xor_zstd), (ZIPNN, _zipnn)):
        try:
            encode, decode, coded_bytes = make(of_base.words, ours.words, dtype)
        except ImportError as error:
            rows.append(Row(group=group, name=name, skipped=f"{error.name} is not installed"))
            continue
        samples = _time(ours.words, encode, decode, repetitions, sweep_bytes)
        samples["bits"] = [8 * coded_bytes() / n_words]
        rows.append(Row(group=group, name=name, samples=samples))
    return rows


def _time(
    words: np.ndarray,
    encode: Callable[[], object],
    decode: Callable[[], object],
    repetitions: int,
    sweep_bytes: int,
) -> dict[str, list[float]]:
    sweep, target = np.ones(sweep_bytes, np.uint8), np.ones_like(words)
    samples: dict[str, list[float]] = {}
    for repetition in range(repetitions + 1):
        speeds = {}
        for what, call in (
            ("memcpy", lambda: np.copyto(target, words)),
            ("encode", encode),
            ("decode", decode),
        ):
            sweep += 1
            start = time.perf_counter()
            call()
            speeds[what] = words.nbytes / (time.perf_counter() - start) / 1e9
        if repetition:
            for what, speed in speeds.items():
                samples.setdefault(f"{what}_gbps", []).append(speed)
            for what in ("encode", "decode"):
                ratio = speeds[what] / speeds["memcpy"]
                samples.setdefault(f"{what}_x_memcpy", []).append(ratio)
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
