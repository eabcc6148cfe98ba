"""What a restore needs of each leaf: a target resolved against what is stored."""

import dataclasses
import functools
import logging
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from orbax_gds.dtypes import dtype_by_name
from orbax_gds.errors import Mismatch, Unsupported
from orbax_gds.manifest import LeafSpec, ShardingSpec, path_text
from orbax_gds.plan import Indices
from orbax_gds.shardings import Box, Device, boxes_by_device, sharding_of
from orbax_gds.targets import Target

logger = logging.getLogger(__name__)

_SCALARS = {"bool": np.bool_, "int": np.int64, "float": np.float64, "complex": np.complex128}
_NUMBERS = ("jax.Array", "numpy.ndarray", "numpy.generic", *_SCALARS)
_ARRAYS = ("jax.Array", "numpy.ndarray")
_NOT_IN_JAX = ("float6_e2m3fn", "float6_e3m2fn")  # names without arrays
_NOTHING = Target()


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """What one device gets of a leaf.

    Attributes:
        device: the device; None for host memory.
        box: number of the piece's box in `Want.boxes`; None if no stored element is in it.
        extent: extent of the piece; where it exceeds that of the box, zeros are added at the ends.
    """

    device: Device | None
    box: int | None
    extent: Indices


class Want(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One leaf to restore, resolved against what is stored.

    Attributes:
        leaf: its number in the manifest.
        boxes: distinct boxes of the stored elements that are needed here; none is empty.
        spec: what is stored.
        type: type of the value.
        shape: global shape of the elements; of PRNG keys that of their key data.
        dtype: what the elements are cast to; None if they stay as they are.
        sharding: of the jax.Array that the pieces make up.
        final: sharding of PRNG keys, or jax layout, that the finished value must have.
        pieces: of a jax.Array, what each device of this process gets; else one, without a device.
    """

    leaf: int
    boxes: Sequence[Box]
    spec: LeafSpec
    type: str
    shape: Indices
    dtype: np.dtype | None
    sharding: Sharding | None
    final: Any
    pieces: Sequence[Piece]


def want(
    leaf: int,
    spec: LeafSpec,
    shardings: Sequence[ShardingSpec],
    target: Target | None,
    *,
    fallback_sharding: Any = None,
    strict: bool = True,
    cache: dict[Any, Any] | None = None,
) -> Want:
    """Resolve what is asked of one leaf against what is stored.

    Args:
        leaf: number of the leaf in the manifest.
        spec: the leaf as it is stored; it has words.
        shardings: those of the manifest.
        target: what is asked for; None takes all as it was saved.
        fallback_sharding: for a jax.Array whose saved sharding does not fit the devices here.
        strict: refuse a shape that differs; else cut or fill up with zeros at the ends.
        cache: pass the same empty dict for all leaves of a restore, and what they share is worked
            out, and logged, once.

    Raises:
        Mismatch: type, shape, dtype, PRNG implementation or sharding do not fit the stored leaf.
        Unsupported: jax cannot hold the stored dtype.
    """
    target = target or _NOTHING
    cache = {} if cache is None else cache
    described = spec.type, spec.dtype, spec.shape, spec.sharding, spec.prng
    found = cache.get(("want", id(target), described))
    if found is not None:
        _, like = found
        return Want(
            leaf=leaf,
            boxes=like.boxes,
            spec=spec,
            type=like.type,
            shape=like.shape,
            dtype=like.dtype,
            sharding=like.sharding,
            final=like.final,
            pieces=like.pieces,
        )
    resolved = _resolve(leaf, spec, shardings, target, fallback_sharding, strict, cache)
    if resolved.type in _ARRAYS and resolved.dtype is None:  # of others, each conversion is logged
        cache["want", id(target), described] = target, resolved  # the number is that of no other
    return resolved


def _resolve(
    leaf: int,
    spec: LeafSpec,
    shardings: Sequence[ShardingSpec],
    target: Target,
    fallback_sharding: Any,
    strict: bool,
    cache: dict[Any, Any],
) -> Want:
    kind = _kind(spec, target)
    assert spec.shape is not None, f"{spec} has no words"
    _check_type(spec, kind)
    if kind in ("str", "bytes") or (kind == "int" and spec.shape):
        return _whole(leaf, spec, kind, spec.shape, None)
    shape = _shape(spec, target, kind, strict)
    dtype = _dtype(spec, target, kind)
    if kind != "jax.Array":
        return _whole(leaf, spec, kind, shape, dtype)
    sharding, final = _asked_sharding(spec, target, cache)
    if sharding is None:
        sharding = _saved_sharding(spec, shardings, fallback_sharding, cache)
    if spec.prng is not None:
        sharding = final = _sharding_of_keys(spec, sharding)
        if not isinstance(sharding, NamedSharding | SingleDeviceSharding):
            sharding = default_sharding()  # others count dimensions, and key data have more
    boxes, pieces = _placement(spec, shape, sharding, cache)
    return Want(
        leaf=leaf,
        boxes=boxes,
        spec=spec,
        type=kind,
        shape=shape,
        dtype=dtype,
        sharding=sharding,
        final=final,
        pieces=pieces,
    )


def _kind(spec: LeafSpec, target: Target) -> str:
    """Return the type to restore a leaf as."""
    if target.type == "array":
        return "numpy.ndarray" if spec.type == "numpy.ndarray" else "jax.Array"
    return target.type or spec.type


def _whole(leaf: int, spec: LeafSpec, kind: str, shape: Indices, dtype: np.dtype | None) -> Want:
    """Return the want of a leaf that is restored as one piece in host memory."""
    extent = tuple(map(min, shape, spec.shape or ()))
    boxes: list[Box] = [] if 0 in extent else [((0,) * len(shape), extent)]
    return Want(
        leaf=leaf,
        boxes=boxes,
        spec=spec,
        type=kind,
        shape=shape,
        dtype=dtype,
        sharding=None,
        final=None,
        pieces=(Piece(device=None, box=0 if boxes else None, extent=shape),),
    )


def _check_type(spec: LeafSpec, kind: str) -> None:
    long_int = spec.type == "int" and bool(spec.shape)
    if spec.type not in _NUMBERS or long_int:
        fits = kind == spec.type
    else:
        fits = kind in _NUMBERS and (spec.prng is None or kind == "jax.Array")
    if not fits:
        raise Mismatch(
            f"{_stored(spec)}, but {kind} was asked for. Ask for it as it was saved, "
            "and convert it afterwards."
        )


def _shape(spec: LeafSpec, target: Target, kind: str, strict: bool) -> Indices:
    """Return the shape to restore: of the elements, so of PRNG keys that of the key data."""
    stored = spec.shape or ()
    asked = target.shape
    if spec.prng is None and target.prng is not None:
        raise Mismatch(
            f"{_stored(spec)}, but PRNG keys of {target.prng!r} were asked for. "
            "Ask for the array, and wrap it with jax.random.wrap_key_data."
        )
    if spec.prng is not None:
        asked = _prng_shape(spec, target)
    elif kind in _SCALARS or kind == "numpy.generic":
        asked = ()
    if asked is None or asked == stored:
        return stored
    if strict or len(asked) != len(stored) or spec.prng is not None:
        dtype = spec.dtype if target.dtype is None else np.dtype(target.dtype).name
        raise Mismatch(
            f"{_stored(spec)} but {_array_text(dtype, asked)} was asked for. "
            "Ask for the stored shape; strict=False cuts or fills with zeros where only the "
            "lengths differ."
        )
    return asked


def _prng_shape(spec: LeafSpec, target: Target) -> Indices | None:
    """Check what is asked of PRNG keys and return the shape asked for, of the key data.

    An array like the key data asks for the keys too: so Orbax's to_shape_dtype_struct says it.
    """
    keys = f"{_stored(spec)}, PRNG keys of {spec.prng!r}"
    if target.prng not in (None, spec.prng):
        raise Mismatch(f"{keys}, but keys of {target.prng!r} were asked for. Ask for the former.")
    asked_as_data = target.prng is None and target.dtype is not None
    if asked_as_data and np.dtype(target.dtype).name != spec.dtype:
        raise Mismatch(
            f"{keys}, but {_array_text(np.dtype(target.dtype).name, target.shape)} was asked for. "
            "Ask for typed keys, and take jax.random.key_data of them."
        )
    if target.shape is None or asked_as_data:
        return target.shape
    return target.shape + _key_data_shape(spec.prng or "")


def _sharding_of_keys(spec: LeafSpec, sharding: Sharding) -> Sharding:
    """Return a sharding without the dimensions that only the key data have."""
    rank = len(spec.shape or ()) - len(_key_data_shape(spec.prng or ""))
    if not isinstance(sharding, NamedSharding) or len(sharding.spec) <= rank:
        return sharding
    spec_of_keys = PartitionSpec(*sharding.spec[:rank])
    return NamedSharding(sharding.mesh, spec_of_keys, memory_kind=sharding.memory_kind)


@functools.cache
def _key_data_shape(implementation: str) -> Indices:
    try:
        key = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0, impl=implementation)))
    except ValueError as error:
        raise Unsupported(
            f"The PRNG implementation {implementation!r} is not known to jax {jax.__version__}. "
            "Register it before restoring its keys."
        ) from error
    return key.shape


def _dtype(spec: LeafSpec, target: Target, kind: str) -> np.dtype | None:
    """Return the dtype to cast to, None to keep the stored one; a conversion is logged."""
    stored = dtype_by_name(spec.dtype or "").numpy_dtype
    wanted = stored
    if kind in _SCALARS:
        wanted = np.dtype(_SCALARS[kind])
    elif target.dtype is not None and spec.prng is None:
        wanted = np.dtype(target.dtype)
    if kind == "jax.Array":
        _check_jax_holds(spec, wanted)
    if wanted == stored:
        return None
    if stored.kind == "c" and wanted.kind not in "cb":
        raise Mismatch(
            f"{_stored(spec)} but {wanted} was asked for, which would drop the imaginary parts. "
            "Ask for a complex dtype."
        )
    logger.info("%s; converted to %s, as asked.", _stored(spec), wanted)
    return None if kind in _SCALARS else wanted  # Python itself converts to its types


def _check_jax_holds(spec: LeafSpec, dtype: np.dtype) -> None:
    if dtype.name in _NOT_IN_JAX or not hasattr(jnp, dtype.name):
        raise Unsupported(
            f"{_stored(spec)}, and jax {jax.__version__} cannot hold arrays of {dtype}. "
            "Ask for a numpy.ndarray."
        )
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise Mismatch(
            f"{_stored(spec)}, and jax cannot hold {dtype} while jax_enable_x64 is off. "
            f"Enable it, or ask for {jax.dtypes.canonicalize_dtype(dtype)} or a numpy.ndarray."
        )


def _asked_sharding(
    spec: LeafSpec, target: Target, cache: dict[Any, Any]
) -> tuple[Sharding | None, Any]:
    """Return the sharding that was asked for, and the layout with it, where there are such."""
    asked, layout = target.sharding, None
    if hasattr(asked, "layout") and hasattr(asked, "sharding"):
        layout = asked if asked.layout is not None else None
        asked = asked.sharding
    if hasattr(asked, "to_jax_sharding"):  # Orbax's metadata of a sharding
        try:
            asked = asked.to_jax_sharding()
        except ValueError as error:
            asked = None
            if ("unfit", str(error)) not in cache:
                cache["unfit", str(error)] = None
                logger.info(
                    "The sharding asked for leaf %r does not fit the devices here: %s. It and "
                    "others like it are restored as if none was asked for.",
                    path_text(spec.path),
                    error,
                )
    if isinstance(asked, jax.Device):
        asked = SingleDeviceSharding(asked)
    if asked is not None and not isinstance(asked, Sharding):
        raise Mismatch(
            f"Leaf {path_text(spec.path)!r} was asked for with the sharding {asked!r}. "
            "Give a jax sharding, device or layout Format."
        )
    return asked, layout


def _saved_sharding(
    spec: LeafSpec, shardings: Sequence[ShardingSpec], fallback: Any, cache: dict[Any, Any]
) -> Sharding:
    """Return the sharding that a leaf was saved with, or the fallback where it does not fit."""
    key = "saved", spec.sharding
    if key not in cache:
        saved = None if spec.sharding is None else shardings[spec.sharding]
        rebuilt = None
        if saved is not None:
            rebuilt = sharding_of(saved, {device.id: device for device in jax.devices()})
        if rebuilt is None and saved is not None:
            if fallback is None and jax.process_count() > 1:
                raise Mismatch(
                    f"Leaf {path_text(spec.path)!r} was saved with a sharding that does not fit "
                    f"the devices here: {saved}. Ask for a sharding, or give fallback_sharding."
                )
            logger.info(
                "Leaf %r was saved with a sharding that does not fit the devices here: %s. "
                "It and others like it go to %s.",
                path_text(spec.path),
                saved,
                fallback or default_sharding(),
            )
        cache[key] = rebuilt or fallback or default_sharding()
    return cache[key]


def default_sharding() -> SingleDeviceSharding:
    """Return that of an array that jax puts where it likes."""
    device = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    if device is None or isinstance(device, str):
        device = jax.local_devices(backend=device)[0]
    return SingleDeviceSharding(device)


def _placement(
    spec: LeafSpec, shape: Indices, sharding: Sharding, cache: dict[Any, Any]
) -> tuple[Sequence[Box], Sequence[Piece]]:
    """Return the stored boxes that the devices here need, and which one each of them gets."""
    key = sharding, shape, spec.shape
    found = cache.get(key)
    if found is None:
        found = cache[key] = _cut(spec, shape, sharding)
    return found


def _cut(
    spec: LeafSpec, shape: Indices, sharding: Sharding
) -> tuple[Sequence[Box], Sequence[Piece]]:
    try:
        by_device = boxes_by_device(sharding, shape)
        here = sharding.addressable_devices
    except ValueError as error:
        raise Mismatch(
            f"{_stored(spec)} and cannot be restored with {sharding}: {error} "
            "Ask for a sharding that fits."
        ) from error
    boxes: dict[Box, int] = {}
    pieces = []
    for device, (start, extent) in by_device.items():
        if device not in here:
            continue
        stored = spec.shape or ()
        within = tuple(
            max(0, min(n, end - begin)) for begin, n, end in zip(start, extent, stored, strict=True)
        )
        number = None
        if 0 not in within:
            number = boxes.setdefault((start, within), len(boxes))
        pieces.append(Piece(device=device, box=number, extent=extent))
    return tuple(boxes), tuple(pieces)


def _stored(spec: LeafSpec) -> str:
    where = f"Leaf {path_text(spec.path)!r} is"
    if spec.type not in ("jax.Array", "numpy.ndarray"):
        return f"{where} {spec.type} on disk"
    return f"{where} {_array_text(spec.dtype, spec.shape)} on disk"


def _array_text(dtype: str | None, shape: Indices | None) -> str:
    return f"{dtype}[{','.join(map(str, shape or ()))}]"
