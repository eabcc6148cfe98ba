"""What Orbax calls the directories of a step in the end, which have other names while it saves."""

import re
from pathlib import Path as FilePath

__all__ = ["TEMPORARY", "final_path", "item_text", "step_number"]

TEMPORARY = ".orbax-checkpoint-tmp"  # required: Orbax's mark on a directory it will rename
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
