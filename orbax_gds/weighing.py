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
from orbax_gds.codecs.zstd import AUTO_LEVEL, MAX_LEVEL
from orbax_gds.dtypes import DTYPES
from orbax_gds.options import Codec
from orbax_gds.plan import Plan, Run, one_chunk

WEIGH_ABOVE_BYTES = 64 << 20  # chosen: below, a save is over in the time that a wrong choice costs

Weighed = Literal["auto", "fast", "off"]
Speeds = Mapping[Weighed, "Speed"]

_ZSTD_LEVELS: dict[Codec, int] = {"auto": AUTO_LEVEL, "max": MAX_LEVEL}
# Chosen: a coding must keep up with this much to spare. Timings scatter, and workers share
# processors with training.
_HEADROOM = 1.1
_SAMPLE_CHUNKS = 4  # chosen: from all over the state, as moments code slower than weights
_SAMPLE_SHARE = 128  # chosen: at most so small a part of a state is coded for a look
_WHOLE_SAMPLE_CHUNKS = 1  # chosen: zstd takes several ms for each
_SAMPLE_BYTES = 8 << 20  # chosen: bounds the sample where chunks are long
_LEAST_CHUNK_BYTES = 64 << 10  # chosen: shorter chunks are dominated by the call
_TURNS = 2  # chosen: the first one also brings pages and tables into the caches
_LEAST_SECS = 1e-9

_CONTAINER_BYTES = np.zeros(256, np.int64)
_HAS_SPLIT = np.zeros(256, np.bool_)
for _dtype in DTYPES:
    _CONTAINER_BYTES[_dtype.id] = _dtype.container_bytes
    _HAS_SPLIT[_dtype.id] = _dtype.split is not None


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Speed:
    """How one core codes: bytes of words a second, and bytes in per byte out."""

    bytes_per_sec: float
    ratio: float

    def __str__(self) -> str:
        return f"{self.bytes_per_sec / 1e9:.2f} GB/s at {self.ratio:.2f}"


def as_asked(codec: Codec, reason: str = "not weighed") -> Coding:
    """Return the coding of a save that is not weighed: each codec with its own level of zstd."""
    return Coding(codec=codec, zstd_level=_ZSTD_LEVELS.get(codec, 0), reason=reason)


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
        split: speeds on words with a split by coding, "off" among them; empty if there are none.
        whole: the same on the others, where "auto" is zstd.
        workers: on how many cores.

    Returns:
        "auto", "fast" or "off", in this order of preference, and with "auto" zstd where it keeps
        up as well.
    """

    def keeps_up(speeds: Speeds, codec: Weighed) -> bool:
        if not speeds:
            return True
        speed, raw = speeds[codec], speeds["off"]
        held_back = dataclasses.replace(speed, bytes_per_sec=speed.bytes_per_sec / _HEADROOM)
        rate = saving_rate(held_back, storage, workers)
        return rate >= saving_rate(raw, storage, workers)

    codec: Weighed = "off"
    if keeps_up(split, "auto"):
        codec = "auto"
    elif keeps_up(split, "fast"):
        codec = "fast"
    zstd = codec == "auto" and keeps_up(whole, "auto")
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


def pays(codec: Codec, plan: Plan) -> bool:
    """Return whether a save is worth weighing: only "auto" leaves a choice, and only time tells."""
    return codec == "auto" and sum(run.n_bytes for run in plan.runs) >= WEIGH_ABOVE_BYTES


def weigh(
    plan: Plan,
    *,
    storage: Storage,
    n_workers: int,
    encode: Callable[[Run, Coding], int],
    times: Callable[[], ThreadTimes] = thread_times,
) -> Coding:
    """Time each coding on a few chunks of the plan and choose one.

    Args:
        plan: of the save.
        storage: what writing costs.
        n_workers: that code at once, at most the number of processors.
        encode: codes a run, for a look; returns the bytes it took.
        times: of the calling thread.
    """
    began = times()

    def speeds(split: bool, *codecs: Weighed) -> Speeds:
        return measure_speeds(sample(plan, split=split), codecs, encode, lambda: times().cpu)

    split = speeds(True, "off", "fast", "auto")
    whole = speeds(False, "off", "auto")
    ended = times()
    cpu, queued = ended.cpu - began.cpu, ended.queued - began.queued
    share = max(cpu, _LEAST_SECS) / max(cpu + queued, _LEAST_SECS)
    workers = Workers(count=n_workers, share=share)
    return choose_coding(storage=storage, split=split, whole=whole, workers=workers)


def sample(plan: Plan, *, split: bool) -> list[Run]:
    """Return a few chunks from all over a plan, each as a run of its own.

    Args:
        plan: of the save.
        split: whether of words with a split, or of the others.

    Returns:
        The same for the same plan; empty if no such chunk is long enough to measure by.
    """
    fitting: list[tuple[Run, int]] = []
    fitting_bytes = 0
    for run in plan.runs:
        dtypes = run.chunks[:, 2]
        n_bytes = run.chunks[:, 1] * _CONTAINER_BYTES[dtypes]
        rows = np.flatnonzero((_HAS_SPLIT[dtypes] == split) & (n_bytes >= _LEAST_CHUNK_BYTES))
        fitting += [(run, row) for row in rows.tolist()]
        fitting_bytes += int(n_bytes[rows].sum())
    if not fitting:
        return []
    sample_bytes = min(_SAMPLE_BYTES, sum(run.n_bytes for run in plan.runs) // _SAMPLE_SHARE)
    most = sample_bytes * len(fitting) // fitting_bytes
    n_chunks = max(1, min(most, len(fitting), _SAMPLE_CHUNKS if split else _WHOLE_SAMPLE_CHUNKS))
    places = [(2 * i + 1) * len(fitting) // (2 * n_chunks) for i in range(n_chunks)]
    return [one_chunk(*fitting[place]) for place in places]


def measure_speeds(
    runs: Sequence[Run],
    codecs: Sequence[Weighed],
    encode: Callable[[Run, Coding], int],
    clock: Callable[[], float] = time.thread_time,
) -> Speeds:
    """Time the coding of a sample by each codec, in turns, so that all find the same caches.

    Args:
        runs: the sample.
        codecs: to compare.
        encode: codes a run and returns the bytes it took.
        clock: seconds of processor time.

    Returns:
        The fastest turn of each; empty without a sample.
    """
    if not runs:
        return {}
    secs = dict.fromkeys(codecs, float("inf"))
    coded_bytes = dict.fromkeys(codecs, 0)
    for codec in (*codecs,) * _TURNS:
        coding = as_asked(codec)
        began = clock()
        coded_bytes[codec] = sum(encode(run, coding) for run in runs)
        secs[codec] = min(secs[codec], clock() - began)
    n_bytes = sum(run.n_bytes for run in runs)
    return {
        codec: Speed(
            bytes_per_sec=n_bytes / max(secs[codec], _LEAST_SECS),
            ratio=n_bytes / coded_bytes[codec],
        )
        for codec in codecs
    }
