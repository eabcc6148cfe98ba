"""Good frames, with everything that a header may say."""

from collections.abc import Iterator

import numpy as np
from golden.words import blocks, narrow, noise

from orbax_gds.codecs import reference
from orbax_gds.codecs.reference import Ans, Ladder, Model, Prediction
from orbax_gds.codecs.reference_frame import CODECS
from orbax_gds.dtypes import DTYPES, SPLITS, Dtype, dtype_by_name

Frame = tuple[str, bytes, np.ndarray]  # name, frame, words

BF16 = dtype_by_name("bfloat16")
UINT8 = dtype_by_name("uint8")


def frames() -> Iterator[Frame]:
    """Yield name, frame and words of every golden frame."""
    yield from plain_frames()
    yield from ladder_frames()
    yield from model_frames()
    yield from ans_frames()
    yield from huffman_frames()


def plain_frames() -> Iterator[Frame]:
    """Yield two frames of every dtype and coding."""
    for dtype in DTYPES:
        for codec in filter(lambda codec: reference.supports(codec, dtype), CODECS.values()):
            if codec == "delta":  # golden.deltas
                continue
            for name, words in {
                "plain": narrow(dtype, 37, 1) if dtype.split else noise(dtype, 37, 1),
                "blocks": blocks(dtype),
            }.items():
                frame = reference.encode_frame(
                    words, dtype, codec=codec, chunk=5, block_map=name == "blocks"
                )
                yield f"{dtype.name} {codec} {name}", frame, words


def ladder_frames() -> Iterator[Frame]:
    """Yield frames with corners of the ladder."""
    for name, ladder in {
        "one level": Ladder(emax=130, widths=(4,), symbols=tuple(range(16))),
        "eight levels": Ladder(emax=126, widths=(1,) * 7 + (4,), symbols=tuple(range(16))),
        "emax wraps": Ladder(emax=3, widths=(2, 1, 4), symbols=tuple(range(15, -1, -1))),
    }.items():
        words = narrow(BF16, 40, 7)
        frame = reference.encode_frame(words, BF16, codec="ladder", ladder=ladder)
        yield f"bfloat16 ladder {name}", frame, words
    zeros = np.zeros(300, np.uint16)
    yield (
        "no normal word",
        reference.encode_frame(zeros, BF16, codec="ladder", block_map=True),
        zeros,
    )
    long = np.resize(narrow(BF16, 16, 9), 32768 + 5)
    yield "two sub-blocks", reference.encode_frame(long, BF16, codec="ladder"), long


def model_frames() -> Iterator[Frame]:
    """Yield frames with what only the modelled coding and ans have."""
    for codec in ("modelled", "ans"):
        for name in ("bfloat16", "float16", "float32", "complex64"):
            dtype = dtype_by_name(name)
            split = SPLITS[str(dtype.split)]
            words = narrow(dtype, 63, 11)
            unsigned = words & dtype.word_dtype.type((1 << dtype.bits - 1) - 1)
            zeros = min(split.rest_bits - 8, split.mantissa_bits - 4) or 3
            trimmed = words >> zeros << zeros
            for what, these, columns in (
                ("predicted", tilted(words, dtype, 9), 9),
                ("without signs", unsigned, 0),
                ("trimmed", trimmed, 0),
                ("trimmed, predicted, without signs", trimmed & unsigned, 20),
                ("one column", words, 1),
                ("one row", words, 63),
            ):
                yield (
                    f"{name} {codec} {what}",
                    reference.encode_frame(these, dtype, codec=codec, columns=columns),
                    these,
                )
        mapped = np.concatenate([blocks(BF16), narrow(BF16, 600, 12)])
        frame = reference.encode_frame(mapped, BF16, codec=codec, block_map=True, columns=50)
        yield f"bfloat16 {codec} predicted between blocks", frame, mapped
        zeros = np.zeros(300, np.uint16)
        frame = reference.encode_frame(zeros, BF16, codec=codec, block_map=True)
        yield f"bfloat16 {codec} no normal word", frame, zeros
        long = np.resize(narrow(BF16, 16, 9) & 0x7FF0, 32768 + 5)
        frame = reference.encode_frame(long, BF16, codec=codec, columns=16)
        yield f"bfloat16 {codec} two sub-blocks", frame, long
    model = Model(
        emax=250,
        widths=(1,) * 7 + (4,),
        symbols=tuple(range(15, -1, -1)),
        prediction=Prediction(columns=5, row_offsets=(0, 255, 7, 200), column_offsets=(5,) * 5),
        sign_slot=True,
    )
    words = narrow(BF16, 20, 13) & 0x7FFF
    yield (
        "bfloat16 modelled offsets wrap",
        reference.encode_frame(words, BF16, codec="modelled", model=model),
        words,
    )
    dtype = dtype_by_name("float16")
    words = narrow(dtype, 600, 14) & np.uint16(0x7FF8)
    model = Model(emax=14, widths=(1, 2, 4), symbols=tuple(range(16)), sign_slot=True, size=7)
    yield (
        "float16 modelled sub-blocks of 256 words",
        reference.encode_frame(words, dtype, codec="modelled", model=model),
        words,
    )


def tilted(words: np.ndarray, dtype: Dtype, columns: int) -> np.ndarray:
    """Return words whose exponents differ from row to row."""
    split = SPLITS[str(dtype.split)]
    rows = np.arange(words.size) // columns % 3 << split.mantissa_bits
    return words - rows.astype(dtype.word_dtype)


def ans_words(y: np.ndarray) -> np.ndarray:
    """Return bfloat16 words for which these are the coded bytes if emax is 127. FORMAT §7.7."""
    symbols = y.astype(np.int64) >> 4
    exponents = np.select([symbols == 14, symbols == 15], [0, 200], 127 - symbols)
    return (exponents << 7 | (y & 15) << 3).astype(np.uint16)


def ans_frames() -> Iterator[Frame]:
    """Yield frames with corners of the ans coding."""
    for n_words in range(1, 10):
        words = ans_words(noise(UINT8, n_words, 14) % 3)
        yield f"ans {n_words} words", reference.encode_frame(words, BF16, codec="ans"), words
    words = ans_words(np.full(40, 200, np.uint8))
    yield "ans one byte occurs", reference.encode_frame(words, BF16, codec="ans"), words
    words = ans_words(np.resize(noise(UINT8, 64, 15) // 250, 32768 + 9))
    yield "ans two sub-blocks", reference.encode_frame(words, BF16, codec="ans"), words
    words = ans_words(np.arange(256, dtype=np.uint8))
    counts = (4096 - 255, *([1] * 255))
    frame = reference.encode_frame(words, BF16, codec="ans", ans=Ans(counts=counts, emax=127))
    yield "ans rare bytes", frame, words
    words = np.array([0x0000, 0x8000, 0x0001, 0x7F80, 0xFFFF, 0x3F80], np.uint16)
    yield "ans zeros and escapes", reference.encode_frame(words, BF16, codec="ans"), words


def huffman_frames() -> Iterator[Frame]:
    """Yield frames with corners of the huffman coding."""
    for n_words in range(1, 18):
        words = noise(UINT8, n_words, 16) % 3
        frame = reference.encode_frame(words, UINT8, codec="huffman")
        yield f"huffman {n_words} words", frame, words
    words = np.full(40, 200, np.uint8)
    yield "huffman one byte occurs", reference.encode_frame(words, UINT8, codec="huffman"), words
    words = np.resize(noise(UINT8, 64, 17) // 250, 32768 + 9)
    yield "huffman two sub-blocks", reference.encode_frame(words, UINT8, codec="huffman"), words
    lengths = np.array([*range(1, 11), 11, 11] + [0] * 244)
    words = np.repeat(np.arange(12, dtype=np.uint8), 9)
    frame = reference.encode_frame(words, UINT8, codec="huffman", lengths=lengths)
    yield "huffman longest codes", frame, words
