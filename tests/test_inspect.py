"""What inspect says of an item is what its files hold."""

import itertools
import json

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings

import orbax_gds as ogds
from orbax_gds import _native
from orbax_gds.cli import main
from orbax_gds.codecs import CODECS
from orbax_gds.errors import Corrupt
from orbax_gds.item import Item
from orbax_gds.sampling import PLANES, plane_bits, sample_frames
from orbax_gds.testing import chunks

RNG = np.random.default_rng(0)
WEIGHTS = (RNG.standard_normal((700, 300)) * 0.02).astype(ml_dtypes.bfloat16)
TREE = {
    "params": {"w": WEIGHTS, "bias": WEIGHTS[0].copy(), "scale": WEIGHTS[1].copy()},
    "moments": RNG.standard_normal((64, 1000)).astype(np.float32) ** 2,
    "ids": RNG.integers(0, 1 << 31, 50_000).astype(np.int32),
    "mask": np.zeros(90_000, np.bool_),
    "key": np.arange(3, dtype=np.uint32),
    "nothing": None,
    "empty": np.zeros((0, 3), np.float32),
}


@pytest.fixture(scope="module")
def item(tmp_path_factory):
    path = tmp_path_factory.mktemp("item") / "7" / "state"
    ogds.save(path, TREE, options=ogds.Options(chunk_bytes="64KiB"))
    return path


@pytest.fixture(scope="module")
def report(item):
    return ogds.inspect(item, sample_bytes=None)


def invoke(*arguments):
    return CliRunner().invoke(main, ["inspect", *map(str, arguments)])


@settings(max_examples=20)
@given(chunk=chunks())
def test_planes_share_every_bit_of_a_frame_of_every_codec(chunk):
    dtype, words = chunk
    for codec in CODECS:
        if not codec.supports(dtype):
            continue
        bases = (
            [words ^ words.dtype.type(1)] if codec.name == "delta" else [None, words[::-1].copy()]
        )
        for block_map, base in itertools.product((False, True), bases):
            frame = _native.encode_frame(
                words, dtype.id, codec=codec.name, block_map=block_map, base=base
            )
            frame = np.frombuffer(frame, np.uint8)
            bits = plane_bits(_native.frame_info(frame), frame)
            assert bits.min() >= 0
            assert bits.sum() == pytest.approx(8 * frame.size)


def test_planes_of_a_ladder_are_the_fields_of_its_split():
    frame = np.frombuffer(_native.encode_frame(WEIGHTS.view(np.uint16), 16), np.uint8)
    bits = dict(
        zip(PLANES, plane_bits(_native.frame_info(frame), frame) / WEIGHTS.size, strict=True)
    )
    assert (bits["sign"], bits["mantissa"], bits["low"], bits["whole"]) == (1, 7, 0, 0)
    assert 2.5 < bits["exponent"] < 2.8
    assert 0 < bits["side"] < 0.02


def test_planes_of_ans_are_comparable_with_those_of_the_ladder():
    frames = [
        np.frombuffer(_native.encode_frame(WEIGHTS.view(np.uint16), 16, codec=codec), np.uint8)
        for codec in ("ladder", "ans")
    ]
    ladder, ans = (plane_bits(_native.frame_info(f), f) / WEIGHTS.size for f in frames)
    assert ans[PLANES.index("sign")] == 1
    assert ans[PLANES.index("mantissa")] == pytest.approx(7)
    assert ladder[1] - 0.3 < ans[1] < ladder[1]


def test_leaves_dtypes_and_codecs_each_add_up_to_the_item(item, report):
    with Item(item) as opened:
        records = np.concatenate([stripe.records for stripe in opened.stripes])
    assert report.raw_bytes == sum(np.asarray(leaf).nbytes for leaf in _arrays(TREE))
    for parts in (report.leaves, report.dtypes):
        assert sum(part.raw_bytes for part in parts) == report.raw_bytes
        stored = sum(part.stored_bytes for part in parts)
        assert stored == pytest.approx(int(records["frame_bytes"].sum()), abs=len(parts))
    for one in (*report.leaves, *report.dtypes, report):
        assert sum(share.raw_bytes for share in one.codecs) == one.raw_bytes
    by_dtype = sum(share.n_chunks for dtype in report.dtypes for share in dtype.codecs)
    assert by_dtype == sum(share.n_chunks for share in report.codecs) == len(records)
    assert [dtype.n_leaves for dtype in report.dtypes if dtype.dtype == "bfloat16"] == [3]


def test_bits_of_all_frames_are_the_bytes_of_all_frames(report):
    assert report.sample.n_frames == report.sample.of_frames
    assert report.sample.n_bytes == report.sample.of_bytes
    for parts in (report.leaves, report.dtypes):
        bits = sum(p.planes.total * p.planes.n_words for p in parts if p.planes is not None)
        assert bits == pytest.approx(8 * report.sample.of_bytes)
    for leaf in report.leaves:
        if leaf.planes is not None:
            assert leaf.planes.n_words == np.prod(leaf.shape)
            assert leaf.planes.total * leaf.planes.n_words / 8 == pytest.approx(
                leaf.stored_bytes, abs=1
            )


def test_exponents_are_counted_by_dtype_and_for_the_largest_leaves(report):
    (floats,) = (dtype for dtype in report.dtypes if dtype.dtype == "float32")
    exponents = TREE["moments"].view(np.uint32).ravel() >> 23 & 255
    assert floats.exponents == tuple(np.bincount(exponents, minlength=256).tolist())
    by_name = {leaf.name: leaf for leaf in report.leaves}
    bias = by_name["params/bias"]  # lies in a pool with others
    own = TREE["params"]["bias"].view(np.uint16) >> 7 & 255
    assert bias.exponents == tuple(np.bincount(own, minlength=256).tolist())
    assert by_name["ids"].exponents is None


def test_a_sample_reads_no_more_than_was_asked_for_and_spreads_over_the_item(item):
    with Item(item) as opened:
        whole = sample_frames(opened)
        for n_bytes in (1, 60_000, 200_000, 10**9):
            some = sample_frames(opened, n_bytes=n_bytes)
            longest = max(int(stripe.records["frame_bytes"].max()) for stripe in opened.stripes)
            assert 0 < some.n_bytes <= max(n_bytes, longest)
            assert some.n_frames <= whole.n_frames
        assert np.count_nonzero(sample_frames(opened, n_bytes=200_000).leaf_words) >= 3


def test_no_frame_is_read_unless_a_sample_is_asked_for(item):
    report = ogds.inspect(item)
    assert (report.sample.n_frames, report.sample.n_bytes) == (0, 0)
    assert report.sample.of_frames > 10
    assert {leaf.planes for leaf in report.leaves} == {None}


def test_progress_ends_at_what_was_read(item):
    seen = []
    report = ogds.inspect(item, sample_bytes=None, progress=lambda *at: seen.append(at))
    assert seen[-1] == (report.sample.n_bytes, report.sample.n_bytes)
    assert seen == sorted(seen)


def test_a_damaged_frame_in_the_sample_is_named_and_exits_with_1(tmp_path):
    ogds.save(tmp_path / "item", {"w": WEIGHTS})
    path = tmp_path / "item" / "p00000.ogds"
    data = bytearray(path.read_bytes())
    for at, what in ((4096 + 1000, "payload"), (4096 + 9, "header")):
        data[at] ^= 1
        path.write_bytes(data)
        with pytest.raises(Corrupt, match=r"p00000.ogds: chunk 0 at byte 4096: .*verify"):
            ogds.inspect(tmp_path / "item", sample_bytes=None)
        assert invoke(tmp_path / "item").exit_code == 1, what
        assert invoke(tmp_path / "item", "--sample", "0").exit_code == 0
        data[at] ^= 1


def test_json_holds_everything(item, report):
    shown = json.loads(invoke(item, "--json", "--sample", "all").stdout)
    assert shown["ratio"] == pytest.approx(report.ratio)
    assert shown["sample"]["n_frames"] == report.sample.of_frames
    by_name = {leaf["name"]: leaf for leaf in shown["leaves"]}
    leaf = by_name["params/w"]
    assert leaf["ratio"] == pytest.approx(leaf["raw_bytes"] / leaf["stored_bytes"])
    assert set(leaf["planes"]) == {"n_words", *PLANES}
    assert leaf["codecs"][0]["codec"] == "ladder"
    assert sum(leaf["exponents"]) == WEIGHTS.size
    assert by_name["nothing"]["ratio"] is None
    assert {row["dtype"] for row in shown["dtypes"]} == {leaf.dtype for leaf in report.leaves} - {
        None
    }


def test_the_table_lists_the_largest_leaves_on_whole_lines(item):
    lines = invoke(item, "--top", "2").stdout.splitlines()
    assert any("params/w" in line and "bfloat16[700,300]" in line for line in lines)
    assert not any("params/bias" in line for line in lines)
    assert any("more not shown" in line for line in lines)
    assert any(line.startswith("Bits a word: measured in all") for line in lines)
    assert "sign" not in invoke(item, "--sample", "0").stdout


@pytest.mark.parametrize("size", ["much", "-3", "5 parsecs"])
def test_a_sample_that_is_no_size_exits_with_2(item, size):
    assert invoke(item, "--sample", size).exit_code == 2


def _arrays(tree):
    if isinstance(tree, dict):
        return [leaf for value in tree.values() for leaf in _arrays(value)]
    return [] if tree is None else [tree]


def test_what_is_derived_is_named_with_its_source_and_rule(tmp_path):
    master = RNG.standard_normal((200, 300)).astype(np.float32)
    params = master.astype(ml_dtypes.bfloat16)
    ogds.save(tmp_path / "item", {"master": master, "params": params, "tied": master.copy()})
    report = ogds.inspect(tmp_path / "item")
    by_name = {leaf.name: leaf for leaf in report.leaves}
    for name, rule in (("params", "round"), ("tied", "copy")):
        leaf, n_bytes = by_name[name], 2 * master.size if name == "params" else master.nbytes
        (part,) = leaf.derived
        assert (part.source, part.rule, part.raw_bytes) == ("master", rule, n_bytes)
        assert (leaf.raw_bytes, leaf.stored_bytes, leaf.n_shards) == (n_bytes, 0, 1)
    assert by_name["master"].derived == ()
    assert report.raw_bytes == 2 * master.nbytes + params.nbytes
    assert report.stripes[0].n_shards == 3
    for command in ("ls", "inspect"):
        shown = CliRunner().invoke(main, [command, str(tmp_path / "item")]).stdout
        assert "derived from 'master' by round" in shown
        assert "derived from 'master' by copy" in shown
