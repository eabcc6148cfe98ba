"""The ladder after rows, columns, signs and low bits are taken out of the words. FORMAT §7.6."""

from dataclasses import dataclass

import numpy as np

from orbax_gds.codecs.payload import decode_payload, encode_payload
from orbax_gds.dtypes import Dtype
from orbax_gds.errors import Unsupported


@dataclass(frozen=True)
class Modelled:
    """Codes the moments of an optimizer, and words that came from a narrower type."""

    id: int = 2
    name: str = "modelled"

    def supports(self, dtype: Dtype) -> bool:
        """Return whether FORMAT §7.6 codes words of this dtype."""
        return dtype.is_modelled

    def encode(self, words: np.ndarray, dtype: Dtype) -> bytes:
        """Leave out signs and low bits that are 0 everywhere; words without a shape have no rows.

        `_native.encode_frame` takes the columns of a matrix.
        """
        self._check(dtype)
        return encode_payload(words, dtype, "modelled")

    def decode(self, payload: bytes, n_words: int, dtype: Dtype) -> np.ndarray:
        """Undo `encode`."""
        self._check(dtype)
        return decode_payload(payload, n_words, dtype, self.id)

    def _check(self, dtype: Dtype) -> None:
        if not self.supports(dtype):
            raise Unsupported(
                f"codec 'modelled' does not code dtype {dtype.name}. Use codec 'raw' for it."
            )
