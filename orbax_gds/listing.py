"""What lies under a checkpoint root: steps, their items, and whether these are published."""

import contextlib
import dataclasses
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path as FilePath
from typing import Literal

from orbax_gds.chains import find_stripes
from orbax_gds.commit import PENDING_NAME
from orbax_gds.errors import Corrupt, IoError, NotFound, Unsupported
from orbax_gds.final_names import TEMPORARY, step_number
from orbax_gds.manifest import MANIFEST_NAME, decode_pending
from orbax_gds.stripe_specs import DELTA

__all__ = ["Entry", "find_item", "is_item", "list_items"]

State = Literal["published", "broken", "unfinished"]

_DEEPEST = 2  # root/step/item


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """One item found under a root.

    Attributes:
        step: name of the step's directory; None if the listing began at a step or an item.
        item: name of the item's directory.
        path: the item's directory.
        state: "published"; "broken" where that is so, but stripes of earlier steps that it follows
            from are missing; or "unfinished" where a save was cut short or still runs.
        n_bytes: bytes of its files, without those of earlier steps.
        reason: why it is broken.
    """

    step: str | None
    item: str
    path: str
    state: State
    n_bytes: int
    reason: str | None = None


def is_item(path: str | os.PathLike[str]) -> bool:
    """Return whether a directory holds an item of ours, published or not."""
    directory = FilePath(path)
    marks = (directory / MANIFEST_NAME, directory / PENDING_NAME)
    return any(mark.is_file() for mark in marks) or any(directory.glob("*.ogds"))


def list_items(path: str | os.PathLike[str]) -> list[Entry]:
    """List the items at a path, which may be a checkpoint root, a step, or one item.

    Args:
        path: a directory; it is searched two levels deep.

    Returns:
        The items by step, in numerical order, and name; items of other handlers are left out.

    Raises:
        NotFound: there is no such directory.
        IoError: a directory cannot be read.
    """
    root = FilePath(path)
    if not root.is_dir():
        raise NotFound(f"There is no directory {root}. Give a checkpoint root, a step or an item.")
    try:
        found = sorted(_walk(root, 0), key=lambda place: _order(place.relative_to(root)))
        return [_entry(root, directory) for directory in found]
    except OSError as err:
        raise IoError(err.errno, f"Cannot list {root}: {err.strerror}", err.filename) from err


def find_item(path: str | os.PathLike[str]) -> FilePath:
    """Return the one published item that a path means.

    Args:
        path: an item; a step with one item; or a root, which means the step of the highest number
            of those that are not broken, whatever else lies beside its steps.

    Raises:
        NotFound: it means no published item, or several; then these are listed.
    """
    if is_item(path):
        return FilePath(path)
    listed = list_items(path)
    entries = [entry for entry in listed if entry.state == "published"]
    if not entries:
        reasons = [f"{entry.reason} " for entry in listed if entry.reason]
        raise NotFound(
            f"{path} holds no published item of orbax_gds that can be read. {''.join(reasons)}"
            f"`orbax-gds ls {path}` lists what is there."
        )
    latest = max(map(_number, entries))
    meant = [entry for entry in entries if _number(entry) == latest]
    if len(meant) > 1:
        candidates = "\n".join(f"  {entry.path}" for entry in meant)
        raise NotFound(f"{path} holds several items. Give one of them:\n{candidates}")
    return FilePath(meant[0].path)


def _number(entry: Entry) -> int:
    """Return the number of an item's step, which may be an item itself; -1 if it has none."""
    if entry.step is None:
        return int(entry.item) if entry.item.isdecimal() else -1
    number = step_number(entry.step)
    return -1 if number is None else number


def _walk(directory: FilePath, depth: int) -> Iterator[FilePath]:
    if is_item(directory):
        yield directory
    elif depth < _DEEPEST:
        for child in _children(directory):
            if child.is_dir():
                yield from _walk(child, depth + 1)


def _entry(root: FilePath, directory: FilePath) -> Entry:
    parts = directory.relative_to(root).parts
    published = (directory / MANIFEST_NAME).is_file()
    committed = not any(TEMPORARY in part for part in parts)
    reason = _missing_base(directory) if published and committed else None
    return Entry(
        step=parts[0] if len(parts) == _DEEPEST else None,
        item=directory.name,
        path=os.fspath(directory),
        state="broken" if reason else "published" if published and committed else "unfinished",
        n_bytes=sum(map(_file_bytes, _children(directory))),
        reason=reason,
    )


def _missing_base(directory: FilePath) -> str | None:
    """Return what is missing of that which an item follows from; None if nothing is.

    A manifest that cannot be read says nothing, and is reported by who reads the item.
    """
    path = directory / MANIFEST_NAME
    with contextlib.suppress(OSError, Corrupt, Unsupported):
        data = path.read_bytes()
        if f'"{DELTA}"'.encode() in data:
            base = decode_pending(data, str(path)).base
            if base is not None:
                try:
                    find_stripes(directory, [spec.uuid for spec in base.stripes], base.linked)
                except NotFound as err:
                    return str(err)
    return None


def _children(directory: FilePath) -> list[FilePath]:
    """What lies in a directory; nothing if it was deleted after it was found."""
    try:
        return list(directory.iterdir())
    except FileNotFoundError:
        return []


def _file_bytes(path: FilePath) -> int:
    """Length of a file; 0 if it is none, or was deleted after it was found."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def _order(place: FilePath) -> tuple[list[tuple[int, int | str]], ...]:
    """Sort key under which step_9 comes before step_10, whatever the format of step names."""
    return tuple(
        [(0, int(piece)) if piece.isdecimal() else (1, piece) for piece in re.split(r"(\d+)", part)]
        for part in place.parts
    )
