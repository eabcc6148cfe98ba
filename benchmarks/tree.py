"""The tree that `save` writes: bf16 and fp32 leaves, half gaussian, half of a train state."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.state import BF16_KIND, BFLOAT16, FP32_KINDS, read_leaves
from benchmarks.weights import as_bfloat16, gaussian

COLUMNS = 1024
RELATIVE_SIZES = (0.05, 0.25, 1.0, 2.0, 4.0)  # chosen: biases and small kernels beside large ones


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """A leaf of the tree to be.

    Attributes:
        name: Key in the tree.
        dtype: bfloat16 or float32.
        shape: Shape in elements.
        kind: Array of the train state it is cut from, None for a gaussian leaf.
        seed: Number of the leaf: seed of a gaussian, place of the cut in the state.
    """

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    kind: str | None
    seed: int

    @property
    def n_words(self) -> int:
        """Elements of the leaf."""
        return int(np.prod(self.shape))


def plan_leaves(n_bytes: int, n_leaves: int) -> list[Leaf]:
    """Lay out the tree: two bf16 leaves for three fp32, half of each gaussian, five sizes.

    Args:
        n_bytes: Size of the whole tree, met to within a row of each leaf.
        n_leaves: Number of leaves; dtypes, sources and sizes are balanced in multiples of 50.
    """
    traits = [
        (i % 5 < 2, (i // 5) % 2 == 0, RELATIVE_SIZES[(i // 10) % len(RELATIVE_SIZES)])
        for i in range(n_leaves)
    ]
    unit = n_bytes / sum(size * (2 if is_bf16 else 4) for is_bf16, _, size in traits)
    leaves, n_real_fp32 = [], 0
    for i, (is_bf16, is_gaussian, size) in enumerate(traits):
        kind = None if is_gaussian else BF16_KIND
        if not is_bf16 and not is_gaussian:
            kind = FP32_KINDS[n_real_fp32 % len(FP32_KINDS)]
            n_real_fp32 += 1
        leaves.append(
            Leaf(
                name=f"leaf{i:04d}",
                dtype=BFLOAT16 if is_bf16 else np.dtype(np.float32),
                shape=(max(1, round(size * unit / COLUMNS)), COLUMNS),
                kind=kind,
                seed=i,
            )
        )
    return leaves


def read_state(path: Path) -> dict[str, np.ndarray]:
    """Return each kind of a train state as one flat vector of bfloat16 or float32.

    Raises:
        KeyError: The file lacks a kind.
    """
    return {
        kind: np.concatenate([leaf.reshape(-1) for leaf in leaves.values()])
        for kind, leaves in read_leaves(path).items()
    }


def fill(leaves: list[Leaf], state: dict[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield name and words of each leaf; leaves of the state start at different places of it."""
    for leaf in leaves:
        if leaf.kind is None:
            values = gaussian(leaf.n_words, seed=leaf.seed)
            values = as_bfloat16(values) if leaf.dtype == BFLOAT16 else values
        else:
            values = _cut(state[leaf.kind], leaf.seed * 65_537, leaf.n_words)
        yield leaf.name, values.reshape(leaf.shape)


def _cut(vector: np.ndarray, start: int, n_words: int) -> np.ndarray:
    """Return n_words of a vector that repeats for ever, from a place in it."""
    start %= vector.size
    first = vector[start : start + n_words]
    missing = n_words - first.size
    whole, rest = divmod(missing, vector.size)
    return np.concatenate([first, *[vector] * whole, vector[:rest]])
