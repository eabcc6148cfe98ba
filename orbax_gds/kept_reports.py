"""The report of each process's save as it lies in the item. FORMAT §3.4.

Nothing needs it to read the item, so what is wrong with it is only said where it is asked for.
"""

import contextlib
import dataclasses
import logging
import os
import re
from pathlib import Path as FilePath
from typing import Any

import msgspec

from orbax_gds.commit import io_context, read_manifest
from orbax_gds.errors import Corrupt, NotFound
from orbax_gds.manifest import StripeSpec, with_crc, without_crc
from orbax_gds.monitoring import ProcessReport, SaveReport, State
from orbax_gds.pending import SUFFIX

__all__ = ["KeptReports", "complete", "decode", "encode", "file_name", "leave", "read"]

logger = logging.getLogger(__name__)

_VERSION = 1  # required: FORMAT §3.4
_MOST_BYTES = 1 << 20  # required: FORMAT §3.4
_FIELDS = tuple(field.name for field in dataclasses.fields(ProcessReport))
_OF_DELTAS = ("base", "chain_length", "delta_reason", "chunks")  # absent where they say nothing


class _Head(msgspec.Struct, frozen=True):
    """What says of which save a report is, and whether it can be understood."""

    format: int
    stripe: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class KeptReports:
    """What the processes of a save have left in an item.

    Attributes:
        reports: those that can be read, by process.
        problems: why the others cannot, each with the name of its file.
    """

    reports: tuple[ProcessReport, ...]
    problems: tuple[str, ...]


def file_name(process: int) -> str:
    """Return the name of a process's report. FORMAT §2."""
    return f"p{process:05d}.report.json"


def encode(report: SaveReport, stripe: bytes) -> bytes:
    """Return the file of a report.

    Args:
        report: whose path is left out, also of the reasons: an item holds no path.
        stripe: uuid of the stripe that this save wrote.
    """
    fields: dict[str, Any] = {name: getattr(report, name) for name in _FIELDS}
    for name in _OF_DELTAS:
        if not fields[name]:
            del fields[name]
    for name in ("coding_reason", "driver_reason", "delta_reason"):
        if fields.get(name) is not None:
            fields[name] = _without_path(fields[name], os.fspath(report.path))
    head = {"format": _VERSION, "stripe": stripe.hex()}
    return with_crc(msgspec.json.encode(head | fields))


def decode(data: bytes, stripe: str) -> ProcessReport:
    """Read the file of a report.

    Args:
        data: the whole file.
        stripe: uuid of the stripe beside it.

    Raises:
        Corrupt: it is damaged, of another save, or of a version that is not known; says why.
    """
    try:
        body = without_crc(data)
        head = msgspec.json.decode(body, type=_Head)
        if head.format != _VERSION:
            raise Corrupt(f"format {head.format} is unknown to this orbax_gds; update it")
        if head.stripe != stripe:
            raise Corrupt(f"it is of another save, which wrote the stripe {head.stripe}")
        return msgspec.json.decode(body, type=ProcessReport)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as err:
        raise Corrupt(f"a field is wrong: {err}") from err


def leave(report: SaveReport, stripe: bytes) -> None:
    """Write a report beside the stripe of its process.

    It is not synced and may be lost in a crash. A report that cannot be written fails no save.
    """
    path = report.path / file_name(report.process)
    try:
        path.write_bytes(encode(report, stripe))
    except OSError as err:
        logger.warning("The report %s cannot be kept: %s. The save goes on.", path, err)


def complete(
    directory: FilePath, state: State, commit_secs: float, report: SaveReport | None
) -> SaveReport | None:
    """Add what publication took to the report that process 0 has left.

    It is replaced in one step and not synced. One that cannot be replaced stays as it is.

    Args:
        directory: of the item, which is published.
        state: what it is in now.
        commit_secs: what publication took.
        report: of process 0, where it is at hand: it knows of the last sync, the kept one does not.

    Returns:
        The report with both, or None where there is none to add to.
    """
    path = directory / file_name(0)
    stripe = None
    try:
        stripe = msgspec.json.decode(without_crc(path.read_bytes()), type=_Head).stripe
        report = report or _as_saved(decode(path.read_bytes(), stripe), directory)
    except (Corrupt, OSError, msgspec.DecodeError, UnicodeDecodeError) as err:
        logger.debug("The report %s cannot be completed: %s", path, err)
    if report is None:
        return None
    seconds = report.seconds | {"commit": commit_secs}
    done = dataclasses.replace(report, state=state, seconds=seconds)
    if stripe is not None:
        fresh = path.with_name(path.name + SUFFIX)
        try:
            fresh.write_bytes(encode(done, bytes.fromhex(stripe)))
            os.rename(fresh, path)
        except OSError as err:
            logger.warning("The report %s stays without the seconds of commit: %s.", path, err)
            with contextlib.suppress(OSError):
                fresh.unlink()
    return done


def _as_saved(kept: ProcessReport, directory: FilePath) -> SaveReport:
    fields: dict[str, Any] = {name: getattr(kept, name) for name in _FIELDS}
    return SaveReport(path=directory, state="synced", **fields)


def read(directory: FilePath) -> KeptReports:
    """Read what each process of a published item has left.

    Raises:
        NotFound: there is no published item, or no process has left a report.
    """
    reports, problems, n_missing = [], [], 0
    stripes = [spec for spec in read_manifest(directory).stripes if "-" not in spec.file]
    for spec in stripes:
        name = f"{spec.file.removesuffix('.ogds')}.report.json"
        try:
            reports.append(_read(directory / name, spec))
        except NotFound:
            n_missing += 1
            problems.append(f"{name} is missing: it was lost in a crash or left out of a copy")
        except (Corrupt, OSError) as err:
            what = err.strerror if isinstance(err, OSError) else err
            problems.append(f"{name} cannot be read: {what}")
    if n_missing == len(stripes):
        raise NotFound(
            f"{directory} holds no report of its save: an older version wrote it, or the reports "
            "were left out of a copy. `orbax-gds inspect` shows what the item itself says."
        )
    return KeptReports(reports=tuple(reports), problems=tuple(problems))


def _read(path: FilePath, spec: StripeSpec) -> ProcessReport:
    with io_context(path, "read"):
        n_bytes = path.stat().st_size
        if n_bytes > _MOST_BYTES or not path.is_file():
            raise Corrupt(f"it has {n_bytes} bytes or is no file; a report has few")
        return decode(path.read_bytes(), spec.uuid)


def _without_path(text: str, path: str) -> str:
    """Return what is said of files in a directory, or of itself, without its path."""
    text = text.replace(repr(path), "the directory")
    text = re.sub(rf"(?<![\w./-]){re.escape(path)}/", "", text)
    return text.encode("utf-8", "backslashreplace").decode()
