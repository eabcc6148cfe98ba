"""Zstandard over the bytes of the words, plane by plane: integers, bool, text. FORMAT §7.8.

The native core makes planes of words and words of planes; what it calls for the rest, from any
thread, is here.
"""

import threading
from collections.abc import Callable
from typing import Any, Literal

AUTO_LEVEL = 1  # measured: above it tokens and masks take 3 to 10 times as long for 0 to 1 %
MAX_LEVEL = 12  # measured: 30 % less of a sparse mask; 19 takes ten times as long for 6 % more
LEVELS = {"auto": AUTO_LEVEL, "max": MAX_LEVEL}
"""Level by `Options.codec`; the others leave words without a split as they are."""

MAX_WINDOW_BYTES = 128 << 20  # required: FORMAT §7.8

_MAGIC = b"\x28\xb5\x2f\xfd"  # required: RFC 8878 §3.1.1
_of_thread = threading.local()


def compress(content: memoryview, level: int) -> bytes:
    """Return one Zstandard frame of the content; the native core calls it.

    Args:
        content: uint8[n], n ≥ 1.
        level: 1 to 22. Above `AUTO_LEVEL` the result of that one is taken where it is smaller, as
            happens with small integers.
    """
    coded = _compressor(level).compress(content)
    if level > AUTO_LEVEL:
        return min(coded, _compressor(AUTO_LEVEL).compress(content), key=len)
    return coded


def decompress(coded: memoryview, n_bytes: int) -> bytes | Literal["frame", "size", "demand"]:
    """Return the content of the one frame that `coded` is; the native core calls it.

    Nothing is allocated before the frame's header was found to agree.

    Args:
        coded: uint8[n], any bytes.
        n_bytes: Length that the content must have, and be said to have.

    Returns:
        uint8[n_bytes]; or what is wrong: "frame" where it is damaged or something else, "size"
        where the content is not so long, "demand" where it asks for a dictionary or a window that
        FORMAT §7.8 excludes.
    """
    import zstandard  # here as below: it takes longer to import than all of a command's own code

    if bytes(coded[:4]) != _MAGIC:
        return "frame"
    try:
        header = zstandard.get_frame_parameters(coded)
        if header.content_size != n_bytes:
            return "size"
        if header.dict_id or header.window_size > MAX_WINDOW_BYTES:
            return "demand"
        return _decompressor().decompress(coded, allow_extra_data=False)
    except zstandard.ZstdError:
        return "frame"


def _compressor(level: int) -> Any:
    def make() -> Any:
        import zstandard

        return zstandard.ZstdCompressor(level=level)

    return _kept(f"level {level}", make)


def _decompressor() -> Any:
    def make() -> Any:
        import zstandard

        return zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)

    return _kept("decompressor", make)


def _kept(key: str, make: Callable[[], Any]) -> Any:
    """Return the thread's own: one may not be shared, and to make one costs more than to use it."""
    kept = _of_thread.__dict__
    if key not in kept:
        kept[key] = make()
    return kept[key]
