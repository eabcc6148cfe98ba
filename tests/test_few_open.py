"""However many files an item has, few of them are open at once, and it reads as if all were."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from delta_items import drifting, follow, steps_of

import orbax_gds as ogds
from orbax_gds import item as items
from orbax_gds.drivers import FewOpen, open_driver
from orbax_gds.errors import IoError, NotFound

N_FILES = 14  # of which the process below may open few
LOWERED = """
import resource, sys
from orbax_gds.item import Item
from orbax_gds.verifying import verify
resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12))
with Item(sys.argv[1]) as item:
    assert len(item.stripes[0].chain) == 13
    sys.stdout.buffer.write(item.read_leaf(0).tobytes())
assert verify(sys.argv[1]) == []
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[Path, list[dict[str, np.ndarray]]]:
    """A root with a chain of steps, and what each holds."""
    root = tmp_path_factory.mktemp("root")
    paths = steps_of(root, N_FILES)
    states = drifting({"w": np.arange(600, dtype=np.float32)}, N_FILES)
    for path, state in zip(paths, states, strict=True):
        ogds.save(path, state, options=ogds.Options(chunk_bytes=4096))
    follow(paths)
    return paths[-1], states


def n_open(directory: Path) -> int:
    links = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
    return sum(os.path.lexists(link) and str(directory) in os.readlink(link) for link in links)


@pytest.mark.slow
def test_an_item_of_more_files_than_the_process_may_open_is_restored_and_verified(made):
    item, states = made
    command = [sys.executable, "-c", LOWERED, item]
    got = subprocess.run(command, check=True, capture_output=True).stdout
    assert got == states[-1]["w"].tobytes()


@pytest.mark.parametrize("most", [1, 3, N_FILES])
def test_an_item_keeps_few_files_open_and_restores(made, monkeypatch, most):
    item, states = made
    monkeypatch.setattr(items, "few_open", lambda driver, _: FewOpen(driver, most))
    with items.Item(item) as opened:
        assert n_open(item) == most
        assert opened.read_leaf(0).tobytes() == states[-1]["w"].tobytes()
        assert n_open(item) == most
    assert n_open(item) == 0
    with pytest.raises(IoError, match="closed"):
        opened.read_leaf(0)
    assert n_open(item) == 0


def test_an_ordinary_item_stays_open(made, tmp_path):
    item, states = made
    copy = tmp_path / "item"
    shutil.copytree(item, copy)
    with items.Item(copy) as opened:
        shutil.rmtree(copy)
        assert opened.read_leaf(0).tobytes() == states[-1]["w"].tobytes()


def test_a_file_that_is_gone_when_it_is_opened_again_is_an_error(made, tmp_path, monkeypatch):
    copy = tmp_path / "item"
    shutil.copytree(made[0], copy)
    monkeypatch.setattr(items, "few_open", lambda driver, _: FewOpen(driver, 2))
    with items.Item(copy) as opened:
        shutil.rmtree(copy)
        with pytest.raises(NotFound, match="ogds"):
            opened.read_leaf(0)
    assert n_open(copy) == 0


def test_threads_read_the_same_few_files(tmp_path):
    for number in range(6):
        (tmp_path / str(number)).write_bytes(bytes([number]) * 100)
    files = FewOpen(open_driver("buffered", tmp_path), 2)
    opened = [files.open(tmp_path / str(number), "r") for number in range(6)]

    def read(number: int) -> bool:
        out = np.empty(50, np.uint8)
        opened[number].read(7, out)
        return opened[number].n_bytes() == 100 and bool((out == number).all())

    order = np.random.default_rng(0).integers(0, 6, 400).tolist()
    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(read, order))
    assert files.n_open == n_open(tmp_path) == 2
    for file in opened:
        file.close()
        file.close()
    assert files.n_open == n_open(tmp_path) == 0


def test_a_file_is_opened_again_from_any_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "b").write_bytes(b"b")
    files = FewOpen(open_driver("buffered", "."), 1)
    first, second = files.open("a", "r"), files.open("b", "r")
    monkeypatch.chdir("/")
    out = np.empty(1, np.uint8)
    for file, content in ((first, b"a"), (second, b"b")):
        file.read(0, out)
        assert out.tobytes() == content
        file.close()
