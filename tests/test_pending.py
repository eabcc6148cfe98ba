"""Parts of several processes are published together only if they are of one tree and one save."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from in_memory import mesh
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import orbax_gds as ogds
from orbax_gds import commit, leaves, manifest, plan_cache, saving
from orbax_gds.errors import CommitError, NotFound
from orbax_gds.monitoring import Stopwatch
from orbax_gds.options import Options
from orbax_gds.plan_cache import Planned
from orbax_gds.saving import Prepared
from orbax_gds.snapshot import Snapshot

pytestmark = pytest.mark.slow

N_PROCESSES = 3
SPREAD = NamedSharding(mesh(8), PartitionSpec("x"))
TURNED = NamedSharding(mesh(2, 4), PartitionSpec(("y", "x")))


@pytest.fixture(autouse=True)
def three_processes(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: N_PROCESSES)


def tree_of(**changes):
    """Leaves of all processes, and leaves of process 0 alone."""
    parts = {
        "w": jax.device_put(np.arange(24, dtype=np.float32), SPREAD),
        "b": jax.device_put(np.arange(16, dtype=np.int32), SPREAD),
        "key": jax.device_put(jax.random.key(1), NamedSharding(mesh(8), PartitionSpec())),
        "host": np.arange(5),
        "step": 3,
        "name": "first",
    }
    return parts | changes


def flattened(tree) -> leaves.Flat:
    """The tree as several processes see it, to none of which its arrays are local."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "process_count", lambda: 1)
        return leaves.flatten(tree)


def planned(process, tree, chunk_bytes=1 << 20, owner=lambda n: n % N_PROCESSES) -> Planned:
    """What one process of three stores: every third shard; what the host holds is process 0's."""
    flat = flattened(tree)
    boxes = [
        box
        for number, box in enumerate(leaves.owned_shards(flat, 0))
        if process == (0 if flat.specs[box.leaf].sharding is None else owner(number))
    ]
    return Planned(flat, boxes, process, chunk_bytes)


def prepared(process, tree, **how) -> Prepared:
    plan = planned(process, tree, **how)
    snapshot = Snapshot(plan.picks, flattened(tree).values, plan.windows(None))
    return Prepared(plan, snapshot, Options(), None, Stopwatch(), was_known=False)


def published(directory) -> bool:
    return (directory / "manifest.json").exists()


@pytest.fixture(params=[False, True], ids=["each leaf", "by kinds"])
def listing(monkeypatch, request):
    """Leaves are listed in one way or the other, whatever their number."""
    monkeypatch.setattr(manifest, "_KINDS_FROM", 0 if request.param else 1000)
    monkeypatch.setattr(manifest, "_LEAVES_A_KIND", 0)


@pytest.mark.usefixtures("listing")
def test_parts_of_one_tree_are_published_and_nothing_pending_is_left(tmp_path):
    tree = tree_of()
    for process in range(N_PROCESSES):
        prepared(process, tree).write(tmp_path)
    assert len(list(tmp_path.glob("*.pending"))) == N_PROCESSES + 1
    commit.publish(tmp_path)
    assert list(tmp_path.glob("*.pending")) == []
    got = ogds.restore(tmp_path, tree)
    assert all(np.array_equal(got[name], tree[name]) for name in ("w", "b", "host", "step", "name"))
    assert commit.read_manifest(tmp_path).options["codings"] == ["auto"] * N_PROCESSES
    assert ogds.verify(tmp_path) == []


def test_what_only_process_0_stores_may_differ(tmp_path):
    prepared(0, tree_of()).write(tmp_path)
    for process in (1, 2):
        own = tree_of(host=np.ones(process), step=2.5, name="longer than the first")
        prepared(process, own).write(tmp_path)
    commit.publish(tmp_path)
    assert ogds.restore(tmp_path)["name"] == "first"


CHANGES = {
    "shape": {"w": jax.device_put(np.zeros(32, np.float32), SPREAD)},
    "dtype": {"w": jax.device_put(np.zeros(24, np.int32), SPREAD)},
    "sharding": {"w": jax.device_put(np.zeros(24, np.float32), TURNED)},
    "host": {"w": np.zeros(24, np.float32)},
    "prng": {
        "key": jax.device_put(
            jax.random.key(1, impl="unsafe_rbg"), NamedSharding(mesh(8), PartitionSpec())
        )
    },
    "more": {"more": 1},
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_process_that_saves_another_tree_is_named_and_nothing_published(tmp_path, change):
    for process in range(N_PROCESSES):
        tree = tree_of(**CHANGES[change]) if process == 1 else tree_of()
        prepared(process, tree).write(tmp_path)
    with pytest.raises(CommitError, match=r"process 1 saved .* differs .* same tree"):
        commit.publish(tmp_path)
    assert not published(tmp_path)


@pytest.mark.usefixtures("listing")
@pytest.mark.parametrize("owner", [lambda n: 1, lambda n: 0])
def test_processes_that_divide_a_tree_differently_are_named_and_nothing_published(tmp_path, owner):
    tree = tree_of()
    prepared(0, tree).write(tmp_path)
    prepared(1, tree, owner=owner).write(tmp_path)
    prepared(2, tree).write(tmp_path)
    with pytest.raises(CommitError, match=r"divided leaf 'b' .*process 2 stores"):
        commit.publish(tmp_path)
    assert not published(tmp_path)
    prepared(1, tree).write(tmp_path)
    commit.publish(tmp_path)
    assert np.array_equal(ogds.restore(tmp_path, tree)["b"], tree["b"])


def test_a_process_of_another_version_is_named_and_nothing_published(tmp_path, monkeypatch):
    for process in (0, 2):
        prepared(process, tree_of()).write(tmp_path)
    monkeypatch.setattr(plan_cache, "__version__", "99.9")
    monkeypatch.setattr(saving, "_WRITER", "orbax_gds 99.9")
    prepared(1, tree_of()).write(tmp_path)
    with pytest.raises(
        CommitError, match=r"process 1 .* another version than process 0: .* 99\.9, not"
    ):
        commit.publish(tmp_path)
    assert not published(tmp_path)


def test_other_chunks_and_another_number_of_processes_are_other_digests(monkeypatch):
    tree = tree_of()
    digest = planned(0, tree).digest
    assert planned(2, tree).digest == digest
    assert planned(0, tree, chunk_bytes=8192).digest != digest
    monkeypatch.setattr(jax, "process_count", lambda: 4)
    assert planned(0, tree).digest != digest


def test_shardings_of_no_name_are_told_apart_by_their_boxes():
    def saved(spec):
        over = Mesh(np.array(jax.devices()), (7,))  # a name that the manifest has no place for
        return {"w": jax.device_put(jnp.ones((8, 8)), NamedSharding(over, PartitionSpec(*spec)))}

    rows, columns = planned(0, saved([7])), planned(0, saved([None, 7]))
    assert rows.shardings[0].type == "other"
    assert rows.specs == columns.specs
    assert rows.shardings == columns.shardings
    assert rows.digest == planned(1, saved([7])).digest != columns.digest


@pytest.mark.parametrize("missing", range(N_PROCESSES))
@pytest.mark.parametrize("suffix", [".pending", ".ogds"])
def test_a_process_that_has_not_sealed_its_stripe_is_named(tmp_path, missing, suffix):
    for process in range(N_PROCESSES):
        prepared(process, tree_of()).write(tmp_path)
    (tmp_path / f"p0000{missing}{suffix}").unlink()
    with pytest.raises(CommitError, match=f"of process {missing}"):
        commit.publish(tmp_path)
    assert not published(tmp_path)
    prepared(missing, tree_of()).write(tmp_path)
    commit.publish(tmp_path)
    assert published(tmp_path)


@pytest.mark.parametrize("n_kept", [0, 1, -1])
def test_what_is_pending_but_not_whole_is_refused(tmp_path, n_kept):
    for process in range(N_PROCESSES):
        prepared(process, tree_of()).write(tmp_path)
    path = tmp_path / "p00002.pending"
    path.write_bytes(path.read_bytes()[:n_kept])
    with pytest.raises(CommitError, match="of process 2"):
        commit.publish(tmp_path)


def test_a_stripe_of_an_earlier_attempt_is_not_published_with_a_later_one(tmp_path, monkeypatch):
    for process in range(N_PROCESSES):
        prepared(process, tree_of()).write(tmp_path)
    stripe, said = (tmp_path / name for name in ("p00001.ogds", "p00001.pending"))
    old_stripe, old_said = stripe.read_bytes(), said.read_bytes()
    prepared(1, tree_of()).write(tmp_path)
    for path, old in ((stripe, old_stripe), (said, old_said)):
        new = path.read_bytes()
        path.write_bytes(old)
        with pytest.raises(CommitError, match=r"process 1 .* belong to two saves"):
            commit.publish(tmp_path)
        path.write_bytes(new)
    monkeypatch.setattr(Prepared, "_leave_out_derived", lambda _: 1 / 0)  # it dies before it writes
    with pytest.raises(ZeroDivisionError):
        prepared(1, tree_of()).write(tmp_path)
    assert not stripe.exists()  # other items may link it: it is not to be written in place
    stripe.write_bytes(old_stripe)
    with pytest.raises(CommitError, match="of process 1"):
        commit.publish(tmp_path)
    with pytest.raises(NotFound, match="never published"):
        ogds.restore(tmp_path)


def test_one_process_alone_leaves_nothing_beside_its_stripe(tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 1)
    ogds.save(tmp_path / "item", {"a": 1})
    assert sorted(p.name for p in (tmp_path / "item").iterdir()) == [
        *("_METADATA", "manifest.json", "p00000.ogds", "p00000.report.json"),
    ]
