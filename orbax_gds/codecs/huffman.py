"""Whole bytes by a Huffman code of at most 11 bits. FORMAT §7.9."""

from dataclasses import dataclass

import numpy as np

from orbax_gds.codecs.payload import decode_payload, encode_payload
from orbax_gds.dtypes import Dtype
from orbax_gds.errors import Unsupported


@dataclass(frozen=True)
class Huffman:
    """Codes words of up to 8 bits by how often each occurs."""

    id: int = 5
    name: str = "huffman"

    def supports(self, dtype: Dtype) -> bool:
        """Return whether words of this dtype fit into a byte."""
        return dtype.bits <= 8

    def encode(self, words: np.ndarray, dtype: Dtype) -> bytes:
        """Code each word by itself, with one code for all."""
        self._check(dtype)
        return encode_payload(words, dtype, "huffman")

    def decode(self, payload: bytes, n_words: int, dtype: Dtype) -> np.ndarray:
        """Undo `encode`."""
        self._check(dtype)
        return decode_payload(payload, n_words, dtype, self.id)

    def _check(self, dtype: Dtype) -> None:
        if not self.supports(dtype):
            raise Unsupported(
                f"codec 'huffman' does not code dtype {dtype.name}. Use codec 'raw' for it."
            )
