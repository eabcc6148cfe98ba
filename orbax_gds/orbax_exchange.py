"""Items of ours to and from plain Orbax checkpoints, which are held in memory whole."""

import os
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path as FilePath
from typing import Any

import jax
import msgspec
import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts

from orbax_gds.commit import io_context
from orbax_gds.dtypes import Dtype
from orbax_gds.errors import Exists, IoError, Unsupported
from orbax_gds.exchange import named_alike, refuse
from orbax_gds.final_names import TEMPORARY
from orbax_gds.item import Item
from orbax_gds.leaves import flatten
from orbax_gds.manifest import LeafSpec, path_text
from orbax_gds.options import Options
from orbax_gds.paths import unflatten
from orbax_gds.writing import new_directory, write_item

__all__ = ["from_orbax", "to_orbax"]

_JAX_ARRAY = "jax.Array"
_SCALARS = {"bool": bool, "int64": int, "float64": float}  # Orbax names the NumPy type of each


def to_orbax(item: Item, path: FilePath) -> None:
    """Write an item as a plain Orbax checkpoint, which `PyTreeCheckpointHandler` restores.

    Nodes become dicts, lists and tuples' lists, as in a restore without a target. The whole state
    is held in host memory.

    Args:
        item: opened.
        path: of the checkpoint, where nothing is yet.

    Raises:
        Exists: there is something at the path.
        Unsupported: leaves that Orbax cannot hold; each is named, and nothing is written.
        Corrupt: a frame is damaged.
        IoError: the system refused; nothing is left behind.
    """
    path = path.absolute()
    if os.path.lexists(path):
        raise Exists(f"{path} exists already. Give another place, or delete it.")
    specs = item.manifest.leaves
    reasons = named_alike([spec for spec in specs if spec.has_words])  # Orbax would keep one
    for spec, dtype in zip(specs, item.dtypes, strict=True):
        reason = None if dtype is None else _why_not(spec, dtype)
        if reason:
            reasons.append(f"{path_text(spec.path)!r} is {reason}")
    refuse("a plain Orbax checkpoint", reasons)
    with _wide_words():
        values = [
            _value(spec, item.read_leaf(leaf)) if spec.has_words else None
            for leaf, spec in enumerate(specs)
        ]
        tree = unflatten(specs, values)
        save = ocp.args.PyTreeSave(tree, custom_metadata=item.manifest.custom_metadata)
        # Orbax leaves its own temporary directory where it fails. It looks for this mark on ours.
        ours = path.with_name(f"{path.name}{TEMPORARY}-{uuid.uuid4().hex}")
        with io_context(path, "write"), new_directory(ours):
            _save(ours / path.name, save, path)
            if os.path.lexists(path):  # by now
                raise Exists(f"{path} exists already. Give another place, or delete it.")
            os.rename(ours / path.name, path)
        with suppress(OSError):  # what was asked for is there
            ours.rmdir()


def _save(place: FilePath, save: ocp.args.PyTreeSave, path: FilePath) -> None:
    """Let Orbax save in a place from which it is moved to a path."""
    try:
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            checkpointer.save(place, args=save)
    except (ValueError, RuntimeError) as err:  # so TensorStore says what the system refused
        remedy = "Check the space and permissions there, or write elsewhere."
        raise IoError(f"Cannot write {path}: Orbax says: {err}. {remedy}") from err


def from_orbax(path: FilePath, directory: FilePath, *, options: Options | None = None) -> None:
    """Write a plain Orbax checkpoint as an item of ours.

    Arrays of jax stay arrays of jax, without their shardings. The whole state is held in host
    memory.

    Args:
        path: of what `PyTreeCheckpointHandler` or `StandardCheckpointHandler` saved.
        directory: of the item, where nothing is yet.
        options: how to write, as in `write_item`.

    Raises:
        Exists: there is something at the directory.
        Unsupported: leaves that an item cannot hold, or a checkpoint that Orbax cannot restore.
    """
    on_host = jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])
    with _wide_words(), ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        try:
            metadata = checkpointer.metadata(path.absolute()).item_metadata
            if metadata is None:
                raise ValueError("its metadata cannot be read")
            how = jax.tree.map(lambda leaf: _restore_args(leaf, on_host), metadata.tree)
            restore = ocp.args.PyTreeRestore(restore_args=how)
            tree = checkpointer.restore(path.absolute(), args=restore)
        except (OSError, ValueError, TypeError, KeyError) as err:
            raise Unsupported(f"Orbax cannot restore {path}: {err}") from err
        flat = flatten(tree)
        write_item(
            directory,
            [msgspec.structs.replace(spec, sharding=None) for spec in flat.specs],
            [None if value is None else _words(value) for value in flat.values],
            options=options,
            custom_metadata=metadata.custom_metadata,
        )


def _restore_args(leaf: Any, on_host: jax.sharding.Sharding) -> ocp.RestoreArgs:
    if isinstance(leaf, ocp.metadata.ScalarMetadata):
        return ocp.RestoreArgs(restore_type=_SCALARS.get(np.dtype(leaf.dtype).name, np.ndarray))
    if not isinstance(leaf, ocp.metadata.ArrayMetadata):
        return ocp.RestoreArgs()
    if leaf.sharding is None:
        return ocp.RestoreArgs(restore_type=np.ndarray)
    return ocp.ArrayRestoreArgs(restore_type=jax.Array, sharding=on_host)


def _words(value: Any) -> np.ndarray:
    return np.ascontiguousarray(value).reshape(-1).view(np.uint8)


def _why_not(spec: LeafSpec, dtype: Dtype) -> str | None:
    """Say what it is that Orbax cannot hold of a leaf; None if it can."""
    if spec.type in ("bytes", "complex"):
        return f"of type {spec.type}"
    if spec.type == "str":
        return None
    if spec.type == "int" and dtype.name != "int64":
        return "an int of more than 64 bits"
    if 0 in (spec.shape or ()):
        return f"empty, {dtype.name}{list(spec.shape or ())}"
    try:
        ts.dtype(dtype.name)
    except (TypeError, ValueError):
        return dtype.name
    return None


def _value(spec: LeafSpec, array: np.ndarray) -> Any:
    if spec.prng is not None:
        return jax.random.wrap_key_data(jax.numpy.asarray(array), impl=spec.prng)
    if spec.type == _JAX_ARRAY:
        return jax.device_put(array, jax.devices("cpu")[0])
    if spec.type == "str":
        return array.tobytes().decode()
    return array.item() if spec.type in ("bool", "int", "float") else array


@contextmanager
def _wide_words() -> Iterator[None]:
    """Let jax keep words of 64 bits as they are."""
    with ThreadPoolExecutor(1) as apart:  # where no `with jax.enable_x64(...)` of ours is seen
        before = apart.submit(jax.config.read, "jax_enable_x64").result()
    jax.config.update("jax_enable_x64", True)
    try:
        yield
    finally:
        jax.config.update("jax_enable_x64", before)
