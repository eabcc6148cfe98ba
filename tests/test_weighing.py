"""Coding is used as far as it keeps up with the storage, and no save gets slower by it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paced_storage import GB, OFF, SPLIT, WHOLE, Clock

from orbax_gds import weighing
from orbax_gds.bandwidth import Storage
from orbax_gds.codecs.zstd import AUTO_LEVEL, MAX_LEVEL
from orbax_gds.dtypes import dtype_by_name
from orbax_gds.plan import ShardBox, make_plan, part_of_chunk
from orbax_gds.weighing import Speed, Workers, choose_coding, measure_speeds, sample, saving_rate

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

    def encode(runs, coding) -> int:
        n_bytes = sum(run.n_bytes for run in runs)
        clock.spend(cpu=n_bytes / {"off": 5e9, "fast": 4e9, "auto": 2e9}[coding.codec])
        clock.spend(queued=n_bytes / 1e9)
        return n_bytes // {"off": 1, "fast": 1, "auto": 2}[coding.codec]

    plan = plan_of([("float32", 64 << 20)])
    coding = weighing.weigh(plan, storage=disk(GB), n_workers=4, encode=encode, times=clock.times)
    assert (
        "each of 4 workers has 0.26 of a core and codes off 5.00 GB/s at 1.00, auto 2.00"
        in coding.reason
    )


def timed_codecs(storage: Storage, zstd: float) -> dict[str, int]:
    """Pieces that a weighing codes by each codec, words without a split apart."""
    clock, counts = Clock(), {}

    def encode(runs, coding) -> int:
        is_whole = int(runs[0].chunks[0, 2]) == dtype_by_name("int32").id
        name = f"whole {coding.codec}" if is_whole else coding.codec
        counts[name] = counts.get(name, 0) + len(runs)
        n_bytes = sum(run.n_bytes for run in runs)
        clock.spend(cpu=n_bytes / {"fast": 4e9, "auto": 2e9, "whole auto": zstd}.get(name, 5e9))
        return n_bytes // {"off": 1, "fast": 1, "auto": 2}[coding.codec]

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
        second_off_rate: of "off", after 5 GB/s in its first turn.
        queued: seconds in all for a core once words without a split are coded.
    """
    clock, timed, offs = Clock(), set(), 0

    def encode(runs, coding) -> int:
        nonlocal offs, queued
        is_whole = int(runs[0].chunks[0, 2]) == dtype_by_name("int32").id
        n_bytes = sum(run.n_bytes for run in runs)
        timed.add(f"whole {coding.codec}" if is_whole else coding.codec)
        offs += coding.codec == "off" and not is_whole
        off_rate = 5e9 if is_whole or offs <= 1 else second_off_rate
        rate = {"fast": 4e9, "auto": auto_rate, "off": off_rate}[coding.codec]
        if is_whole:
            rate = 4e7
            clock.spend(queued=queued)
            queued = 0
        clock.spend(cpu=n_bytes / rate)
        return n_bytes // {"off": 1, "fast": 1, "auto": 2}[coding.codec]

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

    def encode(runs, coding) -> int:
        turns.append((coding.codec, len(runs)))
        return sum(run.n_bytes for run in runs) // {"off": 1, "auto": 2}[coding.codec]

    measured = measure_speeds(runs, ("off", "auto"), encode, lambda: next(ticks))
    assert turns == [("off", 4), ("auto", 4)] * 2
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
