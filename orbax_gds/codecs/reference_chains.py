"""Chains of stripes in plain NumPy, written from FORMAT §3.5 and nothing else."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orbax_gds.codecs.reference_frame import DELTA_FLAG, Base, FrameHeader
from orbax_gds.codecs.reference_stripe import Stripe, open_stripe, read_chunk
from orbax_gds.errors import Corrupt, NotFound

Entry = dict[str, Any]
Chain = Sequence[tuple[Path, Stripe]]
"""A stripe and those that it follows from, the newest first."""


def check_bases(manifest: dict[str, Any], where: str) -> None:
    """Check what a manifest says of bases, its stripes having been checked each by itself.

    Args:
        manifest: It; the entries of `base.stripes` were not looked at.
        where: Its path, for messages.

    Raises:
        Corrupt: A chain does not end, or they do not fit together.
    """
    base, own = manifest.get("base"), manifest["stripes"]
    if (base is not None) != ("delta" in manifest["requires"]):
        raise Corrupt(f"{where}: base is {base!r}, requires is {manifest['requires']}.")
    if base is None:
        if any(entry.get("base") is not None for entry in own):
            raise Corrupt(f"{where}: a stripe has a base, the item has none.")
        return
    if type(base) is not dict or type(base.get("linked")) is not bool:
        raise Corrupt(f"{where}: base {base!r}.")
    known = {entry["uuid"]: entry for entry in base["stripes"]}
    named = [entry["uuid"] for entry in (*own, *base["stripes"])]
    if len(set(named)) != len(named) or any(
        entry["file"] != f"base/{uuid}.ogds" for uuid, entry in known.items()
    ):
        raise Corrupt(f"{where}: a stripe of {named} is given twice or has another name.")
    reached = set[str]()
    for entry in own:
        chain = list(chain_of(entry, known, where))
        reached |= {link["uuid"] for link in chain}
        if any(link["layout_crc32c"] != entry["layout_crc32c"] for link in chain):
            raise Corrupt(f"{where}: the chain of stripe {entry['uuid']} has several layouts.")
    if reached != known.keys() or not reached:
        raise Corrupt(f"{where}: chains reach {sorted(reached)} of {sorted(known)}.")


def chain_of(entry: Entry, known: dict[str, Entry], where: str) -> Iterator[Entry]:
    """Yield the entries of the stripes that one follows from, the next first.

    Raises:
        Corrupt: One is not known, or the chain does not end.
    """
    for _ in range(len(known) + 1):
        uuid = entry.get("base")
        if uuid is None:
            return
        if type(uuid) is not str or uuid not in known:
            raise Corrupt(f"{where}: base {uuid!r} of stripe {entry['uuid']} is not listed.")
        entry = known[uuid]
        yield entry
    raise Corrupt(f"{where}: the chain of stripe {entry['uuid']} does not end.")


def base_path(item: Path, entry: Entry, linked: bool, manifests: dict[Path, Any]) -> Path:
    """Return where the file of a base lies.

    Args:
        item: Directory of the item that needs it.
        entry: Of the base.
        linked: What the manifest says.
        manifests: Those of the items of the same name in the sibling steps, and of those beside
            the item, by directory.

    Raises:
        NotFound: Nowhere.
    """
    uuid = entry["uuid"]
    found = [item / entry["file"]]
    for directory, manifest in manifests.items() if not linked else ():
        others = [*manifest["stripes"], *(manifest.get("base") or {"stripes": []})["stripes"]]
        found += [directory / other["file"] for other in others if other["uuid"] == uuid]
    for path in found:
        if path.is_file():
            return path
    raise NotFound(f"{item}: the base {uuid} is missing; it was looked for at {found}.")


def read_words(chain: Chain, chunk: int) -> tuple[FrameHeader, np.ndarray]:
    """Read and decode one chunk of the first stripe of a chain.

    Raises:
        Corrupt: A frame is damaged, or a base is not what a delta was coded against.
    """
    n_links = 1
    while chain[n_links - 1][1].records[chunk].flags & DELTA_FLAG:
        if n_links == len(chain):
            raise Corrupt(f"{chain[-1][0]}: chunk {chunk} is a delta of a stripe without a base.")
        n_links += 1
    base: Base | None = None
    dtypes = {stripe.records[chunk].dtype for _, stripe in chain[:n_links]}
    if len(dtypes) > 1:
        raise Corrupt(f"{chain[0][0]}: chunk {chunk} has the dtypes {dtypes} in its chain.")
    for path, stripe in reversed(chain[1:n_links]):
        header, words = _read(path, stripe, chunk, base)
        base = Base(words=words, payload_crc32c=header.payload_crc32c)
    return _read(*chain[0], chunk, base)


def _read(
    path: Path, stripe: Stripe, chunk: int, base: Base | None
) -> tuple[FrameHeader, np.ndarray]:
    with open_stripe(path) as file:
        return read_chunk(file, stripe, chunk, str(path), base)
