"""What a manifest says of the stripes that an item needs, its own and those of earlier steps.

FORMAT §3.3 and §3.5.
"""

import re
from collections.abc import Mapping, Sequence

import msgspec

from orbax_gds.errors import Corrupt

DELTA = "delta"  # the feature by which frames follow from those of earlier steps. FORMAT §3.5
BASE_NAME = "base"  # of the directory of an item that holds the stripes of earlier steps

_UUID = re.compile(r"[0-9a-f]{32}")
_CRC = re.compile(r"[0-9a-f]{8}")


class StripeSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One stripe as the manifest describes it. FORMAT §3.3.

    `base` is the uuid of the stripe that its deltas follow from, if it has any. FORMAT §3.5.
    """

    file: str
    uuid: str
    bytes: int
    layout_crc32c: str
    index_crc32c: str
    base: str | None = None


class BaseSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The stripes of earlier steps that an item needs, and whether they lie in it. FORMAT §3.5."""

    stripes: tuple[StripeSpec, ...]
    linked: bool


def base_file(uuid: str) -> str:
    """Return the name, in an item, of the stripe of an earlier step. FORMAT §3.5."""
    return f"{BASE_NAME}/{uuid}.ogds"


def by_uuid(base: BaseSpec | None) -> dict[str, StripeSpec]:
    """Return the entries of the stripes of earlier steps."""
    return {entry.uuid: entry for entry in base.stripes} if base else {}


def chain_of(spec: StripeSpec, bases: Mapping[str, StripeSpec]) -> tuple[StripeSpec, ...]:
    """Return the entries of the stripes that one follows from, the oldest first, without its own.

    Args:
        spec: the entry of the one.
        bases: those of all stripes of earlier steps, by uuid. If they were not checked, and the
            chain breaks off or does not end, each is returned once at most.
    """
    chain: list[StripeSpec] = []
    while spec.base is not None and len(chain) < len(bases) and spec.base in bases:
        spec = bases[spec.base]
        chain.append(spec)
    return tuple(reversed(chain))


def check_described(stripe: StripeSpec, where: str) -> None:
    """Check the fields of an entry but for its file and its base.

    Raises:
        Corrupt: one is malformed.
    """
    if not (
        _UUID.fullmatch(stripe.uuid)
        and _CRC.fullmatch(stripe.layout_crc32c)
        and _CRC.fullmatch(stripe.index_crc32c)
        and stripe.bytes > 0
    ):
        raise Corrupt(f"{where}: the entry of stripe {stripe.file!r} is malformed.")


def check_chains(
    stripes: Sequence[StripeSpec], base: BaseSpec | None, requires: Sequence[str], where: str
) -> None:
    """Check that every chain ends, and that the item names its stripes and no others.

    Args:
        stripes: those of the item itself.
        base: what the manifest says of others.
        requires: of the manifest.
        where: its path, for messages.

    Raises:
        Corrupt: they do not fit together.
    """
    given = base.stripes if base else ()
    entries = by_uuid(base)
    for entry in given:
        check_described(entry, where)
        if entry.file != base_file(entry.uuid):
            raise Corrupt(f"{where}: the base {entry.uuid} is called {entry.file!r}.")
    if len(entries) != len(given) or any(stripe.uuid in entries for stripe in stripes):
        raise Corrupt(f"{where}: a stripe is listed twice, as a base.")
    has_deltas = any(stripe.base is not None for stripe in stripes)
    if (base is not None, DELTA in requires) != (has_deltas, has_deltas):
        raise Corrupt(f"{where}: stripes, base and requires differ on whether there are deltas.")
    reached: set[str] = set()
    for stripe in stripes:
        _follow(stripe, entries, reached, where)
    if unused := entries.keys() - reached:
        raise Corrupt(f"{where}: no chain reaches the base {min(unused)}.")


def _follow(
    stripe: StripeSpec, entries: Mapping[str, StripeSpec], reached: set[str], where: str
) -> None:
    """Add the chain of a stripe to those that were reached, up to where it joins one of them."""
    chain: set[str] = set()
    while stripe.base is not None and stripe.uuid not in reached:
        base = entries.get(stripe.base)
        if base is None:
            raise Corrupt(f"{where}: the base {stripe.base} of {stripe.uuid} is not listed.")
        if base.layout_crc32c != stripe.layout_crc32c:
            raise Corrupt(f"{where}: {stripe.uuid} and its base {base.uuid} differ in layout.")
        if base.uuid in chain:
            raise Corrupt(f"{where}: the base {base.uuid} follows from itself.")
        chain.add(base.uuid)
        stripe = base
    reached |= chain
