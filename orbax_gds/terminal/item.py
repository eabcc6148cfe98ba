"""What `inspect` prints of an item."""

from collections.abc import Sequence

import msgspec
from rich.text import Text

from orbax_gds.report import DtypeReport, ItemReport, PlaneBits
from orbax_gds.sampling import PLANES
from orbax_gds.terminal.table import console, table
from orbax_gds.wording import (
    NOTHING,
    base_text,
    bits_text,
    derived_text,
    leaf_text,
    ratio_text,
    sample_text,
    shares_text,
    shown,
    size_text,
    stripe_text,
)

__all__ = ["item_text"]

_PLANE_HEADS = ("bits a word", *PLANES)


def item_text(report: ItemReport, *, n_leaves: int) -> None:
    """Print an item: summary, dtypes, codecs, and its largest leaves.

    Args:
        report: from `inspect`.
        n_leaves: most leaves to list.
    """
    _pairs(_summary(report))
    planes = report.sample.n_frames > 0
    heads = ("leaves", "in memory", "on disk", "ratio", *(_PLANE_HEADS if planes else ()))
    rows = [_dtype_row(dtype, planes) for dtype in report.dtypes]
    if rows:
        optional = len(_PLANE_HEADS) if planes else 0
        table("By dtype", ("dtype", "codecs", *heads), rows, left=2, optional=optional)
    table(
        "By codec",
        ("codec", "chunks", "in memory", "on disk", "ratio"),
        [
            (
                share.codec,
                f"{share.n_chunks}",
                size_text(share.raw_bytes),
                size_text(share.stored_bytes),
                ratio_text(share.raw_bytes / max(1, share.stored_bytes)),
            )
            for share in report.codecs
        ],
    )
    _leaves(report, n_leaves, planes)
    if planes:
        console().print(Text(sample_text(report)))


def _leaves(report: ItemReport, n_leaves: int, planes: bool) -> None:
    held = [leaf for leaf in report.leaves if leaf.dtype is not None]
    largest = sorted(held, key=lambda leaf: (-leaf.stored_bytes, -leaf.raw_bytes))[:n_leaves]
    if not largest:
        return
    heads = ("in memory", "on disk", "ratio", *(_PLANE_HEADS if planes else ()))
    rows = [
        (
            leaf.name,
            leaf_text(leaf),
            ", ".join(filter(None, (shares_text(leaf.codecs), derived_text(leaf)))),
            size_text(leaf.raw_bytes),
            size_text(leaf.stored_bytes),
            ratio_text(leaf.ratio),
            *(_bits(leaf.planes) if planes else ()),
        )
        for leaf in largest
    ]
    more = len(held) - len(largest)
    title = f"Largest leaves, {more} more not shown" if more else "Leaves"
    optional = len(_PLANE_HEADS) if planes else 0
    table(title, ("leaf", "elements", "codecs", *heads), rows, left=3, optional=optional)


def _summary(report: ItemReport) -> list[tuple[str, str]]:
    derived = sum(d.raw_bytes for leaf in report.leaves for d in leaf.derived)
    rows = [
        ("path", report.path),
        ("writer", f"{report.writer}, format {report.format}"),
        ("leaves", str(len(report.leaves))),
        ("in memory", size_text(report.raw_bytes)),
        ("on disk", f"{size_text(report.stored_bytes)} (1 : {report.ratio:.3f})"),
    ]
    if report.base is not None:
        rows.append(("follows from", base_text(report.base)))
    if derived:
        rows.append(("derived", f"{size_text(derived)} follow from other leaves"))
    rows += [(f"stripe {s.file}", stripe_text(s)) for s in report.stripes]
    rows += [(f"option {name}", str(value)) for name, value in report.options.items()]
    if report.custom_metadata is not None:
        rows.append(("custom metadata", msgspec.json.encode(report.custom_metadata).decode()))
    return rows


def _pairs(rows: Sequence[tuple[str, str]]) -> None:
    width = max(len(shown(name)) for name, _ in rows)
    for name, value in rows:
        print(f"{shown(name).ljust(width)}  {shown(value)}")


def _dtype_row(dtype: DtypeReport, planes: bool) -> tuple[str, ...]:
    return (
        dtype.dtype,
        shares_text(dtype.codecs, dtype.derived_bytes),
        str(dtype.n_leaves),
        size_text(dtype.raw_bytes),
        size_text(dtype.stored_bytes),
        ratio_text(dtype.ratio),
        *(_bits(dtype.planes) if planes else ()),
    )


def _bits(planes: PlaneBits | None) -> tuple[str, ...]:
    if planes is None:
        return ("",) * len(_PLANE_HEADS)
    parts = [getattr(planes, name) for name in PLANES]
    return (bits_text(planes.total), *(bits_text(bits) if bits else NOTHING for bits in parts))
