"""Buffers are aligned, bounded and reused, and waiting for one always ends."""

import mmap
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import orbax_gds as ogds
from orbax_gds import saving, staging
from orbax_gds.args import GdsSave
from orbax_gds.errors import CommitError
from orbax_gds.staging import BufferPool, aligned_empty, aligned_pieces

TIMEOUT_SECS = 30  # only ever reached by a failing test
MIB = 1 << 20
HAS_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage").exists()


@given(n_bytes=st.integers(0, 10_000), power=st.integers(0, 13))
@example(n_bytes=5 * MIB + 7, power=12)
@example(n_bytes=5 * MIB + 7, power=22)
def test_aligned_empty_is_aligned_and_whole(n_bytes, power):
    out = aligned_empty(n_bytes, 1 << power)
    out[:] = 7
    assert (out.dtype, out.shape) == (np.uint8, (n_bytes,))
    assert out.flags.c_contiguous
    assert n_bytes == 0 or out.ctypes.data % (1 << power) == 0


def advised(memory: np.ndarray) -> bool:
    """Whether the kernel was asked for huge pages where an array begins."""
    address, inside = memory.ctypes.data, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            low, high = (int(end, 16) for end in words[0].split("-"))
            inside = low <= address < high
        elif inside and words[0] == "VmFlags:":
            return "hg" in words
    raise AssertionError(f"{address:#x} is not mapped")


@pytest.mark.skipif(not HAS_HUGE_PAGES, reason="this kernel has no huge pages")
def test_large_memory_is_in_huge_pages():
    large = aligned_empty(4 * MIB)
    assert large.ctypes.data % (2 * MIB) == 0
    assert advised(large)
    pieces = aligned_pieces([MIB] * 8, 64)
    assert all(map(advised, pieces))
    with BufferPool(MIB + 8192, 4) as pool, pool.acquire() as buffer:
        assert advised(buffer.memory)


@pytest.mark.skipif(not HAS_HUGE_PAGES, reason="this kernel has no huge pages")
def test_no_more_becomes_resident_than_is_used():
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = resident()
    pieces = aligned_pieces([5 * MIB // 2] * 16, 64)
    for piece in pieces:
        piece[:] = 1
    assert 39 * MIB < resident() - before < 44 * MIB


def test_memory_without_huge_pages_is_memory_too(monkeypatch):
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    aligned_empty(3 * MIB)[:] = 1
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 999, raising=False)  # as refused by the kernel
    aligned_empty(3 * MIB)[:] = 1


def test_too_much_memory_is_a_memory_error():
    with pytest.raises(MemoryError, match="Cannot allocate"):
        aligned_empty(1 << 60)


@given(buffer_bytes=st.integers(1, 20_000), n_buffers=st.integers(1, 8))
def test_buffers_are_aligned_and_disjoint(buffer_bytes, n_buffers):
    with BufferPool(buffer_bytes, n_buffers) as pool:
        assert 0 <= pool.buffer_bytes - buffer_bytes < 4096
        buffers = [pool.acquire() for _ in range(n_buffers)]
        for k, buffer in enumerate(buffers):
            assert buffer.memory.ctypes.data % 4096 == 0
            assert buffer.memory.nbytes == pool.buffer_bytes
            buffer.memory[:] = k
        assert all(np.all(buffer.memory == k) for k, buffer in enumerate(buffers))


def test_buffers_are_used_again():
    with BufferPool(4096, 1) as pool:
        with pool.acquire() as first:
            place = first.memory.ctypes.data
        with pool.acquire() as second:
            assert second.memory.ctypes.data == place


def test_acquire_waits_for_a_release():
    with BufferPool(4096, 1) as pool, ThreadPoolExecutor(1) as threads:
        lent = pool.acquire()
        waiting = threads.submit(pool.acquire)
        assert not waiting.done()
        lent.release()
        assert waiting.result(TIMEOUT_SECS) is lent


def test_threads_never_share_a_buffer():
    in_use, clashes, lock = set(), [], threading.Lock()

    def work(_):
        with pool.acquire() as buffer:
            place = buffer.memory.ctypes.data
            with lock:
                clashes.extend([place] * (place in in_use))
                in_use.add(place)
                assert len(in_use) <= 3
            buffer.memory[:] = 1
            with lock:
                in_use.remove(place)

    with BufferPool(4096, 3) as pool, ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(500)))
    assert not clashes


def test_every_waiting_thread_wakes_with_an_error():
    with BufferPool(4096, 1) as pool, ThreadPoolExecutor(3) as threads:
        pool.acquire()
        arrived = threading.Barrier(4, timeout=TIMEOUT_SECS)

        def wait():
            arrived.wait()
            pool.acquire()

        waiting = [threads.submit(wait) for _ in range(3)]
        arrived.wait()
        pool.close()
        for future in waiting:
            with pytest.raises(CommitError):
                future.result(TIMEOUT_SECS)


def test_closed_pool_lends_nothing_and_takes_its_buffers_back():
    pool = BufferPool(4096, 2)
    lent = pool.acquire()
    pool.close()
    pool.close()
    lent.memory[:] = 5
    lent.release()
    with pytest.raises(CommitError, match="closed"):
        pool.acquire()


def test_releasing_twice_is_a_bug():
    with BufferPool(4096, 1) as pool:
        buffer = pool.acquire()
        buffer.release()
        with pytest.raises(AssertionError, match="twice"):
            buffer.release()


def test_all_saves_of_a_handler_use_the_buffers_of_the_first(tmp_path, monkeypatch):
    made, used = [], []
    make, acquire = saving.make_pool, staging.BufferPool.acquire

    def noted(options):
        made.append(make(options))
        return made[-1]

    monkeypatch.setattr(saving, "make_pool", noted)
    monkeypatch.setattr(
        staging.BufferPool, "acquire", lambda pool: used.append(pool) or acquire(pool)
    )
    handler = ogds.GdsCheckpointHandler(ogds.Options(workers=1))
    with ocp.CheckpointManager(tmp_path / "run", item_handlers=handler) as manager:
        for step in range(3):
            manager.save(step, args=GdsSave({"w": np.full(9, step)}))
            manager.wait_until_finished()
    handler.save(tmp_path / "after close", GdsSave({"w": np.ones(9)}))
    assert len(made) == 2
    assert len(used) >= 4
    assert {id(pool) for pool in used} == {id(pool) for pool in made}
