"""A process that is killed in the middle of a delta, by SIGKILL, at any operation of a save.

As a program it does so to forks of its own, before anything has started threads.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from delta_runs import Job, assert_restores, item_of

from orbax_gds.testing.faults import Fault, faulty_system

IN_MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None


def in_a_process(work: Callable[[], object]) -> int:
    """Do something in a process of its own; return how that ended."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def save_and_die(root: Path, at: int) -> None:
    with faulty_system(Fault(at, action="kill")):
        Job(root).save(2)


def go_on(root: Path) -> None:
    """Check that step 2 is whole or not there, and that what follows needs no other step."""
    item = item_of(root, 2)
    for step in (0, 1):
        assert_restores(item_of(root, step), step)
    if not (item / "manifest.json").exists():
        Job(root).save(2)
        assert len(list((item / "base").iterdir())) == 2
    assert_restores(item, 2)
    Job(root).save(3)
    for step in (0, 1, 2):
        shutil.rmtree(root / str(step))
    assert_restores(item_of(root, 3), 3)


def forget(root: Path) -> None:
    """Go back to the two steps that there were before."""
    for step in range(4):
        shutil.rmtree(root / str(step), ignore_errors=True)
    for step in range(2):
        shutil.copytree(root / "kept" / str(step), root / str(step))


def changes(root: Path) -> list[int]:
    """Return the numbers of the operations of a save after which other files are there."""

    def save() -> None:
        with faulty_system(Fault(None)) as fault:
            Job(root).save(2)
        (root / "operations").write_text("\n".join(fault.operations))

    forget(root)
    assert in_a_process(save) == 0
    operations = (root / "operations").read_text().splitlines()
    return [at for at, what in enumerate(operations) if not what.startswith(("preadv", "fsync"))]


def kill_everywhere(root: Path) -> None:
    assert in_a_process(lambda: Job(root / "kept").save(0, 1)) == 0
    ended = []
    for at in changes(root):
        forget(root)
        ended.append(in_a_process(lambda at=at: save_and_die(root, at)))
        assert in_a_process(lambda: go_on(root)) == 0, f"after a kill at operation {at}"
    assert set(ended) == {0, -9}  # 0 where the operation itself failed, as it may
    assert ended.count(-9) > 20


@pytest.mark.slow
def test_wherever_a_save_is_killed_its_step_is_whole_or_not_there_and_the_next_one_works():
    done = subprocess.run(
        [sys.executable, __file__], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as place:
        kill_everywhere(Path(place))
