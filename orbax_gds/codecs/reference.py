"""The format in plain NumPy, made from FORMAT.md alone: the tests' oracle, the last resort to read.

It needs neither the native core nor jax nor Orbax, reads one frame after the other and is slow.

Example:
    >>> words = np.arange(5, dtype=np.uint8)
    >>> frame = encode_frame(words, dtype_by_name("uint8"), chunk=3)
    >>> header, decoded = decode_frame(frame)
    >>> header.chunk, decoded.tolist()
    (3, [0, 1, 2, 3, 4])
"""

import glob
import json
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from orbax_gds.codecs.reference_ans import Ans
from orbax_gds.codecs.reference_bytes import crc32c
from orbax_gds.codecs.reference_chains import Chain, base_path, chain_of, check_bases, read_words
from orbax_gds.codecs.reference_delta import Delta
from orbax_gds.codecs.reference_frame import (
    Base,
    decode_frame,
    encode_frame,
    parse_frame_header,
    supports,
)
from orbax_gds.codecs.reference_ladder import Ladder
from orbax_gds.codecs.reference_modelled import Model
from orbax_gds.codecs.reference_prediction import Prediction
from orbax_gds.codecs.reference_stripe import (
    Box,
    Shard,
    Stripe,
    boxes_of,
    encode_stripe,
    open_stripe,
    owners_of,
    read_stripe,
    scan_stripe,
)
from orbax_gds.dtypes import Dtype, dtype_by_id, dtype_by_name
from orbax_gds.errors import Corrupt, NotFound, Truncated, Unsupported

__all__ = [
    "Ans",
    "Base",
    "Box",
    "Delta",
    "Ladder",
    "Model",
    "Prediction",
    "Shard",
    "boxes_of",
    "crc32c",
    "decode_frame",
    "encode_frame",
    "encode_manifest",
    "encode_stripe",
    "owners_of",
    "parse_frame_header",
    "parse_manifest",
    "read_item",
    "scan_stripe",
    "supports",
    "write_stripe",
]

_TEMPORARY = ".orbax-checkpoint-tmp"  # required: FORMAT §3.5, of what is not published

LeafPath = tuple[tuple[str, str | int], ...]

FEATURES = frozenset({"derived", "kinds", "delta"})
_PREFIX_BYTES = 21
_FIELDS = {
    "format": int,
    "requires": list,
    "writer": str,
    "leaves": list,
    "shardings": list,
    "stripes": list,
    "sidecars": dict,
    "options": dict,
}
_STRIPE_FILE = r"p[0-9]{5,}(-[0-9]{2})?\.ogds"
_BASE_FILE = r"base/[0-9a-f]{32}\.ogds"
_STRIPE_FIELDS = {
    "uuid": "[0-9a-f]{32}",
    "layout_crc32c": "[0-9a-f]{8}",
    "index_crc32c": "[0-9a-f]{8}",
}


def encode_manifest(fields: dict[str, Any]) -> bytes:
    """Return `manifest.json` with these fields, its checksum in front. FORMAT §3."""
    body = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()[1:]
    return f'{{"crc32c":"{crc32c(body):08x}",'.encode() + body


def parse_manifest(data: bytes, where: str = "manifest.json") -> dict[str, Any]:
    """Read and check `manifest.json`. FORMAT §3.

    Raises:
        Corrupt: Checksum, JSON or a field is wrong.
        Unsupported: A newer format, or an unknown feature in `requires`.
    """
    prefix, body = data[:_PREFIX_BYTES], data[_PREFIX_BYTES:]
    if prefix != f'{{"crc32c":"{crc32c(body):08x}",'.encode():
        raise Corrupt(f"{where}: the checksum is {crc32c(body):08x}, the file says {prefix!r}.")
    try:
        manifest = json.loads(b"{" + body)
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"{where}: not JSON: {error}.") from error
    for name, kind in _FIELDS.items():
        if type(manifest.get(name)) is not kind:
            raise Corrupt(f"{where}: field {name!r} is missing or not of type {kind.__name__}.")
    if manifest["format"] != 1 or not set(map(str, manifest["requires"])) <= FEATURES:
        raise Unsupported(
            f"{where}: format {manifest['format']}, requires {manifest['requires']}; "
            f"this reference reads format 1 with {sorted(FEATURES)}."
        )
    if "kinds" in manifest["requires"]:
        manifest["leaves"] = _leaves_of_kinds(manifest, where)
    _check_leaves(manifest, where)
    _check_stripes(manifest["stripes"], _STRIPE_FILE, where)
    if type(base := manifest.get("base")) is dict:
        if type(base.get("stripes")) is not list:
            raise Corrupt(f"{where}: base {base!r}.")
        _check_stripes(base["stripes"], _BASE_FILE, where)
    check_bases(manifest, where)
    return manifest


def _leaves_of_kinds(manifest: dict[str, Any], where: str) -> list[dict[str, Any]]:
    kinds, leaves = manifest.get("kinds"), manifest["leaves"]
    if type(kinds) is not list or not all(type(entry) is dict for entry in kinds + leaves):
        raise Corrupt(f"{where}: kinds or leaves are no list of objects.")
    numbers = [leaf.get("kind") for leaf in leaves]
    if any(type(n) is not int for n in numbers) or {*numbers} != {*range(len(kinds))}:
        raise Corrupt(f"{where}: leaves are of the kinds {sorted({*map(str, numbers)})}.")
    return [kinds[n] | {"path": leaf.get("path")} for n, leaf in zip(numbers, leaves, strict=True)]


def _check_leaves(manifest: dict[str, Any], where: str) -> None:
    seen = set()
    for number, leaf in enumerate(manifest["leaves"]):
        what = f"{where}: leaf {number}"
        if type(leaf) is not dict or type(leaf.get("type")) is not str:
            raise Corrupt(f"{what}: not an object with a type.")
        path = _path_of(leaf, what)
        if path in seen:
            raise Corrupt(f"{what}: path {path} occurs twice.")
        seen.add(path)
        shape, sharding = leaf.get("shape"), leaf.get("sharding")
        if (shape is None) != (leaf.get("dtype") is None):
            raise Corrupt(f"{what}: only one of dtype and shape.")
        if shape is not None:
            if type(shape) is not list or any(type(n) is not int or n < 0 for n in shape):
                raise Corrupt(f"{what}: shape {shape!r}.")
            if type(leaf["dtype"]) is not str:
                raise Corrupt(f"{what}: dtype {leaf['dtype']!r}.")
            dtype_by_name(leaf["dtype"])
        n_shardings = len(manifest["shardings"])
        if sharding is not None and (type(sharding) is not int or not 0 <= sharding < n_shardings):
            raise Corrupt(f"{what}: sharding {sharding!r} of {n_shardings}.")
        if type(leaf.get("prng")) not in (str, type(None)):
            raise Corrupt(f"{what}: prng {leaf['prng']!r}.")


def _path_of(leaf: dict[str, Any], what: str) -> LeafPath:
    path: Any = leaf.get("path")
    well_formed = type(path) is list and all(
        type(key) is list and len(key) == 2 and key[0] in ("k", "i", "a", "n") for key in path
    )
    if not well_formed or any(type(value) not in (str, int) for _, value in path):
        raise Corrupt(f"{what}: path {path!r}.")
    return tuple((tag, value) for tag, value in path)


def _check_stripes(stripes: list[Any], names: str, where: str) -> None:
    for stripe in stripes:
        well_formed = (
            type(stripe) is dict
            and type(stripe.get("bytes")) is int
            and all(
                type(stripe.get(name)) is str and re.fullmatch(pattern, stripe[name])
                for name, pattern in (_STRIPE_FIELDS | {"file": names}).items()
            )
        )
        if not well_formed:
            raise Corrupt(f"{where}: stripe {stripe!r}.")
    if len({stripe["file"] for stripe in stripes}) != len(stripes):
        raise Corrupt(f"{where}: a stripe file occurs twice.")


def read_item(directory: str | Path) -> dict[LeafPath, np.ndarray]:
    """Read every leaf of a published item that has words.

    Args:
        directory: The directory that holds `manifest.json`.

    Returns:
        From each leaf's typed key path to its stored elements; leaves without words are not in it.

    Raises:
        NotFound: No manifest, so no item, or a stripe is missing.
        Corrupt, Truncated, Unsupported: See FORMAT §8.

    Example:
        >>> reference.read_item("checkpoints/100/default")  # doctest: +SKIP
        {(('k', 'w'),): array([1., 2.], dtype=float32)}
    """
    directory = Path(directory)
    manifest = _read_manifest(directory)
    leaves = [_Leaf.of(leaf, number) for number, leaf in enumerate(manifest["leaves"])]
    chains = _chains(directory, manifest)
    stripes = [_Holding.of(chain, leaves) for chain in chains]
    held = Counter[int]()
    for stripe in stripes:
        for box in chain.from_iterable(stripe.boxes):
            held[box.leaf] += prod(box.extent)
        for shard in stripe.derived:
            held[shard.leaf] += prod(shard.extent)
            if "derived" not in manifest["requires"]:
                raise Corrupt(f"{stripe.path}: {shard} in an item that does not require it.")
    for number, leaf in enumerate(leaves):
        if held[number] != leaf.n_elements:
            raise Corrupt(
                f"{directory}: leaf {leaf.path} has {leaf.n_elements} elements, "
                f"its shards {held[number]}."
            )
    words = [leaf.empty_words() for leaf in leaves]
    filled = [np.zeros(leaf_words.shape, bool) for leaf_words in words]
    for stripe in stripes:
        stripe.read_into(words, filled)
    _derive(stripes, words, filled)
    return {
        leaf.path: leaf.dtype.elements(leaf_words.reshape(-1), leaf.shape)
        for leaf, leaf_words in zip(leaves, words, strict=True)
        if leaf.dtype is not None
    }


def _read_manifest(directory: Path) -> dict[str, Any]:
    try:
        data = (directory / "manifest.json").read_bytes()
    except FileNotFoundError as error:
        raise NotFound(f"{directory} holds no manifest.json: no item was published.") from error
    return parse_manifest(data, str(directory / "manifest.json"))


def _chains(directory: Path, manifest: dict[str, Any]) -> list[Chain]:
    """Return the stripes of an item, each with the chain that it follows from."""
    base = manifest.get("base") or {"stripes": [], "linked": True}
    known = {entry["uuid"]: entry for entry in base["stripes"]}
    siblings = {}
    if not base["linked"]:
        own = directory.absolute()
        named_alike = own.parent.parent.glob(f"*/{glob.escape(own.name)}/manifest.json")
        beside = own.parent.glob("*/manifest.json")
        for path in (
            *(path for path in named_alike if _TEMPORARY not in path.parent.parent.name),
            *(path for path in beside if _TEMPORARY not in path.parent.name),
        ):
            if path.parent != own:
                with suppress(Corrupt, Unsupported):
                    siblings[path.parent] = _read_manifest(path.parent)
    paths = {
        uuid: base_path(directory, entry, base["linked"], siblings) for uuid, entry in known.items()
    }
    read = {uuid: _read_stripe(paths[uuid], entry) for uuid, entry in known.items()}
    chains: list[Chain] = []
    for entry in manifest["stripes"]:
        path = directory / entry["file"]
        links = [link["uuid"] for link in chain_of(entry, known, str(directory))]
        chain = [(path, _read_stripe(path, entry))]
        chain += [(paths[uuid], read[uuid]) for uuid in links]
        if len({stripe.header.n_chunks for _, stripe in chain}) > 1:
            raise Corrupt(f"{path}: the stripes of its chain have other numbers of chunks.")
        chains.append(chain)
    return chains


def _read_stripe(path: Path, entry: dict[str, Any]) -> Stripe:
    with open_stripe(path) as file:
        file_bytes = file.seek(0, 2)
        if file_bytes != entry["bytes"]:
            error = Truncated if file_bytes < entry["bytes"] else Corrupt
            raise error(f"{path}: {file_bytes} bytes, the manifest says {entry['bytes']}.")
        stripe = read_stripe(file, str(path))
    found = {
        "uuid": stripe.header.uuid.hex(),
        "layout_crc32c": f"{stripe.header.layout_crc32c:08x}",
        "index_crc32c": f"{stripe.index_crc32c:08x}",
    }
    for name, value in found.items():
        if value != entry[name]:
            raise Corrupt(f"{path}: {name} is {value}, the manifest says {entry[name]}.")
    return stripe


@dataclass(frozen=True, kw_only=True)
class _Leaf:
    path: LeafPath
    shape: tuple[int, ...]
    dtype: Dtype | None  # None: a leaf without words

    @classmethod
    def of(cls, leaf: dict[str, Any], number: int) -> "_Leaf":
        dtype = None if leaf.get("dtype") is None else dtype_by_name(leaf["dtype"])
        path = _path_of(leaf, f"leaf {number}")
        return cls(path=path, shape=tuple(leaf.get("shape") or ()), dtype=dtype)

    @property
    def n_elements(self) -> int:
        return 0 if self.dtype is None else prod(self.shape)

    def empty_words(self) -> np.ndarray:
        # Words, not elements: NumPy changes bits when it assigns a bool or a NaN as a scalar.
        if self.dtype is None:
            return np.empty(0, np.uint8)
        shape = (*self.shape, self.dtype.words_per_element)
        try:
            return np.empty(shape, self.dtype.word_dtype)
        except ValueError as error:
            raise Unsupported(f"Leaf {self.path}: NumPy has no shape {self.shape}.") from error


@dataclass(frozen=True, kw_only=True)
class _Holding:
    """A stripe of an item, checked against the manifest, and what its chunks hold."""

    chain: Chain
    boxes: list[list[Box]]  # of each chunk

    @property
    def path(self) -> Path:
        """Where it lies."""
        return self.chain[0][0]

    @property
    def derived(self) -> list[Shard]:
        """The shards whose words are in no stripe."""
        return [shard for shard in self.chain[0][1].shards if shard.rule]

    @classmethod
    def of(cls, chain: Chain, leaves: list[_Leaf]) -> "_Holding":
        path, stripe = chain[0]
        for shard in stripe.shards:
            _check_box(shard, leaves, str(path))
            if shard.rule:
                _check_derived(shard, leaves, str(path))
        owners = owners_of(stripe.shards, stripe.header.n_chunks, str(path))
        boxes = [
            _boxes(chunk, sharing, stripe, leaves, str(path))
            for chunk, sharing in enumerate(owners)
        ]
        return cls(chain=chain, boxes=boxes)

    def read_into(self, leaf_words: list[np.ndarray], filled: list[np.ndarray]) -> None:
        for chunk, boxes in enumerate(self.boxes):
            header, words = read_words(self.chain, chunk)
            for box in boxes:
                region = tuple(
                    slice(at, at + n) for at, n in zip(box.start, box.extent, strict=True)
                )
                if filled[box.leaf][region].any():
                    raise Corrupt(f"{self.path}: chunk {chunk}: {box} is stored twice.")
                filled[box.leaf][region] = True
                cell = words[box.words].reshape(*box.extent, header.dtype.words_per_element)
                leaf_words[box.leaf][region] = cell


def _derive(
    stripes: list[_Holding], leaf_words: list[np.ndarray], filled: list[np.ndarray]
) -> None:
    """Fill the derived shards from words that were read. FORMAT §4.2."""
    read = [leaf_filled.copy() for leaf_filled in filled]
    for stripe in stripes:
        for shard in stripe.derived:
            region = tuple(
                slice(at, at + n) for at, n in zip(shard.start, shard.extent, strict=True)
            )
            if filled[shard.leaf][region].any() or not read[shard.source][region].all():
                raise Corrupt(f"{stripe.path}: {shard} is stored twice or follows from nothing.")
            filled[shard.leaf][region] = True
            words = leaf_words[shard.source][region]
            leaf_words[shard.leaf][region] = words if shard.rule == 1 else _rounded(words)


def _rounded(words: np.ndarray) -> np.ndarray:
    """Return float32 words as bfloat16 words: rule 2."""
    words = words.astype(np.uint64)
    rounded = (words + 32767 + (words // 65536 & 1)) // 65536
    is_nan = words & 0x7FFFFFFF > 0x7F800000
    return np.where(is_nan, words // 65536 | 64, rounded).astype(np.uint16)


def _check_derived(shard: Shard, leaves: list[_Leaf], where: str) -> None:
    _check_box(replace(shard, leaf=shard.source), leaves, where)
    leaf, source = leaves[shard.leaf], leaves[shard.source]
    names = tuple(known.dtype.name if known.dtype else "" for known in (leaf, source))
    fits = names == ("bfloat16", "float32") if shard.rule == 2 else names[0] == names[1]
    if leaf.shape != source.shape or not fits:
        raise Corrupt(f"{where}: layout: {shard}: {names[0]} does not follow from {names[1]}.")


def _check_box(shard: Shard, leaves: list[_Leaf], where: str) -> None:
    if shard.leaf >= len(leaves) or leaves[shard.leaf].dtype is None:
        raise Corrupt(f"{where}: layout: leaf {shard.leaf} has no words in the manifest.")
    shape = leaves[shard.leaf].shape
    if len(shape) != len(shard.extent) or any(
        start + extent > n
        for start, extent, n in zip(shard.start, shard.extent, shape, strict=True)
    ):
        raise Corrupt(f"{where}: layout: {shard} is not within the leaf's shape {shape}.")


def _boxes(
    chunk: int, sharing: list[Shard], stripe: Stripe, leaves: list[_Leaf], where: str
) -> list[Box]:
    record = stripe.records[chunk]
    dtype = dtype_by_id(record.dtype)
    for shard in sharing:
        if leaves[shard.leaf].dtype != dtype:
            raise Corrupt(
                f"{where}: chunk {chunk} is {dtype.name}, leaf {leaves[shard.leaf].path} is not."
            )
    return boxes_of(chunk, sharing, record.n_words, dtype.words_per_element, where)


def write_stripe(
    directory: str | Path,
    shards: Sequence[Shard],
    frames: Sequence[bytes],
    *,
    uuid: bytes,
    process: int = 0,
) -> dict[str, Any]:
    """Write a process's stripe and return its entry in the manifest. FORMAT §3.3.

    Args:
        directory: The item's directory, which exists.
        shards: What each chunk holds.
        frames: From `encode_frame`, in order of their chunks.
        uuid: 16 random bytes.
        process: Number of the process.
    """
    name = f"p{process:05d}.ogds"
    data, entry = encode_stripe(shards, frames, uuid=uuid, process=process)
    (Path(directory) / name).write_bytes(data)
    return {"file": name, **entry}
