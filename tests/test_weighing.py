"""Coding is used as far as it keeps up with the storage, and no save gets slower by it."""

import json

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import orbax_gds as ogds
from orbax_gds import bandwidth, saving, weighing
from orbax_gds.bandwidth import (
    PROBE_PIECE_BYTES,
    PROBE_PIECES,
    KnownStorage,
    Storage,
    ThreadTimes,
    WriteMeter,
    probe,
    thread_times,
)
from orbax_gds.codecs.zstd import AUTO_LEVEL, MAX_LEVEL
from orbax_gds.drivers import File
from orbax_gds.drivers.memory import MemoryDriver
from orbax_gds.dtypes import dtype_by_name
from orbax_gds.errors import IoError
from orbax_gds.plan import ShardBox, make_plan
from orbax_gds.staging import aligned_empty
from orbax_gds.testing.faults import Fault, FaultyDriver
from orbax_gds.weighing import Speed, Workers, choose_coding, measure_speeds, sample, saving_rate

GB = 1e9
OFF = Speed(bytes_per_sec=5 * GB, ratio=1.0)
FAST = Speed(bytes_per_sec=4 * GB, ratio=1.33)
AUTO = Speed(bytes_per_sec=2 * GB, ratio=1.5)
ZSTD = Speed(bytes_per_sec=0.4 * GB, ratio=4.0)
SPLIT = {"off": OFF, "fast": FAST, "auto": AUTO}
WHOLE = {"off": OFF, "auto": ZSTD}
TWO = Workers(count=2)

speeds = st.builds(Speed, bytes_per_sec=st.floats(1e7, 1e11), ratio=st.floats(0.98, 500))
storages = st.builds(
    Storage, bytes_per_sec=st.floats(1e6, 1e18), cpu_secs_per_byte=st.floats(0, 1e-8)
)
workers = st.builds(Workers, count=st.integers(1, 64), share=st.floats(0.01, 1))


def disk(bytes_per_sec: float, cpu_secs_per_byte: float = 0.0) -> Storage:
    return Storage(bytes_per_sec=bytes_per_sec, cpu_secs_per_byte=cpu_secs_per_byte)


def chosen(storage: Storage, split=SPLIT, whole=None, workers=TWO) -> tuple[str, int]:
    coding = choose_coding(storage=storage, split=split, whole=whole or {}, workers=workers)
    return coding.codec, coding.zstd_level


def test_slow_storage_gets_the_ladder_and_fast_storage_raw_words():
    assert chosen(disk(0.5 * GB)) == ("auto", AUTO_LEVEL)
    assert chosen(disk(3.5 * GB)) == ("fast", 0)
    assert chosen(disk(100 * GB)) == ("off", 0)


def test_more_workers_keep_up_with_faster_storage():
    assert chosen(disk(3.5 * GB), workers=Workers(count=1)) == ("off", 0)
    assert chosen(disk(3.5 * GB), workers=Workers(count=4)) == ("auto", AUTO_LEVEL)


def test_zstd_is_used_while_it_keeps_up():
    assert chosen(disk(0.5 * GB), whole=WHOLE) == ("auto", AUTO_LEVEL)
    assert chosen(disk(1.0 * GB), whole=WHOLE) == ("auto", 0)
    assert chosen(disk(0.5 * GB), split={}, whole=WHOLE) == ("auto", AUTO_LEVEL)
    assert chosen(disk(1.0 * GB), split={}, whole=WHOLE) == ("off", 0)


def test_words_that_do_not_shrink_are_coded_only_where_it_costs_nothing():
    noise = {"off": OFF, "fast": OFF, "auto": Speed(bytes_per_sec=3 * GB, ratio=1.0)}
    assert chosen(disk(0.5 * GB), split=noise)[0] == "auto"
    assert chosen(disk(8 * GB), split=noise)[0] == "off"


@given(off=speeds, fast=speeds, auto=speeds, storage=storages, n=workers)
def test_the_choice_never_makes_a_save_slower_than_raw_words(off, fast, auto, storage, n):
    split = {"off": off, "fast": fast, "auto": auto}
    codec, _ = chosen(storage, split, workers=n)
    raw = saving_rate(off, storage, n)
    assert saving_rate(split[codec], storage, n) >= raw * (1 - 1e-9)


@given(speed=speeds, storage=storages, n=workers)
def test_a_save_is_no_faster_than_its_storage_or_its_workers(speed, storage, n):
    rate = saving_rate(speed, storage, n)
    assert rate <= speed.ratio * storage.bytes_per_sec * (1 + 1e-9)
    assert rate <= n.count * n.share * speed.bytes_per_sec * (1 + 1e-9)
    assert rate <= saving_rate(speed, storage, Workers(count=n.count + 1, share=n.share))
    assert rate <= saving_rate(speed, storage, Workers(count=n.count))


def test_memory_that_is_called_a_disk_is_not_worth_the_ladder_however_busy_the_machine_is():
    for share in (0.01, 0.5, 1.0):
        busy = Workers(count=2, share=share)
        copied_twice, copied_once = (disk(1e18, secs) for secs in (0.6e-9, 0.15e-9))
        assert chosen(copied_twice, whole=WHOLE, workers=busy) == ("fast", 0)
        assert chosen(copied_once, whole=WHOLE, workers=busy) == ("off", 0)


def test_a_busy_machine_codes_less():
    codecs = [chosen(disk(GB), workers=Workers(count=2, share=s))[0] for s in (1.0, 0.4, 0.05)]
    assert codecs == ["auto", "fast", "off"]


def test_the_reason_names_what_was_weighed():
    reason = choose_coding(
        storage=disk(GB / 2, 1e-10), split=SPLIT, whole=WHOLE, workers=TWO
    ).reason
    assert reason == (
        "storage takes 0.50 GB/s for 0.10 CPU s/GB; each of 2 workers has 1.00 of a core and "
        "codes off 5.00 GB/s at 1.00, fast 4.00 GB/s at 1.33, "
        "auto 2.00 GB/s at 1.50, zstd 0.40 GB/s at 4.00"
    )


def test_a_sample_is_timed_by_the_share_of_the_processor_that_it_got():
    clock = Clock()

    def encode(run, coding) -> int:
        clock.spend(cpu=run.n_bytes / {"off": 5e9, "fast": 4e9, "auto": 2e9}[coding.codec])
        clock.spend(queued=run.n_bytes / 1e9)
        return run.n_bytes // {"off": 1, "fast": 1, "auto": 2}[coding.codec]

    plan = plan_of([("float32", 8 << 20)])
    coding = weighing.weigh(plan, storage=disk(GB), n_workers=4, encode=encode, times=clock.times)
    assert (
        "each of 4 workers has 0.24 of a core and codes off 5.00 GB/s at 1.00, fast 4.00"
        in coding.reason
    )


def test_a_speed_is_the_fastest_turn_over_all_of_the_sample():
    runs = sample(plan_of([("float32", 1 << 30)]), split=True)
    ticks = iter([0, 2, 10, 13, 20, 21, 30, 32])
    turns = []

    def encode(run, coding) -> int:
        turns.append(coding.codec)
        return run.n_bytes // {"off": 1, "auto": 2}[coding.codec]

    measured = measure_speeds(runs, ("off", "auto"), encode, lambda: next(ticks))
    assert turns == (["off"] * 4 + ["auto"] * 4) * 2
    assert measured == {
        "off": Speed(bytes_per_sec=4 << 20, ratio=1.0),
        "auto": Speed(bytes_per_sec=2 << 20, ratio=2.0),
    }
    assert measure_speeds([], ("off", "auto"), encode) == {}


def plan_of(leaves: list[tuple[str, int]], chunk_bytes: int = 1 << 20):
    """The plan of 1-d leaves of a dtype and a number of bytes."""
    dtypes = [dtype_by_name(name) for name, _ in leaves]
    boxes = [
        ShardBox(leaf=i, start=(0,), extent=(n_bytes // dtypes[i].element_bytes,))
        for i, (_, n_bytes) in enumerate(leaves)
    ]
    return make_plan(boxes, dtypes, chunk_bytes)


def test_a_sample_is_whole_chunks_of_its_kind_from_all_over_the_plan():
    leaves = [("int32", 30 << 20), ("float32", 400 << 20), ("bfloat16", 99 << 20), ("int8", 99)]
    plan = plan_of(leaves)
    for split, first in ((True, 30), (False, 0)):
        runs = sample(plan, split=split)
        numbers = [int(run.chunks[0, 0]) for run in runs]
        assert numbers == sorted(set(numbers))
        assert len(numbers) == (4 if split else 1)
        assert numbers[0] >= first
        assert {int(run.chunks[0, 2]) for run in runs} == ({18, 16} if split else {7})
        for run in runs:
            assert run.end_buffer - run.first_buffer == len(run.segments) == 1
            assert run.n_bytes == 1 << 20


def test_long_chunks_make_a_small_sample_and_short_ones_none():
    plan = plan_of([("float32", 64 << 20)] * 4, chunk_bytes=64 << 20)
    assert len(sample(plan, split=True)) == 1
    assert len(sample(plan_of([("float32", 256 << 20)]), split=True)) == 2
    assert sample(plan_of([("float32", 10 << 10)] * 4), split=True) == []


def test_only_auto_on_a_large_state_is_weighed():
    large, small = plan_of([("float32", 64 << 20)]), plan_of([("float32", 63 << 20)])
    assert weighing.pays("auto", large)
    assert not weighing.pays("auto", small)
    assert not any(weighing.pays(codec, large) for codec in ("fast", "max", "off"))
    for codec, level in {"auto": AUTO_LEVEL, "fast": 0, "max": MAX_LEVEL, "off": 0}.items():
        assert weighing.as_asked(codec).zstd_level == level


class Clock:
    """Seconds and thread times that only a test moves; any thread sees the same."""

    def __init__(self) -> None:
        self.now, self.cpu, self.queued = 0.0, 0.0, 0.0

    def __call__(self) -> float:
        return self.now

    def times(self) -> ThreadTimes:
        return ThreadTimes(cpu=self.cpu, queued=self.queued)

    def spend(self, *, cpu: float = 0.0, queued: float = 0.0, waited: float = 0.0) -> None:
        self.now += cpu + queued + waited
        self.cpu += cpu
        self.queued += queued


def metered(*spent: dict[str, float], n_bytes: int) -> Storage:
    clock = Clock()
    meter = WriteMeter(clock, clock.times)
    for one in spent:
        clock.now += 100  # between the blocks
        with meter.measure():
            clock.spend(**one)
    return meter.storage(n_bytes)


def test_a_device_is_told_from_a_busy_machine():
    disk = metered({"cpu": 1.0, "waited": 3.0}, {"waited": 6.0}, n_bytes=90)
    assert disk.bytes_per_sec == pytest.approx(10)
    assert disk.cpu_secs_per_byte == pytest.approx(1 / 90)
    same = metered({"cpu": 1.0, "queued": 50.0, "waited": 9.0}, n_bytes=90)
    assert same.bytes_per_sec == pytest.approx(10)
    memory = metered({"cpu": 1.0, "queued": 9.0}, n_bytes=90)
    assert memory.bytes_per_sec > 1e6


def test_threads_that_wait_at_once_wait_for_one_device():
    clock = Clock()
    meter = WriteMeter(clock, clock.times)
    with meter.measure(), meter.measure():
        clock.spend(waited=4.0)
    assert meter.storage(40).bytes_per_sec == pytest.approx(10)


def test_thread_times_only_grow():
    before = thread_times()
    sum(range(10_000))
    after = thread_times()
    assert after.cpu > before.cpu
    assert after.queued >= before.queued >= 0


def test_a_few_bytes_say_nothing_of_a_storage_and_the_last_save_says_most():
    def meter(secs: float) -> WriteMeter:
        clock = Clock()
        meter = WriteMeter(clock, clock.times)
        with meter.measure():
            clock.spend(waited=secs)
        return meter

    known = KnownStorage()
    known.remember((1, "direct"), meter(1), 1 << 20)
    assert known.recall((1, "direct")) is None
    known.remember((1, "direct"), meter(1), 1 << 30)
    known.remember((1, "direct"), meter(2), 1 << 30)
    assert known.recall((1, "direct")) == Storage(bytes_per_sec=1 << 29, cpu_secs_per_byte=0.0)
    assert known.recall((1, "buffered")) is None
    assert known.recall((2, "direct")) is None


@pytest.mark.parametrize("n_threads", [1, 4])
def test_a_probe_writes_and_syncs_all_and_is_gone(tmp_path, n_threads):
    clock = Clock()
    driver = PacedDriver(1e6, clock)
    path = tmp_path / "p.probe"
    path.write_bytes(b"left by a crash")
    memory = aligned_empty(PROBE_PIECE_BYTES + 4096)
    meter = WriteMeter(clock, clock.times)
    storage = probe(driver, path, memory, meter, n_threads=n_threads)
    assert storage.bytes_per_sec == pytest.approx(1e6)
    written = driver.files[str(path)]
    assert len(written) == PROBE_PIECES * PROBE_PIECE_BYTES
    assert len(set(written[:4096])) > 200
    assert not path.exists()


@pytest.mark.parametrize("at", range(4))
def test_a_failing_probe_raises_and_is_gone(tmp_path, at):
    driver = FaultyDriver(saving.open_driver("buffered", tmp_path), Fault(at))
    memory = aligned_empty(PROBE_PIECE_BYTES)
    with pytest.raises(OSError, match="No space"):
        probe(driver, tmp_path / "p.probe", memory, WriteMeter(), n_threads=2)
    assert list(tmp_path.iterdir()) == []


class PacedDriver(MemoryDriver):
    """A driver that makes its writers wait, on a clock that only it moves."""

    def __init__(self, bytes_per_sec: float, clock: Clock) -> None:
        super().__init__()
        self.bytes_per_sec, self.clock = bytes_per_sec, clock
        self.n_probes = 0

    def open(self, path, mode) -> File:
        self.n_probes += str(path).endswith(".probe")
        return PacedFile(super().open(path, mode), self)


class PacedFile(File):
    def __init__(self, inner: File, driver: PacedDriver) -> None:
        self.inner, self.driver = inner, driver
        self.alignment, self.carried, self.reason = inner.alignment, inner.carried, None

    def write(self, offset, data) -> None:
        self.driver.clock.spend(waited=memoryview(data).nbytes / self.driver.bytes_per_sec)
        self.inner.write(offset, data)

    def read(self, offset, out) -> None:
        self.inner.read(offset, out)

    def n_bytes(self) -> int:
        return self.inner.n_bytes()

    def sync(self, n_bytes: int) -> None:
        self.inner.sync(n_bytes)

    def close(self) -> None:
        self.inner.close()


@pytest.fixture
def paced(monkeypatch):
    """Saves of a few MB are weighed; each coding has a speed, and writing one of our choice."""

    def make(bytes_per_sec: float) -> PacedDriver:
        clock = Clock()
        driver = PacedDriver(bytes_per_sec, clock)
        monkeypatch.setattr(saving, "open_driver", lambda name, directory: driver)
        monkeypatch.setattr(saving, "STORAGE", KnownStorage())
        monkeypatch.setattr(saving, "WriteMeter", lambda: WriteMeter(clock, clock.times))
        monkeypatch.setattr(weighing, "WEIGH_ABOVE_BYTES", 4 << 20)
        monkeypatch.setattr(bandwidth, "_LEAST_BYTES", 1 << 20)
        return driver

    return make


def state():
    rng = np.random.default_rng(0)
    return {
        "w": (rng.standard_normal((2 << 20,), np.float32) * 0.02).astype(ml_dtypes.bfloat16),
        "ids": (rng.zipf(1.5, 1 << 18) % 30_000).astype(np.int32),
    }


def saved(tmp_path, number: int, codec: str = "auto"):
    prepared = saving.prepare(state(), options=ogds.Options(codec=codec, workers=1))
    directory = tmp_path / str(number)
    directory.mkdir()
    report = prepared.write(directory)
    return report, json.loads((directory / "manifest.json.pending").read_bytes())


def test_a_save_is_weighed_once_by_a_probe_and_then_by_the_save_before(tmp_path, paced):
    driver = paced(1e7)
    for number in range(3):
        report, manifest = saved(tmp_path, number)
        assert report.coding == "auto"
        assert "storage takes 0.01 GB/s for 0.00 CPU s/GB" in report.coding_reason
        assert report.codecs.keys() == {"modelled", "zstd"} or "ladder" in report.codecs
        assert manifest["options"]["codec"] == "auto"
        assert manifest["options"]["coding"] == "auto"
        assert manifest["options"]["zstd_level"] == AUTO_LEVEL
        assert "weigh" in report.seconds
        assert "coding auto" in report.line()
    assert driver.n_probes == 1


def test_storage_faster_than_coding_gets_raw_words(tmp_path, paced):
    paced(1e13)
    report, manifest = saved(tmp_path, 0)
    assert report.coding == "off"
    assert report.codecs.keys() == {"raw"}
    assert manifest["options"]["codec"] == "auto"
    assert (manifest["options"]["coding"], manifest["options"]["zstd_level"]) == ("off", 0)


@pytest.mark.parametrize("codec", ["fast", "max", "off"])
def test_a_codec_that_was_asked_for_is_not_weighed(tmp_path, paced, codec):
    driver = paced(1e7)
    report, manifest = saved(tmp_path, 0, codec)
    assert (report.coding, report.coding_reason) == (codec, "not weighed")
    assert manifest["options"]["coding"] == codec
    assert manifest["options"]["zstd_level"] == (MAX_LEVEL if codec == "max" else 0)
    assert "weigh" not in report.seconds
    assert driver.n_probes == 0


def test_storage_that_cannot_be_probed_does_not_fail_the_save(tmp_path, paced, monkeypatch):
    paced(1e7)

    def refuse(*_, **__):
        raise IoError(28, "No space for a probe", "p.probe")

    monkeypatch.setattr(saving, "probe", refuse)
    report, _ = saved(tmp_path, 0)
    assert report.coding == "auto"
    assert "No space for a probe" in report.coding_reason


def test_an_item_of_any_coding_comes_back(tmp_path, monkeypatch):
    monkeypatch.setattr(weighing, "WEIGH_ABOVE_BYTES", 4 << 20)
    tree = state()
    choices = ((1e7, "auto"), (1e13, "auto"), (1e7, "fast"), (1e7, "max"))
    for number, (bytes_per_sec, codec) in enumerate(choices):
        monkeypatch.setattr(saving, "STORAGE", Fixed(bytes_per_sec))
        item = tmp_path / str(number)
        report = ogds.save(item, tree, options=ogds.Options(codec=codec))
        assert report.state == "committed"
        got = ogds.restore(item)
        assert all(np.asarray(got[k]).tobytes() == tree[k].tobytes() for k in tree)
        assert ogds.verify(item) == []
        assert not list(item.glob("*.probe"))


class Fixed(KnownStorage):
    """Storage that is known."""

    def __init__(self, bytes_per_sec: float) -> None:
        super().__init__()
        self.storage = disk(bytes_per_sec)

    def recall(self, key) -> Storage:
        return self.storage
