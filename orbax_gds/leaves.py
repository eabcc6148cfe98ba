"""PyTree ↔ named leaves ↔ shards: the modules that take jax values apart and put them together.

A save: `flatten` names and describes the leaves, `owned_shards` says which boxes of them this
process stores; `snapshot` takes their words. The other way, what a restore wants of a leaf is in
`targets` and `wants`, how words become values in `assemble`; plain trees come from `paths`.
"""

import dataclasses
import functools
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Sharding

from orbax_gds.assemble import assemble
from orbax_gds.dtypes import dtype_by_name, dtype_of
from orbax_gds.errors import Unsupported
from orbax_gds.manifest import Key, LeafSpec, Path, ShardingSpec, is_possible, path_text
from orbax_gds.owners import Replicated, divided
from orbax_gds.paths import is_empty_node, jax_leaves, loose_text, typed_path, unflatten, utf8
from orbax_gds.plan import Indices, ShardBox
from orbax_gds.shardings import Box, boxes_by_device, sharding_spec
from orbax_gds.targets import Target, flatten_target, target_of
from orbax_gds.uncollected import uncollected
from orbax_gds.wants import Want, want

__all__ = [
    "Flat",
    "Shardings",
    "Target",
    "Want",
    "assemble",
    "flatten",
    "flatten_target",
    "layout_key",
    "owned_shards",
    "read_leaf",
    "target_of",
    "uncollected",
    "unflatten",
    "want",
]

_Read = tuple[LeafSpec, Any]
_Reader = Callable[[Path, Any, "Shardings"], _Read]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flat:
    """A PyTree taken apart for a save.

    Attributes:
        specs: what the manifest says of each leaf, in the order of jax, with None and empty nodes
            in their places.
        numbering: of the distinct shardings of the jax leaves; `LeafSpec.sharding` counts in them.
        values: the leaf's jax.Array (of a PRNG key, its key data) or np.ndarray (of a scalar or a
            text, its words); None for a leaf without words.
    """

    specs: list[LeafSpec]
    numbering: "Shardings"
    values: list[Any]

    @property
    def shardings(self) -> list[ShardingSpec]:
        """The distinct shardings, by number."""
        return self.numbering.specs


def flatten(tree: Any) -> Flat:
    """Name and describe every leaf of a PyTree, so that it can be saved.

    A key's type is kept: of a mapping "k", of a sequence "i", an attribute "a", the number of a
    child "n" where a node has no keys. Subclasses of str and int are stored as their plain value.
    Keys of any other class that jax was given are taken as attributes, by their text.

    Args:
        tree: any PyTree.

    Returns:
        The leaves. jax arrays are only referred to; `snapshot` makes them safe.

    Raises:
        Unsupported: leaves or keys that cannot be stored; every one is named.

    Example:
        >>> [spec.path for spec in flatten({"a": 1, "b": ()}).specs]
        [(('k', 'a'),), (('k', 'b'),)]
    """
    entries = jax_leaves(tree, is_leaf=is_empty_node)
    shardings = Shardings()
    specs: list[LeafSpec] = []
    values: list[Any] = []
    refused: list[str] = []
    readers: dict[type, _Reader] = {}
    known: dict[Key, Key] = {}
    possible: set[Indices | None] = {None}
    for keys, value in entries:
        try:
            kind = type(value)
            reader = readers.get(kind) or readers.setdefault(kind, _reader(value))
            spec, held = reader(typed_path(keys, known), value, shardings)
            if spec.shape not in possible:
                if spec.shape is None or not is_possible(spec.shape):
                    raise Unsupported(f"has the shape {spec.shape}, larger than a leaf may be.")
                possible.add(spec.shape)
        except Unsupported as error:
            refused.append(f"{loose_text(keys)!r} {error}")
            continue
        specs.append(spec)
        values.append(held)
    if len({spec.path for spec in specs}) != len(specs):
        refused += _twice(specs)
    if refused:
        raise Unsupported(
            f"{len(refused)} of {len(entries)} leaves cannot be saved; nothing was written:\n  "
            + "\n  ".join(refused)
        )
    return Flat(specs=specs, numbering=shardings, values=values)


def _twice(specs: Sequence[LeafSpec]) -> list[str]:
    seen: set[Path] = set()
    return [
        f"{path_text(spec.path)!r} is the path of two leaves. Give them different keys."
        for spec in specs
        if spec.path in seen or seen.add(spec.path)
    ]


def _reader(value: Any) -> _Reader:
    """Return the function that reads leaves of this value's class."""
    if is_empty_node(value):
        return _read_empty
    if isinstance(value, jax.Array) and not isinstance(value, Tracer):
        is_key = jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
        return _read_prng if is_key else _read_array
    for kinds, reader in _READERS:
        if isinstance(value, kinds):
            return reader
    return _refuse


def read_leaf(path: Path, value: Any, shardings: "Shardings") -> tuple[LeafSpec, Any]:
    """Describe one leaf, as `flatten` does.

    Returns:
        What the manifest says of it, and what `Flat.values` holds of it.

    Raises:
        Unsupported: it cannot be stored.
    """
    return _reader(value)(path, value, shardings)


def _read_empty(path: Path, value: Any, _: "Shardings") -> _Read:
    if value is None or type(value) in (list, tuple):
        return LeafSpec(path=path, type="None" if value is None else type(value).__name__), None
    return LeafSpec(path=path, type="dict" if isinstance(value, Mapping) else "node"), None


def _read_array(path: Path, value: jax.Array, shardings: "Shardings") -> _Read:
    if value.is_deleted():
        raise Unsupported("is a jax.Array that was deleted or donated. Save before donating it.")
    alike = value.aval, value.sharding
    described = shardings.arrays.get(alike)
    if described is None:
        described = _dtype_name(value.dtype), value.shape, shardings.number(value.sharding)
        shardings.arrays[alike] = described
    dtype, shape, sharding = described
    spec = LeafSpec(path=path, type="jax.Array", dtype=dtype, shape=shape, sharding=sharding)
    return spec, value


def _read_prng(path: Path, value: jax.Array, shardings: "Shardings") -> _Read:
    if value.is_deleted():
        raise Unsupported("is a PRNG key that was deleted or donated. Save before donating it.")
    implementation = jax.random.key_impl(value)
    if not isinstance(implementation, str):
        raise Unsupported(
            f"is a PRNG key of {implementation}, which has no registered name. "
            "Save jax.random.key_data(key)."
        )
    data = jax.random.key_data(value)
    spec = LeafSpec(
        path=path,
        type="jax.Array",
        dtype=_dtype_name(data.dtype),
        shape=data.shape,
        sharding=shardings.number(value.sharding),
        prng=implementation,
    )
    return spec, data


def _read_ndarray(path: Path, value: np.ndarray, _: "Shardings") -> _Read:
    if isinstance(value, np.ma.MaskedArray):
        raise Unsupported("is a masked array. Save its data and its mask as two leaves.")
    return _described(path, "numpy.ndarray", np.asarray(value))


def _read_generic(path: Path, value: np.generic, _: "Shardings") -> _Read:
    return _described(path, "numpy.generic", np.asarray(value))


def _read_int(path: Path, value: int, _: "Shardings") -> _Read:
    if -(2**63) <= value < 2**63:
        return _described(path, "int", np.array(int(value), np.int64))
    n_bytes = (value if value >= 0 else ~value).bit_length() // 8 + 1
    return _described(path, "int", _bytes_array(value.to_bytes(n_bytes, "little", signed=True)))


def _read_scalar(path: Path, value: Any, _: "Shardings") -> _Read:
    for kind in (bool, float, complex):
        if isinstance(value, kind):
            return _described(path, kind.__name__, np.array(value, dtype=kind))
    raise AssertionError(f"no scalar: {type(value)}")


def _read_text(path: Path, value: str | bytes, _: "Shardings") -> _Read:
    if isinstance(value, str):
        return _described(path, "str", _bytes_array(utf8(str.__str__(value), "text")))
    return _described(path, "bytes", _bytes_array(bytes(value)))


def _refuse(_path: Path, value: Any, _: "Shardings") -> NoReturn:
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(value, Tracer):
        raise Unsupported("is a tracer. Save outside of jit and other transformations.")
    if isinstance(value, jax.ShapeDtypeStruct):
        raise Unsupported("is a jax.ShapeDtypeStruct, which has no values. Save the array itself.")
    if callable(value):
        raise Unsupported(
            f"is a callable ({name}). Keep functions out of the tree: in a static field, or in "
            "the code that rebuilds the state."
        )
    raise Unsupported(
        f"is of type {name}. Leaves may be jax.Array, numpy arrays and scalars, bool, int, float, "
        "complex, str, bytes and None; register a container with jax to save what is in it."
    )


# The first match counts: np.float64 is a float too, np.str_ a str and a NumPy scalar, bool an int.
_READERS: Sequence[tuple[Any, _Reader]] = (
    ((str, bytes), _read_text),
    (Tracer, _refuse),
    (np.ndarray, _read_ndarray),
    (np.generic, _read_generic),
    (bool, _read_scalar),
    (int, _read_int),
    ((float, complex), _read_scalar),
)


def _described(path: Path, kind: str, array: np.ndarray) -> _Read:
    dtype = _dtype_name(array.dtype)
    return LeafSpec(path=path, type=kind, dtype=dtype, shape=array.shape), array


def _bytes_array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


@functools.cache
def _dtype_name(dtype: np.dtype) -> str:
    native = dtype.newbyteorder("=") if dtype.byteorder == ">" else dtype
    try:
        return dtype_of(native).name
    except Unsupported as error:
        raise Unsupported(f"has dtype {dtype}, which cannot be stored. Convert it.") from error


class Shardings:
    """Numbers the distinct shardings of a tree in the order they are met.

    Attributes:
        specs: the shardings, by number.
        arrays: dtype, shape and number of the sharding of arrays, by abstract value and sharding.
    """

    def __init__(self) -> None:
        self.specs: list[ShardingSpec] = []
        self.arrays: dict[Hashable, tuple[str, Indices, int]] = {}
        self._numbers: dict[Sharding, int] = {}
        self._n_processes = jax.process_count()

    def number(self, sharding: Sharding) -> int:
        """Return the sharding's number, a new one for a new sharding.

        Raises:
            Unsupported: arrays of this sharding cannot be saved.
        """
        number = self._numbers.get(sharding)
        if number is None:
            if self._n_processes > 1 and sharding.is_fully_addressable:
                raise Unsupported(
                    f"is a host-local jax.Array: of {self._n_processes} processes only this one "
                    "holds it, and each would store its own. Make it global "
                    "(jax.make_array_from_process_local_data), or save it as a NumPy array "
                    "(np.asarray), which process 0 stores."
                )
            spec = sharding_spec(sharding)
            number = self._numbers[sharding] = len(self.specs)
            self.specs.append(spec)
        return number


def owned_shards(flat: Flat, process: int) -> list[ShardBox]:
    """Return the boxes that one process stores, in the order of the leaves.

    Every process computes the same division without talking: each distinct box, or slice of it,
    has one owner among the processes that hold a replica of it, by `divided`. Leaves that are not
    jax arrays belong to process 0.

    Args:
        flat: the tree, equal on all processes but for the values.
        process: number of the process, as in `jax.Device.process_index`.
    """
    owned: list[ShardBox] = []
    shared: list[Replicated] = []
    known: dict[Hashable, _Holding] = {}
    for leaf, (spec, value) in enumerate(zip(flat.specs, flat.values, strict=True)):
        shape = spec.shape
        if shape is None or 0 in shape:
            continue
        if spec.sharding is None:
            if process == 0:
                owned.append(ShardBox(leaf=leaf, start=(0,) * len(shape), extent=shape))
            continue
        layout = layout_key(spec, value)
        holding = known.get(layout)
        if holding is None:
            holding = known[layout] = _Holding(value.sharding, shape, process)
        for (start, extent), holders in holding.boxes:
            box = ShardBox(leaf=leaf, start=start, extent=extent)
            if len(holders) == 1:
                owned.append(box)
            else:
                usual = flat.shardings[spec.sharding].memory_kind is None
                shared.append(_replicated(box, spec, holders, can_cut=usual))
    if shared:
        held = _bytes_held(flat, known)
        owned += [box for box, owner in divided(shared, held) if owner == process]
    return sorted(owned, key=lambda box: (box.leaf, box.start))


class _Holding:
    """Who holds which boxes of the leaves of one layout.

    Attributes:
        boxes: that one process holds, each with all processes that hold it.
        n_elements: in all boxes, by the processes that hold them.
    """

    def __init__(self, sharding: Sharding, shape: Indices, process: int) -> None:
        holders: dict[Box, set[int]] = {}
        for device, box in boxes_by_device(sharding, shape).items():
            holders.setdefault(box, set()).add(device.process_index)
        self.boxes: list[tuple[Box, Indices]] = []
        self.n_elements: dict[Indices, int] = defaultdict(int)
        for box in sorted(holders):
            held_by = tuple(sorted(holders[box]))
            self.n_elements[held_by] += math.prod(box[1])
            if process in holders[box]:
                self.boxes.append((box, held_by))


def _bytes_held(flat: Flat, known: Mapping[Hashable, _Holding]) -> dict[Indices, int]:
    """Return the bytes of all jax arrays, by the processes that hold them.

    Not those of other leaves, which may be of other sizes on other processes.
    """
    element_bytes: dict[Hashable, int] = defaultdict(int)  # of all leaves of a layout
    for spec, value in zip(flat.specs, flat.values, strict=True):
        if spec.sharding is not None:
            layout = layout_key(spec, value)
            element_bytes[layout] += dtype_by_name(spec.dtype or "").element_bytes
    held: dict[Indices, int] = defaultdict(int)
    for layout, holding in known.items():
        for holders, n_elements in holding.n_elements.items():
            held[holders] += n_elements * element_bytes[layout]
    return held


def _replicated(box: ShardBox, spec: LeafSpec, holders: Indices, *, can_cut: bool) -> Replicated:
    """Describe a replicated box; words of less than 8 bits may be packed, and are not cut."""
    name, shape = spec.dtype or "", spec.shape or ()
    dtype = dtype_by_name(name)
    return Replicated(
        box=box,
        shape=shape,
        dtype=name,
        n_bytes=dtype.element_bytes * box.n_elements,
        holders=holders,
        can_cut=can_cut and spec.prng is None and dtype.bits % 8 == 0,
    )


def layout_key(spec: LeafSpec, value: jax.Array) -> Hashable:
    """Return what leaves with equal boxes share; hashing a sharding for each leaf costs more."""
    if spec.prng is None:
        return spec.sharding, spec.shape
    return value.sharding, spec.shape  # that of the key data, where the spec has the keys' own
