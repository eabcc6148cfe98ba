"""What saves have left under a root that no step needs: found, and deleted if asked."""

import contextlib
import dataclasses
import os
import re
import shutil
import stat
import time
from collections.abc import Collection, Iterator
from pathlib import Path as FilePath
from typing import Literal

from orbax_gds.commit import COMPLETE_NAME, PENDING_NAME, io_context
from orbax_gds.errors import NotFound, OgdsError
from orbax_gds.final_names import TEMPORARY
from orbax_gds.listing import is_item
from orbax_gds.manifest import MANIFEST_NAME
from orbax_gds.named_stripes import NamedStripes, named_stripes
from orbax_gds.pending import FAILED_NAME
from orbax_gds.sidecar import NAME as METADATA_NAME
from orbax_gds.stripe import HEADER_BYTES, decode_header
from orbax_gds.stripe_specs import BASE_NAME

__all__ = ["Orphan", "orphans", "prune"]

Kind = Literal["stripe", "base", "leftover", "unfinished"]
DAY_SECS = 24 * 3600.0
_DEEPEST = 2  # root/step/item
# What a process leaves for those that publish, of its report, or of a probe. FORMAT §2, §8.1
_REPORT = re.compile(r"p[0-9]{5,}(-[0-9]{2})?\.report\.json")
_STRIPE = re.compile(r"p[0-9]{5,}(-[0-9]{2})?\.ogds")
_LEFT = re.compile(r"p[0-9]{5,}(-[0-9]{2})?(\.report\.json)?(\.pending|\.probe|\.failed\.pending)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Orphan:
    """Something that no step needs.

    Attributes:
        path: a file, or the directory of a save that was never published.
        kind: "stripe" or "base", a file of an item that its manifest does not name; "leftover", a
            small file of a save in an item that is published; "unfinished", a directory.
        n_bytes: bytes that deleting it frees: those of files without another hard link.
        changed: when that was last, in seconds of Unix time.
    """

    path: str
    kind: Kind
    n_bytes: int
    changed: float


def orphans(
    root: str | os.PathLike[str],
    *,
    unfinished: bool = False,
    min_age_secs: float = DAY_SECS,
) -> list[Orphan]:
    """Find what no step under a root needs.

    A stripe whose uuid any manifest names is none, wherever it lies; where a manifest cannot be
    read, which may name any, no stripe is one.

    Args:
        root: a checkpoint root, a step or an item.
        unfinished: also saves that were never published, such as a process leaves that is killed.
            One that still runs looks like them.
        min_age_secs: what changed later is left out.

    Returns:
        What was found, in the order of the paths.

    Raises:
        NotFound: there is no such directory.
        IoError: a directory cannot be read.
    """
    place = FilePath(root)
    if not place.is_dir():
        raise NotFound(f"There is no directory {place}. Give a checkpoint root, a step or an item.")
    with io_context(place, "list"):
        found = list(_search(place, unfinished))
    old = [each for each in found if each.changed <= time.time() - min_age_secs]
    return sorted(old, key=lambda each: each.path)


def prune(
    root: str | os.PathLike[str],
    *,
    dry_run: bool = True,
    unfinished: bool = False,
    min_age_secs: float = DAY_SECS,
) -> list[Orphan]:
    """Delete what no step under a root needs, or only say what that is.

    No published item and none of the stripes that one names is ever deleted.

    Args:
        root, unfinished, min_age_secs: as in `orphans`.
        dry_run: delete nothing.

    Returns:
        What was deleted, or would be; no save that has gone on since it was found.

    Raises:
        NotFound: there is no such directory.
        IoError: the system refused; what comes later in the list is still there.
    """
    found = orphans(root, unfinished=unfinished, min_age_secs=min_age_secs)
    if dry_run:
        return found
    deleted = []
    for orphan in found:
        path = FilePath(orphan.path)
        if orphan.kind == "unfinished" and _has_changed(path, orphan.changed):
            continue  # its save goes on, or has been published
        with io_context(path, "delete"), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path) if orphan.kind == "unfinished" else path.unlink()
        deleted.append(orphan)
    return deleted


def _has_changed(directory: FilePath, since: float) -> bool:
    found = _directory(directory)
    return found is None or found.changed != since


def _search(root: FilePath, unfinished: bool) -> Iterator[Orphan]:
    items = list(_items(root, 0))
    published = [item for item in items if _is_published(item, root)]
    named: dict[FilePath, NamedStripes] = {}
    for item in published:
        with contextlib.suppress(OgdsError):  # damaged, or of a newer version
            named[item] = named_stripes(item)
    uuids = {uuid for each in named.values() for uuid in each.files}
    for item in published:
        yield from _leftovers(item)
        if len(named) == len(published):
            yield from _unnamed(named[item], uuids)
    if unfinished:
        others = [item for item in items if item not in set(published)]
        tops = {_top(item, root) for item in others if _is_unfinished(item, root)}
        yield from (found for top in tops if (found := _directory(top)) is not None)


def _items(directory: FilePath, depth: int) -> Iterator[FilePath]:
    if is_item(directory):
        yield directory
    elif depth < _DEEPEST:
        for child in _children(directory):
            if child.is_dir() and not child.is_symlink():
                yield from _items(child, depth + 1)


def _children(directory: FilePath) -> list[FilePath]:
    """Return what lies in a directory; nothing if a job has deleted it meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        return list(directory.iterdir())
    return []


def _is_temporary(item: FilePath, root: FilePath) -> bool:
    return TEMPORARY in os.fspath(item.relative_to(root.parent))


def _is_published(item: FilePath, root: FilePath) -> bool:
    return (item / MANIFEST_NAME).is_file() and not _is_temporary(item, root)


def _is_unfinished(item: FilePath, root: FilePath) -> bool:
    """Whether a save into a directory was cut short, and it did not lose its manifest later.

    Where Orbax has not marked it, all that lies there must be what saves leave.
    """
    if _is_temporary(item, root):
        return True
    if not all(map(_is_of_a_save, _children(item))):
        return False
    return (item / PENDING_NAME).exists() or not (item / METADATA_NAME).exists()


def _top(item: FilePath, root: FilePath) -> FilePath:
    """Return what to delete of a save that was never published: the step, if that is temporary."""
    above = [item, *item.parents][: len(item.relative_to(root).parts)]
    return next((each for each in reversed(above) if TEMPORARY in each.name), item)


def _is_of_a_save(path: FilePath) -> bool:
    if path.name == BASE_NAME:
        mine = path.is_symlink() or any(each.suffix != ".ogds" for each in _children(path))
        return not mine and path.is_dir()
    known = (PENDING_NAME, COMPLETE_NAME, FAILED_NAME, METADATA_NAME)
    patterns = (_STRIPE, _LEFT, _REPORT)
    return path.name in known or any(pattern.fullmatch(path.name) for pattern in patterns)


def _directory(path: FilePath) -> Orphan | None:
    """Return a directory to delete; None if it is gone."""
    statuses = []
    for each in (path, *path.rglob("*")):
        with contextlib.suppress(FileNotFoundError):
            statuses.append(each.lstat())
    if not statuses:
        return None
    n_bytes = sum(map(_freed, statuses))
    changed = max(status.st_mtime for status in statuses)
    return Orphan(path=os.fspath(path), kind="unfinished", n_bytes=n_bytes, changed=changed)


def _leftovers(item: FilePath) -> Iterator[Orphan]:
    """Yield what the save of an item that is published has left beside it."""
    for path in _children(item):
        known = path.name in (PENDING_NAME, COMPLETE_NAME, FAILED_NAME)
        if known or _LEFT.fullmatch(path.name):
            yield from _file(path, "leftover")


def _unnamed(named: NamedStripes, uuids: Collection[str]) -> Iterator[Orphan]:
    """Yield the stripes in an item that its manifest does not name, unless another names them."""
    kept = set(named.files.values())
    for path in named.item.glob("p[0-9]*.ogds"):
        if path not in kept and _uuid(path) not in uuids:
            yield from _file(path, "stripe")
    bases = named.item / BASE_NAME
    for path in () if bases.is_symlink() else bases.glob("*.ogds"):  # elsewhere others may need it
        if path not in kept and path.stem not in uuids and _uuid(path) not in uuids:
            yield from _file(path, "base")


def _uuid(path: FilePath) -> str | None:
    """Return the uuid that a stripe says it has; None where it says none."""
    with contextlib.suppress(OSError, OgdsError), path.open("rb") as file:
        return decode_header(file.read(HEADER_BYTES), str(path)).uuid.hex()
    return None


def _file(path: FilePath, kind: Kind) -> Iterator[Orphan]:
    try:
        status = path.lstat()
    except FileNotFoundError:  # deleted meanwhile
        return
    if stat.S_ISREG(status.st_mode):
        n_bytes, changed = _freed(status), status.st_mtime
        yield Orphan(path=os.fspath(path), kind=kind, n_bytes=n_bytes, changed=changed)


def _freed(status: os.stat_result) -> int:
    """Return the bytes that deleting a name frees: none of a directory, or of one of two links."""
    return status.st_size if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 else 0
