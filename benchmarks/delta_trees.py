"""The trees that `delta` saves: steps of a run, and one tree after every kind of change."""

import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import msgspec
import numpy as np

from benchmarks.delta_spec import NOTHING, OTHER, RANDOM, ROWS, SPARSE, SPARSE_SHARE, Source
from benchmarks.save_cell import checksums
from benchmarks.state import read_leaves
from benchmarks.tree import Leaf, fill, plan_leaves, read_state

Words = dict[str, np.ndarray]


def trees(source: Source) -> Iterator[Words]:
    """Yield the tree of each step."""
    if source.files:
        for file in source.files:
            kinds = read_leaves(Path(file))
            yield {
                f"{kind}.{name}": leaf
                for kind in source.kinds
                for name, leaf in kinds[kind].items()
            }
        return
    words = first_tree(source)
    for step in range(source.n_steps):
        yield words
        words = changed(words, SPARSE, source, seed=step)


def first_tree(source: Source, shift: int = 0) -> Words:
    """Return the tree that `save` writes; another shift gives the same leaves with other values."""
    leaves = plan_leaves(source.n_bytes, source.n_leaves)
    moved = [_moved(leaf, shift) for leaf in leaves]
    return dict(fill(moved, read_state(Path(source.state))))


def changed(words: Words, change: str, source: Source, *, seed: int = 0) -> Words:
    """Return the tree after a change.

    Args:
        words: The first tree of the source, or one after other changes; it stays as it is.
        change: One of `delta_spec.CHANGES`. Elements and rows that change get the words of others
            of the same leaf.
        source: What the tree was made from.
        seed: Another one changes other elements.
    """
    if change == NOTHING:
        return words
    if change == OTHER:
        return first_tree(source, shift=1 + seed)
    rng = np.random.default_rng(seed)
    return {name: _changed_leaf(leaf, change, rng) for name, leaf in words.items()}


def avals(source: Source) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the target of a restore: what is restored is the same for every step."""
    if source.files:
        first = next(trees(source))
    else:
        leaves = plan_leaves(source.n_bytes, source.n_leaves)
        first = {leaf.name: np.broadcast_to(leaf.dtype.type(0), leaf.shape) for leaf in leaves}
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return {
        name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
        for name, leaf in first.items()
    }


def checksum(tree: Mapping[str, Any]) -> int:
    """Return one number for the words of all leaves."""
    return zlib.crc32(msgspec.json.encode(sorted(checksums(tree).items())))


def _changed_leaf(leaf: np.ndarray, change: str, rng: np.random.Generator) -> np.ndarray:
    if change == RANDOM:
        return np.frombuffer(rng.bytes(leaf.nbytes), leaf.dtype).reshape(leaf.shape)
    if change not in (SPARSE, ROWS):
        raise ValueError(f"no change {change!r}")
    made = leaf.copy()
    rows = made.reshape(-1, 1) if change == SPARSE else made.reshape(leaf.shape[0], -1)
    n_changed = max(1, round(SPARSE_SHARE * len(rows)))
    rows[rng.integers(0, len(rows), n_changed)] = rows[rng.integers(0, len(rows), n_changed)]
    return made


def _moved(leaf: Leaf, shift: int) -> Leaf:
    return Leaf(
        name=leaf.name,
        dtype=leaf.dtype,
        shape=leaf.shape,
        kind=leaf.kind,
        seed=leaf.seed + 1000 * shift,
    )
