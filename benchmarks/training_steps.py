"""Steps of a training loop: a small network that XLA trains, and a step of pure Python."""

import functools
from collections.abc import Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.training_spec import PYTHON

WIDTH, N_LAYERS, N_ROWS = 512, 4, 256  # chosen: a step of some 15 ms, 13 MB of trained state
RATE, BETA_1, BETA_2 = 1e-3, 0.9, 0.95
PYTHON_ROUNDS = 20_000  # chosen: a step of some 2 ms, shorter than the GIL's switch interval of 5

Tree = dict[str, Any]


class Trainer(Protocol):
    """The state of a training loop and its step."""

    def step(self) -> None:
        """Take one step, and return when it is done."""

    def state(self) -> Mapping[str, jax.Array]:
        """Return the arrays of the newest state; the next step takes their memory."""
        ...


class Jitted:
    """Adam on a multi-layer perceptron in one jitted call, whose state is donated."""

    def __init__(self) -> None:
        keys = jax.random.split(jax.random.key(0), N_LAYERS)
        weights = {
            f"layer{i}": jax.random.normal(key, (WIDTH, WIDTH)) / np.sqrt(WIDTH)
            for i, key in enumerate(keys)
        }
        zeros = functools.partial(jax.tree.map, jnp.zeros_like)
        self._state = {"master": weights, "mu": zeros(weights), "nu": zeros(weights)}
        self._rows = jax.random.normal(jax.random.key(1), (N_ROWS, WIDTH))

    def step(self) -> None:
        self._state, loss = _update(self._state, self._rows)
        loss.block_until_ready()

    def state(self) -> Mapping[str, jax.Array]:
        return {
            f"{kind}.{name}": leaf
            for kind, leaves in self._state.items()
            for name, leaf in leaves.items()
        }


class PurePython:
    """Integer arithmetic in the interpreter: it holds the GIL for as long as it runs."""

    def __init__(self) -> None:
        self._total = 1

    def step(self) -> None:
        total = self._total
        for number in range(PYTHON_ROUNDS):
            total = (total * 31 + number) & 0xFFFF
        self._total = total

    def state(self) -> Mapping[str, jax.Array]:
        return {}


def make_trainer(loop: str) -> Trainer:
    """Return the trainer of a loop of `training_spec`."""
    return PurePython() if loop == PYTHON else Jitted()


@functools.partial(jax.jit, donate_argnums=0)
def _update(state: dict[str, Tree], rows: jax.Array) -> tuple[dict[str, Tree], jax.Array]:
    loss, gradient = jax.value_and_grad(_loss)(state["master"], rows)
    mu = jax.tree.map(lambda m, g: BETA_1 * m + (1 - BETA_1) * g, state["mu"], gradient)
    nu = jax.tree.map(lambda v, g: BETA_2 * v + (1 - BETA_2) * g * g, state["nu"], gradient)
    master = jax.tree.map(
        lambda w, m, v: w - RATE * m / (jnp.sqrt(v) + 1e-8), state["master"], mu, nu
    )
    return {"master": master, "mu": mu, "nu": nu}, loss


def _loss(weights: Tree, rows: jax.Array) -> jax.Array:
    """Return how far the network is from giving back its input."""
    stream = rows
    for leaf in weights.values():
        stream = stream + jnp.tanh(stream @ leaf)
    return jnp.mean((stream - rows) ** 2)
