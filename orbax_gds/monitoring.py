"""What a save measures of itself: seconds per stage, bytes, the path that carried them."""

import dataclasses
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from orbax_gds.final_names import item_text
from orbax_gds.threads import cpu_secs

State = Literal["synced", "published", "committed"]


class Stopwatch:
    """Adds up seconds per stage; threads may time the same stage at once.

    Attributes:
        seconds: by stage.
        blocking_secs, blocking_cpu_secs: what `unblock` ended, of the clock and of the processors.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._lock = threading.Lock()
        self._is_blocking = True
        self._began = _Reading()
        self.blocking_secs = self.blocking_cpu_secs = 0.0

    @contextmanager
    def time(self, stage: str) -> Iterator[None]:
        """Add the time that the block takes to a stage."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.add(stage, time.perf_counter() - began)

    def add(self, stage: str, secs: float) -> None:
        """Add time that was measured elsewhere to a stage."""
        with self._lock:
            self.seconds[stage] = self.seconds.get(stage, 0.0) + secs

    def unblock(self) -> None:
        """Note that training may go on; later calls change nothing."""
        with self._lock:
            if self._is_blocking:
                self._is_blocking = False
                now = _Reading()
                self.blocking_secs = now.secs - self._began.secs
                self.blocking_cpu_secs = now.process_secs - self._began.process_secs


class _Reading:
    """The clocks at one moment."""

    def __init__(self) -> None:
        self.secs, self.process_secs = time.perf_counter(), time.process_time()


class Lap:
    """Seconds since its making, and processor time of this thread and of those it ran since."""

    def __init__(self) -> None:
        self._secs, self._cpu_secs = time.perf_counter(), cpu_secs()

    @property
    def secs(self) -> float:
        """Seconds that passed."""
        return time.perf_counter() - self._secs

    @property
    def cpu_secs(self) -> float:
        """Processor time; ask in the thread that made it."""
        return cpu_secs() - self._cpu_secs


@dataclasses.dataclass(frozen=True, kw_only=True)
class CodecBytes:
    """What one codec was given, in bytes of words, and made of it, in bytes of frames."""

    bytes_in: int
    bytes_out: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChunkBytes:
    """Chunks that were coded alike: their number, bytes of words in, bytes of frames out."""

    n_chunks: int
    bytes_in: int
    bytes_out: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessReport:
    """What one process's part of a save did.

    Attributes:
        process: its number.
        n_leaves: leaves of the item, those without words included.
        n_chunks: chunks this process wrote.
        bytes_in: bytes of the words this process saved, derived ones among them.
        bytes_out: bytes of its stripe.
        n_derived: its shards that are not stored, as their words follow from other leaves'.
        bytes_derived: bytes of the words of these.
        coding: what `Options.codec` came to in this process: "auto", "fast", "max" or "off".
        coding_reason: why: not weighed, or the speeds that were.
        codecs: bytes in and out of each codec in use.
        driver: the path that really carried the bytes: "direct" or "buffered".
        driver_reason: why not the preferred one; None if it was.
        plan_known: whether the structure of the tree was that of an earlier save or restore.
        blocking_secs: for how long training waited for us.
        blocking_cpu_secs: processor time of the whole process meanwhile.
        background_secs: for how long the save went on in the background, until it was synced.
        cpu_secs: processor time of the save's own threads in the background.
        seconds: per stage: "plan" and "snapshot" blocked training; "derive" looked for words that
            follow from others; "weigh" measured storage and codecs, where the choice was worth it;
            "encode", "pace" (waiting for `io_rate`) and "write" are summed over threads; "sync";
            "commit", of process 0 alone, is publication. Of a save that may be a delta "find base"
            looked for the step before it, and in a sample for what of it is of use; "read base" and
            "decode base", summed over threads, brought its words.
        base: uuid of the stripe of an earlier step that this one's deltas follow from; None of a
            full step.
        chain_length: stripes of earlier steps that this one needs, 0 for a full step.
        delta_reason: why the step is full although `Options.delta` allows for deltas, else None.
        chunks: of a delta, by "unchanged" (from the base), "delta" and "direct" (without it).
    """

    process: int
    n_leaves: int
    n_chunks: int
    bytes_in: int
    bytes_out: int
    n_derived: int
    bytes_derived: int
    coding: str
    coding_reason: str
    codecs: dict[str, CodecBytes]
    driver: str
    driver_reason: str | None
    plan_known: bool
    blocking_secs: float
    blocking_cpu_secs: float
    background_secs: float
    cpu_secs: float
    seconds: dict[str, float]
    base: str | None = None
    chain_length: int = 0
    delta_reason: str | None = None
    chunks: dict[str, ChunkBytes] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SaveReport(ProcessReport):
    """What one process's part of a save did, where, and how far it came.

    Attributes:
        path: the item's directory as the save saw it; Orbax renames it later.
        state: how far the save had come: "synced"; "published" when the item exists, in a directory
            that Orbax renames afterwards; or "committed" when its name is durable, too.
    """

    path: Path
    state: State

    def line(self) -> str:
        """Return the report as the one line that is logged."""
        times = " ".join(f"{stage} {took:.3f}s" for stage, took in self.seconds.items())
        shares = " ".join(f"{name} {one.bytes_out / 1e6:.1f}" for name, one in self.codecs.items())
        reason = f" ({self.driver_reason})" if self.driver_reason else ""
        process = f" (process {self.process})" if self.process else ""
        return (
            f"{self.state} {item_text(self.path)}{process}: {self.n_leaves} leaves, "
            f"plan {'known' if self.plan_known else 'new'}, {self.bytes_in / 1e6:.1f} MB "
            f"in, {self.bytes_derived / 1e6:.1f} MB derived, {self.bytes_out / 1e6:.1f} MB out "
            f"(MB by codec: {shares or 'none'}); {self._delta_text()}"
            f"coding {self.coding} ({self.coding_reason}); "
            f"{self.driver}{reason}; blocking {self.blocking_secs:.3f}s "
            f"background {self.background_secs:.3f}s cpu {self.cpu_secs:.3f}s; {times}"
        )

    def _delta_text(self) -> str:
        if self.base is not None:
            of = " ".join(f"{name} {one.n_chunks}" for name, one in self.chunks.items())
            return f"delta on {self.chain_length} (chunks: {of}); "
        return f"full ({self.delta_reason}); " if self.delta_reason else ""
