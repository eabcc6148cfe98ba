"""A real train state to save: a small transformer trained on the standard library's sources.

`python -m benchmarks.train FILE.npz` trains it, in a process of its own so that the benchmark
itself does not hold its memory. `benchmarks.state` describes the file, and reads any of that form.
"""

import collections
import functools
import os
import re
import sys
import sysconfig
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.progress import say

WIDTH, N_HEADS, N_BLOCKS, VOCABULARY = 128, 4, 2, 8192  # chosen: 2.4 M parameters
CONTEXT, BATCH, N_STEPS = 64, 4, 200  # chosen: under a minute on two cores, and then cached
PEAK_RATE, WARM_UP, DECAY, BETA_1, BETA_2 = 1e-3, 50, 0.1, 0.9, 0.95
TEXT_CHARACTERS = 4_000_000

Weights = dict[str, Any]


def tokens() -> np.ndarray:
    """Return the standard library's sources as int32 numbers of words, 0 for rare ones."""
    text = ""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_text(errors="ignore")
    words = re.findall(r"\w+|[^\w\s]|\n|[ \t]+", text[:TEXT_CHARACTERS])
    frequent = collections.Counter(words).most_common(VOCABULARY - 1)
    numbers = {word: number + 1 for number, (word, _) in enumerate(frequent)}
    return np.array([numbers.get(word, 0) for word in words], np.int32)


def initial_weights() -> Weights:
    """Return the float32 weights of step 0."""
    shapes = {"embed": (VOCABULARY, WIDTH), "position": (CONTEXT, WIDTH)}
    for block in range(N_BLOCKS):
        shapes |= {
            f"block{block}.qkv": (WIDTH, 3 * WIDTH),
            f"block{block}.out": (WIDTH, WIDTH),
            f"block{block}.up": (WIDTH, 4 * WIDTH),
            f"block{block}.down": (4 * WIDTH, WIDTH),
            f"block{block}.scale": (2, WIDTH),
        }
    shapes["head"] = (WIDTH, VOCABULARY)
    keys = dict(zip(shapes, jax.random.split(jax.random.key(0), len(shapes)), strict=True))
    weights = {name: jax.random.normal(keys[name], shape) * 0.02 for name, shape in shapes.items()}
    scales = {name: jnp.ones_like(leaf) for name, leaf in weights.items() if "scale" in name}
    return weights | scales


def loss(weights: Weights, text: jax.Array) -> jax.Array:
    """Return the mean cross entropy of the next word, for int32[BATCH, CONTEXT + 1]."""
    mask = jnp.tril(jnp.ones((CONTEXT, CONTEXT), bool))
    stream = weights["embed"][text[:, :-1]] + weights["position"]
    for block in range(N_BLOCKS):
        own = functools.partial(_named, weights, f"block{block}.")
        query, key, value = jnp.split(_normal(stream) * own("scale")[0] @ own("qkv"), 3, axis=-1)
        heads = (BATCH, CONTEXT, N_HEADS, WIDTH // N_HEADS)
        query, key, value = (x.reshape(heads) for x in (query, key, value))
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / np.sqrt(heads[-1])
        attention = jax.nn.softmax(jnp.where(mask, scores, -1e9))
        mixed = jnp.einsum("bhqk,bkhd->bqhd", attention, value).reshape(stream.shape)
        stream = stream + mixed @ own("out")
        hidden = jax.nn.gelu(_normal(stream) * own("scale")[1] @ own("up"))
        stream = stream + hidden @ own("down")
    logits = jax.nn.log_softmax(_normal(stream) @ weights["head"])
    return -jnp.take_along_axis(logits, text[:, 1:, None], axis=-1).mean()


@jax.jit
def step(
    master: Weights, mu: Weights, nu: Weights, number: jax.Array, text: jax.Array
) -> tuple[Weights, Weights, Weights, jax.Array]:
    """Take one AdamW step with bf16 weights, an fp32 master, and a clipped gradient."""
    working = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), master)
    as_fp32 = functools.partial(jax.tree.map, lambda leaf: leaf.astype(jnp.float32))
    value, gradient = jax.value_and_grad(lambda weights: loss(as_fp32(weights), text))(working)
    gradient = as_fp32(gradient)
    norm = jnp.sqrt(sum(jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(gradient)))
    clip = 1 / jnp.maximum(norm, 1.0)
    rate = PEAK_RATE * jnp.minimum(number / WARM_UP, 0.5 + 0.5 * jnp.cos(np.pi * number / N_STEPS))
    mu = jax.tree.map(lambda m, g: BETA_1 * m + (1 - BETA_1) * g * clip, mu, gradient)
    nu = jax.tree.map(lambda v, g: BETA_2 * v + (1 - BETA_2) * (g * clip) ** 2, nu, gradient)
    first, second = 1 - BETA_1**number, 1 - BETA_2**number
    master = jax.tree.map(
        lambda w, m, v: w - rate * (m / first / (jnp.sqrt(v / second) + 1e-8) + DECAY * w),
        master,
        mu,
        nu,
    )
    return master, mu, nu, value


def train() -> dict[str, np.ndarray]:
    """Train and return the state as words, `<kind>/<leaf>` → uint16 or uint32."""
    text, choose = tokens(), np.random.default_rng(1)
    master = initial_weights()
    mu, nu = jax.tree.map(jnp.zeros_like, master), jax.tree.map(jnp.zeros_like, master)
    for number in range(1, N_STEPS + 1):
        starts = choose.integers(0, len(text) - CONTEXT - 1, BATCH)
        batch = np.stack([text[start : start + CONTEXT + 1] for start in starts])
        master, mu, nu, value = step(master, mu, nu, jnp.float32(number), batch)
        if number in (1, N_STEPS // 2, N_STEPS):
            say(f"train: step {number}, loss {float(value):.2f}")
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), master)
    state = {}
    kinds = {"params_bf16": params, "master_f32": master, "mu_f32": mu, "nu_f32": nu}
    for kind, leaves in kinds.items():
        word = np.uint16 if kind.endswith("bf16") else np.uint32
        state |= {f"{kind}/{name}": np.asarray(leaf).view(word) for name, leaf in leaves.items()}
    return state


def _named(weights: Weights, prefix: str, name: str) -> jax.Array:
    return weights[prefix + name]


def _normal(stream: jax.Array) -> jax.Array:
    return stream * jax.lax.rsqrt(jnp.mean(stream * stream, axis=-1, keepdims=True) + 1e-6)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    pending = target.with_suffix(".tmp.npz")
    np.savez(pending, **train())
    os.replace(pending, target)
