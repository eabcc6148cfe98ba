"""What Orbax calls the directories of a step in the end, which have other names while it saves."""

import re
from pathlib import Path as FilePath

__all__ = ["COMMITTED", "TEMPORARY", "final_path", "is_in_place", "item_text", "step_number"]

TEMPORARY = ".orbax-checkpoint-tmp"  # required: Orbax's mark on a directory it will rename
COMMITTED = "commit_success.txt"  # required: and in one that it wrote in place, once it is a step
_METADATA = "_CHECKPOINT_METADATA"  # required: what Orbax says of a step, from its beginning on
_NOT_COMMITTED = re.compile(rb'"commit_timestamp_nsecs":\s*null')
_STEP = re.compile(r"(?:.*_)?(\d+)", re.DOTALL)  # 10, step_10 or step_00000010


def final_path(path: FilePath) -> FilePath:
    """Return what a directory is called once Orbax has renamed it and those above it."""
    return FilePath(*(name.partition(TEMPORARY)[0] or name for name in path.parts))


def item_text(path: FilePath) -> str:
    """Return the final name of an item, after that of the step which Orbax saves it in.

    Example:
        >>> item_text(FilePath("run/12.orbax-checkpoint-tmp/default.orbax-checkpoint-tmp"))
        '12/default'
        >>> item_text(FilePath("run/weights"))
        'weights'
    """
    final = final_path(path)
    in_a_step = final.parent.name != path.parent.name
    return f"{final.parent.name}/{final.name}" if in_a_step else final.name


def step_number(name: str) -> int | None:
    """Return the number of a step from the name of its directory; None if it has none.

    Example:
        >>> step_number("step_00000010"), step_number("default")
        (10, None)
    """
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else None


def is_in_place(step: FilePath) -> bool:
    """Whether Orbax is writing a step that has its final name: `COMMITTED` says when it is one."""
    if TEMPORARY in step.name:
        return False
    try:
        return _NOT_COMMITTED.search((step / _METADATA).read_bytes()) is not None
    except OSError:  # there is none: somebody else writes, or nobody
        return False
