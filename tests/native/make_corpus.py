"""Write the seeds of the fuzz corpora: `python tests/native/make_corpus.py`.

Small valid frames that between them have every codec, block code and kind of ladder header, and
chains of such: the frames of a chunk, the oldest first, one behind the other.
Inputs of bugs that were found are put beside them by hand.
"""

import pathlib

import numpy as np

from orbax_gds.codecs import reference
from orbax_gds.codecs.reference import Base, Ladder
from orbax_gds.codecs.reference_delta import Delta, decayed
from orbax_gds.dtypes import Dtype, dtype_by_name, words_of

CORPUS = pathlib.Path(__file__).parent / "corpus"
CHAINS = CORPUS.with_name("corpus_chains")
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
    write_chains()


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


def changed(words: np.ndarray, dtype: Dtype, share: float, seed: int) -> np.ndarray:
    """Return words of which a share is a little larger, and a few of these are any."""
    rng = np.random.default_rng(seed)
    mask = dtype.word_dtype.type((1 << dtype.bits) - 1)
    hit = rng.random(len(words)) < share
    words = np.where(hit, words + rng.integers(1, 4, len(words), dtype.word_dtype), words) & mask
    far = hit & (rng.random(len(words)) < 0.1)
    return np.where(far, rng.integers(0, 1 << dtype.bits, len(words), dtype.word_dtype), words)


def write_chains() -> None:
    """Write chains of three and two frames, and by itself the last frame of each."""
    CHAINS.mkdir(exist_ok=True)
    for name, n_words, shares, codecs in (
        ("bfloat16", 300, (0.3, 0.3), ("raw", "delta", "delta")),
        ("bfloat16", 900, (0.01, 0.0), ("ladder", "delta", "raw")),
        ("float32", 300, (0.9, 0.5), ("ladder", "delta", "delta")),
        ("float32", 900, (0.02, 0.02), ("modelled", "delta", "delta")),
        ("float32", 500, (0.2, 0.2), ("ladder", "delta", "delta")),  # that decays
        ("float16", 700, (0.1,), ("ans", "delta")),
        ("float8_e4m3fn", 900, (0.2, 0.01), ("huffman", "delta", "delta")),
        ("float64", 100, (0.3,), ("ladder", "raw")),
        ("uint4", 300, (0.5,), ("raw", "delta")),
    ):
        dtype = dtype_by_name(name)
        words = weights(dtype, n_words)
        base, frames = None, []
        for number, codec in enumerate(codecs):
            delta = None
            if number:
                before = decayed(words, 700) if n_words == 500 else words
                words = changed(before, dtype, shares[number - 1], number)
            if number and n_words == 500:
                delta = Delta(shift=1, widths=(4,), symbols=tuple(range(16)), decay=700)
            block_map = n_words == 900 or (codec == "raw" and base is not None)
            frames.append(
                reference.encode_frame(
                    words, dtype, codec=codec, block_map=block_map, delta=delta, base=base
                )
            )
            crc = int.from_bytes(frames[-1][24:28], "little")
            base = Base(words=words, payload_crc32c=crc)
        (CHAINS / f"{'-'.join(codecs)}-{name}-{n_words}").write_bytes(b"".join(frames))
        (CORPUS / f"based-{codecs[-1]}-{name}-{n_words}").write_bytes(frames[-1])


if __name__ == "__main__":
    main()
