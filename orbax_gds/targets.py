"""What a restore asks for: the leaves of a target tree, as callers give them."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from orbax_gds.errors import Unsupported
from orbax_gds.manifest import Key, Path
from orbax_gds.paths import jax_leaves, loose_text, typed_path
from orbax_gds.plan import Indices

_NAMES: Mapping[type, str] = {
    jax.Array: "jax.Array",
    np.ndarray: "numpy.ndarray",
    np.generic: "numpy.generic",
    bool: "bool",
    int: "int",
    float: "float",
    complex: "complex",
    str: "str",
    bytes: "bytes",
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """What a caller wants of one leaf; a field that is None is taken as it was saved.

    Attributes:
        type: "jax.Array", "numpy.ndarray", "numpy.generic", "bool", "int", "float", "complex",
            "str" or "bytes"; "array" for a numpy.ndarray if it was saved as one, else a jax.Array.
        shape: global shape; of a PRNG key the shape of the keys.
        dtype: anything NumPy takes as a dtype; the stored elements are cast to it.
        sharding: a jax sharding, or a jax layout `Format` with one.
        prng: name of the PRNG implementation.
    """

    type: str | None = None
    shape: Indices | None = None
    dtype: Any = None
    sharding: Any = None
    prng: str | None = None


def target_of(value: Any, known: dict[Any, Target] | None = None) -> Target:
    """Return what a value asks for, when it stands in a target tree.

    Args:
        value: a Target, a jax.Array, jax.ShapeDtypeStruct, NumPy array or scalar, Python scalar,
            text or bytes; one of these types; or Orbax's metadata of a value.
        known: pass the same empty dict for a whole tree, and arrays that ask for the same share
            one Target.

    Raises:
        Unsupported: the value says nothing of the kind.

    Example:
        >>> target_of(np.zeros((2, 3), np.int8)).shape
        (2, 3)
    """
    if isinstance(value, Target):
        return value
    if isinstance(value, type):
        return _target_of_type(value)
    if isinstance(value, str | bytes | bool | int | float | complex) and not isinstance(
        value, np.generic
    ):
        return Target(type=next(name for kind, name in _NAMES.items() if isinstance(value, kind)))
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return _target_of_array(value, {} if known is None else known)
    if hasattr(value, "directory") and hasattr(value, "name"):  # Orbax's StringMetadata
        return Target()
    raise Unsupported(
        f"is {value!r} of type {type(value).__name__}, which describes no leaf. "
        "Give an array, a jax.ShapeDtypeStruct, a number, a text, Orbax metadata or `...`."
    )


def _target_of_type(kind: type) -> Target:
    if kind in _NAMES:
        return Target(type=_NAMES[kind])
    if issubclass(kind, np.generic):
        return Target(type="numpy.generic", dtype=np.dtype(kind))
    raise Unsupported(f"is the type {kind.__name__}, which no leaf can have.")


def _target_of_array(value: Any, known: dict[Any, Target]) -> Target:
    shape = None if value.shape is None else tuple(value.shape)
    sharding = getattr(value, "sharding", None)
    # By identity, as to hash a sharding takes longer than all the rest. The Target keeps it alive.
    like = type(value), shape, value.dtype, id(sharding)
    target = known.get(like)
    if target is None:
        target = known[like] = _target_like(value, shape, sharding)
    return target


def _target_like(value: Any, shape: Indices | None, sharding: Any) -> Target:
    if hasattr(value, "directory"):  # Orbax's metadata: of the type that was saved
        return Target(shape=shape, dtype=value.dtype, sharding=sharding)
    if isinstance(value, np.ndarray | np.generic):
        kind = "numpy.ndarray" if isinstance(value, np.ndarray) else "numpy.generic"
        return Target(type=kind, shape=shape, dtype=value.dtype)
    kind = "array" if sharding is None else "jax.Array"
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        name = prng_implementation(value.dtype)
        return Target(type="jax.Array", shape=shape, prng=name, sharding=sharding)
    return Target(type=kind, shape=shape, dtype=value.dtype, sharding=sharding)


@functools.cache
def prng_implementation(dtype: Any) -> str:
    """Return the name of the PRNG implementation of a key dtype."""
    names: list[str] = []
    # jax.random.key_impl takes keys, also traced ones, but no jax.ShapeDtypeStruct.
    jax.eval_shape(
        lambda key: names.append(str(jax.random.key_impl(key))), jax.ShapeDtypeStruct((), dtype)
    )
    return names[0]


def flatten_target(abstract: Any) -> tuple[list[tuple[Path, Any]], Any]:
    """Take a target tree apart.

    Args:
        abstract: a PyTree whose leaves `target_of` understands, or `...` for a leaf that is not to
            be restored.

    Returns:
        (path, Target or `...`) of each leaf, and the jax treedef.

    Raises:
        Unsupported: leaves that say nothing; every one is named.
    """
    asked: list[tuple[Path, Any]] = []
    refused: list[str] = []
    known: dict[Key, Key] = {}
    targets: dict[Any, Target] = {}
    for keys, value in jax_leaves(abstract):
        try:
            target = ... if value is ... else target_of(value, targets)
            asked.append((typed_path(keys, known), target))
        except Unsupported as error:
            refused.append(f"{loose_text(keys)!r} {error}")
    if refused:
        raise Unsupported("The target tree cannot be used:\n  " + "\n  ".join(refused))
    return asked, jax.tree_util.tree_structure(abstract)
