"""The page of an item: numbers, treemap, bits of a word, exponents and leaves."""

import importlib.resources
import json
from collections.abc import Iterable, Sequence
from pathlib import PurePath

from orbax_gds._version import __version__
from orbax_gds.page.charts import bits_chart, drawable, entropy_bits, exponent_chart
from orbax_gds.page.map import main_codec, treemap
from orbax_gds.page.markup import Markup, join, tag
from orbax_gds.report import CodecShare, ItemReport, LeafReport, PlaneBits
from orbax_gds.sampling import PLANES
from orbax_gds.wording import (
    NOTHING,
    base_text,
    bits_text,
    counted_text,
    derived_text,
    leaf_text,
    ratio_text,
    sample_text,
    shares_text,
    size_text,
    stripe_text,
)

__all__ = ["page"]

_MOST_ROWS = 2000  # chosen: about 1 MiB of page
_PLANE_MEANINGS = {
    "sign": "sign",
    "exponent": "exponent",
    "mantissa": "mantissa, upper bits",
    "low": "mantissa, low planes",
    "whole": "words coded whole",
    "change": "change since the base",
    "side": "side information",
}


def page(report: ItemReport) -> str:
    """Return one self-contained HTML page about an item.

    It has no script, fetches nothing, follows the light or dark scheme of who looks at it, and is
    well-formed as XML.

    Args:
        report: from `inspect`, with a sample of frames for bits and exponents.
    """
    place = PurePath(report.path)
    name = "/".join(place.parts[-2:])
    style = importlib.resources.files("orbax_gds.page").joinpath("style.css").read_text("utf-8")
    head = tag(
        "head",
        Markup('<meta charset="utf-8"/>'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1"/>'),
        tag("title", f"{name} · orbax_gds"),
        Markup(f"<style>{style}</style>"),
    )
    body = tag("body", tag("main", *_parts(report, name)))
    root = Markup(f'<html xmlns="http://www.w3.org/1999/xhtml" lang="en">{head}{body}</html>')
    return f"<!DOCTYPE html>\n{root}\n"


def _parts(report: ItemReport, name: str) -> Iterable[Markup]:
    yield tag("h1", name)
    yield tag("p", f"{report.path} · {report.writer}, format {report.format}", class_="path")
    yield _tiles(report)
    if any(leaf.stored_bytes for leaf in report.leaves):
        yield _section(
            "Where the bytes are",
            "Each cell is a leaf, as large as what it takes on disk; colour: the codec of most of "
            "its words. Point at a cell for more, or see the table of leaves."
            f"{_not_in_map(report)}",
            _legend({codec: codec for codec in _codecs_in_map(report)}),
            treemap(report),
        )
    if measured := drawable(report.dtypes):
        planes = [p for d in measured if (p := d.planes) is not None]
        seen = [n for n in PLANES if any(getattr(p, n) > 0 for p in planes)]
        yield _section(
            "Where the bits of a word go",
            "The track is a word in memory, the colours are what is stored of it.",
            _legend({n: _PLANE_MEANINGS[n] for n in seen}),
            bits_chart(report.dtypes),
        )
    if report.dtypes:
        yield _section("By dtype", "", _dtype_table(report))
    if report.codecs:
        yield _section("By codec", "", _codec_table(report))
    charts = _exponent_charts(report)
    if charts:
        yield _section(
            "Exponents",
            "How often each power of two occurs: the narrower, the fewer bits. Entropy is that of "
            "all these words together; each chunk is coded by itself, so that less may be stored.",
            tag("div", *charts, class_="charts"),
        )
    if report.leaves:
        yield _leaf_section(report)
    yield _section("How it was saved", "", _pairs(report))
    yield tag("footer", f"{sample_text(report)} Made by orbax-gds inspect, {__version__}.")


def _section(title: str, note: str, *content: Markup) -> Markup:
    notes = [tag("p", note, class_="note")] if note else []
    return tag("section", tag("h2", title), *notes, *content)


def _tiles(report: ItemReport) -> Markup:
    derived = sum(d.raw_bytes for leaf in report.leaves for d in leaf.derived)
    saved = 1 - report.stored_bytes / report.raw_bytes if report.raw_bytes else 0.0
    tiles = [
        (size_text(report.raw_bytes), "in memory"),
        (size_text(report.stored_bytes), "on disk"),
        (f"1 : {report.ratio:.3f}", "on disk : in memory"),
        (f"{100 * saved:.1f} %", "saved"),
        (f"{len(report.leaves):,}", "leaves"),
    ]
    if derived:
        tiles.append((size_text(derived), "derived"))
    if report.base is not None:
        tiles.append((size_text(report.base.n_bytes), "of earlier steps"))
    return tag(
        "div",
        *(tag("div", tag("b", value), tag("span", what), class_="tile") for value, what in tiles),
        class_="tiles",
    )


def _legend(entries: dict[str, str]) -> Markup:
    spans = [tag("span", tag("i", class_=name), text) for name, text in entries.items()]
    return tag("div", *spans, class_="legend")


def _codecs_in_map(report: ItemReport) -> list[str]:
    found: dict[str, int] = {}
    for leaf in report.leaves:
        if leaf.stored_bytes:
            codec = main_codec(leaf)
            found[codec] = found.get(codec, 0) + leaf.stored_bytes
    return sorted(found, key=lambda codec: -found[codec])


def _not_in_map(report: ItemReport) -> str:
    n = sum(1 for leaf in report.leaves if leaf.derived and not leaf.stored_bytes)
    leaves = counted_text(n, "leaf takes", "leaves take")
    return f" {leaves} nothing, as the words follow from other leaves." if n else ""


def _dtype_table(report: ItemReport) -> Markup:
    heads = ["dtype", "codecs", "leaves", "in memory", "on disk", "ratio", *_plane_heads(report)]
    rows = [
        [
            tag("td", dtype.dtype, class_="text name"),
            _codecs_cell(dtype.codecs, dtype.derived_bytes),
            tag("td", f"{dtype.n_leaves:,}"),
            *_size_cells(dtype.raw_bytes, dtype.stored_bytes),
            tag("td", ratio_text(dtype.ratio)),
            *_plane_cells(report, dtype.planes),
        ]
        for dtype in report.dtypes
    ]
    return _table(heads, rows, n_text=2)


def _codec_table(report: ItemReport) -> Markup:
    rows = [
        [
            _codecs_cell([share], 0),
            tag("td", f"{share.n_chunks:,}"),
            *_size_cells(share.raw_bytes, share.stored_bytes),
            tag("td", ratio_text(share.raw_bytes / max(1, share.stored_bytes))),
        ]
        for share in report.codecs
    ]
    return _table(["codec", "chunks", "in memory", "on disk", "ratio"], rows, n_text=1)


def _leaf_section(report: ItemReport) -> Markup:
    held = [leaf for leaf in report.leaves if leaf.dtype is not None]
    shown = sorted(held, key=lambda leaf: (-leaf.stored_bytes, -leaf.raw_bytes))[:_MOST_ROWS]
    heads = ["leaf", "elements", "codecs", "in memory", "on disk", "ratio", *_plane_heads(report)]
    rows = [
        [
            tag("td", _breakable(leaf.name), class_="text name"),
            tag("td", leaf_text(leaf), class_="text"),
            _leaf_codecs_cell(leaf),
            *_size_cells(leaf.raw_bytes, leaf.stored_bytes),
            tag("td", ratio_text(leaf.ratio)),
            *_plane_cells(report, leaf.planes),
        ]
        for leaf in shown
    ]
    note = "By what they take on disk."
    if len(shown) < len(held):
        note = f"The {len(shown):,} of {len(held):,} leaves that take most on disk."
    return _section("Leaves", note, _table(heads, rows, n_text=3))


def _table(heads: Sequence[str], rows: Iterable[Sequence[Markup]], *, n_text: int) -> Markup:
    row = tag(
        "tr",
        *(
            tag("th", h, scope="col", class_="text" if i < n_text else None)
            for i, h in enumerate(heads)
        ),
    )
    body = tag("tbody", *(tag("tr", *cells) for cells in rows))
    return tag("div", tag("table", tag("thead", row), body), class_="scroll")


def _codecs_cell(shares: Sequence[CodecShare], derived_bytes: int) -> Markup:
    found = sorted(shares, key=lambda share: (-share.raw_bytes, share.codec))
    total = sum(share.raw_bytes for share in found) + derived_bytes
    entries = [(share.codec, share.raw_bytes) for share in found]
    if derived_bytes:
        entries.append(("derived", derived_bytes))
    return tag("td", *(_codec(name, n, total) for name, n in entries), class_="text")


def _breakable(name: str) -> Markup:
    """Let a line break after each key of a path."""
    keys = name.split("/")
    parts = [join([f"{key}/", Markup("<wbr/>")]) for key in keys[:-1]]
    return join([*parts, keys[-1]])


def _leaf_codecs_cell(leaf: LeafReport) -> Markup:
    if not leaf.derived:
        return _codecs_cell(leaf.codecs, 0)
    derived = tag("span", tag("i", class_="derived"), derived_text(leaf), class_="codec")
    shares = shares_text(leaf.codecs)
    return tag("td", derived, *([shares] if shares else []), class_="text wrap")


def _codec(name: str, n_bytes: int, total: int) -> Markup:
    share = "" if n_bytes == total else f" {100 * n_bytes / max(1, total):.1f} %"
    return tag("span", tag("i", class_=name), f"{name}{share}", class_="codec")


def _size_cells(raw_bytes: int, stored_bytes: int) -> list[Markup]:
    """The two sizes, and a meter of the second by the first."""
    share = min(1.0, stored_bytes / max(1, raw_bytes))
    fill = tag("i", style=f"width: {100 * share:.1f}%")
    return [
        tag("td", size_text(raw_bytes), title=f"{raw_bytes} bytes"),
        tag(
            "td",
            size_text(stored_bytes),
            tag("span", fill, class_="meter"),
            title=f"{stored_bytes} bytes",
        ),
    ]


def _plane_heads(report: ItemReport) -> list[str]:
    return ["bits a word", *PLANES] if report.sample.n_frames else []


def _plane_cells(report: ItemReport, planes: PlaneBits | None) -> list[Markup]:
    if planes is None:
        return [tag("td", "") for _ in _plane_heads(report)]
    parts = [getattr(planes, name) for name in PLANES]
    return [
        tag("td", bits_text(planes.total)),
        *(tag("td", bits_text(bits) if bits else NOTHING) for bits in parts),
    ]


def _exponent_charts(report: ItemReport) -> list[Markup]:
    figures = [
        _figure(
            dtype.dtype,
            counted_text(dtype.n_leaves, "leaf", "leaves"),
            dtype.dtype,
            dtype.exponents,
            dtype.planes,
        )
        for dtype in report.dtypes
        if dtype.exponents is not None
    ]
    largest = sorted(report.leaves, key=lambda leaf: -leaf.stored_bytes)
    figures += [
        _figure(leaf.name, leaf_text(leaf), leaf.dtype or "", leaf.exponents, leaf.planes)
        for leaf in largest
        if leaf.exponents is not None
    ]
    return figures


def _figure(
    name: str, what: str, dtype: str, counts: Sequence[int] | None, planes: PlaneBits | None
) -> Markup:
    counts = counts or ()
    note = f"{what} · entropy {entropy_bits(counts):.2f} bits"
    if planes is not None and planes.exponent > 0 and not planes.whole:
        note += f", stored {planes.exponent:.2f}"
    caption = tag("figcaption", tag("b", name), tag("span", note))
    return tag("figure", caption, exponent_chart(dtype, counts, of=name))


def _pairs(report: ItemReport) -> Markup:
    pairs = [] if report.base is None else [("follows from", base_text(report.base))]
    pairs += [(f"stripe {s.file}", stripe_text(s)) for s in report.stripes]
    pairs += [(f"option {name}", str(value)) for name, value in report.options.items()]
    if report.custom_metadata is not None:
        pairs.append(("custom metadata", json.dumps(report.custom_metadata, ensure_ascii=False)))
    return tag("dl", join(join([tag("dt", k), tag("dd", v)]) for k, v in pairs))
