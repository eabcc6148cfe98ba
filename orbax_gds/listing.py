"""What lies under a checkpoint root: steps, their items, and whether these are published."""

import contextlib
import dataclasses
import functools
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path as FilePath
from typing import Literal

from orbax_gds.chains import missing_stripe
from orbax_gds.commit import PENDING_NAME
from orbax_gds.errors import Corrupt, IoError, NotFound, Unsupported
from orbax_gds.final_names import TEMPORARY, step_number
from orbax_gds.manifest import MANIFEST_NAME
from orbax_gds.named_stripes import NamedStripes, named_stripes
from orbax_gds.stripe_specs import BASE_NAME

__all__ = ["Entry", "find_item", "is_item", "list_items"]

State = Literal["published", "broken", "unfinished"]
Kind = Literal["full", "delta"]
_Read = Callable[[FilePath], NamedStripes | None]
_Writers = Callable[[FilePath, str], dict[str, str]]
_Holders = Callable[[FilePath, str], frozenset[str]]

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
        kind: "full", or "delta" where it follows from earlier steps; None where no manifest says.
        base: what a delta follows from: the name of the step that wrote it, where that is found
            beside it, else the uuid of its stripe.
        chain_length: how many earlier steps the longest chain has.
        own_bytes: bytes that no other item has a link to: what deleting it frees.
        shared_bytes: bytes of its files and of `base/` that other items have, too, and of those
            stripes of earlier steps that lie only there.
    """

    step: str | None
    item: str
    path: str
    state: State
    n_bytes: int
    reason: str | None = None
    kind: Kind | None = None
    base: str | None = None
    chain_length: int = 0
    own_bytes: int = 0
    shared_bytes: int = 0


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
        raise NotFound(f"{_why_no_directory(root)} Give a checkpoint root, a step or an item.")
    try:
        found = sorted(_walk(root, 0), key=lambda place: _order(place.relative_to(root)))
        read = functools.cache(_named)
        writers = functools.cache(functools.partial(_writers, read))  # as many steps ask for them
        holders = functools.cache(functools.partial(_held, read))
        return [_entry(root, directory, read, writers, holders) for directory in found]
    except OSError as err:
        raise IoError(err.errno, f"Cannot list {root}: {err.strerror}", err.filename) from err


def _why_no_directory(path: FilePath) -> str:
    if not path.exists():
        return f"There is no directory {path}."
    items = (each for each in (path.parent, path.parent.parent) if is_item(each))
    if (item := next(items, None)) is not None:
        return f"{path} is a file of the item {item}."
    return f"{path} is a file; `orbax-gds convert` makes an item of one of safetensors."


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


def _entry(
    root: FilePath, directory: FilePath, read: _Read, writers: _Writers, holders: _Holders
) -> Entry:
    parts = directory.relative_to(root).parts
    published = (directory / MANIFEST_NAME).is_file()
    committed = not any(TEMPORARY in part for part in parts)
    named = read(directory.absolute()) if published and committed else None
    reason = _missing_base(named, holders) if named else None
    files = [status for path in _children(directory) if (status := _file_status(path))]
    held = files + [status for path in _bases(directory) if (status := _file_status(path))]
    shared_bytes = sum(status.st_size for status in held if status.st_nlink > 1)
    if named and not named.linked:
        here = named.files
        elsewhere = (spec for spec in named.bases if not here[spec.uuid].exists())
        shared_bytes += sum(spec.bytes for spec in elsewhere)
    return Entry(
        step=parts[0] if len(parts) == _DEEPEST else None,
        item=directory.name,
        path=os.fspath(directory),
        state="broken" if reason else "published" if published and committed else "unfinished",
        n_bytes=sum(status.st_size for status in files),
        reason=reason,
        kind=None if named is None else "delta" if named.bases else "full",
        base=None if named is None else _base(named, writers),
        chain_length=0 if named is None else named.chain_length,
        own_bytes=sum(status.st_size for status in held if status.st_nlink == 1),
        shared_bytes=shared_bytes,
    )


def _named(directory: FilePath) -> NamedStripes | None:
    """Return what a manifest says of stripes; None if it cannot be read.

    That is then reported by who reads the item.
    """
    with contextlib.suppress(OSError, Corrupt, Unsupported):
        return named_stripes(directory)
    return None


def _missing_base(named: NamedStripes, holders: _Holders) -> str | None:
    """Return what is missing of that which an item follows from; None if nothing is."""
    missing = {spec.uuid for spec in named.bases if not named.files[spec.uuid].exists()}
    if missing and not named.linked:
        item = named.item
        missing -= holders(item.parent.parent, item.name) | holders(item.parent, "")
    first = next((spec.uuid for spec in named.bases if spec.uuid in missing), None)
    return None if first is None else str(missing_stripe(named.item, first, named.linked))


def _base(named: NamedStripes, writers: _Writers) -> str | None:
    """Return what a delta follows from: the step that wrote the stripe, or the stripe's uuid."""
    uuid = next((spec.base for spec in named.own if spec.base is not None), None)
    if uuid is None:
        return None
    item = named.item
    beside = writers(item.parent, "")  # where steps are items
    return beside.get(uuid) or writers(item.parent.parent, item.name).get(uuid, uuid)


def _writers(read: _Read, root: FilePath, item: str) -> dict[str, str]:
    """Return by uuid which step under a root wrote a stripe of the item of a name."""
    return {
        spec.uuid: step.name
        for step in _beside(root)
        if (named := read(step / item)) is not None
        for spec in named.own
    }


def _held(read: _Read, root: FilePath, item: str) -> frozenset[str]:
    """Return the uuids of the stripes that the steps under a root have, in the item of a name."""
    named = (read(step / item) for step in _beside(root))
    return frozenset(
        uuid
        for each in named
        if each is not None
        for uuid, path in each.files.items()
        if path.exists()
    )


def _bases(directory: FilePath) -> list[FilePath]:
    base = directory / BASE_NAME
    return _children(base) if base.is_dir() else []


def _beside(root: FilePath) -> list[FilePath]:
    """Return the steps under what may be a root; none if it may not be looked into."""
    with contextlib.suppress(PermissionError):  # it may lie above the place that is listed
        return [step for step in _children(root) if TEMPORARY not in step.name]
    return []


def _children(directory: FilePath) -> list[FilePath]:
    """What lies in a directory; nothing if it was deleted after it was found."""
    try:
        return list(directory.iterdir())
    except FileNotFoundError:
        return []


def _file_status(path: FilePath) -> os.stat_result | None:
    """Return the status of a file; None if it is none, or was deleted after it was found."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def _order(place: FilePath) -> tuple[list[tuple[int, int | str]], ...]:
    """Sort key under which step_9 comes before step_10, whatever the format of step names."""
    return tuple(
        [(0, int(piece)) if piece.isdecimal() else (1, piece) for piece in re.split(r"(\d+)", part)]
        for part in place.parts
    )
