"""Runs of steps that differ a little, under Orbax's manager and by `ogds.save`."""

import contextlib
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp

import orbax_gds as ogds
from orbax_gds.commit import read_manifest
from orbax_gds.errors import NotFound

EVERY = ogds.Options(delta=ogds.EveryN(100), workers=2)


def state(step: int, *, seed: int = 0) -> dict:
    """Return a tree of which each step changes a few words, and its own number."""
    rng = np.random.default_rng(seed)
    words = rng.standard_normal(40_000).astype(np.float32)
    small = rng.standard_normal((50, 60)).astype("bfloat16")
    for number in range(step):
        words[np.random.default_rng(number).integers(0, len(words), 50)] += np.float32(0.01)
    return {"w": words, "b": small, "step": step}


def assert_restores(item: Path, step: int, **how) -> None:
    """Check every bit of an item, read anew, and that it is sound."""
    got, expected = ogds.restore(item), state(step, **how)
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        assert np.asarray(got[name]).tobytes() == np.asarray(value).tobytes(), name
    assert ogds.verify(item) == []


@contextlib.contextmanager
def manager(root: Path, options: ogds.Options = EVERY, **how):
    """Yield a manager with a handler of its own, as in a job that has just started."""
    with ocp.CheckpointManager(
        root,
        options=ocp.CheckpointManagerOptions(**how),
        handler_registry=ogds.handler_registry(options),
    ) as steps:
        yield steps


def save(steps: ocp.CheckpointManager, step: int, tree: dict | None = None, **how) -> None:
    """Save a step and wait until it is there."""
    steps.save(step, args=ogds.args.GdsSave(state(step) if tree is None else tree), **how)
    steps.wait_until_finished()


class Job:
    """Saves and restores steps by a handler of its own, as a job does, without Orbax."""

    def __init__(self, root: Path, options: ogds.Options = EVERY) -> None:
        self.root, self.handler = root, ogds.GdsCheckpointHandler(options)

    def save(self, *steps: int, name: str = "default", **how) -> None:
        for step in steps:
            tree = ogds.args.GdsSave(state(step, **how))
            self.handler.save(self.root / str(step) / name, tree)

    def restore(self, step: int, **how) -> None:
        self.handler.restore(item_of(self.root, step), ogds.args.GdsRestore(**how))


def asked_policy(root: Path) -> ogds.KeepBases:
    """Return a policy for a root that some manager has asked."""
    policy = ogds.KeepBases(ocp.checkpoint_managers.LatestN(1), root)
    policy.should_preserve([], context=None)
    return policy


def item_of(root: Path, step: int) -> Path:
    return root / str(step) / "default"


def base_of(root: Path, step: int) -> int | None:
    """Return the step whose stripe a step follows from; None of a full one."""
    uuid = stripe(item_of(root, step)).base
    for other in sorted(root.iterdir()):
        with contextlib.suppress(NotFound, ValueError):
            if stripe(item_of(root, int(other.name))).uuid == uuid:
                return int(other.name)
    assert uuid is None, "the base is not there"
    return None


def stripe(item: Path):
    """Return the entry of the first stripe of an item."""
    return read_manifest(item).stripes[0]


def n_links(item: Path) -> int:
    """Return how many stripes of earlier steps lie in an item."""
    return len(list((item / "base").iterdir())) if (item / "base").exists() else 0
