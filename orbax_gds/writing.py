"""An item from words that lie in host memory, or in a file that is mapped, without jax."""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path as FilePath
from typing import Any

import msgspec
import numpy as np

from orbax_gds import _native, sidecar, weighing
from orbax_gds import stripe as stripes
from orbax_gds._version import __version__
from orbax_gds.bandwidth import WriteMeter
from orbax_gds.chains import RunLinks
from orbax_gds.commit import io_context, leave_pending, make_directory, publish, sync_directory
from orbax_gds.derived import FEATURE, DerivedShard
from orbax_gds.deriving import find_derived
from orbax_gds.drivers import open_driver
from orbax_gds.dtypes import dtype_by_name
from orbax_gds.errors import Exists
from orbax_gds.manifest import (
    FORMAT_VERSION,
    LeafSpec,
    Pending,
    StripeSpec,
    check_custom_metadata,
    list_leaves,
)
from orbax_gds.monitoring import Stopwatch
from orbax_gds.options import Options
from orbax_gds.pacing import pace_of
from orbax_gds.plan import Cut, Run, ShardBox, make_plan
from orbax_gds.staging import BufferPool
from orbax_gds.stripe_writer import StripeWriter

__all__ = ["new_directory", "write_item"]

_PROCESS = 0
Progress = Callable[[int, int], None]


@contextlib.contextmanager
def new_directory(path: FilePath) -> Iterator[None]:
    """Make a directory, and its parents, for the block to fill; durable when it is left.

    If the block raises, what was made is removed.

    Raises:
        Exists: there is something at the path.
    """
    made = [each for each in path.parents if not each.exists()]
    make_directory(path.parent)
    with io_context(path, "make the directory"):
        try:
            path.mkdir()  # of several that want it one gets it
        except FileExistsError as err:
            what = f"{path} exists already. Give another place, or delete it."
            raise Exists(what) from err
    try:
        yield
        for parent in (path.parent, *(each.parent for each in made)):
            sync_directory(parent)
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):  # somebody else may use them by now
            for parent in made:
                parent.rmdir()
        raise


def write_item(
    path: str | os.PathLike[str],
    leaves: Sequence[LeafSpec],
    words: Sequence[np.ndarray | None],
    *,
    options: Options | None = None,
    custom_metadata: Any = None,
    progress: Progress | None = None,
) -> None:
    """Write and publish a full item of one stripe.

    Args:
        path: directory of the item, where nothing is yet.
        leaves: what the manifest says of them, without shardings.
        words: uint8[n] of each leaf, in C order; None for one without words. Those of a mapped
            file are read where they are coded, so that they need not fit into memory.
        options: how to write; None takes the defaults and the environment. Storage is not
            weighed: codec "auto" codes.
        custom_metadata: JSON of the user's.
        progress: called with the bytes of words coded so far and in all.

    Raises:
        Exists: there is something at the path.
        Unsupported: the custom metadata is no JSON.
        IoError, CommitError: the system refused; nothing is left behind.
    """
    check_custom_metadata(custom_metadata)
    directory = FilePath(path)
    source = _Loaded(leaves, words, options or Options.from_environment(), progress)
    with new_directory(directory):
        driver = open_driver(source.options.driver, directory)
        name = stripes.file_name(_PROCESS)
        with (
            BufferPool(source.buffer_bytes(), source.options.n_workers) as pool,
            driver.open(directory / name, "w") as file,
        ):
            pace = pace_of(source.options.bytes_per_second)
            writer = StripeWriter(source, file, pool, WriteMeter(), pace)
            writer.write()
            file.sync(writer.file_bytes)
        metadata = sidecar.encode(sidecar.encode_tree(leaves), custom_metadata)
        leave_pending(
            directory, source.manifest(writer.uuid, custom_metadata), {sidecar.NAME: metadata}
        )
        sync_directory(directory)
        publish(directory)


class _Loaded:
    """Leaves in host memory, as the writer of a stripe sees them."""

    process = _PROCESS

    def __init__(
        self,
        leaves: Sequence[LeafSpec],
        words: Sequence[np.ndarray | None],
        options: Options,
        progress: Progress | None,
    ) -> None:
        self.options, self.leaves = options, tuple(leaves)
        self.watch = Stopwatch()
        self.coding = weighing.as_asked(options.codec, "written from host memory")
        self._progress = progress or (lambda done, total: None)
        boxes, self.words = [], []
        for leaf, (spec, held) in enumerate(zip(leaves, words, strict=True)):
            if held is not None and held.size:
                shape = spec.shape or ()
                boxes.append(ShardBox(leaf=leaf, start=(0,) * len(shape), extent=shape))
                self.words.append(held)
        self.cut = self._cut(boxes, ())
        self.n_derived = 0
        if options.derive:
            self._leave_out_derived(boxes)
        self._n_done, self._n_bytes = 0, sum(run.n_bytes for run in self.cut.plan.runs)

    def _cut(self, boxes: Sequence[ShardBox], derived: Sequence[DerivedShard]) -> Cut:
        dtypes = [None if s.dtype is None else dtype_by_name(s.dtype) for s in self.leaves]
        plan = make_plan(boxes, dtypes, int(self.options.chunk_bytes))
        return Cut(plan=plan, layout=stripes.encode_layout((*plan.shards, *derived)))

    def _leave_out_derived(self, boxes: Sequence[ShardBox]) -> None:
        shards = self.cut.plan.shards
        derived = find_derived(shards, self.words, self.leaves, self.options.n_workers)
        self.n_derived = len(derived)
        if derived:
            kept = [number for number in range(len(boxes)) if number not in derived]
            self.words = [self.words[number] for number in kept]
            self.cut = self._cut([boxes[number] for number in kept], tuple(derived.values()))

    def buffer_bytes(self) -> int:
        """Return how long a buffer must be that holds any coded run."""
        longest = max(map(_most_bytes, self.cut.plan.runs), default=0)
        return stripes.align(longest + stripes.PAGE_BYTES, stripes.PAGE_BYTES)

    def each_window(self) -> Iterator[Sequence[Run]]:
        """Yield the runs, as their words are at hand."""
        yield self.cut.plan.runs

    def words_of(self, run: Run) -> Sequence[np.ndarray]:
        """Return the buffers that the segments of a run name."""
        self._n_done += run.n_bytes
        self._progress(self._n_done, self._n_bytes)
        return self.words[run.first_buffer : run.end_buffer]

    def links_of(self, run: Run) -> RunLinks:
        """Return what the chunks of a run are coded against: nothing."""
        return (), None

    def leave_base(self, err: _native.BrokenBase) -> None:
        """Raise what is said of a base, as there is none."""
        raise err

    def manifest(self, uuid: bytes, custom_metadata: Any) -> Pending:
        """Return what publication needs to know."""
        listed = list_leaves(self.leaves)
        resolved = {"coding": self.coding.codec, "zstd_level": self.coding.zstd_level}
        stripe = StripeSpec(
            file=stripes.file_name(_PROCESS),
            uuid=uuid.hex(),
            bytes=0,
            layout_crc32c="",
            index_crc32c="",
        )
        return Pending(
            format=FORMAT_VERSION,
            requires=(*listed.requires, FEATURE) if self.n_derived else listed.requires,
            writer=f"orbax_gds {__version__}",
            leaves=listed.leaves,
            kinds=listed.kinds,
            shardings=msgspec.Raw(b"[]"),
            stripes=(stripe,),
            sidecars={},
            options=self.options.as_json() | resolved,
            custom_metadata=custom_metadata,
        )


def _most_bytes(run: Run) -> int:
    rows = run.chunks[:, 1:3].tolist()
    return sum(_native.max_frame_bytes(n_words, dtype) for n_words, dtype in rows)
