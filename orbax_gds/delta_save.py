"""The part of a save that makes it a delta: it finds a base, reads it, and does without it."""

import contextlib
import dataclasses
import logging
import os
from pathlib import Path as FilePath
from typing import Any

import numpy as np

from orbax_gds import weighing
from orbax_gds._native import STATUS, BrokenBase
from orbax_gds.base_sample import chunks_that_gain
from orbax_gds.base_step import BaseStep, find_base
from orbax_gds.chains import RunLinks, is_delta, is_unchanged
from orbax_gds.commit import io_context, sync_directory
from orbax_gds.delta import Never
from orbax_gds.drivers import Driver
from orbax_gds.dtypes import CONTAINER_BYTES
from orbax_gds.known_steps import KnownSteps
from orbax_gds.monitoring import ChunkBytes, Stopwatch
from orbax_gds.options import Options
from orbax_gds.plan import Cut, Run
from orbax_gds.staging import BufferPool
from orbax_gds.stripe_specs import BASE_NAME, BaseSpec
from orbax_gds.stripe_writer import Source

__all__ = ["DeltaSave"]

logger = logging.getLogger(__name__)


class DeltaSave(contextlib.AbstractContextManager["DeltaSave"]):
    """What the stripe of a save is coded against, if anything. As a context it closes its files.

    Args:
        directory: of the item that is saved.
        steps: what was saved and restored before.

    Attributes:
        base: the step; None of a full one.
        reason: why the step is full although deltas were asked for, else None.
    """

    def __init__(self, directory: FilePath, steps: KnownSteps) -> None:
        self.base: BaseStep | None = None
        self.reason: str | None = None
        self._directory, self._steps = directory, steps
        self._left = False  # from some window on no base is read
        self._closing = contextlib.ExitStack()

    def __exit__(self, *exc_info: object) -> None:
        self._closing.close()
        if self.base is not None and exc_info[0] is not None:
            self.base.withdraw()  # a save that failed holds no space of steps that are deleted

    def find(
        self,
        cut: Cut,
        *,
        process: int,
        n_processes: int,
        options: Options,
        driver: Driver,
        watch: Stopwatch,
    ) -> None:
        """Look for the step to code against, once it is known what this one stores.

        Args: as `find_base`; and the stopwatch of the save.
        """
        if isinstance(options.delta_policy, Never):
            return
        with watch.time("find base"):
            found = find_base(
                self._directory,
                cut,
                process=process,
                n_processes=n_processes,
                options=options,
                driver=driver,
                known=self._steps,
            )
        if isinstance(found, BaseStep):
            self.base = self._closing.enter_context(found)
        else:
            self.reason = found

    def sound_out(self, save: Source, buffers: BufferPool) -> None:
        """Leave chunks out that a sample says are no smaller as deltas, unless they are unchanged.

        Args:
            save: whose words are all at hand.
            buffers: each thread takes one meanwhile.
        """
        if self.base is None:
            return
        coding = weighing.of_delta(save.options.codec, save.cut.plan, on_memory=False)
        with save.watch.time("find base"):
            gains = chunks_that_gain(save, self.base, coding, buffers)
        self.base = dataclasses.replace(self.base, gains=gains)

    @property
    def pays(self) -> bool:
        """Whether deltas are smaller, as far as a sample can say."""
        if self.base is None:
            return False
        return self.base.gains is None or bool(self.base.gains.any())

    @property
    def spec(self) -> BaseSpec | None:
        """The stripes that this one needs, as a manifest names them; None of a full one."""
        return None if self.base is None else self.base.spec

    @property
    def uuid(self) -> str | None:
        """Of the stripe that the deltas follow from; None of a full one."""
        return None if self.base is None else self.base.uuid

    def links_of(self, run: Run) -> RunLinks:
        """Return what the chunks of a run are coded against, if anything."""
        return ((), None) if self.base is None or self._left else self.base.links_of(run)

    def do_without(self, err: BrokenBase) -> None:
        """Make the step a full one, as words of the base cannot be read: all are at hand yet."""
        what = self._refuse(err)
        logger.warning("The step saved in %s is full, as %s.", self._directory, what)
        self._let_go(what)

    def go_on_without(self, err: BrokenBase) -> None:
        """Code what is left without the base, as words of that cannot be read.

        What was written stays as it is: its words are let go of, and those of the base were sound.
        """
        logger.warning(
            "From some chunk on the step saved in %s is no delta, as %s.",
            self._directory,
            self._refuse(err),
        )
        self._left = True

    def _refuse(self, err: BrokenBase) -> str:
        """Let no later save take the base; return what is wrong with it."""
        assert self.base is not None, "without a base none is read"
        uuid = self.base.uuids[err.link]
        self._steps.refuse([uuid])
        why = os.strerror(err.errno) if err.errno else STATUS.get(err.status, "unknown")
        return (
            f"chunk {err.chunk} of the stripe {uuid} of an earlier step cannot be read: {why}. "
            f"Verify {self.base.item}"
        )

    def settle(self, records: np.ndarray) -> None:
        """Let go of the base if no frame needs it.

        Args:
            records: RECORD[n_chunks], the index of the stripe.
        """
        if self.base is not None and not is_delta(records).any():
            self._let_go("no chunk is smaller as a delta")

    def sync(self) -> None:
        """Make the links in the item durable, and the stripes: a step may be a copy, never synced.

        Raises:
            IoError: the system refused.
        """
        if self.base is None:
            return
        for link in self.base.files:
            assert link.file.descriptor is not None, "seen when it was opened"
            with io_context(link.path, "sync"):
                os.fsync(link.file.descriptor)
        if self.base.not_linked is None:
            sync_directory(self._directory / BASE_NAME)

    def _let_go(self, reason: str) -> None:
        assert self.base is not None, "there is none to let go of"
        self.base.withdraw()
        self.base, self.reason = None, reason

    def reported(self, records: np.ndarray) -> dict[str, Any]:
        """Return the fields of `SaveReport` that say whether the step is a delta, and of what."""
        return {
            "base": self.uuid,
            "chain_length": 0 if self.base is None else len(self.base.files),
            "delta_reason": self.reason,
            "chunks": {} if self.base is None else _by_coding(records),
        }


def _by_coding(records: np.ndarray) -> dict[str, ChunkBytes]:
    deltas = is_delta(records)
    same = is_unchanged(records)
    taken = records["n_words"] * CONTAINER_BYTES[records["dtype"]]
    kinds = {"unchanged": same, "delta": deltas & ~same, "direct": ~deltas}
    return {
        name: ChunkBytes(
            n_chunks=int(which.sum()),
            bytes_in=int(taken[which].sum()),
            bytes_out=int(records["frame_bytes"][which].sum(dtype=np.int64)),
        )
        for name, which in kinds.items()
    }
