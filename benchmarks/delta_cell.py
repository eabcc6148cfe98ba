"""One cell of `delta`: a fresh process that saves steps, as deltas or not, or restores some.

`python -m benchmarks.delta_cell SPEC` with SPEC as JSON; the answer is one line of JSON on stdout.
"""

import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import msgspec

import orbax_gds as ogds
from benchmarks.delta_spec import CHANGES, DELTAS, FULL, FULL_EVERY, Answer, Spec
from benchmarks.delta_trees import avals, changed, checksum, first_tree, trees
from benchmarks.methods import METHODS, Managed, Tree
from benchmarks.process import cost, empty_page_cache, own_bytes, sync_file_system


class Chosen:
    """A policy that does as it is told before each save.

    Attributes:
        full: Whether the next step is full.
    """

    def __init__(self) -> None:
        self.full = True

    def is_full(self, chain: Any) -> bool:
        return self.full

    def __repr__(self) -> str:
        return "Chosen()"


def changes(spec: Spec) -> Answer:
    """Save a tree after each change three times: in full, as a new base, and against that."""
    directory = Path(spec.directory)
    policy = Chosen()
    before = first_tree(spec.source)
    base = _on_device(before)
    method = _ours(directory, base, policy)
    samples: dict[str, list[float]] = {}
    _timed_save(method, base, 0, directory)  # makes buffers and threads, measures the storage
    step = 1
    for change in CHANGES:
        now = _on_device(changed(before, change, spec.source))
        for what, tree, policy.full in (
            ("full", now, True),
            ("", base, True),
            ("step", now, False),
        ):
            figures = _timed_save(method, tree, step, directory)
            if what:
                for quantity, figure in figures.items():
                    samples[f"{change}:{what}_{quantity}"] = [figure]
            step += 1
        for old in range(step - 3):
            shutil.rmtree(directory / str(old), ignore_errors=True)
    method.close()
    return Answer(samples=samples)


def save(spec: Spec) -> Answer:
    """Save every step of the source, the first one of a process not being special."""
    directory = Path(spec.directory)
    samples: dict[str, list[float]] = {}
    sums: list[int] = []
    method: Managed | None = None
    for step, words in enumerate(trees(spec.source)):
        tree = _on_device(words)
        method = method or _method(spec.method, directory, tree)
        for quantity, figure in _timed_save(method, tree, step, directory).items():
            samples.setdefault(quantity, []).append(figure)
        sums.append(checksum(tree))
    if method is not None:
        method.close()
    return Answer(samples=samples, checksums=sums)


def restore(spec: Spec) -> Answer:
    """Restore steps, each with an empty page cache, and compare the bits.

    Raises:
        ValueError: The bits of a step are not those that were saved.
    """
    directory = Path(spec.directory)
    method = _method(spec.method, directory, avals(spec.source))
    if spec.has_warm_up:
        method.restore(spec.steps[0])
    samples: dict[str, list[float]] = {}
    for step, expected in zip(spec.steps, spec.checksums, strict=True):
        empty_page_cache(directory / str(step))
        with cost() as spent:
            restored = method.restore(step)
        figures = {"restore_s": spent.seconds, "restore_cpu_s": spent.cpu_seconds}
        if spent.peak_rss_mb is not None:
            figures["peak_mb"] = spent.peak_rss_mb
        for quantity, figure in figures.items():
            samples.setdefault(quantity, []).append(figure)
        if checksum(restored) != expected:
            raise ValueError(f"step {step} came back with other bits")
        del restored
    method.close()
    return Answer(samples=samples)


def _timed_save(method: Managed, tree: Tree, step: int, directory: Path) -> dict[str, float]:
    method.tree = tree
    sync_file_system(directory)
    begin = time.perf_counter()
    method.start(step)
    blocking_s = time.perf_counter() - begin
    method.finish()
    sync_file_system(directory)
    durable_s = time.perf_counter() - begin
    step_mb = own_bytes(directory / str(step)) / 1e6
    return {"blocking_s": blocking_s, "durable_s": durable_s, "mb": step_mb}


def _method(name: str, directory: Path, tree: Mapping[str, Any]) -> Managed:
    if name in (DELTAS, FULL):
        policy = ogds.EveryN(FULL_EVERY) if name == DELTAS else ogds.Never()
        return _ours(directory, dict(tree), policy)
    method = METHODS[name](directory, dict(tree))
    if not isinstance(method, Managed):
        raise TypeError(f"{name} has no CheckpointManager")
    return method


def _ours(directory: Path, tree: Tree, policy: Any) -> Managed:
    return Managed(
        directory,
        tree,
        save_args=ogds.args.GdsSave,
        restore_args=ogds.args.GdsRestore,
        handler=lambda: ogds.GdsCheckpointHandler(ogds.Options(delta=policy)),
    )


def _on_device(words: Mapping[str, Any]) -> Tree:
    return {name: jax.block_until_ready(jax.device_put(leaf)) for name, leaf in words.items()}


ACTIONS = {"changes": changes, "save": save, "restore": restore}

if __name__ == "__main__":
    request = msgspec.json.decode(sys.argv[1], type=Spec)
    print(msgspec.json.encode(ACTIONS[request.action](request)).decode(), flush=True)
