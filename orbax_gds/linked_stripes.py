"""Stripes of earlier steps in an item: hard links, and what its manifest says of them.

FORMAT §3.5, §8.1.
"""

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path as FilePath

import msgspec

from orbax_gds.chains import find_stripes
from orbax_gds.errors import CommitError, NotFound
from orbax_gds.final_names import final_path
from orbax_gds.hard_links import NO_LINKS
from orbax_gds.stripe_specs import BASE_NAME, BaseSpec, StripeSpec, base_file

__all__ = ["keep_linked", "link_stripes", "unlink_stripes", "with_bases"]


def link_stripes(directory: FilePath, places: Mapping[str, FilePath]) -> str | None:
    """Link stripes of earlier steps into an item, all or none; the names are not synced.

    Args:
        directory: of the item.
        places: where they lie, by uuid.

    Returns:
        Why that is impossible here; None if it is done.

    Raises:
        OSError: one is missing, or the system refused for another reason.
    """
    try:
        os.makedirs(directory / BASE_NAME, exist_ok=True)
        for uuid, path in places.items():
            with contextlib.suppress(FileExistsError):  # of an earlier attempt, and checked later
                # of a symbolic link the file, as a link to it would be gone with its target
                os.link(os.path.realpath(path), directory / base_file(uuid))
    except OSError as err:
        unlink_stripes(directory, places)
        if err.errno in NO_LINKS:
            return f"stripes of earlier steps cannot be linked: {err.strerror}"
        raise
    return None


def unlink_stripes(directory: FilePath, uuids: Iterable[str]) -> None:
    """Remove stripes of earlier steps from an item, but not `base/`: others may link into it."""
    for uuid in uuids:
        with contextlib.suppress(OSError):  # no manifest names it, so no reader looks at it
            os.unlink(directory / base_file(uuid))


def with_bases(
    directory: FilePath, stripes: Sequence[StripeSpec], bases: Sequence[BaseSpec | None]
) -> tuple[tuple[StripeSpec, ...], BaseSpec | None]:
    """Return what a manifest says of stripes and of those that they need, which are there.

    Args:
        directory: of the item that is about to be published.
        stripes: its own.
        bases: what the process of each said that it needs, the oldest first.

    Raises:
        CommitError: one is missing, or has another length.
    """
    entries: dict[str, StripeSpec] = {}
    own: list[StripeSpec] = []
    for stripe, base in zip(stripes, bases, strict=True):
        if base is not None:
            entries.update({entry.uuid: entry for entry in base.stripes})
            stripe = msgspec.structs.replace(stripe, base=base.stripes[-1].uuid)
        own.append(stripe)
    if not entries:
        return tuple(own), None
    linked = all(base.linked for base in bases if base is not None)
    _check_there(directory, entries, linked)
    return tuple(own), BaseSpec(stripes=tuple(entries.values()), linked=linked)


def _check_there(directory: FilePath, entries: Mapping[str, StripeSpec], linked: bool) -> None:
    here = {uuid for uuid in entries if (directory / base_file(uuid)).exists()}
    places = {uuid: directory / base_file(uuid) for uuid in (entries if linked else here)}
    try:
        if missing := entries.keys() - places.keys():
            places |= find_stripes(final_path(directory.absolute()), sorted(missing), False)
        sizes = {uuid: os.stat(path).st_size for uuid, path in places.items()}
    except (NotFound, OSError) as err:
        raise CommitError(
            f"{directory} is not published: a stripe of an earlier step that its deltas follow "
            f"from is gone ({err}). The last committed step is untouched; save again."
        ) from err
    for uuid, n_bytes in sizes.items():
        if n_bytes != entries[uuid].bytes:
            raise CommitError(
                f"{directory} is not published: the stripe {uuid} of an earlier step has "
                f"{n_bytes} bytes, not {entries[uuid].bytes}: it was changed. Save again."
            )


def keep_linked(directory: FilePath, base: BaseSpec | None) -> None:
    """Remove from `base/` of an item what no manifest names: links of attempts that failed."""
    kept = {base_file(entry.uuid) for entry in base.stripes} if base is not None else set()
    with contextlib.suppress(OSError):  # there is no base/, or what stays harms nobody
        for path in (directory / BASE_NAME).iterdir():
            if f"{BASE_NAME}/{path.name}" not in kept:
                path.unlink()
    with contextlib.suppress(OSError):  # it is not empty, mostly
        os.rmdir(directory / BASE_NAME)
