"""The step that a save is coded against: found, checked and linked into the item. FORMAT §3.5.

It is looked for in the background of a save, by each process for its own stripe. What the step
needs of earlier ones is linked before a word is coded: from then on whoever deletes a step takes
nothing from this one. A wrong guess costs bytes on the disk, never wrong words.
"""

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path as FilePath

import msgspec
import numpy as np

from orbax_gds import manifest as manifests
from orbax_gds import stripe as stripes
from orbax_gds.chains import RunLinks, find_stripes, links_of
from orbax_gds.delta import Chain, DeltaPolicy, Never, policy_text
from orbax_gds.drivers import Driver
from orbax_gds.errors import OgdsError
from orbax_gds.final_names import COMMITTED, TEMPORARY, final_path, is_in_place, step_number
from orbax_gds.keeping import NOT_YET_ASKED, why_not_kept
from orbax_gds.known_steps import KnownSteps, Place, mark_of, place_of
from orbax_gds.linked_stripes import link_stripes, unlink_stripes
from orbax_gds.options import Options
from orbax_gds.plan import Cut, Run
from orbax_gds.stripe_file import StripeFile, open_stripe
from orbax_gds.stripe_specs import (
    BaseSpec,
    StripeSpec,
    base_file,
    by_uuid,
    chain_of,
    check_chains,
    check_described,
)

__all__ = ["BaseStep", "find_base"]

logger = logging.getLogger(__name__)

_DIGITS = "0123456789"
# Chosen: a restore holds all frames of a chunk's chain at once, of at most 128 MiB and one more.
# Only long chains of chunks of many MiB come near that.
_MOST_BYTES = 128 << 20


class _FullStep(Exception):
    """Says why a step is full."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BaseStep:
    """An earlier step whose stripe of this process a save is coded against.

    Use as a context manager, which closes its files.

    Attributes:
        item: the step's item.
        directory: of the item that is saved.
        spec: how the manifest of that names the stripes of the chain.
        files: these, open, the oldest first; the base itself is the last.
        not_linked: why they do not lie in the item; None if they do.
        gains: bool[n_chunks], which chunks are coded against it, but for those that have not
            changed at all, which always are; None for all. Chains that are long in bytes end.
    """

    item: FilePath
    directory: FilePath
    spec: BaseSpec
    files: tuple[StripeFile, ...]
    not_linked: str | None
    gains: np.ndarray | None = None

    def __enter__(self) -> "BaseStep":
        return self

    def __exit__(self, *exc_info: object) -> None:
        for link in self.files:
            link.file.close()

    @property
    def uuid(self) -> str:
        """Of the stripe that the deltas follow from."""
        return self.files[-1].spec.uuid

    @property
    def uuids(self) -> list[str]:
        """Of all stripes of the chain, the oldest first."""
        return [link.spec.uuid for link in self.files]

    @functools.cached_property
    def _asked(self) -> np.ndarray:
        """Of every chunk a record that says that its frame needs all the links."""
        asked = np.zeros(len(self.files[-1].records), stripes.RECORD)
        asked["flags"] = stripes.DELTA_FLAG
        return asked

    @functools.cached_property
    def _links(self) -> tuple[list[tuple[int, np.ndarray]], np.ndarray]:
        """The frames from which the words of the base come, as `links_of` has them, of all chunks.

        Where they are not wanted, a chunk has its base only if it has not changed.
        """
        records = links_of(self._asked, self.files, np.arange(len(self._asked)))
        n_bytes = np.sum([rows["frame_bytes"] for rows in records], axis=0, dtype=np.int64)
        left_out = np.zeros(len(self._asked), bool) if self.gains is None else ~self.gains
        left_out |= n_bytes > _MOST_BYTES
        links: list[tuple[int, np.ndarray]] = []
        for link, rows in zip(self.files, records, strict=True):
            descriptor = link.file.descriptor
            assert descriptor is not None, "seen when it was opened"
            links.append((descriptor, _as_bytes(rows)))
        return links, left_out

    def links_of(self, run: Run) -> RunLinks:
        """Return what the chunks of a run are coded against."""
        first = int(run.chunks[0, 0])
        end = first + len(run.chunks)
        links, left_out = self._links
        return [(descriptor, rows[first:end]) for descriptor, rows in links], left_out[first:end]

    def withdraw(self) -> None:
        """Take the links out of the item again, as no frame needs them."""
        unlink_stripes(self.directory, self.uuids)


def _as_bytes(records: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(records).view(np.uint8).reshape(-1, stripes.RECORD_BYTES)


def find_base(
    directory: FilePath,
    cut: Cut,
    *,
    process: int,
    n_processes: int,
    options: Options,
    driver: Driver,
    known: KnownSteps,
) -> BaseStep | str | None:
    """Find the step to code a save against, and link what it needs into the item.

    That is the one that was committed or restored last here, if it is still there; else, as after
    a restart, the one with the highest number below this one's that has all it needs.

    Args:
        directory: of the item that is saved, which exists.
        cut: what this process stores.
        process, n_processes: its number, and how many there are.
        options: of the save.
        driver: that reads.
        known: what was saved and restored before.

    Returns:
        The step; why this one is full; or None, where no delta is asked for.
    """
    policy = options.delta_policy
    if isinstance(policy, Never):
        return None
    try:
        if options.codec == "off":
            raise _FullStep("codec off stores words as they are")
        found = place_of(directory)
        if found is None:
            raise _FullStep("the name of its directory has no step number")
        place, number = found
        gone = None
        for item, step in _last_steps(place, number, directory, process, known):
            entry = _entry(step, process, n_processes, manifests.crc_text(cut.layout))
            bases = by_uuid(step.base)
            chains = [(*chain_of(spec, bases), spec) for spec in step.stripes]
            chain = chains[step.stripes.index(entry)]
            if known.is_broken([each.uuid for each in chain]):
                raise _FullStep(f"a stripe that {item.parent.name}/{item.name} needs is damaged")
            _ask(policy, _sizes(chains), final_path(directory))
            try:
                base = _opened(item, step, chain, directory, place, cut, driver, known)
            except FileNotFoundError as err:  # it is being deleted, or lacks what it needs
                logger.warning("%s is no base for %s: %s", item, final_path(directory), err)
                gone = err
                continue
            if gone is not None and base.not_linked is not None:
                with base:
                    raise _FullStep(f"{base.not_linked}, and KeepBases keeps the last step alone")
            return base
        raise gone or _FullStep("there is no earlier step")
    except _FullStep as why:
        return str(why)
    except (OSError, OgdsError) as err:
        logger.warning("The step saved in %s is full: %s", final_path(directory), err)
        return f"the last step cannot be used: {type(err).__name__}"


def _ask(policy: DeltaPolicy, chain: Chain, own: FilePath) -> None:
    """Ask a policy whether a delta may stand on a chain.

    Raises:
        _FullStep: it may not, or the policy, which may be a user's, cannot say.
    """
    name = policy_text(policy)
    try:
        said = policy.is_full(chain)
    except Exception as err:  # whatever it raises, the state is saved
        logger.warning(
            "The step saved in %s is full: the policy %s raised for %s",
            own,
            name,
            chain,
            exc_info=err,
        )
        raise _FullStep(f"{name} raised {type(err).__name__}") from err
    if not isinstance(said, bool | np.bool_):
        kind = type(said).__name__
        logger.warning(
            "The step saved in %s is full: the policy %s must say True or False, and said %s",
            own,
            name,
            kind,
        )
        raise _FullStep(f"{name} said {kind}, neither True nor False")
    if said:
        raise _FullStep(f"{name} asks for a full step")


def _last_steps(
    place: Place, number: int, directory: FilePath, process: int, known: KnownSteps
) -> Iterator[tuple[FilePath, manifests.Pending]]:
    """Yield items to code against, the best first, and their manifests without the leaves."""
    own = final_path(directory.absolute())
    own_step = directory if place.item is None else directory.parent
    needs_mark = is_in_place(own_step)
    tried: set[FilePath] = set()
    for noted in known.candidates(place):
        if noted.path == own:
            continue
        if needs_mark and noted.uuid is not None and not _is_marked(noted.path, place):
            continue
        if noted.uuid is None and noted.mark != mark_of(noted.path):
            continue
        step = _read(noted.path)
        if step is None:
            continue
        uuids = [spec.uuid for spec in step.stripes if spec.file == stripes.file_name(process)]
        if noted.uuid is None or uuids == [noted.uuid]:
            known.keep(place, [noted])
            tried.add(noted.path)
            yield noted.path, step
    for item in _earlier(place, number, own):
        if needs_mark and not _is_marked(item, place):
            continue
        step = None if item in tried else _read(item)
        if step is not None:
            yield item, step


def _is_marked(item: FilePath, place: Place) -> bool:
    """Whether Orbax says that the step of an item is committed, as it does of those in place."""
    return ((item if place.item is None else item.parent) / COMMITTED).is_file()


def _earlier(place: Place, number: int, own: FilePath) -> Iterator[FilePath]:
    """Yield the published items of earlier steps of a run, the last first.

    Their names are like that of this step: `step_9` comes before `step_10`, `run_9` does not.
    """
    step = own.parent.name if place.item is not None else own.name
    try:
        names = [path.name for path in place.root.iterdir() if TEMPORARY not in path.name]
    except FileNotFoundError:
        return
    alike = [name for name in names if name.rstrip(_DIGITS) == step.rstrip(_DIGITS)]
    numbered = [(step_number(name), name) for name in alike]
    earlier = sorted((n, name) for n, name in numbered if n is not None and n < number)
    items = (place.of_step(name) for _, name in reversed(earlier))
    yield from (i for i in items if i != own and (i / manifests.MANIFEST_NAME).is_file())


def _read(item: FilePath) -> manifests.Pending | None:
    """Read the manifest of an item but for its leaves, which may be many; None if there is none."""
    path = item / manifests.MANIFEST_NAME
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    step = manifests.decode_pending(data, str(path))
    for spec in step.stripes:
        check_described(spec, str(path))
    check_chains(step.stripes, step.base, step.requires, str(path))
    return step


def _entry(
    step: manifests.Pending, process: int, n_processes: int, layout_crc32c: str
) -> StripeSpec:
    """Return the entry of this process's stripe, whose layout is that of the new one."""
    if len(step.stripes) != n_processes:
        n_before = len(step.stripes)
        raise _FullStep(f"another number of processes: {n_before} then, {n_processes} now")
    entry = next((s for s in step.stripes if s.file == stripes.file_name(process)), None)
    if entry is None or entry.layout_crc32c != layout_crc32c:
        raise _FullStep("structure, sharding, derived leaves or chunk_bytes have changed")
    return entry


def _sizes(chains: Sequence[Sequence[StripeSpec]]) -> Chain:
    """Return what a policy is told of a step, of the chains of all processes together."""
    deltas = [0] * max(len(chain) - 1 for chain in chains)  # of the last one first
    for chain in chains:
        for n_after, spec in enumerate(reversed(chain[1:])):
            deltas[n_after] += spec.bytes
    return Chain(
        n_deltas=len(deltas),
        bytes_full=sum(chain[0].bytes for chain in chains),
        bytes_deltas=tuple(reversed(deltas)),
    )


def _opened(
    item: FilePath,
    step: manifests.Pending,
    chain: Sequence[StripeSpec],
    directory: FilePath,
    place: Place,
    cut: Cut,
    driver: Driver,
    known: KnownSteps,
) -> BaseStep:
    """Link the stripes of a chain into the item that is saved, then open and check them there."""
    *older, last = chain
    linked = step.base is None or step.base.linked
    places = find_stripes(item, [each.uuid for each in older], linked)
    places[last.uuid] = item / last.file
    not_linked = link_stripes(directory, places)
    if not_linked is not None:
        if place.item is None:
            raise _FullStep(not_linked)
        if (not_kept := why_not_kept(place.root, known.began(place))) is not None:
            if not_kept != NOT_YET_ASKED or known.has_saved(place):
                known.warn_of_links(place.root, f"{not_linked}, and {not_kept}")
            raise _FullStep(f"{not_linked}, and {not_kept}")
    with contextlib.ExitStack() as undoing:
        undoing.callback(unlink_stripes, directory, list(places))
        files: list[StripeFile] = []
        for entry in chain:
            path = directory / base_file(entry.uuid) if not_linked is None else places[entry.uuid]
            files.append(open_stripe(driver, path, entry))
            undoing.callback(files[-1].file.close)
        _check_chunks(files[-1].records, cut)
        if any(link.file.descriptor is None for link in files):
            raise _FullStep(f"the driver {driver.name} has no file to read a base from")
        undoing.pop_all()
    entries = [msgspec.structs.replace(each, file=base_file(each.uuid)) for each in chain]
    spec = BaseSpec(stripes=tuple(entries), linked=not_linked is None)
    return BaseStep(
        item=item, directory=directory, spec=spec, files=tuple(files), not_linked=not_linked
    )


def _check_chunks(records: np.ndarray, cut: Cut) -> None:
    """Check what a layout does not say, and a delta needs: dtype and words of each chunk."""
    chunks = [run.chunks for run in cut.plan.runs]
    own = np.concatenate(chunks) if chunks else np.zeros((0, 5), np.uint64)
    if len(records) != len(own) or not (
        np.array_equal(records["n_words"], own[:, 1])
        and np.array_equal(records["dtype"], own[:, 2])
    ):
        raise _FullStep("the dtype of a leaf has changed")
