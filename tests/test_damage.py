"""Whatever is changed on disk is refused, and named."""

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from trees import assert_same, files_of, small_tree

import orbax_gds as ogds
from orbax_gds.errors import (
    Corrupt,
    OgdsError,
)

REPORT_SUFFIX = ".report.json"  # FORMAT §3.4: no reader needs it, so that its damage is no problem


def _damaged(item: Path, name: str, data: bytes):
    (item / name).write_bytes(data)
    with pytest.raises(OgdsError) as raised:
        ogds.restore(item)
    assert str(item) in str(raised.value)
    assert ogds.verify(item)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    item = tmp_path_factory.mktemp("pristine") / "item"
    ogds.save(item, small_tree())
    files = files_of(item)
    return {name: data for name, data in files.items() if not name.endswith(REPORT_SUFFIX)}


@pytest.fixture
def copy(tmp_path, pristine):
    for name, data in pristine.items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


@pytest.mark.slow
def test_flipped_bits_are_refused_by_restore_and_verify(copy, pristine):
    rng = np.random.default_rng(0)
    for name, data in pristine.items():
        for at in rng.choice(len(data), min(50, len(data)), replace=False).tolist():
            flipped = bytearray(data)
            flipped[at] ^= 1 << int(rng.integers(8))
            _damaged(copy, name, bytes(flipped))
        (copy / name).write_bytes(data)
    assert_same(ogds.restore(copy), small_tree())


@pytest.fixture
def quick_copy(pristine):
    """The same where no read waits for a disk."""
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=memory) as directory:
        for name, data in pristine.items():
            Path(directory, name).write_bytes(data)
        yield Path(directory)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(4))  # for as many processes
def test_every_flipped_byte_and_every_truncation_is_refused(quick_copy, pristine, first):
    for name, data in pristine.items():
        for at in range(first, len(data), 4):
            flipped = bytearray(data)
            flipped[at] ^= 1 << at % 8
            _damaged(quick_copy, name, bytes(flipped))
            _damaged(quick_copy, name, data[:at])
        (quick_copy / name).write_bytes(data)


def test_zeroed_blocks_are_refused(copy, pristine):
    for name, data in pristine.items():
        for at in range(0, len(data), 4096):
            if any(data[at : at + 4096]):
                _damaged(
                    copy, name, data[:at] + bytes(len(data[at : at + 4096])) + data[at + 4096 :]
                )
        (copy / name).write_bytes(data)


def test_truncated_and_lengthened_files_are_refused(copy, pristine):
    for name, data in pristine.items():
        for n in {0, 1, 63, 64, 4095, 4096, len(data) // 2, len(data) - 65, len(data) - 1}:
            if 0 <= n < len(data):
                _damaged(copy, name, data[:n])
        _damaged(copy, name, data + b"\0")
        (copy / name).unlink()
        with pytest.raises(OgdsError):
            ogds.restore(copy)
        (copy / name).write_bytes(data)


def test_swapped_files_are_refused(copy, pristine, tmp_path_factory):
    other = tmp_path_factory.mktemp("other") / "item"
    ogds.save(other, small_tree())
    _damaged(copy, "p00000.ogds", (other / "p00000.ogds").read_bytes())
    (copy / "p00000.ogds").write_bytes(pristine["manifest.json"])
    _damaged(copy, "manifest.json", pristine["p00000.ogds"])


def test_damage_names_the_leaf_it_hits(tmp_path):
    rng = np.random.default_rng(0)
    tree = {name: rng.integers(0, 1 << 62, 90_000) for name in ("first", "second")}
    ogds.save(tmp_path / "item", tree)
    path = tmp_path / "item" / "p00000.ogds"
    data = bytearray(path.read_bytes())
    data[-70_000] ^= 1
    path.write_bytes(data)
    with pytest.raises(Corrupt, match=r"p00000.ogds: chunk \d+ at byte \d+, of leaf 'second'"):
        ogds.restore(tmp_path / "item")
    ogds.restore(tmp_path / "item", leaves=["first"])
