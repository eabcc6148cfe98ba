"""Which steps a run keeps: as the user's policy says, and those that kept steps follow from."""

import dataclasses
import logging
import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path as FilePath
from typing import Any, Protocol

from orbax_gds.errors import Corrupt, NotFound, Unsupported
from orbax_gds.final_names import COMMITTED
from orbax_gds.keeping import Keeping
from orbax_gds.known_steps import Noted, known_roots, mark_of
from orbax_gds.named_stripes import NamedStripes, named_stripes, published_items

__all__ = ["KeepBases"]

logger = logging.getLogger(__name__)


class _Policy(Protocol):
    """Orbax's PreservationPolicy."""

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]: ...


@dataclasses.dataclass
class KeepBases:
    """A preservation policy for Orbax that never deletes what a kept step follows from.

    Where hard links work, steps are self-contained and this is not needed. Elsewhere a step that
    is a delta needs the stripes of earlier ones: those steps stay as long as one that follows from
    them does. The step committed last, and the one restored last, stay until the next save, as it
    may be coded against them. It reads manifests alone. Without this policy steps are full there,
    and so is the first of each process: only after its first save does a manager ask its policy,
    and one that no manager asks keeps nothing.

    Args:
        inner: what else to keep, such as `ocp.checkpoint_managers.LatestN(3)`.
        directory: of the manager; None takes all roots that handlers of this process save to. In a
            process that saves to several, steps are full without it where links are impossible.

    Example:
        >>> policy = KeepBases(ocp.checkpoint_managers.LatestN(3))
        >>> options = ocp.CheckpointManagerOptions(preservation_policy=policy)
    """

    inner: _Policy
    directory: str | os.PathLike[str] | None = None
    _known: dict[FilePath, tuple[Any, NamedStripes]] = dataclasses.field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _keeping: Keeping = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._keeping = Keeping(self.directory)

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """Return for each checkpoint, as Orbax lists them, whether it stays."""
        self._keeping.ask()
        kept = [bool(keep) for keep in self.inner.should_preserve(checkpoints, context=context)]
        if all(kept):
            return kept
        steps = {info.step for info, keep in zip(checkpoints, kept, strict=True) if keep}
        staying = set(steps)
        roots: list[list[tuple[int, NamedStripes]]] = []
        for root, noted in self._roots().items():
            try:
                roots.append(self._published(root))
            except (OSError, Unsupported) as err:
                if isinstance(err, FileNotFoundError):
                    continue  # the root is not there yet
                logger.warning("All steps under %s are kept: %s", root, err)
                return [True] * len(kept)
            staying |= _next_bases(root, roots[-1], steps, noted)
        _with_bases(staying, roots)
        return [info.step in staying for info in checkpoints]

    def _roots(self) -> dict[FilePath, list[list[Noted]]]:
        """Return roots, and what was saved or restored last under each."""
        roots = known_roots()
        if self.directory is None:
            return roots
        own = FilePath(self.directory).absolute()
        return {own: [noted for lists in roots.values() for noted in lists]}

    def _published(self, root: FilePath) -> list[tuple[int, NamedStripes]]:
        """Return what the items of the steps under a root name, by the number of the step."""
        found = [
            (number, named)
            for number, item in published_items(root)
            if (named := self._named(item)) is not None
        ]
        there = {named.item for _, named in found}
        for item in [each for each in self._known if root in each.parents and each not in there]:
            del self._known[item]
        return found

    def _named(self, item: FilePath) -> NamedStripes | None:
        """Return what an item names; None if it is damaged, so that nothing of it can be read."""
        mark = mark_of(item)
        known = self._known.get(item)
        if known is not None and known[0] == mark:
            return known[1]
        try:
            named = named_stripes(item)
        except (Corrupt, NotFound):
            return None
        self._known[item] = mark, named
        return named


def _next_bases(
    root: FilePath,
    found: Sequence[tuple[int, NamedStripes]],
    kept: Collection[int],
    noted: Iterable[Sequence[Noted]],
) -> set[int]:
    """Return the steps of a root that those which are being saved may follow from."""
    numbers = {number for number, _ in found}
    marked = [each for each in found if _is_marked(root, each[1].item)]
    last = {_first_there(each, those) for each in noted for those in (found, marked)}
    bases: set[int] = set()
    for step in set(kept) - numbers:  # being saved just now, against one of these
        bases |= _last_of_each_item(root, step, found)
        bases |= _last_of_each_item(root, step, marked)  # which Orbax wrote in place
        bases.update(number for number, named in found if named.item in last)
    return bases


def _with_bases(staying: set[int], roots: Sequence[Sequence[tuple[int, NamedStripes]]]) -> None:
    """Add to the numbers of steps that stay those that they follow from, under every root.

    Whose steps are asked about is not known: where one stays because of another root's of the same
    number, what it follows from stays, too.
    """
    n_before = -1
    while len(staying) != n_before:
        n_before = len(staying)
        for found in roots:
            uuids = {u for number, named in found if number in staying for u in named.from_others}
            staying |= {number for number, named in found if uuids & _held(named)}


def _last_of_each_item(
    root: FilePath, step: int, found: Iterable[tuple[int, NamedStripes]]
) -> set[int]:
    """Return the step before one that has each item: some are saved more rarely than others."""
    last: dict[str | None, int] = {}
    for number, named in found:
        name = None if named.item.parent == root else named.item.name
        if number < step:
            last[name] = max(number, last.get(name, number))
    return set(last.values())


def _is_marked(root: FilePath, item: FilePath) -> bool:
    return ((item if item.parent == root else item.parent) / COMMITTED).is_file()


def _first_there(
    noted: Iterable[Noted], found: Sequence[tuple[int, NamedStripes]]
) -> FilePath | None:
    """Return the item that a save would be coded against: the first that is as it was noted."""
    places = {named.item.parts[-2:]: named for _, named in found}
    for each in noted:
        named = places.get(each.path.parts[-2:])
        if named is not None and (
            each.mark == mark_of(named.item)
            if each.uuid is None
            else any(spec.uuid == each.uuid for spec in named.own)
        ):
            return named.item
    return None


def _held(named: NamedStripes) -> set[str]:
    """Return the uuids of the stripes that an item names and has."""
    return {uuid for uuid, path in named.files.items() if path.exists()}
