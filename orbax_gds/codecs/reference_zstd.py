"""The zstd coding: byte planes as one Zstandard frame. Written from FORMAT §7.8."""

import numpy as np
import zstandard

from orbax_gds.codecs.reference_bytes import Cursor
from orbax_gds.dtypes import Dtype
from orbax_gds.errors import Corrupt

MAGIC = bytes.fromhex("28b52ffd")
MAX_WINDOW_BYTES = 128 << 20
_LEVEL = 3


def encode_zstd(words: np.ndarray, dtype: Dtype) -> bytes:
    """Code words of any dtype; with none there are no bytes."""
    if not words.size:
        return b""
    octets = np.ascontiguousarray(words).view(np.uint8).reshape(words.size, dtype.container_bytes)
    return zstandard.ZstdCompressor(level=_LEVEL).compress(octets.T.tobytes())


def decode_zstd(payload: Cursor, n_words: int, dtype: Dtype) -> np.ndarray:
    """Undo `encode_zstd`."""
    if not n_words:
        return np.zeros(0, dtype.word_dtype)
    content = _decompress(payload, n_words * dtype.container_bytes)
    planes = np.frombuffer(content, np.uint8).reshape(dtype.container_bytes, n_words)
    words = np.ascontiguousarray(planes.T).view(dtype.word_dtype).reshape(n_words)
    if (words >> (dtype.bits - 1) > 1).any():
        raise Corrupt(f"{payload.where}: zstd: a word has more than {dtype.bits} bits.")
    return words


def _decompress(payload: Cursor, content_bytes: int) -> bytes:
    data = payload.take(len(payload.data) - payload.at, "the zstd frame")
    where = f"{payload.where}: zstd"
    try:
        parameters = zstandard.get_frame_parameters(data)
        found = (parameters.content_size, parameters.dict_id)
        if (
            data[:4] != MAGIC
            or found != (content_bytes, 0)
            or parameters.window_size > MAX_WINDOW_BYTES
        ):
            raise Corrupt(
                f"{where}: content {parameters.content_size}, dictionary {parameters.dict_id}, "
                f"window {parameters.window_size}; expected {content_bytes} bytes of content."
            )
        # One call into memory of the stated size: content that is longer has no room.
        content = zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise Corrupt(f"{where}: {error}.") from error
    if len(content) != content_bytes:
        raise Corrupt(f"{where}: {len(content)} of {content_bytes} bytes of content.")
    return content
