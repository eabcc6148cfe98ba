"""The chains of stripes that deltas follow from: which, where they lie, and what a chunk needs.

FORMAT §3.5. A chain is named from its oldest stripe on, which is full.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path as FilePath
from typing import TypeAlias

import numpy as np

from orbax_gds import stripe as stripes
from orbax_gds.codecs import codec_by_name
from orbax_gds.drivers import Driver
from orbax_gds.errors import Corrupt, NotFound, OgdsError
from orbax_gds.final_names import TEMPORARY
from orbax_gds.manifest import MANIFEST_NAME, Manifest, StripeSpec, decode_pending
from orbax_gds.stripe_file import StripeFile, open_stripe
from orbax_gds.stripe_specs import base_file, by_uuid, chain_of

RunLinks: TypeAlias = tuple[Sequence[tuple[int, np.ndarray]], np.ndarray | None]
"""What the chunks of a run are coded against, from the oldest step on, as `_native.RunWriter` takes
it: of every link the descriptor of an open stripe and uint8[chunks of the run, 32], records of its
index, zeros for a chunk that needs no frame of it; and bool[chunks of the run], which of them have
the base only where their words are its; None for none. Without a base there are no links.
"""

_UNCHANGED_BYTES = 6  # required: FORMAT §7.11, the payload where every word is the base's


def find_stripes(item: FilePath, uuids: Iterable[str], linked: bool) -> dict[str, FilePath]:
    """Return where stripes of earlier steps lie.

    Args:
        item: directory of the item that needs them.
        uuids: theirs.
        linked: whether the manifest says that they lie in the item.

    Returns:
        By uuid a file in the item or, if that is not linked, in the item of the same name of
        another step, or beside it where items are steps. Whether it is the right one is not
        checked.

    Raises:
        NotFound: one is missing; its uuid is named.
    """
    uuids = list(uuids)
    found = stripes_there(item, uuids, linked)
    for uuid in uuids:
        if uuid not in found:
            raise missing_stripe(item, uuid, linked)
    return found


def stripes_there(item: FilePath, uuids: Iterable[str], linked: bool) -> dict[str, FilePath]:
    """Return where those lie that are not missing. Args: as `find_stripes`."""
    own = {uuid: item / base_file(uuid) for uuid in uuids}
    found = {uuid: path for uuid, path in own.items() if path.exists()}
    missing = own.keys() - found.keys()
    return found | _of_siblings(item, missing) if missing and not linked else found


def missing_stripe(item: FilePath, uuid: str, linked: bool) -> NotFound:
    """Return the error that names a missing stripe. Args: as `find_stripes`."""
    also = "" if linked else f", nor does {item.name!r} of another step of the root have it"
    return NotFound(
        f"{item} follows from the stripe {uuid} of an earlier step, which is missing: "
        f"there is no {item / base_file(uuid)}{also}. Put the step that wrote it back from a copy, "
        "or restore another step. KeepBases keeps the steps that kept ones follow from."
    )


def _of_siblings(item: FilePath, uuids: Iterable[str]) -> dict[str, FilePath]:
    """Return those of some stripes, by uuid, that items of other steps have."""
    found: dict[str, FilePath] = {}
    wanted = set(uuids)
    for other in _siblings(item):
        with contextlib.suppress(OSError, OgdsError):  # what cannot be read has no stripe for us
            path = other / MANIFEST_NAME
            manifest = decode_pending(path.read_bytes(), str(path))
            bases = manifest.base.stripes if manifest.base else ()
            files = {spec.uuid: other / base_file(spec.uuid) for spec in bases}
            files |= {spec.uuid: other / spec.file for spec in manifest.stripes}
            has = {uuid for uuid in wanted & files.keys() if files[uuid].exists()}
            found.update({uuid: files[uuid] for uuid in has})
            wanted -= has
        if not wanted:
            break
    return found


def _siblings(item: FilePath) -> Iterator[FilePath]:
    """Yield the items of the same name in the other steps, that of the last step first; then what
    lies beside the item, which may be a step itself.
    """
    item = FilePath(os.path.abspath(item))  # "." has no name
    yield from (step / item.name for step in _beside(item.parent))
    yield from _beside(item)


def _beside(path: FilePath) -> list[FilePath]:
    with contextlib.suppress(OSError):
        others = [each for each in path.parent.iterdir() if TEMPORARY not in each.name]
        return [each for each in sorted(others, reverse=True) if each != path]
    return []


def base_places(item: FilePath, manifest: Manifest) -> dict[str, FilePath]:
    """Return where all bases of an item lie, by uuid: other steps are looked through once.

    Raises:
        NotFound: one is missing; its uuid is named.
    """
    if manifest.base is None:
        return {}
    uuids = [entry.uuid for entry in manifest.base.stripes]
    return find_stripes(item, uuids, manifest.base.linked)


def open_chain(
    driver: Driver, places: Mapping[str, FilePath], manifest: Manifest, spec: StripeSpec
) -> tuple[StripeFile, ...]:
    """Open the bases of a stripe, the oldest first.

    Args:
        driver: how to read them.
        places: where they lie, of `base_places`.
        manifest: of the item.
        spec: entry of the stripe.

    Returns:
        Them, each checked against its entry; () of a full stripe. Close their files in the end.

    Raises:
        Corrupt, Unsupported, IoError: as `open_stripe`.
    """
    chain: list[StripeFile] = []
    with contextlib.ExitStack() as closing:
        for entry in chain_of(spec, by_uuid(manifest.base)):
            chain.append(open_stripe(driver, places[entry.uuid], entry))
            closing.callback(chain[-1].file.close)
        closing.pop_all()
    return tuple(chain)


def links_of(
    own_records: np.ndarray, chain: Sequence[StripeFile], chunks: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Return which frames of its chain some chunks of a stripe need.

    Args:
        own_records: RECORD[n_chunks], the index of the stripe.
        chain: its bases, the oldest first.
        chunks: int[k], numbers of the chunks.

    Returns:
        For every link, the oldest first, RECORD[k]: the chunks' rows of its index; all zero where
        the frame of a newer link, or the chunk's own, is no delta.

    Raises:
        Corrupt: a link has another number of chunks.
    """
    needed = is_delta(own_records[chunks])
    links = []
    for link in reversed(chain):
        if len(link.records) != len(own_records):
            raise Corrupt(
                f"{link.path} has {len(link.records)} chunks, but a stripe that follows from it "
                f"has {len(own_records)}. Restore another step."
            )
        rows = link.records[chunks]
        rows[~needed] = np.zeros(1, stripes.RECORD)[0]
        needed = is_delta(rows)
        links.append(rows)
    return tuple(reversed(links))


def is_delta(records: np.ndarray) -> np.ndarray:
    """Return which frames need that of a base: bool[k] for RECORD[k]."""
    return records["flags"] & stripes.DELTA_FLAG != 0


def is_unchanged(records: np.ndarray) -> np.ndarray:
    """Return which frames say that every word is that of the base: bool[k] for RECORD[k]."""
    same = is_delta(records) & (records["codec"] == codec_by_name("delta").id)
    return same & (records["payload_bytes"] == _UNCHANGED_BYTES)
