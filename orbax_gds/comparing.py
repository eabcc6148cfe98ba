"""What differs between two items: per leaf how many words, and by how much."""

import dataclasses
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from orbax_gds.dtypes import SPLITS, Dtype
from orbax_gds.item import Item
from orbax_gds.manifest import LeafSpec, Path, path_text
from orbax_gds.options import Options
from orbax_gds.plan import ShardBox
from orbax_gds.windows import split

__all__ = ["Comparison", "LeafDifference", "compare"]

_WINDOW_BYTES = 32 << 20  # chosen: of each item so much is held at once
_ARRAYS = frozenset({"jax.Array", "numpy.ndarray", "numpy.generic"})
Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LeafDifference:
    """How one leaf differs.

    Attributes:
        name, path: its path as text, and typed, in A where it is in both.
        what: "equal", "words", "only in A", "only in B", or what else is different: "shape",
            "dtype", "type" or "PRNG implementation".
        in_a, in_b: type, dtype and shape for people; None where it is not there.
        unit: "ULP" of floating-point words, 1 being the next word; "1" of other numbers.
        n_words: words of the leaf, a complex element being two.
        n_changed: of them those that differ, in any bit.
        largest, mean: of the differences of changed words, in units; 0 if there are none.
    """

    name: str
    path: Path
    what: str
    in_a: str | None = None
    in_b: str | None = None
    unit: str = "1"
    n_words: int = 0
    n_changed: int = 0
    largest: int = 0
    mean: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """The leaves of A in order, then those that only B has.

    `custom_metadata_equal` says whether the user's JSON of both is the same.
    """

    a: str
    b: str
    leaves: list[LeafDifference]
    custom_metadata_equal: bool = True

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return self.custom_metadata_equal and not self.differing

    @property
    def differing(self) -> list[LeafDifference]:
        """The leaves that are not equal."""
        return [leaf for leaf in self.leaves if leaf.what != "equal"]


def compare(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    *,
    options: Options | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare two items word by word.

    A leaf is that of the other item with the same typed path or, where that is none, with the same
    keys as text. Words are compared, not values: -0.0 and 0.0 are one ULP apart, two NaNs with
    other payloads as many as their words are. Arrays of jax and NumPy count as of one type.

    Args:
        a, b: directories of the items; read in windows, so that they need not fit into memory.
        options: how to read; None takes the defaults and the environment.
        progress: called with the bytes of words compared so far and in all.

    Raises:
        NotFound: there is no published item, or a base is missing.
        Corrupt: a byte that is read is damaged.
    """
    with Item(a, options=options) as one, Item(b, options=options) as other:
        pairs, only_b = _matched(one.manifest.leaves, other.manifest.leaves)
        found: dict[int, LeafDifference] = {}
        alike: dict[int, int] = {}
        for leaf, there in pairs.items():
            spec = one.manifest.leaves[leaf]
            if there is None:
                found[leaf] = _missing(spec, "only in A")
                continue
            what = _what_differs(spec, other.manifest.leaves[there])
            found[leaf] = _described(spec, other.manifest.leaves[there], what or "equal")
            if what is None and spec.has_words:
                alike[leaf] = there
        counted = _Counting(one, other, alike, progress or (lambda done, total: None)).run()
        for leaf, count in counted.items():
            found[leaf] = count.of(found[leaf])
        said = [_canonical(each.manifest.custom_metadata) for each in (one, other)]
        specs = other.manifest.leaves
        leaves = [found[leaf] for leaf in pairs]
        leaves += [_missing(specs[leaf], "only in B") for leaf in only_b]
    same = said[0] == said[1]
    return Comparison(a=os.fspath(a), b=os.fspath(b), leaves=leaves, custom_metadata_equal=same)


def _canonical(custom_metadata: Any) -> bytes:
    return msgspec.json.encode(custom_metadata, order="sorted")


def _matched(
    ours: Sequence[LeafSpec], theirs: Sequence[LeafSpec]
) -> tuple[dict[int, int | None], list[int]]:
    """Return for each leaf of A that of B, and the leaves of B that are left."""
    typed = {spec.path: leaf for leaf, spec in enumerate(theirs)}
    pairs = {leaf: typed.pop(spec.path, None) for leaf, spec in enumerate(ours)}
    by_text: dict[tuple[str, ...], list[int]] = {}
    for path, leaf in typed.items():
        by_text.setdefault(_keys(path), []).append(leaf)
    for leaf, there in pairs.items():
        candidates = by_text.get(_keys(ours[leaf].path), []) if there is None else []
        if len(candidates) == 1:
            pairs[leaf] = found = candidates.pop()
            del typed[theirs[found].path]
    return pairs, sorted(typed.values())


def _keys(path: Path) -> tuple[str, ...]:
    return tuple(str(key) for _, key in path)


def _what_differs(a: LeafSpec, b: LeafSpec) -> str | None:
    """Return what makes the words of two leaves no pairs."""
    same_type = a.type == b.type or {a.type, b.type} <= _ARRAYS
    for name, same in (
        ("type", same_type),
        ("dtype", a.dtype == b.dtype),
        ("shape", a.shape == b.shape),
        ("PRNG implementation", a.prng == b.prng),
    ):
        if not same:
            return name
    return None


def _text(spec: LeafSpec) -> str:
    if spec.dtype is None:
        return spec.type
    shape = ",".join(map(str, spec.shape or ()))
    kind = f"PRNG key {spec.prng}" if spec.prng else spec.type
    return f"{kind} {spec.dtype}[{shape}]"


def _missing(spec: LeafSpec, what: str) -> LeafDifference:
    text, is_a = _text(spec), what == "only in A"
    return LeafDifference(
        name=path_text(spec.path),
        path=spec.path,
        what=what,
        in_a=text if is_a else None,
        in_b=None if is_a else text,
    )


def _described(a: LeafSpec, b: LeafSpec, what: str) -> LeafDifference:
    return LeafDifference(
        name=path_text(a.path), path=a.path, what=what, in_a=_text(a), in_b=_text(b)
    )


class _Count:
    """What was counted of one leaf."""

    def __init__(self, dtype: Dtype) -> None:
        self._dtype = dtype
        self._n_words = self._n_changed = self._largest = 0
        self._sum = 0.0

    def add(self, a: np.ndarray, b: np.ndarray) -> None:
        """Count words: unsigned, n each."""
        self._n_words += len(a)
        changed = np.flatnonzero(a != b)
        if not len(changed):
            return
        x, y = (_ordered(words[changed], self._dtype) for words in (a, b))
        apart = np.maximum(x, y) - np.minimum(x, y)
        self._n_changed += len(changed)
        self._largest = max(self._largest, int(apart.max()))
        self._sum += float(apart.sum(dtype=np.float64))

    def of(self, leaf: LeafDifference) -> LeafDifference:
        """Return the leaf with the counts."""
        return dataclasses.replace(
            leaf,
            what="words" if self._n_changed else "equal",
            unit="1" if self._dtype.split is None else "ULP",
            n_words=self._n_words,
            n_changed=self._n_changed,
            largest=self._largest,
            mean=self._sum / max(1, self._n_changed),
        )


def _ordered(words: np.ndarray, dtype: Dtype) -> np.ndarray:
    """Return unsigned numbers in the order of the values of words, the next value being 1 more."""
    one = words.dtype.type(1)
    sign = one << words.dtype.type(dtype.bits - 1)
    if dtype.split is not None and SPLITS[dtype.split].sign_bits:
        return np.where(words & sign, (sign - one) - (words & (sign - one)), words | sign)
    return words ^ sign if dtype.name.startswith("int") else words


class _Counting:
    """Reads the same boxes of two items, in the order in which they lie in the first."""

    def __init__(self, a: Item, b: Item, pairs: dict[int, int], progress: Progress) -> None:
        self._a, self._b, self._pairs, self._progress = a, b, pairs, progress
        self._done = 0
        self._total = sum(self._n_bytes(box) for box in self._boxes())

    def run(self) -> dict[int, _Count]:
        """Count all leaves."""
        counts = {leaf: _Count(self._dtype(leaf)) for leaf in self._pairs}
        for boxes in self._windows():
            there = [
                ShardBox(leaf=self._pairs[box.leaf], start=box.start, extent=box.extent)
                for box in boxes
            ]
            sizes = list(map(self._n_bytes, boxes))
            sides = _read(self._a, boxes, sizes), _read(self._b, there, sizes)
            for box, a, b in zip(boxes, *sides, strict=True):
                words = self._dtype(box.leaf).word_dtype
                counts[box.leaf].add(a.view(words), b.view(words))
            self._done += sum(sizes)
            self._progress(self._done, self._total)
        return counts

    def _dtype(self, leaf: int) -> Dtype:
        dtype = self._a.dtypes[leaf]
        assert dtype is not None, f"leaf {leaf} has no words"
        return dtype

    def _n_bytes(self, box: ShardBox) -> int:
        return box.n_elements * self._dtype(box.leaf).element_bytes

    def _windows(self) -> Iterator[list[ShardBox]]:
        held: list[ShardBox] = []
        n_bytes = 0
        for box in self._boxes():
            if held and n_bytes + self._n_bytes(box) > _WINDOW_BYTES:
                yield held
                held, n_bytes = [], 0
            held.append(box)
            n_bytes += self._n_bytes(box)
        if held:
            yield held

    def _boxes(self) -> Iterator[ShardBox]:
        """Yield parts of the shards of the first item, as its chunks lie, so that each is decoded
        once; where the other has the same layout, of both.
        """
        for stripe in self._a.stripes:
            for shard in sorted(stripe.shards, key=lambda s: (s.first_chunk, s.word_offset)):
                if shard.leaf in self._pairs:
                    box = ShardBox(leaf=shard.leaf, start=shard.start, extent=shard.extent)
                    step = next((n for n in shard.chunk_extent if n > 1), 1)
                    yield from self._cut(box, step)
            for shard in stripe.derived:
                if shard.leaf in self._pairs:
                    box = ShardBox(leaf=shard.leaf, start=shard.start, extent=shard.extent)
                    yield from self._cut(box, 1)

    def _cut(self, box: ShardBox, step: int) -> Iterator[ShardBox]:
        most = _WINDOW_BYTES // 4 // self._dtype(box.leaf).element_bytes
        return split(box, most, step)


def _read(item: Item, boxes: Sequence[ShardBox], sizes: Sequence[int]) -> list[np.ndarray]:
    buffers = [np.empty(n_bytes, np.uint8) for n_bytes in sizes]
    item.read(boxes, buffers)
    return buffers
