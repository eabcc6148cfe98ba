"""The line-up: our modes, and the peers with the settings that suit checkpoints."""

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from orbax_gds.bench.coders import BytesCoder, Coder, CopiesCoder, FrameCoder
from orbax_gds.dtypes import dtype_of, words_of

__all__ = ["CONTENDERS", "OURS", "Contender", "bind"]

OURS = "orbax_gds"  # codec "auto"

Maker = Callable[[Sequence[np.ndarray], int], Coder]


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A codec of the comparison.

    Attributes:
        name: Its name in the table.
        package: The import name of the package it needs, None for our own.
        make: Binds it to arrays of one dtype and a number of threads; a peer that has no threads
            takes one.
        dtypes: Names of the dtypes (FORMAT §5) that it takes; None for all.
    """

    name: str
    package: str | None = None
    make: Maker
    dtypes: frozenset[str] | None = None

    def missing(self, dtype: str | None = None) -> str | None:
        """Return why it cannot run here, or cannot take this dtype; None where it can."""
        if self.package is not None and importlib.util.find_spec(self.package) is None:
            return f"{self.package} is not installed (extra [bench])"
        if dtype is not None and self.dtypes is not None and dtype not in self.dtypes:
            return f"{self.package or self.name} takes no {dtype}"
        return None


def bind(contender: Contender, copies: Sequence[Sequence[np.ndarray]], n_threads: int) -> Coder:
    """Bind our codec to all copies of some arrays at once, as leaves; a peer to each by itself."""
    if contender.package is None:
        return contender.make([array for copy in copies for array in copy], n_threads)
    return CopiesCoder([contender.make(copy, n_threads) for copy in copies])


def _ours(codec: str) -> Maker:
    return lambda arrays, n_threads: FrameCoder(arrays, codec=codec, n_threads=n_threads)


def _words_name(arrays: Sequence[np.ndarray]) -> str:
    """Name of the dtype of a word: a complex number is two floats."""
    name = dtype_of(arrays[0].dtype).name
    return {"complex64": "float32", "complex128": "float64"}.get(name, name)


def _peer(package: str) -> Any:
    """Import a peer: optional, and without types that say what it takes."""
    return importlib.import_module(package)


def _zipnn(arrays: Sequence[np.ndarray], n_threads: int) -> Coder:
    name = _words_name(arrays)
    coder = _peer("zipnn").ZipNN(input_format="byte", bytearray_dtype=name, threads=n_threads)
    return BytesCoder(arrays, coder.compress, coder.decompress, overwrites_input=True)


def _zstd(arrays: Sequence[np.ndarray], n_threads: int, *, level: int) -> Coder:
    zstandard = _peer("zstandard")
    threads = n_threads if n_threads > 1 else 0  # 0: in the caller's thread
    compressor = zstandard.ZstdCompressor(level=level, threads=threads)
    return BytesCoder(arrays, compressor.compress, zstandard.ZstdDecompressor().decompress)


def _blosc2(arrays: Sequence[np.ndarray], n_threads: int, *, codec: str, shuffle: str) -> Coder:
    blosc2 = _peer("blosc2")
    settings = {
        "codec": blosc2.Codec[codec],
        "clevel": 1 if codec == "ZSTD" else 5,
        "typesize": words_of(arrays[0]).itemsize,
        "nthreads": n_threads,
        "filters": [blosc2.Filter[shuffle]],
    }
    return BytesCoder(
        arrays,
        lambda source: blosc2.compress2(source, **settings),
        lambda coded: blosc2.decompress2(coded, nthreads=n_threads),
    )


def _pcodec(arrays: Sequence[np.ndarray], n_threads: int) -> Coder:
    pcodec, standalone = _peer("pcodec"), _peer("pcodec.standalone")
    words = words_of(arrays[0]).dtype
    name = _words_name(arrays)
    numbers = np.dtype(name) if name in ("float16", "float32", "float64") else words
    # It advises against 8-bit numbers unless they are asked for: it then codes their distribution.
    config = pcodec.ChunkConfig(enable_8_bit=words.itemsize == 1)
    return BytesCoder(
        arrays,
        lambda source: standalone.simple_compress(np.frombuffer(source, numbers), config),
        lambda coded: standalone.simple_decompress(coded).view(np.uint8),
    )


_ZIPNN_DTYPES = frozenset(
    ("bfloat16", "float16", "float32", "complex64", "float8_e4m3fn", "float8_e5m2")
)

CONTENDERS = (
    Contender(name=OURS, make=_ours("auto")),
    Contender(name=f"{OURS} codec fast", make=_ours("fast")),
    Contender(name=f"{OURS} codec max", make=_ours("max")),
    Contender(name=f"{OURS} codec off", make=_ours("off")),
    Contender(name="zipnn", package="zipnn", make=_zipnn, dtypes=_ZIPNN_DTYPES),
    Contender(name="zstd-1", package="zstandard", make=partial(_zstd, level=1)),
    Contender(name="zstd-3", package="zstandard", make=partial(_zstd, level=3)),
    Contender(
        name="blosc2 zstd-1 shuffle",
        package="blosc2",
        make=partial(_blosc2, codec="ZSTD", shuffle="SHUFFLE"),
    ),
    Contender(
        name="blosc2 lz4 bitshuffle",
        package="blosc2",
        make=partial(_blosc2, codec="LZ4", shuffle="BITSHUFFLE"),
    ),
    Contender(name="pcodec", package="pcodec", make=_pcodec),
)
