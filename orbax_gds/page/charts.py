"""The pictures of a page, as SVG: bits of a word, and histograms of exponents."""

import math
from collections.abc import Sequence

import ml_dtypes
import numpy as np

from orbax_gds.dtypes import SPLITS, Dtype, dtype_by_name
from orbax_gds.page.markup import Markup, join, tag
from orbax_gds.report import DtypeReport, PlaneBits
from orbax_gds.sampling import PLANES

__all__ = ["bits_chart", "drawable", "entropy_bits", "exponent_chart", "power_text"]

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_FEW_WORDS = 1024  # chosen: below, headers and zeros at the end are most of a frame
_SEEN = 1e-4  # chosen: exponents rarer than this do not widen a histogram


def bits_chart(dtypes: Sequence[DtypeReport]) -> Markup:
    """Draw the stored bits of a word by plane, one bar a dtype, over its bits in memory."""
    measured = [(d, d.planes) for d in drawable(dtypes) if d.planes is not None]
    widest = max(max(dtype_by_name(d.dtype).bits, p.total) for d, p in measured)
    left, width, step = 130.0, 760.0, 34.0
    totals = [f"{d.dtype} {p.total:.2f} of {dtype_by_name(d.dtype).bits}" for d, p in measured]
    parts = [_bits_bar(d, p, left, width / widest, i * step) for i, (d, p) in enumerate(measured)]
    return tag(
        "svg",
        *parts,
        viewBox=f"0 0 1100 {len(measured) * step:.0f}",
        role="img",
        aria_label=f"Stored bits of a word by plane: {', '.join(totals)}",
    )


def drawable(dtypes: Sequence[DtypeReport]) -> list[DtypeReport]:
    """Return the dtypes of which enough words were measured for their bits to mean something."""
    return [d for d in dtypes if d.planes is not None and d.planes.n_words >= _FEW_WORDS]


def _bits_bar(dtype: DtypeReport, planes: PlaneBits, left: float, scale: float, y: float) -> Markup:
    bits = dtype_by_name(dtype.dtype).bits
    parts = [
        tag("text", dtype.dtype, x=left - 12, y=y + 18, class_="end"),
        tag("rect", x=left, y=y + 4, width=bits * scale, height=20, rx=4, class_="track"),
    ]
    at = left
    for name in PLANES:
        found = getattr(planes, name)
        if found <= 0:
            continue
        title = tag("title", f"{dtype.dtype}, {name}: {found:.3f} bits a word")
        # A gap of a pixel keeps neighbours apart.
        length = max(0.5, found * scale - 1)
        bar = tag("rect", title, x=at, y=y + 4, width=length, height=20, class_=name)
        parts.append(bar)
        at += found * scale
    text = f"{bits} → {planes.total:.2f} bits"
    end = max(at, left + bits * scale)
    parts.append(tag("text", text, x=end + 10, y=y + 18, class_="soft"))
    return tag("g", *parts)


def exponent_chart(dtype: str, counts: Sequence[int], *, of: str) -> Markup:
    """Draw how often each exponent occurs; the exponent 0 and the one of infinities apart.

    Args:
        dtype: name of a dtype with a split.
        counts: words by exponent.
        of: the leaf or dtype whose words they are.
    """
    known = dtype_by_name(dtype)
    share = np.asarray(counts, float) / max(1, sum(counts))
    first, end = _range(known, share)
    specials = [e for e in _specials(known) if share[e] > 0 and not first <= e < end]
    shown = [e for e in specials if e < first], [e for e in specials if e >= end]
    columns = [*shown[0], *([None] if shown[0] else []), *range(first, end)]
    columns += [*([None] if shown[1] else []), *shown[1]]
    left, top, width, height = 46.0, 12.0, 296.0, 110.0
    step, highest = width / len(columns), float(share.max())
    bars, ticks = [], []
    for i, exponent in enumerate(columns):
        if exponent is None:
            continue
        x, tall = left + i * step, height * float(share[exponent]) / max(highest, 1e-12)
        name = _name(known, exponent)
        title = tag("title", f"{name}: {100 * share[exponent]:.3g} % of words")
        gap = min(1.5, step / 4)
        bars.append(
            tag(
                "rect",
                title,
                x=x + gap / 2,
                y=top + height - tall,
                width=step - gap,
                height=tall,
                class_="special" if exponent in specials else None,
            )
        )
        if exponent in specials or _has_tick(exponent - _bias(known), end - first):
            middle = min(x + step / 2, left + width - 2.7 * len(name))  # within the picture
            ticks.append(tag("text", name, x=middle, y=top + height + 16, class_="faint middle"))
    grid = [
        tag("line", x1=left, x2=left + width, y1=y, y2=y, class_="grid")
        for y in (top, top + height / 2, top + height)
    ]
    labels = [
        tag("text", f"{100 * highest * part:.2g} %", x=left - 6, y=y + 4, class_="faint end")
        for part, y in ((1, top), (0.5, top + height / 2))
    ]
    most = _name(known, int(share.argmax()))
    label = f"Share of words by exponent, {of}: most often {most}, {100 * highest:.2g} %"
    body = join([*grid, *labels, tag("g", *bars, class_="bars"), *ticks])
    return tag("svg", body, viewBox="0 0 350 144", role="img", aria_label=label)


def entropy_bits(counts: Sequence[int]) -> float:
    """Return the entropy of the exponents in bits a word: what no code of single words beats.

    Example:
        >>> entropy_bits([2, 1, 1, 0])
        1.5
    """
    found = np.asarray(counts, float)
    share = found[found > 0] / max(1.0, found.sum())
    return float(-(share * np.log2(share)).sum()) + 0.0


def power_text(exponent: int) -> str:
    """Return a power of two as text.

    Example:
        >>> power_text(-12)
        '2⁻¹²'
    """
    return "2" + str(exponent).translate(_SUPERSCRIPTS)


def _specials(dtype: Dtype) -> list[int]:
    """Exponents that are no power of two: zero and denormals, infinities and NaN."""
    assert dtype.split is not None, f"{dtype.name} has no exponents"
    split = SPLITS[dtype.split]
    if not split.mantissa_bits:
        return []
    ieee = np.isinf(np.array(np.inf).astype(_float_dtype(dtype)).astype(float))
    return [0, (1 << split.exponent_bits) - 1] if ieee else [0]


def _range(dtype: Dtype, share: np.ndarray) -> tuple[int, int]:
    """First and end of the exponents that are drawn side by side."""
    ordinary = share.copy()
    ordinary[_specials(dtype)] = 0
    seen = np.flatnonzero(ordinary >= _SEEN * max(float(ordinary.max()), 1e-12))
    if len(share) <= 32 or not len(seen):
        return (0, len(share)) if len(share) <= 32 else (_bias(dtype) - 8, _bias(dtype) + 1)
    specials = _specials(dtype)
    least, most = int(0 in specials), len(share) - int(len(share) - 1 in specials)
    first, end = int(seen[0]), int(seen[-1]) + 1
    missing = max(0, 16 - (end - first))  # a few bars alone would look like a wall
    return max(least, first - missing // 2), min(most, end + (missing + 1) // 2)


def _name(dtype: Dtype, exponent: int) -> str:
    specials = _specials(dtype)
    if exponent in specials:
        return "0" if exponent == 0 else "inf, NaN"
    return power_text(exponent - _bias(dtype))


def _has_tick(power: int, n: int) -> bool:
    step = 1 << max(0, math.ceil(math.log2(max(1, n) / 6)))
    return power % step == 0


def _bias(dtype: Dtype) -> int:
    return 1 - int(ml_dtypes.finfo(_float_dtype(dtype)).minexp) if dtype.split != "e8m0" else 127


def _float_dtype(dtype: Dtype) -> np.dtype:
    name = {"complex64": "float32", "complex128": "float64"}.get(dtype.name)
    return np.dtype(name) if name else dtype.numpy_dtype
