"""The barrier for Orbax: who does not come is named, and waited for once."""

import types

import jax
import orbax.checkpoint as ocp
import pytest

from orbax_gds import barrier_sync_fn
from orbax_gds.barrier import late_processes
from orbax_gds.errors import CommitError

LATE = "DEADLINE_EXCEEDED: Barrier timed out. Id: b::0.\nSome timed out task names:\n{}\n\nRPC: /B"


@pytest.fixture
def asked(monkeypatch):
    """What the barrier of jax was asked; it fails with the texts in `asked.late`, if any."""

    class Asked(list):
        late = ""

        def __call__(self, *, key, timeout_ms):
            self.append((key, timeout_ms))
            if self.late:
                raise RuntimeError(LATE.format(self.late))

    found = Asked()
    monkeypatch.setattr(ocp.multihost, "get_barrier_sync_fn", lambda: found)
    return found


def meet_and_fail(error):
    try:
        raise error
    finally:
        barrier_sync_fn(key="end", timeout_ms=60_000)


_OF_ORBAX = {"__name__": "orbax.checkpoint.some_module", "barrier_sync_fn": barrier_sync_fn}
fail_and_meet = types.FunctionType(meet_and_fail.__code__, _OF_ORBAX)
"""Does as Orbax's manager does: it meets the others before it raises."""


def test_a_barrier_that_all_come_to_waits_as_long_as_asked(asked):
    barrier_sync_fn(key="k", timeout_ms=1234)
    assert asked == [("k", 1234)]


@pytest.mark.parametrize(
    ("late", "named"),
    [("1\n", "process 1"), ("1\n13\n", "processes 1, 13"), ("?\n", "some process")],
)
def test_who_does_not_come_is_named(asked, late, named):
    asked.late = late
    with pytest.raises(CommitError, match=rf"60 s were not enough for {named} .*'k'"):
        barrier_sync_fn(key="k", timeout_ms=60_000)


def test_a_save_that_lacked_a_process_waits_briefly_and_raises_what_it_lacked(asked):
    error = CommitError("process 1 is missing", [1])
    for asked.late in ("1\n", ""):
        with pytest.raises(CommitError) as raised:
            fail_and_meet(error)
        assert raised.value is error
    assert all(0 < timeout_ms < 1000 for _, timeout_ms in asked)


@pytest.mark.parametrize("error", [CommitError("another tree"), OSError(28, "full")])
def test_another_failure_waits_for_all(asked, error):
    with pytest.raises(type(error)) as raised:
        fail_and_meet(error)
    assert raised.value is error
    asked.late = "1\n"
    with pytest.raises(CommitError, match="process 1") as raised:
        fail_and_meet(error)
    assert raised.value.missing == (1,)
    assert asked == [("end", 60_000)] * 2


def test_tasks_are_found_however_jax_calls_them():
    old = LATE.format("/job:jax_worker/replica:0/task:12\n/job:jax_worker/replica:0/task:3\n")
    assert late_processes(RuntimeError(old)) == (3, 12)
    assert late_processes(RuntimeError("INTERNAL: 7\n8\n")) == ()


def test_orbax_takes_it_and_one_process_needs_no_other(tmp_path):
    assert jax.process_count() == 1
    asynchronous = ocp.AsyncOptions(barrier_sync_fn=barrier_sync_fn)
    options = ocp.CheckpointManagerOptions(async_options=asynchronous)
    with ocp.CheckpointManager(tmp_path, options=options) as manager:
        manager.save(0, args=ocp.args.JsonSave({"a": 1}))
        manager.wait_until_finished()
        assert manager.all_steps() == [0]


def test_a_save_that_is_tried_again_in_an_except_waits_as_long_as_asked(asked):
    asked.late = "1\n"
    try:
        fail_and_meet(CommitError("process 1 is missing", [1]))
    except CommitError:
        with pytest.raises(CommitError, match="60 s were not enough"):
            barrier_sync_fn(key="again", timeout_ms=60_000)
    assert asked[-1] == ("again", 60_000)
