"""The plug into Orbax v0: a checkpoint handler, its arguments, and a registry that drops it in.

Only flattening, planning and the snapshot block the caller of `save`. Orbax runs the rest in the
future that `async_save` returns, waits for the futures of every process, and then calls `finalize`
once, on one of them.
"""

import collections
import contextlib
import dataclasses
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path as FilePath
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint.future import CommitFutureAwaitingContractedSignals, Future

from orbax_gds import commit, dropin, restoring, saving
from orbax_gds.all_stored import AllStored
from orbax_gds.bandwidth import KnownStorage
from orbax_gds.dropin import RestoreRequest
from orbax_gds.errors import IoError, NotFound, Unsupported
from orbax_gds.final_names import final_path
from orbax_gds.known_steps import KnownSteps
from orbax_gds.manifest import Path
from orbax_gds.monitoring import SaveReport
from orbax_gds.options import Options
from orbax_gds.plan_cache import PlanCache
from orbax_gds.staging import BufferPool
from orbax_gds.threads import give_way
from orbax_gds.tree_metadata import is_tree_metadata, tree_metadata

_MOST_DIRECTORY_SECS = 30  # chosen: far above what making directories takes


@dataclasses.dataclass
class GdsSave(ocp.args.CheckpointArgs):
    """Ask for a PyTree to be saved.

    Attributes:
        item: the tree. Any leaf of FORMAT §3.1 under any registered node.
        custom_metadata: JSON to keep with it, returned by `item_metadata(step).custom_metadata`.

    Example:
        >>> GdsSave({"w": jax.numpy.ones(3)}).item["w"].shape
        (3,)
    """

    item: Any
    custom_metadata: Any = None

    def __post_init__(self) -> None:
        if is_tree_metadata(self.item):
            raise Unsupported("TreeMetadata describes a tree and cannot be saved. Give the tree.")


@dataclasses.dataclass
class GdsRestore(ocp.args.CheckpointArgs):
    """Ask for a PyTree to be restored; without any argument, as it was saved.

    Attributes:
        item: target tree. Its leaves say type, shape, dtype and sharding: arrays, scalars,
            `jax.ShapeDtypeStruct`, Orbax metadata such as `item_metadata` returns, or `...` for a
            leaf that is not wanted. None restores nested dicts and lists with all types,
            dtypes and shardings as saved.
        leaves: without `item`, restore only these: typed paths of the manifest, or texts such as
            "params/dense" for all below.
        strict: raise when a shape differs, rather than pad with zeros and truncate.
        fallback_sharding: for leaves without a target sharding whose saved one does not fit the
            devices of this process.
        partial_restore: leave out what is stored but not in `item`.
    """

    item: Any = None
    leaves: Iterable[Path | str] | None = None
    strict: bool = True
    fallback_sharding: jax.sharding.Sharding | None = None
    partial_restore: bool = False

    def __post_init__(self) -> None:
        if is_tree_metadata(self.item):
            self.item = self.item.tree


class GdsCheckpointHandler(ocp.AsyncCheckpointHandler):
    """Save and restore any PyTree in the format of FORMAT.md, under Orbax's checkpointers.

    What a save needs lies in its directory; an instance keeps buffers for the next one, how fast
    the storage was, which steps it saved and restored, and which directories to sync then. It may
    serve any number of items at once, also without a checkpointer.

    Args:
        options: how to save and restore; None takes `Options.from_environment()`.

    Example:
        >>> with ocp.CheckpointManager(path) as manager:
        ...     manager.save(0, args=GdsSave({"w": jax.numpy.ones(3)}))
        ...     manager.wait_until_finished()
        ...     manager.restore(0, args=GdsRestore())
        {'w': Array([1., 1., 1.], dtype=float32)}
    """

    def __init__(self, options: Options | None = None) -> None:
        self._options = Options.from_environment() if options is None else options
        self._pool: BufferPool | None = None
        self._plans: PlanCache | None = None
        self._storage = KnownStorage()
        self._steps = KnownSteps()
        self._synced: dict[FilePath, SaveReport] = {}  # of items that are not published yet
        self._published: set[FilePath] = set()  # items that Orbax renames after us
        self._failed: collections.Counter[FilePath] = collections.Counter()  # saves by directory
        self._lock = threading.Lock()

    async def async_save(
        self, directory: os.PathLike[str], args: ocp.args.CheckpointArgs
    ) -> list[Future]:
        """Take a snapshot of the tree and return the future that stores it.

        The directory need not exist yet: the future waits until Orbax has made it. The tree may be
        changed, and its arrays donated, as soon as this returns; with a `staging_bytes` that holds
        less than what an accelerator holds of the tree, and its NumPy arrays, that takes until
        nearly all is written.

        With several processes the future waits for all of them, so that one that fails, dies or
        lags is named.

        Raises:
            Unsupported: leaves cannot be stored; names each. No file exists then.
        """
        target = _local(directory)
        self._steps.expect(target)
        attempt = self._failed[target]
        try:
            prepared = self._prepare(args)
        except Exception:
            self._count_failure(target)
            _await_directories()
            raise

        async def store() -> None:  # in a thread and a loop of its own, so that it may block
            if prepared.staged.is_set():  # else training waits for this thread
                give_way()
            self._sync_renames()
            self._write(prepared, target, when_staged=give_way)

        stored = CommitFutureAwaitingContractedSignals(store(), name="orbax_gds_commit")
        _await_staged(prepared, stored)
        if jax.process_count() > 1:
            return [AllStored(stored, target, attempt, lambda: self._count_failure(target))]
        return [stored]

    def save(self, directory: os.PathLike[str], args: ocp.args.CheckpointArgs) -> None:
        """Store the tree before returning; with one process, commit it too.

        With several processes, call `finalize` on one of them after this returned on all.

        Raises:
            Exists: an item is already published there; it stays as it is.
            Unsupported: leaves cannot be stored; names each. No file exists then.
            IoError, CommitError: the system refused; no item appears.
        """
        target = _local(directory)
        self._steps.expect(target)
        prepared = self._prepare(args)
        parents = commit.make_directory(target)
        self._write(prepared, target)
        if jax.process_count() == 1:
            saving.commit(target, parents, report=self._take_report(target))

    def finalize(self, directory: os.PathLike[str]) -> None:
        """Publish what every process has stored. Calling it again does nothing.

        Orbax renames the item and the step afterwards, and syncs neither. The next save of this
        handler, or its close, does.

        Raises:
            CommitError: a process has not stored its part.
        """
        target = _local(directory)
        saving.commit(target, report=self._take_report(target))
        with self._lock:
            self._published.add(target)

    def restore(
        self, directory: os.PathLike[str], args: ocp.args.CheckpointArgs | None = None
    ) -> Any:
        """Return the stored tree, as the arguments ask for it.

        Raises:
            NotFound: the directory holds no item of this package.
            Mismatch: stored and wanted leaves differ; names each.
            Corrupt: stored bytes are not what was written; names where.
        """
        source = _local(directory)
        request = self._request(source, args)
        found = restoring.restored(
            source,
            request.abstract,
            request.leaves,
            options=self._options,
            strict=request.strict,
            fallback_sharding=request.fallback_sharding,
            partial=request.partial,
        )
        if request.leaves is None:
            self._known_plans().expect(found.tree)
        if found.is_whole:  # training goes on from it
            self._steps.note_restored(source)
        return found.tree

    def metadata(self, directory: os.PathLike[str]) -> Any:
        """Return Orbax's `TreeMetadata` of the item, read from its manifest alone.

        Raises:
            NotFound: the directory holds no item of this package.
        """
        source = _local(directory)
        return tree_metadata(commit.read_manifest(source), source)

    def close(self) -> None:
        """Make Orbax's last renames durable and let go of the buffers.

        A save that still runs keeps its buffers until it ends. `KeepBases` keeps nothing for this
        handler any more, unless it saves again.

        Raises:
            IoError: an item may not be durable; names it.
        """
        try:
            self._sync_renames()
        finally:
            self._steps.close()
            with self._lock:
                self._pool = None

    @classmethod
    def typestr(cls) -> str:
        """Return the name under which Orbax notes this handler in a checkpoint, for ever."""
        return "orbax_gds.GdsCheckpointHandler"

    def _prepare(self, args: ocp.args.CheckpointArgs) -> saving.Prepared:
        if isinstance(args, GdsSave):
            tree = args.item
        elif isinstance(args, dropin.SAVE_ARGS):
            tree = dropin.saved_tree(args)
        else:
            raise Unsupported(_wrong_arguments(args, (GdsSave, *dropin.SAVE_ARGS)))
        return saving.prepare(
            tree,
            options=self._options,
            custom_metadata=args.custom_metadata,
            cache=self._known_plans(),
        )

    def _write(
        self,
        prepared: saving.Prepared,
        target: FilePath,
        when_staged: Callable[[], None] | None = None,
    ) -> None:
        report = prepared.write(
            target,
            pool=self._shared_pool(),
            storage=self._storage,
            when_staged=when_staged,
            steps=self._steps,
        )
        if report.process == 0:  # the others log theirs at once, and publish nothing
            with self._lock:
                self._synced[target] = report

    def _take_report(self, target: FilePath) -> SaveReport | None:
        with self._lock:
            return self._synced.pop(target, None)

    def _known_plans(self) -> PlanCache:
        with self._lock:
            self._plans = self._plans or saving.make_cache(self._options)
            return self._plans

    def _count_failure(self, directory: FilePath) -> None:
        with self._lock:
            self._failed[directory] += 1
            self._synced.pop(directory, None)

    def _sync_renames(self) -> None:
        """Sync the directories in which Orbax has renamed what was published.

        Raises:
            IoError: an older item may not be durable; names it.
        """
        with self._lock:
            published, self._published = self._published, set()
        renamed = [final_path(item) for item in published]
        directories = {parent: item for item in renamed for parent in item.parents[:2]}
        failed: list[tuple[FilePath, IoError]] = []
        for directory, item in directories.items():
            try:
                commit.sync_directory(directory)
            except NotFound:  # deleted since, or never renamed
                continue
            except IoError as err:
                failed.append((item, err))
        if failed:
            item, err = failed[0]
            raise IoError(
                err.errno,
                f"The older item {item}, saved before this, is published but may be lost if the "
                f"machine crashes: {err.strerror}. Check the disk and save again",
                err.filename,
            ) from err

    def _shared_pool(self) -> BufferPool:
        with self._lock:
            self._pool = self._pool or saving.make_pool(self._options)
            return self._pool

    def _request(self, source: FilePath, args: ocp.args.CheckpointArgs | None) -> RestoreRequest:
        if args is None:
            return RestoreRequest()
        if isinstance(args, GdsRestore):
            return RestoreRequest(
                abstract=args.item,
                leaves=args.leaves,
                strict=args.strict,
                fallback_sharding=args.fallback_sharding,
                partial=args.partial_restore,
            )
        if isinstance(args, dropin.RESTORE_ARGS):
            return dropin.restore_request(args, lambda: commit.read_manifest(source).leaves)
        raise Unsupported(_wrong_arguments(args, (GdsRestore, *dropin.RESTORE_ARGS)))


def _local(directory: os.PathLike[str]) -> FilePath:
    text = os.fspath(directory)
    if "://" in text:
        raise Unsupported(f"{text} is not a local path. orbax_gds writes local file systems only.")
    return FilePath(text)


def _await_staged(prepared: saving.Prepared, future: Future) -> None:
    """Wait until the tree is not needed any more, or until the future has ended without `write`.

    Orbax ends it so where the directories are not made; its caller raises the error.
    """

    def let_go_at_the_end() -> None:
        with contextlib.suppress(BaseException):
            future.result()
        prepared.let_go()

    if not prepared.staged.is_set():
        threading.Thread(target=let_go_at_the_end, name="orbax_gds_staged", daemon=True).start()
        prepared.staged.wait()


def _await_directories() -> None:
    """Wait until Orbax has made the directories of a save that is about to fail.

    It makes them in threads. A second save or the end of the manager would race with these, and
    where they lose, Orbax keeps the process alive for five minutes.
    """

    async def nothing() -> None:
        pass

    with contextlib.suppress(TimeoutError):  # the error at hand says more
        CommitFutureAwaitingContractedSignals(
            nothing(), name="orbax_gds_directories", timeout_secs=_MOST_DIRECTORY_SECS
        ).result()


def _wrong_arguments(args: Any, known: Sequence[type]) -> str:
    names = ", ".join(kind.__name__ for kind in known)
    return f"GdsCheckpointHandler was given {type(args).__name__}. Give one of {names}."


ocp.args.register_with_handler(GdsCheckpointHandler, for_save=True)(GdsSave)
ocp.args.register_with_handler(GdsCheckpointHandler, for_restore=True)(GdsRestore)


def handler_registry(
    options: Options | None = None, *, items: Iterable[str] | None = None
) -> ocp.handlers.CheckpointHandlerRegistry:
    """Return a registry under which code for Orbax's own handlers saves through this package.

    Pass it to `ocp.CheckpointManager(path, handler_registry=...)`; calls with StandardSave,
    StandardRestore, PyTreeSave and PyTreeRestore then need no change.

    Args:
        options: how to save and restore; None takes `Options.from_environment()`.
        items: names of the items to serve ("default" is the one of a manager without item names);
            None serves every item. Others keep Orbax's handlers.

    Returns:
        A `DefaultCheckpointHandlerRegistry` with one handler for all; add to it as you like.

    Example:
        >>> manager = ocp.CheckpointManager(path, handler_registry=handler_registry())
    """
    handler = GdsCheckpointHandler(options)
    registry = ocp.DefaultCheckpointHandlerRegistry()
    for item in (None,) if items is None else items:
        for args in (GdsSave, GdsRestore, *dropin.SAVE_ARGS, *dropin.RESTORE_ARGS):
            registry.add(item, args, handler)
    return registry
