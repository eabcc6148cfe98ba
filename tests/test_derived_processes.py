"""Derived shards of several processes: what the item of all says of them."""

import jax
import pytest
from derived_items import (
    derived_of,
    flipped,
    master,
    read_leaves,
    specs_of,
)

import orbax_gds as ogds
from orbax_gds import commit
from orbax_gds.errors import CommitError
from orbax_gds.leaves import Flat, Shardings
from orbax_gds.monitoring import Stopwatch
from orbax_gds.options import Options
from orbax_gds.plan import ShardBox
from orbax_gds.plan_cache import Planned
from orbax_gds.saving import Prepared
from orbax_gds.snapshot import Snapshot


@pytest.fixture(autouse=True)
def two_processes(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)


def prepared(process, arrays, own):
    """A save of one process of two, which holds the leaves `own`."""
    flat = Flat(specs=list(specs_of(arrays)), numbering=Shardings(), values=list(arrays))
    boxes = [ShardBox(leaf=i, start=(0, 0), extent=arrays[i].shape) for i in own]
    planned = Planned(flat, boxes, process, 1 << 20)
    snapshot = Snapshot(planned.picks, flat.values, planned.windows(None))
    return Prepared(planned, snapshot, Options(), None, Stopwatch(), was_known=False)


@pytest.mark.parametrize("derives", [{0}, {1}, {0, 1}, set()])
def test_the_item_requires_what_any_process_derived(tmp_path, derives):
    arrays = []
    for process in range(2):
        weights = master(process)
        other = weights.copy() if process in derives else flipped(weights)
        arrays += [weights, other]
    for process in (0, 1):
        prepared(process, arrays, [2 * process, 2 * process + 1]).write(tmp_path)
    commit.publish(tmp_path)
    assert len(derived_of(tmp_path)) == len(derives)
    for got, expected in zip(read_leaves(tmp_path), arrays, strict=True):
        assert got.tobytes() == expected.tobytes()
    assert ogds.verify(tmp_path) == []


@pytest.mark.parametrize("damaged", [0, 1])
@pytest.mark.parametrize("derives", [True, False])
def test_a_layout_that_was_damaged_since_is_not_published(tmp_path, damaged, derives):
    weights = master(0)
    arrays = [weights, weights.copy() if derives else flipped(weights), master(1)]
    for process, own in enumerate(([0, 1], [2])):
        prepared(process, arrays, own).write(tmp_path)
    with open(tmp_path / f"p0000{damaged}.ogds", "r+b") as file:
        file.seek(70)
        file.write(b"\xff")
    with pytest.raises(CommitError, match=f"layout of stripe .*p0000{damaged}"):
        commit.publish(tmp_path)
    assert not (tmp_path / "manifest.json").exists()
