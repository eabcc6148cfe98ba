"""A restore, from published item to PyTree: manifest → plan → read → decode → assemble."""

import dataclasses
import itertools
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from orbax_gds import events
from orbax_gds import leaves as trees
from orbax_gds.converting import convert, is_converted
from orbax_gds.errors import Mismatch, NotFound
from orbax_gds.item import Item
from orbax_gds.manifest import LeafSpec, Path, path_text
from orbax_gds.monitoring import Lap
from orbax_gds.options import Options
from orbax_gds.plan import ShardBox
from orbax_gds.staging import aligned_pieces

_MOST_NAMED = 20  # chosen: paths that an error lists


def restore(
    path: str | os.PathLike[str],
    abstract: Any = None,
    leaves: Iterable[Path | str] | None = None,
    *,
    options: Options | None = None,
    strict: bool = True,
    partial: bool = False,
    fallback_sharding: Any = None,
) -> Any:
    """Restore the PyTree of one item, bit for bit, or raise.

    Args:
        path: directory of the item.
        abstract: a PyTree of the wanted structure, whose leaves say shape, dtype and sharding:
            arrays, jax.ShapeDtypeStruct, numbers, Orbax's metadata; `...` leaves a leaf out. None
            gives nested dicts and lists with the saved types and shardings.
        leaves: without `abstract`, restore only these: typed paths, or text such as
            "params/dense" for all leaves below it.
        options: how to read; None takes the defaults and the environment.
        strict: refuse a shape that differs; else cut or fill with zeros, as Orbax does.
        partial: leaves of the item that `abstract` does not name are left out.
        fallback_sharding: for leaves whose saved sharding does not fit the devices at hand.

    Returns:
        A PyTree of the structure of `abstract`.

    Raises:
        NotFound: no published item, or no such leaf.
        Mismatch: structure, shape or PRNG implementation differ; each path is named.
        Corrupt: a stored byte is not what was written.

    Example:
        >>> import tempfile, numpy as np, orbax_gds as ogds
        >>> path = tempfile.mkdtemp() + "/item"
        >>> _ = ogds.save(path, {"w": np.ones(3)})
        >>> ogds.restore(path)["w"]
        array([1., 1., 1.])
    """
    return restored(
        path,
        abstract,
        leaves,
        options=options,
        strict=strict,
        partial=partial,
        fallback_sharding=fallback_sharding,
    ).tree


@dataclasses.dataclass(frozen=True, kw_only=True)
class Restored:
    """What was restored of an item.

    Attributes:
        tree: it.
        is_whole: whether no stored leaf was left out.
    """

    tree: Any
    is_whole: bool


def restored(
    path: str | os.PathLike[str],
    abstract: Any = None,
    leaves: Iterable[Path | str] | None = None,
    *,
    options: Options | None = None,
    strict: bool = True,
    partial: bool = False,
    fallback_sharding: Any = None,
) -> Restored:
    """Restore as `restore` does, and say whether that was all."""
    if abstract is not None and leaves is not None:
        raise Mismatch("Pass either abstract or leaves: abstract already says what to restore.")
    began = Lap()
    with Item(path, options=options) as item:
        open_secs = began.secs
        found = _restored(item, abstract, leaves, strict, partial, fallback_sharding)
    times = {"open_secs": open_secs, "restore_secs": began.secs, "cpu_secs": began.cpu_secs}
    events.emit_restore(times, item.bytes_read)
    return found


def _restored(
    item: Item,
    abstract: Any,
    leaves: Iterable[Path | str] | None,
    strict: bool,
    partial: bool,
    fallback_sharding: Any,
) -> Restored:
    specs = item.manifest.leaves
    if abstract is None:
        chosen = range(len(specs)) if leaves is None else _chosen(specs, leaves, item.path)
        values = _values(item, dict.fromkeys(chosen), strict, fallback_sharding)
        with trees.uncollected():
            tree = trees.unflatten([specs[i] for i in chosen], [values.get(i) for i in chosen])
        return Restored(tree=tree, is_whole=len(set(chosen)) == len(specs))
    with trees.uncollected():
        asked, treedef = trees.flatten_target(abstract)
        matched = _match(specs, [p for p, _ in asked], partial, item.path)
    targets = {
        leaf: target for leaf, (_, target) in zip(matched, asked, strict=True) if target is not ...
    }
    values = _values(item, targets, strict, fallback_sharding)
    tree = treedef.unflatten([values[i] if i in targets else ... for i in matched])
    return Restored(tree=tree, is_whole=len(targets) == len(specs))


def _values(
    item: Item, targets: Mapping[int, Any], strict: bool, fallback_sharding: Any
) -> dict[int, Any]:
    """Return the values of leaves, each as its target asks; None asks for it as saved."""
    cache: dict[Any, Any] = {}
    with trees.uncollected():
        wants = [
            trees.want(
                leaf,
                item.manifest.leaves[leaf],
                item.manifest.shardings,
                target,
                fallback_sharding=fallback_sharding,
                strict=strict,
                cache=cache,
            )
            for leaf, target in targets.items()
            if item.manifest.leaves[leaf].has_words
        ]
        apart = [want for want in wants if is_converted(want)]
        if apart:
            wants = [want for want in wants if not is_converted(want)]
        boxes = [
            ShardBox(leaf=want.leaf, start=start, extent=extent)
            for want in wants
            for start, extent in want.boxes
        ]
        buffers = aligned_pieces([_n_bytes(item, box) for box in boxes], 64)
    item.read(boxes, buffers)
    converted = convert(item, apart) if apart else []
    with trees.uncollected():
        rest = iter(buffers)
        words = [list(itertools.islice(rest, len(want.boxes))) for want in wants]
        wants += [want for want, _ in converted]
        values = trees.assemble(wants, words + [made for _, made in converted])
        return dict(zip([want.leaf for want in wants], values, strict=True))


def _n_bytes(item: Item, box: ShardBox) -> int:
    dtype = item.dtypes[box.leaf]
    assert dtype is not None, f"leaf {box.leaf} has no words"
    return box.n_elements * dtype.element_bytes


def _chosen(specs: Sequence[LeafSpec], asked: Iterable[Path | str], where: Any) -> list[int]:
    """Return the numbers of the leaves that typed paths or texts name, in the item's order."""
    typed = {spec.path: i for i, spec in enumerate(specs)}
    below: dict[str, list[int]] = defaultdict(list)  # text of every leaf and all above it
    for i, spec in enumerate(specs):
        for text in {path_text(spec.path[:depth]) for depth in range(1, len(spec.path) + 1)}:
            below[text].append(i)
    chosen: set[int] = set()
    for name in [asked] if isinstance(asked, str) else asked:
        if isinstance(name, str):
            found = below.get(name) or below.get(name.rstrip("/"), [])
        else:
            found = [typed[name]] if name in typed else []
        if not found:
            raise NotFound(f"{where} has no leaf {name!r}. `orbax-gds ls` lists its leaves.")
        chosen.update(found)
    return sorted(chosen)


def _match(
    specs: Sequence[LeafSpec], asked: Sequence[Path], partial: bool, where: Any
) -> list[int]:
    """Find the stored leaf of every asked path.

    Typed paths match first. What is left matches by the text of its keys where that is
    unambiguous, so that a dict can ask for what a dataclass or a tuple saved.

    Raises:
        Mismatch: a path is not stored, or a stored one is not asked for and not `partial`.
    """
    typed = {spec.path: i for i, spec in enumerate(specs) if spec.has_words}
    matched = [typed.pop(path, -1) for path in asked]
    if -1 in matched:
        by_text: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for path, i in typed.items():
            by_text[_keys(path)].append(i)
        for at, path in enumerate(asked):
            candidates = by_text.get(_keys(path), [])
            if matched[at] < 0 and len(candidates) == 1:
                matched[at] = candidates.pop()
                del typed[specs[matched[at]].path]
    missing = [path for path, leaf in zip(asked, matched, strict=True) if leaf < 0]
    extra = [] if partial else list(typed)
    if missing or extra:
        raise Mismatch(
            f"The tree asked for and the item {where} differ. "
            f"Not stored: {_listed(missing)}. Stored but not asked for: {_listed(extra)}. "
            "Ask for the saved structure; partial_restore leaves out what is not asked for."
        )
    return matched


def _keys(path: Path) -> tuple[str, ...]:
    return tuple(str(key) for _, key in path)


def _listed(paths: Sequence[Path]) -> str:
    names = [repr(path_text(path)) for path in paths[:_MOST_NAMED]]
    more = f" and {len(paths) - _MOST_NAMED} more" if len(paths) > _MOST_NAMED else ""
    return ", ".join(names) + more if names else "nothing"
