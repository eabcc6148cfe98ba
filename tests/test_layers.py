"""Who may import whom: a module sees only what lies below it, and few see jax."""

import ast
import functools
from pathlib import Path

import orbax_gds

ROOT = Path(orbax_gds.__file__).parent

# From the bottom up; a module may import from the lines above its own.
LAYERS = (
    (
        "_native",
        "_version",
        "errors",
        "final_names",
        "hard_links",
        "pacing",
        "threads",
        "uncollected",
    ),
    ("delta", "stripe_specs"),
    ("monitoring", "options", "dtypes", "manifest", "staging"),
    ("codecs", "drivers", "plan"),
    ("derived", "slices"),
    ("parts",),
    ("read_ranges",),
    ("chunk_table", "coverage", "read_plan", "stripe", "sidecar", "paths"),
    ("deriving", "bandwidth", "known_steps", "owners"),
    ("keeping", "safetensors_file", "windows"),
    ("pending",),
    ("named_stripes", "tiling", "stripe_file"),
    ("chains", "loaded_frames"),
    ("chunk_reader", "frame_check", "linked_stripes"),
    ("base_step", "commit", "shardings", "targets", "stripe_check", "weighing"),
    ("item", "kept_reports", "listing", "verifying", "tree_metadata", "wants"),
    ("assemble", "bench", "converting", "lazy", "sampling"),
    ("comparing", "pruning", "retention", "shares"),
    ("report",),
    ("wording",),
    ("terminal", "page"),
    ("events", "leaves", "pieces"),
    ("snapshot",),
    ("plan_cache", "stripe_writer"),
    ("base_sample", "coding_choice"),
    ("delta_save",),
    ("saving", "restoring", "writing"),
    ("exchange", "full_copy"),
    ("orbax_exchange",),
    ("dropin", "barrier"),
    ("all_stored",),
    ("handler",),
    ("args",),
    ("demo",),
    ("commands",),
    ("cli",),
    ("__main__", "__init__"),
)
SEES_JAX = {
    "paths",
    "shardings",
    "targets",
    "wants",
    "assemble",
    "converting",
    "leaves",
    "snapshot",
} | {
    "events",
    "pieces",
    "plan_cache",
    "saving",
    "restoring",
}
SEES_ORBAX = {"all_stored", "barrier", "tree_metadata", "dropin", "handler", "args", "demo"}
SEES_ORBAX |= {"orbax_exchange"}
FRAMEWORKS = {"jax", "jaxlib", "orbax", "flax", "optax", "tensorstore"}

LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def modules() -> dict[str, Path]:
    """Every module of the package, by its name below the package."""
    paths = {path.relative_to(ROOT): path for path in ROOT.rglob("*.py")}
    return {".".join(name.with_suffix("").parts): path for name, path in paths.items()}


MODULES = modules()


@functools.cache
def imported(path: Path) -> frozenset[str]:
    """The full names that a module imports anywhere, also inside functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


def part_of(name: str) -> str:
    """The layer's name of a full name: `orbax_gds.codecs.zstd.compress` lies in `codecs`."""
    inner = name.split(".")[1:]
    return inner[0] if inner and inner[0] in LEVEL else "__init__"


def test_a_module_imports_only_from_below():
    for name, path in MODULES.items():
        own = name.split(".")[0]
        ours = {n for n in imported(path) if n.split(".")[0] == "orbax_gds"}
        if own == "testing":
            continue
        assert own in LEVEL, f"{name} has no layer: give it one"
        for other in ours:
            assert "testing" not in other.split("."), f"{name} imports {other}"
            part = part_of(other)
            assert part == own or LEVEL[part] < LEVEL[own], f"{name} imports {other}, not below it"


def test_only_named_modules_see_jax_and_orbax():
    for name, path in MODULES.items():
        own = name.split(".")[0]
        seen = {n.split(".")[0] for n in imported(path)} & FRAMEWORKS
        allowed = {"jax"} if own in SEES_JAX else FRAMEWORKS if own in SEES_ORBAX else set()
        assert seen <= allowed, f"{name} imports {seen - allowed}"


def test_what_must_not_see_jax_imports_nothing_that_does():
    frameworks = SEES_JAX | SEES_ORBAX
    for name, path in MODULES.items():
        own = name.split(".")[0]
        if own in frameworks | {"__init__", "testing"}:
            continue
        parts = {part_of(n) for n in imported(path) if n.startswith("orbax_gds.")}
        lazily = {"cli": {"demo"}, "commands": {"orbax_exchange"}}.get(own, set())
        assert not parts & (frameworks - lazily), f"{name} reaches jax"


def test_the_reference_needs_no_native_code():
    for name, path in MODULES.items():
        if name.startswith("codecs.reference"):
            assert not any(n.startswith("orbax_gds._native") for n in imported(path)), name
