"""Changed frames under checksums that hold."""

from orbax_gds.codecs import reference


def resealed(frame: bytes, changes: dict[int, int], n_payload: int | None = None) -> bytes:
    """Return the frame with bytes changed or its payload cut or lengthened, under fresh CRCs."""
    changed = bytearray(frame)
    for at, value in changes.items():
        changed[at] = value
    if n_payload is not None:
        payload = bytes(changed[32 : 32 + n_payload]).ljust(n_payload, b"\0")
        changed[32:] = payload.ljust(-(-(32 + n_payload) // 64) * 64 - 32, b"\0")
        changed[12:16] = n_payload.to_bytes(4, "little")
        changed[16:20] = len(changed).to_bytes(4, "little")
    changed[24:28] = reference.crc32c(changed[32:]).to_bytes(4, "little")
    changed[28:32] = reference.crc32c(changed[:28]).to_bytes(4, "little")
    return bytes(changed)


def payload_of(frame: bytes) -> bytes:
    """Return the payload of a frame."""
    return frame[32 : 32 + int.from_bytes(frame[12:16], "little")]


def with_payload(frame: bytes, payload: bytes) -> bytes:
    """Return the frame with another payload, under fresh CRCs."""
    return resealed(frame[:32] + payload, {}, len(payload))
