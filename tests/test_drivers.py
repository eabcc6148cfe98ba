"""Drivers keep one contract, say which path carried the bytes, and fail loudly."""

import errno
import os
import signal
import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import pytest

from orbax_gds import _native
from orbax_gds.drivers import open_driver, posix, read_together
from orbax_gds.drivers.memory import MemoryDriver
from orbax_gds.drivers.posix import PosixDriver
from orbax_gds.errors import IoError, NotFound, Truncated, Unsupported
from orbax_gds.staging import aligned_empty
from orbax_gds.testing.driver_conformance import (
    UNIT,
    DriverConformance,
    pattern,
    read,
    write_file,
)
from orbax_gds.testing.faults import Fault, FaultyDriver, faulty_system


def refusing(call, number, *, when=lambda flags: True):
    """A system call that fails with an errno; `when` sees its second argument."""

    def refuse(first, second, *rest, **options):
        if when(second):
            raise OSError(number, os.strerror(number))
        return call(first, second, *rest, **options)

    return refuse


def refused_while_direct(call, number):
    """A positioned read or write that fails only while its descriptor is in direct mode."""

    def refuse(descriptor, data, offset):
        if posix.fcntl.fcntl(descriptor, posix.fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(number, os.strerror(number))
        return call(descriptor, data, offset)

    return refuse


@pytest.fixture
def accepts_direct(monkeypatch):
    """Let a file system that is known to refuse direct I/O be tried all the same."""
    monkeypatch.setattr(posix, "direct_refusal", lambda directory: None)


class TestAuto(DriverConformance):
    @pytest.fixture
    def driver(self, tmp_path):
        return open_driver("auto", tmp_path)

    @pytest.fixture
    def carried(self, driver):
        return driver.name


class TestBuffered(DriverConformance):
    @pytest.fixture
    def driver(self):
        return PosixDriver(direct=False)

    @pytest.fixture
    def carried(self):
        return "buffered"


class TestRefusedOnOpen(DriverConformance):
    @pytest.fixture
    def driver(self, monkeypatch, accepts_direct):
        wants_direct = refusing(os.open, errno.EINVAL, when=lambda flags: flags & os.O_DIRECT)
        monkeypatch.setattr(os, "open", wants_direct)
        return PosixDriver(direct=True)

    @pytest.fixture
    def carried(self):
        return "buffered"


class TestRefusedOnFirstTransfer(DriverConformance):
    @pytest.fixture
    def driver(self, monkeypatch, accepts_direct):
        monkeypatch.setattr(os, "pwrite", refused_while_direct(os.pwrite, errno.EINVAL))
        monkeypatch.setattr(os, "preadv", refused_while_direct(os.preadv, errno.EINVAL))
        return PosixDriver(direct=True)

    @pytest.fixture
    def carried(self):
        return "buffered"


class TestShortTransfers(DriverConformance):
    @pytest.fixture
    def driver(self, monkeypatch, tmp_path):
        pwrite, preadv = os.pwrite, os.preadv

        def short_read(descriptor, views, offset):
            return preadv(descriptor, [views[0][:UNIT]], offset)

        monkeypatch.setattr(os, "pwrite", lambda fd, view, at: pwrite(fd, view[:UNIT], at))
        monkeypatch.setattr(os, "preadv", short_read)
        return open_driver("auto", tmp_path)

    @pytest.fixture
    def carried(self, driver):
        return driver.name


class TestRefusesUnalignedOffsets(DriverConformance):
    @pytest.fixture
    def driver(self, monkeypatch, tmp_path):
        preadv = os.preadv

        def strict(descriptor, views, offset):
            flags = posix.fcntl.fcntl(descriptor, posix.fcntl.F_GETFL)
            if flags & os.O_DIRECT and offset % 512:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            return preadv(descriptor, views, offset)

        monkeypatch.setattr(os, "preadv", strict)
        return open_driver("auto", tmp_path)

    @pytest.fixture
    def carried(self, driver):
        return driver.name


class TestMemory(DriverConformance):
    @pytest.fixture
    def driver(self):
        return MemoryDriver()

    @pytest.fixture
    def carried(self):
        return "memory"


class TestFaultless(DriverConformance):
    @pytest.fixture
    def driver(self, tmp_path):
        return FaultyDriver(open_driver("auto", tmp_path), Fault(None))

    @pytest.fixture
    def carried(self, driver):
        return driver.name


def test_refused_open_is_recorded_with_errno_and_path(monkeypatch, accepts_direct, tmp_path):
    wants_direct = refusing(os.open, errno.EINVAL, when=lambda flags: flags & os.O_DIRECT)
    monkeypatch.setattr(os, "open", wants_direct)
    with PosixDriver(direct=True).open(tmp_path / "f", "w") as file:
        assert file.reason == f"{tmp_path / 'f'}: open refused O_DIRECT: EINVAL (Invalid argument)"


def test_refused_first_write_is_recorded_with_errno_and_path(monkeypatch, accepts_direct, tmp_path):
    monkeypatch.setattr(os, "pwrite", refused_while_direct(os.pwrite, errno.EINVAL))
    with PosixDriver(direct=True).open(tmp_path / "f", "w") as file:
        assert file.reason is None
        file.write(UNIT, pattern(UNIT))
        assert file.reason == (
            f"{tmp_path / 'f'}: direct write at byte 4096 refused: EINVAL (Invalid argument)"
        )


def test_alignment_beyond_the_stripes_own_is_buffered(monkeypatch, accepts_direct, tmp_path):
    monkeypatch.setattr(posix, "direct_alignment", lambda descriptor: None)
    with PosixDriver(direct=True).open(tmp_path / "f", "w") as file:
        assert file.carried == "buffered"
        assert "alignment" in file.reason


@pytest.mark.parametrize("call", ["open", "pwrite"])
def test_insisting_on_direct_raises_where_it_is_refused(
    monkeypatch, accepts_direct, tmp_path, call
):
    if call == "open":
        fake = refusing(os.open, errno.EINVAL, when=lambda flags: flags & os.O_DIRECT)
    else:
        fake = refused_while_direct(os.pwrite, errno.EINVAL)
    monkeypatch.setattr(os, call, fake)
    with pytest.raises(Unsupported, match=r"Direct I/O was asked for.*EINVAL.*driver='auto'"):
        write_file(PosixDriver(direct=True, insist=True), tmp_path / "f", pattern(UNIT))


def test_memory_file_systems_are_never_called_direct(monkeypatch, tmp_path):
    monkeypatch.setattr("orbax_gds.drivers.direct._file_system", lambda path: 0x01021994)
    driver = open_driver("auto", tmp_path)
    assert driver.name == "buffered"
    assert driver.reason == f"direct: '{tmp_path}' is on tmpfs, which lies in the page cache"
    with driver.open(tmp_path / "f", "w") as file:
        assert (file.carried, file.reason) == ("buffered", driver.reason)
    with pytest.raises(Unsupported, match=r"tmpfs.*driver='auto'"):
        open_driver("direct", tmp_path)


def test_asking_for_buffered_needs_no_reason(tmp_path):
    with open_driver("buffered", tmp_path).open(tmp_path / "f", "w") as file:
        assert (file.carried, file.reason) == ("buffered", None)


def test_unknown_driver_is_refused_by_name(tmp_path):
    with pytest.raises(Unsupported, match="no driver 'floppy'"):
        open_driver("floppy", tmp_path)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_failed_write_names_path_offset_and_errno(monkeypatch, tmp_path, number):
    monkeypatch.setattr(os, "pwrite", refusing(os.pwrite, number))
    with open_driver("auto", tmp_path).open(tmp_path / "f", "w") as file:
        with pytest.raises(IoError, match=rf"write 4096 bytes at byte 8192.*{tmp_path}/f") as info:
            file.write(2 * UNIT, pattern(UNIT))
        assert info.value.errno == number
        assert info.value.filename == str(tmp_path / "f")


def test_full_disk_after_a_short_write_is_an_error(monkeypatch, tmp_path):
    n_calls, pwrite = [], os.pwrite

    def fill_up(descriptor, view, offset):
        n_calls.append(offset)
        if offset:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(descriptor, view[:UNIT], offset)

    monkeypatch.setattr(os, "pwrite", fill_up)
    with (
        open_driver("auto", tmp_path).open(tmp_path / "f", "w") as file,
        pytest.raises(IoError, match=r"at byte 4096, ENOSPC.*Free space"),
    ):
        file.write(0, pattern(3 * UNIT))
    assert n_calls == [0, UNIT]


def test_failed_read_names_path_offset_and_errno(monkeypatch, tmp_path):
    write_file(open_driver("auto", tmp_path), tmp_path / "f", pattern(UNIT))
    monkeypatch.setattr(os, "preadv", refusing(os.preadv, errno.EIO))
    with (
        open_driver("auto", tmp_path).open(tmp_path / "f", "r") as file,
        pytest.raises(IoError, match="Cannot read 4096 bytes at byte 0, EIO"),
    ):
        read(file, 0, UNIT)


def test_failed_sync_is_never_tried_again(monkeypatch, tmp_path):
    calls = []

    def fsync(descriptor):
        calls.append(descriptor)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    with open_driver("auto", tmp_path).open(tmp_path / "f", "w") as file:
        with pytest.raises(IoError, match="sync 0 bytes, EIO"):
            file.sync(0)
        with pytest.raises(IoError, match="earlier sync failed"):
            file.sync(0)
    assert len(calls) == 1


def test_missing_directory_is_not_found(tmp_path):
    with pytest.raises(NotFound, match="missing/f"):
        open_driver("buffered", tmp_path).open(tmp_path / "missing" / "f", "w")


def test_unaligned_direct_write_is_a_bug(accepts_direct, tmp_path):
    with PosixDriver(direct=True).open(tmp_path / "f", "w") as file:
        if file.carried != "direct":
            pytest.skip("no direct I/O here")
        for offset, data in [(1, pattern(UNIT)), (0, pattern(UNIT)[:7]), (0, pattern(UNIT)[1:])]:
            with pytest.raises(AssertionError, match="unit"):
                file.write(offset, data)


def test_aligned_read_takes_no_bounce(monkeypatch, tmp_path):
    content = pattern(2 * UNIT)
    write_file(open_driver("auto", tmp_path), tmp_path / "f", content)
    out = aligned_empty(2 * UNIT)
    monkeypatch.delattr(posix, "aligned_empty")
    with open_driver("auto", tmp_path).open(tmp_path / "f", "r") as file:
        file.read(0, out)
    assert np.array_equal(out, content)


def test_files_read_together_have_what_they_have_by_themselves(tmp_path):
    content = pattern(3 * UNIT)
    drivers = [MemoryDriver(), open_driver("auto", tmp_path), open_driver("buffered", tmp_path)]
    files = []
    for number, driver in enumerate(drivers):
        write_file(driver, tmp_path / str(number), content)
        files.append(driver.open(tmp_path / str(number), "r"))
    reads = [
        (file, at, aligned_empty(n_bytes))
        for at, n_bytes in ((UNIT, UNIT), (0, 3 * UNIT), (7, 100), (0, 0))
        for file in files
    ]
    read_together(reads)
    for _, at, out in reads:
        assert out.tobytes() == bytes(content)[at : at + len(out)]
    for file in files:
        behind = aligned_empty(UNIT)
        behind[:] = 0
        beyond = (file, 2 * UNIT, aligned_empty(2 * UNIT))
        with pytest.raises(Truncated, match="ends at byte"):
            read_together([(files[0], 0, aligned_empty(1)), beyond, (files[1], 0, behind)])
        assert not behind.any()
        file.close()


def test_wrong_reads_are_refused_and_impossible_ones_left(tmp_path):
    (tmp_path / "f").write_bytes(bytes(100))
    out = bytearray(10)
    with (tmp_path / "f").open("rb") as file:
        number = file.fileno()
        wrong: list[Any] = [
            (number, 0),
            (1 << 40, 0, out),
            (number, -1, out),
            (number, 1 << 64, out),
        ]
        wrong += [("0", 0, out), {0: number, 1: 0, 2: out}, (number, 0, bytes(10)), 3]
        for read in wrong:
            with pytest.raises((ValueError, TypeError)):
                _native.read_files([(number, 0, out), read])
        for descriptor, at in ((number, 95), (number, 1 << 63), (-1, 0)):
            assert (
                _native.read_files([(number, 0, out), (descriptor, at, out), (number, 0, out)]) == 1
            )
    out.append(0)  # nobody holds it any more


def test_fault_counts_operations_and_strikes_the_chosen_one():
    driver = MemoryDriver()
    write_file(FaultyDriver(driver, counted := Fault(None)), "f", pattern(UNIT))
    assert counted.operations == ["open f", "write f 0 4096", "sync f 4096"]
    for at in range(3):
        fault = Fault(at, number=errno.EIO)
        with pytest.raises(IoError) as info:
            write_file(FaultyDriver(driver, fault), "f", pattern(UNIT))
        assert info.value.errno == errno.EIO
        assert len(fault.operations) == at + 1


def test_short_fault_leaves_the_first_half():
    driver = MemoryDriver()
    content = pattern(2 * UNIT)
    with pytest.raises(IoError):
        write_file(FaultyDriver(driver, Fault(1, "short")), "f", content)
    assert driver.files["f"] == content[:UNIT].tobytes()


def test_short_system_writes_change_nothing(tmp_path):
    content = pattern(4 * UNIT)
    with faulty_system(Fault(None)) as counted:
        write_file(PosixDriver(direct=True), tmp_path / "f", content)
    at = next(k for k, name in enumerate(counted.operations) if name.startswith("pwrite"))
    with faulty_system(Fault(at, "short")):
        write_file(PosixDriver(direct=True), tmp_path / "g", content)
    assert (tmp_path / "g").read_bytes() == content.tobytes()


@pytest.mark.slow
def test_kill_fault_ends_the_process_after_the_operation(tmp_path):
    script = f"""
        from orbax_gds.drivers.posix import PosixDriver
        from orbax_gds.testing.driver_conformance import pattern, write_file
        from orbax_gds.testing.faults import Fault, FaultyDriver
        driver = FaultyDriver(PosixDriver(direct=False), Fault(1, "kill"))
        write_file(driver, {os.fspath(tmp_path / "f")!r}, pattern(10))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "f").stat().st_size == UNIT  # written, not yet cut by the sync
