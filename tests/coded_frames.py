"""Frames of every coding whose headers say anything that FORMAT §7 lets them say."""

import numpy as np
from hypothesis import strategies as st

from orbax_gds.codecs import reference
from orbax_gds.codecs.reference import Ans, Ladder, Model, Prediction
from orbax_gds.codecs.reference_ans import parts_of
from orbax_gds.codecs.reference_prediction import CodedWords
from orbax_gds.dtypes import SPLITS, Dtype, words_of
from orbax_gds.testing import chunks, dtypes


@st.composite
def ladders(draw: st.DrawFn, exponent_bits: int) -> Ladder:
    """Draw any header of the ladder."""
    return Ladder(
        emax=draw(st.integers(0, (1 << exponent_bits) - 1)),
        widths=(*draw(st.lists(st.sampled_from((1, 2)), max_size=7)), 4),
        symbols=tuple(draw(st.permutations(range(16)))),
    )


@st.composite
def predictions(draw: st.DrawFn, n_words: int) -> Prediction | None:
    """Draw no prediction, or any for a chunk of this many words."""
    columns = draw(st.none() | st.integers(1, n_words) | st.sampled_from((1, n_words)))
    if columns is None:
        return None
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    spread = draw(st.sampled_from((1, 5, 256)))
    rows, cols = (rng.integers(0, spread, n) for n in (-(-n_words // columns), columns))
    return Prediction(
        columns=columns,
        row_offsets=tuple(((256 - rows) % 256).tolist()),
        column_offsets=tuple(cols.tolist()),
    )


@st.composite
def models(draw: st.DrawFn, exponent_bits: int, n_words: int, *, signs: bool) -> Model:
    """Draw any header of the modelled coding."""
    ladder = draw(ladders(exponent_bits))
    return Model(
        emax=ladder.emax,
        widths=ladder.widths,
        symbols=ladder.symbols,
        prediction=draw(predictions(n_words)),
        sign_slot=not signs and draw(st.booleans()),
        size=draw(st.integers(0, 7)),
    )


@st.composite
def ans_headers(draw: st.DrawFn, dtype: Dtype, words: np.ndarray, *, signs: bool) -> Ans:
    """Draw a header of the ans coding whose table has every byte of the words, and others."""
    split = SPLITS[str(dtype.split)]
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    ans = Ans(
        counts=(),
        emax=int(rng.integers(1 << split.exponent_bits)),
        prediction=draw(predictions(words.size)),
        no_signs=not signs and draw(st.booleans()),
    )
    places = np.arange(words.size)
    coded = CodedWords(words=words, split=split, places=places, n_words=words.size)
    octets, _, _ = parts_of(coded, ans)
    occurs = np.zeros(256, bool)
    occurs[octets] = True
    occurs |= rng.random(occurs.size) < draw(st.sampled_from((0.0, 0.2, 1.0)))
    counts = np.zeros(256, np.int64)
    n = int(occurs.sum())
    weights = rng.dirichlet(np.full(n, draw(st.sampled_from((0.05, 1.0)))))
    counts[np.flatnonzero(occurs)] = 1 + rng.multinomial(4096 - n, weights)
    return Ans(
        counts=tuple(counts.tolist()),
        emax=ans.emax,
        prediction=ans.prediction,
        no_signs=ans.no_signs,
    )


@st.composite
def matrices(draw: st.DrawFn) -> tuple[Dtype, np.ndarray, int]:
    """Draw a dtype, words whose rows and columns differ in scale, and the words in a row."""
    dtype = draw(dtypes(where=lambda dtype: reference.supports("modelled", dtype)))
    columns = draw(st.sampled_from((1, 3, 64, 65, 200)))
    n_rows = draw(st.integers(1, 40) | st.sampled_from((64, 165)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    tilt = draw(st.sampled_from((0.0, 0.3, 2.0)))
    scales = (np.exp2(rng.normal(0, tilt, n)) for n in (n_rows, columns))
    rows, cols = scales
    values = rng.normal(size=(n_rows, columns)) * rows[:, None] * cols / 16
    element = dtype.numpy_dtype if dtype.words_per_element == 1 else np.float32
    with np.errstate(all="ignore"):
        words = words_of(values.astype(np.float32).astype(element)).copy()
    split = SPLITS[str(dtype.split)]
    if draw(st.booleans()):
        words &= dtype.word_dtype.type((1 << dtype.bits - 1) - 1)
    words = words >> (zeros := draw(st.sampled_from((0, 2, split.mantissa_bits // 2)))) << zeros
    if draw(st.booleans()):
        words[rng.random(words.size) < 0.05] = 0
        words[words.size // 4 : words.size // 2] = 0
    return dtype, words, columns


@st.composite
def coded_frames(
    draw: st.DrawFn, codec: str, *, max_words: int = 33_000
) -> tuple[bytes, Dtype, np.ndarray]:
    """Draw a frame of the reference with any header, its dtype and its words."""
    dtype, words = draw(
        chunks(where=lambda dtype: reference.supports(codec, dtype), max_words=max_words)
    )
    split = SPLITS.get(dtype.split or "")
    signs = True
    if split is not None and dtype.bits > 8:
        words = words >> (zeros := draw(st.sampled_from((0, 0, 3, 13)))) << zeros
        if not (signs := draw(st.booleans())):
            words &= dtype.word_dtype.type((1 << dtype.bits - 1) - 1)
    header = {}
    if codec == "ladder":
        header["ladder"] = draw(ladders(split.exponent_bits))
    elif codec == "modelled":
        header["model"] = draw(models(split.exponent_bits, words.size, signs=signs))
    elif codec == "ans":
        header["ans"] = draw(ans_headers(dtype, words, signs=signs))
    # The constants of a block map leave bytes out of the table, never add one.
    frame = reference.encode_frame(
        words, dtype, codec=codec, chunk=1, block_map=draw(st.booleans()), **header
    )
    return frame, dtype, words
