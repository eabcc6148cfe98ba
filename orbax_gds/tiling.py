"""Whether what several processes store of an item tiles its leaves, before it exists. FORMAT §8.1.

Each process works out by itself which shards are its own. That all have divided the leaves alike
is seen here in what they have stored: versions or devices that differ would show nowhere else.
"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path as FilePath

import msgspec
import numpy as np

from orbax_gds import stripe as stripes
from orbax_gds.coverage import untiled
from orbax_gds.errors import CommitError, Corrupt
from orbax_gds.manifest import Path, path_text
from orbax_gds.pending import process_of

_MOST_NAMED = 8  # chosen: of the processes in one message

_Boxes = Mapping[int, tuple[np.ndarray, ...]]


class _Leaf(msgspec.Struct, frozen=True):
    """What is needed here of a leaf as the manifest describes it."""

    path: msgspec.Raw
    shape: tuple[int, ...] | None = None
    kind: int = 0


class _Kind(msgspec.Struct, frozen=True):
    """What is needed here of what leaves have in common."""

    shape: tuple[int, ...] | None = None


def check_tiling(
    directory: FilePath,
    leaves: msgspec.Raw,
    layouts: Mapping[str, bytes],
    kinds: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET,
) -> None:
    """Check that every element of every leaf is in just one shard of all stripes.

    Args:
        directory: the item.
        leaves: as they stand in the manifest.
        layouts: layout block of each stripe, by its file.
        kinds: as they stand in the manifest, where it has them.

    Raises:
        CommitError: a leaf is not stored whole, or twice, or a layout is malformed; leaf and
            processes are named.
    """
    try:
        described = msgspec.json.decode(leaves, type=list[_Leaf])
        shapes = [leaf.shape for leaf in described]
        if kinds is not msgspec.UNSET:
            of_kinds = [kind.shape for kind in msgspec.json.decode(kinds, type=list[_Kind])]
            shapes = [of_kinds[leaf.kind] for leaf in described]
        boxes = {
            file: stripes.boxes_by_rank(layout, str(directory / file))
            for file, layout in layouts.items()
        }
    except (msgspec.DecodeError, IndexError, Corrupt) as err:
        raise CommitError(
            f"The save in {directory} cannot be published: {err} Save again."
        ) from err
    every: dict[int, tuple[np.ndarray, ...]] = {}
    for rank in {rank for of_stripe in boxes.values() for rank in of_stripe}:
        columns = [of_stripe[rank] for of_stripe in boxes.values() if rank in of_stripe]
        every[rank] = tuple(map(np.concatenate, zip(*columns, strict=True)))
    bad = untiled(shapes, every)
    if not len(bad):
        return
    number = int(bad[0])
    parts = list(_parts_of(number, boxes))
    text = ", ".join(parts[:_MOST_NAMED]) + (", …" if len(parts) > _MOST_NAMED else "")
    text = text or f"none of {len(boxes)} stores any of it"
    name = _name(described, shapes, number)
    raise CommitError(
        f"{directory} is not published: the processes have not divided {name} alike, "
        f"as their shards do not tile it: {text}. "
        f"{len(bad)} of {len(described)} leaves are hit. All processes must run the same version "
        "of orbax_gds, jax and Orbax on the same devices; see to that and save again."
    )


def _name(leaves: list[_Leaf], shapes: list[tuple[int, ...] | None], number: int) -> str:
    if number >= len(leaves):
        return f"leaf {number}, of which there are only {len(leaves)},"
    path, shape = msgspec.json.decode(leaves[number].path, type=Path), shapes[number]
    size = "without words" if shape is None else f"of {math.prod(shape)} elements"
    return f"leaf {path_text(path)!r} {size}"


def _parts_of(leaf: int, boxes: Mapping[str, _Boxes]) -> Iterator[str]:
    """Yield what each process stores of a leaf."""
    for file, of_stripe in boxes.items():
        extents = [
            extent
            for leaves, _, table in of_stripe.values()
            for extent in table[leaves == leaf].tolist()
        ]
        if extents:
            yield f"{process_of(file)} stores {sum(map(math.prod, extents))}"
