"""Storage that makes its writers wait, on a clock that only a test moves."""

from orbax_gds.bandwidth import Clocks, ThreadTimes
from orbax_gds.drivers import File
from orbax_gds.drivers.memory import MemoryDriver
from orbax_gds.weighing import Speed

GB = 1e9
OFF = Speed(bytes_per_sec=5 * GB, ratio=1.0)
FAST = Speed(bytes_per_sec=4 * GB, ratio=1.33)
AUTO = Speed(bytes_per_sec=2 * GB, ratio=1.5)
ZSTD = Speed(bytes_per_sec=0.4 * GB, ratio=4.0)
SPLIT = {"off": OFF, "fast": FAST, "auto": AUTO}
WHOLE = {"off": OFF, "auto": ZSTD}


class Clock:
    """Seconds and thread times that only a test moves; any thread sees the same."""

    def __init__(self) -> None:
        self.now, self.cpu, self.queued = 0.0, 0.0, 0.0

    def __call__(self) -> float:
        return self.now

    def times(self) -> ThreadTimes:
        return ThreadTimes(cpu=self.cpu, queued=self.queued)

    def clocks(self) -> Clocks:
        return Clocks(seconds=self, times=self.times)

    def spend(self, *, cpu: float = 0.0, queued: float = 0.0, waited: float = 0.0) -> None:
        self.now += cpu + queued + waited
        self.cpu += cpu
        self.queued += queued


class PacedDriver(MemoryDriver):
    """A driver that makes its writers wait, on a clock that only it moves."""

    def __init__(self, bytes_per_sec: float, clock: Clock, cpu_secs_per_byte: float = 0.0) -> None:
        super().__init__()
        self.bytes_per_sec, self.clock = bytes_per_sec, clock
        self.cpu_secs_per_byte = cpu_secs_per_byte
        self.n_probes = 0
        self.written: list[tuple[int, int]] = []

    def open(self, path, mode) -> File:
        self.n_probes += str(path).endswith(".probe")
        return PacedFile(super().open(path, mode), self)

    def wrote(self, offset: int, n_bytes: int) -> None:
        self.written.append((offset, n_bytes))


class PacedFile(File):
    def __init__(self, inner: File, driver: PacedDriver) -> None:
        self.inner, self.driver = inner, driver
        self.alignment, self.carried, self.reason = inner.alignment, inner.carried, None

    def write(self, offset, data) -> None:
        n_bytes = memoryview(data).nbytes
        self.driver.clock.spend(
            cpu=n_bytes * self.driver.cpu_secs_per_byte,
            waited=n_bytes / self.driver.bytes_per_sec,
        )
        self.driver.wrote(offset, n_bytes)
        self.inner.write(offset, data)

    def read(self, offset, out) -> None:
        self.inner.read(offset, out)

    def n_bytes(self) -> int:
        return self.inner.n_bytes()

    def sync(self, n_bytes: int) -> None:
        self.inner.sync(n_bytes)

    def close(self) -> None:
        self.inner.close()
