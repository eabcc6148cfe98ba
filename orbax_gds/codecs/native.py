"""A codec of the native core, called for one payload at a time. FORMAT §7."""

from dataclasses import dataclass

import numpy as np

from orbax_gds.codecs.payload import NativeName, decode_payload, encode_payload
from orbax_gds.dtypes import Dtype
from orbax_gds.errors import Unsupported


@dataclass(frozen=True, kw_only=True)
class NativeCodec:
    """One codec that the native core has, by what sets it apart from the others.

    Whole chunks, with their columns and block maps, go through `_native.encode_frame`.

    Attributes:
        id: Number in frames.
        name: What the native core calls it.
        dtypes: What FORMAT §7 gives it to code.

    Example:
        >>> raw = NativeCodec(id=0, name="raw", dtypes=DTYPES)
    """

    id: int
    name: NativeName
    dtypes: tuple[Dtype, ...]

    def supports(self, dtype: Dtype) -> bool:
        """Return whether words of this dtype can be coded."""
        return dtype in self.dtypes

    def encode(self, words: np.ndarray, dtype: Dtype) -> bytes:
        """Code words, whether or not it pays."""
        self._check(dtype)
        return encode_payload(words, dtype, self.name)

    def decode(self, payload: bytes, n_words: int, dtype: Dtype) -> np.ndarray:
        """Undo `encode`."""
        self._check(dtype)
        return decode_payload(payload, n_words, dtype, self.id)

    def _check(self, dtype: Dtype) -> None:
        if not self.supports(dtype):
            raise Unsupported(
                f"codec {self.name!r} does not code dtype {dtype.name}. Use codec 'raw' for it."
            )
