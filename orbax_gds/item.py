"""A published item, opened for reading: checked, jax-free, read chunk by chunk."""

import contextlib
import errno
import functools
import os
import threading
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path as FilePath

import numpy as np

from orbax_gds import stripe as stripes
from orbax_gds.chains import base_places, links_of, open_chain
from orbax_gds.chunk_reader import ChunkReader, Stripe
from orbax_gds.chunk_table import chunk_table
from orbax_gds.commit import io_context, read_manifest
from orbax_gds.coverage import check_coverage
from orbax_gds.derived import DerivedShard, by_leaf, problems
from orbax_gds.drivers import Driver, few_open, open_driver
from orbax_gds.dtypes import Dtype, dtype_by_name
from orbax_gds.errors import Corrupt, IoError, NotFound
from orbax_gds.loaded_frames import buffer_bytes
from orbax_gds.manifest import Manifest, StripeSpec, crc_text, path_text
from orbax_gds.options import Options
from orbax_gds.parts import parts_of
from orbax_gds.plan import ShardBox, StoredShard
from orbax_gds.read_plan import Wanted, plan_reads
from orbax_gds.staging import BufferPool, aligned_empty
from orbax_gds.stripe_file import open_stripe
from orbax_gds.threads import run_tasks
from orbax_gds.uncollected import uncollected

_ARRAY_ALIGNMENT = 64  # chosen: jax takes memory that begins so without a copy


# chosen: of all threads; half of what a restore may take beside its state
_BUFFER_BYTES = 128 << 20
_THREADS_A_WORKER = 2  # chosen: while one reads, the other decodes


class Item(contextlib.AbstractContextManager["Item"]):
    """A published item whose manifest, layouts and indexes have been checked.

    Frames are checked when they are read. Use as a context manager.

    Attributes:
        path: the item's directory.
        manifest: what it holds.
        dtypes: dtype of each leaf, None for a leaf without words.
        stripes: its stripes.
        bytes_read: stored bytes read so far, all that `read` asked the driver for.
    """

    def __init__(self, path: str | os.PathLike[str], *, options: Options | None = None) -> None:
        """Open and check an item.

        Raises:
            NotFound: there is no published item, or a stripe is missing.
            Corrupt: what was read is damaged or does not belong together.
            Unsupported: a newer version wrote it.
        """
        self.path = FilePath(path)
        self.options = options or Options.from_environment()
        self.manifest: Manifest = read_manifest(self.path)
        self.dtypes: list[Dtype | None] = [
            None if leaf.dtype is None else dtype_by_name(leaf.dtype)
            for leaf in self.manifest.leaves
        ]
        self.bytes_read = 0
        self.stripes: list[Stripe] = []
        self._closing = contextlib.ExitStack()
        self._lock, self._n_reading, self._is_closed = threading.Lock(), 0, False
        try:
            places = base_places(self.path, self.manifest)
            n_files = len(self.manifest.stripes) + len(places)
            driver = few_open(open_driver(self.options.driver, self.path), n_files)
            with uncollected():
                for spec in self.manifest.stripes:
                    self.stripes.append(self._open_stripe(driver, spec, places))
                self._check_derived()
                self._check_coverage()
            self._check_sidecars()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the stripes, once those that read now are done; none may begin any more."""
        with self._lock:
            self._is_closed, is_read = True, self._n_reading > 0
        if not is_read:
            self._closing.close()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Keep the stripes open for a block: the number of a closed file may mean another one."""
        with self._lock:
            if self._is_closed:
                raise IoError(errno.EBADF, "Cannot read an item that was closed", str(self.path))
            self._n_reading += 1
        try:
            yield
        finally:
            with self._lock:
                self._n_reading -= 1
                is_last = self._is_closed and not self._n_reading
            if is_last:
                self._closing.close()

    def leaf_name(self, leaf: int) -> str:
        """Return the path of a leaf as text, for messages."""
        return path_text(self.manifest.leaves[leaf].path)

    def _open_stripe(
        self, driver: Driver, spec: StripeSpec, places: Mapping[str, FilePath]
    ) -> Stripe:
        opened = open_stripe(driver, self.path / spec.file, spec)
        self._closing.callback(opened.file.close)
        chain = open_chain(driver, places, self.manifest, spec)
        for link in chain:
            self._closing.callback(link.file.close)
        where = str(opened.path)
        shards, derived = stripes.parted(stripes.decode_layout(opened.layout, where))
        return Stripe(
            path=opened.path,
            file=opened.file,
            shards=shards,
            derived=derived,
            table=chunk_table(shards, self.dtypes, len(opened.records), where),
            records=opened.records,
            chain=chain,
        )

    def _check_derived(self) -> None:
        stored = (shard for stripe in self.stripes for shard in stripe.shards)
        derived = [shard for stripe in self.stripes for shard in stripe.derived]
        for _, what in problems(self.manifest, stored, derived):
            raise Corrupt(
                f"{self.path}: {what}. A stripe or the manifest belongs to another item; "
                "restore another step or a copy of this one."
            )
        self._derived = by_leaf(derived)

    def _check_coverage(self) -> None:
        boxes: list[list[StoredShard | DerivedShard]] = [[] for _ in self.dtypes]
        for stripe in self.stripes:
            for shard in (*stripe.shards, *stripe.derived):
                boxes[shard.leaf].append(shard)
        known: dict[Hashable, bool] = {}
        for leaf, spec in enumerate(self.manifest.leaves):
            own = boxes[leaf]
            if spec.shape is None or (
                len(own) == 1 and own[0].extent == spec.shape and not any(own[0].start)
            ):
                continue  # as most leaves: not to make up a name for each
            check_coverage(self.leaf_name(leaf), spec.shape, own, known)

    def _check_sidecars(self) -> None:
        for name, spec in self.manifest.sidecars.items():
            path = self.path / name
            try:
                with io_context(path, "read"):
                    same = path.stat().st_size == spec.bytes
                    same = same and crc_text(path.read_bytes()) == spec.crc32c
            except NotFound as err:
                raise Corrupt(
                    f"{path} is missing, but the manifest lists it. The item was changed after it "
                    "was saved; restore another step or a copy of this one."
                ) from err
            if not same:
                raise Corrupt(
                    f"{path} is not as it was written: its length or CRC32C differs. "
                    "Restore another step or a copy of this one."
                )

    def read_leaf(self, leaf: int) -> np.ndarray:
        """Read a whole leaf into fresh memory.

        Args:
            leaf: its number in the manifest; it must have words.

        Returns:
            The leaf with its stored dtype and global shape, in C order.

        Raises:
            Corrupt: a frame is damaged.
        """
        shape = self.manifest.leaves[leaf].shape
        assert shape is not None, f"leaf {leaf} has no words"
        return self.read_box(ShardBox(leaf=leaf, start=(0,) * len(shape), extent=shape))

    def read_box(self, box: ShardBox) -> np.ndarray:
        """Read a part of one leaf into fresh memory; only the frames it meets are read."""
        dtype = self.dtypes[box.leaf]
        assert dtype is not None, f"leaf {box.leaf} has no words"
        words = aligned_empty(box.n_elements * dtype.element_bytes, _ARRAY_ALIGNMENT)
        self.read([box], [words])
        return dtype.elements(words.view(dtype.word_dtype), box.extent)

    def read(self, wants: Sequence[ShardBox], buffers: Sequence[np.ndarray]) -> None:
        """Read boxes of leaves into the caller's memory, with several threads.

        Args:
            wants: boxes inside their leaves; empty ones are allowed.
            buffers: uint8[n], C-contiguous, as long as the words of its want.

        Raises:
            Corrupt: a frame is damaged; the buffers then hold nothing of use.
            Unsupported: a newer version wrote a frame.
            IoError: the operating system refused a read.
        """
        with uncollected():
            parts = parts_of(wants, self._derived)
            wanted = Wanted(parts)
            queue = [
                (stripe, read)
                for stripe in self.stripes
                for read in plan_reads(
                    stripe.shards,
                    stripe.by_leaf,
                    wanted,
                    self.dtypes,
                    *stripe.frames,
                    functools.partial(links_of, stripe.records, stripe.chain),
                )
            ]
        self.bytes_read += sum(read.all_bytes for _, read in queue)
        if not queue:
            return
        if any(read.links for _, read in queue):  # what takes long must not be what is waited for
            queue.sort(key=lambda task: task[1].decoded_bytes, reverse=True)
        longest = max(buffer_bytes(read.ranges) for _, read in queue)
        n_threads = min(_THREADS_A_WORKER * self.options.n_workers, len(queue))
        n_threads = max(1, min(n_threads, _BUFFER_BYTES // longest))
        with self._reading(), BufferPool(longest, n_threads, is_touched=False) as pool:
            reader = ChunkReader(
                leaf_name=self.leaf_name,
                dtypes=self.dtypes,
                all_stripes=self.stripes,
                parts=parts,
                buffers=buffers,
                pool=pool,
                n_reading=self.options.n_workers,
            )
            run_tasks(queue, lambda task: reader.read(*task), n_threads)
