"""Typed key paths: from jax's key paths, and back to a tree of plain containers. FORMAT §3.1."""

import operator
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.tree_util import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey

from orbax_gds.errors import Corrupt, Unsupported
from orbax_gds.manifest import MAX_PATH_KEYS, Key, LeafSpec, Path, path_text

_TAGS: Mapping[type, tuple[str, Callable[[Any], Any]]] = {
    DictKey: ("k", operator.attrgetter("key")),
    SequenceKey: ("i", operator.attrgetter("idx")),
    GetAttrKey: ("a", operator.attrgetter("name")),
    FlattenedIndexKey: ("n", operator.attrgetter("key")),
}
_TOO_DEEP = f"A path has at most {MAX_PATH_KEYS} keys; keep deep structures in arrays."
_NUMBERED = frozenset("in")
_TOP: Key = ("k", "")  # the key of the tree itself
_MISSING = object()
_EMPTY: Mapping[str, Callable[[], Any]] = {
    "None": lambda: None,
    "dict": dict,
    "list": list,
    "tuple": tuple,
    "node": lambda: None,
}


def jax_leaves(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[tuple[Any, Any]]:
    """Return jax's (key path, leaf) pairs of a tree.

    Raises:
        Unsupported: a node cannot be taken apart, such as a dict whose keys cannot be sorted, or
            the nodes are nested too deeply.
    """
    try:
        return jax.tree_util.tree_flatten_with_path(tree, is_leaf=is_leaf)[0]
    except (ValueError, TypeError) as error:
        raise Unsupported(
            f"jax cannot flatten the tree: {error} The keys of a dict must be of one type, as jax "
            "sorts them (an OrderedDict is not sorted)."
        ) from error
    except (RecursionError, SystemError) as error:
        if not isinstance(error.__cause__ or error, RecursionError):
            raise
        raise Unsupported(
            f"jax cannot flatten the tree: it is nested too deeply. {_TOO_DEEP}"
        ) from error


def typed_path(keys: Iterable[Any], known: dict[Key, Key]) -> Path:
    """Return a jax key path as typed keys. FORMAT §3.1.

    Args:
        keys: from jax.
        known: keys met before; pass one dict for a whole tree, so that equal keys are one object.

    Raises:
        Unsupported: a key is neither text nor an integer, or cannot be written as JSON; or there
            are more keys than a path may have.
    """
    path = tuple([known.setdefault(key, key) for key in map(_typed_key, keys)])
    if len(path) > MAX_PATH_KEYS:
        raise Unsupported(f"lies {len(path)} keys deep. {_TOO_DEEP}")
    return path


def loose_text(keys: Iterable[Any]) -> str:
    """Return a jax key path as text, whatever its keys are; for messages."""
    return "/".join(
        str(_TAGS[type(key)][1](key)) if type(key) in _TAGS else str(key) for key in keys
    )


def _typed_key(entry: Any) -> Key:
    tag, value_of = _TAGS.get(type(entry), ("a", str))
    value = value_of(entry)
    if type(value) is not str and type(value) is not int:
        value = _plain_key(value)
    if isinstance(value, str):
        if not value.isascii():
            utf8(value, "key")
    elif not -(2**63) <= value < 2**63:
        raise Unsupported(f"has the key {value}: integer keys must fit 64 bits. Use text.")
    return tag, value


def _plain_key(value: Any) -> str | int:
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    raise Unsupported(
        f"has the key {value!r} of type {type(value).__name__}: keys must be str or int."
    )


def utf8(text: str, what: str) -> bytes:
    """Encode a text.

    Args:
        text: the text.
        what: what it is, for the message.

    Raises:
        Unsupported: it holds a lone surrogate.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise Unsupported(
            f"has the {what} {text!r}: a lone surrogate is not valid Unicode. Store bytes."
        ) from error


def is_empty_node(value: Any) -> bool:
    """Whether jax would drop this value although it has a place in the tree."""
    if type(value) in (dict, list, tuple):
        return not value
    level = jax.tree_util.default_registry.flatten_one_level(value)
    return level is not None and not tuple(level[0])


def empty_value(spec: LeafSpec) -> Any:
    """Return the value of a leaf without words: None or an empty container.

    Raises:
        Corrupt: its type is none of those that have no words.
    """
    if spec.type not in _EMPTY:
        raise Corrupt(f"Leaf {path_text(spec.path)!r} of type {spec.type!r} has no dtype.")
    return _EMPTY[spec.type]()


def unflatten(specs: Sequence[LeafSpec], values: Sequence[Any]) -> Any:
    """Build a tree of plain containers from paths, for a restore without a target.

    Mappings and named fields become dicts, whose keys keep their type; sequences and children
    without keys become lists, or dicts where not all of them are there. None and empty containers
    come back in their places, an empty node of another kind as None, as in Orbax. A dict with both
    text and integer keys is an OrderedDict, as jax takes no other.

    Args:
        specs: the leaves; not all of an item's need be there.
        values: one for each; ignored for leaves without words.

    Raises:
        Corrupt: a leaf's path goes through another leaf.
        Unsupported: two keys of a node, of different kinds, are equal as dict keys.

    Example:
        >>> unflatten([LeafSpec(path=(("k", 3), ("i", 0)), type="int", dtype="int64")], [7])
        {3: [7]}
    """
    root = _Node()
    nodes: list[tuple[dict[Key, Any], Key, Path]] = []  # parent, key in it, path; parents first
    for spec, value in zip(specs, values, strict=True):
        leaf = value if spec.has_words else empty_value(spec)
        node = root
        *above, last = _TOP, *spec.path
        for depth, key in enumerate(above):
            below = node.get(key, _MISSING)
            if below is _MISSING:
                below = node[key] = _Node()
                nodes.append((node, key, spec.path[:depth]))
            elif type(below) is not _Node:
                raise Corrupt(f"The path of leaf {path_text(spec.path)!r} goes through a leaf.")
            node = below
        if last in node:
            raise Corrupt(f"The path of leaf {path_text(spec.path)!r} is that of another leaf.")
        node[last] = leaf
    for parent, key, path in reversed(nodes):
        parent[key] = _plain(parent[key], path)
    return root.get(_TOP, {})


class _Node(dict[Key, Any]):
    """Children of a node by key, to tell nodes from leaves that are dicts."""


def _plain(children: _Node, path: Path) -> Any:
    """Return a node, whose own children are plain already, as a plain container."""
    plain: dict[str | int, Any] = {key: child for (_, key), child in children.items()}
    tags = {tag for tag, _ in children}
    if tags <= _NUMBERED and list(plain) == list(range(len(children))):
        return list(children.values())
    if len(set(map(type, plain))) > 1:
        plain = OrderedDict(plain)  # jax sorts a dict's keys, and cannot sort these
    if len(plain) != len(children):
        raise Unsupported(
            f"Node {path_text(path)!r} has keys of different kinds that are equal as dict keys: "
            f"{list(children)}. Restore it with a target."
        )
    return plain
