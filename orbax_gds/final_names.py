"""What Orbax calls the directories of a step in the end, which have other names while it saves."""

from pathlib import Path as FilePath

__all__ = ["TEMPORARY", "final_path", "item_text"]

TEMPORARY = ".orbax-checkpoint-tmp"  # required: Orbax's mark on a directory it will rename


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
