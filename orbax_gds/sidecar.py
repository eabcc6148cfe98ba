"""The `_METADATA` file: Orbax's own description of a PyTree, beside ours.

Orbax's tools and its v1 loader look for it to see a PyTree in a directory. It is written from the
leaves of the manifest and never read by this package.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from orbax_gds.errors import Unsupported
from orbax_gds.manifest import Key, LeafSpec, Path

NAME = "_METADATA"

_SHORT = (",", ":")  # between what JSON lists; spaces take a tenth of the file
_SEQUENCE, _DICT = 1, 2  # Orbax's KeyType
_EMPTY_TYPES = {"None": "None", "dict": "Dict", "list": "List", "tuple": "Tuple", "node": "None"}
_STORED_TYPES = {
    "jax.Array": "jax.Array",
    "numpy.ndarray": "np.ndarray",
    "str": "string",
    "bytes": "bytes",
}


def encode_tree(leaves: Sequence[LeafSpec]) -> str:
    """Return what `_METADATA` says of the leaves: JSON in ASCII.

    Orbax joins keys as text, so keys that differ only in type, such as 1 and "1", would fall
    together; the later one is written with a number behind it, as "1#2". Every value that has words
    is marked as one that Orbax itself cannot deserialize, and its type names this package, which
    Orbax then quotes when a handler of its own is asked to restore it.
    """
    names = _Names(leaves)
    entries = {}
    for leaf in leaves:
        keys = names.of(leaf.path)
        entries[str(tuple(name for name, _ in keys))] = {
            "key_metadata": [{"key": name, "key_type": kind} for name, kind in keys],
            "value_metadata": {"value_type": _value_type(leaf), "skip_deserialize": True},
        }
    return json.dumps(entries, separators=_SHORT)


def encode(tree: str, custom_metadata: Any) -> bytes:
    """Return the bytes of `_METADATA` for an item.

    Args:
        tree: its leaves, by `encode_tree`.
        custom_metadata: of the user's.

    Returns:
        JSON in ASCII.

    Raises:
        Unsupported: the custom metadata is not JSON.
    """
    rest = {
        "use_ocdbt": False,
        "use_zarr3": False,
        "store_array_data_equal_to_fill_value": True,
        "custom_metadata": custom_metadata,
    }
    try:
        rest_json = json.dumps(rest, separators=_SHORT)
        return f'{{"tree_metadata":{tree},{rest_json[1:]}'.encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise Unsupported(
            f"custom_metadata cannot be written as JSON: {error}. "
            "Give only dict, list, str, int, float, bool and None."
        ) from error


def _value_type(leaf: LeafSpec) -> str:
    if not leaf.has_words:
        return _EMPTY_TYPES.get(leaf.type, "None")
    return f"{_STORED_TYPES.get(leaf.type, 'scalar')} in orbax_gds"


class _Names:
    """Gives every typed key a name that is unique among the children of its node."""

    def __init__(self, leaves: Sequence[LeafSpec]) -> None:
        children: dict[Path, dict[Key, None]] = defaultdict(dict)
        for leaf in leaves:
            for depth, key in enumerate(leaf.path):
                children[leaf.path[:depth]][key] = None
        self.kinds = {node: _kind(tuple(keys)) for node, keys in children.items()}
        self.names = {node: _unique(tuple(keys)) for node, keys in children.items()}

    def of(self, path: Path) -> list[tuple[str, int]]:
        """Return name and Orbax key type of each key of a path."""
        nodes = [path[:depth] for depth in range(len(path))]
        return [
            (self.names[node][key], self.kinds[node]) for node, key in zip(nodes, path, strict=True)
        ]


def _kind(keys: tuple[Key, ...]) -> int:
    """Return SEQUENCE for children that are numbered without a gap, which Orbax insists on."""
    numbered = all(tag in "in" for tag, _ in keys)
    return _SEQUENCE if numbered and [v for _, v in keys] == list(range(len(keys))) else _DICT


def _unique(keys: tuple[Key, ...]) -> dict[Key, str]:
    names: dict[Key, str] = {}
    taken: set[str] = {key for _, key in keys if isinstance(key, str)}
    given: set[str] = set()
    for key in keys:
        text = name = str(key[1])
        number = 1
        while name in given or (name in taken and name != key[1]):
            number += 1
            name = f"{text}#{number}"
        given.add(name)
        names[key] = name
    return names
