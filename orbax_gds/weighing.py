"""Which coding a save uses: storage bandwidth weighed against the speed of coding this very state.

A coding that takes longer than the storage does for the raw words would make the save slower than
no coding at all; one that keeps up makes it faster by as much as it makes the words smaller.
"""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np

from orbax_gds.bandwidth import Storage, ThreadTimes, thread_times
from orbax_gds.codecs.zstd import AUTO_LEVEL, LEVELS
from orbax_gds.dtypes import CONTAINER_BYTES, DTYPES
from orbax_gds.options import Codec
from orbax_gds.plan import Plan, Run, part_of_chunk

WEIGH_ABOVE_BYTES = 32 << 20  # chosen: below, a wrong choice costs about as much as weighing
# Measured: a probe of a disk takes 20 ms, a fifth of a save of 64 MiB.
PROBE_ABOVE_BYTES = 256 << 20
# Measured: weighing takes 2 to 4 ms of a save to memory, 4 % of one of 128 MiB.
WEIGH_ON_MEMORY_ABOVE_BYTES = 256 << 20
# Chosen: of a state that is not weighed, so many words without a split are raw. Measured: of 8 MiB
# zstd makes a save to memory four times as long, and a probe a first save to a disk 1.4 times.
RAW_WHOLE_ABOVE_BYTES = 1 << 20

Weighed = Literal["auto", "fast", "off"]
Speeds = Mapping[Weighed, "Speed"]

# Chosen: a coding must keep up with this much to spare. Timings scatter, and workers share
# processors with training.
_HEADROOM = 1.1
_PIECES = 8  # chosen: of a sample, from all over the state, as moments code slower than weights
# Chosen: at most so small a part of a state is in the sample of words with a split. Measured: a
# save to memory of 64 MiB takes 50 ms, weighing it 0.6 ms; by twice the sample, 1.4 ms.
_SHARE = 512
_WHOLE_SHARE = 1024  # chosen: and of the others, as zstd takes many times as long for each
_LEAST_CHUNK_BYTES = 64 << 10  # chosen: the coding of fewer is dominated by the call
# Measured: by pieces of 64 KiB "auto" seems to take 1.7 times as long as it does for bfloat16.
_LEAST_PIECE_BYTES = 128 << 10
_MOST_PIECE_BYTES = 256 << 10  # chosen: more tell nothing new
_TURNS = 2  # chosen: the first one also brings pages and tables into the caches
_DOUBT = 4  # chosen: so many times as fast as the first turn of one piece all may be
_LEAST_SECS = 1e-9

_BY_ID = {dtype.id: dtype for dtype in DTYPES}
_DTYPES = [_BY_ID.get(number) for number in range(256)]
_HAS_SPLIT = np.array([dtype is not None and dtype.split is not None for dtype in _DTYPES])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Coding:
    """What `Options.codec` was resolved to, once for a save.

    Attributes:
        codec: what the native core is told: "auto", "fast", "max" or "off".
        zstd_level: level of zstd for words without a split; 0 leaves them raw.
        reason: why, for people.
    """

    codec: Codec
    zstd_level: int
    reason: str


Encode = Callable[[Sequence[Run], Coding], int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Speed:
    """How one core codes: bytes of words a second, and bytes in per byte out."""

    bytes_per_sec: float
    ratio: float

    def __str__(self) -> str:
        return f"{self.bytes_per_sec / 1e9:.2f} GB/s at {self.ratio:.2f}"


def as_asked(codec: Codec, reason: str = "not weighed") -> Coding:
    """Return the coding of a save that is not weighed: each codec with its own level of zstd."""
    return Coding(codec=codec, zstd_level=LEVELS.get(codec, 0), reason=reason)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Workers:
    """How many work at once, and the share of a core that a busy machine gives to each."""

    count: int
    share: float = 1.0


def saving_rate(speed: Speed, storage: Storage, workers: Workers) -> float:
    """Return the bytes of words a second that a save moves.

    A worker codes and writes on its core, then waits for the device, which is one for all. So a
    byte takes a worker the time of all three, and no more bytes pass than the device takes coded.

    Args:
        speed: of one core.
        storage: what writing costs.
        workers: on how many cores.

    Example:
        >>> disk = Storage(bytes_per_sec=1e9, cpu_secs_per_byte=0)
        >>> saving_rate(Speed(bytes_per_sec=4e9, ratio=1.5), disk, Workers(count=2))
        1500000000.0
    """
    cpu_secs = 1 / speed.bytes_per_sec + storage.cpu_secs_per_byte / speed.ratio
    device_secs = 1 / (speed.ratio * storage.bytes_per_sec)
    return min(1 / device_secs, workers.count / (cpu_secs / workers.share + device_secs))


def choose_coding(*, storage: Storage, split: Speeds, whole: Speeds, workers: Workers) -> Coding:
    """Choose the strongest coding that makes the save no slower than raw words would.

    Args:
        storage: what writing costs.
        split: speeds on words with a split by coding, "off" and "auto" among them; empty if there
            are none.
        whole: the same on the others, where "auto" is zstd.
        workers: on how many cores.

    Returns:
        "auto", "fast" or "off", in this order of preference, and with "auto" zstd where it keeps
        up as well with storage that waits.
    """

    codec: Weighed = "off"
    if not split or _keeps_up(split, "auto", storage, workers):
        codec = "auto"
    elif "fast" in split and _keeps_up(split, "fast", storage, workers):
        codec = "fast"
    zstd = codec == "auto" and storage.waits
    zstd = zstd and (not whole or _keeps_up(whole, "auto", storage, workers))
    if not split and not zstd:
        codec = "off"
    measured = [f"{name} {speed}" for name, speed in split.items()]
    measured += [f"zstd {speed}" for name, speed in whole.items() if name == "auto"]
    return Coding(
        codec=codec,
        zstd_level=AUTO_LEVEL if zstd else 0,
        reason=f"storage takes {storage.bytes_per_sec / 1e9:.2f} GB/s for "
        f"{storage.cpu_secs_per_byte * 1e9:.2f} CPU s/GB; each of {workers.count} workers has "
        f"{workers.share:.2f} of a core and codes " + ", ".join(measured),
    )


def _keeps_up(
    speeds: Speeds,
    codec: Weighed,
    storage: Storage,
    workers: Workers,
    headroom: float = _HEADROOM,
) -> bool:
    speed = speeds[codec]
    held_back = dataclasses.replace(speed, bytes_per_sec=speed.bytes_per_sec / headroom)
    raw = saving_rate(speeds["off"], storage, workers)
    return saving_rate(held_back, storage, workers) >= raw


def unweighed(codec: Codec, plan: Plan, *, is_known: bool, on_memory: bool) -> Coding | None:
    """Return the coding of a save that is not worth weighing; None where only time tells.

    On memory a small state can win less by coding than weighing it takes, and zstd never wins; nor
    does it where weighing it for a small state takes longer than writing.

    Args:
        codec: that was asked for; only "auto" leaves a choice.
        plan: of the save.
        is_known: whether a save before measured the storage, so that no probe is needed.
        on_memory: whether it is known that writing waits for no device.
    """
    if codec != "auto":
        return as_asked(codec)
    n_bytes = sum(run.n_bytes for run in plan.runs)
    least_bytes = WEIGH_ABOVE_BYTES if is_known else PROBE_ABOVE_BYTES
    if n_bytes >= least_bytes and not on_memory:
        return None
    whole_bytes = _whole_bytes(plan)
    if on_memory and n_bytes - whole_bytes < WEIGH_ON_MEMORY_ABOVE_BYTES:
        reason = "not weighed: storage is memory, and too little could be won"
        return Coding(codec="off", zstd_level=0, reason=reason)
    if on_memory:
        return None
    if whole_bytes >= RAW_WHOLE_ABOVE_BYTES:
        reason = "not weighed: zstd may be too slow, and measuring that takes as long"
        return Coding(codec=codec, zstd_level=0, reason=reason)
    return as_asked(codec)


def of_delta(codec: Codec, plan: Plan, *, on_memory: bool) -> Coding:
    """Return the coding of a save that is a delta; it is not weighed.

    Whoever asks for deltas wants few bytes, and raw words have no base. Without being weighed,
    many words for zstd are left to the other codings.

    Args:
        codec: that was asked for.
        plan: of the save.
        on_memory: whether it is known that writing waits for no device.
    """
    coding = as_asked(codec, "not weighed: the step is a delta")
    if codec == "auto" and (on_memory or _whole_bytes(plan) >= RAW_WHOLE_ABOVE_BYTES):
        return dataclasses.replace(coding, zstd_level=0)
    return coding


def _whole_bytes(plan: Plan) -> int:
    """Return the bytes of words without a split."""
    n_bytes = 0
    for run in plan.runs:
        dtypes = run.chunks[:, 2]
        n_bytes += int((run.chunks[:, 1] * CONTAINER_BYTES[dtypes])[~_HAS_SPLIT[dtypes]].sum())
    return n_bytes


def weigh(
    plan: Plan,
    *,
    storage: Storage,
    n_workers: int,
    encode: Encode,
    times: Callable[[], ThreadTimes] = thread_times,
) -> Coding:
    """Time codings on a sample of the plan and choose one.

    What cannot be chosen any more is not timed: "fast" where "auto" keeps up, zstd where "auto"
    does not, where no device is waited for, or where one piece took it far too long.

    Args:
        plan: of the save.
        storage: what writing costs.
        n_workers: that code at once, at most the number of processors.
        encode: codes runs, for a look; returns the bytes they took.
        times: of the calling thread.
    """
    began = times()

    def workers() -> Workers:
        now = times()
        cpu, queued = now.cpu - began.cpu, now.queued - began.queued
        share = max(cpu, _LEAST_SECS) / max(cpu + queued, _LEAST_SECS)
        return Workers(count=n_workers, share=share)

    def speeds(
        runs: Sequence[Run], *codecs: Weighed, n_turns: int = _TURNS
    ) -> dict[Weighed, Speed]:
        return measure_speeds(runs, codecs, encode, lambda: times().cpu, n_turns)

    runs = sample(plan, split=True)
    split = speeds(runs, "off", "auto")
    found = workers()
    if split and not _keeps_up(split, "auto", storage, found):
        split |= speeds(runs, "off", "fast")
        found = workers()
    whole: Speeds = {}
    if storage.waits and (not split or _keeps_up(split, "auto", storage, found)):
        runs = sample(plan, split=False)
        whole = speeds(runs[:1], "off", "auto", n_turns=1)
        if whole and _keeps_up(whole, "auto", storage, workers(), headroom=1 / _DOUBT):
            whole = speeds(runs, "off", "auto")
    # By what was found then: zstd is not timed if "auto" did not keep up, nor "fast" if it did.
    found = found if split else workers()
    return choose_coding(storage=storage, split=split, whole=whole, workers=found)


def sample(plan: Plan, *, split: bool) -> list[Run]:
    """Return a few pieces of chunks from all over a plan, each as a run of its own.

    They lie at equal distances in bytes, so that each leaf and dtype has a share as in the plan.
    Together they are at most 1/512 of its words, or 1/1024 where those without a split are
    sampled, but always one piece of up to 128 KiB, or 64 KiB.

    Args:
        plan: of the save.
        split: whether of words with a split, or of the others.

    Returns:
        The same for the same plan; empty if no such chunk has 64 KiB to measure by.
    """
    if not plan.runs:
        return []
    chunks = np.concatenate([run.chunks for run in plan.runs])
    sizes = chunks[:, 1] * CONTAINER_BYTES[chunks[:, 2]]
    is_fit = (_HAS_SPLIT[chunks[:, 2]] == split) & (sizes >= _LEAST_CHUNK_BYTES)
    fitting = np.flatnonzero(is_fit)
    ends = np.cumsum(sizes[fitting])
    run_ends = np.cumsum([len(run.chunks) for run in plan.runs])
    sample_bytes = sum(run.n_bytes for run in plan.runs) // (_SHARE if split else _WHOLE_SHARE)
    least_bytes = _LEAST_PIECE_BYTES if split else _LEAST_CHUNK_BYTES
    sample_bytes = max(least_bytes, sample_bytes)
    n_pieces = min(_PIECES, sample_bytes // least_bytes) if len(fitting) else 0
    piece_bytes = min(_MOST_PIECE_BYTES, sample_bytes // max(1, n_pieces))
    pieces: list[Run] = []
    for i in range(n_pieces):
        at = (2 * i + 1) * int(ends[-1]) // (2 * n_pieces)
        place = int(np.searchsorted(ends, at, side="right"))
        row = int(fitting[place])
        number = int(np.searchsorted(run_ends, row, side="right"))
        run = plan.runs[number]
        at -= int(ends[place]) - int(sizes[row])
        pieces.append(_piece(run, row - int(run_ends[number]) + len(run.chunks), at, piece_bytes))
    return pieces


def _piece(run: Run, row: int, at: int, n_bytes: int) -> Run:
    """Return the words around a byte of a chunk, or the whole chunk if it is shorter."""
    _, n_words, dtype, _, columns = run.chunks[row].tolist()
    word_bytes = int(CONTAINER_BYTES[dtype])
    n_taken = min(n_words, n_bytes // word_bytes)
    first = max(0, min(at // word_bytes - n_taken // 2, n_words - n_taken))
    return part_of_chunk(run, row, first - first % max(1, columns), n_taken)


def measure_speeds(
    runs: Sequence[Run],
    codecs: Sequence[Weighed],
    encode: Encode,
    clock: Callable[[], float] = time.thread_time,
    n_turns: int = _TURNS,
) -> dict[Weighed, Speed]:
    """Time the coding of a sample by each codec, in turns, so that all find the same caches.

    Args:
        runs: the sample.
        codecs: to compare.
        encode: codes runs, in one call, and returns the bytes they took.
        clock: seconds of processor time.
        n_turns: how often each codes the sample.

    Returns:
        The fastest turn of each; empty without a sample.
    """
    if not runs:
        return {}
    secs = dict.fromkeys(codecs, float("inf"))
    coded_bytes = dict.fromkeys(codecs, 0)
    began = clock()
    for codec in (*codecs,) * n_turns:
        coding = as_asked(codec)
        coded_bytes[codec] = encode(runs, coding)
        ended = clock()
        secs[codec], began = min(secs[codec], ended - began), ended
    n_bytes = sum(run.n_bytes for run in runs)
    return {
        codec: Speed(
            bytes_per_sec=n_bytes / max(secs[codec], _LEAST_SECS),
            ratio=n_bytes / coded_bytes[codec],
        )
        for codec in codecs
    }
