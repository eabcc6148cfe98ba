"""The manifest: what an item holds, as JSON under a checksum. FORMAT §3."""

import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from orbax_gds import _native
from orbax_gds.errors import Corrupt, Unsupported

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"
KNOWN_REQUIRES: frozenset[str] = frozenset()

Key = tuple[str, str | int]
"""One typed key of a path: ("k", dict key), ("i", index), ("a", attribute), ("n", child)."""
Path = tuple[Key, ...]

_PREFIX = re.compile(rb'\{"crc32c":"([0-9a-f]{8})",')
_PREFIX_BYTES = 21
_STRIPE_NAME = re.compile(r"p\d{5,}(-\d{2})?\.ogds")
_SIDECAR_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_UUID = re.compile(r"[0-9a-f]{32}")
_CRC = re.compile(r"[0-9a-f]{8}")


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


class ShardingSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A sharding as the manifest describes it. FORMAT §3.2."""

    type: str
    device: int | None = None
    axes: tuple[tuple[str, int], ...] | None = None
    axis_types: tuple[str, ...] | None = None
    devices: tuple[int, ...] | None = None
    spec: tuple[tuple[str, ...] | None, ...] | None = None
    memory_kind: str | None = None


class StripeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One stripe as the manifest describes it. FORMAT §3.3."""

    file: str
    uuid: str
    bytes: int
    layout_crc32c: str
    index_crc32c: str


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
    base: None = None


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


def encode(manifest: Manifest) -> bytes:
    """Return the bytes of `manifest.json`; all of it must be valid Unicode."""
    body = msgspec.json.encode(manifest)[1:]
    return b'{"crc32c":"%s",' % crc_text(body).encode() + body


def decode(data: bytes, where: str, *, pending: bool = False) -> Manifest:
    """Read the bytes of `manifest.json` and check all that can be checked without the stripes.

    Args:
        data: the whole file.
        where: its path, for messages.
        pending: the stripes are named but not yet described.

    Raises:
        Corrupt: checksum, JSON or a field is wrong.
        Unsupported: it was written by a newer format or needs an unknown feature.
    """
    match = _PREFIX.match(data[:_PREFIX_BYTES])
    found = crc_text(memoryview(data)[_PREFIX_BYTES:])
    if match is None or match[1].decode() != found:
        said = match[1].decode() if match else repr(data[:_PREFIX_BYTES])
        raise Corrupt(
            f"{where}: the manifest's CRC32C is {found} but it says {said}. The file is damaged; "
            "restore another step or a copy of this one."
        )
    manifest = _parse(b"{" + data[_PREFIX_BYTES:], where)
    _check_leaves(manifest, where)
    _check_files(manifest, where, pending)
    return manifest


def _parse(body: bytes, where: str) -> Manifest:
    try:
        head = msgspec.json.decode(body, type=_Head)
        if head.format > FORMAT_VERSION:
            raise Unsupported(
                f"{where} has format {head.format}; this orbax_gds reads up to {FORMAT_VERSION}. "
                "Update it."
            )
        if unknown := [name for name in head.requires if name not in KNOWN_REQUIRES]:
            raise Unsupported(
                f"{where} needs the features {unknown}, unknown to this orbax_gds. Update it."
            )
        return msgspec.json.decode(body, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
        raise Corrupt(f"{where}: a field of the manifest is wrong: {err}.") from err


def _check_leaves(manifest: Manifest, where: str) -> None:
    paths = set()
    for leaf in manifest.leaves:
        name = path_text(leaf.path)
        if any(tag not in "kian" or len(tag) != 1 for tag, _ in leaf.path):
            raise Corrupt(f"{where}: leaf {name!r} has a key with an unknown tag.")
        if leaf.path in paths:
            raise Corrupt(f"{where}: leaf {name!r} is listed twice.")
        paths.add(leaf.path)
        if (leaf.dtype is None) != (leaf.shape is None):
            raise Corrupt(f"{where}: leaf {name!r} has only one of dtype and shape.")
        if any(n < 0 for n in leaf.shape or ()):
            raise Corrupt(f"{where}: leaf {name!r} has the impossible shape {leaf.shape}.")
        if leaf.sharding is not None and not 0 <= leaf.sharding < len(manifest.shardings):
            raise Corrupt(f"{where}: leaf {name!r} names sharding {leaf.sharding}, not listed.")


def _check_files(manifest: Manifest, where: str, pending: bool) -> None:
    stripes = manifest.stripes
    for stripe in stripes:
        described = (
            _UUID.fullmatch(stripe.uuid)
            and _CRC.fullmatch(stripe.layout_crc32c)
            and _CRC.fullmatch(stripe.index_crc32c)
            and stripe.bytes > 0
        )
        if not _STRIPE_NAME.fullmatch(stripe.file) or not (described or pending):
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
