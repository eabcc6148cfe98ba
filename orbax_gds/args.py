"""Arguments of `CheckpointManager.save` and `restore`, in the manner of `orbax.checkpoint.args`."""

from orbax_gds.handler import GdsRestore, GdsSave

__all__ = ["GdsRestore", "GdsSave"]
