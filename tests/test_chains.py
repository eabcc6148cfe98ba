"""Chains: what a manifest may say of them, where their stripes lie, what a chunk needs of them."""

import os
import shutil
from pathlib import Path

import ml_dtypes
import msgspec
import numpy as np
import pytest
from delta_items import drifting, follow, steps_of

import orbax_gds as ogds
from orbax_gds import chains
from orbax_gds import manifest as manifests
from orbax_gds import stripe as stripes
from orbax_gds.chains import base_places, find_stripes, links_of, open_chain
from orbax_gds.codecs import reference
from orbax_gds.commit import read_manifest
from orbax_gds.drivers import open_driver
from orbax_gds.errors import Corrupt, NotFound, Unsupported
from orbax_gds.item import Item
from orbax_gds.listing import find_item, list_items
from orbax_gds.manifest import Manifest
from orbax_gds.stripe_file import open_stripe
from orbax_gds.stripe_specs import DELTA, BaseSpec, StripeSpec, base_file, by_uuid, chain_of

OPTIONS = ogds.Options(chunk_bytes=4096)


def tree() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    normal = rng.standard_normal(6000).astype(np.float32)
    return {
        "w": normal.astype(ml_dtypes.bfloat16).reshape(60, 100),
        "mu": normal[:3000],
        "still": normal[:2000].astype(ml_dtypes.bfloat16),
        "step": np.array(7, np.int64),
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with a full step and three that follow from it."""
    root = tmp_path_factory.mktemp("root")
    items = steps_of(root, 4)
    for item, state in zip(items, drifting(tree(), 4), strict=True):
        ogds.save(item, state, options=OPTIONS)
    follow(items)
    return root


def spec(number: int, base: int | None = None, **changes) -> StripeSpec:
    entry = StripeSpec(
        file=base_file(f"{number:032x}"),
        uuid=f"{number:032x}",
        bytes=4224,
        layout_crc32c="0" * 8,
        index_crc32c="f" * 8,
        base=None if base is None else f"{base:032x}",
    )
    return msgspec.structs.replace(entry, **changes)


def manifest_of(own: list[StripeSpec], bases: list[StripeSpec] | None, **changes) -> Manifest:
    named = [msgspec.structs.replace(entry, file=f"p{i:05d}.ogds") for i, entry in enumerate(own)]
    fields = {
        "format": 1,
        "requires": () if bases is None else (DELTA,),
        "writer": "a test",
        "leaves": (),
        "shardings": (),
        "stripes": tuple(named),
        "sidecars": {},
        "options": {},
        "base": None if bases is None else BaseSpec(stripes=tuple(bases), linked=True),
    }
    return Manifest(**(fields | changes))


@pytest.mark.parametrize(
    ("own", "bases"),
    [
        ([spec(0)], None),
        ([spec(0, 1)], [spec(1)]),
        ([spec(0, 1), spec(9)], [spec(2), spec(1, 2)]),
        ([spec(0, 1), spec(9, 2)], [spec(1, 3), spec(2, 3), spec(3)]),  # two stripes on one base
        ([spec(0, 1), spec(9, 1)], [spec(1)]),
    ],
)
def test_chains_that_end_are_taken(own, bases):
    manifest = manifest_of(own, bases)
    data = manifests.encode(manifest)
    assert manifests.decode(data, "here") == manifest
    assert reference.parse_manifest(data)["stripes"]
    for stripe in manifest.stripes:
        chain = [*chain_of(stripe, by_uuid(manifest.base)), stripe]
        assert chain[0].base is None
        assert [link.uuid for link in chain[:-1]] == [link.base for link in chain[1:]]


@pytest.mark.parametrize(
    "manifest",
    [
        manifest_of([spec(0)], []),
        manifest_of([spec(0, 1)], None),
        manifest_of([spec(0, 1)], []),
        manifest_of([spec(0, 1)], [spec(1)], requires=()),
        manifest_of([spec(0)], None, requires=(DELTA,)),
        manifest_of([spec(0)], [spec(1)]),
        manifest_of([spec(0, 1)], [spec(1), spec(2)]),
        manifest_of([spec(0, 1)], [spec(1), spec(1)]),
        manifest_of([spec(0, 1)], [spec(1, 2)]),
        manifest_of([spec(0, 1)], [spec(1, 1)]),
        manifest_of([spec(0, 1)], [spec(1, 2), spec(2, 3), spec(3, 1)]),
        manifest_of([spec(0, 1)], [spec(1, 0), spec(0)]),
        manifest_of([spec(0, 0)], []),
        manifest_of([spec(0, 1), spec(1)], [spec(1)]),
        manifest_of([spec(0, 1)], [spec(1, layout_crc32c="1" * 8)]),
        manifest_of([spec(0, 1), spec(9, 1, layout_crc32c="1" * 8)], [spec(1)]),
        manifest_of([spec(0, 1)], [spec(1, file="p00000.ogds")]),
        manifest_of([spec(0, 1)], [spec(1, file=base_file("2" * 32))]),
        manifest_of([spec(0, 1)], [spec(1, index_crc32c="z" * 8)]),
        manifest_of([spec(0, 1)], [spec(1, bytes=0)]),
    ],
)
def test_what_does_not_fit_together_is_refused(manifest):
    data = manifests.encode(manifest)
    with pytest.raises(Corrupt, match="here"):
        manifests.decode(data, "here")
    if manifest.base is None or all(entry.bytes for entry in manifest.base.stripes):
        with pytest.raises(Corrupt):
            reference.parse_manifest(data)


def test_a_reader_without_deltas_refuses_the_item_by_name():
    manifest = manifest_of([spec(0, 1)], [spec(1)], requires=(DELTA, "telepathy"))
    with pytest.raises(Unsupported, match="telepathy"):
        manifests.decode(manifests.encode(manifest), "here")


def test_a_chunk_needs_the_frames_down_to_the_first_that_is_no_delta(made):
    item = made / "3" / "default"
    manifest = read_manifest(item)
    driver = open_driver("buffered", item)
    (entry,) = manifest.stripes
    own = open_stripe(driver, item / entry.file, entry)
    chain = open_chain(driver, base_places(item, manifest), manifest, entry)
    assert [link.spec.base is None for link in chain] == [True, False, False]
    assert [link.path.parent.name for link in chain] == ["base"] * 3
    chunks = np.arange(len(own.records))[::-2]
    links = links_of(own.records, chain, chunks)
    for i, chunk in enumerate(chunks):
        needs = own.records["flags"][chunk] & stripes.DELTA_FLAG
        for rows, link in zip(reversed(links), reversed(chain), strict=True):
            if needs:
                assert rows[i] == link.records[chunk]
            else:
                assert not rows[i : i + 1].view(np.uint8).any()
            needs = needs and rows["flags"][i] & stripes.DELTA_FLAG
        assert not needs
    assert (own.records["flags"] & stripes.DELTA_FLAG).any()
    for opened in (own, *chain):
        opened.file.close()


def test_a_link_with_other_chunks_is_refused(made):
    item = made / "1" / "default"
    manifest = read_manifest(item)
    driver = open_driver("buffered", item)
    chain = open_chain(driver, base_places(item, manifest), manifest, manifest.stripes[0])
    with pytest.raises(Corrupt, match=chain[0].spec.uuid):
        links_of(chain[0].records[:-1], chain, np.arange(2))
    chain[0].file.close()


def test_an_unlinked_base_is_found_in_any_step_that_has_it(made, tmp_path):
    root = tmp_path / "root"
    shutil.copytree(made, root)
    last = root / "3" / "default"
    uuids = [entry.uuid for entry in read_manifest(last).base.stripes]
    shutil.rmtree(last / "base")
    for uuid in uuids:
        with pytest.raises(NotFound, match=uuid):
            find_stripes(last, [uuid], linked=True)
        assert find_stripes(last, [uuid], linked=False)[uuid].is_file()
    (root / "2").rename(root / "9.orbax-checkpoint-tmp")  # is none yet, or no more
    (gone,) = {entry.base for entry in read_manifest(last).stripes}
    with pytest.raises(NotFound, match=gone):
        find_stripes(last, [gone], linked=False)
    (root / "9.orbax-checkpoint-tmp").rename(root / "2")
    shutil.rmtree(root / "0")  # its stripe is linked in the others
    for uuid in uuids:
        assert find_stripes(last, [uuid], linked=False)[uuid].is_file()
    shutil.rmtree(root / "2")
    for uuid in uuids:
        if uuid == gone:
            with pytest.raises(NotFound, match=f"{uuid}.*KeepBases"):
                find_stripes(last, [uuid], linked=False)
        else:
            assert find_stripes(last, [uuid], linked=False)[uuid].is_file()


@pytest.mark.parametrize("place", [".", "../../3/default"])
def test_an_unlinked_base_is_found_from_any_directory(tmp_path, monkeypatch, place):
    items = steps_of(tmp_path, 4)
    for item, state in zip(items, drifting(tree(), 4), strict=True):
        ogds.save(item, state, options=OPTIONS)
    follow(items, linked=False)
    monkeypatch.chdir(items[3])
    assert ogds.verify(place) == []


def test_an_unlinked_base_is_found_where_steps_are_items(tmp_path):
    items = [tmp_path / f"run_{number}" for number in range(4)]
    states = drifting(tree(), 4)
    for item, state in zip(items, states, strict=True):
        ogds.save(item, state, options=OPTIONS)
    follow(items, linked=False)
    expected = {name: array.tobytes() for name, array in states[3].items()}
    got = ogds.restore(items[3])
    assert {name: np.asarray(array).tobytes() for name, array in got.items()} == expected
    assert ogds.verify(items[3]) == []
    found = reference.read_item(items[3])
    assert {path[0][1]: array.tobytes() for path, array in found.items()} == expected
    assert [entry.state for entry in list_items(tmp_path)] == ["published"] * 4
    items[1].rename(tmp_path / "run_1.orbax-checkpoint-tmp-3")
    with pytest.raises(NotFound, match="run_3 follows from the stripe"):
        Item(items[3])
    with pytest.raises(NotFound):
        reference.read_item(items[3])


def test_an_unpublished_step_has_no_base_for_the_reference_either(tmp_path):
    items = steps_of(tmp_path, 2)
    for item, state in zip(items, drifting(tree(), 2), strict=True):
        ogds.save(item, state, options=OPTIONS)
    follow(items, linked=False)
    assert reference.read_item(items[1])
    step = items[0].parent
    step.rename(step.with_name(step.name + ".orbax-checkpoint-tmp-3"))
    with pytest.raises(NotFound):
        reference.read_item(items[1])


@pytest.mark.parametrize("how", [lambda item: Item(item).close(), ogds.verify])
def test_other_steps_are_looked_through_once(tmp_path, monkeypatch, how):
    items = steps_of(tmp_path, 5)
    for item, state in zip(items, drifting(tree(), 5), strict=True):
        ogds.save(item, state, options=OPTIONS)
    follow(items, linked=False)
    read = []
    decode = chains.decode_pending
    monkeypatch.setattr(chains, "decode_pending", lambda *a: (read.append(a[1]), decode(*a))[1])
    how(items[-1])
    assert sorted(read) == [str(item / "manifest.json") for item in items[:-1]]


def test_a_missing_or_foreign_base_is_refused_by_name(made, tmp_path):
    item = tmp_path / "1" / "default"
    shutil.copytree(made / "1" / "default", item)
    (entry,) = read_manifest(item).base.stripes
    base = item / entry.file
    base.unlink()
    with pytest.raises(NotFound, match=entry.uuid):
        Item(item)
    shutil.copy(made / "2" / "default" / "p00000.ogds", base)
    with pytest.raises(Corrupt, match=entry.uuid):
        Item(item)


@pytest.mark.parametrize("driver", ["buffered", "auto"])
def test_an_item_leaves_no_file_open(made, tmp_path, driver):
    item = tmp_path / "3" / "default"
    shutil.copytree(made / "3" / "default", item)
    newest = read_manifest(item).stripes[0].base
    before = sorted(os.listdir("/proc/self/fd"))
    with Item(item, options=ogds.Options(driver=driver)):
        pass
    assert sorted(os.listdir("/proc/self/fd")) == before
    (item / base_file(newest)).write_bytes(b"short")
    with pytest.raises(Corrupt, match=newest):
        Item(item, options=ogds.Options(driver=driver))
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_deltas_without_a_named_base_are_refused(made, tmp_path):
    item = tmp_path / "item"
    shutil.copytree(made / "1" / "default", item)
    manifest = read_manifest(item)
    (entry,) = manifest.stripes
    full = msgspec.structs.replace(
        manifest,
        stripes=(msgspec.structs.replace(entry, base=None),),
        base=None,
        requires=(),
    )
    (item / "manifest.json").write_bytes(manifests.encode(full))
    with pytest.raises(Corrupt, match="names no base"):
        Item(item)
    with pytest.raises(Corrupt, match="without a base"):
        reference.read_item(item)


@pytest.mark.parametrize("step", range(4))
def test_the_reference_reads_through_chains(made, step):
    expected = drifting(tree(), 4)[step]
    found = reference.read_item(made / str(step) / "default")
    assert {path[0][1]: array.tobytes() for path, array in found.items()} == {
        name: array.tobytes() for name, array in expected.items()
    }


@pytest.mark.parametrize("linked", [True, False])
def test_a_step_whose_bases_are_missing_is_listed_as_broken_and_is_not_the_latest(tmp_path, linked):
    items = steps_of(tmp_path, 3)
    for item, state in zip(items, drifting(tree(), 3), strict=True):
        ogds.save(item, state, options=OPTIONS)
    follow(items, linked=linked)
    assert [entry.state for entry in list_items(tmp_path)] == ["published"] * 3
    assert find_item(tmp_path) == items[2]
    gone = read_manifest(items[2]).stripes[0].base
    if linked:
        (items[2] / base_file(gone)).unlink()
    else:
        shutil.rmtree(items[1].parent)
    broken = [entry for entry in list_items(tmp_path) if entry.state == "broken"]
    assert items[2] == Path(broken[-1].path)
    assert gone in broken[-1].reason
    assert find_item(tmp_path) == (items[1] if linked else items[0])
    with pytest.raises(NotFound, match=f"can be read.*{gone}"):
        find_item(items[2].parent)
