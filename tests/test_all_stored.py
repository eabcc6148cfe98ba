"""What a process does at the end of a save by several: it waits for all, and tells them all."""

import os
from concurrent.futures import Future

import jax
import orbax.checkpoint as ocp
import pytest

from orbax_gds import all_stored, commit
from orbax_gds.errors import CommitError, IoError
from orbax_gds.pending import Failure, PendingStripe


class Barrier:
    """Stands for that of jax: passes, or says that processes are missing."""

    late = "who knows"

    def __init__(self, passes=True):
        self.passes, self.asked = passes, []  # or how often it passes

    def __call__(self, *, key, timeout_ms):
        self.asked.append((key, timeout_ms))
        if self.passes is not True and len(self.asked) > self.passes:
            raise RuntimeError(f"DEADLINE_EXCEEDED: {self.late}")


@pytest.fixture
def ends(tmp_path, monkeypatch):
    """End a save of process 0 of three; return the barrier and how often it failed."""

    def end(own: Future, barrier: Barrier, timeout: float | None = 5.0, process=0, check=None):
        failed = []
        monkeypatch.setattr(jax, "process_count", lambda: 3)
        monkeypatch.setattr(jax, "process_index", lambda: process)
        monkeypatch.setattr(all_stored, "check_sealed", check or (lambda _: None))
        monkeypatch.setattr(ocp.multihost, "get_barrier_sync_fn", lambda: barrier)
        future = all_stored.AllStored(own, tmp_path, 7, lambda: failed.append(1))
        try:
            future.result(timeout=timeout)
        finally:
            end.n_failed = len(failed)

    return end


def done() -> Future:
    future = Future()
    future.set_result(None)
    return future


def seal(directory, *processes):
    for process in processes:
        said = PendingStripe(process=process, uuid="0" * 32, digest="", coding="auto")
        commit.leave_sealed(directory, said)


def test_a_save_that_all_have_stored_is_done(ends, tmp_path):
    barrier = Barrier()
    ends(done(), barrier)
    assert ends.n_failed == 0
    assert [key for key, _ in barrier.asked] == [
        f"orbax_gds_stored 7 {tmp_path}",
        f"orbax_gds_checked 7 {tmp_path}",
    ]
    assert all(4000 < timeout_ms <= 5000 for _, timeout_ms in barrier.asked)
    ends(done(), barrier, timeout=None)
    assert barrier.asked[-1][1] > 1_000_000  # that of Orbax, 20 minutes


def refused(_):
    raise CommitError("process 2 saved another tree.")


def test_parts_that_do_not_fit_together_fail_for_every_process(ends, tmp_path):
    barrier = Barrier()
    with pytest.raises(CommitError, match=r"^process 2 saved another tree\.$"):
        ends(done(), barrier, check=refused)
    assert ends.n_failed == 1
    assert barrier.asked[1] == (f"orbax_gds_checked 7 {tmp_path}", 1)
    for at_barrier in (True, 1):
        with pytest.raises(CommitError, match=r"process 0 failed .* process 2 saved another"):
            ends(done(), Barrier(at_barrier), process=1, check=refused)
        assert ends.n_failed == 1


def test_process_0_alone_checks_once_all_have_stored(ends):
    barriers, checked = [Barrier() for _ in range(3)], []
    for process, barrier in enumerate(barriers):
        ends(done(), barrier, process=process, check=checked.append)
        assert len(barrier.asked) == 2
        assert len(checked) == 1

    def not_yet(_):
        raise AssertionError("checked before all have stored their parts")

    with pytest.raises(CommitError):
        ends(done(), Barrier(passes=0), check=not_yet)


@pytest.mark.parametrize(
    ("sealed", "named"), [((0, 2), "process 1 of 3"), ((0,), "processes 1, 2 of 3")]
)
def test_processes_that_are_missing_are_named(ends, tmp_path, sealed, named):
    seal(tmp_path, *sealed)
    with pytest.raises(CommitError, match=rf"5 s were not enough for {named}") as raised:
        ends(done(), Barrier(passes=False))
    assert "DEADLINE_EXCEEDED" in str(raised.value.__cause__)
    assert ends.n_failed == 1


def test_a_process_that_is_missing_though_its_part_is_stored_is_named(ends, tmp_path, monkeypatch):
    seal(tmp_path, 0, 1, 2)
    late = "Some timed out task names:\n2\n\n\nRPC: /Barrier"
    monkeypatch.setattr(Barrier, "late", late)
    with pytest.raises(CommitError, match="for process 2 of 3: dead or cut off") as raised:
        ends(done(), Barrier(passes=False))
    assert raised.value.missing == (2,)
    (tmp_path / "p00001.pending").unlink()
    with pytest.raises(CommitError, match="for processes 1, 2 of 3: failed, dead") as raised:
        ends(done(), Barrier(passes=False))
    assert raised.value.missing == (1, 2)


def test_what_jax_says_is_passed_on_where_no_part_is_missing(ends, tmp_path):
    seal(tmp_path, 0, 1, 2)
    with pytest.raises(CommitError, match=r"every process .*: who knows"):
        ends(done(), Barrier(passes=False))


@pytest.mark.parametrize("passes", [True, False])
def test_the_failure_of_another_process_is_this_ones_too(ends, tmp_path, passes):
    seal(tmp_path, 0, 2)
    commit.leave_failure(tmp_path, Failure(process=1, error="OSError: it broke."))
    with pytest.raises(CommitError, match=r"process 1 failed with OSError: it broke\. The last"):
        ends(done(), Barrier(passes))
    commit.withdraw_sealed(tmp_path, 0)  # another process leaves it
    with pytest.raises(CommitError, match="process 1 failed"):
        ends(done(), Barrier())
    commit.withdraw_sealed(tmp_path, 1)  # it tries again
    ends(done(), Barrier())
    assert ends.n_failed == 0


@pytest.mark.parametrize("passes", [True, False])
def test_a_process_that_fails_tells_the_others_at_once_and_raises_its_own_error(
    ends, tmp_path, passes
):
    own, barrier = Future(), Barrier(passes)
    own.set_exception(ValueError("here"))
    with pytest.raises(ValueError, match="here"):
        ends(own, barrier)
    assert ends.n_failed == 1
    assert [timeout_ms for _, timeout_ms in barrier.asked] == [1]
    with pytest.raises(CommitError, match="process 0 failed with ValueError: here"):
        ends(done(), Barrier())


def test_a_failure_is_told_whole_or_not_at_all(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(5, "it broke")

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(IoError, match="p00001"):
        commit.leave_failure(tmp_path, Failure(process=1, error="text"))
    assert not (tmp_path / "failed.pending").exists()


def test_a_process_that_cannot_tell_leaves_the_others_to_their_deadline(ends, tmp_path):
    tmp_path.rmdir()
    own, barrier = Future(), Barrier()
    own.set_exception(ValueError("here"))
    with pytest.raises(ValueError, match="here"):
        ends(own, barrier)
    assert barrier.asked == []


def test_a_process_that_is_not_done_in_time_says_so(ends):
    with pytest.raises(TimeoutError):
        ends(Future(), Barrier(), timeout=0.01)
    assert ends.n_failed == 1
    with pytest.raises(CommitError, match="process 0 failed with TimeoutError"):
        ends(done(), Barrier())
