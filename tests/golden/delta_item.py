"""The golden item that follows from two earlier steps, saved by the package itself."""

import shutil
import tempfile
from pathlib import Path

import numpy as np
from golden.words import narrow, noise

import orbax_gds
from orbax_gds.dtypes import dtype_by_name

BF16, FP32, INT32 = (dtype_by_name(name) for name in ("bfloat16", "float32", "int32"))
N_STEPS = 3


def write_delta_item(directory: Path) -> None:
    """Save a full step and two that follow from it, and keep the last."""
    options = orbax_gds.Options(chunk_bytes="4KiB", delta=orbax_gds.EveryN(8))
    with tempfile.TemporaryDirectory() as root:
        for step in range(N_STEPS):
            item = Path(root) / str(step) / "default"
            orbax_gds.save(item, state(step), options=options)
        shutil.copytree(item, directory, ignore=shutil.ignore_patterns("*.report.json"))


def state(step: int) -> dict[str, object]:
    """Return a small train state after some steps: much of it moves a little, some not at all."""
    master, mu = narrow(FP32, 2100, 81), narrow(FP32, 1000, 82)
    weights, tokens = narrow(BF16, 2000, 83), noise(INT32, 600, 84) % 1000
    for now in range(1, step + 1):
        master = moved(master, 90 + now, most=1 << 16)
        mu = moved(mu, 95 + now, most=1 << 21)
        weights = np.where(np.arange(2000) % 1000 < 600, weights, moved(weights, 99 + now, most=3))
        tokens = np.where(np.arange(600) // 256 == now - 1, noise(INT32, 600, now) % 1000, tokens)
    compute = (master + 32767 + (master >> 16 & 1) >> 16).astype(np.uint16)
    return {
        "params": {"w": BF16.elements(compute, (42, 50)), "e": BF16.elements(weights, (20, 100))},
        "opt": {"master": FP32.elements(master, (42, 50)), "mu": FP32.elements(mu, (1000,))},
        "frozen": BF16.elements(narrow(BF16, 1800, 85), (1800,)),
        "drawn": noise(dtype_by_name("uint8"), 900, 86 + step),  # anew at each step
        "tokens": tokens.astype(np.int32),
        "step": step,
    }


def moved(words: np.ndarray, seed: int, *, most: int) -> np.ndarray:
    """Return words that differ from others by less than `most` up or down."""
    by = noise(dtype_by_name("int32"), words.size, seed).astype(np.int64) % (2 * most) - most
    return (words.astype(np.int64) + by).clip(0).astype(words.dtype)
