"""Checkpoints of JAX training that stall less, take less, and are right or an error.

Drop-in handlers for Orbax's CheckpointManager, and functions for single items. Importing the
package imports no jax; what needs jax is imported on first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

from orbax_gds._version import __version__
from orbax_gds.delta import Chain, ChainLimit, DeltaPolicy, EveryN, Never, WhilePaying
from orbax_gds.options import Options

if TYPE_CHECKING:
    from orbax_gds import args
    from orbax_gds.barrier import barrier_sync_fn
    from orbax_gds.handler import GdsCheckpointHandler, handler_registry
    from orbax_gds.lazy import open
    from orbax_gds.monitoring import SaveReport
    from orbax_gds.report import inspect
    from orbax_gds.restoring import restore
    from orbax_gds.retention import KeepBases
    from orbax_gds.saving import save
    from orbax_gds.verifying import verify

_HOME = {
    "GdsCheckpointHandler": "handler",
    "KeepBases": "retention",
    "SaveReport": "monitoring",
    "barrier_sync_fn": "barrier",
    "handler_registry": "handler",
    "inspect": "report",
    "open": "lazy",
    "restore": "restoring",
    "save": "saving",
    "verify": "verifying",
}

__all__ = [
    "Chain",
    "ChainLimit",
    "DeltaPolicy",
    "EveryN",
    "GdsCheckpointHandler",
    "KeepBases",
    "Never",
    "Options",
    "SaveReport",
    "WhilePaying",
    "__version__",
    "args",
    "barrier_sync_fn",
    "handler_registry",
    "inspect",
    "open",
    "restore",
    "save",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name == "args":
        return importlib.import_module("orbax_gds.args")
    if name in _HOME:
        return getattr(importlib.import_module(f"orbax_gds.{_HOME[name]}"), name)
    raise AttributeError(f"module 'orbax_gds' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
