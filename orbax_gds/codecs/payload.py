"""One payload through the native core's one-frame calls."""

import struct
from typing import Literal

import numpy as np

from orbax_gds import _native
from orbax_gds.dtypes import Dtype
from orbax_gds.errors import Corrupt

NativeName = Literal["raw", "ladder", "modelled", "ans", "zstd", "huffman", "delta"]

_HEADER = struct.Struct("<4sBBHIIIII")  # FORMAT §6, up to its own CRC
_HEADER_BYTES = 32
_PAYLOAD_BYTES_AT = 12


def encode_payload(
    words: np.ndarray, dtype: Dtype, codec: NativeName, *, base: np.ndarray | None = None
) -> bytes:
    """Code words with the named codec, whether or not it pays, without a block map."""
    frame = _native.encode_frame(words, dtype.id, codec=codec, block_map=False, base=base)
    (payload_bytes,) = struct.unpack_from("<I", frame, _PAYLOAD_BYTES_AT)
    return frame[_HEADER_BYTES : _HEADER_BYTES + payload_bytes]


def decode_payload(
    payload: bytes, n_words: int, dtype: Dtype, codec: int, *, base: np.ndarray | None = None
) -> np.ndarray:
    """Decode a payload of the codec with this id, that of a delta if there is a base.

    Raises:
        Corrupt: The native core refuses it.
    """
    frame_bytes = -(-(_HEADER_BYTES + len(payload)) // 64) * 64
    body = payload.ljust(frame_bytes - _HEADER_BYTES, b"\0")
    flags = 0 if base is None else 2
    fields = (b"OGF1", codec, dtype.id, flags, n_words, len(payload), frame_bytes, 0)
    header = _HEADER.pack(*fields, _native.crc32c(body))
    frame = header + struct.pack("<I", _native.crc32c(header)) + body
    words = np.empty(n_words, dtype.word_dtype)
    status = _native.decode_frame(frame, words, base=base)
    if status:
        raise Corrupt(
            f"A payload of {len(payload)} bytes is not {n_words} words of {dtype.name}: "
            f"{_native.STATUS[status]}. The stored bytes are damaged."
        )
    return words
