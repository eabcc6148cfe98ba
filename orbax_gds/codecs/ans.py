"""One byte of each word by an asymmetric numeral system of 4096 states. FORMAT §7.7."""

from dataclasses import dataclass

import numpy as np

from orbax_gds.codecs.payload import decode_payload, encode_payload
from orbax_gds.dtypes import Dtype
from orbax_gds.errors import Unsupported


@dataclass(frozen=True)
class Ans:
    """Codes exponents with the upper bits of the mantissa near their entropy."""

    id: int = 3
    name: str = "ans"

    def supports(self, dtype: Dtype) -> bool:
        """Return whether FORMAT §7.7 codes words of this dtype."""
        return dtype.is_modelled

    def encode(self, words: np.ndarray, dtype: Dtype) -> bytes:
        """Code one byte of each word, and what is left of it as it is.

        `_native.encode_frame` takes the columns of a matrix.
        """
        self._check(dtype)
        return encode_payload(words, dtype, "ans")

    def decode(self, payload: bytes, n_words: int, dtype: Dtype) -> np.ndarray:
        """Undo `encode`."""
        self._check(dtype)
        return decode_payload(payload, n_words, dtype, self.id)

    def _check(self, dtype: Dtype) -> None:
        if not self.supports(dtype):
            raise Unsupported(
                f"codec 'ans' does not code dtype {dtype.name}. Use codec 'raw' for it."
            )
