"""A small byte-level language model on the standard library's sources, and its training step."""

import dataclasses
import functools
import hashlib
import pathlib
import sysconfig
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

N_BYTES = 256
WIDTH = 256
N_HEADS = 4
N_LAYERS = 4
CONTEXT = 64
BATCH = 8
CORPUS_BYTES = 4 << 20  # chosen: far more than the demo's steps read, loads in milliseconds

State = dict[str, Any]


class Block(nnx.Module):
    """One transformer block: attention, then a two-layer perceptron, each with a residual."""

    def __init__(self, *, rngs: nnx.Rngs) -> None:
        self.attention_norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.qkv = nnx.Linear(WIDTH, 3 * WIDTH, use_bias=False, rngs=rngs)
        self.projection = nnx.Linear(WIDTH, WIDTH, use_bias=False, rngs=rngs)
        self.mlp_norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.widen = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.narrow = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return x [batch, time, WIDTH] after attention and perceptron."""
        batch, time, _ = x.shape
        qkv = self.qkv(self.attention_norm(x)).reshape(batch, time, 3, N_HEADS, WIDTH // N_HEADS)
        seen = jax.nn.dot_product_attention(
            qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], is_causal=True
        )
        x = x + self.projection(seen.reshape(batch, time, WIDTH))
        return x + self.narrow(jax.nn.gelu(self.widen(self.mlp_norm(x))))


class ByteModel(nnx.Module):
    """A decoder-only transformer over bytes, 3.4 M parameters."""

    def __init__(self, *, rngs: nnx.Rngs) -> None:
        self.bytes = nnx.Embed(N_BYTES, WIDTH, rngs=rngs)
        self.positions = nnx.Embed(CONTEXT, WIDTH, rngs=rngs)
        self.blocks = nnx.List([Block(rngs=rngs) for _ in range(N_LAYERS)])
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)

    def __call__(self, text: jax.Array) -> jax.Array:
        """Return the logits [batch, time, N_BYTES] of the byte after each of text [batch, time]."""
        x = self.bytes(text) + self.positions(jnp.arange(text.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.bytes.attend(self.norm(x))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """The fixed parts of a training run; everything that changes is in the state."""

    graph: Any
    optimizer: optax.GradientTransformation
    text: jax.Array


def corpus() -> np.ndarray:
    """Return the first CORPUS_BYTES of the standard library's sources, sorted by name, as uint8."""
    sources = sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = b"".join(source.read_bytes() for source in sources)[:CORPUS_BYTES]
    return np.frombuffer(text, np.uint8)


def new_training() -> Training:
    """Return the fixed parts of a training run; no weight is made."""
    graph, _ = nnx.split(nnx.eval_shape(lambda: ByteModel(rngs=nnx.Rngs(0))))
    optimizer = optax.adamw(optax.warmup_cosine_decay_schedule(0.0, 2e-3, 10, 200))
    return Training(graph=graph, optimizer=optimizer, text=jnp.asarray(corpus()))


def new_state(training: Training, seed: int = 0) -> State:
    """Return the state before the first step.

    It is what mixed-precision training keeps: bfloat16 weights, their float32 master, the two
    moments of Adam, a step count and a typed PRNG key: 14 bytes a parameter.
    """
    _, master = nnx.split(ByteModel(rngs=nnx.Rngs(seed)))
    return {
        "params": _bfloat16(master),
        "master": master,
        "opt_state": training.optimizer.init(master),
        "step": jnp.int32(0),
        "key": jax.random.key(seed),
    }


def abstract_state(training: Training) -> State:
    """Return the state's structure, shapes and dtypes: the target of a restore."""
    return jax.eval_shape(lambda: new_state(training))


def make_step(training: Training) -> Any:
    """Return the compiled step(state) -> (state, loss); it donates the state it is given."""

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: State) -> tuple[State, jax.Array]:
        key, batch_key = jax.random.split(state["key"])
        starts = jax.random.randint(batch_key, (BATCH, 1), 0, training.text.size - CONTEXT - 1)
        text = training.text[starts + jnp.arange(CONTEXT + 1)]
        loss, gradients = jax.value_and_grad(_loss)(_float32(state["params"]), training.graph, text)
        updates, opt_state = training.optimizer.update(
            gradients, state["opt_state"], state["master"]
        )
        master = optax.apply_updates(state["master"], updates)
        return {
            "params": _bfloat16(master),
            "master": master,
            "opt_state": opt_state,
            "step": state["step"] + 1,
            "key": key,
        }, loss

    return step


def digest(state: State) -> str:
    """Return the SHA-256 of every leaf's path, dtype, shape and bits, in hexadecimal."""
    total = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        array = np.asarray(leaf)
        total.update(f"{jax.tree_util.keystr(path)} {array.dtype} {array.shape}\n".encode())
        total.update(array.tobytes())
    return total.hexdigest()


def state_bytes(state: State) -> int:
    """Return the number of bytes that the words of all leaves take."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(state))


def _loss(params: Any, graph: Any, text: jax.Array) -> jax.Array:
    logits = nnx.merge(graph, params)(text[:, :-1].astype(jnp.int32))
    return optax.softmax_cross_entropy_with_integer_labels(
        logits, text[:, 1:].astype(jnp.int32)
    ).mean()


def _bfloat16(tree: Any) -> Any:
    return jax.tree.map(lambda x: x.astype(jnp.bfloat16), tree)


def _float32(tree: Any) -> Any:
    return jax.tree.map(lambda x: x.astype(jnp.float32), tree)
