"""What Orbax's own argument classes ask for, in terms of this package.

Code written for StandardSave, StandardRestore, PyTreeSave and PyTreeRestore runs unchanged under
`handler_registry`; each field of these classes is honoured here or refused by name.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

from orbax_gds.errors import Mismatch, Unsupported
from orbax_gds.manifest import LeafSpec, Path
from orbax_gds.paths import loose_text, typed_path, unflatten
from orbax_gds.targets import Target, target_of

SAVE_ARGS = (ocp.args.StandardSave, ocp.args.PyTreeSave)
RESTORE_ARGS = (ocp.args.StandardRestore, ocp.args.PyTreeRestore)

_Names = tuple[str, ...]
_RESTORE_TYPES: Mapping[Any, str | None] = {
    None: None,
    "jax.Array": "jax.Array",
    "np.ndarray": "numpy.ndarray",
    "scalar": None,
    "string": "str",
}
_BUILTINS = {kind.__name__: kind for kind in (bool, int, float, complex, str, bytes)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RestoreRequest:
    """The arguments of `restoring.restore` beyond the path.

    Attributes:
        abstract: tree of targets, or None for the tree as saved.
        leaves: without `abstract`, the paths or texts of the leaves to restore; None for all.
        strict: raise when a shape differs, rather than pad with zeros and truncate.
        fallback_sharding: for leaves whose saved sharding does not fit this process.
        partial: leave out what is stored but not in `abstract`.
    """

    abstract: Any = None
    leaves: Iterable[Path | str] | None = None
    strict: bool = True
    fallback_sharding: jax.sharding.Sharding | None = None
    partial: bool = False


def saved_tree(args: ocp.args.CheckpointArgs) -> Any:
    """Return the tree that a StandardSave or PyTreeSave asks to store.

    `SaveArgs.dtype` is honoured. The others, and `ocdbt_target_data_file_size`, only shape the
    files of Orbax's own format and are ignored; so does Orbax itself with `aggregate`.

    Raises:
        Unsupported: the tree is None, or a leaf cannot be cast as asked.
    """
    tree, save_args = args.item, args.save_args  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(args, ocp.args.StandardSave):
        if tree is None:
            raise Unsupported("StandardSave was given None. Give it the tree to save.")
        tree = jax.tree.map(_as_array, tree)
    if save_args is None:
        return tree
    return jax.tree_util.tree_map_with_path(_cast, tree, save_args, is_leaf=_is_empty)


def _as_array(value: Any) -> Any:
    """Take other libraries' arrays as NumPy's, as StandardSave does."""
    known = isinstance(value, jax.Array | np.ndarray | np.generic)
    return np.asarray(value) if not known and hasattr(value, "__array__") else value


def _is_empty(node: Any) -> bool:
    return not jax.tree_util.tree_leaves(node)


def _cast(path: Sequence[Any], value: Any, args: Any) -> Any:
    """Return a leaf as the dtype that its SaveArgs ask for."""
    dtype = getattr(args, "dtype", None)
    if dtype is None or _is_key(value):
        return value
    if isinstance(value, bool | int | float | complex):
        return np.dtype(dtype).type(value).item()
    if not isinstance(value, jax.Array | np.ndarray | np.generic):
        return value
    if isinstance(value, jax.Array) and jax.dtypes.canonicalize_dtype(dtype) != np.dtype(dtype):
        raise Unsupported(
            f"SaveArgs asks for {np.dtype(dtype)} at {loose_text(path)!r}, which jax cannot "
            "hold while jax_enable_x64 is off. Pass the leaf as a NumPy array, or enable x64."
        )
    return value.astype(dtype)


def _is_key(value: Any) -> bool:
    dtype = getattr(value, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)


def restore_request(
    args: ocp.args.CheckpointArgs, stored: Callable[[], Sequence[LeafSpec]]
) -> RestoreRequest:
    """Return what a StandardRestore or PyTreeRestore asks for.

    Args:
        args: of one of `RESTORE_ARGS`.
        stored: reads the stored leaves, where the arguments alone do not say enough.

    Raises:
        Unsupported: transforms, or a type that no leaf can be restored as.
        Mismatch: `restore_args` do not fit the tree.
    """
    if isinstance(args, ocp.args.StandardRestore):
        targets = args.item
        if args.support_layout:
            targets = jax.tree.map(_with_layout, args.item)
        return RestoreRequest(
            abstract=targets, strict=args.strict, fallback_sharding=args.fallback_sharding
        )
    assert isinstance(args, ocp.args.PyTreeRestore), type(args)
    if args.transforms is not None or args.legacy_transform_fn is not None:
        raise Unsupported(
            "PyTreeRestore(transforms=..., legacy_transform_fn=...) is not supported by orbax_gds. "
            "Restore the tree as it was saved and change it afterwards, or restore a part of it "
            "with partial_restore=True."
        )
    return _pytree_request(args, stored)


def _with_layout(leaf: Any) -> Any:
    """Return a target that asks for the device layout of the leaf, where it names one."""
    layout = getattr(leaf, "format", None)
    if getattr(layout, "layout", None) is None:
        return leaf
    return dataclasses.replace(target_of(leaf), sharding=layout)


def _pytree_request(
    args: ocp.args.PyTreeRestore, stored: Callable[[], Sequence[LeafSpec]]
) -> RestoreRequest:
    """Follow PyTreeRestore: the item gives the structure, `restore_args` how to restore a leaf."""
    if args.item is None and args.restore_args is None:
        return RestoreRequest()
    wanted = {} if args.restore_args is None else _by_names(args.restore_args)
    chosen: dict[_Names, Any] = {}
    if args.item is None:
        specs = stored()
        words = [_names(spec.path) for spec in specs if spec.has_words]
        _check_same(wanted, words)
        chosen = {names: _target(names, wanted[names], None) for names in words}
        values = [chosen[_names(spec.path)] if spec.has_words else None for spec in specs]
        abstract = unflatten(specs, values)
    else:

        def choose(path: Sequence[Any], leaf: Any) -> Any:
            names = _jax_names(path)
            chosen[names] = leaf if leaf is ... else _target(names, wanted.get(names), leaf)
            return chosen[names]

        abstract = jax.tree_util.tree_map_with_path(choose, args.item)
        if args.restore_args is not None:
            _check_same(wanted, chosen)
    strict = _common_strictness(wanted, chosen, stored)
    return RestoreRequest(abstract=abstract, strict=strict, partial=args.partial_restore)


def _check_same(restore_args: Mapping[_Names, Any], leaves: Collection[_Names]) -> None:
    missing = [names for names in leaves if names not in restore_args]
    known = set(leaves)
    # None asks for nothing: construct_restore_args leaves it where the tree has None.
    extra = [n for n, args in restore_args.items() if n not in known and args is not None]
    if missing or extra:
        raise Mismatch(
            f"restore_args does not fit the tree: it lacks {sorted(map(_text, missing))} and has "
            f"{sorted(map(_text, extra))} in excess. Give one RestoreArgs for each leaf."
        )


def _by_names(restore_args: Any) -> dict[_Names, Any]:
    """Return the RestoreArgs of a tree by the names on the way to them."""
    flat, _ = jax.tree_util.tree_flatten_with_path(restore_args, is_leaf=lambda x: x is None)
    return {_jax_names(path): args for path, args in flat}


def _names(path: Path) -> _Names:
    """Return a path as Orbax matches it: the keys as text, whatever their kind."""
    return tuple(str(key) for _, key in path)


def _jax_names(keys: Sequence[Any]) -> _Names:
    """Return the names on the way to a leaf of a target or of `restore_args`.

    Raises:
        Unsupported: no stored leaf can have such a key.
    """
    try:
        return _names(typed_path(keys, {}))
    except Unsupported as error:
        raise Unsupported(f"{loose_text(keys)!r} {error}") from error


def _text(names: _Names) -> str:
    return "/".join(names)


def _target(names: _Names, args: Any, leaf: Any) -> Any:
    """Return the target of one leaf: what its RestoreArgs say, and otherwise as saved."""
    if not isinstance(args, ocp.RestoreArgs):
        return Target()
    if args.restore_type is type(...):
        return ...
    kind = _restore_type(names, args.restore_type)
    if not isinstance(args, ocp.ArrayRestoreArgs):
        return Target(type=kind, dtype=args.dtype)
    shape, dtype = args.global_shape, args.dtype
    if args.strict and hasattr(leaf, "shape") and hasattr(leaf, "dtype") and not _is_key(leaf):
        shape = leaf.shape if shape is None else shape
        dtype = leaf.dtype if dtype is None else dtype
    return Target(type=kind, shape=shape, dtype=dtype, sharding=_sharding(args))


def _restore_type(names: _Names, kind: Any) -> str | None:
    if kind is None or isinstance(kind, str):
        if kind in _RESTORE_TYPES:
            return _RESTORE_TYPES[kind]
    elif isinstance(kind, type):
        if issubclass(kind, jax.Array):
            return "jax.Array"
        if issubclass(kind, np.ndarray):
            return "numpy.ndarray"
        if issubclass(kind, np.generic):
            return "numpy.generic"
        if kind in _BUILTINS.values():
            return kind.__name__
    raise Unsupported(
        f"restore_type {kind!r} at {_text(names)!r} is not a type that a leaf can be restored as. "
        "Give jax.Array, numpy.ndarray, a NumPy scalar type, int, float, bool, complex, str, bytes "
        "or None for the type it was saved as."
    )


def _sharding(args: ocp.ArrayRestoreArgs) -> Any:
    if args.sharding is None and args.mesh is not None and args.mesh_axes is not None:
        return jax.sharding.NamedSharding(args.mesh, args.mesh_axes)
    return args.sharding


def _common_strictness(
    wanted: Mapping[_Names, Any],
    chosen: Mapping[_Names, Any],
    stored: Callable[[], Sequence[LeafSpec]],
) -> bool:
    """Return whether shapes must match; where leaves differ in that, check the strict ones here.

    Raises:
        Mismatch: a leaf that is strict would have to be padded or truncated.
    """
    loose = {names for names, args in wanted.items() if not getattr(args, "strict", True)}
    if not loose:
        return True
    wrong = []
    for spec in stored():
        if spec.prng is not None:  # their shape is that of the key data; they are always strict
            continue
        names, found = _names(spec.path), spec.shape
        asked = None if names in loose else getattr(chosen.get(names), "shape", None)
        if asked is not None and found is not None and tuple(asked) != found:
            wrong.append(f"{_text(names)!r} is {list(found)}, not {list(asked)}")
    if wrong:
        raise Mismatch(
            f"Stored shapes differ from the ones asked for: {'; '.join(wrong)}. Pass strict=False "
            "in the ArrayRestoreArgs of these leaves to pad with zeros or truncate."
        )
    return False
