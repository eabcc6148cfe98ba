"""Which chunks of a save may be smaller as deltas: a sample says, before their bases are all read.

Reading and decoding a base takes longer than coding. Moments of optimizers hardly ever gain by
it, nor do weights that were all trained a lot; a few chunks of a leaf show that. Where the sample
is wrong, it costs bytes of chunks that have changed a little: those that have not changed at all
are found even so, as their frames come out as those of the base (`_native.RunWriter`).
"""

import logging

import numpy as np

from orbax_gds import _native
from orbax_gds import stripe as stripes
from orbax_gds._native import BrokenBase
from orbax_gds.base_step import BaseStep
from orbax_gds.chains import is_delta, is_unchanged
from orbax_gds.plan import Plan, part_of_chunk
from orbax_gds.staging import BufferPool
from orbax_gds.stripe_writer import Source
from orbax_gds.threads import run_threads
from orbax_gds.weighing import Coding

__all__ = ["chunks_that_gain"]

logger = logging.getLogger(__name__)

_MOST_SHARED = 16  # chosen: leaves of fewer chunks share a sample with others of their dtype
_LEAST_SHARED = 4  # chosen: in small states
_LEAST_SAMPLED = 32  # chosen: of fewer chunks in all, each is another case, and bases take no time
_GROUPS = 16  # chosen: what leaves of a small state have in common is little
_CHUNKS_A_SAMPLE = 32  # chosen: 3 to 6 % of the chunks are coded twice where none gains
_MOST_SAMPLES = 8  # chosen: of one leaf
_FRAME_BYTES = 64  # required: FORMAT §6, what a frame is a multiple of


def chunks_that_gain(
    save: Source, base: BaseStep, coding: Coding, buffers: BufferPool
) -> np.ndarray:
    """Return which chunks to code against a base, changed or not.

    Of a leaf that has chunks that were changed by the base, and deltas there, those are looked at.
    Where anything gains, deltas pay in this step, and other leaves are looked at once more before
    they are left out, unless they are so few chunks that this would take as long as it saves.

    Args:
        save: whose words are all at hand.
        base: the step.
        coding: that the save will use with it.
        buffers: each thread takes one, with room for a frame.

    Returns:
        bool[n_chunks]: False for those of a leaf, or of some small leaves of a dtype, of whose
        sample no chunk is smaller as a delta. All True where a base cannot be read, as only the
        save can say what follows from that.
    """
    n_chunks = save.cut.plan.n_chunks
    gains = np.ones(n_chunks, bool)
    groups = _groups(save.cut.plan)
    before = base.files[-1].records
    has_gained = is_delta(before) & ~is_unchanged(before)
    for parts in (1, 2):
        samples = [_sample(group, has_gained, parts) for group in groups]
        if not samples:
            break
        try:
            smaller = _smaller(save, base, coding, buffers, np.concatenate(samples))
        except (BrokenBase, OSError) as err:
            logger.info("A sample of the save cannot be coded: %s", err)
            return np.ones(n_chunks, bool)
        is_gaining = [bool(np.isin(sample, smaller).any()) for sample in samples]
        for group, gaining in zip(groups, is_gaining, strict=True):
            gains[group] = gaining
        groups = [
            group
            for group, gaining in zip(groups, is_gaining, strict=True)
            if not gaining and len(group) >= _MOST_SHARED
        ]
        if len(smaller) == 0:
            break
    return gains


def _groups(plan: Plan) -> list[np.ndarray]:
    """Return int[k], numbers of chunks of a leaf, or of small leaves of one dtype, for each."""
    if plan.n_chunks < _LEAST_SAMPLED:
        return []
    leaves = np.full(plan.n_chunks, -1, np.int64)  # of pools
    for shard in plan.shards:
        if not shard.pooled:
            leaves[shard.first_chunk : shard.first_chunk + shard.n_chunks] = shard.leaf
    dtypes = np.concatenate([run.chunks[:, 2] for run in plan.runs]).astype(np.int64)
    starts = np.flatnonzero((np.diff(leaves) != 0) | (np.diff(dtypes) != 0)) + 1
    least = min(_MOST_SHARED, max(_LEAST_SHARED, plan.n_chunks // _GROUPS))
    groups: list[np.ndarray] = []
    waiting: dict[int, list[np.ndarray]] = {}  # small leaves, by dtype
    for leaf in np.split(np.arange(plan.n_chunks), starts):
        dtype = int(dtypes[leaf[0]])
        small = waiting.setdefault(dtype, [])
        if len(leaf) >= least:
            groups.append(leaf)
            continue
        small.append(leaf)
        if sum(map(len, small)) >= least:
            groups.append(np.concatenate(waiting.pop(dtype)))
    return groups + [np.concatenate(small) for small in waiting.values() if small]


def _sample(group: np.ndarray, has_gained: np.ndarray, parts: int) -> np.ndarray:
    """Return some chunks of a group, others for other `parts`."""
    likely = group[has_gained[group]]
    chunks = likely if len(likely) and parts == 1 else group
    n_samples = parts * min(_MOST_SAMPLES, max(1, len(group) // _CHUNKS_A_SAMPLE))
    places = (2 * np.arange(n_samples) + 1) * len(chunks) // (2 * n_samples)
    return chunks[np.unique(places)]


def _smaller(
    save: Source, base: BaseStep, coding: Coding, buffers: BufferPool, chunks: np.ndarray
) -> np.ndarray:
    """Return those of some chunks that are smaller as deltas.

    Raises:
        BrokenBase: a base cannot be read.
        CommitError: there is no buffer any more.
    """
    plan = save.cut.plan
    firsts = np.array([run.chunks[0, 0] for run in plan.runs], np.int64)
    records = np.zeros(len(chunks), stripes.RECORD)
    runs = []
    for row, chunk in enumerate(chunks.tolist()):
        run = plan.runs[int(np.searchsorted(firsts, chunk, "right")) - 1]
        at = chunk - int(run.chunks[0, 0])
        piece = part_of_chunk(run, at, 0, int(run.chunks[at, 1]))
        own = records[row : row + 1].view(np.uint8).reshape(-1, stripes.RECORD_BYTES)
        words, (links, only_if_alike) = save.words_of(piece), base.links_of(piece)
        runs.append((words, piece.segments, piece.chunks, own, links, only_if_alike))
    writer = _native.RunWriter(
        runs,
        offset=0,
        codec=coding.codec,
        zstd_level=coding.zstd_level,
        align_bytes=_FRAME_BYTES,
    )
    errors: list[BaseException] = []

    def stop(error: BaseException) -> None:
        errors.append(error)
        writer.stop()

    def work() -> None:
        try:
            with buffers.acquire() as buffer:
                while writer.code(buffer.memory) is not None:
                    pass
        except BaseException as error:  # carried to the calling thread
            stop(error)

    try:
        run_threads(min(save.options.n_workers, len(runs)), work, stop)
    finally:
        writer.close()
    if errors:
        raise errors[0]
    return chunks[is_delta(records)]
