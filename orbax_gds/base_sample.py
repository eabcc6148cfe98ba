"""Which chunks of a save may be smaller as deltas: a sample says, before their bases are all read.

Reading and decoding a base takes longer than coding. Moments of optimizers hardly ever gain by
it, nor do weights that were all trained a lot; a few chunks of a leaf show that. Where the sample
is wrong, it costs bytes of chunks that have changed a little: those that have not changed at all
are found even so, as their frames come out as those of the base (`_native.RunWriter`).
"""

from collections.abc import Iterator

import numpy as np

from orbax_gds import _native
from orbax_gds import stripe as stripes
from orbax_gds.base_step import BaseStep
from orbax_gds.chains import is_delta
from orbax_gds.errors import OgdsError
from orbax_gds.plan import Plan, Run, part_of_chunk
from orbax_gds.stripe_writer import Source
from orbax_gds.weighing import Coding

__all__ = ["chunks_that_gain"]

_LEAST_CHUNKS = 8  # chosen: fewer chunks of a leaf are coded at once; small leaves go together
_CHUNKS_A_SAMPLE = 32  # chosen: 3 % of the chunks are coded twice where none gains
_MOST_SAMPLES = 8  # chosen: of one leaf
_FRAME_BYTES = 64  # required: FORMAT §6, what a frame is a multiple of


def chunks_that_gain(save: Source, base: BaseStep, coding: Coding, out: np.ndarray) -> np.ndarray:
    """Return which chunks to code against a base, changed or not.

    Args:
        save: whose words are all at hand.
        base: the step.
        coding: that the save will use with it.
        out: uint8, room for a frame.

    Returns:
        bool[n_chunks]: False for those of a leaf, or of some leaves beside each other, of whose
        sample no chunk is smaller as a delta.
    """
    plan = save.cut.plan
    gains = np.ones(plan.n_chunks, bool)
    firsts = np.array([run.chunks[0, 0] for run in plan.runs], np.int64)
    for start, end in _groups(plan):
        n_chunks = end - start
        if n_chunks < _LEAST_CHUNKS:
            continue
        n_samples = min(_MOST_SAMPLES, max(2, n_chunks // _CHUNKS_A_SAMPLE))
        sample = [start + (2 * i + 1) * n_chunks // (2 * n_samples) for i in range(n_samples)]
        runs = (plan.runs[int(np.searchsorted(firsts, at, "right")) - 1] for at in sample)
        gains[start:end] = any(
            _is_smaller(save, base, coding, out, run, at)
            for run, at in zip(runs, sample, strict=True)
        )
    return gains


def _groups(plan: Plan) -> Iterator[tuple[int, int]]:
    """Yield ranges of chunks of a leaf, or of leaves of one dtype that lie beside each other."""
    if not plan.n_chunks:
        return
    leaves = np.full(plan.n_chunks, -1, np.int64)  # of pools
    for shard in plan.shards:
        if not shard.pooled:
            leaves[shard.first_chunk : shard.first_chunk + shard.n_chunks] = shard.leaf
    dtypes = np.concatenate([run.chunks[:, 2] for run in plan.runs])
    changes = (np.diff(leaves) != 0) | (np.diff(dtypes.astype(np.int64)) != 0)
    starts = [0, *(np.flatnonzero(changes) + 1).tolist()]
    first = 0
    for start, end in zip(starts, [*starts[1:], plan.n_chunks], strict=True):
        is_next = end < plan.n_chunks and dtypes[end] == dtypes[start]
        if end - first < _LEAST_CHUNKS and is_next:
            continue  # too few: the next leaf goes with them
        yield first, end
        first = end


def _is_smaller(
    save: Source, base: BaseStep, coding: Coding, out: np.ndarray, run: Run, chunk: int
) -> bool:
    """Whether a chunk is smaller as a delta; True where only the save can say what is wrong."""
    row = chunk - int(run.chunks[0, 0])
    piece = part_of_chunk(run, row, 0, int(run.chunks[row, 1]))
    record = np.zeros((1, stripes.RECORD_BYTES), np.uint8)
    try:
        _native.encode_run(
            save.words_of(piece),
            piece.segments,
            piece.chunks,
            out,
            record,
            codec=coding.codec,
            zstd_level=coding.zstd_level,
            align_bytes=_FRAME_BYTES,
            bases=base.frames_of(chunk),
        )
    except (ValueError, OSError, OgdsError):
        return True
    return bool(is_delta(record.view(stripes.RECORD)[:, 0])[0])
