"""One cell of `save`: a fresh process that saves twice, or restores cold and warm.

`python -m benchmarks.save_cell SPEC` with SPEC as JSON; the answer is one line of JSON on stdout.
"""

import sys
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import msgspec
import numpy as np

from benchmarks.methods import METHODS
from benchmarks.process import cost, directory_size, empty_page_cache, sync_file_system
from benchmarks.save_spec import SAVES, Answer, Spec
from benchmarks.tree import fill, plan_leaves, read_state


def save(spec: Spec) -> Answer:
    """Build the tree, save it as steps 0 and 1, and measure each save until it is durable."""
    directory = Path(spec.directory)
    leaves = plan_leaves(spec.n_bytes, spec.n_leaves)
    if spec.method in ("raw O_DIRECT write", "memcpy"):
        tree: dict[str, Any] = _avals(spec)
    else:
        words = fill(leaves, read_state(Path(spec.state)))
        tree = {name: jax.block_until_ready(jax.device_put(values)) for name, values in words}
    method = METHODS[spec.method](directory, tree)
    figures: dict[str, float] = {}
    for step, which in enumerate(SAVES):
        sync_file_system(directory)
        with cost() as spent:
            begin = time.perf_counter()
            method.start(step)
            figures[f"blocking_s_{which}"] = time.perf_counter() - begin
            method.finish()
            figures[f"reported_s_{which}"] = time.perf_counter() - begin
            sync_file_system(directory)
        figures[f"durable_s_{which}"] = spent.seconds
        figures[f"cpu_s_{which}"] = spent.cpu_seconds
        if spent.peak_rss_mb is not None:
            figures[f"peak_rss_mb_{which}"] = spent.peak_rss_mb
    method.close()
    n_bytes, n_files = directory_size(directory / "1") if spec.method != "memcpy" else (0, 0)
    figures |= {"stored_gb": n_bytes / 1e9, "n_files": float(n_files)}
    return Answer(figures=figures, checksums=checksums(tree))


def restore(spec: Spec) -> Answer:
    """Restore step 1 with an empty page cache and once more, and compare the bits.

    Raises:
        ValueError: A leaf is missing, or its bits are not those that were saved.
    """
    directory = Path(spec.directory)
    method = METHODS[spec.method](directory, _avals(spec))
    empty_page_cache(directory)
    figures: dict[str, float] = {}
    for which in ("cold", "warm"):
        with cost() as spent:
            restored = method.restore(1)
        figures[f"restore_s_{which}"] = spent.seconds
        figures[f"restore_cpu_s_{which}"] = spent.cpu_seconds
        if spent.peak_rss_mb is not None:
            figures[f"restore_peak_rss_mb_{which}"] = spent.peak_rss_mb
        _check(checksums(restored), spec.checksums)
        del restored
    method.close()
    return Answer(figures=figures)


def checksums(tree: Mapping[str, Any]) -> dict[str, int]:
    """Return the CRC-32 of each array's words; avals have none."""
    return {
        name: zlib.crc32(np.ascontiguousarray(np.asarray(leaf)).reshape(-1).view(np.uint8))
        for name, leaf in tree.items()
        if not isinstance(leaf, jax.ShapeDtypeStruct)
    }


def _avals(spec: Spec) -> dict[str, jax.ShapeDtypeStruct]:
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return {
        leaf.name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
        for leaf in plan_leaves(spec.n_bytes, spec.n_leaves)
    }


def _check(found: dict[str, int], expected: dict[str, int]) -> None:
    wrong = [name for name in expected if found.get(name) != expected[name]]
    if wrong or len(found) != len(expected):
        raise ValueError(
            f"{len(wrong)} of {len(expected)} leaves came back with other bits, first {wrong[:3]}"
        )


if __name__ == "__main__":
    request = msgspec.json.decode(sys.argv[1], type=Spec)
    answer = save(request) if request.action == "save" else restore(request)
    print(msgspec.json.encode(answer).decode(), flush=True)
