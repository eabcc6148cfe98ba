"""The check of sdist and wheel finds what is missing and what does not belong."""

import pathlib

import pytest
from distributions import SDIST_FILES, check_sdist, check_wheel

INFO = "orbax_gds-0.1.0.dist-info"


@pytest.fixture
def sources(tmp_path: pathlib.Path) -> pathlib.Path:
    for name in ("orbax_gds/a.py", "orbax_gds/FORMAT.md", "orbax_gds/native/a.cc", "tests/t.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def sdist() -> dict[str, int]:
    packed = ("orbax_gds/a.py", "orbax_gds/FORMAT.md", "orbax_gds/native/a.cc", "tests/t.py")
    return dict.fromkeys((*SDIST_FILES, *packed), 1)


def wheel() -> dict[str, int]:
    packed = ("orbax_gds/a.py", "orbax_gds/FORMAT.md", "orbax_gds/_native.cpython-311-x.so")
    infos = ("METADATA", "entry_points.txt", "licenses/LICENSE")
    return dict.fromkeys((*packed, *(f"{INFO}/{name}" for name in infos)), 1)


def test_complete_distributions_pass(sources: pathlib.Path):
    assert check_sdist(sdist(), sources) == []
    assert check_wheel(wheel(), sources) == []


@pytest.mark.parametrize("name", sorted(sdist().keys() - {"PKG-INFO"}))
def test_every_file_missing_from_the_sdist_is_named(name: str, sources: pathlib.Path):
    files = sdist()
    del files[name]
    assert check_sdist(files, sources) == [f"sdist: {name} is missing"]


@pytest.mark.parametrize("name", sorted(wheel().keys() - {f"{INFO}/METADATA"}))
def test_every_file_missing_from_the_wheel_is_found(name: str, sources: pathlib.Path):
    files = wheel()
    del files[name]
    assert len(check_wheel(files, sources)) == 1


@pytest.mark.parametrize(
    "name",
    [".ci/run", "notes.txt", "tests/__pycache__/t.pyc", "orbax_gds/_native.so", "tests/.hidden"],
)
def test_what_does_not_belong_in_the_sdist_is_named(name: str, sources: pathlib.Path):
    assert check_sdist({**sdist(), name: 1}, sources) == [f"sdist: {name} does not belong"]


@pytest.mark.parametrize("name", ["orbax_gds/native/a.cc", "tests/t.py", "orbax_gds/x.o"])
def test_what_does_not_belong_in_the_wheel_is_named(name: str, sources: pathlib.Path):
    assert check_wheel({**wheel(), name: 1}, sources) == [f"wheel: {name} does not belong"]


def test_a_large_file_is_named(sources: pathlib.Path):
    assert check_sdist({**sdist(), "tests/data.npz": 2_000_000}, sources) == [
        "sdist: tests/data.npz is 2000000 bytes"
    ]
