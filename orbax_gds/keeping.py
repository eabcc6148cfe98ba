"""Whether a policy of this process keeps the steps under a root that later ones follow from.

Only then may a step need others: else whoever deletes old steps would take what it needs.
"""

import os
import threading
import time
import weakref
from pathlib import Path as FilePath

from orbax_gds.known_steps import known_roots

__all__ = ["NOT_YET_ASKED", "Keeping", "why_not_kept"]

NOT_YET_ASKED = "no manager has asked KeepBases yet, as one does after its first save"


class Keeping:
    """Says that steps are kept: once a manager asks which, for as long as this object is held.

    Args:
        directory: the root; None for that of the handlers of this process, if there is only one.

    Attributes:
        root: the directory; with None, once steps under a root rely on this, that root.
        is_named: whether there was a directory.
        asked_at: when a manager first asked, by `time.monotonic`; None before.
    """

    def __init__(self, directory: str | os.PathLike[str] | None) -> None:
        self.root = None if directory is None else FilePath(directory).absolute()
        self.is_named = directory is not None
        self.asked_at: float | None = None
        with _lock:
            _in_use.add(self)

    def ask(self) -> None:
        """Note that a manager asks, which deletes nothing but what it is told to."""
        with _lock:
            _in_use.add(self)  # again, as copies are made without `__init__`
            if self.asked_at is None:
                self.asked_at = time.monotonic()


_in_use: weakref.WeakSet[Keeping] = weakref.WeakSet()  # those of the process
_lock = threading.Lock()


def why_not_kept(root: FilePath, began: float) -> str | None:
    """Return why what steps under a root follow from may be deleted; None if it is kept.

    Args:
        root: of the steps.
        began: when the save began that asks, by `time.monotonic`. Policies that were not asked
            before do not count: nobody may have given them to a manager.
    """
    known = known_roots()
    with _lock:
        asked = [each for each in _in_use if each.asked_at is not None and each.asked_at <= began]
        named = [each.root for each in asked if each.is_named and each.root is not None]
        unnamed = [each for each in asked if not each.is_named]
        if any(_is_same(each, root) for each in named):
            return None
        others = [each for each in known if not _is_same(each, root)]
        fitting = [each for each in unnamed if each.root is None or _is_same(each.root, root)]
        if fitting and all(any(_is_same(each, other) for each in named) for other in others):
            for each in fitting:  # they serve no other, even once the handlers of this are gone
                each.root = root
            return None
        waiting = [each.root for each in _in_use if each not in asked]
    if any(each is None or _is_same(each, root) for each in waiting):
        return NOT_YET_ASKED
    if not unnamed:
        return "no KeepBases keeps what they follow from"
    return "KeepBases needs its `directory` where a process saves to several roots"


def _is_same(one: FilePath, other: FilePath) -> bool:
    return one == other or os.path.realpath(one) == os.path.realpath(other)
