"""A run to take deltas of: 24 steps in a row of the transformer of `benchmarks.train`, twice.

`python -m benchmarks.delta_train DIRECTORY` trains up to the middle of the schedule and takes 24
steps at the rate there, and 24 more at the rate near its end, which is that of a fine-tuning. The
schedule stands still meanwhile, so that all steps of a phase are alike. Each is one file of the
form that `benchmarks.state` describes, `<phase>-<number>.npz`.
"""

import os
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.progress import say

ROOT = Path(__file__).parents[1]
N_SAVED = 24  # required: three times eight, one full step in eight
# Where the schedule stands; its rate is 1e-3 (0.5 + 0.5 cos(pi n / 200)).
PHASES = {"training": 100.0, "fine-tuning": 187.25}
RATES = {"training": "5e-4", "fine-tuning": "1e-5"}


def run_files(given: Path | None, directory: Path) -> tuple[dict[str, list[Path]], str]:
    """Return the files of each phase, in order, and what the run is.

    Args:
        given: A directory that has the files; None to train, which takes two minutes, or take the
            cached ones.
        directory: Where runs are cached, by the training scripts and Python's version.

    Raises:
        subprocess.CalledProcessError: The training failed.
        SystemExit: The given directory lacks a file of a phase.
    """
    origin = "given"
    if given is None:
        sources = [
            Path(__file__).with_name(name).read_bytes()
            for name in ("train.py", Path(__file__).name)
        ]
        settings = b"".join(sources) + sys.version.encode()
        given = directory / f"deltarun-{zlib.crc32(settings):08x}"
        origin = "trained by benchmarks/delta_train.py: 2.5 M parameters, AdamW, bf16 over fp32"
        if not given.exists():
            say("training a small transformer for its deltas, once")
            given.parent.mkdir(parents=True, exist_ok=True)
            environment = {"JAX_PLATFORMS": "cpu", **os.environ}
            command = [sys.executable, "-m", "benchmarks.delta_train", str(given.resolve())]
            subprocess.run(command, cwd=ROOT, env=environment, check=True)
    found = {phase: sorted(given.resolve().glob(f"{phase}-*.npz")) for phase in PHASES}
    for phase, files in found.items():
        if not files:
            raise SystemExit(f"{given} holds no file {phase}-00.npz; see benchmarks/delta_train.py")
    return found, origin


def steps() -> Iterator[tuple[str, int, dict[str, np.ndarray]]]:
    """Train; yield phase, number and words of each step that is kept."""
    import jax
    import jax.numpy as jnp

    from benchmarks import train

    text, choose = train.tokens(), np.random.default_rng(1)
    master = train.initial_weights()
    mu, nu = jax.tree.map(jnp.zeros_like, master), jax.tree.map(jnp.zeros_like, master)
    number = 0
    for phase, stop in PHASES.items():
        for i in range(int(stop) - number + N_SAVED):
            starts = choose.integers(0, len(text) - train.CONTEXT - 1, train.BATCH)
            batch = np.stack([text[start : start + train.CONTEXT + 1] for start in starts])
            place = jnp.float32(min(number + i + 1, stop))
            master, mu, nu, value = train.step(master, mu, nu, place, batch)
            kept = i - (int(stop) - number)
            if kept >= 0:
                yield phase, kept, _words({"master_f32": master, "mu_f32": mu, "nu_f32": nu})
        say(f"train: {phase}, loss {float(value):.2f}")
        number = int(stop)


def _words(kinds: dict[str, dict]) -> dict[str, np.ndarray]:
    from benchmarks.weights import as_bfloat16

    state: dict[str, np.ndarray] = {
        f"params_bf16/{name}": as_bfloat16(np.asarray(leaf)).view(np.uint16)
        for name, leaf in kinds["master_f32"].items()
    }
    for kind, leaves in kinds.items():
        state |= {
            f"{kind}/{name}": np.asarray(leaf).view(np.uint32) for name, leaf in leaves.items()
        }
    return state


if __name__ == "__main__":
    target = Path(sys.argv[1])
    pending = target.with_suffix(".tmp")
    pending.mkdir(parents=True, exist_ok=True)
    for phase, number, words in steps():
        np.savez(pending / f"{phase}-{number:02d}.npz", **words)
    os.replace(pending, target)
