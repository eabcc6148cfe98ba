"""Check a published item byte by byte, without jax, and say all that is wrong with it."""

import contextlib
import dataclasses
import functools
import os
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path as FilePath

from orbax_gds.chains import missing_stripe, stripes_there
from orbax_gds.commit import read_manifest
from orbax_gds.coverage import check_coverage
from orbax_gds.derived import DerivedShard, problems
from orbax_gds.drivers import FewOpen, open_driver
from orbax_gds.dtypes import dtype_by_name
from orbax_gds.errors import Corrupt, OgdsError
from orbax_gds.frame_check import Finding
from orbax_gds.manifest import MANIFEST_NAME, Manifest, StripeSpec, crc_text, path_text
from orbax_gds.options import Options
from orbax_gds.plan import StoredShard
from orbax_gds.stripe_check import Findings, StripeCheck
from orbax_gds.stripe_file import StripeFile, open_stripe
from orbax_gds.stripe_specs import by_uuid, chain_of

__all__ = ["Problem", "Progress", "verify"]

Progress = Callable[[int, int], None]
"""Called with the bytes checked so far and in all."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong with an item.

    Attributes:
        file: name of the file in the item's directory.
        what: what was found there and what was expected.
        offset: byte of the file, if the problem has a place.
        chunk: number of the chunk that is hit, if one is.
        leaves: paths of the leaves that are hit, as far as can be told, as text.
    """

    file: str
    what: str
    offset: int | None = None
    chunk: int | None = None
    leaves: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """The place as people read it.

        Example:
            >>> Problem(file="p00000.ogds", what="…", offset=4096, chunk=0, leaves=("w",)).where
            "p00000.ogds, byte 4096, chunk 0, leaf 'w'"
        """
        parts = [self.file]
        if self.offset is not None:
            parts.append(f"byte {self.offset}")
        if self.chunk is not None:
            parts.append(f"chunk {self.chunk}")
        if self.leaves:
            parts.append("leaf " + ", ".join(map(repr, self.leaves)))
        return ", ".join(parts)


class SoundStripes:
    """Stripes of which all but the frames was found right, so that no other link to one is read."""

    def __init__(self) -> None:
        self._known: set[tuple[object, ...]] = set()

    def note(self, path: FilePath, spec: StripeSpec) -> None:
        """Note a file that is what its entry says, at least but for its frames."""
        with contextlib.suppress(OSError):  # it was deleted meanwhile
            self._known.add(self._key(path, spec))

    def has(self, path: FilePath, spec: StripeSpec) -> bool:
        """Whether a path leads to a file that was noted with such an entry, and is unchanged."""
        try:
            return self._key(path, spec) in self._known
        except OSError:  # who reads it says what is wrong
            return False

    @staticmethod
    def _key(path: FilePath, spec: StripeSpec) -> tuple[object, ...]:
        status = path.stat()
        file = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
        return *file, spec.uuid, spec.bytes, spec.layout_crc32c, spec.index_crc32c


def verify(
    path: str | os.PathLike[str],
    *,
    options: Options | None = None,
    progress: Progress | None = None,
    sound: SoundStripes | None = None,
) -> list[Problem]:
    """Read every byte of an item, decode every frame, and return all that is wrong.

    Of the stripes of earlier steps that it follows from, all is read but frames that it does not
    need.

    An item without problems restores to the bits that were saved. Nothing of it is held in memory
    but a few frames at a time, at most 256 MiB or those that one chunk needs.

    Args:
        path: directory of the item.
        options: how to read; None takes the defaults and the environment.
        progress: called now and then, to show how far the check has come.
        sound: stripes that need not be read again as those of earlier steps; what is found sound
            is added.

    Returns:
        The problems, in the order of the files; empty if there are none.

    Raises:
        NotFound: there is no published item.
        Unsupported: a newer version wrote it.
        IoError: the manifest cannot be read.

    Example:
        >>> import tempfile, numpy as np, orbax_gds as ogds
        >>> path = tempfile.mkdtemp() + "/item"
        >>> _ = ogds.save(path, {"w": np.ones(3)})
        >>> ogds.verify(path)
        []
    """
    directory = FilePath(path)
    try:
        manifest = read_manifest(directory)
    except Corrupt as err:
        return [Problem(file=MANIFEST_NAME, what=_bare(err, directory / MANIFEST_NAME))]
    options = options or Options.from_environment()
    progress = progress or (lambda done, total: None)
    return _ItemCheck(directory, manifest, options, progress, sound or SoundStripes()).run()


class _ItemCheck:
    """One verification; what it finds is noted, and it goes on."""

    def __init__(
        self,
        directory: FilePath,
        manifest: Manifest,
        options: Options,
        progress: Progress,
        sound: SoundStripes,
    ) -> None:
        self.directory, self.manifest, self.options = directory, manifest, options
        self.progress, self.sound = progress, sound
        self.problems: list[Problem] = []
        self.noted: set[tuple[str, int | None]] = set()  # files and chunks that have one
        self.names = [path_text(leaf.path) for leaf in manifest.leaves]
        self.dtypes = [
            None if leaf.dtype is None else dtype_by_name(leaf.dtype) for leaf in manifest.leaves
        ]
        self.stored: list[StoredShard] = []
        self.derived: list[DerivedShard] = []
        self.places: dict[DerivedShard, str] = {}  # in which stripe the first such is
        self.hits: list[tuple[int, tuple[int, ...]]] = []  # numbers of problems, and of leaves
        self.unplaced: list[str] = []  # stripes whose layout cannot be read
        self.bases: dict[str, StripeFile] = {}  # by uuid, those that are sound but for frames
        self.driver = FewOpen(open_driver(options.driver, directory))

    def run(self) -> list[Problem]:
        self._check_sidecars()
        bases = self.manifest.base.stripes if self.manifest.base else ()
        specs = (*bases, *self.manifest.stripes)
        total = sum(spec.bytes for spec in specs)
        done = 0
        with contextlib.ExitStack() as closing:
            for number, spec in enumerate(specs):
                if number < len(bases):
                    self._check_base(spec, closing)
                else:
                    self._check_stripe(spec, functools.partial(self._report, done, total))
                done += spec.bytes
                self.progress(done, total)
        self._check_derived()
        self._check_coverage()
        return self.problems

    @functools.cached_property
    def bases_there(self) -> dict[str, FilePath]:
        """Where the stripes of earlier steps lie, but those that are missing."""
        base = self.manifest.base
        uuids = [spec.uuid for spec in base.stripes] if base else []
        return stripes_there(self.directory, uuids, base is None or base.linked)

    def _check_sidecars(self) -> None:
        for name, spec in self.manifest.sidecars.items():
            path = self.directory / name
            try:
                n_bytes = path.stat().st_size
                found = crc_text(path.read_bytes()) if n_bytes == spec.bytes else None
            except OSError as err:
                self.problems.append(Problem(file=name, what=f"cannot be read: {err.strerror}"))
                continue
            if found is None:
                what = f"{n_bytes} bytes long, but the manifest says {spec.bytes}"
                self.problems.append(Problem(file=name, what=what))
            elif found != spec.crc32c:
                what = f"the CRC32C is {found}, but the manifest says {spec.crc32c}"
                self.problems.append(Problem(file=name, what=what))

    def _report(self, before: int, total: int, done: int) -> None:
        self.progress(before + done, total)

    def _check_base(self, spec: StripeSpec, closing: contextlib.ExitStack) -> None:
        """Check a stripe of an earlier step, but for frames: those that are needed are decoded."""
        assert self.manifest.base is not None
        path, n_before = self.directory / spec.file, len(self.problems)
        with self._noting(spec.file, path):
            if spec.uuid not in self.bases_there:
                raise missing_stripe(self.directory, spec.uuid, self.manifest.base.linked)
            path = self.bases_there[spec.uuid]
            if not self.sound.has(path, spec):
                self._check_all_but_frames(path, spec)
        is_noted = len(self.problems) > n_before  # what is wrong, which opening it says, too
        with contextlib.suppress(OgdsError) if is_noted else self._noting(spec.file, path):
            opened = open_stripe(self.driver, path, spec)
            closing.callback(opened.file.close)
            self.bases[spec.uuid] = opened

    def _check_all_but_frames(self, path: FilePath, spec: StripeSpec) -> None:
        with self.driver.open(path, "r") as file:
            check = StripeCheck(path, file, spec, self.dtypes, 1, has_frames=False)
            findings = check.run(lambda done: None).findings
        self._note(spec.file, findings)
        if not findings:
            self.sound.note(path, spec)

    def _check_stripe(self, spec: StripeSpec, progress: Callable[[int], None]) -> None:
        path = self.directory / spec.file
        self.unplaced.append(spec.file)
        entries = chain_of(spec, by_uuid(self.manifest.base))
        known = all(entry.uuid in self.bases for entry in entries)
        chain = [self.bases[entry.uuid] for entry in entries] if known else None
        with self._noting(spec.file, path), self.driver.open(path, "r") as file:
            check = StripeCheck(path, file, spec, self.dtypes, self.options.n_workers, chain=chain)
            found = check.run(progress)
            self._take(spec.file, found)
            if not found.findings:
                self.sound.note(path, spec)

    def _note(self, own: str, findings: Sequence[Finding]) -> None:
        """Note what is wrong, but once where several stripes follow from the same frame."""
        for finding in findings:
            file = finding.file or own
            if finding.file and (file, finding.chunk) in self.noted:
                continue
            self.noted.add((file, finding.chunk))
            self.hits.append((len(self.problems), finding.leaves))
            self.problems.append(
                Problem(
                    file=file,
                    what=finding.what,
                    offset=finding.offset,
                    chunk=finding.chunk,
                    leaves=tuple(self.names[i] for i in finding.leaves if i < len(self.names)),
                )
            )

    def _take(self, file: str, findings: Findings) -> None:
        self._note(file, findings.findings)
        if findings.shards is None:
            return
        self.unplaced.remove(file)
        self.stored += findings.shards
        for shard in findings.derived:
            self.derived.append(shard)
            self.places.setdefault(shard, file)

    def _check_derived(self) -> None:
        """Check that derived shards have a source; name their leaves where that is hit."""
        following: dict[int, set[int]] = defaultdict(set)
        for shard in self.derived:
            following[shard.source].add(shard.leaf)
        for number, hit in self.hits:
            also = set[int]().union(*(following.get(leaf, ()) for leaf in hit)) - {*hit}
            names = tuple(self.names[i] for i in (*hit, *sorted(also)) if i < len(self.names))
            self.problems[number] = dataclasses.replace(self.problems[number], leaves=names)
        for shard, what in problems(self.manifest, self.stored, self.derived):
            leaves = (self.names[shard.leaf],) if shard.leaf < len(self.names) else ()
            self.problems.append(Problem(file=self.places[shard], what=what, leaves=leaves))

    def _check_coverage(self) -> None:
        """Check that the shards tile the leaves; where a layout is lost, name what is with it."""
        known: dict[Hashable, bool] = {}
        lost = []
        cuts: list[list[StoredShard | DerivedShard]] = [[] for _ in self.names]
        for shard in (*self.stored, *self.derived):
            if shard.leaf < len(cuts):
                cuts[shard.leaf].append(shard)
        for name, leaf, boxes in zip(self.names, self.manifest.leaves, cuts, strict=True):
            if leaf.shape is None:
                continue
            try:
                check_coverage(name, leaf.shape, boxes, known)
            except Corrupt as err:
                lost.append(name)
                if not self.unplaced:
                    self.problems.append(Problem(file=MANIFEST_NAME, what=str(err), leaves=(name,)))
        if lost and self.unplaced:
            what = (
                f"without the layout of {', '.join(self.unplaced)} not all their shards are found"
            )
            self.problems.append(Problem(file=self.unplaced[0], what=what, leaves=tuple(lost)))

    @contextlib.contextmanager
    def _noting(self, file: str, path: FilePath) -> Iterator[None]:
        try:
            yield
        except OgdsError as err:
            self.problems.append(Problem(file=file, what=_bare(err, path)))


def _bare(err: OgdsError, path: FilePath) -> str:
    """The message without the path in front, which the problem names by itself."""
    text = err.strerror if isinstance(err, OSError) and err.strerror else str(err)
    return text.removeprefix(f"{path}: ")
