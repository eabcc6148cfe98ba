"""The threads of a save that code its chunks and write them, in order, to one stripe."""

import threading
import uuid
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from orbax_gds import _native
from orbax_gds import stripe as stripes
from orbax_gds.bandwidth import WriteMeter
from orbax_gds.drivers import File
from orbax_gds.monitoring import Stopwatch
from orbax_gds.options import Options
from orbax_gds.pacing import Pace
from orbax_gds.plan import Cut, Run
from orbax_gds.staging import BufferPool, aligned_empty
from orbax_gds.threads import run_threads

__all__ = ["Source", "StripeWriter"]


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

    def encode(self, run: Run, out: np.ndarray, records: np.ndarray) -> int:
        """Code a run into `out`; return the bytes it took."""
        ...


class StripeWriter:
    """Writes one stripe with several threads, its bytes independent of their number.

    A thread takes a buffer, then the next run; codes it; waits until the runs before it have
    their place in the file; takes its own place; writes. As a buffer is taken before a run, the
    earliest run always has one, so that waiting ends.

    Args:
        source: the save.
        file: open for writing, empty.
        pool: buffers that hold a coded run each.
        meter: of what writing takes.
        pace: that its frames keep.

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
        self._runs: Iterator[tuple[int, Run]] = iter(())
        self._turn = threading.Condition()
        self._placed = 0  # runs that have their place
        self._offset = 0  # where the next run goes
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
            self._runs = enumerate(runs, self._placed)
            n_threads = min(self.source.options.n_workers, len(runs))
            run_threads(n_threads, self._work, self._stop)
            if self._error is not None:
                raise self._error
        index = self.records.tobytes()
        footer = stripes.encode_footer(
            index_at=self._offset,
            index=index,
            uuid=self.uuid,
            layout_crc32c=_native.crc32c(layout),
        )
        self._write_block(self._offset, index + footer)
        self.file_bytes = self._offset + len(index) + len(footer)

    def _write_block(self, offset: int, data: bytes) -> None:
        block = aligned_empty(stripes.align(len(data), stripes.PAGE_BYTES))
        block[: len(data)] = np.frombuffer(data, np.uint8)
        block[len(data) :] = 0
        with self.meter.measure():
            self.file.write(offset, block)

    def _work(self) -> None:
        try:
            while self._step():
                pass
        except BaseException as error:  # carried to the thread that called write
            self._stop(error)

    def _stop(self, error: BaseException) -> None:
        with self._turn:
            self._error = self._error or error
            self._turn.notify_all()
        self._stopped.set()

    def _step(self) -> bool:
        with self.pool.acquire() as buffer:
            with self._turn:
                number, run = next(self._runs, (0, None))
                if run is None or self._error is not None:
                    return False
            first = int(run.chunks[0, 0])
            records = self.records[first : first + len(run.chunks)]
            with self.source.watch.time("encode"):
                n_bytes = self.source.encode(run, buffer.memory, _as_bytes(records))
            offset = self._place(number, n_bytes)
            if offset is None:
                return False
            records["offset"] += np.uint64(offset)
            if self.source.options.io_rate is not None:
                with self.source.watch.time("pace"):
                    self._pace.wait(n_bytes, self._stopped)
            if self._error is not None:
                return False
            with self.source.watch.time("write"), self.meter.measure():
                self.file.write(offset, buffer.memory[:n_bytes])
        return True

    def _place(self, number: int, n_bytes: int) -> int | None:
        """Wait for the runs before this one and return its offset; None if one of them failed."""
        with self._turn:
            self._turn.wait_for(lambda: self._placed == number or self._error is not None)
            if self._error is not None:
                return None
            offset = self._offset
            self._offset += n_bytes
            self._placed += 1
            self._turn.notify_all()
            return offset


def _as_bytes(records: np.ndarray) -> np.ndarray:
    return records.view(np.uint8).reshape(-1, stripes.RECORD_BYTES)
