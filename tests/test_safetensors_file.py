"""Files of safetensors: what is malformed is refused, and what lies in the way stays."""

import errno
import json
import os

import numpy as np
import pytest
import safetensors
from safetensors.numpy import load as load_by_library

from orbax_gds.dtypes import dtype_of
from orbax_gds.errors import Corrupt, Exists, Unsupported
from orbax_gds.exchange import from_safetensors
from orbax_gds.safetensors_file import (
    Tensor,
    read_metadata,
    safetensors_arrays,
    write_safetensors,
)

TENSOR = Tensor(name="a", dtype=dtype_of(np.uint8), shape=(2,))
WORDS = [[np.array([1, 2], np.uint8)]]


def entry(begin, end, **changes):
    fields = {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}
    return fields | changes


def coded(header, n_bytes):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(n_bytes)


BOTH = tuple(json.dumps(entry(at, at + 1)).encode() for at in range(2))


@pytest.mark.parametrize(
    ("header", "n_bytes", "what"),
    [
        (b'{"a":' + b"[" * 100_000, 0, "RecursionError"),
        (b'{"a":%s,"a":%s}' % BOTH, 2, "'a' is given twice"),
        ({"a": entry(0, 2), "b": entry(1, 3)}, 3, "'b' lies in bytes 1 to 3.*ends at 2"),
        ({"a": entry(0, 1), "b": entry(2, 3)}, 3, "'b' lies in bytes 2 to 3.*ends at 1"),
        ({"a": entry(1, 2)}, 2, "'a' lies in bytes 1 to 2.*ends at 0"),
        ({"a": entry(0, 3)}, 2, "'a' lies in bytes 0 to 3 of 2"),
        ({"a": entry(0, 1)}, 3, "end at byte 1 of 3"),
        ({"a": entry(0, 2, shape=[1])}, 2, "takes 1"),
        ({"__metadata__": {"orbax_gds": 3}}, 0, "not of texts"),
        ({"__metadata__": [3]}, 0, "AttributeError"),
        ({"\ud800": entry(0, 1)}, 1, "UnicodeEncodeError"),
    ],
)
def test_what_is_malformed_is_refused_as_by_the_library(tmp_path, header, n_bytes, what):
    path = tmp_path / "x.safetensors"
    path.write_bytes(coded(header, n_bytes))
    with pytest.raises(Corrupt, match=what):
        list(safetensors_arrays(path))
    with pytest.raises(Corrupt, match=what):
        from_safetensors(path, tmp_path / "out")
    assert os.listdir(tmp_path) == ["x.safetensors"]
    with pytest.raises(safetensors.SafetensorError):
        load_by_library(path.read_bytes())


@pytest.mark.parametrize("shape", [[1] * 65, [0, 1 << 63], [0, 1 << 62, 1 << 62]])
def test_shapes_that_no_array_has_are_named(tmp_path, shape):
    path = tmp_path / "x.safetensors"
    n_bytes = int(0 not in shape)
    path.write_bytes(coded({"a": entry(0, n_bytes, shape=shape)}, n_bytes))
    with pytest.raises(Unsupported, match="'a': NumPy has no arrays of this shape"):
        from_safetensors(path, tmp_path / "out")
    assert os.listdir(tmp_path) == ["x.safetensors"]


def no_links(*args, **kwargs):
    raise OSError(errno.EPERM, "Operation not permitted")


def test_without_hard_links_a_file_gets_its_name_too(tmp_path, monkeypatch):
    monkeypatch.setattr("os.link", no_links)
    path = tmp_path / "x.safetensors"
    write_safetensors(path, [TENSOR], WORDS, {"k": "v"})
    assert os.listdir(tmp_path) == [path.name]
    assert [(name, array.tolist()) for name, array in safetensors_arrays(path)] == [("a", [1, 2])]
    assert read_metadata(path) == {"k": "v"}


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_appears_meanwhile_stays(tmp_path, monkeypatch, links):
    if not links:
        monkeypatch.setattr("os.link", no_links)
    path = tmp_path / "x.safetensors"

    def words():
        path.write_text("mine")
        yield from WORDS

    with pytest.raises(Exists, match="has appeared meanwhile"):
        write_safetensors(path, [TENSOR], words(), {})
    assert path.read_text() == "mine"
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("call", ["link", "rename"])
def test_where_a_name_cannot_be_given_nothing_is_left(tmp_path, monkeypatch, call):
    def refused(*args, **kwargs):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("os.link", no_links)
    monkeypatch.setattr(f"os.{call}", refused)
    with pytest.raises(OSError, match="Input/output"):
        write_safetensors(tmp_path / "x.safetensors", [TENSOR], WORDS, {})
    assert os.listdir(tmp_path) == []
