"""The manifest: what an item holds, as JSON under a checksum. FORMAT §3."""

import contextlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from orbax_gds import _native
from orbax_gds.errors import Corrupt, Unsupported
from orbax_gds.stripe_specs import DELTA, BaseSpec, StripeSpec, check_chains, check_described
from orbax_gds.uncollected import uncollected

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"
KINDS = "kinds"  # the feature by which leaves that are alike are described once. FORMAT §3.1
KNOWN_REQUIRES = frozenset({"derived", KINDS, DELTA})  # FORMAT §9
MAX_MANIFEST_BYTES = 2**31 - 1  # required: FORMAT §8.2, as all limits here
MAX_RANK = 64
MAX_PATH_KEYS = 900
MAX_ELEMENTS = 2**58 - 1
_KINDS_FROM = 1000  # chosen: a shorter list is short enough, and older readers can read it
_LEAVES_A_KIND = 4  # chosen: of so many on average a leaf takes half of its bytes

Key = tuple[str, str | int]
"""One typed key of a path: ("k", dict key), ("i", index), ("a", attribute), ("n", child)."""
Path = tuple[Key, ...]

_PREFIX = re.compile(rb'\{"crc32c":"([0-9a-f]{8})",')
_PREFIX_BYTES = 21
_STRIPE_NAME = re.compile(r"p[0-9]{5,}(-[0-9]{2})?\.ogds")
_SIDECAR_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")

_TAGS = frozenset("kian")
_ARRAY_TYPES = frozenset({"jax.Array", "numpy.ndarray", "numpy.generic"})
_NO_WORDS = frozenset({(None, None)})
_STORED_AS: Mapping[str, frozenset[tuple[str | None, int | None]]] = {
    "bool": frozenset({("bool", 0)}),
    "int": frozenset({("int64", 0), ("uint8", 1)}),
    "float": frozenset({("float64", 0)}),
    "complex": frozenset({("complex128", 0)}),
    "str": frozenset({("uint8", 1)}),
    "bytes": frozenset({("uint8", 1)}),
    **dict.fromkeys(("None", "dict", "list", "tuple", "node"), _NO_WORDS),
}
"""Dtype and rank that a leaf of each type may have, but for arrays. FORMAT §3.1."""


class LeafSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One leaf as the manifest describes it. FORMAT §3.1."""

    path: Path
    type: str
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    sharding: int | None = None
    prng: str | None = None

    @property
    def has_words(self) -> bool:
        """Whether the leaf stores words, rather than only its place in the tree."""
        return self.dtype is not None


class _Kind(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What leaves that are alike have in common: the fields of `LeafSpec` but for the path."""

    type: str
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    sharding: int | None = None
    prng: str | None = None


class _OfKind(msgspec.Struct, frozen=True):
    """A leaf of a kind."""

    path: Path
    kind: int


class ShardingSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A sharding as the manifest describes it. FORMAT §3.2."""

    type: str
    device: int | None = None
    axes: tuple[tuple[str, int], ...] | None = None
    axis_types: tuple[str, ...] | None = None
    devices: tuple[int, ...] | None = None
    spec: tuple[tuple[str, ...] | None, ...] | None = None
    memory_kind: str | None = None


class SidecarSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Another file that the writer made, such as `_METADATA`."""

    bytes: int
    crc32c: str


class _Head(msgspec.Struct, frozen=True):
    """What says whether the rest of the manifest can be understood."""

    format: int
    requires: tuple[str, ...]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The whole manifest. FORMAT §3."""

    format: int
    requires: tuple[str, ...]
    writer: str
    leaves: tuple[LeafSpec, ...]
    shardings: tuple[ShardingSpec, ...]
    stripes: tuple[StripeSpec, ...]
    sidecars: dict[str, SidecarSpec]
    options: dict[str, Any]
    custom_metadata: Any = None
    base: BaseSpec | None = None


class Pending(msgspec.Struct, frozen=True, kw_only=True):
    """A manifest whose stripes are not described yet, its leaves in JSON as they will stand there.

    Who publishes an item need not look at its leaves.
    """

    format: int
    requires: tuple[str, ...]
    writer: str
    leaves: msgspec.Raw
    kinds: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    shardings: msgspec.Raw
    stripes: tuple[StripeSpec, ...]
    sidecars: dict[str, SidecarSpec]
    options: dict[str, Any]
    custom_metadata: Any = None
    base: BaseSpec | None = None


_SHARDINGS = tuple[ShardingSpec, ...]
_IN_COMMON = attrgetter(*_Kind.__struct_fields__)


class LeafList(msgspec.Struct, frozen=True, kw_only=True):
    """Leaves in JSON as the manifest has them, and what it then requires. FORMAT §3.1."""

    leaves: msgspec.Raw
    kinds: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    requires: tuple[str, ...] = ()


def list_leaves(leaves: Sequence[LeafSpec]) -> LeafList:
    """Return the leaves as the manifest has them: by kinds, where that is much shorter."""
    n_kinds = len(set(map(_IN_COMMON, leaves)))
    if len(leaves) < max(_KINDS_FROM, _LEAVES_A_KIND * n_kinds):
        return LeafList(leaves=_raw(leaves))
    return _list_by_kinds(leaves)


def _list_by_kinds(leaves: Sequence[LeafSpec]) -> LeafList:
    kinds: dict[tuple[Any, ...], int] = {}
    numbers = [kinds.setdefault(_IN_COMMON(leaf), len(kinds)) for leaf in leaves]
    of_kind = [_OfKind(leaf.path, kind) for leaf, kind in zip(leaves, numbers, strict=True)]
    described = [_Kind(**dict(zip(_Kind.__struct_fields__, kind, strict=True))) for kind in kinds]
    return LeafList(leaves=_raw(of_kind), kinds=_raw(described), requires=(KINDS,))


def _fields(manifest: Manifest | Pending) -> dict[str, Any]:
    return {name: getattr(manifest, name) for name in Manifest.__struct_fields__}


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def crc_text(data: Any, value: int = 0) -> str:
    """Return the CRC32C of the bytes as the eight hexadecimal digits the manifest writes."""
    return f"{_native.crc32c(data, value):08x}"


def check_custom_metadata(value: Any) -> None:
    """Refuse custom metadata that would not come back as it is, but for tuples as lists.

    Raises:
        Unsupported: it is not JSON: a set, NaN, bytes, a key that is no text, invalid Unicode.
    """
    try:
        json.dumps(value, allow_nan=False)
        kept = msgspec.json.decode(msgspec.json.encode(value)) == _as_lists(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as err:
        raise Unsupported(f"custom_metadata must be plain JSON: {err}.") from err
    if not kept:
        raise Unsupported("custom_metadata must be plain JSON: it would come back changed.")


def _as_lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_lists(inner) for key, inner in value.items()}
    return [_as_lists(inner) for inner in value] if isinstance(value, list | tuple) else value


def encode(manifest: Manifest | Pending) -> bytes:
    """Return the bytes of `manifest.json`; all of it must be valid Unicode.

    Raises:
        Unsupported: it would be longer than a manifest may be.
    """
    if isinstance(manifest, Manifest) and KINDS in manifest.requires:
        listed = _list_by_kinds(manifest.leaves)
        fields = _fields(manifest) | {"leaves": listed.leaves, "kinds": listed.kinds}
        fields["shardings"] = _raw(manifest.shardings)
        manifest = Pending(**fields)
    data = with_crc(msgspec.json.encode(manifest))
    if len(data) > MAX_MANIFEST_BYTES:
        raise Unsupported(
            f"The manifest would take {len(data)} bytes, and may take "
            f"{MAX_MANIFEST_BYTES}. Save fewer leaves, or less custom_metadata, in one item."
        )
    return data


def with_crc(json_object: bytes) -> bytes:
    """Return a JSON object, which is not empty, with its checksum as its first field."""
    body = json_object[1:]
    return b'{"crc32c":"%s",' % crc_text(body).encode() + body


def decode(data: bytes, where: str) -> Manifest:
    """Read the bytes of `manifest.json` and check all that can be checked without the stripes.

    Args:
        data: the whole file.
        where: its path, for messages.

    Raises:
        Corrupt: checksum, JSON or a field is wrong.
        Unsupported: it was written by a newer format or needs an unknown feature.
    """
    stored = decode_pending(data, where)
    fields = _fields(stored)
    with uncollected():
        with _sound_fields(where):
            fields["leaves"] = _decode_leaves(stored, where)
            fields["shardings"] = msgspec.json.decode(stored.shardings, type=_SHARDINGS)
        manifest = Manifest(**fields)
        check_leaves(manifest.leaves, len(manifest.shardings), where)
    for sharding in manifest.shardings:
        _check_sharding(sharding, where)
    for stripe in manifest.stripes:
        check_described(stripe, where)
    check_chains(manifest.stripes, manifest.base, manifest.requires, where)
    return manifest


def decode_pending(data: bytes, where: str) -> Pending:
    """Read a manifest that a save of this version has left to be published.

    Args, Raises: as `decode`, but leaves and shardings are only checked to be JSON.
    """
    pending = _parse(_checked(data, where), where)
    _check_files(pending, where)
    return pending


def _decode_leaves(stored: Pending, where: str) -> tuple[LeafSpec, ...]:
    if KINDS not in stored.requires:
        return msgspec.json.decode(stored.leaves, type=tuple[LeafSpec, ...])
    if stored.kinds is msgspec.UNSET:
        raise Corrupt(f"{where}: the manifest has no kinds, and requires them.")
    kinds = msgspec.json.decode(stored.kinds, type=tuple[_Kind, ...])
    leaves = msgspec.json.decode(stored.leaves, type=tuple[_OfKind, ...])
    named, known = {leaf.kind for leaf in leaves}, set(range(len(kinds)))
    if wrong := named - known or known - named:
        said = "leaves are of the unknown" if wrong & named else "no leaf is of"
        raise Corrupt(f"{where}: {said} kind {min(wrong)}; the manifest has {len(kinds)} kinds.")
    common = [msgspec.structs.asdict(kind) for kind in kinds]
    return tuple([LeafSpec(path=leaf.path, **common[leaf.kind]) for leaf in leaves])


def _checked(data: bytes, where: str) -> bytes:
    """Return the JSON of a manifest whose checksum is right."""
    if len(data) > MAX_MANIFEST_BYTES:
        raise Corrupt(
            f"{where} has {len(data)} bytes, a manifest has at most {MAX_MANIFEST_BYTES}. "
            "Restore another step or a copy of this one."
        )
    try:
        return without_crc(data)
    except Corrupt as err:
        raise Corrupt(
            f"{where}: the manifest's {err}. The file is damaged; "
            "restore another step or a copy of this one."
        ) from None


def without_crc(data: bytes) -> bytes:
    """Return the JSON object of `with_crc`.

    Raises:
        Corrupt: the checksum is wrong; says which it is and which it should be, not of what.
    """
    match = _PREFIX.match(data[:_PREFIX_BYTES])
    found = crc_text(memoryview(data)[_PREFIX_BYTES:])
    if match is None or match[1].decode() != found:
        said = match[1].decode() if match else repr(data[:_PREFIX_BYTES])
        raise Corrupt(f"CRC32C is {found} but it says {said}")
    return b"{" + data[_PREFIX_BYTES:]


def _parse(body: bytes, where: str) -> Pending:
    with _sound_fields(where):
        head = msgspec.json.decode(body, type=_Head)
        if head.format > FORMAT_VERSION:
            raise Unsupported(
                f"{where} has format {head.format}; this orbax_gds reads up to {FORMAT_VERSION}. "
                "Update it."
            )
        if head.format < FORMAT_VERSION:
            raise Corrupt(f"{where} says format {head.format}, which never was one.")
        if unknown := [name for name in head.requires if name not in KNOWN_REQUIRES]:
            raise Unsupported(
                f"{where} needs the features {unknown}, unknown to this orbax_gds. Update it."
            )
        return msgspec.json.decode(body, type=Pending)


@contextlib.contextmanager
def _sound_fields(where: str) -> Iterator[None]:
    """Turn what msgspec says of a manifest in the block into our error."""
    try:
        yield
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
        raise Corrupt(f"{where}: a field of the manifest is wrong: {err}.") from err


def check_leaves(leaves: Iterable[LeafSpec], n_shardings: int, where: str) -> None:
    """Check that leaves can be those of an item with so many shardings.

    Raises:
        Corrupt: one cannot.
        Unsupported: one is of a type that a newer version knows.
    """
    paths: set[Path] = set()
    sound = set()  # what most leaves have in common is checked once
    for leaf in leaves:
        described = leaf.type, leaf.dtype, leaf.shape, leaf.sharding, leaf.prng
        if described in sound and _are_keys(leaf.path) and leaf.path not in paths:
            paths.add(leaf.path)
            continue
        if leaf.type not in _ARRAY_TYPES and leaf.type not in _STORED_AS:
            raise Unsupported(
                f"{where}: leaf {path_text(leaf.path)!r} has the type {leaf.type!r}, unknown to "
                "this orbax_gds. Update it."
            )
        if problem := _problem(leaf, n_shardings):
            raise Corrupt(f"{where}: leaf {path_text(leaf.path)!r} {problem}.")
        if leaf.path in paths:
            raise Corrupt(f"{where}: leaf {path_text(leaf.path)!r} is listed twice.")
        paths.add(leaf.path)
        sound.add(described)


def _are_keys(path: Path) -> bool:
    return len(path) <= MAX_PATH_KEYS and all(tag in _TAGS for tag, _ in path)


def _problem(leaf: LeafSpec, n_shardings: int) -> str | None:
    """Return what is wrong with one leaf of a known type, None if nothing is."""
    if len(leaf.path) > MAX_PATH_KEYS:
        return f"has a path of {len(leaf.path)} keys"
    if not _are_keys(leaf.path):
        return "has a key with an unknown tag"
    if not _is_stored_as_its_type(leaf):
        return f"is {leaf.type} with the dtype {leaf.dtype} and the shape {leaf.shape}"
    if leaf.shape is not None and not is_possible(leaf.shape):
        return f"has the impossible shape {leaf.shape}"
    if leaf.prng is not None and (leaf.type, leaf.dtype) != ("jax.Array", "uint32"):
        return f"is {leaf.type} of {leaf.dtype}, which are no PRNG keys"
    if leaf.sharding is not None and not 0 <= leaf.sharding < n_shardings:
        return f"names sharding {leaf.sharding}, not listed"
    return None


def _is_stored_as_its_type(leaf: LeafSpec) -> bool:
    rank = None if leaf.shape is None else len(leaf.shape)
    if leaf.type not in _ARRAY_TYPES:
        return (leaf.dtype, rank) in _STORED_AS[leaf.type]
    scalar = leaf.type == "numpy.generic"
    return leaf.dtype is not None and rank is not None and not (scalar and rank)


def is_possible(shape: tuple[int, ...]) -> bool:
    """Whether a leaf may have this shape. FORMAT §8.2."""
    return (
        len(shape) <= MAX_RANK
        and min(shape, default=0) >= 0
        and math.prod(n for n in shape if n) <= MAX_ELEMENTS
    )


def _check_sharding(sharding: ShardingSpec, where: str) -> None:
    """Check the names and sizes of a mesh; whether it fits any devices is not known here."""
    axes = sharding.axes or ()
    names = [name for name, _ in axes]
    used = [name for parts in sharding.spec or () for name in parts or ()]
    if (
        any(size < 1 for _, size in axes)
        or len(set(names)) != len(names)
        or len(set(used)) != len(used)
        or not set(used) <= set(names)
    ):
        raise Corrupt(
            f"{where}: a sharding over the mesh {axes} with the spec {sharding.spec} is impossible."
        )


def _check_files(manifest: Pending, where: str) -> None:
    stripes = manifest.stripes
    for stripe in stripes:
        if not _STRIPE_NAME.fullmatch(stripe.file):
            raise Corrupt(f"{where}: the entry of stripe {stripe.file!r} is malformed.")
    if bad := [name for name in manifest.sidecars if not _SIDECAR_NAME.fullmatch(name)]:
        raise Corrupt(f"{where}: {bad[0]!r} is no name of a file beside the manifest.")
    if len({stripe.file for stripe in stripes}) != len(stripes):
        raise Corrupt(f"{where}: a stripe is listed twice.")


def path_text(path: Sequence[Key]) -> str:
    """Return a path as people read it, its keys joined by `/`; not unique, only for messages.

    Example:
        >>> path_text((("k", "params"), ("i", 0), ("a", "bias")))
        'params/0/bias'
    """
    return "/".join(str(key) for _, key in path)
