"""Whatever is changed in a stripe that an item follows from is found, and named by its file."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from delta_items import drifting, follow, steps_of
from trees import assert_same

import orbax_gds as ogds
from orbax_gds import frame_check, read_ranges, verifying
from orbax_gds import stripe as stripes
from orbax_gds.commit import read_manifest
from orbax_gds.drivers import posix
from orbax_gds.errors import IoError, NotFound, OgdsError, Truncated
from orbax_gds.item import Item

pytestmark = pytest.mark.slow

N_STEPS = 3


def states() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(5)
    normal = rng.standard_normal(4000).astype(np.float32)
    tree = {"w": normal.reshape(40, 100), "b": normal[:300], "still": normal[:1500]}
    return drifting(tree, N_STEPS)


@pytest.fixture(scope="module", params=[True, False], ids=["linked", "unlinked"])
def made(request, tmp_path_factory):
    root = tmp_path_factory.mktemp("root")
    items = steps_of(root, N_STEPS)
    for item, state in zip(items, states(), strict=True):
        ogds.save(item, state, options=ogds.Options(chunk_bytes=4096))
        (item / "p00000.report.json").unlink()
    follow(items, linked=request.param, is_delta=lambda step, chunk: chunk != 1)
    return root


@pytest.fixture
def root(made, tmp_path):
    """A copy in which no file is shared."""
    return Path(shutil.copytree(made, tmp_path / "root"))


@pytest.fixture
def last(root):
    return root / str(N_STEPS - 1) / "default"


def base_paths(item: Path) -> dict[str, Path]:
    """The files that an item follows from, by their names in the manifest, the oldest first."""
    with Item(item) as opened:
        return {link.spec.file: link.path for stripe in opened.stripes for link in stripe.chain}


def damaged(item: Path, file: str, path: Path, data: bytes) -> OgdsError | None:
    """Check what is said of an item with another file, which is put back."""
    before = path.read_bytes()
    path.write_bytes(data)
    problems = ogds.verify(item)
    try:
        assert_same(ogds.restore(item), states()[-1])
    except OgdsError as err:
        refused = err
    else:
        assert all(problem.chunk is None for problem in problems)
        return None  # no chunk needs what was changed
    finally:
        path.write_bytes(before)
    assert path.name in str(refused)
    assert file in {problem.file for problem in problems}
    return refused


@pytest.mark.parametrize("step", range(N_STEPS))
def test_intact_chains_have_no_problem(made, step):
    assert ogds.verify(made / str(step) / "default") == []


def test_flipped_bits_are_found(last):
    rng = np.random.default_rng(0)
    refused = 0
    paths = base_paths(last)
    for file, path in paths.items():
        data = path.read_bytes()
        for at in rng.choice(len(data), 10, replace=False).tolist():
            flipped = bytearray(data)
            flipped[at] ^= 1 << int(rng.integers(8))
            refused += damaged(last, file, path, bytes(flipped)) is not None
    assert refused > 10


def test_cut_and_lengthened_files_are_refused(last):
    for file, path in base_paths(last).items():
        data = path.read_bytes()
        for n in (0, 1, 63, 64, 4096, len(data) // 2, len(data) - 1):
            assert isinstance(damaged(last, file, path, data[:n]), Truncated)
        assert damaged(last, file, path, data + b"\0") is not None


def test_swapped_files_are_refused(last):
    paths = base_paths(last)
    (first, second) = paths.items()
    for (file, path), (_, other) in ((first, second), (second, first)):
        assert damaged(last, file, path, other.read_bytes()) is not None
    own = last / "p00000.ogds"
    assert damaged(last, first[0], first[1], own.read_bytes()) is not None
    assert damaged(last, "p00000.ogds", own, first[1].read_bytes()) is not None


def test_a_damaged_frame_is_named_once_with_its_leaves(last):
    (file, path), _ = base_paths(last).items()
    with Item(last) as item:
        (stripe,) = item.stripes
        shards = [shard for shard in stripe.shards if item.leaf_name(shard.leaf) == "w"]
        (chunk,) = (shard.first_chunk for shard in shards)
        assert stripe.records["flags"][chunk] & stripes.DELTA_FLAG
        at = int(stripe.chain[0].records["offset"][chunk])
    data = bytearray(path.read_bytes())
    data[at + 40] ^= 1
    path.write_bytes(data)
    (problem,) = ogds.verify(last)
    assert problem.where == f"{file}, byte {at}, chunk {chunk}, leaf 'w'"
    assert "CRC32C" in problem.what


def flip(item: Path, file: str, path: Path, chunk: int) -> int:
    """Damage the frame of a chunk in a stripe that an item needs; return its byte."""
    with Item(item) as opened:
        (own,) = opened.stripes
        records = {link.spec.file: link.records for link in own.chain}
        at = int(records.get(file, own.records)["offset"][chunk])
    data = bytearray(path.read_bytes())
    data[at + 40] ^= 1
    path.write_bytes(data)
    return at


def test_frames_that_no_chunk_of_the_step_needs_are_no_problem_of_it(last):
    for file, path in base_paths(last).items():
        flip(last, file, path, 1)  # of which every step has a full one
    assert ogds.verify(last) == []
    assert_same(ogds.restore(last), states()[-1])


def test_all_damaged_frames_of_a_chain_are_named(last):
    first, _ = base_paths(last).items()
    paths = dict([first, ("p00000.ogds", last / "p00000.ogds")])
    places = {file: flip(last, file, path, 0) for file, path in paths.items()}
    assert {problem.file: problem.offset for problem in ogds.verify(last)} == places


def test_threads_hold_no_more_than_they_may(last, monkeypatch):
    held, most = [], 70_000
    monkeypatch.setattr(frame_check, "_MOST_BYTES", most)
    monkeypatch.setattr(read_ranges, "CHAIN_BYTES", 4096)
    pool = frame_check.BufferPool
    monkeypatch.setattr(
        frame_check, "BufferPool", lambda n_bytes, n: held.append(n_bytes * n) or pool(n_bytes, n)
    )
    assert ogds.verify(last, options=ogds.Options(workers=100)) == []
    assert 0 < max(held) <= most


def test_a_missing_file_is_named_with_the_leaves_that_need_it(last):
    for file, path in base_paths(last).items():
        uuid = Path(file).stem
        path.rename(last / "away")
        problems = {problem.file: problem for problem in ogds.verify(last)}
        assert uuid in problems[file].what
        assert "w" in problems["p00000.ogds"].leaves
        assert "cannot be read" in problems["p00000.ogds"].what
        with pytest.raises(NotFound, match=uuid):
            ogds.restore(last)
        (last / "away").rename(path)
    assert ogds.verify(last) == []


def test_frames_are_checked_also_where_their_base_is_missing(last):
    _, (_, path) = base_paths(last).items()
    path.unlink()
    with Item(last.parents[1] / "0" / "default") as full:
        n_chunks = len(full.stripes[0].records)
    own = last / "p00000.ogds"
    data = bytearray(own.read_bytes())
    header = stripes.decode_header(bytes(data[:64]), "here")
    data[header.frames_at + 40] ^= 1  # chunk 0, a delta, and 1, which is none
    data[header.frames_at + int.from_bytes(data[header.frames_at + 16 :][:4], "little") + 40] ^= 1
    own.write_bytes(data)
    found = [problem.chunk for problem in ogds.verify(last) if problem.offset is not None]
    assert found == [0, 1]
    assert n_chunks > 2


def test_a_base_that_cannot_be_opened_is_a_problem(last, monkeypatch):
    (file, path), *_ = base_paths(last).items()
    right = verifying.open_stripe

    def open_stripe(driver, place, spec):
        if place == path:
            raise IoError(5, "Input/output error", str(place))
        return right(driver, place, spec)

    monkeypatch.setattr(verifying, "open_stripe", open_stripe)
    why, which = ogds.verify(last)
    assert (why.file, why.what) == (file, "Input/output error")
    assert "follow from an earlier step that cannot be read" in which.what


def test_a_frame_that_a_device_cannot_read_leaves_the_others(last, monkeypatch):
    with Item(last) as opened:
        bad = [int(each.records["offset"][1]) + 9 for each in opened.stripes[0].chain]
        inode = [link.path.stat().st_ino for link in opened.stripes[0].chain]
    read = posix._preadv

    def preadv(descriptor, view, offset):
        own = os.fstat(descriptor).st_ino
        for each, at in zip(inode, bad, strict=True):
            if own == each and offset <= at < offset + len(view):
                raise OSError(5, "Input/output error")
        return read(descriptor, view, offset)

    monkeypatch.setattr(posix, "_preadv", preadv)
    with Item(last, options=ogds.Options(driver="buffered")) as opened:
        assert len(opened.stripes[0].chain) == N_STEPS - 1


def test_progress_counts_the_bytes_of_bases(last):
    seen = []
    ogds.verify(last, progress=lambda done, total: seen.append((done, total)))
    manifest = read_manifest(last)
    total = sum(spec.bytes for spec in (*manifest.base.stripes, *manifest.stripes))
    assert seen[-1] == (total, total)
    assert seen == sorted(seen)
