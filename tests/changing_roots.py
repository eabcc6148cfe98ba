"""Step roots with a manager each, and what each listed step must hold."""

import contextlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
from changing_trees import Tree, first_tree, to_save

import orbax_gds as ogds
from orbax_gds.commit import read_manifest
from orbax_gds.errors import OgdsError
from orbax_gds.testing.faults import Fault, faulty_system

ITEM, OTHER = "state", "other"  # of which the second is in some steps only
TEMPORARY = ".orbax-checkpoint-tmp"
N_OTHER = 3000
CHUNK_BYTES = 4096  # the least there is, so that small leaves have several chunks
LOSSES = (3.0, 1.0, 2.0)


class Root:
    """One step root: a manager with its handler, and what each listed step must hold."""

    def __init__(
        self, path: Path, policy: Any, keep: int | None, by_loss: bool, has_links: bool
    ) -> None:
        self.path = path
        self.keep, self.by_loss, self.has_links = keep, by_loss, has_links
        self.steps: dict[int, Tree] = {}
        self.others: dict[int, np.ndarray] = {}  # by step
        self.committed: set[str] = set()  # stripes of all steps that were ever listed
        self.now: Tree = first_tree(1)
        self.n_saved = 0
        self.start(policy)

    def start(self, policy: Any) -> None:
        """Begin a process anew: nothing is known but what lies in the files."""
        self.policy = policy
        options = ogds.Options(delta=policy, chunk_bytes=CHUNK_BYTES)
        self.handler = ogds.GdsCheckpointHandler(options)
        handlers = {ITEM: self.handler, OTHER: ogds.GdsCheckpointHandler(options)}
        if self.has_links:
            kept = ocp.CheckpointManagerOptions(
                max_to_keep=self.keep,
                best_fn=(lambda metrics: metrics["loss"]) if self.by_loss else None,
                best_mode="min",
            )
        else:
            inner = ocp.checkpoint_managers.LatestN(self.keep)
            policy = ogds.KeepBases(inner, self.path)
            kept = ocp.CheckpointManagerOptions(preservation_policy=policy)
        self.manager = ocp.CheckpointManager(self.path, options=kept, item_handlers=handlers)

    def item(self, step: int, name: str = ITEM) -> Path:
        return self.path / str(step) / name

    def items(self, step: int) -> list[Path]:
        return [self.item(step), *([self.item(step, OTHER)] if step in self.others else [])]

    def next_step(self) -> int:
        return max(self.steps, default=-1) + 1

    def save(self, step: int, *, has_other: bool = False) -> None:
        self.now = self.now | {"step": step}
        self.n_saved += 1
        metrics = {"loss": LOSSES[self.n_saved % len(LOSSES)]} if self.by_loss else None
        items = {ITEM: ogds.args.GdsSave(to_save(self.now))}
        if has_other:
            words = np.arange(N_OTHER, dtype=np.float32)
            words[:: 2 + self.n_saved] = self.n_saved
            items[OTHER] = ogds.args.GdsSave({"words": words})
            self.others[step] = words
        arguments = ocp.args.Composite(**items)
        assert self.manager.save(step, args=arguments, metrics=metrics, force=True)
        self.manager.wait_until_finished()
        self.steps[step] = self.now
        self.let_go()
        if step in self.steps:
            self.check_bases(step)

    def check_bases(self, step: int) -> None:
        """Items follow from committed ones alone, and from no more than the policy lets them."""
        for item in self.items(step):
            self._check_bases(item)

    def _check_bases(self, item: Path) -> None:
        manifest = read_manifest(item)
        assert manifest.base is None or manifest.base.linked == self.has_links
        bases = [] if manifest.base is None else [spec.uuid for spec in manifest.base.stripes]
        assert self.committed.issuperset(bases)
        assert len(bases) < getattr(self.policy, "n", 100) + isinstance(
            self.policy, ogds.ChainLimit
        )
        assert not bases or not isinstance(self.policy, ogds.Never)
        self.committed |= {spec.uuid for spec in manifest.stripes}

    def let_go(self) -> None:
        """Forget what Orbax has deleted, which it may only by the policy it was given."""
        listed = self.listed()
        if self.keep is None:
            assert listed == self.steps.keys()
        assert listed <= self.steps.keys()
        self.steps = {step: tree for step, tree in self.steps.items() if step in listed}
        self.others = {step: words for step, words in self.others.items() if step in listed}

    def restore(self, step: int, **how: Any) -> Any:
        arguments = ocp.args.Composite(**{ITEM: ogds.args.GdsRestore(**how)})
        return self.manager.restore(step, args=arguments)[ITEM]

    def listed(self) -> set[int]:
        return {int(path.name) for path in self.path.iterdir() if path.name.isdigit()}

    def delete(self, step: int) -> None:
        """Delete a step; without links only if no other needs it, as KeepBases has it."""
        if not self.has_links and self.is_needed(step):
            return
        shutil.rmtree(self.path / str(step))
        self.forget(step)

    def forget(self, step: int) -> None:
        del self.steps[step]
        self.others.pop(step, None)
        self.manager.reload()

    def written(self, step: int) -> set[str]:
        """The uuids of the stripes of a step."""
        manifests = map(read_manifest, self.items(step))
        return {spec.uuid for manifest in manifests for spec in manifest.stripes}

    def bases(self, step: int) -> set[str]:
        """The uuids of the stripes that a step needs."""
        bases = [read_manifest(item).base for item in self.items(step)]
        return {spec.uuid for base in bases if base for spec in base.stripes}

    def is_needed(self, step: int) -> bool:
        own = self.written(step)
        return any(own & self.bases(other) for other in self.steps if other != step)

    def cut_short(self, fault: Fault) -> Path:
        """Save under a fault where Orbax would, and never rename it: no step comes of it."""
        unfinished = self.path / f"{self.next_step()}{TEMPORARY}"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        tree = to_save(self.now | {"step": -1})
        with faulty_system(fault), contextlib.suppress(OgdsError, OSError):
            self.handler.save(unfinished / ITEM, ogds.args.GdsSave(tree))
        return unfinished
