"""Restores of many leaves, or of a few of many: what they cost grows with what they give back."""

import gc
import itertools
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from trees import assert_same

import orbax_gds as ogds
from orbax_gds import item as items
from orbax_gds import loaded_frames, read_plan, restoring, stripe_file, targets, wants
from orbax_gds import manifest as manifests
from orbax_gds.chunk_reader import ChunkReader
from orbax_gds.drivers import posix
from orbax_gds.staging import BufferPool, aligned_pieces
from orbax_gds.uncollected import uncollected

pytestmark = pytest.mark.slow

N = 300
MIB = 1 << 20


def many() -> dict:
    """Small leaves of two kinds."""
    return {f"{i:03}": jnp.full(64, i, jnp.bfloat16 if i % 2 else jnp.float32) for i in range(N)}


@pytest.fixture(scope="module")
def item(tmp_path_factory):
    path = tmp_path_factory.mktemp("many") / "item"
    ogds.save(path, many())
    return path


def traced(n_bytes) -> np.ndarray:
    """Return memory that tracemalloc sees and jax takes without a copy: uint8[n_bytes]."""
    raw = np.empty(n_bytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + n_bytes]


def counted(monkeypatch, owner, name) -> list:
    """Count the calls of a function from now on."""
    calls, function = [], getattr(owner, name)

    def noted(*args, **options):
        calls.append(args)
        return function(*args, **options)

    monkeypatch.setattr(owner, name, noted)
    return calls


def test_leaves_alike_are_checked_and_resolved_once(monkeypatch, item):
    resolved = counted(monkeypatch, wants, "_resolve")
    described = counted(monkeypatch, targets, "_target_like")
    checked = counted(monkeypatch, manifests, "_problem")
    tiled = counted(monkeypatch, items, "check_coverage")
    tree = many()
    assert_same(ogds.restore(item, tree), tree)
    assert_same(ogds.restore(item), tree)
    assert len(resolved) == 2 * len(described) == 2 * 2
    assert len(checked) == 2 * 2
    assert tiled == []


def test_reading_leaves_one_by_one_looks_at_each_shard_once(monkeypatch, item):
    looks = counted(monkeypatch, read_plan, "_whole_shards")
    tree = many()
    with ogds.open(item) as opened:
        for name, leaf in opened.items():
            np.testing.assert_array_equal(leaf[...], np.asarray(tree[name]))
    assert sum(len(shards) for shards, *_ in looks) == N


def test_no_cycles_are_collected_while_leaves_are_planned(item):
    runs = []
    threshold = gc.get_threshold()
    gc.callbacks.append(lambda phase, _: runs.append(phase))
    gc.set_threshold(1)
    try:
        with uncollected():
            before = len(runs)
            assert [[] for _ in range(100)]
            assert len(runs) == before
        assert gc.isenabled()
        with pytest.raises(ZeroDivisionError), uncollected():
            assert 1 / 0
        assert gc.isenabled()
    finally:
        gc.callbacks.pop()
        gc.set_threshold(*threshold)


@given(st.lists(st.integers(0, 200_000) | st.integers(0, 5 * MIB), max_size=30), st.integers(0, 8))
def test_pieces_are_aligned_and_disjoint(sizes, power):
    pieces = aligned_pieces(sizes, 1 << power)
    assert [piece.nbytes for piece in pieces] == sizes
    assert all(p.ctypes.data % (1 << power) == 0 for p in pieces if p.nbytes)
    spans = sorted((p.ctypes.data, p.ctypes.data + p.nbytes) for p in pieces if p.nbytes)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


def test_small_pieces_share_allocations_but_not_without_bound():
    sizes = [1000, 3 * MIB] * 20_000  # large ones between them do not part them
    pieces = aligned_pieces(sizes, 64)
    blocks = {id(piece.base): piece.base.nbytes for piece in pieces[::2]}
    assert len(blocks) == 3
    assert max(blocks.values()) <= (8 + 2 + 1) * MIB
    assert pieces[1].base.nbytes <= (3 + 2) * MIB


def test_a_single_small_piece_takes_no_large_allocation():
    assert aligned_pieces([100], 64)[0].base.nbytes < 200


def test_small_leaves_are_donated_each_for_itself(item):
    tree = many()
    restored = ogds.restore(item, tree)
    step = jax.jit(lambda x: x * 0 - 1, donate_argnums=0)
    stepped = {name: step(restored.pop(name)) for name in list(tree)[::3]}
    assert all((np.asarray(value) == -1).all() for value in stepped.values())
    assert_same(restored, {name: tree[name] for name in restored})


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """An item of 16 MiB in 32 leaves, and its tree."""
    rng = np.random.default_rng(0)
    tree = {f"{i:02}": rng.integers(0, 255, (512, 1024), np.uint8) for i in range(32)}
    path = tmp_path_factory.mktemp("large") / "item"
    ogds.save(path, tree, options=ogds.Options(chunk_bytes="64KiB"))
    return path, tree


def bytes_read(monkeypatch, *args, **how) -> tuple:
    """Return what a restore gives, and all bytes that it asks stripes for."""
    reads = counted(monkeypatch, posix.PosixFile, "read")
    together = counted(monkeypatch, loaded_frames, "read_together")
    got = ogds.restore(*args, **how)
    return got, sum(
        out.nbytes for _, _, out in itertools.chain(reads, *(some for (some,) in together))
    )


def test_restoring_one_leaf_reads_little_more_than_that_leaf(monkeypatch, large):
    path, tree = large
    got, n_bytes = bytes_read(monkeypatch, path, leaves=["17"])
    assert_same(got, {"17": tree["17"]})
    ends = 2 * stripe_file._END_BYTES  # of the stripe, where its header and index are
    assert tree["17"].nbytes <= n_bytes <= tree["17"].nbytes + ends + 8192


def test_restoring_a_part_of_leaves_reads_little_more_than_that_part(monkeypatch, large):
    path, tree = large
    part = {name: array[:64] for name, array in tree.items()}
    got, n_bytes = bytes_read(monkeypatch, path, part, strict=False)
    assert_same(got, part)
    assert n_bytes < 32 * (64 * 1024 + 8192) + 64 * 1024


def shardings():
    mesh = Mesh(np.array(jax.devices()), ("x",))
    return {
        "rows": NamedSharding(mesh, PartitionSpec("x")),
        "columns": NamedSharding(mesh, PartitionSpec(None, "x")),
        "replicated": NamedSharding(mesh, PartitionSpec()),
        "single": SingleDeviceSharding(jax.devices()[3]),
    }


@pytest.mark.parametrize("n_local", [1, 3])
def test_boxes_of_devices_of_other_processes_are_not_wanted(monkeypatch, large, n_local):
    path, _ = large
    local = jax.devices()[:n_local]
    rows = shardings()["rows"]
    monkeypatch.setattr(NamedSharding, "addressable_devices", property(lambda _: set(local)))
    with items.Item(path) as item:
        spec = next(spec for spec in item.manifest.leaves if spec.path == (("k", "17"),))
    boxes, pieces = wants._placement(spec, spec.shape, rows, {})
    each = 512 // len(jax.devices())
    assert sorted(boxes) == [((n * each, 0), (each, 1024)) for n in range(n_local)]
    assert [(piece.device, boxes[piece.box][0][0]) for piece in pieces] == [
        (device, n * each) for n, device in enumerate(local)
    ]


@pytest.mark.parametrize("wanted", shardings())
@pytest.mark.parametrize("n_columns", [8, 4096])
def test_host_memory_stays_near_what_is_restored(monkeypatch, tmp_path, wanted, n_columns):
    values = np.arange(1 << 23, dtype=np.uint8).reshape(-1, n_columns)  # 8 MiB
    tree = {"full": values, "zeros": np.zeros_like(values)}
    ogds.save(tmp_path / "item", jax.device_put(tree, shardings()["rows"]))
    target = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=shardings()[wanted]), tree
    )
    pools = counted(monkeypatch, BufferPool, "__init__")
    monkeypatch.setattr(restoring, "aligned_pieces", lambda sizes, _: list(map(traced, sizes)))
    options = ogds.Options(workers=2)
    tracemalloc.start()
    try:
        got = ogds.restore(tmp_path / "item", target, options=options)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(n_bytes * n for _, n_bytes, n in pools) <= 64 * MIB
    assert peak < 2 * values.nbytes + 8 * MIB
    assert all((np.asarray(got[name]) == array).all() for name, array in tree.items())


def test_the_buffers_of_a_restore_are_bounded_whatever_the_chunks(monkeypatch, tmp_path):
    array = np.random.default_rng(0).integers(0, 255, 4 * MIB, np.uint8)
    tree = {name: array + i for i, name in enumerate("abc")}
    ogds.save(tmp_path / "item", tree, options=ogds.Options(chunk_bytes="4MiB"))
    monkeypatch.setattr(items, "_BUFFER_BYTES", 9 * MIB)
    pools = counted(monkeypatch, BufferPool, "__init__")
    assert_same(ogds.restore(tmp_path / "item", options=ogds.Options(workers=4)), tree)
    assert [n for _, _, n in pools] == [2]


def test_words_that_take_no_room_on_disk_are_shared_out_too(monkeypatch, tmp_path):
    decodes = counted(monkeypatch, ChunkReader, "read")
    words = np.zeros((64, MIB), np.uint8)
    ogds.save(tmp_path / "item", {"w": words}, options=ogds.Options(codec="fast"))
    assert not ogds.restore(tmp_path / "item")["w"].any()
    assert len(decodes) == 4


def test_columns_of_derived_leaves_are_those_of_the_whole(tmp_path):
    master = np.random.default_rng(0).standard_normal((20_000, 8)).astype(np.float32)
    tree = {"master": master, "weights": master.astype(jnp.bfloat16), "again": master.copy()}
    ogds.save(tmp_path / "item", tree, options=ogds.Options(chunk_bytes="64KiB"))
    columns = shardings()["columns"]
    target = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=columns), tree)
    with items.Item(tmp_path / "item") as item:
        assert sum(len(stripe.derived) for stripe in item.stripes) == 2
    assert_same(ogds.restore(tmp_path / "item", target), jax.device_put(tree, columns))
