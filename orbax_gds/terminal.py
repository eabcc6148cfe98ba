"""Text for a terminal: sizes, and tables of what was inspected or measured."""

import sys
from collections.abc import Iterable, Sequence

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from orbax_gds.bench.contenders import OURS
from orbax_gds.bench.lineup import LineUp, Result
from orbax_gds.report import (
    CodecShare,
    DtypeReport,
    ItemReport,
    LeafReport,
    PlaneBits,
    StripeReport,
)
from orbax_gds.sampling import PLANES

__all__ = [
    "NOTHING",
    "bits_text",
    "counted_text",
    "derived_text",
    "item_text",
    "leaf_text",
    "line_up_text",
    "ratio_text",
    "sample_text",
    "shares_text",
    "shown",
    "size_text",
    "stripe_text",
    "table",
]

NOTHING = "\N{EN DASH}"  # in a cell: there is none
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_NO_TERMINAL_COLUMNS = 1000  # chosen: a line of a file or a pipe is never cut
_GAP = 3  # rich puts so much between columns
_LEAST_TEXT_WIDTH = 12  # chosen: shorter lines of a name are hard to read
_PLANE_HEADS = ("bits a word", *PLANES)


def size_text(n_bytes: int) -> str:
    """Return a size with an IEC unit.

    Example:
        >>> size_text(1536)
        '1.5 KiB'
    """
    size, unit = float(n_bytes), 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:.1f} {_UNITS[unit]}" if unit else f"{n_bytes} B"


def shown(text: str) -> str:
    """Return text on one line: what a terminal would obey or hide is escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def ratio_text(ratio: float | None) -> str:
    """Return a ratio of compression, or a dash where nothing is stored."""
    if ratio is None:
        return NOTHING
    return f"{ratio:.3f}" if ratio < 100 else f"{ratio:.0f}"


def bits_text(bits: float) -> str:
    """Return bits a word; many where a frame holds a few words."""
    return f"{bits:.2f}" if bits < 100 else f"{bits:.0f}"


def counted_text(n: int, one: str, many: str) -> str:
    """Return a number with its noun.

    Example:
        >>> counted_text(1200, "leaf", "leaves")
        '1,200 leaves'
    """
    return f"{n:,} {one if n == 1 else many}"


def stripe_text(stripe: StripeReport) -> str:
    """Return what a stripe holds."""
    chunks = counted_text(stripe.n_chunks, "chunk", "chunks")
    return (
        f"{size_text(stripe.n_bytes)}, {chunks}, {counted_text(stripe.n_shards, 'shard', 'shards')}"
    )


def shares_text(shares: Iterable[CodecShare], derived_bytes: int = 0) -> str:
    """Return codecs by the bytes that they coded, the largest first: "ladder 97 %, raw 3 %"."""
    found = [(share.raw_bytes, share.codec) for share in shares]
    found += [(derived_bytes, "derived")] if derived_bytes else []
    total = max(1, sum(n_bytes for n_bytes, _ in found))
    if len(found) == 1:
        return found[0][1]
    ordered = sorted(found, key=lambda share: (-share[0], share[1]))
    return ", ".join(f"{name} {_percent(n_bytes / total)}" for n_bytes, name in ordered)


def leaf_text(leaf: LeafReport) -> str:
    """Return dtype and shape: "bfloat16[4096,1024]"; the type of a leaf without words."""
    if leaf.dtype is None or leaf.shape is None:
        return leaf.type
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"


def derived_text(leaf: LeafReport) -> str:
    """Return what a leaf follows from: "derived from 'master/w' by round"; "" if it is stored."""
    rules = {(d.source, d.rule): 0 for d in leaf.derived}
    return ", ".join(f"derived from {source!r} by {rule}" for source, rule in rules)


def table(
    title: str,
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    left: int = 1,
    optional: int = 0,
) -> None:
    """Print a table on stdout.

    Args:
        title: stands above it.
        heads: one a column.
        rows: cells as text; what a terminal would obey is escaped.
        left: columns from the left that hold words; the others hold numbers, to the right.
        optional: columns from the right that are left out where the terminal is too narrow.
    """
    out, cells = console(), [[shown(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    if optional and sum(widths) + _GAP * len(widths) > out.width:
        heads, title = heads[:-optional], f"{title} (a wider terminal shows bits by plane)"
    drawn = Table(
        title=Text(shown(title)),
        box=box.SIMPLE_HEAD,
        title_justify="left",
        title_style="bold",
        show_edge=False,
        pad_edge=False,
    )
    for column, head in enumerate(heads):
        is_text = column < left
        drawn.add_column(
            Text(head),
            justify="left" if is_text else "right",
            no_wrap=not is_text,
            overflow="fold",
            min_width=min(widths[column], _LEAST_TEXT_WIDTH) if is_text else widths[column],
        )
    for row in cells:
        drawn.add_row(*(Text(cell) for cell in row[: len(heads)]))
    out.print()
    out.print(drawn)


def console() -> Console:
    """Return stdout for rich: as wide as the terminal, or as any line where there is none."""
    out = Console(file=sys.stdout, highlight=False)
    return out if out.is_terminal else Console(file=sys.stdout, width=_NO_TERMINAL_COLUMNS)


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


def sample_text(report: ItemReport) -> str:
    """Say from how many frames bits and exponents were measured."""
    sample = report.sample
    if sample.n_frames == sample.of_frames:
        return f"Bits a word: measured in all {sample.of_frames} frames."
    return (
        f"Bits a word: measured in {sample.n_frames} of {sample.of_frames} frames, "
        f"{size_text(sample.n_bytes)} of {size_text(sample.of_bytes)}."
    )


def line_up_text(line_up: LineUp) -> None:
    """Print the line-up on one dtype, or the total, with the front marked."""
    read = line_up.n_bytes if line_up.n_bytes != line_up.of_bytes else 0
    title = f"{line_up.name}: {size_text(line_up.of_bytes)} in " + counted_text(
        line_up.of_arrays, "array", "arrays"
    )
    rows = [_result_row(result) for result in line_up.results if result.skipped is None]
    rows.append(("memcpy", "1.000", *(f"{line_up.memcpy_gbps:.2f}", "1.00") * 2, "", ""))
    heads = ("ratio", "encode GB/s", "x memcpy", "decode GB/s", "x memcpy", "front", "")
    table(f"{title}, of which {size_text(read)} coded" if read else title, ("codec", *heads), rows)
    skipped = [(one.name, one.skipped) for one in line_up.results if one.skipped is not None]
    for name, reason in skipped:
        console().print(Text(shown(f" {name}: {reason}")))


def _result_row(result: Result) -> tuple[str, ...]:
    speeds = (
        result.encode_gbps,
        result.encode_x_memcpy,
        result.decode_gbps,
        result.decode_x_memcpy,
    )
    raw = f"as they are: {', '.join(result.raw)}" if result.raw else ""
    cells = (NOTHING if speed is None else f"{speed:.2f}" for speed in speeds)
    name = f"{OURS} codec auto" if result.name == OURS else result.name
    return name, ratio_text(result.ratio), *cells, "*" if result.on_front else "", raw


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


def _percent(share: float) -> str:
    if share < 0.005:
        return "< 1 %"
    return f"{100 * share:.0f} %" if share < 0.995 else "> 99 %"
