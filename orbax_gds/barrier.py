"""A barrier for Orbax that names the processes which do not come, and waits for them once.

Orbax meets at barriers of its own after ours: before and after publication, and at the end of
`CheckpointManager`'s background work, also of a failed save. There it would wait for a dead process
a second deadline, and raise in place of the error that says what happened.
"""

import re
import sys
from typing import TypeGuard

import orbax.checkpoint as ocp

from orbax_gds.errors import CommitError
from orbax_gds.pending import processes_text

# Chosen: what processes of the same deadline may be apart. jax looks once a second for barriers
# whose time is up, so that those which fail at one look have until the next.
_SLACK_MS = 200
_LATE = re.compile(r"timed out task names:\s*((?:\S+\n)+)")  # as jax's coordination service says it
_TASK = re.compile(r"(?:.*task:)?([0-9]+)")


def barrier_sync_fn(*, key: str, timeout_ms: int) -> None:
    """Meet all other processes, as Orbax's own barrier does, but name those that do not come.

    After a save that failed because a process was missing, Orbax's manager meets once more before
    it raises. Then this waits for about a second and raises what says who was missing; Orbax's own
    waits as long as for the save itself.

    Args:
        key: name of the barrier, the same on all processes.
        timeout_ms: how long to wait.

    Raises:
        CommitError: not all processes have come; names them.

    Example:
        >>> import orbax.checkpoint as ocp, orbax_gds as ogds
        >>> asynchronous = ocp.AsyncOptions(barrier_sync_fn=ogds.barrier_sync_fn)
        >>> options = ocp.CheckpointManagerOptions(async_options=asynchronous)
    """
    raised = sys.exc_info()[1]  # what Orbax, in a `finally`, is about to raise
    failed = raised if _lacks_a_process(raised) else None
    limit_ms = min(timeout_ms, _SLACK_MS) if failed else timeout_ms
    try:
        ocp.multihost.get_barrier_sync_fn()(key=key, timeout_ms=limit_ms)
    except RuntimeError as err:  # jax's, from its coordination service
        if failed:
            raise failed from failed.__cause__
        late = late_processes(err)
        raise CommitError(
            f"{timeout_ms / 1000:.0f} s were not enough for {_text(late)} to come to Orbax's "
            f"barrier {key!r}: failed, dead or still at work. The step is saved only if Orbax has "
            "given it its final name. See the log of that process, then save again.",
            late,
        ) from err


def _lacks_a_process(raised: BaseException | None) -> TypeGuard[CommitError]:
    """Whether a save failed for want of a process and Orbax has not yet raised that.

    A caller that saves again while it handles the error has it in its own frame.
    """
    if not isinstance(raised, CommitError) or not raised.missing or raised.__traceback__ is None:
        return False
    return raised.__traceback__.tb_frame.f_globals.get("__name__", "").startswith("orbax.")


def _text(late: tuple[int, ...]) -> str:
    return processes_text(late) if late else "some process"


def late_processes(err: RuntimeError) -> tuple[int, ...]:
    """Return the processes that have not come to a barrier of jax, as its error says.

    Example:
        >>> late_processes(RuntimeError("Some timed out task names:\\n1\\n3\\n\\nRPC: /Barrier"))
        (1, 3)
    """
    found = _LATE.search(str(err))
    tasks = map(_TASK.fullmatch, found[1].split()) if found else ()
    return tuple(sorted(int(task[1]) for task in tasks if task))
