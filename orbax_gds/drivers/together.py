"""Reads of several files, in one call of the native core where that can do them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from orbax_gds import _native
from orbax_gds.drivers.protocol import File

if TYPE_CHECKING:
    import numpy as np


def read_together(reads: Sequence[tuple[File, int, np.ndarray]]) -> None:
    """Do what `File.read` of each would do.

    Behind every such call a thread waits for the interpreter, which others have meanwhile.

    Args:
        reads: file, offset and memory, as of `File.read`; one after the other.

    Raises:
        Truncated, IoError: as `File.read`, of the first that fails.
    """
    while reads:
        n_read = _native.read_files(
            [
                (-1 if file.descriptor is None else file.descriptor, at, out)
                for file, at, out in reads
            ]
        )
        for file, at, out in reads[n_read : n_read + 1]:
            file.read(at, out)  # knows another way, or what is wrong
        reads = reads[n_read + 1 :]
