"""The exponent ladder: exponents as ranks in nested levels of 1, 2 and 4 bits. FORMAT §7.4."""

from dataclasses import dataclass

import numpy as np

from orbax_gds.codecs.payload import decode_payload, encode_payload
from orbax_gds.dtypes import Dtype
from orbax_gds.errors import Unsupported


@dataclass(frozen=True)
class Ladder:
    """Codes floating-point words whose exponents lie in a narrow window."""

    id: int = 1
    name: str = "ladder"

    def supports(self, dtype: Dtype) -> bool:
        """Return whether the native core splits words of this dtype (FORMAT §7.2)."""
        return dtype.split is not None

    def encode(self, words: np.ndarray, dtype: Dtype) -> bytes:
        """Code the exponents as levels, and sign and mantissa as they are."""
        self._check(dtype)
        return encode_payload(words, dtype, "ladder")

    def decode(self, payload: bytes, n_words: int, dtype: Dtype) -> np.ndarray:
        """Undo `encode`."""
        self._check(dtype)
        return decode_payload(payload, n_words, dtype, self.id)

    def _check(self, dtype: Dtype) -> None:
        if not self.supports(dtype):
            raise Unsupported(
                f"codec 'ladder' has no split for dtype {dtype.name}. Use codec 'raw' for it."
            )
