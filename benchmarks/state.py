"""A train state: the user's file, or one that is trained once and cached.

The file is an .npz of one array a leaf, `<kind>/<leaf>`, as unsigned words: `params_bf16` (uint16),
`master_f32`, `mu_f32` and `nu_f32` (uint32).
"""

import os
import subprocess
import sys
import zlib
from pathlib import Path

import ml_dtypes
import numpy as np

from benchmarks.progress import say

ROOT = Path(__file__).parents[1]
TRAINING = Path(__file__).with_name("train.py")
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
BF16_KIND = "params_bf16"
FP32_KINDS = ("master_f32", "mu_f32", "nu_f32")

Leaves = dict[str, np.ndarray]


def train_state(given: Path | None, directory: Path) -> tuple[Path, str]:
    """Return the path of a train state and what it is.

    Args:
        given: The user's file; None to train one, which takes a minute, or take the cached one.
        directory: Where trained states are cached, by the training script and Python's version,
            whose sources are the text.

    Raises:
        subprocess.CalledProcessError: The training failed.
    """
    if given is not None:
        return given.resolve(), f"given, {given.name}"
    settings = TRAINING.read_bytes() + sys.version.encode()
    path = (directory / f"trainstate-{zlib.crc32(settings):08x}.npz").resolve()
    if not path.exists():
        say("training a small transformer, once")
        path.parent.mkdir(parents=True, exist_ok=True)
        environment = {"JAX_PLATFORMS": "cpu", **os.environ}
        command = [sys.executable, "-m", "benchmarks.train", str(path)]
        subprocess.run(command, cwd=ROOT, env=environment, check=True)
    return path, "a 2.5 M parameter transformer, 200 steps, trained by benchmarks/train.py"


def read_leaves(path: Path) -> dict[str, Leaves]:
    """Return the leaves of each kind by name, in the file's order, as bfloat16 or float32.

    Raises:
        KeyError: The file lacks a kind.
    """
    kinds: dict[str, Leaves] = {}
    with np.load(path) as stored:
        for kind in (BF16_KIND, *FP32_KINDS):
            names = [name for name in stored.files if name.startswith(f"{kind}/")]
            if not names:
                raise KeyError(f"{path} holds no {kind}/ arrays; see benchmarks/train.py")
            dtype = BFLOAT16 if kind == BF16_KIND else np.dtype(np.float32)
            kinds[kind] = {name.partition("/")[2]: stored[name].view(dtype) for name in names}
    return kinds
