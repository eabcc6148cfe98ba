"""One codec bound to arrays, behind one interface: our frames, and peers on bytes."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from orbax_gds import _native
from orbax_gds.codecs.zstd import LEVELS
from orbax_gds.dtypes import dtype_of, words_of
from orbax_gds.options import Options
from orbax_gds.plan import Run, ShardBox, make_plan
from orbax_gds.stripe import PAGE_BYTES, RECORD_BYTES
from orbax_gds.threads import run_tasks

__all__ = ["BytesCoder", "Coder", "CopiesCoder", "FrameCoder", "source_bytes"]


class Coder(Protocol):
    """One codec bound to arrays."""

    def encode(self) -> int:
        """Encode all arrays and return the number of coded bytes."""
        ...

    def decode(self) -> None:
        """Decode what `encode` left."""

    def decoded(self) -> np.ndarray:
        """Return what `decode` left, as uint8[n_bytes], the arrays end to end."""
        ...


def source_bytes(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return the words of arrays end to end: uint8[n_bytes]."""
    return np.concatenate([words_of(array).view(np.uint8) for array in arrays])


class FrameCoder:
    """Our frames: the arrays planned as leaves, in the engine's native calls, CRC included.

    Args:
        arrays: C-contiguous, of dtypes of FORMAT §5; their shapes are the leaves' shapes.
        codec: As in `Options`.
        n_threads: Threads that share the runs.

    Raises:
        Unsupported: A dtype is not in FORMAT §5.
    """

    def __init__(
        self, arrays: Sequence[np.ndarray], *, codec: str = "auto", n_threads: int = 1
    ) -> None:
        self._codec, self._n_threads = codec, n_threads
        arrays = [array for array in arrays if array.size]
        sources = [words_of(array).view(np.uint8) for array in arrays]
        sizes = [source.size for source in sources]
        self._target = np.full(sum(sizes), 0xFF, np.uint8)
        targets = _cut(self._target, sizes)
        dtypes = [dtype_of(array.dtype) for array in arrays]
        boxes = [
            ShardBox(leaf=leaf, start=(0,) * array.ndim, extent=array.shape)
            for leaf, array in enumerate(arrays)
        ]
        plan = make_plan(boxes, dtypes, int(Options().chunk_bytes))
        rooms = [_room(run) for run in plan.runs]
        # Touched before the timed part, as the engine's buffers are.
        frames = _cut(np.full(sum(rooms), 0xFF, np.uint8), rooms)
        self._runs = [
            _BoundRun(run, out, sources, targets)
            for run, out in zip(plan.runs, frames, strict=True)
        ]

    def encode(self) -> int:
        self._share(lambda run: run.encode(self._codec))
        return sum(run.n_bytes for run in self._runs)

    def decode(self) -> None:
        self._share(lambda run: run.decode())

    def decoded(self) -> np.ndarray:
        return self._target

    def _share(self, work: Callable[["_BoundRun"], None]) -> None:
        run_tasks(self._runs, work, min(self._n_threads, len(self._runs)))


class _BoundRun:
    """One run of a plan with the memory that its calls read and write."""

    def __init__(
        self,
        run: Run,
        out: np.ndarray,
        sources: Sequence[np.ndarray],
        targets: Sequence[np.ndarray],
    ) -> None:
        own = slice(run.first_buffer, run.end_buffer)
        self._run, self._out = run, out
        self._sources, self._targets = list(sources[own]), list(targets[own])
        self._records = np.zeros((len(run.chunks), RECORD_BYTES), np.uint8)
        self.n_bytes = 0

    def encode(self, codec: str) -> None:
        self.n_bytes = _native.encode_run(
            self._sources,
            self._run.segments,
            self._run.chunks,
            self._out,
            self._records,
            codec=codec,
            align_bytes=PAGE_BYTES,
            zstd_level=LEVELS.get(codec, 0),
        )

    def decode(self) -> None:
        status, chunk = _native.decode_run(
            self._out[: self.n_bytes],
            self._records,
            np.ascontiguousarray(self._run.chunks[:, :4]),
            self._targets,
            np.pad(self._run.segments, ((0, 0), (0, 1))),  # all as they are stored
        )
        if status != 0:
            raise RuntimeError(f"chunk {chunk} of a run: {_native.STATUS[status]}")


def _cut(memory: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
    ends = np.cumsum(sizes, dtype=np.int64).tolist()
    return [memory[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def _room(run: Run) -> int:
    """Bytes that the frames of a run may need."""
    return PAGE_BYTES + sum(
        _native.max_frame_bytes(int(n_words), int(dtype)) for _, n_words, dtype, *_ in run.chunks
    )


class BytesCoder:
    """A peer whose calls take bytes and return bytes.

    Args:
        arrays: All of one dtype; the peer sees their words end to end, in a copy.
        compress, decompress: The peer's calls.
        overwrites_input: Whether `compress` writes into what it is given; it can then encode once.
    """

    def __init__(
        self,
        arrays: Sequence[np.ndarray],
        compress: Callable[[Any], bytes],
        decompress: Callable[[bytes], Any],
        *,
        overwrites_input: bool = False,
    ) -> None:
        words = source_bytes(arrays)
        self._source: Any = bytearray(words) if overwrites_input else words.tobytes()
        self._compress, self._decompress = compress, decompress
        self._coded = b""
        self._decoded: Any = b""

    def encode(self) -> int:
        self._coded = self._compress(self._source)
        return len(self._coded)

    def decode(self) -> None:
        self._decoded = self._decompress(self._coded)

    def decoded(self) -> np.ndarray:
        return np.frombuffer(self._decoded, np.uint8)


class CopiesCoder:
    """Coders of copies of the same arrays, one call after the other."""

    def __init__(self, coders: Sequence[Coder]) -> None:
        self._coders = coders

    def encode(self) -> int:
        return sum(coder.encode() for coder in self._coders)

    def decode(self) -> None:
        for coder in self._coders:
            coder.decode()

    def decoded(self) -> np.ndarray:
        return np.concatenate([coder.decoded() for coder in self._coders])
