"""Ways to save a tree of jax arrays and to get it back: ours, Orbax's and other libraries'.

Importing this module imports jax; the packages of the other libraries are imported where used.
"""

import functools
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
import orbax.checkpoint as ocp

import orbax_gds as ogds
from orbax_gds.staging import aligned_empty

Tree = dict[str, Any]


class Method(Protocol):
    """One library bound to one directory; `tree` is what is saved or a like tree of avals."""

    def start(self, step: int) -> None:
        """Begin a save of the tree; what the training loop waits for."""

    def finish(self) -> None:
        """Wait until the library says that the save is done."""

    def restore(self, step: int) -> Mapping[str, Any]:
        """Return the tree in memory, ready to use."""
        ...

    def close(self) -> None:
        """Free what the method holds."""


@runtime_checkable
class Behind(Method, Protocol):
    """A method whose saves go on while the caller trains.

    Attributes:
        tree: What `start` saves; a training loop puts its newest arrays here.
    """

    tree: Tree

    def is_saving(self) -> bool:
        """Whether a save is in flight: begun, and not yet known to be done."""
        ...


class Managed:
    """A `CheckpointManager`, asynchronous, with the arguments of one handler.

    Attributes:
        tree: What `start` saves; a training loop puts its newest arrays here.
    """

    def __init__(
        self,
        directory: Path,
        tree: Tree,
        *,
        save_args: Callable[[Tree], ocp.args.CheckpointArgs],
        restore_args: Callable[[Tree], ocp.args.CheckpointArgs],
        handler: Callable[[], ocp.CheckpointHandler],
    ) -> None:
        options = ocp.CheckpointManagerOptions(enable_async_checkpointing=True)
        # with a handler, because item_metadata finds none before a save or restore otherwise
        self._manager = ocp.CheckpointManager(directory, options=options, item_handlers=handler())
        self._save_args, self._restore_args = save_args, restore_args
        self.tree = tree

    def start(self, step: int) -> None:
        self._manager.save(step, args=self._save_args(self.tree))

    def finish(self) -> None:
        self._manager.wait_until_finished()

    def restore(self, step: int) -> Mapping[str, Any]:
        restored = self._manager.restore(step, args=self._restore_args(abstract(self.tree)))
        return jax.block_until_ready(restored)

    def is_saving(self) -> bool:
        """Whether a save is in flight: begun, and not yet known to be done."""
        return self._manager.is_saving_in_progress()

    def item_metadata(self, step: int) -> Any:
        """Return what the library says of a step's tree without reading it."""
        return self._manager.item_metadata(step)

    def close(self) -> None:
        self._manager.close()


class Safetensors:
    """`safetensors.flax`: one file, written before the call returns, not synced."""

    def __init__(self, directory: Path, tree: Tree) -> None:
        import safetensors.flax

        self._files, self._directory, self._tree = safetensors.flax, directory, tree

    def start(self, step: int) -> None:
        target = self._directory / str(step)
        target.mkdir()
        # a copy of the dict: save_file replaces the arrays in the one it is given
        self._files.save_file(dict(self._tree), target / "model.safetensors")

    def finish(self) -> None:
        """Nothing to wait for."""

    def restore(self, step: int) -> Mapping[str, Any]:
        restored = self._files.load_file(self._directory / str(step) / "model.safetensors")
        return jax.block_until_ready(restored)

    def close(self) -> None:
        """Nothing is held."""


class TorchDcp:
    """`torch.distributed.checkpoint` in one process, of tensors that share the arrays' memory."""

    def __init__(self, directory: Path, tree: Tree, *, asynchronous: bool) -> None:
        import torch
        import torch.distributed.checkpoint as dcp

        self._torch, self._dcp, self._directory = torch, dcp, directory
        self._tree = {
            name: self._tensor(leaf) if isinstance(leaf, jax.Array) else leaf
            for name, leaf in tree.items()
        }
        self._asynchronous, self._pending = asynchronous, None

    def start(self, step: int) -> None:
        save = self._dcp.async_save if self._asynchronous else self._dcp.save
        pending = save(self._tree, checkpoint_id=self._directory / str(step))
        self._pending = pending if self._asynchronous else None

    def finish(self) -> None:
        if self._pending is not None:
            self._pending.result()

    def restore(self, step: int) -> Mapping[str, Any]:
        dtypes = {"bfloat16": self._torch.bfloat16, "float32": self._torch.float32}
        tensors = {
            name: self._torch.empty(leaf.shape, dtype=dtypes[leaf.dtype.name])
            for name, leaf in self._tree.items()
        }
        self._dcp.load(tensors, checkpoint_id=self._directory / str(step))
        return {name: self._words(tensor) for name, tensor in tensors.items()}

    def close(self) -> None:
        """Nothing is held."""

    def _tensor(self, array: Any) -> Any:
        values = np.asarray(array)
        if values.dtype.name == "bfloat16":
            return self._torch.from_numpy(values.view(np.int16)).view(self._torch.bfloat16)
        return self._torch.from_numpy(values)

    def _words(self, tensor: Any) -> np.ndarray:
        """View a tensor as NumPy words: bfloat16 has no NumPy type that torch knows."""
        words = self._torch.int16 if tensor.element_size() == 2 else self._torch.int32
        return tensor.view(words).numpy()


class RawDirect:
    """The device alone: as many bytes, with O_DIRECT, 4 MiB in huge pages each, then fsync."""

    BLOCK_BYTES = 4 << 20

    def __init__(self, directory: Path, tree: Tree) -> None:
        self._directory = directory
        self._n_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in tree.values())
        self._block = aligned_empty(self.BLOCK_BYTES).data
        self._block[:] = np.random.default_rng(0).bytes(self.BLOCK_BYTES)

    def start(self, step: int) -> None:
        (self._directory / str(step)).mkdir()
        descriptor = self._open(step, os.O_WRONLY | os.O_CREAT)
        try:
            for at in range(0, self._n_bytes, self.BLOCK_BYTES):
                os.pwrite(descriptor, self._block, at)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def finish(self) -> None:
        """Nothing to wait for."""

    def restore(self, step: int) -> Mapping[str, Any]:
        descriptor = self._open(step, os.O_RDONLY)
        try:
            for at in range(0, self._n_bytes, self.BLOCK_BYTES):
                os.preadv(descriptor, [self._block], at)
        finally:
            os.close(descriptor)
        return {}

    def close(self) -> None:
        """Nothing is held."""

    def _open(self, step: int, flags: int) -> int:
        return os.open(self._directory / str(step) / "raw", flags | os.O_DIRECT, 0o600)


class RawBehind(RawDirect):
    """The device alone, in a thread that makes one call: what it takes from a training loop.

    Attributes:
        tree: Ignored; a training loop puts its newest arrays here.
    """

    def __init__(self, directory: Path, tree: Tree) -> None:
        super().__init__(directory, tree)
        self.tree = tree
        self._thread: threading.Thread | None = None

    def start(self, step: int) -> None:
        self._thread = threading.Thread(target=self._write, args=(step,))
        self._thread.start()

    def finish(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def is_saving(self) -> bool:
        """Whether bytes are still on their way."""
        return self._thread is not None and self._thread.is_alive()

    def _write(self, step: int) -> None:
        (self._directory / str(step)).mkdir()
        descriptor = self._open(step, os.O_WRONLY | os.O_CREAT)
        try:
            at, n_blocks = 0, -(-self._n_bytes // self.BLOCK_BYTES)
            while at < n_blocks * self.BLOCK_BYTES:  # once, unless the system takes less
                left = n_blocks - at // self.BLOCK_BYTES
                at += os.pwritev(
                    descriptor, [self._block] * min(left, os.sysconf("SC_IOV_MAX")), at
                )
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class Memcpy:
    """Memory alone: one copy of the tree into memory that was touched before."""

    def __init__(self, directory: Path, tree: Tree) -> None:
        n_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in tree.values())
        self._source = np.full(n_bytes, 1, np.uint8)
        self._target = np.full(n_bytes, 2, np.uint8)

    def start(self, step: int) -> None:
        np.copyto(self._target, self._source)

    def finish(self) -> None:
        """Nothing to wait for."""

    def restore(self, step: int) -> Mapping[str, Any]:
        np.copyto(self._source, self._target)
        return {}

    def close(self) -> None:
        """Nothing is held."""


def abstract(tree: Tree) -> Tree:
    """Return the avals of a tree, with the shardings of its arrays."""
    return {
        name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
        for name, leaf in tree.items()
    }


def _restore_args(tree: Tree) -> ocp.args.CheckpointArgs:
    restore_args = ocp.checkpoint_utils.construct_restore_args(tree)
    return ocp.args.PyTreeRestore(tree, restore_args=restore_args)


METHODS: dict[str, Callable[[Path, Tree], Method]] = {
    "orbax_gds": functools.partial(
        Managed,
        save_args=ogds.args.GdsSave,
        restore_args=ogds.args.GdsRestore,
        handler=ogds.GdsCheckpointHandler,
    ),
    "orbax_gds codec off": functools.partial(
        Managed,
        save_args=ogds.args.GdsSave,
        restore_args=ogds.args.GdsRestore,
        handler=lambda: ogds.GdsCheckpointHandler(ogds.Options(codec="off")),
    ),
    "orbax default": functools.partial(
        Managed,
        save_args=ocp.args.StandardSave,
        restore_args=ocp.args.StandardRestore,
        handler=ocp.StandardCheckpointHandler,
    ),
    "orbax uncompressed": functools.partial(
        Managed,
        save_args=ocp.args.PyTreeSave,
        restore_args=_restore_args,
        handler=lambda: ocp.PyTreeCheckpointHandler(use_compression=False),
    ),
    "safetensors": Safetensors,
    "torch DCP": functools.partial(TorchDcp, asynchronous=False),
    "torch DCP async": functools.partial(TorchDcp, asynchronous=True),
    "raw O_DIRECT write": RawDirect,
    "raw O_DIRECT write behind": RawBehind,
    "memcpy": Memcpy,
}
