"""Good frames that need a base, with every coding and dtype, and what their headers may say."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from golden.words import narrow, noise

from orbax_gds.codecs import reference
from orbax_gds.codecs.reference import Base, Delta
from orbax_gds.codecs.reference_frame import CODECS
from orbax_gds.dtypes import DTYPES, Dtype, dtype_by_name

DeltaFrame = tuple[str, bytes, np.ndarray, Base]  # name, frame, words, base

BASE_CRC32C = 0x12345678
BF16, FP32 = dtype_by_name("bfloat16"), dtype_by_name("float32")


def deltas() -> Iterator[DeltaFrame]:
    """Yield name, frame, words and base of every golden frame that needs a base."""
    yield from plain_deltas()
    yield from block_deltas()
    yield from header_deltas()


def near(base: np.ndarray, dtype: Dtype, seed: int) -> np.ndarray:
    """Return words of which a third are the base's, a third are near, a third are far."""
    rng = np.random.default_rng(seed)
    mask = dtype.word_dtype.type((1 << dtype.bits) - 1)
    step = rng.integers(0, 5, base.size).astype(dtype.word_dtype)
    words = np.where(np.arange(base.size) % 3 == 1, base + step, base)
    return np.where(np.arange(base.size) % 3 == 2, noise(dtype, base.size, seed), words) & mask


def _base(dtype: Dtype, n: int, seed: int) -> Base:
    words = narrow(dtype, n, seed) if dtype.split else noise(dtype, n, seed)
    return Base(words=words, payload_crc32c=BASE_CRC32C)


def plain_deltas() -> Iterator[DeltaFrame]:
    """Yield a frame of every dtype, and one that says that nothing has changed."""
    for dtype in DTYPES:
        base = _base(dtype, 45, 1)
        words = near(base.words, dtype, 2)
        frame = reference.encode_frame(words, dtype, codec="delta", chunk=5, base=base)
        yield f"{dtype.name} delta", frame, words, base
    for low_bytes in (1, 2):
        base = _base(FP32, 50, 7)
        words = near(base.words, FP32, 8)
        delta = replace(Delta.fitting(words, base.words, FP32), low_bytes=low_bytes)
        frame = reference.encode_frame(words, FP32, codec="delta", delta=delta, base=base)
        yield f"float32 {low_bytes} low bytes", frame, words, base
    base = _base(FP32, 500, 9)
    for decay in (1, 20_000):
        words = near(base.words, FP32, 10)
        delta = replace(Delta.fitting(words, base.words, FP32), decay=decay)
        frame = reference.encode_frame(words, FP32, codec="delta", delta=delta, base=base)
        yield f"float32 decay {decay}", frame, words, base
    base = _base(BF16, 700, 3)
    frame = reference.encode_frame(base.words, BF16, codec="delta", base=base)
    yield "unchanged", frame, base.words, base


def block_deltas() -> Iterator[DeltaFrame]:
    """Yield frames with blocks of each code, in every codec of bfloat16."""
    base = _base(BF16, 5 * 256 + 9, 4)
    words = near(base.words, BF16, 5)
    words[256:512] = base.words[256:512]
    words[512:768], words[768:1024] = 0, 7
    for codec in filter(lambda codec: reference.supports(codec, BF16), CODECS.values()):
        frame = reference.encode_frame(words, BF16, codec=codec, block_map=True, base=base)
        yield f"bfloat16 {codec} blocks", frame, words, base


def header_deltas() -> Iterator[DeltaFrame]:
    """Yield frames with corners of the header."""
    base = _base(BF16, 900, 6)
    words = base.words.copy()
    words[::37] += 1
    # lengths are fitted to many words only
    fitting = Delta.fitting(np.resize(words, 32768), np.resize(base.words, 32768), BF16)
    for name, delta in {
        "no exponents": replace(fitting, exponents=False, shift=1),
        "no bits below": replace(fitting, shift=0),
        "all bits below": replace(fitting, shift=255),
        "low byte": replace(fitting, low_bytes=1),
        "lengths": fitting,
        "no lengths": replace(fitting, lengths=None),
        "one level": replace(fitting, widths=(4,), symbols=tuple(range(16)), lengths=None),
        "wide first level": replace(fitting, widths=(2, 4)),
        "many escapes": replace(fitting, shift=0, low_bytes=0, lengths=None),
        "scale": replace(fitting, scales=((118, 1, True),)),
        "scale without exponents": replace(fitting, scales=((1, 0, False),)),
    }.items():
        frame = reference.encode_frame(words, BF16, codec="delta", delta=delta, base=base)
        yield f"bfloat16 {name}", frame, words, base
