"""Codecs behind one interface: ours as the engine calls it, and the peers on their byte APIs.

The peers are optional (extra [bench]) and imported where they are bound to an array.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from orbax_gds import _native
from orbax_gds.dtypes import dtype_of, words_of
from orbax_gds.options import Options
from orbax_gds.plan import RUN_BYTES
from orbax_gds.stripe import PAGE_BYTES

CHUNK_BYTES = int(Options().chunk_bytes)
RUN_CHUNKS = RUN_BYTES // CHUNK_BYTES  # a call of the engine's workers


class Coder(Protocol):
    """One codec bound to one array."""

    def reset(self) -> None:
        """Bring the input back, outside the timed part, where the codec writes into it."""

    def encode(self) -> int:
        """Encode the whole array and return the number of coded bytes."""
        ...

    def decode(self) -> None:
        """Decode what `encode` left."""

    def decoded(self) -> np.ndarray:
        """Return what `decode` left, as uint8[n_bytes]."""
        ...


class FrameCoder:
    """Our frames: runs of 1 MiB chunks through the native calls of the engine, CRC included."""

    def __init__(self, values: np.ndarray, *, codec: Literal["auto", "off"] = "auto") -> None:
        dtype = dtype_of(values.dtype)
        words = words_of(values)
        self._codec = codec
        self._source = words.view(np.uint8)
        self._target = np.full(values.nbytes, 0xFF, np.uint8)
        chunk_words = CHUNK_BYTES // words.itemsize
        starts = np.arange(0, words.size, chunk_words, dtype=np.uint64)
        lengths = np.minimum(chunk_words, words.size - starts.astype(np.int64))
        numbers = np.arange(starts.size)
        zeros = np.zeros(starts.size, np.uint64)
        columns = (numbers, lengths, np.full_like(numbers, dtype.id), np.ones_like(numbers))
        self._chunks = np.stack(columns, axis=1).astype(np.uint32)
        self._segments = np.stack(
            (zeros, starts * np.uint64(words.itemsize), zeros, lengths.astype(np.uint64)), axis=1
        )
        bounds = [_native.max_frame_bytes(int(n), dtype.id) + PAGE_BYTES for n in lengths]
        self._frames = np.full(sum(bounds), 0xFF, np.uint8)
        self._records = np.zeros((starts.size, 32), np.uint8)
        self._runs: list[tuple[slice, int, int]] = []

    def reset(self) -> None:
        """Nothing to do: the input is only read."""

    def encode(self) -> int:
        at = 0
        self._runs = []
        for first in range(0, len(self._chunks), RUN_CHUNKS):
            run = slice(first, first + RUN_CHUNKS)
            n_bytes = _native.encode_run(
                [self._source],
                self._segments[run],
                self._chunks[run],
                self._frames[at:],
                self._records[run],
                codec=self._codec,
                align_bytes=PAGE_BYTES,
            )
            self._runs.append((run, at, at + n_bytes))
            at += n_bytes
        return at

    def decode(self) -> None:
        for run, start, end in self._runs:
            status, chunk = _native.decode_run(
                self._frames[start:end],
                self._records[run],
                self._chunks[run],
                [self._target],
                self._segments[run],
            )
            if status != 0:
                raise RuntimeError(f"chunk {run.start + chunk}: {_native.STATUS[status]}")

    def decoded(self) -> np.ndarray:
        return self._target


class BytesCoder:
    """A peer whose calls take bytes and return bytes."""

    def __init__(
        self,
        values: np.ndarray,
        compress: Callable[[Any], bytes],
        decompress: Callable[[bytes], Any],
        *,
        overwrites_input: bool = False,
    ) -> None:
        self._original = words_of(values).view(np.uint8)
        self._source: Any = self._original.tobytes()
        if overwrites_input:
            self._source = bytearray(self._source)
        self._compress, self._decompress = compress, decompress
        self._coded = b""
        self._decoded: Any = b""

    def reset(self) -> None:
        if isinstance(self._source, bytearray):
            np.frombuffer(self._source, np.uint8)[:] = self._original

    def encode(self) -> int:
        self._coded = b""  # freed first, so that the result lands in memory touched before
        self._coded = self._compress(self._source)
        return len(self._coded)

    def decode(self) -> None:
        self._decoded = b""
        self._decoded = self._decompress(self._coded)

    def decoded(self) -> np.ndarray:
        return np.frombuffer(self._decoded, np.uint8)


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A codec of the comparison.

    Attributes:
        name: Its name in the table.
        package: The distribution it needs, None for our own.
        make: Binds it to an array.
    """

    name: str
    package: str | None
    make: Callable[[np.ndarray], Coder]

    def missing(self) -> str | None:
        """Return why it cannot run here, None where it can."""
        if self.package is None or importlib.util.find_spec(self.package) is not None:
            return None
        return f"{self.package} is not installed (extra [bench])"


def _zipnn(values: np.ndarray) -> Coder:
    from zipnn import ZipNN

    coder = ZipNN(input_format="byte", bytearray_dtype=values.dtype.name, threads=1)
    return BytesCoder(values, coder.compress, coder.decompress, overwrites_input=True)


def _zstd(values: np.ndarray) -> Coder:
    import zstandard

    compressor, decompressor = zstandard.ZstdCompressor(level=1), zstandard.ZstdDecompressor()
    return BytesCoder(values, compressor.compress, decompressor.decompress)


def _blosc2(values: np.ndarray) -> Coder:
    import blosc2

    settings = {
        "codec": blosc2.Codec.ZSTD,
        "clevel": 1,
        "typesize": values.itemsize,
        "nthreads": 1,
        "filters": [blosc2.Filter.SHUFFLE],
    }
    return BytesCoder(
        values,
        lambda source: blosc2.compress2(source, **settings),
        lambda coded: blosc2.decompress2(coded, nthreads=1),
    )


OURS = "orbax_gds"
CONTENDERS = (
    Contender(name=OURS, package=None, make=FrameCoder),
    Contender(
        name=f"{OURS} codec off",
        package=None,
        make=lambda values: FrameCoder(values, codec="off"),
    ),
    Contender(name="zipnn", package="zipnn", make=_zipnn),
    Contender(name="zstd-1", package="zstandard", make=_zstd),
    Contender(name="blosc2 zstd-1 shuffle", package="blosc2", make=_blosc2),
)
