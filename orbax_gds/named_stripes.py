"""Which stripes the items under a root name: their own, and those of earlier steps."""

import contextlib
from collections.abc import Iterator
from pathlib import Path as FilePath

import msgspec

from orbax_gds.errors import NotFound
from orbax_gds.final_names import TEMPORARY, step_number
from orbax_gds.manifest import MANIFEST_NAME, decode_pending
from orbax_gds.stripe_specs import StripeSpec, chain_of

__all__ = ["NamedStripes", "named_stripes", "published_items"]


class NamedStripes(msgspec.Struct, frozen=True, kw_only=True):
    """What the manifest of an item says of stripes; its leaves are not looked at.

    Attributes:
        item: its directory.
        own: entries of its own stripes.
        bases: entries of those of earlier steps.
        linked: whether these lie in the item.
    """

    item: FilePath
    own: tuple[StripeSpec, ...]
    bases: tuple[StripeSpec, ...] = ()
    linked: bool = True

    @property
    def files(self) -> dict[str, FilePath]:
        """Where the stripes lie that it names, by uuid, if they lie in the item."""
        return {spec.uuid: self.item / spec.file for spec in (*self.bases, *self.own)}

    @property
    def from_others(self) -> frozenset[str]:
        """Uuids of the stripes that it needs and has no link to."""
        return frozenset() if self.linked else frozenset(spec.uuid for spec in self.bases)

    @property
    def chain_length(self) -> int:
        """How many stripes of earlier steps the longest chain has; 0 of a full item."""
        bases = {spec.uuid: spec for spec in self.bases}
        return max((len(chain_of(spec, bases)) for spec in self.own), default=0)


def named_stripes(item: FilePath) -> NamedStripes:
    """Read what a published item names.

    Raises:
        NotFound: it is not published.
        Corrupt, Unsupported: its manifest is damaged, or a newer version wrote it.
        OSError: the system refused.
    """
    path = item / MANIFEST_NAME
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as err:
        raise NotFound(err.errno, f"{item} holds no published item", str(path)) from err
    manifest = decode_pending(data, str(path))
    base = manifest.base
    return NamedStripes(
        item=item,
        own=manifest.stripes,
        bases=base.stripes if base else (),
        linked=base.linked if base else True,
    )


def published_items(root: FilePath) -> Iterator[tuple[int, FilePath]]:
    """Yield the published items of the steps under a root, each with the number of its step.

    Raises:
        OSError: a directory cannot be listed.
    """
    for step in root.iterdir():
        number = None if TEMPORARY in step.name else step_number(step.name)
        if number is None or not step.is_dir():
            continue
        with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
            yield from ((number, item) for item in _published_in(step))


def _published_in(step: FilePath) -> list[FilePath]:
    children = [child for child in step.iterdir() if TEMPORARY not in child.name]
    return [item for item in (step, *children) if (item / MANIFEST_NAME).is_file()]
