"""Items of ours to and from files of safetensors, a piece at a time and without jax."""

import collections
import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path as FilePath
from typing import Any

import msgspec
import numpy as np

from orbax_gds.commit import io_context
from orbax_gds.dtypes import Dtype, dtype_of
from orbax_gds.errors import Unsupported
from orbax_gds.item import Item
from orbax_gds.manifest import LeafSpec, check_leaves, path_text
from orbax_gds.options import Options
from orbax_gds.plan import ShardBox
from orbax_gds.safetensors_file import (
    Tensor,
    read_metadata,
    safetensors_arrays,
    safetensors_dtypes,
    write_safetensors,
)
from orbax_gds.windows import split
from orbax_gds.writing import write_item

__all__ = ["dotted_name", "from_safetensors", "named_alike", "refuse", "to_safetensors"]

_WINDOW_BYTES = 64 << 20  # chosen: as much of a leaf is held at once
_KEY = "orbax_gds"  # of the text that says what names, dtypes and shapes do not
_NOT_A_NAME = "__metadata__"
Progress = Callable[[int, int], None]


class _Tree(msgspec.Struct, frozen=True, kw_only=True):
    """What a file of tensors does not say of the tree they came from."""

    leaves: tuple[LeafSpec, ...]
    custom_metadata: Any = None


def to_safetensors(item: Item, path: FilePath, *, progress: Progress | None = None) -> None:
    """Write the leaves of an item that have words as tensors; a name is the keys, joined by ".".

    The types of keys and values, leaves without words and the user's metadata go into one text of
    the file's metadata, so that `from_safetensors` gives all of it back.

    Args:
        item: opened.
        path: of the file, where nothing is yet.
        progress: called with the bytes of words written so far and in all.

    Raises:
        Exists: there is something at the path.
        Unsupported: leaves of dtypes that such a file does not have, or whose names would be the
            same; each is named, and nothing is written.
        Corrupt: a frame is damaged.
    """
    specs = [msgspec.structs.replace(leaf, sharding=None) for leaf in item.manifest.leaves]
    known = safetensors_dtypes()
    held = [(leaf, dtype) for leaf, dtype in enumerate(item.dtypes) if dtype is not None]
    refuse(
        "a file of safetensors",
        [
            f"{path_text(specs[leaf].path)!r} is {dtype.name}"
            for leaf, dtype in held
            if dtype.name not in known
        ],
    )
    names = {leaf: dotted_name(specs[leaf]) for leaf, _ in held}
    refuse(
        "a file of safetensors",
        [
            *named_alike([specs[leaf] for leaf, _ in held]),
            *(
                f"{path_text(specs[leaf].path)!r} would be named {name!r}, which no tensor can be"
                for leaf, name in names.items()
                if name == _NOT_A_NAME
            ),
        ],
    )
    held.sort(key=lambda each: (-each[1].element_bytes, names[each[0]]))  # as the library does
    tensors = [
        Tensor(name=names[leaf], dtype=dtype, shape=specs[leaf].shape or ()) for leaf, dtype in held
    ]
    tree = _Tree(leaves=tuple(specs), custom_metadata=item.manifest.custom_metadata)
    said = {_KEY: msgspec.json.encode(tree).decode()}
    total = sum(tensor.n_bytes for tensor in tensors)
    reading = _Reading(item, progress or (lambda done, total: None), total)
    with io_context(path, "write"):
        write_safetensors(path, tensors, (reading.pieces(*each) for each in held), said)


class _Reading:
    """Reads leaves in windows, and counts."""

    def __init__(self, item: Item, progress: Progress, total: int) -> None:
        self._item, self._progress, self._total = item, progress, total
        self._done = 0

    def pieces(self, leaf: int, dtype: Dtype) -> Iterator[np.ndarray]:
        """Yield the words of a leaf in C order: uint8[n], at most a window each."""
        shape = self._item.manifest.leaves[leaf].shape or ()
        whole = ShardBox(leaf=leaf, start=(0,) * len(shape), extent=shape)
        for box in split(whole, _WINDOW_BYTES // dtype.element_bytes):
            words = np.empty(box.n_elements * dtype.element_bytes, np.uint8)
            self._item.read([box], [words])
            self._done += len(words)
            yield words
            self._progress(self._done, self._total)


def from_safetensors(
    path: FilePath,
    directory: FilePath,
    *,
    options: Options | None = None,
    progress: Progress | None = None,
) -> None:
    """Write the tensors of a file as an item.

    A file of `to_safetensors` becomes the tree that it was. Of another each name is cut at every
    "." into the keys of nested dicts, and the tensors become NumPy arrays.

    Args:
        path: of the file; it is mapped, not loaded.
        directory: of the item, where nothing is yet.
        options: how to write, as in `write_item`.
        progress: as in `write_item`.

    Raises:
        Exists: there is something at the directory.
        Corrupt: the file, or what `to_safetensors` wrote of the tree, is damaged.
        Unsupported: tensors of dtypes that FORMAT §5 does not have, or names that go through
            others; each is named, and nothing is written.
    """
    with io_context(path, "read"):
        arrays = list(safetensors_arrays(path))
        said = read_metadata(path).get(_KEY)
    refuse("an item", [f"{n!r}: {a}" for n, a in arrays if isinstance(a, Unsupported)])
    found = {name: array for name, array in arrays if isinstance(array, np.ndarray)}
    tree = _said(said, found, f"{path}, text {_KEY!r}") or _Tree(leaves=_leaves_of(found))
    words = [_words(found[dotted_name(spec)]) if spec.has_words else None for spec in tree.leaves]
    write_item(
        directory,
        tree.leaves,
        words,
        options=options,
        custom_metadata=tree.custom_metadata,
        progress=progress,
    )


def _words(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)


def dotted_name(spec: LeafSpec) -> str:
    """Return the keys of a leaf, joined by "."."""
    return ".".join(str(key) for _, key in spec.path)


def named_alike(specs: Sequence[LeafSpec]) -> list[str]:
    """Say of leaves whose keys, joined, are those of others what is wrong with them."""
    names = [dotted_name(spec) for spec in specs]
    count = collections.Counter(names)
    return [
        f"{path_text(spec.path)!r} would be named {name!r}, as another is"
        for spec, name in zip(specs, names, strict=True)
        if count[name] > 1
    ]


def _said(text: str | None, found: dict[str, np.ndarray], where: str) -> _Tree | None:
    """Return the tree that a file tells of, if it is that of the tensors found; else None.

    Who changes tensors with other tools may leave the text as it was.

    Raises:
        Corrupt, Unsupported: it is of these tensors, but no item can be made of it.
    """
    if text is None:
        return None
    with contextlib.suppress(msgspec.MsgspecError):
        tree = msgspec.json.decode(text, type=_Tree)
        held = {dotted_name(spec): spec for spec in tree.leaves if spec.has_words}
        same = held.keys() == found.keys() and all(
            (spec.dtype, spec.shape) == (dtype_of(found[name].dtype).name, found[name].shape)
            for name, spec in held.items()
        )
        if same:
            check_leaves(tree.leaves, 0, where)
            return tree
    return None


def _leaves_of(found: dict[str, np.ndarray]) -> tuple[LeafSpec, ...]:
    """Return the leaves that the names of tensors describe, sorted as jax sorts a dict."""
    names = set(found)
    cut = {name: name.split(".") for name in sorted(names)}
    through = {
        name: ".".join(keys[:depth])
        for name, keys in cut.items()
        for depth in range(1, len(keys))
        if ".".join(keys[:depth]) in names
    }
    refuse("an item", [f"{name!r} goes through {above!r}" for name, above in through.items()])
    return tuple(
        LeafSpec(
            path=tuple(("k", key) for key in keys),
            type="numpy.ndarray",
            dtype=dtype_of(found[name].dtype).name,
            shape=found[name].shape,
        )
        for name, keys in sorted(cut.items(), key=lambda each: each[1])
    )


def refuse(what: str, reasons: Sequence[str]) -> None:
    """Refuse a conversion, if there is a reason.

    Raises:
        Unsupported: there is; each is listed.
    """
    if reasons:
        listed = "\n  ".join(reasons)
        raise Unsupported(
            f"{len(reasons)} leaves cannot be written to {what}; nothing was written:\n  {listed}"
        )
