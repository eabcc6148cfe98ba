"""`diff`: every changed word is counted, and its distance is that of FORMAT §7.11."""

import json
import os
import shutil

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner
from delta_items import drifting, follow, steps_of
from hypothesis import given, settings
from hypothesis import strategies as st

import orbax_gds as ogds
from orbax_gds import comparing
from orbax_gds.cli import main
from orbax_gds.codecs.reference_delta import differences
from orbax_gds.comparing import compare
from orbax_gds.dtypes import DTYPES, words_of
from orbax_gds.plan import ShardBox
from orbax_gds.windows import split

RNG = np.random.default_rng(11)


def run(*arguments):
    return CliRunner().invoke(main, [os.fspath(argument) for argument in arguments])


def any_words(dtype, n):
    words = RNG.integers(0, 1 << dtype.bits, n, np.uint64, endpoint=False) if n else np.empty(0)
    return words.astype(dtype.word_dtype)


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(DTYPES), st.integers(0, 40)), min_size=1), st.data())
def test_words_are_counted_and_measured_for_every_dtype(tmp_path_factory, leaves, data):
    root = tmp_path_factory.mktemp("any")
    a, b, expected = {}, {}, {}
    for i, (dtype, n) in enumerate(leaves):
        dtype_words = [any_words(dtype, n * dtype.words_per_element) for _ in range(2)]
        kept = RNG.random(len(dtype_words[0])) < data.draw(st.sampled_from([0.0, 0.5, 1.0]))
        if dtype.name == "bool":
            dtype_words = [words & 1 for words in dtype_words]
        dtype_words[1][kept] = dtype_words[0][kept]
        name = f"l{i}"
        a[name], b[name] = (dtype.elements(words, (n,)) for words in dtype_words)
        expected[name] = distances(*dtype_words, dtype)
    ogds.save(root / "a", a)
    ogds.save(root / "b", b)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparing, "_WINDOW_BYTES", 64)
        found = compare(root / "a", root / "b")
    assert [leaf.name for leaf in found.leaves] == sorted(expected)
    for leaf in found.leaves:
        apart = expected[leaf.name]
        assert (leaf.n_words, leaf.n_changed) == (len(apart), sum(d > 0 for d in apart))
        assert leaf.largest == max(apart, default=0)
        assert leaf.mean == pytest.approx(sum(apart) / max(1, leaf.n_changed))
        assert leaf.what == ("words" if any(apart) else "equal")


def distances(a, b, dtype):
    """How far apart words are: of numbers the difference, of floats that of t in FORMAT §7.11."""
    if dtype.split is None:
        kind = dtype.numpy_dtype
        pairs = (words.view(kind).astype(object) for words in (a, b))
        return [abs(int(x) - int(y)) for x, y in zip(*pairs, strict=True)]
    bits, signed = dtype.bits, dtype.split != "e8m0"

    def value(word):
        low = (1 << (bits - 1)) - 1
        return -1 - (word & low) if signed and word > low else word

    return [abs(value(int(x)) - value(int(y))) for x, y in zip(a, b, strict=True)]


def test_distances_are_those_that_deltas_code():
    for dtype in (d for d in DTYPES if d.split == "bf16"):
        a, b = any_words(dtype, 500), any_words(dtype, 500)
        z = differences(a, b, dtype).astype(np.int64)
        near = np.array(distances(a, b, dtype)) < 1 << (dtype.bits - 1)
        coded = np.where(z & 1, (z + 1) // 2, z // 2)
        assert (coded == distances(a, b, dtype))[near].all()
        assert near.sum() > 100


def state():
    return {
        "w": np.arange(90_000, dtype=np.float32).reshape(300, 300),
        "b": np.arange(9, dtype=ml_dtypes.bfloat16),
        "n": [3, None, "text"],
    }


def test_equal_items_exit_with_0_and_print_no_data(tmp_path):
    ogds.save(tmp_path / "a", state())
    ogds.save(tmp_path / "b", state(), options=ogds.Options(codec="max", chunk_bytes=1 << 14))
    done = run("diff", tmp_path / "a", tmp_path / "b")
    assert (done.exit_code, done.stdout) == (0, "")
    assert "0 of 5 leaves differ" in done.stderr
    assert json.loads(run("diff", tmp_path / "a", tmp_path / "b", "--json").stdout)["equal"]


def test_what_differs_is_listed_with_its_kind(tmp_path):
    one, other = state(), state()
    other["w"][7, 5] = np.nextafter(other["w"][7, 5], np.float32(9e9))
    other["w"][8, :2] += 1
    other["b"] = other["b"].astype(np.float32)
    other["n"][2] = "other"
    one["only_a"], other["only_b"] = 1, {"x": 2.0}
    ogds.save(tmp_path / "a" / "1" / "default", one)
    ogds.save(tmp_path / "b" / "default", other)
    done = run("diff", tmp_path / "a", tmp_path / "b")
    assert done.exit_code == 1
    lines = {line.split()[0]: line for line in done.stdout.splitlines() if line.strip()}
    assert "3 of 90,000" in lines["w"]
    assert "ULP" in lines["w"]
    assert "dtype" in lines["b"]
    assert "bfloat16[9]" in lines["b"]
    assert "float32[9]" in lines["b"]
    assert "shape" in lines["n/2"]
    assert "only in A" in lines["only_a"]
    assert "only in B" in lines["only_b/x"]
    assert "n/0" not in lines
    found = json.loads(run("diff", tmp_path / "a", tmp_path / "b", "--json").stdout)
    assert not found["equal"]
    by_name = {leaf["name"]: leaf for leaf in found["leaves"]}
    ulp = int(np.float32(2402).view(np.uint32)) - int(np.float32(2401).view(np.uint32))
    assert by_name["w"]["largest"] == ulp
    assert by_name["w"]["mean"] == pytest.approx((1 + 2 * ulp) / 3)
    assert by_name["n/0"]["what"] == "equal"
    assert run("diff", tmp_path / "a", tmp_path / "b", "--top", "1").stdout.count("only") == 0


def test_a_share_is_0_or_100_percent_only_where_it_is_exactly_that(tmp_path):
    n = 300_000
    one, other = (np.zeros(n, np.uint8), np.ones(n, np.uint8))
    few, most = one.copy(), other.copy()
    few[7], most[7] = 1, 0
    ogds.save(tmp_path / "a", {"all": one, "few": one, "most": one})
    ogds.save(tmp_path / "b", {"all": other, "few": few, "most": most})
    lines = run("diff", tmp_path / "a", tmp_path / "b").stdout.splitlines()
    shares = {line.split()[0]: line for line in lines if f"of {n:,}" in line}
    assert " 100% " in shares["all"]
    assert " < 0.001% " in shares["few"]
    assert " > 99.999% " in shares["most"]


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, None, 0),
    ],
)
def test_custom_metadata_is_compared(tmp_path, one, other, equal):
    for name, custom_metadata in (("a", one), ("b", other)):
        ogds.save(tmp_path / name, {"w": np.ones(3)}, custom_metadata=custom_metadata)
    done = run("diff", tmp_path / "a", tmp_path / "b")
    assert done.exit_code == (0 if equal else 1)
    assert ("custom metadata differs" in done.stdout) == (not equal)
    found = json.loads(run("diff", tmp_path / "a", tmp_path / "b", "--json").stdout)
    assert found["custom_metadata_equal"] == found["equal"] == bool(equal)


def test_keys_of_other_kinds_but_the_same_text_are_pairs(tmp_path):
    ogds.save(tmp_path / "a", {"x": [np.ones(3), np.ones(2)]})
    ogds.save(tmp_path / "b", {"x": {"0": np.ones(3), "1": np.zeros(2)}})
    found = compare(tmp_path / "a", tmp_path / "b")
    assert [(leaf.name, leaf.what) for leaf in found.leaves] == [("x/0", "equal"), ("x/1", "words")]


def test_steps_of_a_chain_are_compared_through_it(tmp_path, monkeypatch):
    tree = {"w": np.arange(30_000, dtype=np.uint16).view(np.float16), "still": np.ones((50, 70))}
    states = drifting(tree, 3)
    items = steps_of(tmp_path, 3)
    for item, each in zip(items, states, strict=True):
        ogds.save(item, each, options=ogds.Options(chunk_bytes=1 << 13))
    follow(items)
    monkeypatch.setattr(comparing, "_WINDOW_BYTES", 1 << 15)
    shutil.rmtree(items[0])
    found = {leaf.name: leaf for leaf in compare(items[1], items[2]).leaves}
    changed = words_of(states[1]["w"]) != words_of(states[2]["w"])
    assert found["w"].n_changed == changed.sum() > 0
    assert found["still"].what == "equal"


def test_each_frame_is_read_once_where_layouts_agree(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    tree = {f"b{i}": rng.random(20) for i in range(9)} | {"w": rng.random((200, 1000))}
    for name in "ab":
        ogds.save(tmp_path / name, tree, options=ogds.Options(codec="off", chunk_bytes=1 << 14))
    monkeypatch.setattr(comparing, "_WINDOW_BYTES", 1 << 18)
    opened = []
    make = comparing.Item

    def kept(*arguments, **options):
        opened.append(make(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(comparing, "Item", kept)
    compare(tmp_path / "a", tmp_path / "b")
    stored = sum(leaf.nbytes for leaf in tree.values())
    assert all(stored <= item.bytes_read < 1.1 * stored for item in opened)


def test_parts_of_a_shard_begin_where_its_chunks_do():
    box = ShardBox(leaf=0, start=(0, 0), extent=(10, 4))
    starts = [part.start[0] for part in split(box, 15, step=2)]
    assert starts == [0, 2, 4, 6, 8]
    assert [part.start[0] for part in split(box, 15, step=5)] == [0, 3, 6, 9]  # none fits


def test_what_cannot_be_read_exits_with_2(tmp_path):
    ogds.save(tmp_path / "a", state())
    assert run("diff", tmp_path / "a", tmp_path / "gone").exit_code == 2
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    path = tmp_path / "b" / "p00000.ogds"
    data = bytearray(path.read_bytes())
    data[4096 + 40] ^= 1
    path.write_bytes(data)
    done = run("diff", tmp_path / "a", tmp_path / "b")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "p00000.ogds" in done.stderr
