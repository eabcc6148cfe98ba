"""What a save measures of itself: seconds per stage, bytes, the path that carried them."""

import dataclasses
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

State = Literal["synced", "committed"]


class Stopwatch:
    """Adds up seconds per stage; threads may time the same stage at once."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._lock = threading.Lock()

    @contextmanager
    def time(self, stage: str) -> Iterator[None]:
        """Add the time that the block takes to a stage."""
        began = time.perf_counter()
        try:
            yield
        finally:
            took = time.perf_counter() - began
            with self._lock:
                self.seconds[stage] = self.seconds.get(stage, 0.0) + took


@dataclasses.dataclass(frozen=True, kw_only=True)
class SaveReport:
    """What one process's part of a save did.

    Attributes:
        path: the item's directory as the save saw it; Orbax renames it later.
        state: how far the save had come: "synced", or "committed" once published and synced.
        n_leaves: leaves of the item, those without words included.
        n_chunks: chunks this process wrote.
        bytes_in: bytes of the words this process saved, derived ones among them.
        bytes_out: bytes of its stripe.
        n_derived: its shards that are not stored, as their words follow from other leaves'.
        bytes_derived: bytes of the words of these.
        coding: what `Options.codec` came to in this process: "auto", "fast", "max" or "off".
        coding_reason: why: not weighed, or the speeds that were.
        codecs: bytes of frames per codec.
        driver: the path that really carried the bytes: "direct" or "buffered".
        driver_reason: why not the preferred one; None if it was.
        seconds: per stage: "plan" and "snapshot" blocked training; "derive" looked for words that
            follow from others; "weigh" measured storage and codecs, where the choice was worth it;
            "encode", "pace" (waiting for `io_rate`) and "write" are summed over threads; "sync", and "commit" where this call
            published.
    """

    path: Path
    state: State
    n_leaves: int
    n_chunks: int
    bytes_in: int
    bytes_out: int
    n_derived: int
    bytes_derived: int
    coding: str
    coding_reason: str
    codecs: dict[str, int]
    driver: str
    driver_reason: str | None
    seconds: dict[str, float]

    def line(self) -> str:
        """Return the report as the one line that is logged."""
        times = " ".join(f"{stage} {took:.3f}s" for stage, took in self.seconds.items())
        shares = " ".join(f"{name} {n / 1e6:.1f}" for name, n in self.codecs.items()) or "none"
        reason = f" ({self.driver_reason})" if self.driver_reason else ""
        return (
            f"{self.state} {self.path.name}: {self.n_leaves} leaves, {self.bytes_in / 1e6:.1f} MB "
            f"in, {self.bytes_derived / 1e6:.1f} MB derived, {self.bytes_out / 1e6:.1f} MB out "
            f"(coding {self.coding}; MB by codec: {shares}); "
            f"{self.driver}{reason}; {times}"
        )
