"""The delta coding, called for one payload at a time. FORMAT §7.11."""

from dataclasses import dataclass

import numpy as np

from orbax_gds.codecs.payload import decode_payload, encode_payload
from orbax_gds.dtypes import Dtype


@dataclass(frozen=True, kw_only=True)
class DeltaCodec:
    """Words as differences from those of a base; as a codec alone, from zeros.

    Whole chunks with the base they have go through `_native.encode_frame` and the runs.

    Attributes:
        id: Number in frames.
        name: Name in options and reports.

    Example:
        >>> delta = DeltaCodec(id=6)
    """

    id: int
    name: str = "delta"

    def supports(self, dtype: Dtype) -> bool:
        """Return whether words of this dtype can be coded: those of any can."""
        return True

    def encode(self, words: np.ndarray, dtype: Dtype) -> bytes:
        """Code words, whether or not it pays."""
        zeros = np.zeros(words.size, dtype.word_dtype)
        return encode_payload(words, dtype, "delta", base=zeros)

    def decode(self, payload: bytes, n_words: int, dtype: Dtype) -> np.ndarray:
        """Undo `encode`."""
        zeros = np.zeros(n_words, dtype.word_dtype)
        return decode_payload(payload, n_words, dtype, self.id, base=zeros)
