"""The order in which files appear and become durable, and publication. FORMAT §8.1."""

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Iterator
from pathlib import Path as FilePath

import msgspec

from orbax_gds import manifest as manifests
from orbax_gds import stripe as stripes
from orbax_gds.derived import FEATURE
from orbax_gds.errors import CommitError, Corrupt, IoError, NotFound, OgdsError, Unsupported
from orbax_gds.linked_stripes import keep_linked, with_bases
from orbax_gds.pending import (
    FAILED_NAME,
    SUFFIX,
    Failure,
    PendingStripe,
    agreed,
    pending_name,
    process_of,
    read_failure,
)
from orbax_gds.stripe_specs import DELTA, BaseSpec
from orbax_gds.threads import run_tasks
from orbax_gds.tiling import check_tiling

PENDING_NAME = "manifest.json.pending"
COMPLETE_NAME = "manifest.json.tmp"
PROBE_SUFFIX = ".probe"  # of a file that a process killed at the wrong moment leaves, empty

_THREADS = 8  # chosen: stripes of many processes are read at once, as a shared file system is slow


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Sealed:
    """A sealed stripe, its layout, and whether that has derived shards."""

    spec: manifests.StripeSpec
    layout: bytes
    has_derived: bool


@contextlib.contextmanager
def io_context(path: FilePath, doing: str) -> Iterator[None]:
    """Turn an OSError of the block into one of ours that says what failed, where."""
    try:
        yield
    except FileNotFoundError as err:
        raise NotFound(err.errno, f"Cannot {doing} {path}: {err.strerror}", str(path)) from err
    except OSError as err:
        if isinstance(err, OgdsError):
            raise
        what = f"Cannot {doing} {path}: {err.strerror or err}"
        raise IoError(err.errno, what, str(path)) from err


def sync_directory(path: FilePath) -> None:
    """Make the entries of a directory durable."""
    with io_context(path, "sync the directory"):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def make_directory(path: FilePath) -> list[FilePath]:
    """Make a directory and its parents.

    Returns:
        The directories whose entries are new and must be synced: at least the parent.
    """
    with io_context(path, "make the directory"):
        missing = [each for each in (path, *path.parents) if not each.exists()]
        path.mkdir(parents=True, exist_ok=True)
    return [each.parent for each in missing or [path]]


def write_synced(path: FilePath, data: bytes) -> None:
    """Write a small file and make its content, though not yet its name, durable."""
    with io_context(path, "write"):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest) :]
            os.fsync(fd)
        finally:
            os.close(fd)


def read_manifest(directory: FilePath) -> manifests.Manifest:
    """Read the manifest of a published item.

    Raises:
        NotFound: the directory holds no published item.
        Corrupt, Unsupported: as `manifest.decode`.
    """
    path = directory / manifests.MANIFEST_NAME
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as err:
        raise NotFound(err.errno, _why_not_published(directory), str(path)) from err
    except OSError as err:
        raise IoError(err.errno, f"Cannot read {path}: {err.strerror}", str(path)) from err
    return manifests.decode(data, str(path))


def _why_not_published(directory: FilePath) -> str:
    if not directory.is_dir():
        return f"There is no directory {directory}"
    if (directory / PENDING_NAME).exists() or any(directory.glob("*.ogds")):
        return f"{directory} holds a save that was never published; restore another step"
    if (directory / "_METADATA").exists():
        return f"{directory} was written by Orbax's own handler; restore it with that"
    return f"{directory} holds no item of orbax_gds: there is no manifest.json"


def leave_pending(
    directory: FilePath, manifest: manifests.Pending, sidecars: dict[str, bytes]
) -> None:
    """Write all that publication needs, but not under names a reader looks at.

    Args:
        directory: the item.
        manifest: complete but for uuid, length and checksums of its stripes.
        sidecars: other files to write now, such as `_METADATA`.
    """
    specs = {}
    for name, data in sidecars.items():
        write_synced(directory / name, data)
        specs[name] = manifests.SidecarSpec(bytes=len(data), crc32c=manifests.crc_text(data))
    pending = msgspec.structs.replace(manifest, sidecars=specs)
    write_synced(directory / PENDING_NAME, manifests.encode(pending))


def leave_sealed(directory: FilePath, said: PendingStripe) -> None:
    """Leave what a process says of the stripe it has synced; sync the directory to seal it."""
    name = pending_name(stripes.file_name(said.process))
    write_synced(directory / name, msgspec.json.encode(said))


def withdraw_sealed(directory: FilePath, process: int) -> None:
    """Remove what an earlier attempt of a process has left, before it writes its stripe.

    The stripe, too: an item may have lain here whose deletion was cut short, and later steps may
    have linked its stripe. Written in place, it would change in these as well.
    """
    failure = read_failure(directory)
    names = [pending_name(stripes.file_name(process)), stripes.file_name(process)]
    if failure is not None and failure.process == process:
        names.append(FAILED_NAME)
    for name in names:
        with io_context(directory / name, "remove"):
            (directory / name).unlink(missing_ok=True)


def leave_failure(directory: FilePath, failure: Failure) -> None:
    """Tell the processes that wait for this one that it has failed; the last that does is heard."""
    own = directory / f"p{failure.process:05d}.{FAILED_NAME}"
    write_synced(own, msgspec.json.encode(failure))
    with io_context(own, "rename"):
        os.rename(own, directory / FAILED_NAME)  # whole, also when another fails just now


def publish(directory: str | os.PathLike[str]) -> bool:
    """Publish an item whose stripes are all sealed: from then on it exists.

    Everything that is needed lies in the directory, so any process that sees it may call this,
    once every process has sealed its stripe. Calling it again does nothing. Of several processes,
    what each has left beside its stripe is checked.

    Args:
        directory: the item.

    Returns:
        Whether this call published it.

    Raises:
        CommitError: a stripe is missing, damaged or not sealed, or nothing was saved here; or
            the processes were given different trees, or store a leaf twice or not all of it. The
            processes are named.
        IoError: the operating system refused a write, sync or rename.
    """
    directory = FilePath(directory)
    pending_path = directory / PENDING_NAME
    final_path = directory / manifests.MANIFEST_NAME
    if final_path.exists():
        return False
    if not pending_path.exists():
        raise CommitError(f"{directory}: there is nothing to publish: no save was written here.")
    complete = _complete(directory)
    keep_linked(directory, complete.base)
    complete_path = directory / COMPLETE_NAME
    write_synced(complete_path, manifests.encode(complete))
    _remove(directory.glob("*" + PROBE_SUFFIX))
    sync_directory(directory)
    with io_context(final_path, "publish"):
        os.rename(complete_path, final_path)
        os.unlink(pending_path)
    _remove(directory.glob("p[0-9]*" + SUFFIX))
    sync_directory(directory)
    return True


def check_sealed(directory: FilePath) -> None:
    """Check all that `publish` does, but publish nothing.

    Raises:
        CommitError, IoError: as `publish`.
    """
    _complete(directory)


def _complete(directory: FilePath) -> manifests.Pending:
    """Return the manifest of an item, having seen that its stripes are sealed and fit together."""
    pending = _read_pending(directory / PENDING_NAME)
    found: dict[str, _Sealed] = {}
    names = [stripe.file for stripe in pending.stripes]
    n_threads = min(_THREADS, len(names))
    run_tasks(names, lambda name: found.update({name: _sealed(directory, name)}), n_threads)
    sealed = [found[name] for name in names]
    requires = pending.requires
    if FEATURE not in requires and any(each.has_derived for each in sealed):
        requires = (*requires, FEATURE)  # each process decides for itself what it derives
    specs = [each.spec for each in sealed]
    bases = [_base_of_first(directory, pending, specs[0])]
    options = pending.options
    if len(specs) > 1:
        said = agreed(directory, [(spec.file, spec.uuid) for spec in specs])
        layouts = {each.spec.file: each.layout for each in sealed}
        check_tiling(directory, pending.leaves, layouts, pending.kinds)
        options = options | {"codings": [each.coding for each in said]}
        bases = [each.base for each in said]
    own, base = with_bases(directory, specs, bases)
    requires = tuple(name for name in requires if name != DELTA) + ((DELTA,) if base else ())
    return msgspec.structs.replace(
        pending, stripes=own, requires=requires, options=options, base=base
    )


def _base_of_first(
    directory: FilePath, pending: manifests.Pending, spec: manifests.StripeSpec
) -> BaseSpec | None:
    """Return what process 0 says that its stripe needs, having seen that it speaks of this one."""
    if pending.stripes[0].uuid != spec.uuid:
        raise CommitError(
            f"The stripe {directory / spec.file} and {PENDING_NAME} belong to two saves. The item "
            "is not published; save again."
        )
    return pending.base


def _remove(paths: Iterable[FilePath]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):  # it is small and no reader looks at it
            path.unlink()


def _read_pending(path: FilePath) -> manifests.Pending:
    with io_context(path, "read"):
        data = path.read_bytes()
    try:
        return manifests.decode_pending(data, str(path))
    except (Corrupt, Unsupported) as err:
        raise CommitError(f"The save in {path.parent} cannot be published: {err}") from err


def _sealed(directory: FilePath, name: str) -> _Sealed:
    """Read what publication needs of a stripe: its ends, and the layout, which must be whole."""
    path = directory / name
    try:
        with path.open("rb") as file:
            header = stripes.decode_header(file.read(stripes.HEADER_BYTES), str(path))
            layout = file.read(header.layout_bytes)
            n_bytes = file.seek(0, os.SEEK_END)
            file.seek(max(0, n_bytes - stripes.FOOTER_BYTES))
            footer = stripes.decode_footer(file.read(), str(path))
    except (OSError, Corrupt) as err:
        raise CommitError(
            f"Stripe {path} of {process_of(name)} is missing or not sealed ({err}), so the item is "
            "not published. The process failed or is still writing; save again."
        ) from err
    if (footer.file_bytes, footer.uuid) != (n_bytes, header.uuid):
        raise CommitError(
            f"Stripe {path} has {n_bytes} bytes but its footer speaks of {footer.file_bytes}, "
            "or its ends belong to two saves. The item is not published; save again."
        )
    layout_crc32c = f"{footer.layout_crc32c:08x}"
    if manifests.crc_text(layout) != layout_crc32c:
        raise CommitError(
            f"The layout of stripe {path} is damaged: its CRC32C is {manifests.crc_text(layout)}, "
            f"the footer says {layout_crc32c}. The item is not published; save again."
        )
    try:
        has_derived = stripes.has_derived(layout, str(path))
    except Corrupt as err:
        raise CommitError(f"Stripe {path} cannot be published: {err}. Save again.") from err
    spec = manifests.StripeSpec(
        file=name,
        uuid=footer.uuid.hex(),
        bytes=n_bytes,
        layout_crc32c=layout_crc32c,
        index_crc32c=f"{footer.index_crc32c:08x}",
    )
    return _Sealed(spec=spec, layout=layout, has_derived=has_derived)
