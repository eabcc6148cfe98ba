"""Which steps were saved and restored last, so that the next save can be coded against one."""

import contextlib
import dataclasses
import logging
import os
import re
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path as FilePath

from orbax_gds.final_names import TEMPORARY, final_path, step_number
from orbax_gds.manifest import MANIFEST_NAME

__all__ = ["KnownSteps", "Noted", "Place", "known_roots", "mark_of", "place_of"]

logger = logging.getLogger(__name__)

_DIGITS = "0123456789"
_STEP_WORDS = re.compile(r"(?i:.*(step|ckpt|checkpoint|epoch|iter|iteration|update))[_-]?\d+")
_MOST_NOTED = 4  # chosen: a save that fails leaves one that is no step, until the next one looks


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """Where an item lies in a run: `root/step/item`, or `root/step` without a name of its own."""

    root: FilePath
    item: str | None

    def of_step(self, step: str) -> FilePath:
        """Return the item of a step, by the name of its directory."""
        return self.root / step / self.item if self.item is not None else self.root / step


def _places(path: FilePath) -> tuple[Place, Place]:
    final = final_path(path.absolute())
    in_a_step = Place(root=final.parent.parent, item=final.name)
    return in_a_step, Place(root=final.parent, item=None)


def place_of(directory: FilePath) -> tuple[Place, int] | None:
    """Return where an item is being saved, and the number of its step; None if there is none.

    Below a directory that Orbax will rename it lies in a step, whatever that is called. Elsewhere
    a directory whose name is a number is a step, and an item that is called like one is one. Of
    `123456/run_10` either may be the step: its name, or what lies beside them, says which.
    """
    in_a_step, itself = _places(directory)
    final = final_path(directory.absolute())
    number, above = step_number(final.name), step_number(final.parent.name)
    is_within = final.parent.name.isdecimal() and not final.name.isdecimal()
    if is_within and number is not None and TEMPORARY not in directory.parent.name:
        is_within = not _is_step(final)
    if is_within or TEMPORARY in directory.parent.name:
        return None if above is None else (in_a_step, above)
    return None if number is None else (itself, number)


def _is_step(item: FilePath) -> bool:
    """Whether an item with a number, below a directory that is a number, is a step of its own.

    It is if it is called so. Else it is if others that are called alike lie beside it, and no
    other number has an item of its name: several items in each of several steps have both.
    """
    if _STEP_WORDS.match(item.name):
        return True
    above = (other / item.name for other in _alike(item.parent))
    return any(map(_is_published, _alike(item))) and not any(map(_is_published, above))


def _is_published(item: FilePath) -> bool:
    return (item / MANIFEST_NAME).is_file()


def _alike(path: FilePath) -> Iterator[FilePath]:
    """Yield what lies beside a directory and is called as it is but for another number."""
    prefix = path.name.rstrip(_DIGITS)
    with contextlib.suppress(OSError):
        for name in os.listdir(path.parent):
            if name != path.name and name[len(prefix) :].isdecimal() and name.startswith(prefix):
                yield path.parent / name


@dataclasses.dataclass(frozen=True, kw_only=True)
class Noted:
    """An item that was saved or restored here.

    Attributes:
        path: its final one.
        uuid: of the stripe that this process saved; None of one that was restored.
        mark: of the manifest of one that was restored: inode and time of the last change.
    """

    path: FilePath
    uuid: str | None = None
    mark: tuple[int, int] | None = None


def mark_of(item: FilePath) -> tuple[int, int] | None:
    with contextlib.suppress(OSError):
        status = os.stat(item / MANIFEST_NAME)
        return status.st_ino, status.st_mtime_ns
    return None


_in_use: weakref.WeakSet["KnownSteps"] = weakref.WeakSet()  # those of the process that save
_in_use_lock = threading.Lock()


def known_roots() -> dict[FilePath, list[list[Noted]]]:
    """Return the roots that this process saves to, and what was noted under each.

    Of each item and handler that is a list, the last first: the first that is still there is what
    the next save may be coded against.
    """
    roots: dict[FilePath, list[list[Noted]]] = {}
    with _in_use_lock:
        in_use = list(_in_use)
    for known in in_use:
        for root, noted in known.roots().items():
            roots.setdefault(root, []).extend(noted)
    return roots


class KnownSteps:
    """The steps that were saved or restored last, by root and item. Threads may share one."""

    def __init__(self) -> None:
        self._roots: set[FilePath] = set()
        self._began: dict[Place, float] = {}
        self._noted: dict[Place, list[Noted]] = {}
        self._broken: set[str] = set()  # uuids of stripes that were damaged when they were read
        self._warned = False
        self._lock = threading.Lock()

    def expect(self, directory: FilePath) -> None:
        """Note where an item is about to be saved, before policies of Orbax ask for the root."""
        found = place_of(directory)
        if found is not None:
            with self._lock:
                self._roots.add(found[0].root)
                self._began[found[0]] = time.monotonic()
            with _in_use_lock:
                _in_use.add(self)

    def began(self, place: Place) -> float:
        """Return when the last save there began, by `time.monotonic`."""
        with self._lock:
            return self._began.get(place, time.monotonic())

    def close(self) -> None:
        """Ask no policy to keep a step for what is saved here, until more is."""
        with _in_use_lock:
            _in_use.discard(self)

    def roots(self) -> dict[FilePath, list[list[Noted]]]:
        """Return the roots of what is saved here, and what was noted of each item under them."""
        with self._lock:
            noted = [(place.root, list(each)) for place, each in self._noted.items()]
            return {root: [each for at, each in noted if at == root] for root in self._roots}

    def note_saved(self, directory: FilePath, uuid: str) -> None:
        """Note an item that this process has stored; only once it is published it is a base."""
        found = place_of(directory)
        if found is not None:
            self._note(found[0], Noted(path=final_path(directory.absolute()), uuid=uuid))

    def note_restored(self, item: FilePath) -> None:
        """Note that training goes on from this item."""
        path = item.absolute()
        mark = mark_of(path)
        for place in _places(path):
            self._note(place, Noted(path=path, mark=mark))

    def refuse(self, uuids: Sequence[str]) -> None:
        """Take no base any more whose chain has one of these stripes."""
        with self._lock:
            self._broken.update(uuids)

    def is_broken(self, uuids: Sequence[str]) -> bool:
        """Whether one of the stripes was refused."""
        with self._lock:
            return not self._broken.isdisjoint(uuids)

    def warn_of_links(self, root: FilePath, reason: str) -> None:
        """Log, once, that the steps of a root are full, although deltas were asked for."""
        with self._lock:
            was, self._warned = self._warned, True
        if not was:
            logger.warning(
                "Steps under %s are full: %s. For deltas give Orbax's manager the policy "
                "KeepBases(inner, directory); else use Options(delta=Never()).",
                root,
                reason,
            )

    def _note(self, place: Place, noted: Noted) -> None:
        with self._lock:
            others = [each for each in self._noted.get(place, []) if each.path != noted.path]
            self._noted[place] = [noted, *others][:_MOST_NOTED]

    def candidates(self, place: Place) -> list[Noted]:
        """Return what was noted, the last first."""
        with self._lock:
            return list(self._noted.get(place, []))

    def has_saved(self, place: Place) -> bool:
        """Whether an item was saved there by this handler."""
        return any(noted.uuid is not None for noted in self.candidates(place))

    def keep(self, place: Place, noted: Sequence[Noted]) -> None:
        """Forget what was noted but for these."""
        with self._lock:
            here = self._noted.get(place, [])
            self._noted[place] = [each for each in here if each in noted]
