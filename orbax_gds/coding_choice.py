"""The coding of a save: as asked, or chosen by what storage and codecs were measured to take."""

import dataclasses
import logging
import os
from collections.abc import Sequence
from pathlib import Path as FilePath

import numpy as np

from orbax_gds import _native, weighing
from orbax_gds import stripe as stripes
from orbax_gds.bandwidth import KnownStorage, StorageKey, probe, probe_bytes
from orbax_gds.commit import PROBE_SUFFIX
from orbax_gds.drivers import Driver, memory_file_system
from orbax_gds.pacing import pace_of
from orbax_gds.plan import Run
from orbax_gds.staging import BufferPool
from orbax_gds.stripe_writer import Source

__all__ = ["choose_coding", "encode"]

logger = logging.getLogger(__name__)

# Measured: where words and frame lie alike on their pages, as a sample's would and a save's hardly
# ever do, copying takes three times as long.
_UNLIKE_PAGES = 2048
_FRAME_BYTES = 64  # required: FORMAT §6, what a frame is a multiple of


def choose_coding(
    save: Source,
    driver: Driver,
    path: FilePath,
    key: StorageKey,
    pool: BufferPool,
    known: KnownStorage,
    *,
    has_base: bool = False,
) -> weighing.Coding:
    """Choose the coding, by measuring where the state is large enough for it to matter.

    Args:
        save: whose words are coded.
        driver: that writes them.
        path: of the stripe; measuring storage writes beside it.
        key: of its storage.
        pool: one buffer is taken from it meanwhile.
        known: what earlier saves measured.
        has_base: whether the save is a delta, which raw words would not be.
    """
    codec, plan, options = save.options.codec, save.cut.plan, save.options
    state_bytes = sum(run.n_bytes for run in plan.runs)
    storage = known.recall(key, state_bytes)
    on_memory = memory_file_system(path.parent) is not None
    on_memory = on_memory or (storage is not None and not storage.waits)
    if has_base:
        return weighing.of_delta(codec, plan, on_memory=on_memory)
    is_known = storage is not None
    coding = weighing.unweighed(codec, plan, is_known=is_known, on_memory=on_memory)
    if coding is not None:
        return coding
    first_runs = dataclasses.replace(plan, runs=tuple(next(iter(save.each_window()))))
    with save.watch.time("weigh"), pool.acquire() as buffer:
        if storage is None:
            try:
                storage = probe(
                    driver,
                    path.with_suffix(PROBE_SUFFIX),
                    buffer.memory,
                    known.meter,
                    n_bytes=probe_bytes(state_bytes),
                    n_threads=options.n_workers,
                    pace=pace_of(options.bytes_per_second),
                )
            except OSError as err:  # if it is in the way of the save, that will say so
                reason = f"the storage cannot be measured: {err}"
                logger.warning("coding %s: %s", codec, reason)
                return weighing.as_asked(codec, reason)
        out = buffer.memory[_UNLIKE_PAGES:]
        return weighing.weigh(
            first_runs,
            storage=storage,
            n_workers=min(options.n_workers, os.cpu_count() or 1),
            encode=lambda runs, coding: encode(save, runs, out, coding),
            times=known.clocks.times,
        )


def encode(save: Source, runs: Sequence[Run], out: np.ndarray, coding: weighing.Coding) -> int:
    """Code a few runs for a look, in one native call and so with one wait for the GIL.

    Args:
        save: whose words these are.
        runs: of a sample.
        out: uint8, room for their frames.
        coding: to try.

    Returns:
        The bytes they took.
    """
    words: list[np.ndarray] = []
    segments = [run.segments.copy() for run in runs]
    for run, rows in zip(runs, segments, strict=True):
        rows[:, 0] += np.uint64(len(words))
        words += save.words_of(run)
    chunks = np.concatenate([run.chunks for run in runs])
    return _native.encode_run(
        words,
        np.concatenate(segments),
        chunks,
        out,
        np.empty((len(chunks), stripes.RECORD_BYTES), np.uint8),
        codec=coding.codec,
        zstd_level=coding.zstd_level,
        align_bytes=_FRAME_BYTES,
    )
