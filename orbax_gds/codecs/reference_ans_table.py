"""The table and the stream of the ans coding in plain NumPy, written from FORMAT §7.7."""

from dataclasses import dataclass

import numpy as np

from orbax_gds.codecs.reference_bytes import Cursor
from orbax_gds.errors import Corrupt

STATE_BITS = 12
N_STATES = 1 << STATE_BITS
STEP = 2563
N_LANES = 8


@dataclass(frozen=True, kw_only=True)
class Table:
    """What each state stands for, and where the words that follow are.

    Attributes:
        counts: f(y) for the bytes y from 0 to 255; they sum up to 4096.
        bytes: The byte of each state.
        n_bits: Bits that the next state takes from the stream.
        base: What is added to those bits.
    """

    counts: np.ndarray
    bytes: np.ndarray
    n_bits: np.ndarray
    base: np.ndarray

    @classmethod
    def of(cls, counts: np.ndarray) -> "Table":
        """Spread the bytes over the states."""
        octets = np.empty(N_STATES, np.int64)
        octets[np.arange(N_STATES) * STEP % N_STATES] = np.repeat(np.arange(256), counts)
        q = np.empty(N_STATES, np.int64)
        for y in np.flatnonzero(counts):
            q[octets == y] = np.arange(counts[y], 2 * counts[y])
        n_bits = STATE_BITS - (np.frexp(q)[1] - 1)  # frexp's exponent is floor(log2 q) + 1
        return cls(counts=counts, bytes=octets, n_bits=n_bits, base=(q << n_bits) - N_STATES)


def pack_counts(counts: np.ndarray) -> bytes:
    """Return the bitmap of the bytes that occur, and their counts."""
    bitmap = np.packbits(counts > 0, bitorder="little").tobytes()
    return bitmap + counts[counts > 0].astype("<u2").tobytes()


def parse_counts(payload: Cursor) -> np.ndarray:
    """Take bitmap and counts."""
    bitmap = payload.array("u1", 32, "the bitmap of the bytes that occur")
    occurs = np.unpackbits(bitmap, bitorder="little").astype(bool)
    counts = np.zeros(256, np.int64)
    counts[occurs] = payload.array("<u2", int(occurs.sum()), "the counts")
    if counts.sum() != N_STATES or (counts[occurs] == 0).any():
        raise Corrupt(
            f"{payload.where}: ans: counts with sum {counts.sum()}, {occurs.sum()} bytes occur."
        )
    return counts


def fit_counts(octets: np.ndarray) -> np.ndarray:
    """Return counts in proportion to how often each byte occurs, none of them 0."""
    histogram = np.bincount(octets, minlength=256)
    counts = np.maximum(histogram * N_STATES // octets.size, histogram > 0)
    while excess := int(counts.sum()) - N_STATES:
        most = int(np.argmax(counts))
        counts[most] -= min(excess, counts[most] // 2) if excess > 0 else excess
    return counts


def encode_stream(octets: np.ndarray, table: Table) -> bytes:
    """Return the stream of these bytes: coded from the last word to the first."""
    states_of = {int(y): np.flatnonzero(table.bytes == y).tolist() for y in np.unique(octets)}
    counts = table.counts.tolist()
    states = [0] * N_LANES
    values, widths = np.zeros(octets.size, np.int64), np.zeros(octets.size, np.int64)
    for i, y in reversed(list(enumerate(octets.tolist()))):
        after, count = N_STATES + states[i % N_LANES], counts[y]
        n_bits = STATE_BITS + 1 - count.bit_length()
        if after >> n_bits < count:  # q is in [f, 2 f)
            n_bits -= 1
        values[i], widths[i] = after & ((1 << n_bits) - 1), n_bits
        states[i % N_LANES] = states_of[y][(after >> n_bits) - count]
    values = np.concatenate([states, values])
    widths = np.concatenate([np.full(N_LANES, STATE_BITS), widths])
    bits = values[:, None] >> np.arange(STATE_BITS) & 1
    bits = bits[np.arange(STATE_BITS) < widths[:, None]]
    skipped = -(bits.size + 1) % 8
    bits = np.concatenate([np.zeros(skipped), [1], bits])
    return np.packbits(bits.astype(np.uint8), bitorder="little").tobytes()


def decode_stream(stream: bytes, m: int, table: Table, where: str) -> np.ndarray:
    """Return the bytes of m words."""
    if not stream or stream[0] == 0:
        raise Corrupt(f"{where}: ans: a stream of {len(stream)} bytes does not begin with a 1 bit.")
    first, n_bits, base = table.bytes.tolist(), table.n_bits.tolist(), table.base.tolist()
    at = (stream[0] & -stream[0]).bit_length()
    end = 8 * len(stream)
    states, octets = [0] * N_LANES, []

    def take(width: int) -> int:
        nonlocal at
        if width > end - at:
            raise Corrupt(f"{where}: ans: the stream of {len(stream)} bytes ends too early.")
        window = int.from_bytes(stream[at >> 3 : (at >> 3) + 3], "little")
        at += width
        return window >> (at - width & 7) & ((1 << width) - 1)

    states = [take(STATE_BITS) for _ in range(N_LANES)]
    for i in range(m):
        state = states[i % N_LANES]
        octets.append(first[state])
        states[i % N_LANES] = base[state] + take(n_bits[state])
    if any(states) or at != end:
        raise Corrupt(f"{where}: ans: states {states}, {end - at} bits left at the end.")
    return np.array(octets, np.int64)
