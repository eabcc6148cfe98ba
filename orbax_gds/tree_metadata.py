"""An item's metadata in Orbax's own types, from the manifest alone.

What `CheckpointManager.item_metadata` returns: a tree that users look at, and hand back as the
target of a restore.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

# Orbax exports no public name for TreeMetadata, although it is what its own handlers return.
from orbax.checkpoint._src.metadata.tree import TreeMetadata, build_default_tree_metadata

from orbax_gds.dtypes import dtype_by_name
from orbax_gds.manifest import LeafSpec, Manifest, ShardingSpec
from orbax_gds.paths import unflatten
from orbax_gds.shardings import axis_types_of
from orbax_gds.uncollected import uncollected

_SCALARS: Mapping[str, type] = {"bool": np.bool_, "int": np.int64, "float": np.float64}


def tree_metadata(manifest: Manifest, directory: FilePath) -> Any:
    """Return the `TreeMetadata` of an item.

    Args:
        manifest: the item's manifest.
        directory: the item's directory, as the leaves' metadata name it.

    Returns:
        `TreeMetadata` whose tree is nested dicts and lists, keys typed as saved, with
        `ocp.metadata.ArrayMetadata`, `ScalarMetadata` or `StringMetadata` at the leaves. A PRNG key
        appears as its key data, as Orbax shows it. A tree that Orbax cannot describe, as it is None
        or a single leaf, comes back without the `TreeMetadata` around it.
    """
    devices = {device.id: str(device) for device in jax.devices()}
    shardings = [_sharding(spec, devices) for spec in manifest.shardings]
    where = epath.Path(directory)  # one for all: making it takes longer than the rest of a leaf
    with uncollected():
        values = [_value(leaf, shardings, where) for leaf in manifest.leaves]
        tree = unflatten(manifest.leaves, values)
    try:
        return build_default_tree_metadata(tree, custom_metadata=manifest.custom_metadata)
    except ValueError:  # Orbax describes no tree that is None, nor, before 0.12, one that is a leaf
        return tree


def is_tree_metadata(value: Any) -> bool:
    """Whether a value is an Orbax `TreeMetadata`, and not only looks like one."""
    return TreeMetadata in type(value).__mro__  # isinstance refuses this Protocol


def _value(leaf: LeafSpec, shardings: Sequence[Any], directory: epath.Path) -> Any:
    """Return the metadata of one leaf; None for a leaf without words, which has none in Orbax."""
    name = ".".join([str(key) for _, key in leaf.path])
    if leaf.dtype is None or leaf.shape is None:
        return None
    if leaf.type in ("str", "bytes"):
        return ocp.metadata.StringMetadata(name=name, directory=directory)
    dtype = dtype_by_name(leaf.dtype).numpy_dtype
    if leaf.type in ("jax.Array", "numpy.ndarray"):
        return ocp.metadata.ArrayMetadata(
            name=name,
            directory=directory,
            shape=leaf.shape,
            sharding=None if leaf.sharding is None else shardings[leaf.sharding],
            dtype=dtype,
        )
    dtype = np.dtype(_SCALARS.get(leaf.type, dtype))
    return ocp.metadata.ScalarMetadata(name=name, directory=directory, dtype=dtype)


def _sharding(spec: ShardingSpec, devices: Mapping[int, str]) -> Any:
    """Return Orbax's metadata of a sharding, or None for a kind that Orbax does not describe.

    A device of another machine keeps its number; Orbax then refuses to make a sharding of it.
    """
    if spec.type == "SingleDeviceSharding" and spec.device is not None:
        device = devices.get(spec.device, f"device:{spec.device}")
        return ocp.metadata.SingleDeviceShardingMetadata(device_str=device)
    if spec.type == "NamedSharding" and None not in (spec.axes, spec.devices, spec.spec):
        sizes = [size for _, size in spec.axes or ()]
        numbers = np.array([{"id": number} for number in spec.devices or ()], object)
        described = ocp.metadata.NamedShardingMetadata.from_deserialized_dict(
            {
                "shape": sizes,
                "axis_names": [name for name, _ in spec.axes or ()],
                "partition_spec": tuple(map(_axis_names, spec.spec or ())),
                "device_mesh": {"mesh": numbers.reshape(sizes).tolist()},
            }
        )
        described.axis_types = axis_types_of(spec)
        return described
    return None


def _axis_names(names: Sequence[str] | None) -> str | tuple[str, ...] | None:
    """Return one dimension of a partition spec as jax writes it."""
    if names is None:
        return None
    return names[0] if len(names) == 1 else tuple(names)
