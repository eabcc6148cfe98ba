"""Whatever is saved, deleted, copied, forked or cut short: every listed step restores bit-exactly.

The model is a dictionary of what each step holds. Random operations of several managers act on it
and on the file system alike; after each the two are compared word for word.
"""

import contextlib
import errno
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from changing_roots import ITEM, OTHER, Root
from changing_trees import (
    CHANGES,
    LEAVES,
    STRUCTURE,
    Tree,
    assert_holds,
    change,
    restructure,
)
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import orbax_gds as ogds
from orbax_gds.errors import NotFound
from orbax_gds.testing.faults import Fault

POLICIES: dict[str, Callable[[], Any]] = {
    "every 2": lambda: ogds.EveryN(2),
    "every 3": lambda: ogds.EveryN(3),
    "every 4": lambda: ogds.EveryN(4),
    "limit 2": lambda: ogds.ChainLimit(2),
    "paying": lambda: ogds.WhilePaying(),
    "always": lambda: Always(),
    "never": lambda: ogds.Never(),
}
CALM = settings(deadline=None, suppress_health_check=list(HealthCheck))
# A failure is told at once: to make it smaller may take minutes. The large one does.
AT_ONCE = (Phase.explicit, Phase.reuse, Phase.generate)
FAST = settings(CALM, max_examples=3, stateful_step_count=12, phases=AT_ONCE)
LARGE = settings(CALM, max_examples=16, stateful_step_count=40)


class Always:
    """A policy of the user's own: never full, but where there is no base."""

    def is_full(self, chain: Any) -> bool:
        return False


class Crash(Fault):
    """From the n-th operation on nothing reaches the disk any more."""

    def run(self, operation: str, call: Callable[[], Any], shorter: Callable[[], Any]) -> Any:
        with self._lock:
            self.operations.append(operation)
            is_dead = len(self.operations) > self._at
        if is_dead:
            raise OSError(errno.EIO, os.strerror(errno.EIO), operation)
        return call()


class Meanwhile(Fault):
    """Before the n-th operation somebody else does something."""

    def __init__(self, at: int, other: Callable[[], None]) -> None:
        super().__init__(at)
        self._other = other

    def run(self, operation: str, call: Callable[[], Any], shorter: Callable[[], Any]) -> Any:
        with self._lock:
            self.operations.append(operation)
            is_due = len(self.operations) - 1 == self._at
        if is_due:
            self._other()
        return call()


class DeltaStates(RuleBasedStateMachine):
    """Two step roots, and copies of single items that lie elsewhere."""

    directory: str | None = None  # where all of it lies; None for where temporary files do

    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp(dir=self.directory))
        self.roots: list[Root] = []
        self.copies: list[tuple[Path, Tree]] = []
        self.touched: set[int] = set()
        self.undoing = contextlib.ExitStack()

    @initialize(
        policies=st.tuples(*[st.sampled_from(sorted(POLICIES))] * 2),
        keeps=st.tuples(*[st.sampled_from([None, None, 1, 2])] * 2),
        by_loss=st.booleans(),
        has_links=st.sampled_from([True, True, True, False]),
    )
    def begin(
        self,
        policies: tuple[str, ...],
        keeps: tuple[int | None, ...],
        by_loss: bool,
        has_links: bool,
    ) -> None:
        self.has_links = has_links
        if not has_links:
            refused = OSError(errno.EPERM, os.strerror(errno.EPERM))
            self.undoing.enter_context(mock.patch.object(os, "link", side_effect=refused))
        for number, (policy, keep) in enumerate(zip(policies, keeps, strict=True)):
            path = self.place / f"root{number}"
            path.mkdir()
            is_best = by_loss and keep is not None and has_links
            self.roots.append(Root(path, POLICIES[policy](), keep, is_best, has_links))
            self.roots[number].save(0)

    def root(self, number: int) -> Root:
        self.touched.add(number)
        return self.roots[number]

    @rule(
        number=st.integers(0, 1),
        changes=st.lists(
            st.tuples(
                st.sampled_from(sorted(LEAVES)), st.sampled_from(CHANGES), st.integers(0, 99)
            ),
            max_size=4,
        ),
        has_other=st.booleans(),
    )
    def save(self, number: int, changes: list[tuple[str, str, int]], has_other: bool) -> None:
        root = self.root(number)
        for name, kind, seed in changes:
            root.now = change(root.now, name, kind, seed)
        root.save(root.next_step(), has_other=has_other)

    @rule(number=st.integers(0, 1), seeds=st.lists(st.integers(0, 99), min_size=1, max_size=4))
    def train(self, number: int, seeds: list[int]) -> None:
        """Save steps in a row, each with a little more changed, the other item in every third."""
        root = self.root(number)
        for seed in seeds:
            root.now = change(root.now, "params", "near", seed)
            root.now = change(root.now, "eight", "sparse", seed)
            root.save(root.next_step(), has_other=root.next_step() % 3 == 0)

    @rule(number=st.integers(0, 1), seed=st.integers(0, 9))
    def save_everything_else(self, number: int, seed: int) -> None:
        root = self.root(number)
        for name in LEAVES:
            root.now = change(root.now, name, "all", seed)
        root.save(root.next_step())

    @rule(
        number=st.integers(0, 1),
        name=st.sampled_from(sorted(LEAVES)),
        kind=st.sampled_from(STRUCTURE),
    )
    def save_another_structure(self, number: int, name: str, kind: str) -> None:
        root = self.root(number)
        root.now = restructure(root.now, name, kind)
        root.save(root.next_step())

    @rule(number=st.integers(0, 1), which=st.integers(0, 9))
    def delete(self, number: int, which: int) -> None:
        root = self.root(number)
        if root.steps:
            root.delete(sorted(root.steps)[which % len(root.steps)])

    @rule(number=st.integers(0, 1), which=st.integers(0, 9), seed=st.integers(0, 9))
    def save_a_number_again(self, number: int, which: int, seed: int) -> None:
        root = self.root(number)
        if not root.steps:
            return
        step = sorted(root.steps)[which % len(root.steps)]
        root.delete(step)
        root.now = change(root.now, "params", "sparse", seed)
        if step not in root.steps:
            root.save(step)

    @rule(
        number=st.integers(0, 1),
        which=st.integers(0, 9),
        is_kept=st.booleans(),
        policy=st.sampled_from(sorted(POLICIES)),
        restores_by=st.sampled_from(["handler", "handler", "handler in part", "function", "none"]),
    )
    def fork(self, number: int, which: int, is_kept: bool, policy: str, restores_by: str) -> None:
        """Go on from an older step, in a new process, beside the later steps or without them."""
        root = self.root(number)
        if not root.steps:
            return
        step = sorted(root.steps)[which % len(root.steps)]
        root.manager.close()
        root.start(POLICIES[policy]())
        if restores_by == "handler":
            assert_holds(root.restore(step), root.steps[step])
        elif restores_by == "handler in part":
            assert root.restore(step, leaves=["step"]) == {"step": root.steps[step]["step"]}
        elif restores_by == "function":  # of which the handler does not know
            assert_holds(ogds.restore(root.item(step)), root.steps[step])
        root.now = root.steps[step]
        for later in [other for other in root.steps if other > step and not is_kept]:
            root.delete(later)
        root.now = change(root.now, "master", "sparse", which)
        root.save(root.next_step())

    @rule(number=st.integers(0, 1), policy=st.sampled_from(sorted(POLICIES)))
    def restart(self, number: int, policy: str) -> None:
        root = self.root(number)
        root.manager.close()
        root.start(POLICIES[policy]())

    @rule(
        number=st.integers(0, 1),
        at=st.integers(0, 60),
        seed=st.integers(0, 9),
        policy=st.sampled_from(sorted(POLICIES)),
    )
    def crash(self, number: int, at: int, seed: int, policy: str) -> None:
        """End in the middle of a save, and begin anew; what is left, Orbax clears away."""
        root = self.root(number)
        before = root.now
        root.now = change(root.now, "params", "near", seed)
        root.cut_short(Crash(at))
        root.now = before
        root.start(POLICIES[policy]())

    @rule(
        number=st.integers(0, 1),
        at=st.integers(0, 60),
        action=st.sampled_from(["error", "short"]),
        seed=st.integers(0, 9),
        is_left=st.booleans(),
    )
    def fail(self, number: int, at: int, action: Any, seed: int, is_left: bool) -> None:
        """Let one write, sync or rename fail, and go on with the same handler."""
        root = self.root(number)
        root.now = change(root.now, "master", "near", seed)
        unfinished = root.cut_short(Fault(at, action, errno.EIO))
        if not is_left:
            shutil.rmtree(unfinished)
        root.now = change(root.now, "params", "few", seed)
        root.save(root.next_step() + is_left)  # Orbax clears away what has the same number

    @rule(number=st.integers(0, 1), at=st.integers(0, 60), which=st.integers(0, 9))
    def delete_beside_a_save(self, number: int, at: int, which: int) -> None:
        """Delete a step, perhaps the base, while another is being saved.

        Without links the new step may need it: it is not published, or says what it misses.
        """
        root = self.root(number)
        steps = [step for step in sorted(root.steps) if self.has_links or not root.is_needed(step)]
        if not steps:
            return
        step = steps[which % len(steps)]
        written = root.written(step)
        unfinished = root.cut_short(Meanwhile(at, lambda: shutil.rmtree(root.path / str(step))))
        saved = root.next_step()
        if (unfinished / ITEM / "manifest.json").exists():
            unfinished.rename(root.path / str(saved))
            root.steps[saved] = root.now | {"step": -1}
            root.check_bases(saved)
        if (root.path / str(step)).exists():
            shutil.rmtree(root.path / str(step))
        root.forget(step)
        if saved in root.steps and not self.has_links and written & root.bases(saved):
            with pytest.raises(NotFound, match="|".join(written)):
                ogds.restore(root.item(saved))
            shutil.rmtree(root.path / str(saved))
            root.forget(saved)

    @precondition(lambda self: self.has_links)
    @rule(number=st.integers(0, 1), which=st.integers(0, 9), way=st.sampled_from(["tree", "tar"]))
    def copy(self, number: int, which: int, way: str) -> None:
        root = self.roots[number]
        if not root.steps:
            return
        step = sorted(root.steps)[which % len(root.steps)]
        target = self.place / f"copy{len(self.copies)}"
        self._copy(root.item(step), target, way)
        self.copies.append((target, root.steps[step]))

    def _copy(self, item: Path, target: Path, way: str) -> None:
        if way == "tree":
            shutil.copytree(item, target)
            return
        archive = target.with_suffix(".tar")
        with tarfile.open(archive, "w") as written:
            written.add(item, arcname=target.name)
        with tarfile.open(archive) as read:
            read.extractall(target.parent, filter="data")
        archive.unlink()

    @precondition(lambda self: self.has_links)
    @rule(number=st.integers(0, 1), which=st.integers(0, 9), seed=st.integers(0, 9))
    def go_on_elsewhere(self, number: int, which: int, seed: int) -> None:
        """Copy a step into the other root, restore it there and save the next one."""
        source, target = self.roots[number], self.root(1 - number)
        if not source.steps:
            return
        step = sorted(source.steps)[which % len(source.steps)]
        copied = target.next_step()
        shutil.copytree(source.path / str(step), target.path / str(copied))
        target.steps[copied] = source.steps[step]
        if step in source.others:
            target.others[copied] = source.others[step]
        target.committed |= source.committed
        target.manager.reload()
        assert_holds(target.restore(copied), source.steps[step])
        target.now = change(source.steps[step], "params", "few", seed)
        target.save(target.next_step())

    @precondition(lambda self: self.copies)
    @rule(number=st.integers(0, 1))
    def lose_a_root(self, number: int) -> None:
        """Nothing that was copied needs the root it came from."""
        root = self.root(number)
        for path in root.path.iterdir():
            shutil.rmtree(path)
        root.steps, root.others = {}, {}
        root.manager.reload()
        for path, tree in self.copies:
            assert_holds(ogds.restore(path), tree)

    @invariant()
    def every_listed_step_is_right(self) -> None:
        for number in self.touched:
            root = self.roots[number]
            assert root.listed() == root.steps.keys()
            for step, tree in root.steps.items():
                assert_holds(ogds.restore(root.item(step)), tree)
                for item in root.items(step):
                    assert ogds.verify(item) == []
            for step, words in root.others.items():
                assert np.array_equal(ogds.restore(root.item(step, OTHER))["words"], words)
        self.touched.clear()

    def teardown(self) -> None:
        for root in self.roots:
            root.manager.close()
            shutil.rmtree(root.path)
        for path, tree in self.copies:
            assert_holds(ogds.restore(path), tree)
            assert ogds.verify(path) == []
        shutil.rmtree(self.place)
        self.undoing.close()


class InMemory(DeltaStates):
    """The same where nothing waits for a disk."""

    directory = "/dev/shm" if os.path.isdir("/dev/shm") else None


def test_every_listed_step_restores_whatever_happened():
    run_state_machine_as_test(InMemory, settings=FAST)


@pytest.mark.slow
def test_every_listed_step_restores_whatever_happened_for_long():
    run_state_machine_as_test(DeltaStates, settings=LARGE)
