"""Hypothesis strategies of PyTrees: every kind of leaf and node that can be saved."""

import dataclasses
from collections import OrderedDict
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from orbax_gds.dtypes import DTYPES

SHAPES = ((), (1,), (7,), (2, 3), (0,), (3, 0), (2, 1, 2))
HELD_BY_JAX = [d for d in DTYPES if hasattr(jnp, d.name) and not d.name.startswith("float6")]
JAX_DTYPES = [d for d in HELD_BY_JAX if d.container_bytes < 8]
KEY_WORDS = {"threefry2x32": 2, "rbg": 4, "unsafe_rbg": 4}


def some_keys(impl, shape, seed=3):
    """Return PRNG keys; `jax.random.split` would take seconds to compile."""
    words = np.random.default_rng(seed).integers(0, 2**32, (*shape, KEY_WORDS[impl]), np.uint32)
    return jax.random.wrap_key_data(jnp.asarray(words), impl=impl)


KEYS = [some_keys(impl, shape) for impl in KEY_WORDS for shape in ((2,), (2, 2))]


class Pair(NamedTuple):
    first: Any
    second: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Record:
    left: Any
    right: Any


def plain(tree):
    """Return the plain containers that a tree comes back as when there is no target."""
    if isinstance(tree, Pair):
        return {"first": plain(tree.first), "second": plain(tree.second)}
    if isinstance(tree, Record):
        return {"left": plain(tree.left), "right": plain(tree.right)}
    if isinstance(tree, dict):
        mixed = len({type(key) for key in tree}) > 1
        return (OrderedDict if mixed else dict)((k, plain(child)) for k, child in tree.items())
    if isinstance(tree, list | tuple) and tree:
        return [plain(child) for child in tree]
    return tree


@st.composite
def arrays(draw, dtypes=DTYPES, shapes=SHAPES):
    """NumPy arrays of random bits, little-endian and in C order."""
    dtype, shape = draw(st.sampled_from(dtypes)), draw(st.sampled_from(shapes))
    n_bytes = int(np.prod(shape)) * dtype.element_bytes
    words = np.frombuffer(draw(st.binary(min_size=n_bytes, max_size=n_bytes)), np.uint8)
    if dtype.name == "bool" or dtype.bits < 8:
        words = words & (1 if dtype.name == "bool" else 2**dtype.bits - 1)
    return dtype.elements(words.copy(), shape)


def numpy_arrays():
    """NumPy arrays in all the ways they lie in memory."""
    layouts = (
        lambda array: array,
        np.asfortranarray,
        lambda array: np.repeat(array, 2, axis=-1)[..., ::2] if array.ndim else array,
        lambda array: array[::-1] if array.ndim else array,
        lambda array: (
            array.astype(array.dtype.newbyteorder(">")) if array.dtype.kind == "i" else array
        ),
    )
    return st.builds(lambda array, layout: layout(array), arrays(), st.sampled_from(layouts))


def scalars():
    """Python's and NumPy's scalars, texts and bytes."""
    return st.one_of(
        st.booleans(),
        st.integers(),
        st.integers(-(2**200), 2**200),
        st.floats(),
        st.complex_numbers(),
        st.text(),
        st.binary(),
        arrays(shapes=((),)).map(lambda array: array[()]),
    )


def leaves():
    """Every kind of leaf."""
    return st.one_of(
        arrays(JAX_DTYPES).map(jax.device_put),
        numpy_arrays(),
        scalars(),
        st.sampled_from(KEYS),
        st.none(),
    )


def trees():
    """Nested containers of every kind, empty ones too."""
    return st.recursive(
        leaves(),
        lambda children: st.one_of(
            st.dictionaries(st.text(), children, max_size=3),
            st.dictionaries(st.integers(-(2**63), 2**63 - 1), children, max_size=3),
            st.dictionaries(st.text() | st.integers(0, 9), children, max_size=3).map(OrderedDict),
            st.lists(children, max_size=3),
            st.lists(children, max_size=3).map(tuple),
            st.builds(Pair, children, children),
            st.builds(Record, children, children),
        ),
        max_leaves=8,
    )
