"""jax shardings ↔ their description in the manifest, and the boxes they cut. FORMAT §3.2."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from orbax_gds.errors import Corrupt, Unsupported
from orbax_gds.manifest import ShardingSpec
from orbax_gds.plan import Indices

_AXIS_TYPES: Any = getattr(jax.sharding, "AxisType", None)  # older jax knows no types of axes

Device = Any
"""A jax.Device, which type checkers do not know as a type."""
Box = tuple[Indices, Indices]
"""Start and extent of a box, in elements."""


def sharding_spec(sharding: Sharding) -> ShardingSpec:
    """Describe a sharding for the manifest. FORMAT §3.2.

    Raises:
        Unsupported: its arrays hold partial sums (`PartitionSpec(unreduced=…)`), not values.
    """
    kind = _unusual_memory_kind(sharding)
    if isinstance(sharding, SingleDeviceSharding):
        (device,) = sharding.device_set
        return ShardingSpec(type="SingleDeviceSharding", device=device.id, memory_kind=kind)
    if not isinstance(sharding, NamedSharding):
        return ShardingSpec(type=type(sharding).__name__, memory_kind=kind)
    if getattr(sharding.spec, "unreduced", None):
        raise Unsupported("holds unreduced partial sums. Reduce it first (jax.sharding.reshard).")
    mesh = sharding.mesh
    devices = np.asarray(mesh.devices)
    parts = tuple(
        names if names is None else (names,) if isinstance(names, str) else names
        for names in sharding.spec
    )
    named = all(isinstance(name, str) for name in mesh.axis_names)
    if not named or not all(names is None or isinstance(names, tuple) for names in parts):
        return ShardingSpec(type="other", memory_kind=kind)
    return ShardingSpec(
        type="NamedSharding",
        axes=tuple(zip(mesh.axis_names, devices.shape, strict=True)),
        axis_types=_unusual_axis_types(mesh),
        devices=tuple(device.id for device in devices.flat),
        spec=parts,
        memory_kind=kind,
    )


def _unusual_axis_types(mesh: Any) -> tuple[str, ...] | None:
    if _AXIS_TYPES is None:
        return None
    names = tuple(kind.name for kind in mesh.axis_types)
    return None if set(names) <= {"Auto"} else names


def _unusual_memory_kind(sharding: Sharding) -> str | None:
    device = next(iter(sharding.addressable_devices), None)
    if device is None or sharding.memory_kind == device.default_memory().kind:
        return None
    return sharding.memory_kind


def boxes_by_device(sharding: Sharding, shape: Indices) -> dict[Device, Box]:
    """Return the box of an array of that shape that lies on each device of the sharding."""
    boxes = {}
    for device, slices in sharding.devices_indices_map(shape).items():
        ranges = [s.indices(n)[:2] for s, n in zip(slices or (), shape, strict=True)]
        boxes[device] = (
            tuple(begin for begin, _ in ranges),
            tuple(end - begin for begin, end in ranges),
        )
    return boxes


def sharding_of(spec: ShardingSpec, devices: Mapping[int, Device]) -> Sharding | None:
    """Rebuild a saved sharding on the devices of this run.

    A memory kind that the devices do not have is left out.

    Args:
        spec: from the manifest.
        devices: the devices of this run by number.

    Returns:
        The sharding; None if it was of another kind, or a device is not there.
    """
    if spec.type == "SingleDeviceSharding":
        device = None if spec.device is None else devices.get(spec.device)
        if device is None:
            return None
        return SingleDeviceSharding(device, memory_kind=_known(spec.memory_kind, device))
    if spec.type != "NamedSharding" or spec.axes is None or spec.spec is None or not spec.devices:
        return None
    sizes = [size for _, size in spec.axes]
    if math.prod(sizes) != len(spec.devices) or not all(d in devices for d in spec.devices):
        return None
    chosen = np.array([devices[number] for number in spec.devices], dtype=object)
    names = tuple(name for name, _ in spec.axes)
    kinds = axis_types_of(spec)
    typed = {} if kinds is None else {"axis_types": kinds}
    kind = _known(spec.memory_kind, chosen[0])
    parts = [names[0] if names and len(names) == 1 else names for names in spec.spec]
    try:
        mesh = Mesh(chosen.reshape(sizes), names, **typed)
        return NamedSharding(mesh, PartitionSpec(*parts), memory_kind=kind)
    except (TypeError, ValueError) as error:
        raise Corrupt(f"The manifest describes the impossible sharding {spec}: {error}") from error


def axis_types_of(spec: ShardingSpec) -> tuple[Any, ...] | None:
    """Return the jax types of the axes of a saved mesh; None if jax here does not know them."""
    names = spec.axis_types or ("Auto",) * len(spec.axes or ())
    kinds = tuple(getattr(_AXIS_TYPES, name, None) for name in names)
    return None if None in kinds or len(kinds) != len(spec.axes or ()) else kinds


def _known(kind: str | None, device: Device) -> str | None:
    return kind if kind in {memory.kind for memory in device.addressable_memories()} else None
