"""Check what is in a built sdist and wheel: `python tests/distributions.py DIST`.

Run from the root of the sources. Every file belongs, every source is there, nothing is large.
"""

import pathlib
import re
import sys
import tarfile
import zipfile

MAX_FILE_BYTES = 1_000_000
SDIST_FILES = {
    "CHANGELOG.md",
    "CMakeLists.txt",
    "CONTRIBUTING.md",
    "LICENSE",
    "PKG-INFO",
    "README.md",
    "pyproject.toml",
}
SDIST_FOLDERS = ("benchmarks/", "colab/", "docs/", "orbax_gds/", "tests/")
UNWANTED = re.compile(r"__pycache__|\.py[cod]$|\.so$|\.o$|/\.(?!gitattributes$)|^build/|^dist/")
WHEEL_WANTED = re.compile(
    r"orbax_gds/(?!native/).*\.(pyi?|css|md|typed)|orbax_gds/_native[.\w-]*\.so"
)


def check(dist: pathlib.Path, sources: pathlib.Path) -> list[str]:
    """Return what is wrong with the one sdist and the one wheel in `dist`."""
    (sdist_path,) = dist.glob("*.tar.gz")
    (wheel_path,) = dist.glob("*.whl")
    with tarfile.open(sdist_path) as archive:
        files = [member for member in archive.getmembers() if member.isfile()]
        sdist = {member.name.partition("/")[2]: member.size for member in files}
    with zipfile.ZipFile(wheel_path) as archive:
        wheel = {member.filename: member.file_size for member in archive.infolist()}
    return check_sdist(sdist, sources) + check_wheel(wheel, sources)


def check_sdist(files: dict[str, int], sources: pathlib.Path) -> list[str]:
    """Return the problems of an sdist, given as name → bytes."""
    problems = [f"sdist: {name} is {n} bytes" for name, n in files.items() if n > MAX_FILE_BYTES]
    for name in files:
        belongs = name in SDIST_FILES or name.startswith(SDIST_FOLDERS)
        if not belongs or UNWANTED.search(name):
            problems.append(f"sdist: {name} does not belong")
    wanted = SDIST_FILES - {"PKG-INFO"} | set(_sources(sources, *SDIST_FOLDERS))
    return problems + [f"sdist: {name} is missing" for name in sorted(wanted - files.keys())]


def check_wheel(files: dict[str, int], sources: pathlib.Path) -> list[str]:
    """Return the problems of a wheel, given as name → bytes."""
    packed = [name for name in files if ".dist-info/" not in name]
    problems = [f"wheel: {name} does not belong" for name in packed if not in_wheel(name)]
    if sum(name.endswith(".so") for name in packed) != 1:
        problems.append("wheel: there must be exactly one extension module")
    wanted = {name for name in _sources(sources, "orbax_gds") if in_wheel(name)}
    problems += [f"wheel: {name} is missing" for name in sorted(wanted - set(packed))]
    for name in ("entry_points.txt", "licenses/LICENSE"):
        if not any(path.endswith(f".dist-info/{name}") for path in files):
            problems.append(f"wheel: {name} is missing")
    return problems


def in_wheel(name: str) -> bool:
    """Return whether a file of the wheel, or of the sources, belongs into the wheel."""
    return WHEEL_WANTED.fullmatch(name) is not None


def _sources(root: pathlib.Path, *folders: str) -> list[str]:
    paths = (path for folder in folders for path in (root / folder).rglob("*") if path.is_file())
    names = (path.relative_to(root).as_posix() for path in paths)
    return [name for name in names if not UNWANTED.search(name)]


def main(arguments: list[str]) -> int:
    """Print the problems; return 1 if there are any."""
    problems = check(pathlib.Path(arguments[0]), pathlib.Path.cwd())
    print("\n".join(problems) or "sdist and wheel hold what belongs in them, and nothing else")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
