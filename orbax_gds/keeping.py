"""Whether a policy of this process keeps the steps under a root that later ones follow from.

Only then may a step need others: else whoever deletes old steps would take what it needs.
"""

import os
import threading
import weakref
from pathlib import Path as FilePath

from orbax_gds.known_steps import known_roots

__all__ = ["Keeping", "why_not_kept"]


class Keeping:
    """Says that steps are kept, for as long as somebody holds this object.

    Args:
        directory: the root; None for that of the handlers of this process, if there is only one.

    Attributes:
        root: the directory; with None, once steps under a root rely on this, that root.
        is_named: whether there was a directory.
    """

    def __init__(self, directory: str | os.PathLike[str] | None) -> None:
        self.root = None if directory is None else FilePath(directory).absolute()
        self.is_named = directory is not None
        with _lock:
            _in_use.add(self)


_in_use: weakref.WeakSet[Keeping] = weakref.WeakSet()  # those of the process
_lock = threading.Lock()


def why_not_kept(root: FilePath) -> str | None:
    """Return why what steps under a root follow from may be deleted; None if it is kept."""
    known = known_roots()
    with _lock:
        named = [each.root for each in _in_use if each.is_named and each.root is not None]
        unnamed = [each for each in _in_use if not each.is_named]
        if any(_is_same(each, root) for each in named):
            return None
        if not unnamed:
            return "no KeepBases keeps what they follow from"
        others = [each for each in known if not _is_same(each, root)]
        fitting = [each for each in unnamed if each.root is None or _is_same(each.root, root)]
        if fitting and all(any(_is_same(each, other) for each in named) for other in others):
            for each in fitting:  # they serve no other, even once the handlers of this are gone
                each.root = root
            return None
    return "KeepBases needs its `directory` where a process saves to several roots"


def _is_same(one: FilePath, other: FilePath) -> bool:
    return one == other or os.path.realpath(one) == os.path.realpath(other)
