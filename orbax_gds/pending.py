"""What a process says of its part of a save until the item is published. FORMAT §8.1.

Every process plans its part of a tree without talking to the others. What they leave beside their
stripes shows that they were given the same tree, and that the stripes are of one save.
"""

import re
from collections.abc import Iterable
from pathlib import Path as FilePath

import msgspec

from orbax_gds import stripe as stripes
from orbax_gds.errors import CommitError
from orbax_gds.stripe_specs import BaseSpec

SUFFIX = ".pending"
FAILED_NAME = "failed" + SUFFIX

_STRIPE_SUFFIX = ".ogds"
_MOST_BYTES = 1 << 20  # chosen: far above what a process has to say, also of thousands of bases
_PROCESS = re.compile(r"p([0-9]+)")


class PendingStripe(msgspec.Struct, frozen=True, kw_only=True):
    """What a process leaves beside its sealed stripe.

    Attributes:
        process: its number.
        uuid: of the stripe.
        digest: of what all processes must agree on.
        coding: what `Options.codec` came to.
        writer: which version of this package the process runs.
        base: the stripes that this one needs, the oldest first, and whether they lie in the item;
            None of a full one.
    """

    process: int
    uuid: str
    digest: str
    coding: str
    writer: str = ""
    base: BaseSpec | None = None


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """What a process that failed leaves for those that wait for it."""

    process: int
    error: str


def pending_name(stripe: str) -> str:
    """Return the name of the file that a process leaves beside this stripe."""
    return stripe.removesuffix(_STRIPE_SUFFIX) + SUFFIX


def missing_processes(directory: FilePath, n_processes: int) -> list[int]:
    """Return the processes that have not sealed a stripe in a directory."""
    return [
        process
        for process in range(n_processes)
        if not (directory / pending_name(stripes.file_name(process))).exists()
    ]


def read_failure(directory: FilePath) -> Failure | None:
    """Return what a process that failed has left; None if there is nothing that can be read."""
    try:
        return msgspec.json.decode((directory / FAILED_NAME).read_bytes(), type=Failure)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def agreed(directory: FilePath, sealed: Iterable[tuple[str, str]]) -> list[PendingStripe]:
    """Return what the processes say of their stripes, having seen that it fits together.

    Args:
        directory: the item.
        sealed: file and uuid of each stripe, that of process 0 first.

    Raises:
        CommitError: a process has not said anything, speaks of another stripe, or was given another
            tree than process 0; it is named.
    """
    said = [_read(directory, file, uuid) for file, uuid in sealed]
    first = said[0]
    differing = [each.process for each in said if each.digest != first.digest]
    if differing:
        others = [each for each in said if each.writer != first.writer]
        if others:
            raise CommitError(
                f"{directory} is not published: {processes_text(each.process for each in others)} "
                f"saved by another version than process {first.process}: {others[0].writer}, not "
                f"{first.writer}. All processes must run the same version of orbax_gds."
            )
        raise CommitError(
            f"The tree that {processes_text(differing)} saved into {directory} differs from that "
            f"of process {first.process} in a path, or in shape, dtype or sharding of a jax array; "
            "or chunk_bytes does. The item is not published. All processes must save the same tree "
            "with the same options."
        )
    return said


def _read(directory: FilePath, file: str, uuid: str) -> PendingStripe:
    path = directory / pending_name(file)
    try:
        with path.open("rb") as opened:
            said = msgspec.json.decode(opened.read(_MOST_BYTES), type=PendingStripe)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as err:
        raise CommitError(
            f"The stripe {directory / file} of {process_of(file)} is not sealed: {path.name} is "
            f"missing or not whole ({err}). The item is not published. The process failed or is "
            "still writing; save again."
        ) from err
    if said.uuid != uuid:
        raise CommitError(
            f"The stripe {directory / file} of {process_of(file)} and {path.name} belong to two "
            "saves. The item is not published; save again."
        )
    return said


def process_of(file: str) -> str:
    """Return the process that writes a stripe, as people read it."""
    match = _PROCESS.match(file)
    return processes_text([int(match[1])]) if match else "an unknown process"


def processes_text(numbers: Iterable[int]) -> str:
    """Return processes as people read them.

    Example:
        >>> processes_text([1]), processes_text([1, 3])
        ('process 1', 'processes 1, 3')
    """
    texts = [str(number) for number in numbers]
    return ("process " if len(texts) == 1 else "processes ") + ", ".join(texts)
