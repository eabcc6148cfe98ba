"""Coding is used as far as it keeps up with the storage, and no save gets slower by it."""

import json

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paced_storage import Clock, PacedDriver

import orbax_gds as ogds
from orbax_gds import bandwidth, saving, weighing
from orbax_gds.bandwidth import KnownStorage, Storage, probe
from orbax_gds.codecs.zstd import AUTO_LEVEL, MAX_LEVEL
from orbax_gds.dtypes import dtype_by_name
from orbax_gds.errors import IoError
from orbax_gds.handler import GdsCheckpointHandler, GdsSave
from orbax_gds.plan import ShardBox, make_plan, part_of_chunk
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


def test_zstd_is_not_used_where_no_device_is_waited_for():
    memory, at_no_cost = disk(1e18, 2e-9), {"off": OFF, "auto": Speed(bytes_per_sec=1e12, ratio=4)}
    for whole in ({}, at_no_cost):
        assert chosen(memory, whole=whole) == ("auto", 0)
        assert chosen(memory, split={}, whole=whole) == ("off", 0)


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

    plan = plan_of([("float32", 64 << 20)])
    coding = weighing.weigh(plan, storage=disk(GB), n_workers=4, encode=encode, times=clock.times)
    assert (
        "each of 4 workers has 0.26 of a core and codes off 5.00 GB/s at 1.00, auto 2.00"
        in coding.reason
    )


def timed_codecs(storage: Storage, zstd: float) -> dict[str, int]:
    """Pieces that a weighing codes by each codec, words without a split apart."""
    clock, counts = Clock(), {}

    def encode(run, coding) -> int:
        is_whole = int(run.chunks[0, 2]) == dtype_by_name("int32").id
        name = f"whole {coding.codec}" if is_whole else coding.codec
        counts[name] = counts.get(name, 0) + 1
        clock.spend(cpu=run.n_bytes / {"fast": 4e9, "auto": 2e9, "whole auto": zstd}.get(name, 5e9))
        return run.n_bytes // {"off": 1, "fast": 1, "auto": 2}[coding.codec]

    plan = plan_of([("float32", 128 << 20), ("int32", 128 << 20)])
    weighing.weigh(plan, storage=storage, n_workers=2, encode=encode, times=clock.times)
    return counts


def test_what_cannot_be_chosen_is_not_timed():
    assert timed_codecs(disk(1e18), zstd=4e8) == {"off": 16, "auto": 8, "fast": 8}
    copied = disk(1e18, 2e-9)
    assert timed_codecs(copied, zstd=1e12) == {"off": 8, "auto": 8}
    slow = {"off": 8, "auto": 8}
    assert timed_codecs(disk(GB), zstd=4e8) == slow | {"whole off": 9, "whole auto": 9}
    assert timed_codecs(disk(GB), zstd=4e7) == slow | {"whole off": 1, "whole auto": 1}


def weighed_where(
    auto_rate: float, second_off_rate: float = 5e9, queued: float = 0.0
) -> tuple[weighing.Coding, set[str]]:
    """Weigh where zstd is far too slow.

    Args:
        auto_rate: of "auto", bytes a second.
        second_off_rate: of "off", after 5 GB/s in its first two turns.
        queued: seconds in all for a core once words without a split are coded.
    """
    clock, timed, offs = Clock(), set(), 0

    def encode(run, coding) -> int:
        nonlocal offs, queued
        is_whole = int(run.chunks[0, 2]) == dtype_by_name("int32").id
        timed.add(f"whole {coding.codec}" if is_whole else coding.codec)
        offs += coding.codec == "off" and not is_whole
        off_rate = 5e9 if is_whole or offs <= 8 else second_off_rate
        rate = {"fast": 4e9, "auto": auto_rate, "off": off_rate}[coding.codec]
        if is_whole:
            rate = 4e7
            clock.spend(queued=queued)
            queued = 0
        clock.spend(cpu=run.n_bytes / rate)
        return run.n_bytes // {"off": 1, "fast": 1, "auto": 2}[coding.codec]

    plan = plan_of([("float32", 128 << 20), ("int32", 128 << 20)])
    coding = weighing.weigh(plan, storage=disk(GB), n_workers=2, encode=encode, times=clock.times)
    return coding, timed


def test_zstd_that_was_not_timed_is_not_used():
    coding, timed = weighed_where(2e8, 1e8)
    assert (coding.codec, coding.zstd_level) == ("auto", 0)
    assert "whole auto" in timed
    coding, timed = weighed_where(2e8)
    assert (coding.codec, coding.zstd_level) == ("fast", 0)
    assert "whole auto" not in timed


def test_a_machine_that_gets_busy_while_zstd_is_timed_does_not_lose_fast():
    coding, _ = weighed_where(2e9, queued=100.0)
    assert coding.codec == "auto"


def test_a_speed_is_the_fastest_turn_over_all_of_the_sample():
    runs = [*plan_of([("float32", 1 << 20)]).runs] * 4
    ticks = iter([0, 2, 5, 6, 8])
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


def test_a_sample_is_pieces_from_all_over_the_plan_as_many_as_there_are_bytes():
    leaves = [("int32", 30 << 20), ("float32", 400 << 20), ("bfloat16", 100 << 20), ("int8", 99)]
    plan = plan_of(leaves)
    runs = sample(plan, split=True)
    numbers = [int(run.chunks[0, 0]) for run in runs]
    assert numbers == [61, 123, 186, 248, 311, 373, 436, 498]
    assert [int(run.chunks[0, 2]) for run in runs] == [18] * 6 + [16] * 2
    whole = sample(plan, split=False)
    assert [int(run.chunks[0, 0]) for run in whole] == [1, 5, 9, 13, 16, 20, 24, 28]
    assert {int(run.chunks[0, 2]) for run in whole} == {7}
    for run in runs + whole:
        assert run.end_buffer - run.first_buffer == len(run.segments) == 1


@given(
    leaves=st.lists(
        st.tuples(
            st.sampled_from(["float32", "bfloat16", "int32", "complex64", "bool"]),
            st.integers(8, 256 << 20).map(lambda n: n // 8 * 8),
        ),
        min_size=1,
        max_size=6,
    ),
    chunk_bytes=st.sampled_from([4096, 100_000, 1 << 20, 64 << 20]),
)
def test_a_sample_is_at_most_a_512th_or_1024th_and_lies_in_its_chunks(leaves, chunk_bytes):
    plan = plan_of(leaves, chunk_bytes)
    n_bytes = sum(run.n_bytes for run in plan.runs)
    words = {int(row[0]): (int(row[1]), int(row[2])) for run in plan.runs for row in run.chunks}
    for split, share, least in ((True, 512, 128 << 10), (False, 1024, 64 << 10)):
        runs = sample(plan, split=split)
        assert sum(run.n_bytes for run in runs) <= max(least, n_bytes // share)
        for run in runs:
            ((number, n_words, dtype, n_segments, columns),) = run.chunks.tolist()
            assert 0 < n_words <= words[number][0]
            assert dtype == words[number][1]
            assert columns <= n_words
            assert n_segments == len(run.segments)
            assert run.segments[:, 3].sum() == n_words
            for buffer, at, _, n in run.segments.tolist():
                word_bytes = run.n_bytes // n_words
                assert at + n * word_bytes <= leaves[run.first_buffer + buffer][1]


def test_pieces_are_cut_from_long_chunks_and_none_from_short_ones():
    plan = plan_of([("float32", 128 << 20)] * 4, chunk_bytes=64 << 20)
    runs = sample(plan, split=True)
    assert [run.n_bytes for run in runs] == [128 << 10] * 8
    places = [(run.first_buffer, int(run.segments[0, 1])) for run in runs]
    assert places == [(i // 2, (32 << 20) * (1 + i % 2 * 2) - (64 << 10)) for i in range(8)]
    assert sample(plan_of([("float32", 10 << 10)] * 9999), split=True) != []  # in pools
    assert sample(plan_of([("float32", 256 << 20)], chunk_bytes=4096), split=True) == []


@given(data=st.data())
def test_a_part_of_a_chunk_codes_to_these_words(data):
    sizes = data.draw(st.lists(st.integers(1, 2000), min_size=1, max_size=5))
    buffers = [np.arange(n, dtype=np.uint32) + 10_000 * i for i, n in enumerate(sizes)]
    plan = plan_of([("float32", 4 * n) for n in sizes])
    words = np.concatenate(buffers)
    first = data.draw(st.integers(0, len(words) - 1))
    n_words = data.draw(st.integers(1, len(words) - first))
    part = part_of_chunk(plan.runs[0], 0, first, n_words)
    got = np.full(n_words, 0xFFFFFFFF, np.uint32)
    for buffer, at, to, n in part.segments.tolist():
        got[to : to + n] = buffers[part.first_buffer + buffer][at // 4 : at // 4 + n]
    assert (got == words[first : first + n_words]).all()
    assert part.n_bytes == 4 * n_words


def unweighed(leaves, *, is_known=True, on_memory: bool = False, codec="auto") -> str | None:
    plan = plan_of(leaves)
    coding = weighing.unweighed(codec, plan, is_known=is_known, on_memory=on_memory)
    return None if coding is None else coding.codec


def test_only_auto_on_a_large_state_is_weighed():
    assert unweighed([("float32", 32 << 20)]) is None
    assert unweighed([("float32", 31 << 20)]) == "auto"
    assert unweighed([("int32", 32 << 20)]) is None
    assert unweighed([("float32", 256 << 20)], is_known=False) is None
    assert unweighed([("float32", 255 << 20)], is_known=False) == "auto"
    for codec, level in {"auto": AUTO_LEVEL, "fast": 0, "max": MAX_LEVEL, "off": 0}.items():
        assert weighing.as_asked(codec).zstd_level == level


def test_zstd_that_is_not_weighed_is_for_little():
    much = [("float32", 5), ("int32", 1 << 20), ("int8", 3)]
    little = [("float32", 4 << 20), ("int32", 1000 << 10)]
    levels = {}
    for name, state in {"much": much, "little": little}.items():
        coding = weighing.unweighed("auto", plan_of(state), is_known=True, on_memory=False)
        levels[name] = None if coding is None else (coding.codec, coding.zstd_level)
    assert levels == {"much": ("auto", 0), "little": ("auto", AUTO_LEVEL)}


def test_on_memory_only_much_for_the_ladder_is_weighed_and_the_rest_is_raw():
    assert unweighed([("float32", 256 << 20)], on_memory=True) is None
    assert unweighed([("bfloat16", 255 << 20), ("int32", 999 << 20)], on_memory=True) == "off"
    assert unweighed([("int32", 999 << 20)], on_memory=True) == "off"
    assert unweighed([], on_memory=True) == "off"


@pytest.mark.parametrize("on_memory", [False, True])
@pytest.mark.parametrize("codec", ["fast", "max", "off"])
def test_what_was_asked_for_is_neither_weighed_nor_changed(codec, on_memory):
    for n_bytes in (8, 32 << 20):
        assert unweighed([("float32", n_bytes)], on_memory=on_memory, codec=codec) == codec


# Above the state of a test, which then is too small to be weighed.
SMALL = {"split_bytes": 8 << 20, "whole_bytes": 8 << 20}


@pytest.fixture
def paced(monkeypatch):
    """Saves of a few MB are weighed, on a clock that only writing and coding move.

    A storage of our choice waits; coding takes the processor as long as in SPLIT and WHOLE.
    """

    def make(
        bytes_per_sec: float,
        cpu_secs_per_byte: float = 0.0,
        split_bytes: int = 4 << 20,
        whole_bytes: int = 1 << 20,
    ) -> tuple[PacedDriver, KnownStorage]:
        clock = Clock()
        driver = PacedDriver(bytes_per_sec, clock, cpu_secs_per_byte)
        encode = saving.Prepared._encode

        def timed(save, run, out, record, coding):
            split = int(run.chunks[0, 2]) == dtype_by_name("bfloat16").id
            speeds = SPLIT if split else WHOLE
            clock.spend(cpu=run.n_bytes / speeds.get(coding.codec, OFF).bytes_per_sec)
            return encode(save, run, out, record, coding)

        monkeypatch.setattr(saving.Prepared, "_encode", timed)
        monkeypatch.setattr(saving, "open_driver", lambda name, directory: driver)
        monkeypatch.setattr(weighing, "WEIGH_ABOVE_BYTES", split_bytes)
        monkeypatch.setattr(weighing, "PROBE_ABOVE_BYTES", split_bytes)
        monkeypatch.setattr(weighing, "RAW_WHOLE_ABOVE_BYTES", whole_bytes)
        monkeypatch.setattr(weighing, "_SHARE", 8)
        monkeypatch.setattr(weighing, "_WHOLE_SHARE", 32)
        monkeypatch.setattr(bandwidth, "_LEAST_BYTES", 1 << 20)
        return driver, KnownStorage(clock.clocks())

    return make


def state():
    rng = np.random.default_rng(0)
    return {
        "w": (rng.standard_normal((2 << 20,), np.float32) * 0.02).astype(ml_dtypes.bfloat16),
        "ids": (rng.zipf(1.5, 1 << 18) % 30_000).astype(np.int32),
    }


def saved(tmp_path, storage: KnownStorage, number: int = 0, codec: str = "auto"):
    prepared = saving.prepare(state(), options=ogds.Options(codec=codec, workers=1))
    directory = tmp_path / str(number)
    directory.mkdir()
    report = prepared.write(directory, storage=storage)
    return report, json.loads((directory / "manifest.json.pending").read_bytes())


def test_a_save_is_weighed_once_by_a_probe_and_then_by_the_save_before(tmp_path, paced):
    driver, storage = paced(1e7)
    for number in range(3):
        report, manifest = saved(tmp_path, storage, number)
        assert report.coding == "auto"
        assert report.coding_reason.startswith(
            "storage takes 0.01 GB/s for 0.00 CPU s/GB; each of 1 workers has 1.00 of a core and "
            "codes off 5.00 GB/s at 1.00, auto 2.00 GB/s at 1.5"
        )
        assert ", zstd 0.40 GB/s at " in report.coding_reason
        assert report.codecs.keys() == {"ladder", "zstd"}
        assert manifest["options"]["codec"] == "auto"
        assert manifest["options"]["coding"] == "auto"
        assert manifest["options"]["zstd_level"] == AUTO_LEVEL
        assert "weigh" in report.seconds
        assert "coding auto" in report.line()
        assert driver.n_probes == 1
    assert storage.recall(bandwidth.storage_key(tmp_path, driver), 5 << 20) is not None


def test_storage_faster_than_coding_gets_raw_words(tmp_path, paced):
    _, storage = paced(1e13)
    report, manifest = saved(tmp_path, storage)
    assert report.coding == "off"
    assert report.codecs.keys() == {"raw"}
    assert manifest["options"]["codec"] == "auto"
    assert (manifest["options"]["coding"], manifest["options"]["zstd_level"]) == ("off", 0)


def assert_raw(report, manifest):
    assert (report.coding, set(report.codecs)) == ("off", {"raw"})
    assert (manifest["options"]["coding"], manifest["options"]["zstd_level"]) == ("off", 0)
    assert "memory" in report.coding_reason
    assert "weigh" not in report.seconds


def test_a_small_state_is_raw_in_a_file_system_of_memory(tmp_path, paced, monkeypatch):
    driver, storage = paced(1e7, **SMALL)
    asked = []
    monkeypatch.setattr(saving, "memory_file_system", lambda path: asked.append(path) or "tmpfs")
    for number in range(2):
        assert_raw(*saved(tmp_path, storage, number))
    assert asked == [tmp_path / "0", tmp_path / "1"]
    assert driver.n_probes == 0
    report, _ = saved(tmp_path, storage, 2, codec="fast")
    assert report.codecs.keys() == {"ladder", "raw"}


def test_a_small_state_is_raw_once_a_save_has_waited_for_nothing(tmp_path, paced):
    driver, storage = paced(1e18, cpu_secs_per_byte=1e-9, **SMALL)
    report, _ = saved(tmp_path, storage)
    assert (report.coding, report.codecs.keys()) == ("auto", {"ladder", "zstd"})
    assert_raw(*saved(tmp_path, storage, 1))
    assert driver.n_probes == 0


def test_a_small_state_is_coded_on_storage_that_waits(tmp_path, paced):
    driver, storage = paced(1e7, **SMALL)
    for number in range(2):
        report, _ = saved(tmp_path, storage, number)
        assert (report.coding, report.codecs.keys()) == ("auto", {"ladder", "zstd"})
        assert report.coding_reason == "not weighed"
    assert driver.n_probes == 0


def test_a_state_too_small_for_a_probe_is_weighed_from_the_second_save_on(
    tmp_path, paced, monkeypatch
):
    driver, storage = paced(1e7)
    monkeypatch.setattr(weighing, "PROBE_ABOVE_BYTES", 8 << 20)
    reasons = [saved(tmp_path, storage, number)[0].coding_reason for number in range(2)]
    assert reasons[0].startswith("not weighed")
    assert reasons[1].startswith("storage takes 0.01 GB/s")
    assert driver.n_probes == 0


@pytest.mark.parametrize("codec", ["fast", "max", "off"])
def test_a_codec_that_was_asked_for_is_not_weighed(tmp_path, paced, codec):
    driver, storage = paced(1e7)
    report, manifest = saved(tmp_path, storage, codec=codec)
    assert (report.coding, report.coding_reason) == (codec, "not weighed")
    assert manifest["options"]["coding"] == codec
    assert manifest["options"]["zstd_level"] == (MAX_LEVEL if codec == "max" else 0)
    assert "weigh" not in report.seconds
    assert driver.n_probes == 0


def test_storage_that_cannot_be_probed_does_not_fail_the_save(tmp_path, paced, monkeypatch, caplog):
    _, storage = paced(1e7)

    def refuse(*_, **__):
        raise IoError(28, "No space for a probe", "p.probe")

    monkeypatch.setattr(saving, "probe", refuse)
    report, _ = saved(tmp_path, storage)
    assert report.coding == "auto"
    assert "No space for a probe" in report.coding_reason
    assert "No space for a probe" in caplog.text


def test_a_handler_probes_once_and_a_save_by_itself_every_time(tmp_path, monkeypatch):
    monkeypatch.setattr(weighing, "PROBE_ABOVE_BYTES", 4 << 20)
    monkeypatch.setattr(bandwidth, "_LEAST_BYTES", 1 << 20)
    seen = []

    def counted(*args, **options):
        seen.append(options["n_bytes"])
        return probe(*args, **options)

    monkeypatch.setattr(saving, "probe", counted)
    handler = GdsCheckpointHandler()
    for number in range(2):
        handler.save(tmp_path / f"h{number}", GdsSave(state()))
    assert seen == [5 << 15]
    for number in range(2):
        ogds.save(tmp_path / f"s{number}", state())
    assert seen == [5 << 15] * 3


def test_an_item_of_any_coding_comes_back(tmp_path, monkeypatch):
    monkeypatch.setattr(weighing, "WEIGH_ABOVE_BYTES", 4 << 20)
    tree = state()
    choices = ((1e7, "auto"), (1e13, "auto"), (1e7, "fast"), (1e7, "max"))
    for number, (bytes_per_sec, codec) in enumerate(choices):
        monkeypatch.setattr(saving, "KnownStorage", lambda speed=bytes_per_sec: Fixed(speed))
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

    def recall(self, key, state_bytes) -> Storage:
        return self.storage
