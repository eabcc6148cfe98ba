"""Coding and decoding by every kernel of the native core that this machine can run."""

import numpy as np

from orbax_gds import _native
from orbax_gds.dtypes import Dtype


def encode_on_every_isa(words: np.ndarray, dtype: Dtype, **options: object) -> bytes:
    """Return the frame, on which all kernels must agree."""
    before = _native.isa()
    frames = set()
    try:
        for isa in _native.isas():
            _native.use_isa(isa)
            frames.add(_native.encode_frame(words, dtype.id, **options))
    finally:
        _native.use_isa(before)
    (frame,) = frames
    return frame


def decode_on_every_isa(
    frame: bytes, n_words: int, word_dtype: np.dtype, **base: object
) -> np.ndarray | None:
    """Return the words of a frame, or None if it is refused, on which all kernels must agree."""
    before = _native.isa()
    results = []
    try:
        for isa in _native.isas():
            _native.use_isa(isa)
            words = np.empty(n_words, word_dtype)
            results.append((_native.decode_frame(frame, words, **base), words))
    finally:
        _native.use_isa(before)
    status, words = results[0]
    assert {other for other, _ in results} == {status}
    if status != 0:
        return None
    for _, other in results[1:]:
        np.testing.assert_array_equal(other, words)
    return words
