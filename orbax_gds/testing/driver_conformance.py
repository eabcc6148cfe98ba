"""The laws of `drivers.Driver`, as a class of tests for a driver to subclass."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from orbax_gds.drivers import Driver, File
from orbax_gds.errors import NotFound, Truncated
from orbax_gds.staging import aligned_empty

UNIT = 4096  # the engine writes at multiples of this, whatever smaller alignment a file has


def pattern(n_bytes: int, seed: int = 0) -> np.ndarray:
    """Return 4096-aligned bytes in which no two places look alike: uint8[n_bytes]."""
    out = aligned_empty(n_bytes)
    out[:] = np.random.default_rng(seed).integers(0, 256, n_bytes, np.uint8)
    return out


def write_file(driver: Driver, path: Path, content: np.ndarray) -> None:
    """Write the content as the engine does, padded to whole units and then cut by the sync."""
    padded = aligned_empty(-(-content.nbytes // UNIT) * UNIT)
    padded[: content.nbytes] = content
    with driver.open(path, "w") as file:
        file.write(0, padded)
        file.sync(content.nbytes)


class DriverConformance:
    """Subclass it, give it fixtures `driver` and `carried`, and add nothing else."""

    @pytest.fixture
    def driver(self) -> Driver:
        raise NotImplementedError("return the driver under test")

    @pytest.fixture
    def carried(self) -> str:
        raise NotImplementedError("return what `File.carried` must say")

    def test_file_says_which_path_carried_it(self, driver, carried, tmp_path):
        with driver.open(tmp_path / "f", "w") as file:
            file.write(0, pattern(UNIT))
            assert file.carried == carried
            assert UNIT % file.alignment == 0

    @pytest.mark.parametrize("n_bytes", [0, 1, UNIT - 1, UNIT, UNIT + 1, 3 * UNIT + 777])
    def test_sync_leaves_exactly_the_bytes_written(self, driver, tmp_path, n_bytes):
        content = pattern(n_bytes)
        write_file(driver, tmp_path / "f", content)
        with driver.open(tmp_path / "f", "r") as file:
            assert file.n_bytes() == n_bytes
            assert read(file, 0, n_bytes) == content.tobytes()

    def test_sync_extends_with_zeros(self, driver, tmp_path):
        with driver.open(tmp_path / "f", "w") as file:
            file.sync(UNIT + 5)
        with driver.open(tmp_path / "f", "r") as file:
            assert read(file, 0, UNIT + 5) == bytes(UNIT + 5)

    @pytest.mark.parametrize(
        ("offset", "n_bytes"),
        [(0, UNIT), (UNIT, 2 * UNIT), (0, 1), (1, UNIT), (UNIT - 1, 2), (511, 513), (5000, 6000)],
    )
    def test_read_needs_no_alignment(self, driver, tmp_path, offset, n_bytes):
        content = pattern(3 * UNIT + 100)
        write_file(driver, tmp_path / "f", content)
        for shift in (0, 1, 64, 512):
            guarded = aligned_empty(n_bytes + shift + 1)
            guarded[:] = 0xA5
            with driver.open(tmp_path / "f", "r") as file:
                file.read(offset, guarded[shift : shift + n_bytes])
            assert np.array_equal(guarded[shift:-1], content[offset : offset + n_bytes]), shift
            assert guarded[-1] == 0xA5, shift
            assert np.all(guarded[:shift] == 0xA5), shift

    def test_long_unaligned_read_to_the_end_keeps_its_path(self, driver, carried, tmp_path):
        content = pattern((2 << 20) + 4321)
        write_file(driver, tmp_path / "f", content)
        with driver.open(tmp_path / "f", "r") as file:
            assert read(file, 7, content.nbytes - 7) == content[7:].tobytes()
            assert file.carried == carried

    @pytest.mark.parametrize(("offset", "n_bytes"), [(0, UNIT + 11), (UNIT, UNIT), (9999, 1)])
    def test_read_past_the_end_is_refused(self, driver, carried, tmp_path, offset, n_bytes):
        write_file(driver, tmp_path / "f", pattern(UNIT + 10))
        with driver.open(tmp_path / "f", "r") as file:
            with pytest.raises(Truncated, match=f"ends at byte {UNIT + 10}, but bytes {offset} to"):
                file.read(offset, aligned_empty(n_bytes))
            assert file.carried == carried

    def test_read_up_to_the_end_is_allowed(self, driver, tmp_path):
        content = pattern(UNIT + 10)
        write_file(driver, tmp_path / "f", content)
        with driver.open(tmp_path / "f", "r") as file:
            assert read(file, UNIT + 9, 1) == content[-1:].tobytes()
            assert read(file, UNIT + 10, 0) == b""

    def test_writing_again_empties_the_file(self, driver, tmp_path):
        write_file(driver, tmp_path / "f", pattern(2 * UNIT))
        write_file(driver, tmp_path / "f", pattern(10, seed=1))
        with driver.open(tmp_path / "f", "r") as file:
            assert file.n_bytes() == 10

    def test_threads_write_and_read_disjoint_ranges(self, driver, tmp_path):
        pieces = [pattern(4 * UNIT, seed) for seed in range(16)]
        with driver.open(tmp_path / "f", "w") as file, ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda k: file.write(k * 4 * UNIT, pieces[k]), reversed(range(16))))
            file.sync(16 * 4 * UNIT)
        with driver.open(tmp_path / "f", "r") as file, ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda k: read(file, k * 4 * UNIT, 4 * UNIT), range(16)))
        assert found == [piece.tobytes() for piece in pieces]

    def test_missing_file_is_not_found(self, driver, tmp_path):
        with pytest.raises(NotFound, match="missing"):
            driver.open(tmp_path / "missing", "r")

    def test_close_may_be_repeated(self, driver, tmp_path):
        file = driver.open(tmp_path / "f", "w")
        file.close()
        file.close()

    def test_paths_may_be_text(self, driver, tmp_path):
        with driver.open(os.fspath(tmp_path / "f"), "w") as file:
            file.sync(3)
        with driver.open(tmp_path / "f", "r") as file:
            assert file.n_bytes() == 3


def read(file: File, offset: int, n_bytes: int) -> bytes:
    """Return bytes read into aligned memory."""
    out = aligned_empty(n_bytes)
    file.read(offset, out)
    return out.tobytes()
