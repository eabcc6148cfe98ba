"""A stretch of a training loop: how long its steps took, and what its thread waited for."""

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

SCHEDSTAT = Path("/proc/thread-self/schedstat")
MACHINE = Path(
    "/proc/stat"
)  # user nice system idle iowait irq softirq steal, in ticks of all cores


@dataclass(frozen=True, kw_only=True)
class Clocks:
    """What the calling thread has used until now, in seconds.

    Attributes:
        wall: Wall time.
        thread_cpu: CPU time of this thread.
        process_cpu: CPU time of the process.
        queued: Time that this thread was ready to run while no core took it; None where the kernel
            does not count it.
        busy, stolen: Time that all cores of the machine were at work, and that the machine under a
            virtual one took from them, for the input and output of this one, too.
    """

    wall: float
    thread_cpu: float
    process_cpu: float
    queued: float | None
    busy: float = 0.0
    stolen: float = 0.0

    def waited(self, since: "Clocks") -> float | None:
        """Return the seconds in which the thread neither ran nor could have run.

        A thread that does no I/O and takes no lock of its own waits for the GIL then. What was
        stolen from the cores looks the same to a thread; its part is taken to be as large as its
        part of the work.
        """
        if self.queued is None or since.queued is None:
            return None
        cpu = self.thread_cpu - since.thread_cpu
        away = (self.wall - since.wall) - cpu - (self.queued - since.queued)
        busy = self.busy - since.busy
        return away - ((self.stolen - since.stolen) * min(1.0, cpu / busy) if busy > 0 else 0.0)


@dataclass(kw_only=True)
class Stretch:
    """Steps in a row.

    Attributes:
        step_s: Seconds of each step.
        n_in_flight: How many of them, the first ones, began while a save was in flight.
        begin: Clocks at the start.
        landed: Clocks when the save was seen to be done, after the step in which it ended.
        end: Clocks at the end.
    """

    begin: Clocks
    landed: Clocks
    end: Clocks
    step_s: list[float] = field(default_factory=list)
    n_in_flight: int = 0

    @property
    def in_flight_s(self) -> list[float]:
        """Seconds of each step that began while a save was in flight."""
        return self.step_s[: self.n_in_flight]


def read_clocks() -> Clocks:
    """Read the clocks of the calling thread."""
    queued = None
    try:
        queued = int(SCHEDSTAT.read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        queued = None
    busy, stolen = _machine_times()
    return Clocks(
        wall=time.perf_counter(),
        thread_cpu=time.thread_time(),
        process_cpu=time.process_time(),
        queued=queued,
        busy=busy,
        stolen=stolen,
    )


def _machine_times() -> tuple[float, float]:
    """Return for how long the cores were at work and were stolen; zeros where nobody counts."""
    try:
        ticks = [int(text) for text in MACHINE.read_text().split("\n", 1)[0].split()[1:9]]
        user, nice, system, _, _, irq, softirq, steal = ticks
    except (OSError, ValueError):
        return 0.0, 0.0
    second = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + softirq) / second, steal / second


def take_steps(
    step: Callable[[], None], least_seconds: float, in_flight: Callable[[], bool] = lambda: False
) -> Stretch:
    """Take steps until so many seconds have passed and no save is in flight."""
    now = read_clocks()
    stretch = Stretch(begin=now, landed=now, end=now)
    is_flying, before = in_flight(), time.perf_counter()
    end = before + least_seconds
    while is_flying or before < end:
        step()
        after = time.perf_counter()
        stretch.step_s.append(after - before)
        before = after
        if is_flying:
            stretch.n_in_flight += 1
            is_flying = in_flight()
            if not is_flying:
                stretch.landed = read_clocks()
    stretch.end = read_clocks()
    return stretch


def save_samples(
    before: Stretch, during: Stretch, after: Stretch, blocking_s: float
) -> dict[str, float]:
    """Compare the steps beside a save with those before and after it.

    Args:
        before: Steps without a save.
        during: Steps from the return of the save's call on; they outlast the save.
        after: Steps without a save.
        blocking_s: Seconds of the save's call.

    Returns:
        `blocking_s`, `save_s` (from the call until it is done), `step_ms` (median without a
        save), `step_cores`, `lost_s`; with steps in flight also `dilation_median` and
        `dilation_mean`; where the kernel counts run queues also `gil_wait_s`, `gil_wait_share`.
    """
    quiet = [*before.step_s, *after.step_s]
    mean, median = statistics.fmean(quiet), statistics.median(quiet)
    flight_s = during.landed.wall - during.begin.wall
    quiet_s = sum(stretch.end.wall - stretch.begin.wall for stretch in (before, after))
    quiet_cpu = sum(s.end.process_cpu - s.begin.process_cpu for s in (before, after))
    samples = {
        "blocking_s": blocking_s,
        "save_s": blocking_s + flight_s,
        "step_ms": median * 1e3,
        "step_cores": quiet_cpu / quiet_s,
        "lost_s": blocking_s + sum(during.step_s) - len(during.step_s) * mean,
    }
    if during.n_in_flight:
        samples["dilation_median"] = statistics.median(during.in_flight_s) / median
        samples["dilation_mean"] = statistics.fmean(during.in_flight_s) / mean
    waits = [during.landed.waited(during.begin), *(s.end.waited(s.begin) for s in (before, after))]
    if None not in waits and flight_s > 0:
        waited, *usual = (wait for wait in waits if wait is not None)
        samples["gil_wait_s"] = waited - sum(usual) / quiet_s * flight_s
        samples["gil_wait_share"] = samples["gil_wait_s"] / samples["save_s"]
    return samples
