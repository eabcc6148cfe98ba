"""Restores through chains: right bits of any part, and no byte that is not needed."""

import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import msgspec
import numpy as np
import pytest
from delta_items import drifting, follow, steps_of
from hypothesis import given, settings
from hypothesis import strategies as st
from trees import assert_same

import orbax_gds as ogds
from orbax_gds import item as item_module
from orbax_gds import manifest as manifests
from orbax_gds import read_plan, read_ranges
from orbax_gds import stripe as stripes
from orbax_gds.codecs import reference
from orbax_gds.commit import read_manifest
from orbax_gds.errors import Corrupt
from orbax_gds.item import Item
from orbax_gds.plan import ShardBox
from orbax_gds.staging import BufferPool
from orbax_gds.stripe_specs import BaseSpec, base_file

N_STEPS = 5


def tree() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    normal = rng.standard_normal(60_000).astype(np.float32)
    return {
        "half": normal[:30_000].astype(ml_dtypes.bfloat16),  # follows from the float32 below it
        "master": normal[:30_000],
        "wide": normal.astype(ml_dtypes.bfloat16).reshape(600, 100),
        "still": normal[:20_000].astype(np.float16),
        "z": (normal[:400] + 1j * normal[400:800]).astype(np.complex64),
        "step": np.array(7, np.int64),
    }


def states() -> list[dict[str, np.ndarray]]:
    made = drifting(tree(), N_STEPS)
    for state in made:
        state["half"] = state["master"].astype(ml_dtypes.bfloat16)
    return made


def save_steps(root: Path, is_delta, linked: bool = True) -> list[Path]:
    items = steps_of(root, N_STEPS)
    for item, state in zip(items, states(), strict=True):
        ogds.save(item, state, options=ogds.Options(chunk_bytes=4096))
    follow(items, is_delta=is_delta, linked=linked)
    return items


@pytest.fixture(scope="module", params=["deltas", "mixed", "unlinked"])
def items(request, tmp_path_factory):
    rng = np.random.default_rng(3)
    chosen = rng.random((N_STEPS, 1000)) < 0.6
    return save_steps(
        tmp_path_factory.mktemp("root"),
        (lambda step, chunk: bool(chosen[step, chunk]))
        if request.param == "mixed"
        else (lambda step, chunk: True),
        linked=request.param != "unlinked",
    )


@pytest.fixture(scope="module")
def opened(items):
    with Item(items[-1]) as item:
        yield item


def needed(item: Item, leaf: int) -> list[tuple[Path, int, int]]:
    """File, offset and length of every frame that a leaf is made of, the whole chain down."""
    frames = []
    for stripe in item.stripes:
        for shard in (stripe.shards[i] for i in stripe.by_leaf.get(leaf, ())):
            for chunk in range(shard.first_chunk, shard.first_chunk + shard.n_chunks):
                for source in (stripe, *reversed(stripe.chain)):
                    record = source.records[chunk]
                    frames.append((source.path, int(record["offset"]), int(record["frame_bytes"])))
                    if not record["flags"] & stripes.DELTA_FLAG:
                        break
    return frames


@pytest.mark.slow
@pytest.mark.parametrize("step", range(N_STEPS))
def test_every_step_restores_bit_for_bit(items, step):
    assert_same(ogds.restore(items[step]), states()[step])


def test_a_leaf_derived_from_deltas_restores(opened):
    (derived,) = {shard.leaf for stripe in opened.stripes for shard in stripe.derived}
    assert opened.leaf_name(derived) == "half"
    assert opened.read_leaf(derived).tobytes() == states()[-1]["half"].tobytes()


def test_one_leaf_reads_only_the_frames_of_its_chunks(items, monkeypatch):
    monkeypatch.setattr(read_ranges, "MAX_GAP_BYTES", 0)
    for leaf, spec in enumerate(read_manifest(items[-1]).leaves):
        with Item(items[-1]) as item:
            read = item.read_leaf(leaf)
            frames = needed(item, leaf)
            if frames:
                assert item.bytes_read == sum(n for _, _, n in set(frames))
        assert read.tobytes() == states()[-1][spec.path[0][1]].tobytes()


def test_frames_of_a_link_that_lie_apart_are_not_read_over(items, monkeypatch):
    monkeypatch.setattr(read_ranges, "MAX_GAP_BYTES", 0)
    with Item(items[-1]) as item:
        (leaf,) = (i for i in range(6) if item.leaf_name(i) == "wide")
        box = ShardBox(leaf=leaf, start=(300, 0), extent=(1, 1))
        item.read_box(box)
        most = max(n for _, _, n in needed(item, leaf))
        assert 0 < item.bytes_read <= N_STEPS * most


@pytest.mark.slow
@settings(max_examples=20)
@given(data=st.data())
def test_any_part_of_any_leaf_restores(opened, data):
    state = states()[-1]
    boxes, parts = [], []
    for _ in range(data.draw(st.integers(1, 4))):
        leaf = data.draw(st.integers(0, len(state) - 1))
        array = state[opened.leaf_name(leaf)]
        low = tuple(data.draw(st.integers(0, n - 1)) for n in array.shape)
        high = tuple(
            data.draw(st.integers(a + 1, n)) for a, n in zip(low, array.shape, strict=True)
        )
        extent = tuple(b - a for a, b in zip(low, high, strict=True))
        boxes.append(ShardBox(leaf=leaf, start=low, extent=extent))
        parts.append(array[tuple(map(slice, low, high))].tobytes())
    buffers = [np.zeros(len(part), np.uint8) for part in parts]
    opened.read(boxes, buffers)
    assert [buffer.tobytes() for buffer in buffers] == parts


def test_a_column_of_many_rows_restores(opened):
    (leaf,) = (i for i in range(6) if opened.leaf_name(i) == "wide")
    column = opened.read_box(ShardBox(leaf=leaf, start=(0, 41), extent=(600, 1)))
    assert column.tobytes() == states()[-1]["wide"][:, 41].tobytes()


def test_a_cast_restores_what_was_saved(items):
    state = states()[-1]
    asked = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in state.items()}
    asked["wide"] = jax.ShapeDtypeStruct((600, 100), jnp.float32)
    with jax.enable_x64(True):
        found = ogds.restore(items[-1], asked)
    assert np.array_equal(found["wide"], state["wide"].astype(np.float32))
    assert found["master"].tobytes() == state["master"].tobytes()


def test_reads_of_a_chain_are_bounded(items, monkeypatch):
    monkeypatch.setattr(read_ranges, "CHAIN_BYTES", 20_000)
    seen = []
    plan = read_plan.plan_reads
    monkeypatch.setattr("orbax_gds.item.plan_reads", lambda *a: seen.extend(plan(*a)) or plan(*a))
    assert_same(ogds.restore(items[-1]), states()[-1])
    assert any(read.links for read in seen)
    assert all(read.all_bytes <= 20_000 or len(read.chunks) == 1 for read in seen)


def test_buffers_for_chains_stay_within_what_a_restore_may_take(items, monkeypatch):
    pools = []

    class Pool(BufferPool):
        def __init__(self, n_bytes: int, n_buffers: int, **how: bool) -> None:
            pools.append((n_bytes, n_buffers))
            super().__init__(n_bytes, n_buffers, **how)

    monkeypatch.setattr(item_module, "BufferPool", Pool)
    monkeypatch.setattr(read_ranges, "CHAIN_BYTES", 16 << 10)
    with Item(items[-1], options=ogds.Options(workers=4)) as item:
        leaf = next(i for i in range(6) if item.leaf_name(i) == "master")
        for most in (1, 150 << 10, 1 << 30):
            monkeypatch.setattr(item_module, "_BUFFER_BYTES", most)
            item.read_leaf(leaf)
            n_bytes, n_buffers = pools[-1]
            assert n_buffers == min(8, max(1, most // n_bytes))
    assert len({n_buffers for _, n_buffers in pools}) == 3


def test_a_damaged_frame_of_a_base_is_named_with_the_leaf_it_hits(tmp_path):
    items = save_steps(tmp_path, lambda step, chunk: True)
    with Item(items[2]) as item:
        (leaf,) = (i for i in range(6) if item.leaf_name(i) == "master")
        base = item.stripes[0].chain[0].path
        path, offset, _ = next(frame for frame in needed(item, leaf) if frame[0] == base)
    data = bytearray(path.read_bytes())
    data[offset + 40] ^= 1
    path.write_bytes(data)  # the same file as that of step 0
    for step in (0, 2):
        with pytest.raises(Corrupt, match=r"chunk \d+ at byte \d+, of leaf 'half', 'master'") as e:
            ogds.restore(items[step])
        assert "follows from" in str(e.value) or not step
    assert str(path) in str(e.value)
    ogds.restore(items[2], leaves=["wide"])


@pytest.mark.slow
def test_a_sound_base_that_the_deltas_were_not_coded_against_is_refused(tmp_path):
    items = save_steps(tmp_path / "root", lambda step, chunk: True)
    other = save_steps(tmp_path / "other", lambda step, chunk: True)[0]
    manifest = read_manifest(items[1])
    (entry,) = read_manifest(other).stripes  # of the same layout, and with other words
    entry = msgspec.structs.replace(entry, file=base_file(entry.uuid))
    ogds.save(tmp_path / "wrong", states()[3], options=ogds.Options(chunk_bytes=4096))
    (wrong,) = read_manifest(tmp_path / "wrong").stripes
    shutil.copy(tmp_path / "wrong" / wrong.file, items[1] / base_file(wrong.uuid))
    shutil.copy(other / "p00000.ogds", items[1] / entry.file)
    for base, is_right in ((entry, True), (wrong, False)):
        base = msgspec.structs.replace(base, file=base_file(base.uuid))
        own = (msgspec.structs.replace(manifest.stripes[0], base=base.uuid),)
        bases = BaseSpec(stripes=(base,), linked=True)
        changed = msgspec.structs.replace(manifest, stripes=own, base=bases)
        (items[1] / "manifest.json").write_bytes(manifests.encode(changed))
        if is_right:
            assert_same(ogds.restore(items[1]), states()[1])
            continue
        with pytest.raises(Corrupt, match="another base than it was coded against"):
            ogds.restore(items[1])
        with pytest.raises(Corrupt, match="coded against a base with"):
            reference.read_item(items[1])


@pytest.mark.slow
def test_words_count_as_often_as_they_are_decoded(tmp_path, monkeypatch):
    items, queues = save_steps(tmp_path, lambda step, chunk: True), []
    monkeypatch.setattr(
        item_module, "run_tasks", lambda queue, *_: queues.append([each for _, each in queue])
    )
    with Item(items[-1]) as opened:
        (stripe,) = opened.stripes
        opened.read_leaf(next(i for i in range(99) if opened.leaf_name(i) == "wide"))
        ((read,),) = queues
        n_links = sum((link.records["frame_bytes"] > 0).astype(int) for link in read.links)
        assert n_links.min() > 0
        words = stripe.frames[2][read.chunks]
        assert read.decoded_bytes == (words * (1 + n_links)).sum()
