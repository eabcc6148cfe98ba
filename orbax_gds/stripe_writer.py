"""The threads of a save that code its chunks and write them, in order, to one stripe.

The order, the coding and, where it can, the writing are native. Every time a thread of Python comes
back from what runs without the GIL, it takes it from the training loop: measured on a loop in pure
Python, 0.2 ms for the loop and 5 ms for the thread. So it comes back twice a second, not at every
run.
"""

import threading
import uuid
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from orbax_gds import _native
from orbax_gds import stripe as stripes
from orbax_gds.bandwidth import WriteMeter
from orbax_gds.chains import RunLinks
from orbax_gds.codecs import codec_by_id
from orbax_gds.drivers import File
from orbax_gds.dtypes import CONTAINER_BYTES
from orbax_gds.monitoring import CodecBytes, Stopwatch
from orbax_gds.options import Options
from orbax_gds.pacing import Pace
from orbax_gds.plan import Cut, Run
from orbax_gds.staging import BufferPool, aligned_empty
from orbax_gds.threads import run_threads
from orbax_gds.weighing import Coding

__all__ = ["Source", "StripeWriter"]

_SLICE_SECS = 0.5  # chosen: so long an interrupt waits, and another save for a buffer


class Source(Protocol):
    """A save, as the writer of its stripe sees it."""

    @property
    def process(self) -> int:
        """Number of the process."""
        ...

    @property
    def cut(self) -> Cut:
        """What is stored."""
        ...

    @property
    def options(self) -> Options:
        """How."""
        ...

    @property
    def watch(self) -> Stopwatch:
        """Where the seconds of the stages are added up."""
        ...

    def each_window(self) -> Iterator[Sequence[Run]]:
        """Yield runs whose words are in host memory."""
        ...

    @property
    def coding(self) -> Coding:
        """How words are coded."""
        ...

    def words_of(self, run: Run) -> Sequence[np.ndarray]:
        """Return the buffers that the segments of a run name, in host memory."""
        ...

    def links_of(self, run: Run) -> RunLinks:
        """Return what the chunks of a run are coded against, if anything."""
        ...

    def leave_base(self, err: _native.BrokenBase) -> None:
        """Say nothing in `links_of` any more; the last runs are written again.

        Raises:
            BrokenBase: the stripe is to be written again from its beginning.
        """
        ...


class StripeWriter:
    """Writes one stripe with several threads, its bytes independent of their number.

    A thread takes a buffer, then the next run; codes it; waits until the runs before it have
    their place in the file; takes its own place; writes; and so on with the same buffer for a
    while. As a buffer is taken before a run, the earliest run always has one, so that waiting ends.

    Args:
        source: the save.
        file: open for writing, empty.
        pool: buffers that hold a coded run each.
        meter: of what writing takes.
        pace: that its writes keep.

    Attributes:
        uuid: of the stripe, 16 bytes.
        records: stripes.RECORD[n_chunks], the index.
        file_bytes: length of the stripe, once it is written.
    """

    def __init__(
        self, source: Source, file: File, pool: BufferPool, meter: WriteMeter, pace: Pace
    ) -> None:
        self.source, self.file, self.pool = source, file, pool
        self.records = np.zeros(source.cut.plan.n_chunks, stripes.RECORD)
        self.uuid = uuid.uuid4().bytes
        self.file_bytes = 0
        self._offset = 0  # where the next block or run goes
        self._lock = threading.Lock()  # of the error and of whom it stops
        self._runs: _native.RunWriter | None = None
        self._error: BaseException | None = None
        self.meter = meter
        self._pace = pace
        self._stopped = threading.Event()

    def write(self) -> None:
        """Write header, layout, frames, index and footer; not synced."""
        layout = self.source.cut.layout
        head = stripes.encode_head(
            process=self.source.process,
            uuid=self.uuid,
            layout=layout,
            n_chunks=self.source.cut.plan.n_chunks,
        )
        self._write_block(0, head)
        self._offset = len(head)
        for runs in self.source.each_window():
            try:
                self._write_runs(runs)
            except _native.BrokenBase as err:
                self.source.leave_base(err)
                self._error = None
                self._stopped.clear()
                self._write_runs(runs)  # over what was written of them
        index = self.records.tobytes()
        footer = stripes.encode_footer(
            index_at=self._offset,
            index=index,
            uuid=self.uuid,
            layout_crc32c=_native.crc32c(layout),
        )
        self._write_block(self._offset, index + footer)
        self.file_bytes = self._offset + len(index) + len(footer)

    def bytes_by_codec(self) -> dict[str, CodecBytes]:
        """Return what each codec took and what it made of that, once all is written."""
        taken = self.records["n_words"] * CONTAINER_BYTES[self.records["dtype"]]
        bytes_in = np.bincount(self.records["codec"], weights=taken)
        bytes_out = np.bincount(self.records["codec"], weights=self.records["frame_bytes"])
        return {
            codec_by_id(codec).name: CodecBytes(bytes_in=int(n_in), bytes_out=int(n_out))
            for codec, (n_in, n_out) in enumerate(zip(bytes_in, bytes_out, strict=True))
            if n_out
        }

    def _write_block(self, offset: int, data: bytes) -> None:
        block = aligned_empty(stripes.align(len(data), stripes.PAGE_BYTES))
        block[: len(data)] = np.frombuffer(data, np.uint8)
        block[len(data) :] = 0
        self._keep_pace(len(block))
        with self.meter.measure():
            self.file.write(offset, block)

    def _keep_pace(self, n_bytes: int) -> None:
        if self.source.options.io_rate is not None:
            with self.source.watch.time("pace"):
                self._pace.wait(n_bytes, self._stopped)

    def _write_runs(self, runs: Sequence[Run]) -> None:
        coding = self.source.coding
        writer = _native.RunWriter(
            map(self._arguments, runs),
            offset=self._offset,
            codec=coding.codec,
            zstd_level=coding.zstd_level,
            align_bytes=stripes.PAGE_BYTES,
        )
        with self._lock:
            self._runs = writer
        try:
            n_threads = min(self.source.options.n_workers, len(runs))
            run_threads(n_threads, lambda: self._work(writer), self._stop)
            if self._error is not None:
                raise self._error
        finally:
            writer.close()  # lets go of the words, even where a traceback keeps this frame
        self._offset = writer.offset
        self._count(writer.secs())

    def _arguments(
        self, run: Run
    ) -> tuple[
        Sequence[np.ndarray],
        np.ndarray,
        np.ndarray,
        np.ndarray,
        Sequence[tuple[int, np.ndarray]],
        np.ndarray | None,
    ]:
        first = int(run.chunks[0, 0])
        records = _as_bytes(self.records[first : first + len(run.chunks)])
        links, only_if_alike = self.source.links_of(run)
        words = self.source.words_of(run)
        return words, run.segments, run.chunks, records, links, only_if_alike

    def _count(self, secs: dict[str, float]) -> None:
        for stage in ("read base", "decode base"):
            if took := secs[stage.replace(" ", "_")]:
                self.source.watch.add(stage, took)
        self.source.watch.add("encode", secs["encode"])
        self.source.watch.add("write", secs["write"])
        self.meter.add(
            busy_secs=secs["busy"],
            thread_secs=secs["write"],
            cpu_secs=secs["write_cpu"],
            queued_secs=secs["write_queued"],
        )

    def _work(self, writer: _native.RunWriter) -> None:
        try:
            while self._step(writer):
                pass
        except BaseException as error:  # carried to the thread that called write
            self._stop(error)

    def _stop(self, error: BaseException) -> None:
        with self._lock:
            self._error = self._error or error
            if self._runs is not None:
                self._runs.stop()
        self._stopped.set()

    def _step(self, writer: _native.RunWriter) -> bool:
        """Write runs for a while, or one; return whether there may be more."""
        is_paced = self.source.options.io_rate is not None
        with self.pool.acquire() as buffer:
            if self.file.descriptor is None or is_paced:
                placed = writer.code(buffer.memory)
            else:
                placed = writer.write(self.file.descriptor, buffer.memory, most_secs=_SLICE_SECS)
            if placed is None:
                return False
            offset, n_bytes = placed
            if n_bytes == 0:
                return True
            self._keep_pace(n_bytes)
            if self._error is not None:
                return False
            with self.source.watch.time("write"), self.meter.measure():
                self.file.write(offset, buffer.memory[:n_bytes])
        return True


def _as_bytes(records: np.ndarray) -> np.ndarray:
    return records.view(np.uint8).reshape(-1, stripes.RECORD_BYTES)
