"""A save, from PyTree to published item: leaves → plan → snapshot → encode → write → seal.

`prepare` is the part that blocks training; `Prepared.write` runs in the background on every
process; `commit.publish` makes the item exist, on one process, after all have sealed.
"""

import contextlib
import copy
import dataclasses
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path as FilePath
from typing import Any

import jax
import msgspec
import numpy as np

from orbax_gds import events, kept_reports, leaves, sidecar, weighing
from orbax_gds import stripe as stripes
from orbax_gds._native import BrokenBase
from orbax_gds._version import __version__
from orbax_gds.bandwidth import KnownStorage, storage_key
from orbax_gds.chains import RunLinks
from orbax_gds.coding_choice import choose_coding
from orbax_gds.commit import (
    leave_pending,
    leave_sealed,
    make_directory,
    publish,
    sync_directory,
    withdraw_sealed,
)
from orbax_gds.delta_save import DeltaSave
from orbax_gds.derived import FEATURE
from orbax_gds.deriving import find_derived
from orbax_gds.drivers import Driver, File, open_driver
from orbax_gds.errors import Exists, IoError
from orbax_gds.final_names import item_text
from orbax_gds.known_steps import KnownSteps
from orbax_gds.manifest import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    Pending,
    StripeSpec,
    check_custom_metadata,
)
from orbax_gds.monitoring import Lap, SaveReport, Stopwatch
from orbax_gds.options import Options
from orbax_gds.pacing import pace_of
from orbax_gds.pending import PendingStripe
from orbax_gds.plan import MAX_RUN_CHUNKS, RUN_BYTES, Plan, Run
from orbax_gds.plan_cache import PlanCache, Planned
from orbax_gds.snapshot import Snapshot
from orbax_gds.staging import BufferPool
from orbax_gds.stripe_specs import DELTA
from orbax_gds.stripe_writer import StripeWriter

logger = logging.getLogger(__name__)

_WRITER = f"orbax_gds {__version__}"

_FRAME_OVERHEAD_BYTES = 128  # required: FORMAT §6, header and padding of a frame that is raw


def save(
    path: str | os.PathLike[str],
    tree: Any,
    *,
    options: Options | None = None,
    custom_metadata: Any = None,
) -> SaveReport:
    """Save a PyTree as one item and return when it is committed.

    For training, prefer Orbax's CheckpointManager with our handler: it does not block.

    Args:
        path: directory of the item; it is made, and its parents.
        tree: any PyTree of arrays, PRNG keys, numbers, strings and bytes.
        options: how to save; None takes the defaults and the environment.
        custom_metadata: JSON of the user's, given back by `inspect`.

    Returns:
        What was written, by which path, and where the time went.

    Raises:
        Exists: an item is already published there.
        Unsupported: leaves that cannot be saved; each is named, and nothing is written.
        IoError, CommitError: the system refused; no item appears.

    Example:
        >>> import tempfile, numpy as np
        >>> report = save(tempfile.mkdtemp() + "/item", {"w": np.ones(3)})
        >>> report.state
        'committed'
    """
    directory = FilePath(path)
    _refuse_published(directory)
    prepared = prepare(tree, options=options, custom_metadata=custom_metadata)
    parents = make_directory(directory)
    report = prepared.write(directory)
    done = commit(directory, parents, report=report)
    return done or dataclasses.replace(report, state="committed")


def commit(
    directory: FilePath, parents: Sequence[FilePath] = (), *, report: SaveReport | None = None
) -> SaveReport | None:
    """Publish an item, sync these directories above it, and log the save.

    Args:
        directory: of the item.
        parents: directories above it with new entries; of a save under Orbax, which renames the
            item afterwards, none.
        report: that `write` returned on process 0; None takes what it left in the item.

    Returns:
        The report with the seconds that this took; None if there is none, or the item was
        published before.

    Raises:
        CommitError, IoError: as `publish`.
    """
    began = Lap()
    published = publish(directory)
    for parent in parents:
        sync_directory(parent)
    if not published:
        return None
    took = began.secs
    state = "committed" if parents else "published"
    done = kept_reports.complete(directory, state, took, report)
    line = done.line() if done else f"{state} {item_text(directory)}, whose report is lost"
    logger.info("%s", line)
    events.emit_commit(took)
    return done


def _refuse_published(directory: FilePath) -> None:
    if (directory / MANIFEST_NAME).exists():
        raise Exists(f"{directory} already holds a published item. Save elsewhere or delete it.")


def _refuse_missing(directory: FilePath) -> None:
    try:
        os.stat(directory)
    except OSError as err:
        raise IoError(
            err.errno,
            f"Cannot save into {directory}: {err.strerror}. Make the directory first, where every "
            "process sees it.",
            str(directory),
        ) from err


def _snapshot_bytes(options: Options) -> int | None:
    """Return the bound of the copies of the tree: what the buffers of a save leave."""
    if options.staging_bytes is None:
        return None
    n_buffers, buffer_bytes = _buffers(options)
    return max(0, int(options.staging_bytes) - n_buffers * buffer_bytes)


def make_pool(options: Options) -> BufferPool:
    """Return the buffers of a save under these options; keep them for the next save."""
    n_buffers, buffer_bytes = _buffers(options)
    return BufferPool(buffer_bytes, n_buffers)


def _buffers(options: Options) -> tuple[int, int]:
    """Return number and bytes of the buffers of a save."""
    most_words = max(RUN_BYTES, int(options.chunk_bytes))
    buffer_bytes = most_words + most_words // 64 + MAX_RUN_CHUNKS * _FRAME_OVERHEAD_BYTES
    buffer_bytes = stripes.align(buffer_bytes + stripes.PAGE_BYTES, stripes.PAGE_BYTES)
    n_buffers = options.n_workers
    if options.staging_bytes is not None:
        n_buffers = max(1, min(n_buffers, int(options.staging_bytes) // buffer_bytes))
    return n_buffers, buffer_bytes


def prepare(
    tree: Any,
    *,
    options: Options | None = None,
    custom_metadata: Any = None,
    cache: PlanCache | None = None,
) -> "Prepared":
    """Take a PyTree apart, plan its stripe and take the snapshot: all that must block training.

    When it returns, the tree may be changed, donated or deleted; where `staging_bytes` holds less
    than what accelerators hold of it and its NumPy arrays, only once `Prepared.staged` is set by
    `Prepared.write`.

    Args:
        tree: as in `save`.
        options: as in `save`.
        custom_metadata: as in `save`.
        cache: plans from `make_cache`, kept for many saves; None plans anew.

    Raises:
        Unsupported: leaves that cannot be saved; each is named.
    """
    options = options or Options.from_environment()
    check_custom_metadata(custom_metadata)
    watch = Stopwatch()
    with leaves.uncollected(), watch.time("plan"):
        cache = cache or make_cache(options)
        planned, values, was_known = cache.plan(tree)
    with leaves.uncollected(), watch.time("snapshot"):
        windows = planned.windows(_snapshot_bytes(options))
        snapshot = Snapshot(planned.picks, values, windows)
    metadata = copy.deepcopy(custom_metadata)
    if snapshot.staged.is_set():
        watch.unblock()
    return Prepared(planned, snapshot, options, metadata, watch, was_known)


def make_cache(options: Options) -> PlanCache:
    """Return the plans of saves under these options; keep them for the next save."""
    return PlanCache(int(options.chunk_bytes), jax.process_index())


def _undescribed(process: int, uuid: str = "", base: str | None = None) -> StripeSpec:
    return StripeSpec(
        file=stripes.file_name(process),
        uuid=uuid,
        bytes=0,
        layout_crc32c="",
        index_crc32c="",
        base=base,
    )


class Prepared:
    """A save whose snapshot is taken. Write it once."""

    def __init__(
        self,
        planned: Planned,
        snapshot: Snapshot,
        options: Options,
        custom_metadata: Any,
        watch: Stopwatch,
        was_known: bool,
    ) -> None:
        self.planned, self.options = planned, options
        self.process, self.watch = planned.process, watch
        self.cut = planned.whole
        self.coding = weighing.as_asked(options.codec)
        self._custom_metadata = custom_metadata
        self.was_known = was_known
        self._snapshot = snapshot
        self._pace = pace_of(options.bytes_per_second)
        self._keeps_words = snapshot.staged.is_set()
        self._delta: DeltaSave | None = None
        self._n_derived = self._bytes_derived = 0
        self._when_staged: Callable[[], None] | None = None

    @property
    def staged(self) -> threading.Event:
        """Set when the tree may be changed, donated or deleted."""
        return self._snapshot.staged

    def let_go(self) -> None:
        """Let go of tree and words, written or not: donation is in place again."""
        self._delta = None  # which has tables of the base
        self._snapshot.words = []
        self._snapshot.finish()

    def each_window(self) -> Iterator[Sequence[Run]]:
        """Yield runs whose words are in host memory; then bring those of the next runs there."""
        if self.staged.is_set():
            yield self.plan.runs
            return
        windows = self._snapshot.each_window()
        while True:
            with self.watch.time("snapshot"):
                runs = next(windows, None)
            if self.staged.is_set():
                self.watch.unblock()
                if self._when_staged is not None:
                    self._when_staged()
            if runs is None:
                return
            yield self.plan.runs[runs.start : runs.stop]

    @property
    def plan(self) -> Plan:
        """What this process stores."""
        return self.cut.plan

    def write(
        self,
        directory: str | os.PathLike[str],
        *,
        pool: BufferPool | None = None,
        storage: KnownStorage | None = None,
        when_staged: Callable[[], None] | None = None,
        steps: KnownSteps | None = None,
    ) -> SaveReport:
        """Write and seal this process's stripe; on process 0, leave what publication needs.

        Process 0 logs its part when the item is published, by `commit`; the others do here.

        Args:
            directory: the item's directory, which exists.
            pool: buffers from `make_pool`, kept for many saves; None makes them for this one.
            storage: what earlier saves measured, kept for many; None knows nothing yet.
            when_staged: called in this thread, perhaps again, as soon as `staged` is set by it.
            steps: what was saved and restored before, so that this step may be a delta; None only
                looks at the directories.

        Returns:
            The report, in the state "synced".

        Raises:
            Exists: an item is already published there.
            IoError: the directory is missing, or the operating system refused; the item will not
                be published.
        """
        began, directory = Lap(), FilePath(directory)
        self._when_staged = when_staged
        path = directory / stripes.file_name(self.process)
        storage, steps = storage or KnownStorage(), steps or KnownSteps()
        with DeltaSave(directory, steps) as delta:
            try:
                _refuse_published(directory)
                _refuse_missing(directory)
                withdraw_sealed(directory, self.process)
                self._leave_out_derived()
                driver = open_driver(self.options.driver, directory)
                key = storage_key(directory, driver)
                with _lent(pool, self.options) as buffers:
                    self._delta = delta
                    self._look_for_base(delta, driver, buffers)
                    self.coding = choose_coding(
                        self, driver, path, key, buffers, storage, has_base=delta.pays
                    )
                    file, writer = self._write_stripe(driver, path, buffers, storage, delta)
            finally:
                self.let_go()
            storage.remember(key, writer.meter, writer.file_bytes)
            with self.watch.time("sync"):
                delta.sync()
                if self.process == 0:
                    metadata = sidecar.encode(self.planned.tree_json, self._custom_metadata)
                    manifest = self._manifest(writer.uuid, delta)
                    leave_pending(directory, manifest, {sidecar.NAME: metadata})
            report = self._report(directory, writer, delta, file.reason or driver.reason, began)
            kept_reports.leave(report, writer.uuid)
            with self.watch.time("sync"):
                if jax.process_count() > 1:
                    leave_sealed(directory, self._said(writer.uuid, delta))
                sync_directory(directory)
        steps.note_saved(directory, writer.uuid.hex())
        report = dataclasses.replace(
            report,
            background_secs=began.secs,
            cpu_secs=began.cpu_secs,
            seconds=dict(self.watch.seconds),
        )
        if self.process != 0:
            logger.info("%s", report.line())
        events.emit_save(report)
        return report

    def _look_for_base(self, delta: DeltaSave, driver: Driver, buffers: BufferPool) -> None:
        delta.find(
            self.cut,
            process=self.process,
            n_processes=jax.process_count(),
            options=self.options,
            driver=driver,
            watch=self.watch,
        )
        if self._keeps_words:
            delta.sound_out(self, buffers)

    def _write_stripe(
        self,
        driver: Driver,
        path: FilePath,
        buffers: BufferPool,
        storage: KnownStorage,
        delta: DeltaSave,
    ) -> tuple[File, StripeWriter]:
        """Write and sync the stripe: again and full, where its base cannot be read."""
        while True:
            with driver.open(path, "w") as file:
                writer = StripeWriter(self, file, buffers, storage.meter(), self._pace)
                try:
                    writer.write()
                except BrokenBase as err:
                    delta.do_without(err)
                    continue
                with self.watch.time("sync"), writer.meter.measure():
                    file.sync(writer.file_bytes)
            delta.settle(writer.records)
            return file, writer

    def _report(
        self,
        directory: FilePath,
        writer: StripeWriter,
        delta: DeltaSave,
        driver_reason: str | None,
        began: Lap,
    ) -> SaveReport:
        return SaveReport(
            path=directory,
            state="synced",
            process=self.process,
            n_leaves=len(self.planned.specs),
            n_chunks=self.plan.n_chunks,
            bytes_in=sum(run.n_bytes for run in self.plan.runs) + self._bytes_derived,
            bytes_out=writer.file_bytes,
            n_derived=self._n_derived,
            bytes_derived=self._bytes_derived,
            coding=self.coding.codec,
            coding_reason=self.coding.reason,
            codecs=writer.bytes_by_codec(),
            driver=writer.file.carried,
            driver_reason=driver_reason,
            plan_known=self.was_known,
            blocking_secs=self.watch.blocking_secs,
            blocking_cpu_secs=self.watch.blocking_cpu_secs,
            background_secs=began.secs,
            cpu_secs=began.cpu_secs,
            seconds=dict(self.watch.seconds),
            **delta.reported(writer.records),
        )

    def _leave_out_derived(self) -> None:
        """Plan again without the shards whose words follow from others, if there are such."""
        if not (self.options.derive and self._snapshot.staged.is_set()):
            return
        with self.watch.time("derive"):
            shards = self.plan.shards
            words = self._snapshot.words
            derived = find_derived(shards, words, self.planned.specs, self.options.n_workers)
            if not derived:
                return
            self._n_derived = len(derived)
            self._bytes_derived = sum(words[number].nbytes for number in derived)
            self._snapshot.words = [w for number, w in enumerate(words) if number not in derived]
            self.cut = self.planned.without(derived)

    def _said(self, uuid: bytes, delta: DeltaSave) -> PendingStripe:
        return PendingStripe(
            process=self.process,
            uuid=uuid.hex(),
            digest=self.planned.digest,
            coding=self.coding.codec,
            writer=_WRITER,
            base=delta.spec,
        )

    def _manifest(self, uuid: bytes, delta: DeltaSave) -> Pending:
        listed = self.planned.leaf_list
        requires = (*listed.requires, FEATURE) if self._n_derived else listed.requires
        own = _undescribed(0, uuid.hex(), delta.uuid)
        resolved = {"coding": self.coding.codec, "zstd_level": self.coding.zstd_level}
        return Pending(
            format=FORMAT_VERSION,
            requires=requires if delta.uuid is None else (*requires, DELTA),
            writer=_WRITER,
            leaves=listed.leaves,
            kinds=listed.kinds,
            shardings=msgspec.Raw(msgspec.json.encode(self.planned.shardings)),
            stripes=(own, *map(_undescribed, range(1, jax.process_count()))),
            sidecars={},
            options=self.options.as_json() | resolved,
            custom_metadata=self._custom_metadata,
            base=delta.spec,
        )

    def words_of(self, run: Run) -> Sequence[np.ndarray]:
        """Return the buffers that the segments of a run name, in host memory."""
        return self._snapshot.words[run.first_buffer : run.end_buffer]

    def leave_base(self, err: BrokenBase) -> None:
        """Do without the base, as `Source` says: from the window at hand on, or altogether."""
        if self._keeps_words or self._delta is None:
            raise err
        self._delta.go_on_without(err)

    def links_of(self, run: Run) -> RunLinks:
        """Return what the chunks of a run are coded against, as `Source` says."""
        return ((), None) if self._delta is None else self._delta.links_of(run)


@contextlib.contextmanager
def _lent(shared: BufferPool | None, options: Options) -> Iterator[BufferPool]:
    if shared is not None:
        yield shared
        return
    with make_pool(options) as own:
        yield own
