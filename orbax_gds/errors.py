"""The errors this package raises, each also under the builtin that users already catch.

A message says what happened and where, what was expected and found, and what to do next.
"""

from collections.abc import Iterable


class OgdsError(Exception):
    """Base of every error that orbax_gds raises on purpose."""


class Corrupt(OgdsError, ValueError):
    """Stored bytes are not what was written: a checksum, magic, length or count is wrong."""


class Truncated(Corrupt):
    """A file or a coded stream ends before its content does."""


class Unsupported(OgdsError, ValueError):
    """The request or the stored data needs something this version does not have."""


class Mismatch(OgdsError, ValueError):
    """What was asked for does not fit what is stored: path, shape, dtype or sharding."""


class NotFound(OgdsError, FileNotFoundError):
    """There is no published item, leaf or file of that name."""


class Exists(OgdsError, FileExistsError):
    """An item is already published where one was to be saved."""


class IoError(OgdsError, OSError):
    """The operating system refused a read, write, sync or rename."""


class CommitError(OgdsError, RuntimeError):
    """A save could not be committed; the last committed step is untouched.

    Attributes:
        missing: numbers of the processes that were not there when the time was up; empty where it
            failed for another reason.
    """

    def __init__(self, text: str = "", missing: Iterable[int] = ()) -> None:
        super().__init__(text)
        self.missing = tuple(missing)
