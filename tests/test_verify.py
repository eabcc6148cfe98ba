"""`verify` finds everything that is wrong, goes on after each find, and says what is hit."""

import errno
import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

import orbax_gds as ogds
from orbax_gds import manifest as manifests
from orbax_gds import stripe as stripes
from orbax_gds import verifying
from orbax_gds.drivers import open_driver
from orbax_gds.errors import Corrupt, NotFound, OgdsError, Unsupported
from orbax_gds.item import Item
from orbax_gds.stripe_check import StripeCheck
from orbax_gds.testing.faults import Fault, FaultyDriver

STRIPE = "p00000.ogds"


def tree():
    rng = np.random.default_rng(0)
    return {
        "big": rng.integers(0, 1 << 60, 20_000),  # 40 chunks of its own
        "wide": rng.standard_normal((70, 300)),
        "small": {"a": np.arange(5), "b": np.float32(2)},
        "name": "run 1",
        "none": None,
    }


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    path = tmp_path_factory.mktemp("pristine") / "item"
    ogds.save(path, tree(), options=ogds.Options(chunk_bytes=4096))
    return {file.name: file.read_bytes() for file in path.iterdir()}


@pytest.fixture
def item(tmp_path, pristine):
    path = tmp_path / "item"
    path.mkdir()
    for name, data in pristine.items():
        (path / name).write_bytes(data)
    return path


@pytest.fixture
def opened(item):
    with Item(item) as opened:
        yield opened


def flip(path: Path, *offsets: int) -> None:
    data = bytearray(path.read_bytes())
    for offset in offsets:
        data[offset] ^= 0x10
    path.write_bytes(data)


def frame_at(opened: Item, chunk: int) -> int:
    return int(opened.stripes[0].records["offset"][chunk])


def chunk_of(opened: Item, name: str) -> int:
    """The first chunk of a leaf."""
    shards = opened.stripes[0].shards
    return next(s.first_chunk for s in shards if opened.leaf_name(s.leaf) == name)


def test_intact_item_has_no_problem(item):
    assert ogds.verify(item) == []


def test_progress_reaches_the_bytes_of_all_stripes(item):
    seen = []
    ogds.verify(item, progress=lambda done, total: seen.append((done, total)))
    total = (item / STRIPE).stat().st_size
    assert seen[-1] == (total, total)
    assert seen == sorted(seen)


def test_damaged_frame_names_stripe_byte_chunk_and_leaf(item, opened):
    chunk = chunk_of(opened, "big") + 3
    at = frame_at(opened, chunk)
    flip(item / STRIPE, at + 50)
    (problem,) = ogds.verify(item)
    assert problem.where == f"p00000.ogds, byte {at}, chunk {chunk}, leaf 'big'"
    assert "CRC32C" in problem.what


def test_damaged_pool_names_every_leaf_in_it(item, opened):
    flip(item / STRIPE, frame_at(opened, chunk_of(opened, "small/a")) + 40)
    (problem,) = ogds.verify(item)
    assert problem.leaves == ("small/a",)  # b and name have other dtypes, so other pools


def test_every_damaged_chunk_is_reported(item, opened):
    n_chunks = len(opened.stripes[0].records)
    flip(item / STRIPE, *(frame_at(opened, chunk) + 33 for chunk in range(n_chunks)))
    problems = ogds.verify(item)
    assert [problem.chunk for problem in problems] == list(range(n_chunks))
    hit = {leaf for problem in problems for leaf in problem.leaves}
    assert hit == {"big", "wide", "small/a", "small/b", "name"}


@pytest.mark.parametrize("workers", [1, 4])
def test_problems_are_the_same_for_any_number_of_workers(item, opened, workers, monkeypatch):
    monkeypatch.setattr("orbax_gds.read_ranges.READ_BYTES", 8192)
    flip(item / STRIPE, *(frame_at(opened, chunk) + 33 for chunk in (0, 7, 8, 30)))
    problems = ogds.verify(item, options=ogds.Options(workers=workers))
    assert [problem.chunk for problem in problems] == [0, 7, 8, 30]


@pytest.mark.parametrize("part", ["index", "footer", "both ends", "header"])
def test_frames_are_checked_also_when_what_leads_to_them_is_damaged(item, opened, part):
    chunk = chunk_of(opened, "big") + 5
    n_bytes = opened.manifest.stripes[0].bytes
    index_at = (
        n_bytes - stripes.FOOTER_BYTES - stripes.RECORD_BYTES * len(opened.stripes[0].records)
    )
    damage = {
        "index": [index_at + 40],
        "footer": [n_bytes - 50],
        "both ends": [index_at + 40, n_bytes - 50],
        "header": [20],
    }[part]
    flip(item / STRIPE, frame_at(opened, chunk) + 99, *damage)
    problems = ogds.verify(item)
    assert chunk in [problem.chunk for problem in problems]
    assert len(problems) > 1


def test_scan_stops_at_the_first_frame_whose_header_is_damaged_and_names_the_rest(item, opened):
    chunk = chunk_of(opened, "wide")
    at = frame_at(opened, chunk)
    flip(item / STRIPE, at + 5, opened.manifest.stripes[0].bytes - 50)
    lost = ogds.verify(item)[-1]
    assert (lost.offset, lost.chunk) == (at, chunk)
    assert "wide" in lost.leaves
    assert "big" not in lost.leaves


def test_damaged_layout_names_the_leaves_that_cannot_be_placed(item):
    flip(item / STRIPE, 100)
    problems = ogds.verify(item)
    assert problems[0].where == "p00000.ogds, byte 64"
    assert {leaf for p in problems for leaf in p.leaves} == {
        "big",
        "wide",
        "small/a",
        "small/b",
        "name",
    }


def test_byte_between_layout_and_frames_is_named(item, opened):
    at = frame_at(opened, 0) - 1
    flip(item / STRIPE, at)
    (problem,) = ogds.verify(item)
    assert problem.where == f"p00000.ogds, byte {at}"


def test_missing_stripe_names_the_leaves_it_held(item):
    (item / STRIPE).unlink()
    problems = ogds.verify(item)
    assert problems[0].file == STRIPE
    assert "big" in {leaf for problem in problems for leaf in problem.leaves}


def test_cut_stripe_names_the_byte_and_the_leaves_that_are_lost(item, opened):
    at = frame_at(opened, 20)
    os.truncate(item / STRIPE, at + 1)
    problems = ogds.verify(item)
    assert problems[0].offset == at + 1
    assert problems[-1].chunk == 20
    assert len(problems[-1].leaves) > 0


@pytest.mark.parametrize("n_bytes", [0, 1, 63, 64, 100, 4096])
def test_stripe_cut_to_its_head_is_a_problem(item, n_bytes):
    os.truncate(item / STRIPE, n_bytes)
    assert ogds.verify(item)


def test_stripe_of_another_save_is_named_by_its_uuid(item, tmp_path):
    ogds.save(tmp_path / "other", tree(), options=ogds.Options(chunk_bytes=4096))
    (tmp_path / "other" / STRIPE).rename(item / STRIPE)
    problems = ogds.verify(item)
    assert [p.offset for p in problems if "uuid" in p.what] == [
        0,
        (item / STRIPE).stat().st_size - 64,
    ]


def test_sidecar_and_stripe_problems_are_reported_together(item, opened):
    flip(item / "_METADATA", 3)
    flip(item / STRIPE, frame_at(opened, 1) + 45)
    assert [problem.file for problem in ogds.verify(item)] == ["_METADATA", STRIPE]


def test_missing_sidecar_is_a_problem(item):
    (item / "_METADATA").unlink()
    (problem,) = ogds.verify(item)
    assert problem.where == "_METADATA"


@pytest.mark.parametrize("at", [0, 12, 40, -1])
def test_damaged_manifest_is_a_problem(item, at):
    data = (item / "manifest.json").read_bytes()
    flip(item / "manifest.json", at % len(data))
    (problem,) = ogds.verify(item)
    assert problem.where == "manifest.json"
    assert "CRC32C" in problem.what


def test_unreadable_page_hits_only_the_chunks_on_it(item, opened, monkeypatch):
    bad = frame_at(opened, 17)

    class BadSector(Fault):
        def run(self, operation, call, shorter):
            verb, _, *numbers = operation.split()
            if verb == "read":
                begin, n_bytes = map(int, numbers)
                if begin <= bad < begin + n_bytes:
                    raise OSError(errno.EIO, "Input/output error")
            return call()

    monkeypatch.setattr(
        verifying,
        "open_driver",
        lambda name, directory: FaultyDriver(open_driver(name, directory), BadSector(None)),
    )
    problems = ogds.verify(item)
    assert 17 in {problem.chunk for problem in problems}
    # A read begins at a page, so the chunks that share this one are lost with it.
    assert all(abs(problem.offset - bad) < 2 * 4096 for problem in problems)
    assert all("EIO" in p.what or "Input/output" in p.what for p in problems)


def resealed(path: Path, *, head=None, frame=None, footer=None) -> None:
    """Change a stripe and make its checksums, and the manifest's, right again.

    Args:
        path: the item.
        head: changes of the header, offset → bytes.
        frame: changes of the first frame and its index record: codec, dtype and flags.
        footer: changes of the footer, offset → bytes.
    """
    data = bytearray((path / STRIPE).read_bytes())
    opened = stripes.decode_footer(bytes(data[-64:]), "here")
    frames_at = stripes.decode_header(bytes(data[:64]), "here").frames_at
    if frame is not None:
        data[frames_at + 4 : frames_at + 8] = frame
        data[frames_at + 28 : frames_at + 32] = crc(data[frames_at : frames_at + 28])
        data[opened.index_at + 24 : opened.index_at + 28] = frame
    index = data[opened.index_at : -64]
    data[-52:-48] = crc(index)
    for at, value in (head or {}).items():
        data[at : at + len(value)] = value
    for at, value in (footer or {}).items():
        data[len(data) - 64 + at : len(data) - 64 + at + len(value)] = value
    data[60:64] = crc(data[:60])
    data[-12:-8] = crc(data[-64:-12])
    (path / STRIPE).write_bytes(data)
    fields = json.loads((path / "manifest.json").read_bytes())
    del fields["crc32c"]
    fields["stripes"][0]["index_crc32c"] = manifests.crc_text(bytes(index))
    body = json.dumps(fields)[1:].encode()
    (path / "manifest.json").write_bytes(
        b'{"crc32c":"%s",' % manifests.crc_text(body).encode() + body
    )


def crc(data: bytes) -> bytes:
    return int(manifests.crc_text(bytes(data)), 16).to_bytes(4, "little")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"head": {40: b"\xff\xff\xff\xff"}}, "4294967295 chunks would exceed the file"),
        ({"head": {32: b"\xff" * 8}}, "layout would end"),
        ({"head": {32: (2**62).to_bytes(8, "little")}}, "layout would end"),
        ({"footer": {0: b"\xff" * 8}}, "the footer ends a file of"),
        ({"footer": {8: b"\xff" * 4}}, "the footer ends a file of"),
        ({"footer": {0: bytes(8)}}, "the footer ends a file of"),
    ],
)
def test_lengths_that_lie_under_a_right_checksum_are_problems(item, change, text):
    resealed(item, **change)
    assert any(text in problem.what for problem in ogds.verify(item))
    with pytest.raises(Corrupt):
        ogds.restore(item)


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (b"\x07\x09\0\0", "unknown codec"),
        (b"\0\xc8\0\0", "unknown dtype"),
        (b"\0\x09\x04\0", "unknown frame flag"),
    ],
)
def test_what_a_newer_version_wrote_is_unsupported(item, frame, text):
    resealed(item, frame=frame)
    with pytest.raises(Unsupported, match=f"{text}.*update orbax_gds"):
        ogds.restore(item)
    (problem,) = ogds.verify(item)
    assert problem.chunk == 0
    assert f"{text}. A newer version may have written it: update orbax_gds" in problem.what


@pytest.mark.slow
def test_many_damaged_frames_take_no_quadratic_time(tmp_path):
    ogds.save(
        tmp_path / "item",
        {str(i): np.full(5000, i % 250, np.uint8) for i in range(4000)},
        options=ogds.Options(chunk_bytes=4096, derive=False),
    )
    path = tmp_path / "item" / STRIPE
    with Item(tmp_path / "item") as opened:
        starts = opened.stripes[0].records["offset"].tolist()
    flip(path, *(at + 40 for at in starts))
    begin = time.process_time()
    problems = ogds.verify(tmp_path / "item")
    assert time.process_time() - begin < 5
    assert [problem.chunk for problem in problems] == list(range(len(starts)))
    assert problems[4321].leaves == (sorted(map(str, range(4000)))[4321 // 2],)


def test_where_a_layout_is_lost_the_leaves_in_other_stripes_are_not_blamed(item):
    fields = json.loads((item / "manifest.json").read_bytes())
    del fields["crc32c"]
    fields["leaves"].append({"path": [["k", "far"]], "type": "int", "dtype": "int64", "shape": []})
    fields["stripes"].append(fields["stripes"][0] | {"file": "p00001.ogds", "bytes": 1})
    body = json.dumps(fields)[1:].encode()
    (item / "manifest.json").write_bytes(
        b'{"crc32c":"%s",' % manifests.crc_text(body).encode() + body
    )
    missing, lost = ogds.verify(item)
    assert (missing.file, missing.leaves) == ("p00001.ogds", ())
    assert (lost.file, lost.leaves) == ("p00001.ogds", ("far",))
    assert "layout" in lost.what


@pytest.mark.parametrize("damage", ["missing", "short", "flipped"])
def test_a_sidecar_that_is_not_as_it_was_written_is_refused_by_restore(item, damage):
    data = (item / "_METADATA").read_bytes()
    (item / "_METADATA").unlink()
    if damage != "missing":
        kept = data[:-1] if damage == "short" else b" " + data[1:]
        (item / "_METADATA").write_bytes(kept)
    with pytest.raises(Corrupt, match=r"_METADATA.*[Rr]estore another"):
        ogds.restore(item)
    (problem,) = ogds.verify(item)
    assert problem.file == "_METADATA"


def test_no_item_is_not_found(tmp_path):
    with pytest.raises(NotFound, match=r"no manifest.json"):
        ogds.verify(tmp_path)


def test_newer_format_is_unsupported(item):
    path = item / "manifest.json"
    body = path.read_bytes()[21:].replace(b'"format":1', b'"format":9', 1)
    path.write_bytes(b'{"crc32c":"%s",' % manifests.crc_text(body).encode() + body)
    with pytest.raises(Unsupported, match="format 9"):
        ogds.verify(item)


def test_large_chunks_are_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("orbax_gds.read_ranges.READ_BYTES", 4096)
    ogds.save(tmp_path / "item", {"x": np.arange(100_000), "empty": np.zeros((0, 3))})
    assert ogds.verify(tmp_path / "item") == []


def test_item_without_words_is_sound(tmp_path):
    ogds.save(tmp_path / "item", {"nothing": None, "empty": {}})
    assert ogds.verify(tmp_path / "item") == []


def test_check_survives_any_bytes_in_a_stripe(item, opened):
    rng = np.random.default_rng(3)
    spec = opened.manifest.stripes[0]
    original = (item / STRIPE).read_bytes()
    for _ in range(15):
        data = bytearray(original)
        begin = int(rng.integers(len(data)))
        noise = rng.integers(0, 256, int(rng.integers(1, 3000)), np.uint8).tobytes()
        data[begin : begin + len(noise)] = noise
        (item / STRIPE).write_bytes(data)
        with open_driver("buffered", item).open(item / STRIPE, "r") as file:
            found = StripeCheck(item / STRIPE, file, spec, opened.dtypes, 1).run(lambda done: None)
        assert found.findings
        with pytest.raises(OgdsError):
            ogds.restore(item)
