"""The codecs this version knows, by the id in a frame and by name. FORMAT §7 and §9."""

from typing import Protocol

import numpy as np

from orbax_gds.codecs.delta import DeltaCodec
from orbax_gds.codecs.native import NativeCodec
from orbax_gds.dtypes import DTYPES, Dtype
from orbax_gds.errors import Unsupported


class Codec(Protocol):
    """One way to code words. A new one subclasses `testing.CodecConformance` in its tests."""

    @property
    def id(self) -> int:
        """Number in frames, given once and never reused."""
        ...

    @property
    def name(self) -> str:
        """Name in options and reports."""
        ...

    def supports(self, dtype: Dtype) -> bool:
        """Return whether words of this dtype can be coded."""
        ...

    def encode(self, words: np.ndarray, dtype: Dtype) -> bytes:
        """Code words, without a block map.

        Args:
            words: 1-d contiguous, at least one, of `dtype.word_dtype`.
            dtype: What they are.

        Raises:
            Unsupported: `supports(dtype)` is false.
        """
        ...

    def decode(self, payload: bytes, n_words: int, dtype: Dtype) -> np.ndarray:
        """Return the words of a payload that `encode` made, bits above `dtype.bits` 0.

        Raises:
            Corrupt: No sequence of `n_words` words has this payload.
            Unsupported: `supports(dtype)` is false.
        """
        ...


_SPLIT = tuple(dtype for dtype in DTYPES if dtype.split is not None)
_MODELLED = tuple(dtype for dtype in DTYPES if dtype.is_modelled)
_BYTES = tuple(dtype for dtype in DTYPES if dtype.bits <= 8)

CODECS: tuple[Codec, ...] = (
    NativeCodec(id=0, name="raw", dtypes=DTYPES),  # §7.3
    NativeCodec(id=1, name="ladder", dtypes=_SPLIT),  # §7.4
    NativeCodec(id=2, name="modelled", dtypes=_MODELLED),  # §7.6
    NativeCodec(id=3, name="ans", dtypes=_MODELLED),  # §7.7
    NativeCodec(id=4, name="zstd", dtypes=DTYPES),  # §7.8
    NativeCodec(id=5, name="huffman", dtypes=_BYTES),  # §7.9
    DeltaCodec(id=6),  # §7.11
)

_BY_ID = {codec.id: codec for codec in CODECS}
_BY_NAME = {codec.name: codec for codec in CODECS}


def codec_by_id(number: int) -> Codec:
    """Look up the codec of a frame.

    Raises:
        Unsupported: No codec of this version has the id.
    """
    try:
        return _BY_ID[number]
    except KeyError:
        raise Unsupported(
            f"codec {number} is unknown; known are {sorted(_BY_ID)}. Update orbax_gds."
        ) from None


def codec_by_name(name: str) -> Codec:
    """Look up a codec by its name.

    Raises:
        Unsupported: No codec of this version has the name.
    """
    try:
        return _BY_NAME[name]
    except KeyError:
        raise Unsupported(f"codec {name!r} is unknown; known are {sorted(_BY_NAME)}.") from None
