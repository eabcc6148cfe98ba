"""Buffers are aligned, bounded and reused, and waiting for one always ends."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orbax_gds.errors import CommitError
from orbax_gds.staging import BufferPool, aligned_empty

TIMEOUT_SECS = 30  # only ever reached by a failing test


@given(n_bytes=st.integers(0, 10_000), power=st.integers(0, 13))
def test_aligned_empty_is_aligned_and_whole(n_bytes, power):
    out = aligned_empty(n_bytes, 1 << power)
    out[:] = 7
    assert (out.dtype, out.shape) == (np.uint8, (n_bytes,))
    assert out.flags.c_contiguous
    assert n_bytes == 0 or out.ctypes.data % (1 << power) == 0


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
