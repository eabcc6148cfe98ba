"""Write the seeds of the fuzz corpus: `python tests/native/make_corpus.py`.

Small valid frames that between them have every codec, block code and kind of ladder header.
Inputs of bugs that were found are put beside them by hand.
"""

import pathlib

import numpy as np

from orbax_gds.codecs import reference
from orbax_gds.codecs.reference import Ladder
from orbax_gds.dtypes import Dtype, dtype_by_name, words_of

CORPUS = pathlib.Path(__file__).parent / "corpus"
LADDERS = {
    "flat": (4,),
    "steep": (1, 1, 1, 1, 1, 1, 1, 4),
    "wide": (2, 2, 2, 2, 2, 2, 2, 4),
    "mixed": (2, 1, 2, 4),
}


def weights(dtype: Dtype, n_words: int) -> np.ndarray:
    """Return words like those of a trained tensor, with a block of zeros and a constant one."""
    rng = np.random.default_rng(n_words)
    words = rng.integers(0, 1 << dtype.bits, n_words, dtype.word_dtype)
    if dtype.split in ("bf16", "fp32"):
        values = rng.normal(0, 0.02, n_words).astype(np.float32).view(np.uint32)
        words = (values >> (32 - dtype.bits)).astype(dtype.word_dtype)
    words[256:512] = 0
    words[512:768] = words[0]
    return words


def main() -> None:
    """Write every seed."""
    CORPUS.mkdir(exist_ok=True)
    for name in ("bfloat16", "float32", "uint4", "float6_e2m3fn", "float64"):
        dtype = dtype_by_name(name)
        for n_words, block_map in ((1, False), (100, False), (900, True)):
            frame = reference.encode_frame(weights(dtype, n_words), dtype, block_map=block_map)
            (CORPUS / f"raw-{name}-{n_words}").write_bytes(frame)
    for name in ("bfloat16", "float32"):
        dtype = dtype_by_name(name)
        for shape, widths in LADDERS.items():
            ladder = Ladder(emax=124, widths=widths, symbols=(*range(3, 16), 0, 1, 2))
            frame = reference.encode_frame(
                weights(dtype, 300), dtype, codec="ladder", ladder=ladder, block_map=True
            )
            (CORPUS / f"ladder-{shape}-{name}").write_bytes(frame)
    write_codings()


def write_codings() -> None:
    """Write the seeds of the other splits, of the modelled coding, of ans and of huffman.

    There are none of zstd: the fuzz target has a stand-in for it.
    """
    for codec, name, n_words, columns, zeros in (
        ("ladder", "float16", 300, 0, 0),
        ("ladder", "float64", 100, 0, 0),
        ("ladder", "float8_e4m3fn", 300, 0, 0),
        ("ladder", "float8_e8m0fnu", 300, 0, 0),
        ("ladder", "float4_e2m1fn", 300, 0, 0),
        ("modelled", "bfloat16", 300, 0, 0),
        ("modelled", "bfloat16", 900, 20, 0),
        ("modelled", "float16", 100, 7, 3),
        ("modelled", "float32", 900, 30, 13),
        ("ans", "bfloat16", 300, 20, 0),
        ("ans", "float32", 300, 0, 16),
        ("ans", "float16", 900, 30, 0),
        ("huffman", "float8_e4m3fn", 300, 0, 0),
        ("huffman", "uint4", 900, 0, 0),
    ):
        dtype = dtype_by_name(name)
        words = weights(dtype, n_words)
        if dtype.split and dtype.name not in ("bfloat16", "float32"):
            values = np.random.default_rng(n_words).normal(0, 0.5, n_words)
            words = words_of(values.astype(dtype.numpy_dtype)).copy()
            words[::50] = (1 << dtype.bits) - 1
        words = words >> zeros << zeros
        if n_words == 900 and codec == "modelled":
            words &= dtype.word_dtype.type((1 << dtype.bits - 1) - 1)  # no sign
        frame = reference.encode_frame(
            words, dtype, codec=codec, block_map=n_words == 900, columns=columns
        )
        (CORPUS / f"{codec}-{name}-{n_words}").write_bytes(frame)


if __name__ == "__main__":
    main()
