"""One cell of `leaves`: a fresh process that saves a tree of equal leaves, or restores it.

`python -m benchmarks.leaves_cell SPEC` with SPEC as JSON; the answer is one line of JSON on stdout.
"""

import math
import sys
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import msgspec
import numpy as np

from benchmarks.leaves_spec import Answer, Spec
from benchmarks.methods import METHODS, Managed
from benchmarks.process import (
    allocated_bytes,
    cost,
    directory_size,
    empty_page_cache,
    sync_file_system,
)
from benchmarks.state import BFLOAT16
from benchmarks.weights import as_bfloat16, gaussian

Samples = dict[str, list[float]]


def save(spec: Spec) -> Answer:
    """Save the tree again and again as steps 0, 1, …, and measure each until it is durable."""
    directory = Path(spec.directory)
    tree = jax.block_until_ready(jax.device_put(_values(spec), jax.devices()[0]))
    method = METHODS[spec.method](directory, tree)
    samples: Samples = {}
    for step in range(1 + spec.n_repeats):
        which = _which(step)
        sync_file_system(directory)
        with cost() as spent:
            begin = time.perf_counter()
            method.start(step)
            blocking = time.perf_counter() - begin
            method.finish()
            sync_file_system(directory)
        _add(samples, f"blocking_s_{which}", blocking)
        _add(samples, f"durable_s_{which}", spent.seconds)
        _add(samples, f"cpu_s_{which}", spent.cpu_seconds)
    method.close()
    last = directory / str(spec.n_repeats)
    n_bytes = sum(leaf.nbytes for leaf in tree.values())
    _add(samples, "n_files", float(directory_size(last)[1]))
    _add(samples, "disk_mb", allocated_bytes(last) / 1e6)
    _add(samples, "disk_per_data", allocated_bytes(last) / n_bytes)
    return Answer(samples=samples, checksum=_checksum(tree))


def restore(spec: Spec, step: int = 0) -> Answer:
    """Read a step's metadata, then restore it again and again, cold each time.

    Raises:
        ValueError: A leaf is missing, or its bits are not those that were saved.
    """
    directory = Path(spec.directory)
    method = METHODS[spec.method](directory, _avals(spec))
    samples: Samples = {}
    empty_page_cache(directory)
    if isinstance(method, Managed):
        begin = time.perf_counter()
        described = method.item_metadata(step)
        _add(samples, "item_metadata_s", time.perf_counter() - begin)
        n_described = len(getattr(described, "tree", described))
        if n_described != spec.n_leaves:
            raise ValueError(f"item_metadata shows {n_described} leaves, not {spec.n_leaves}")
        del described
    for number in range(1 + spec.n_repeats):
        empty_page_cache(directory)
        with cost() as spent:
            restored = method.restore(step)
        _add(samples, f"restore_s_{_which(number)}", spent.seconds)
        _add(samples, f"restore_cpu_s_{_which(number)}", spent.cpu_seconds)
        found = _checksum(restored)
        if found != spec.checksum or len(restored) != spec.n_leaves:
            raise ValueError(
                f"{len(restored)} leaves of {spec.n_leaves} came back, with the checksum {found} "
                f"instead of {spec.checksum}"
            )
        del restored
    method.close()
    return Answer(samples=samples, checksum=spec.checksum)


def _which(number: int) -> str:
    return "1st" if number == 0 else "later"


def _add(samples: Samples, quantity: str, figure: float) -> None:
    samples.setdefault(quantity, []).append(figure)


def _avals(spec: Spec) -> dict[str, jax.ShapeDtypeStruct]:
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return {
        f"leaf{i:05d}": jax.ShapeDtypeStruct(spec.shape, _dtype(spec, i), sharding=sharding)
        for i in range(spec.n_leaves)
    }


def _values(spec: Spec) -> dict[str, np.ndarray]:
    n_words = math.prod(spec.shape)
    words = gaussian(n_words * spec.n_leaves, seed=0).reshape(spec.n_leaves, *spec.shape)
    return {
        f"leaf{i:05d}": as_bfloat16(values) if _dtype(spec, i) == BFLOAT16 else values
        for i, values in enumerate(words)
    }


def _dtype(spec: Spec, number: int) -> np.dtype:
    return BFLOAT16 if spec.is_mixed and number % 2 == 0 else np.dtype(np.float32)


def _checksum(tree: Mapping[str, Any]) -> int:
    """Return the CRC-32 of the words of all leaves, by name: one figure fits an argument."""
    checksum = 0
    for _, leaf in sorted(tree.items()):
        words = np.ascontiguousarray(np.asarray(leaf)).reshape(-1).view(np.uint8)
        checksum = zlib.crc32(words, checksum)
    return checksum


if __name__ == "__main__":
    request = msgspec.json.decode(sys.argv[1], type=Spec)
    answer = save(request) if request.action == "save" else restore(request)
    print(msgspec.json.encode(answer).decode(), flush=True)
