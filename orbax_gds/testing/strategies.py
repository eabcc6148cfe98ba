"""Hypothesis strategies for words as checkpoints hold them, and as they should never look.

A sequence of words is drawn as a few runs. Each run has a kind that some part of the format treats
apart: noise, zeros, one constant, a narrow window of exponents, or the famous words of a dtype.
"""

import functools
from collections.abc import Callable

import numpy as np
from hypothesis import strategies as st

from orbax_gds.dtypes import DTYPES, SPLITS, Dtype, Split

_EDGES = (1, 2, 15, 16, 17, 63, 64, 65, 255, 256, 257, 511, 512, 513, 1023, 1024, 1025)
_SUB_BLOCK_EDGES = (32767, 32768, 32769, 65536, 65537)


def dtypes(*, where: Callable[[Dtype], bool] = lambda dtype: True) -> st.SearchStrategy[Dtype]:
    """Draw one of the dtypes of FORMAT §5.

    Args:
        where: Draw only dtypes of which this is true.
    """
    return st.sampled_from(tuple(dtype for dtype in DTYPES if where(dtype)))


def famous_words(dtype: Dtype) -> np.ndarray:
    """Return words in which codecs like to be wrong, as 1-d `dtype.word_dtype`.

    Zero, minus zero, the smallest and largest denormals, infinities, quiet and signalling NaNs with
    payloads, all ones, and single bits; as integers also the extreme values.
    """
    exponent_bits = min(4, dtype.bits - 1)
    split = SPLITS.get(dtype.split or "", Split(1, exponent_bits, dtype.bits - 1 - exponent_bits))
    mantissa_bits = split.mantissa_bits
    ones, sign = (1 << dtype.bits) - 1, 1 << dtype.bits - 1
    infinity = (1 << split.exponent_bits) - 1 << mantissa_bits
    unsigned = {0, 1, (1 << mantissa_bits) - 1, 1 << mantissa_bits, infinity, infinity | 1}
    unsigned |= {infinity - 1 & ones >> 1, infinity | (1 << mantissa_bits >> 1), ones >> 1}
    unsigned |= {1 << bit for bit in range(dtype.bits)}
    return np.array(sorted({word ^ flip for word in unsigned for flip in (0, sign)}), "u8").astype(
        dtype.word_dtype
    )


def _random(dtype: Dtype, n: int, rng: np.random.Generator) -> np.ndarray:
    mask = dtype.word_dtype.type((1 << dtype.bits) - 1)
    return rng.integers(0, 1 << 64, n, np.uint64, endpoint=False).astype(dtype.word_dtype) & mask


def _zeros(dtype: Dtype, n: int, rng: np.random.Generator) -> np.ndarray:
    return np.zeros(n, dtype.word_dtype)


def _constant(dtype: Dtype, n: int, rng: np.random.Generator) -> np.ndarray:
    return np.repeat(_random(dtype, 1, rng), n)


def _famous(dtype: Dtype, n: int, rng: np.random.Generator) -> np.ndarray:
    return rng.choice(famous_words(dtype), n)


def _window(dtype: Dtype, n: int, rng: np.random.Generator) -> np.ndarray:
    """Words whose exponents lie close below one exponent, as trained tensors have them."""
    if dtype.split is None:
        return _random(dtype, n, rng)
    words = _random(dtype, n, rng)
    split, word = SPLITS[dtype.split], dtype.word_dtype.type
    shift, top = word(split.mantissa_bits), 1 << split.exponent_bits
    below = rng.geometric(rng.uniform(0.05, 0.95), n) - 1
    exponents = ((int(rng.integers(top)) - below) % top).astype(dtype.word_dtype)
    return (words & ~(word(top - 1) << shift)) | (exponents << shift)


_KINDS = (_random, _zeros, _constant, _famous, _window)
# Strategies that are made once: Hypothesis takes longer to look at a new one than to draw from it.
_RUNS = st.lists(  # kinds and lengths; 0 is that of all words
    st.tuples(st.sampled_from(_KINDS), st.sampled_from((1, 7, 100, 256, 300, 512, 0))),
    min_size=1,
    max_size=6,
)
_SEEDS = st.integers(0, 2**32 - 1)


@functools.cache
def _lengths(min_words: int, max_words: int) -> st.SearchStrategy[int]:
    edges = [n for n in (*_EDGES, *_SUB_BLOCK_EDGES) if min_words <= n <= max_words]
    lengths = st.integers(min_words, min(max_words, max(min_words, 1100)))
    return st.one_of(lengths, st.sampled_from(edges)) if edges else lengths


@st.composite
def words(
    draw: st.DrawFn, dtype: Dtype, *, min_words: int = 1, max_words: int = 33_000
) -> np.ndarray:
    """Draw words of a dtype.

    Args:
        draw: Given by Hypothesis.
        dtype: What the words are.
        min_words: Fewest words, at least 1.
        max_words: Most words.

    Returns:
        1-d contiguous array of `dtype.word_dtype`, bits above `dtype.bits` 0.
    """
    n = draw(_lengths(min_words, max_words))
    rng = np.random.default_rng(draw(_SEEDS))
    parts = [kind(dtype, length or n, rng) for kind, length in draw(_RUNS)]
    return np.ascontiguousarray(np.resize(np.concatenate(parts), n))


@st.composite
def chunks(
    draw: st.DrawFn,
    *,
    where: Callable[[Dtype], bool] = lambda dtype: True,
    max_words: int = 33_000,
) -> tuple[Dtype, np.ndarray]:
    """Draw a dtype and words of it."""
    dtype = draw(dtypes(where=where))
    return dtype, draw(words(dtype, max_words=max_words))


def shapes(*, max_rank: int = 4, max_side: int = 9) -> st.SearchStrategy[tuple[int, ...]]:
    """Draw a shape, 0-d and zero-size ones among them."""
    return st.lists(st.integers(0, max_side), max_size=max_rank).map(tuple)


@st.composite
def arrays(
    draw: st.DrawFn,
    *,
    where: Callable[[Dtype], bool] = lambda dtype: True,
    shape: st.SearchStrategy[tuple[int, ...]] | None = None,
) -> np.ndarray:
    """Draw a C-contiguous array of any dtype of FORMAT §5 and any bits.

    Args:
        draw: Given by Hypothesis.
        where: Draw only dtypes of which this is true.
        shape: Shapes to draw from; small ones of rank 0 to 4 by default.
    """
    dtype = draw(dtypes(where=where))
    extent = draw(shapes() if shape is None else shape)
    n_words = int(np.prod(extent, dtype=np.int64)) * dtype.words_per_element
    if n_words == 0:
        return np.zeros(extent, dtype.numpy_dtype)
    drawn = draw(words(dtype, min_words=n_words, max_words=n_words))
    return dtype.elements(drawn, extent)
