"""The words as they are, `bits` bits each. FORMAT §7.3."""

from dataclasses import dataclass

import numpy as np

from orbax_gds.codecs.payload import decode_payload, encode_payload
from orbax_gds.dtypes import Dtype


@dataclass(frozen=True)
class Raw:
    """Stores words unchanged, for chunks that no other codec makes smaller."""

    id: int = 0
    name: str = "raw"

    def supports(self, dtype: Dtype) -> bool:
        """Return True: every dtype can be stored raw."""
        return True

    def encode(self, words: np.ndarray, dtype: Dtype) -> bytes:
        """Pack the low `bits` bits of each word."""
        return encode_payload(words, dtype, "raw")

    def decode(self, payload: bytes, n_words: int, dtype: Dtype) -> np.ndarray:
        """Undo `encode`."""
        return decode_payload(payload, n_words, dtype, self.id)
