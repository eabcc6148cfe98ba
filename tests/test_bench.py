"""`bench codec`: the user's own arrays, read right and in bounds, and a fair summary."""

import contextlib
import functools
import json

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import orbax_gds as ogds
from orbax_gds import cli
from orbax_gds.bench.coders import BytesCoder, FrameCoder
from orbax_gds.bench.contenders import OURS, Contender
from orbax_gds.bench.lineup import LineUp, Result, measure_streams, total
from orbax_gds.bench.sources import Streams, open_sources, read_streams
from orbax_gds.errors import Corrupt, NotFound, OgdsError, Unsupported
from orbax_gds.safetensors_file import safetensors_arrays

RNG = np.random.default_rng(3)
ARRAYS = {
    "w": (RNG.standard_normal((3000, 500)) * 0.02).astype(ml_dtypes.bfloat16),
    "m": RNG.standard_normal((700, 300)).astype(np.float32),
    "ids": RNG.integers(0, 99, 5000),
    "scalar": np.float32(7.5),
    "empty": np.zeros((0, 4), np.float32),
}
QUICK = (
    Contender(name=OURS, make=lambda arrays, n: FrameCoder(arrays, n_threads=n)),
    Contender(
        name="copy", make=lambda a, n: BytesCoder(a, bytes, bytes), dtypes=frozenset(["float32"])
    ),
    Contender(name="absent", package="no_such_package", make=lambda a, n: FrameCoder(a)),
)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """The same arrays in every kind of place."""
    root = tmp_path_factory.mktemp("places")
    ogds.save(root / "12" / "state", {name: np.asarray(a) for name, a in ARRAYS.items()})
    np.savez(root / "all.npz", **ARRAYS)
    np.save(root / "m.npy", ARRAYS["m"])
    write_safetensors(root / "all.safetensors", ARRAYS)
    return root


def write_safetensors(path, arrays):
    names = {"bfloat16": "BF16", "float32": "F32", "int64": "I64"}
    header, content = {"__metadata__": {"format": "np"}}, b""
    for name, array in arrays.items():
        data = np.asarray(array).tobytes()
        offsets = [len(content), len(content) + len(data)]
        shape = list(np.shape(array))
        dtype = names[np.asarray(array).dtype.name]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        content += data
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content)


def words(streams):
    return {one.dtype: b"".join(a.tobytes() for a in one.arrays) for one in streams}


@pytest.mark.parametrize("place", ["12", "12/state", "all.npz", "all.safetensors"])
def test_every_place_gives_back_the_bits_of_its_arrays(places, place):
    opened, sources, left_out = open_sources(places / place)
    with opened:
        streams = read_streams(sources, limit_bytes=None)
    assert left_out == []
    found = {source.name: (source.dtype, source.shape) for source in sources}
    assert found == {k: (np.asarray(a).dtype.name, np.shape(a)) for k, a in ARRAYS.items()}
    expected = {}
    for name in found:  # in the order of the place
        array = np.asarray(ARRAYS[name])
        expected[array.dtype.name] = expected.get(array.dtype.name, b"") + array.tobytes()
    assert words(streams) == expected
    assert [one.dtype for one in streams] == ["bfloat16", "float32", "int64"]


@pytest.mark.parametrize("limit_bytes", [0, 1 << 20, 2_100_000, 10**9])
def test_a_limit_bounds_what_is_read_and_keeps_whole_rows(places, limit_bytes):
    opened, sources, _ = open_sources(places / "12")
    with opened:
        streams = read_streams(sources, limit_bytes=limit_bytes, dtypes=["bfloat16"])
    (one,) = streams
    assert one.of_bytes == ARRAYS["w"].nbytes
    assert 0 < one.n_bytes <= max(limit_bytes, 1 << 20)
    rows = {row.tobytes() for row in ARRAYS["w"]}
    assert all(row.tobytes() in rows for array in one.arrays for row in array)


def test_words_may_be_taken_for_another_dtype_of_the_same_width(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.arange(6, dtype=np.uint16).reshape(2, 3), b=np.ones(2))
    _, sources, left_out = open_sources(tmp_path / "x.npz", {"uint16": "bfloat16"})
    assert {source.name: source.dtype for source in sources} == {"a": "bfloat16", "b": "float64"}
    _, sources, left_out = open_sources(tmp_path / "x.npz", {"float64": "bfloat16"})
    assert [source.name for source in sources] == ["a"]
    assert left_out == ["b: float64 cannot be viewed as bfloat16: other widths"]


def test_what_has_no_words_is_left_out_by_name(tmp_path):
    np.savez(tmp_path / "x.npz", good=np.ones(3), text=np.array(["a", "bc"]))
    _, sources, left_out = open_sources(tmp_path / "x.npz")
    assert [source.name for source in sources] == ["good"]
    assert [line.partition(":")[0] for line in left_out] == ["text"]


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("a.npz", b"not a zip", Corrupt),
        ("a.npy", b"\x93NUMPY\x01\x00\xff\xff{", Corrupt),
        ("a.safetensors", b"\xff" * 9, Corrupt),
        ("a.safetensors", b"", Corrupt),
        ("a.bin", b"1", Unsupported),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path, name, content, error):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=name):
        open_sources(tmp_path / name)


def test_a_place_that_is_not_there_is_not_found(tmp_path):
    with pytest.raises(NotFound, match="nothing at"):
        open_sources(tmp_path / "gone.npz")


@given(st.binary(max_size=60), st.integers(0, 80))
def test_any_bytes_are_safetensors_or_refused(tmp_path_factory, tail, n):
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    path.write_bytes(n.to_bytes(8, "little") + tail)
    with contextlib.suppress(OgdsError):
        list(safetensors_arrays(path))


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]},
        {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2], "data_offsets": [0]},
        {"dtype": 3, "shape": [2], "data_offsets": [0, 8]},
        {},
        [],
    ],
)
def test_a_tensor_that_does_not_fit_its_file_is_refused(tmp_path, entry):
    text = json.dumps({"a": entry}).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(OgdsError, match=r"x\.safetensors"):
        list(safetensors_arrays(path))


def test_a_tensor_of_an_unknown_dtype_is_left_out_and_the_others_are_read(tmp_path):
    entries = {
        "odd": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]},
        "good": {"dtype": "U8", "shape": [3], "data_offsets": [1, 4]},
    }
    text = json.dumps(entries).encode()
    (tmp_path / "x.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + b"\0abc")
    _, sources, (line,) = open_sources(tmp_path / "x.safetensors")
    assert [source.read(0, 3).tobytes() for source in sources] == [b"abc"]
    assert line.startswith("odd: dtype F4 is none of BOOL, ")


@pytest.mark.parametrize(
    ("held", "view", "wrong"),
    [([0, 15, 7], "int4", False), ([0, 16, 7], "int4", True), ([3, 4], "uint2", True)],
)
def test_words_are_only_taken_for_a_narrower_dtype_if_they_fit(tmp_path, held, view, wrong):
    np.savez(tmp_path / "x.npz", a=np.array(held, np.uint8), empty=np.zeros(0, np.uint8))
    _, sources, left_out = open_sources(tmp_path / "x.npz", {"uint8": view})
    assert [source.name for source in sources] == (["empty"] if wrong else ["a", "empty"])
    assert ["bits above" in line for line in left_out] == [True] * wrong


def results(*figures):
    return [
        Result(name=str(i), ratio=r, encode_gbps=e, decode_gbps=d)
        for i, (r, e, d) in enumerate(figures)
    ]


def line_up(name, of_bytes, *own):
    return LineUp(
        name=name, n_bytes=of_bytes, of_bytes=of_bytes, of_arrays=1, memcpy_gbps=10.0, results=own
    )


FIGURES = st.tuples(*[st.sampled_from([1.0, 1.5, 2.0, 3.0])] * 3)


@given(st.lists(FIGURES, min_size=1, max_size=8))
def test_the_front_is_what_no_other_beats_in_all(figures):
    marked = total([line_up("x", 100, *results(*figures))]).results
    beaten = [
        any(
            all(o >= s for o, s in zip(other, own, strict=True)) and other != own
            for other in figures
        )
        for own in figures
    ]
    assert [not result.on_front for result in marked] == beaten


def test_a_total_weighs_dtypes_by_their_bytes_and_counts_what_is_not_taken_as_it_is():
    a = line_up("a", 300, *results((3.0, 1.0, 2.0)), Result(name="1", skipped="gone"))
    b = line_up("b", 100, Result(name="0", skipped="no b"), Result(name="1", skipped="gone"))
    ours, gone = total([a, b]).results
    assert ours.coded_bytes == 200
    assert ours.ratio == pytest.approx(2)
    assert ours.encode_gbps == pytest.approx(400 / (300 / 1 + 100 / 10))
    assert ours.decode_x_memcpy == pytest.approx((400 / 10) / (300 / 2 + 100 / 10))
    assert ours.raw == ("b",)
    assert gone.skipped == "gone"


def failing(arrays, n_threads):
    def fail(coded):
        raise OverflowError("too large")

    return BytesCoder(arrays, bytes, fail)


def wrong(arrays, n_threads):
    return BytesCoder(arrays, bytes, lambda coded: coded[:-1] + b"?")


def unmade(arrays, n_threads):
    raise ImportError("no libodd.so")


PEER_ERRORS = {
    failing: "OverflowError('too large')",
    wrong: "RuntimeError('the decoded bits differ from the source')",
    unmade: "ImportError('no libodd.so')",
}


@pytest.mark.parametrize("make", PEER_ERRORS)
def test_a_peer_that_fails_is_skipped_with_the_reason_and_we_fail_loudly(make):
    streams = Streams(dtype="int8", arrays=[np.zeros(99, np.int8)], of_arrays=1, of_bytes=99)
    measure = functools.partial(
        measure_streams, streams, repetitions=1, working_set_bytes=0, sweep_bytes=8
    )
    peer = Contender(name="peer", package="numpy", make=make)
    ours, theirs = measure(contenders=(QUICK[0], peer)).results
    assert ours.skipped is None
    assert theirs.skipped == PEER_ERRORS[make]
    with pytest.raises(RuntimeError, match=r"^peer: "):
        measure(contenders=(Contender(name="peer", make=make),))


@pytest.fixture
def quick(monkeypatch):
    """The command with few codecs and no waiting."""
    measure = functools.partial(
        measure_streams, contenders=QUICK, repetitions=1, working_set_bytes=0, sweep_bytes=8
    )
    monkeypatch.setattr(cli, "measure_streams", measure)
    monkeypatch.setattr(cli, "keep_freed_memory", lambda: None)
    return lambda *arguments: CliRunner().invoke(cli.main, ["bench", "codec", *map(str, arguments)])


def test_the_command_measures_each_dtype_and_the_total(quick, places):
    done = quick(places / "all.npz", "--json", "--threads", "2")
    assert done.exit_code == 0
    shown = json.loads(done.stdout)
    assert shown["threads"] == 2
    by_name = {one["name"]: one for one in shown["line_ups"]}
    assert list(by_name) == ["bfloat16", "float32", "int64", "total"]
    ours, copy, absent = by_name["float32"]["results"]
    assert ours["ratio"] == pytest.approx(by_name["float32"]["n_bytes"] / ours["coded_bytes"])
    assert copy["ratio"] == 1
    assert absent["skipped"] == "no_such_package is not installed (extra [bench])"
    assert by_name["bfloat16"]["results"][1]["skipped"] == "copy takes no bfloat16"
    assert by_name["total"]["results"][1]["raw"] == ["bfloat16", "int64"]
    assert by_name["total"]["of_bytes"] == sum(np.asarray(a).nbytes for a in ARRAYS.values())


def test_the_table_names_what_is_missing_and_marks_the_front(quick, places):
    done = quick(places / "12", "--dtype", "float32")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[1].startswith("float32: ")
    (ours,) = (line for line in lines if line.startswith("orbax_gds codec auto"))
    assert ours.split()[-1] == "*"
    assert any(line.startswith("memcpy") for line in lines)
    assert any("absent: no_such_package is not installed" in line for line in lines)


def test_a_dtype_with_next_to_nothing_is_named_and_left_out(quick, tmp_path):
    np.savez(tmp_path / "x.npz", a=np.ones(9, np.float32), b=np.zeros(90_000, np.int8))
    done = quick(tmp_path / "x.npz", "--json")
    assert [one["name"] for one in json.loads(done.stdout)["line_ups"]] == ["int8"]
    assert "left out: float32: 36 B" in done.stderr
    alone = quick(tmp_path / "x.npz", "--json", "--dtype", "float32")
    assert [one["name"] for one in json.loads(alone.stdout)["line_ups"]] == ["float32"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["gone.npz"], 2),
        (["all.npz", "--dtype", "int4"], 2),
        (["all.npz", "--view", "uint16"], 2),
        (["all.npz", "--view", "float32=float3"], 2),
        (["all.npz", "--threads", "0"], 2),
        (["all.npz", "--limit", "much"], 2),
        (["bytes.npy", "--view", "uint8=int4"], 2),
        (["broken.npz"], 1),
    ],
)
def test_wrong_calls_exit_with_2_and_damage_with_1(quick, places, arguments, code):
    (places / "broken.npz").write_bytes(b"PK\x03\x04")
    np.save(places / "bytes.npy", np.arange(256, dtype=np.uint8))
    done = quick(places / arguments[0], *arguments[1:])
    assert (done.exit_code, done.stdout) == (code, "")
    assert "Traceback" not in done.stderr
