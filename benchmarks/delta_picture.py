"""The picture of deltas: bytes and restore time of every step of a run, as an SVG of our own."""

import math
from collections.abc import Sequence

from benchmarks.delta_spec import DELTAS, FULL, ORBAX
from benchmarks.drawing import OURS_COLOUR, PEER_COLOUR, QUIET, line, text
from benchmarks.result import Row, find_row

PANEL_WIDTH, PANEL_HEIGHT = 430, 170  # pixels
LEFT, TOP, RIGHT, BOTTOM = 52, 34, 14, 24  # margins in a panel
HEAD = 44  # pixels above the panels
MEASURED = {"mb": ("MB a step", 1.0), "restore_s": ("restore, ms", 1000.0)}
COLOURS = {DELTAS: OURS_COLOUR, FULL: "#6da3e8", ORBAX: PEER_COLOUR}
MARKS = {DELTAS: "●", FULL: "■", ORBAX: "○"}


def delta_svg(rows: Sequence[Row], groups: Sequence[str]) -> str:
    """Draw two panels for each group: bytes of each step, and how long its restore takes.

    Args:
        rows: Of the run, with a quantity such as "mb_07" for each step.
        groups: In the order from the top; those without rows are left out.
    """
    parts: list[str] = []
    shown = [group for group in groups if any(row.group == group for row in rows)]
    for level, group in enumerate(shown):
        for column, quantity in enumerate(MEASURED):
            parts += _panel(
                list(rows), group, quantity, column * PANEL_WIDTH, HEAD + level * PANEL_HEIGHT
            )
    width, height = len(MEASURED) * PANEL_WIDTH, HEAD + len(shown) * PANEL_HEIGHT
    words = {DELTAS: "deltas, full every 8th", FULL: "full steps", ORBAX: "Orbax"}
    legend = "  ".join(
        f'<tspan fill="{COLOURS[name]}">{MARKS[name]} {words[name]}</tspan>' for name in words
    )
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'font-family="sans-serif" font-size="10">',
            f'<rect width="{width}" height="{height}" fill="#fff"/>',
            text(12, 16, "24 steps of a run, each saved and each restored, cold", 13),
            f'<text x="12" y="33">{legend}</text>',
            *parts,
            "</svg>\n",
        )
    )


def series_of(row: Row, quantity: str) -> list[float]:
    """Return the medians of a quantity over the steps, as far as they were measured."""
    found: list[float] = []
    while (median := row.median(f"{quantity}_{len(found):02d}")) is not None:
        found.append(median)
    return found


def _panel(rows: list[Row], group: str, quantity: str, x: float, y: float) -> list[str]:
    title, scale = MEASURED[quantity]
    lines = {}
    for name in COLOURS:
        row = find_row(rows, group=group, name=name)
        if row is not None and (series := series_of(row, quantity)):
            lines[name] = [figure * scale for figure in series]
    parts = [text(x + LEFT, y + 20, f"{group}: {title}", 12)]
    if not lines:
        return parts
    most = max(max(series) for series in lines.values()) * 1.05
    n_steps = max(map(len, lines.values()))
    width, foot = PANEL_WIDTH - LEFT - RIGHT, y + PANEL_HEIGHT - BOTTOM

    def place(step: int, figure: float) -> tuple[float, float]:
        along = width * (step + 0.5) / n_steps
        return x + LEFT + along, foot - figure / most * (PANEL_HEIGHT - TOP - BOTTOM)

    parts += ['<g stroke="#e4e4e4">']
    ticks = _ticks(most)
    parts += [
        line(x + LEFT, place(0, tick)[1], x + LEFT + width, place(0, tick)[1]) for tick in ticks
    ]
    parts += ["</g>"]
    for tick in ticks:
        at = place(0, tick)[1] + 3
        parts.append(text(x + LEFT - 6, at, f"{tick:g}", 9, anchor="end", colour=QUIET))
    for step in range(0, n_steps, 8):
        at = place(step, 0)[0]
        parts.append(text(at, foot + 13, f"{step + 1}", 9, anchor="middle", colour=QUIET))
    for name, series in lines.items():
        points = [place(step, figure) for step, figure in enumerate(series)]
        path = " ".join(f"{left:.1f},{top:.1f}" for left, top in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[name]}"/>')
        parts += [_mark(name, left, top) for left, top in points]
    return parts


def _mark(name: str, x: float, y: float) -> str:
    colour = COLOURS[name]
    if name == FULL:
        return (
            f'<rect x="{x - 2.2:.1f}" y="{y - 2.2:.1f}" width="4.4" height="4.4" fill="{colour}"/>'
        )
    fill = colour if name == DELTAS else "#fff"
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{fill}" stroke="{colour}"/>'


def _ticks(most: float) -> list[float]:
    """Return three to six round figures from 0 on."""
    unit = 10 ** math.floor(math.log10(most))
    step = next(unit * part for part in (0.2, 0.5, 1, 2) if most / (unit * part) < 6)
    return [step * i for i in range(math.floor(most / step) + 1)]
