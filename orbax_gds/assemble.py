"""Words → values: the end of a restore, all leaves at once."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding, SingleDeviceSharding

from orbax_gds.dtypes import dtype_by_name
from orbax_gds.errors import Corrupt
from orbax_gds.manifest import path_text
from orbax_gds.plan import Indices
from orbax_gds.shardings import Device
from orbax_gds.wants import Piece, Want

_PYTHON: Mapping[str, Callable[[Any], Any]] = {
    "bool": bool,
    "int": int,
    "float": float,
    "complex": complex,
}


def assemble(wants: Sequence[Want], words: Sequence[Sequence[np.ndarray]]) -> list[Any]:
    """Make values of decoded words.

    On CPUs a jax.Array takes the words' memory as its own where that begins at a multiple of 64
    bytes, so that nothing is copied; nobody may write there afterwards. Devices that hold the same
    box share it. jax never writes to memory that it took from NumPy: where such an array is
    donated, jax deletes it as usual, and the result gets fresh memory.

    Args:
        wants: from `want`.
        words: for each want, one uint8[n] for each of its boxes: the box's elements in C order.

    Returns:
        One value for each want.

    Raises:
        Corrupt: a stored text is not UTF-8.
    """
    values: list[Any] = [None] * len(wants)
    transfers = _Transfers()
    for number, (want, buffers) in enumerate(zip(wants, words, strict=True)):
        if want.type == "jax.Array":
            transfers.add(want, buffers)
        else:
            values[number] = _host_value(want, buffers)
    pieces = iter(transfers.run())
    for number, want in enumerate(wants):
        if want.type == "jax.Array":
            values[number] = _array(want, [next(pieces) for _ in want.pieces])
    return values


class _Transfers:
    """The pieces of all jax leaves on their way to the devices, in one dispatch."""

    def __init__(self) -> None:
        self._arrays: list[np.ndarray] = []
        self._places: list[Sharding] = []
        self._known: dict[tuple[Device, str | None], Sharding] = {}

    def add(self, want: Want, buffers: Sequence[np.ndarray]) -> None:
        """Add the pieces of one leaf."""
        if len(want.pieces) == 1:
            self._arrays.append(_elements(want, want.pieces[0], buffers))
            self._places.append(self._place(want, want.pieces[0]))
            return
        made: dict[tuple[int | None, Indices], np.ndarray] = {}
        for piece in want.pieces:
            key = piece.box, piece.extent
            if key not in made:
                made[key] = _elements(want, piece, buffers)
            self._arrays.append(made[key])
            self._places.append(self._place(want, piece))

    def _place(self, want: Want, piece: Piece) -> Sharding:
        assert want.sharding is not None
        if len(want.pieces) == 1 and len(want.sharding.device_set) == 1:
            return want.sharding
        key = piece.device, want.sharding.memory_kind
        if key not in self._known:
            self._known[key] = SingleDeviceSharding(piece.device, memory_kind=key[1])
        return self._known[key]

    def run(self) -> list[jax.Array]:
        """Put all pieces on their devices, in the order they were added."""
        return jax.device_put(self._arrays, self._places, may_alias=True)


def _array(want: Want, pieces: list[jax.Array]) -> jax.Array:
    assert want.sharding is not None
    array = pieces[0]
    if len(want.sharding.device_set) > 1:
        array = jax.make_array_from_single_device_arrays(want.shape, want.sharding, pieces)
    if want.spec.prng is not None:
        array = jax.random.wrap_key_data(array, impl=want.spec.prng)
        return array if array.sharding == want.final else jax.device_put(array, want.final)
    return array if want.final is None else jax.device_put(array, want.final)


def _host_value(want: Want, buffers: Sequence[np.ndarray]) -> Any:
    elements = _elements(want, want.pieces[0], buffers)
    if want.type == "numpy.ndarray":
        return elements
    if want.type == "bytes":
        return elements.tobytes()
    if want.type == "str":
        try:
            return elements.tobytes().decode()
        except UnicodeDecodeError as error:
            raise Corrupt(f"Leaf {path_text(want.spec.path)!r} is no UTF-8: {error}.") from error
    if want.type == "int" and want.shape:
        return int.from_bytes(elements.tobytes(), "little", signed=True)
    scalar = elements[()]
    return scalar if want.type == "numpy.generic" else _PYTHON[want.type](scalar)


def _elements(want: Want, piece: Piece, buffers: Sequence[np.ndarray]) -> np.ndarray:
    """Return a piece's elements: a view of the words where nothing is cast or filled up."""
    assert want.spec.dtype is not None
    dtype = dtype_by_name(want.spec.dtype)
    if piece.box is None:
        elements = np.zeros(piece.extent, dtype.numpy_dtype)
    else:
        _, extent = want.boxes[piece.box]
        elements = dtype.elements(buffers[piece.box], extent)
        if extent != piece.extent:
            filled = np.zeros(piece.extent, dtype.numpy_dtype)
            filled[tuple(map(slice, extent))] = elements
            elements = filled
    return elements if want.dtype is None else _cast(elements, want.dtype)


def _cast(elements: np.ndarray, dtype: np.dtype) -> np.ndarray:
    with np.errstate(invalid="ignore", over="ignore"):  # what does not fit is as in Orbax
        try:
            return elements.astype(dtype)
        except TypeError:  # NumPy knows no way from some of ml_dtypes' types to others
            return elements.astype(np.float32).astype(dtype)
