"""CRC32C and bounds-checked reading for the reference, in plain NumPy."""

import struct

import numpy as np

from orbax_gds.errors import Corrupt, Truncated

_POLYNOMIAL = 0x82F63B78  # 0x1EDC6F41 reflected
_LANE_BYTES = 512


def align(size: int, alignment: int) -> int:
    """Return the smallest multiple of `alignment` that is at least `size`."""
    return -(-size // alignment) * alignment


def _crc_table() -> np.ndarray:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(_POLYNOMIAL), table >> 1)
    return table.astype(np.uint32)


_TABLE = _crc_table()
_TABLE_INTS = _TABLE.tolist()


def crc32c(data: bytes, value: int = 0) -> int:
    """Return the CRC32C of the bytes, continuing from the CRC32C `value` of those before."""
    data = bytes(data)
    crc = value ^ 0xFFFFFFFF
    n_lanes = len(data) // _LANE_BYTES
    if n_lanes > 8:
        crc = _crc_lanes(data[: n_lanes * _LANE_BYTES], crc)
        data = data[n_lanes * _LANE_BYTES :]
    for byte in data:
        crc = _TABLE_INTS[(crc ^ byte) & 255] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _crc_lanes(data: bytes, crc: int) -> int:
    # The register is linear over GF(2): a start value is the same as an XOR on the first four
    # bytes, zeros in front change nothing, and lanes computed side by side join by shifting.
    lanes = np.frombuffer(data, np.uint8).reshape(-1, _LANE_BYTES).copy()
    lanes[0, :4] ^= np.frombuffer(struct.pack("<I", crc), np.uint8)
    registers = np.zeros(len(lanes), np.uint32)
    for column in lanes.T:
        registers = _TABLE[(registers ^ column) & 255] ^ (registers >> 8)
    images = np.uint32(1) << np.arange(32, dtype=np.uint32)  # each bit, shifted by one lane
    for _ in range(_LANE_BYTES):
        images = _TABLE[images & 255] ^ (images >> 8)
    while len(registers) > 1:
        if len(registers) % 2:
            registers = np.concatenate([np.zeros(1, np.uint32), registers])
        registers = _shifted(registers[0::2], images) ^ registers[1::2]
        images = _shifted(images, images)
    return int(registers[0])


def _shifted(registers: np.ndarray, images: np.ndarray) -> np.ndarray:
    result = np.zeros_like(registers)
    for bit in range(32):
        result ^= np.where((registers >> np.uint32(bit)) & 1, images[bit], 0).astype(np.uint32)
    return result


def check_crc(data: bytes, expected: int, what: str) -> None:
    """Refuse bytes whose CRC32C is not the one expected."""
    found = crc32c(data)
    if found != expected:
        raise Corrupt(f"{what}: CRC32C is {found:08x} but {expected:08x} was stored.")


class Cursor:
    """Takes fields from bytes one after the other and refuses to pass their end."""

    def __init__(self, data: bytes, where: str) -> None:
        self.data = bytes(data)
        self.where = where
        self.at = 0

    def take(self, n_bytes: int, what: str) -> bytes:
        """Return the next bytes.

        Raises:
            Truncated: fewer are left.
        """
        if n_bytes > len(self.data) - self.at:
            raise Truncated(
                f"{self.where}: {what} needs {n_bytes} bytes at byte {self.at}, "
                f"{len(self.data) - self.at} are left."
            )
        self.at += n_bytes
        return self.data[self.at - n_bytes : self.at]

    def array(self, dtype: np.dtype | str, count: int, what: str) -> np.ndarray:
        """Return the next `count` numbers as an array."""
        dtype = np.dtype(dtype)
        return np.frombuffer(self.take(count * dtype.itemsize, what), dtype)

    def finish(self) -> None:
        """Refuse bytes that nothing has taken."""
        if self.at != len(self.data):
            raise Corrupt(f"{self.where}: {len(self.data) - self.at} bytes follow the end.")
