"""The Pareto picture: ratio against speed for every data set, as an SVG of our own."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.drawing import OURS_COLOUR, PEER_COLOUR, QUIET, line, text
from benchmarks.result import Result, Row
from orbax_gds.bench.contenders import OURS

PANEL_WIDTH, PANEL_HEIGHT = 330, 200  # pixels
LEFT, TOP, RIGHT, BOTTOM = 40, 34, 12, 30  # margins in a panel
PANELS_A_ROW = 4
HEAD = 40  # pixels above the panels
LETTER, LINE = 5.4, 10  # width and height of a label's letter
DIRECTIONS = ("encode", "decode")
SPEED_TICKS = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
LEAST_SPEED, MOST_SPEED = 0.008, 2.2
LEAST_GAIN = 1.01  # a picture of random bytes shows nothing


@dataclass(frozen=True, kw_only=True)
class Point:
    """A codec in a panel: its speed against memcpy, its ratio."""

    label: str
    speed: float
    ratio: float
    is_ours: bool = False


@dataclass(frozen=True, kw_only=True)
class Axes:
    """Where a panel lies, and the ratios it spans; both axes are logarithmic."""

    x: float
    y: float
    least: float
    most: float

    def place(self, speed: float, ratio: float) -> tuple[float, float]:
        """Return the pixel of a speed and a ratio; what lies outside sticks to the edge."""
        ratio = max(ratio, self.least)
        speed = min(max(speed, LEAST_SPEED), MOST_SPEED)
        along = math.log(speed / LEAST_SPEED) / math.log(MOST_SPEED / LEAST_SPEED)
        up = math.log(ratio / self.least) / math.log(self.most / self.least)
        width, height = PANEL_WIDTH - LEFT - RIGHT, PANEL_HEIGHT - TOP - BOTTOM
        return self.x + LEFT + along * width, self.y + TOP + (1 - up) * height


def pareto_svg(result: Result) -> str:
    """Draw one thread's figures: two panels a data set, encode and decode.

    Args:
        result: Of `codec`; rows without speeds are left out, and data that nothing makes smaller.
    """
    groups: dict[str, list[Row]] = {}
    for row in result.rows:
        if row.median("ratio") and row.median("encode_x_memcpy"):
            groups.setdefault(row.group, []).append(row)
    parts, number = [], 0
    for group, rows in groups.items():
        if max(row.samples["ratio"][0] for row in rows) < LEAST_GAIN:
            continue
        for direction in DIRECTIONS:
            column, level = number % PANELS_A_ROW, number // PANELS_A_ROW
            x, y = column * PANEL_WIDTH, HEAD + level * PANEL_HEIGHT
            parts += _panel(f"{group}: {direction}", points_of(rows, direction), x, y)
            number += 1
    width = PANELS_A_ROW * PANEL_WIDTH
    height = HEAD + -(-number // PANELS_A_ROW) * PANEL_HEIGHT
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'font-family="sans-serif" font-size="10">',
            f'<rect width="{width}" height="{height}" fill="#fff"/>',
            text(12, 16, "Ratio (up) against speed x memcpy (right), one thread, log axes", 13),
            f'<text x="12" y="32"><tspan fill="{OURS_COLOUR}">● orbax_gds, CRC32C included'
            f'</tspan>  <tspan fill="{PEER_COLOUR}">○ peers, no checksum</tspan>  '
            f'<tspan fill="{QUIET}">┄ nothing is both smaller and faster; ■ memcpy; '
            f"at the foot: ratio 1 or less</tspan></text>",
            *parts,
            "</svg>\n",
        )
    )


def points_of(rows: Sequence[Row], direction: str) -> list[Point]:
    """Return the codecs of one data set, and memcpy."""
    points = [Point(label="memcpy", speed=1.0, ratio=1.0)]
    for row in rows:
        is_ours = row.name.startswith(OURS)
        own = row.name.removeprefix(OURS).removeprefix(" codec ") or "auto"
        label = own if is_ours else row.name.removesuffix(" shuffle").removesuffix(" bitshuffle")
        speed, ratio = row.median(f"{direction}_x_memcpy"), row.median("ratio")
        if speed and ratio:
            points.append(Point(label=label, speed=speed, ratio=ratio, is_ours=is_ours))
    return points


def frontier(points: Sequence[Point]) -> list[Point]:
    """Return the points that no other beats in both speed and ratio, the fastest first."""
    best: list[Point] = []
    for point in sorted(points, key=lambda one: (-one.speed, -one.ratio)):
        if not best or point.ratio > best[-1].ratio:
            best.append(point)
    return best


def _panel(title: str, points: Sequence[Point], x: float, y: float) -> list[str]:
    gains = [point.ratio for point in points if point.ratio > LEAST_GAIN]
    margin = max(1.02, (max(gains) / min(gains)) ** 0.15)
    axes = Axes(x=x, y=y, least=min(gains) / margin**2, most=max(gains) * margin)
    parts = [text(x + LEFT, y + 20, title, 12), *_ticks(axes)]
    steps, last = [], None
    for point in frontier(points):
        at = axes.place(point.speed, point.ratio)
        steps += [*([(at[0], last)] if last is not None else []), at]
        last = at[1]
    path = " ".join(f"{left:.0f},{top:.0f}" for left, top in steps)
    dashed = f'fill="none" stroke="{QUIET}" stroke-dasharray="2 3"'
    parts.append(f'<polyline points="{path}" {dashed}/>')
    places = [axes.place(point.speed, point.ratio) for point in points]
    taken = [(left - 4, top - 4, left + 4, top + 4) for left, top in places]
    for point in sorted(points, key=lambda one: not one.is_ours):
        parts += _mark(point, axes, taken)
    return parts


def _ticks(axes: Axes) -> list[str]:
    lines, parts = [], []
    for speed in SPEED_TICKS:
        left, bottom = axes.place(speed, axes.least)
        _, top = axes.place(speed, axes.most)
        lines.append(line(left, top, left, bottom))
        parts.append(text(left, bottom + 12, f"{speed:g}", 9, anchor="middle", colour=QUIET))
    for i in range(4):
        ratio = axes.least * (axes.most / axes.least) ** (i / 3)
        left, top = axes.place(LEAST_SPEED, ratio)
        right, _ = axes.place(MOST_SPEED, ratio)
        lines.append(line(left, top, right, top))
        parts.append(text(left - 4, top + 3, f"{ratio:.2f}", 9, anchor="end", colour=QUIET))
    return ['<g stroke="#e4e4e4">', *lines, "</g>", *parts]


def _mark(point: Point, axes: Axes, taken: list[tuple[float, float, float, float]]) -> list[str]:
    """Draw a point and its label, where there is room for it."""
    x, y = axes.place(point.speed, point.ratio)
    width = LETTER * len(point.label)
    corners = (
        (x + 6, y - 5),
        (x - 6 - width, y - 5),
        (x - width / 2, y - 6 - LINE),
        (x - width / 2, y + 6),
        (x + 5, y + 4),
        (x + 5, y - 4 - LINE),
        (x - 5 - width, y + 4),
        (x - 5 - width, y - 4 - LINE),
    )
    boxes = [(left, top, left + width, top + LINE) for left, top in corners]
    box = min(boxes, key=lambda box: (_overlap(box, taken) + _outside(box, axes), boxes.index(box)))
    taken.append(box)
    colour = OURS_COLOUR if point.is_ours else PEER_COLOUR
    if point.label == "memcpy":
        colour = "#000"
        shape = f'<rect x="{x - 3:.0f}" y="{y - 3:.0f}" width="6" height="6"/>'
    else:
        fill = colour if point.is_ours else "#fff"
        shape = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{fill}" stroke="{colour}"/>'
    return [shape, text(box[0], box[1] + LINE - 2, point.label, 10, colour=colour)]


def _overlap(
    box: tuple[float, float, float, float], taken: Sequence[tuple[float, float, float, float]]
) -> float:
    """Return the area of a box that others cover."""
    left, top, right, bottom = box
    return sum(
        max(0.0, min(right, r) - max(left, x)) * max(0.0, min(bottom, b) - max(top, y))
        for x, y, r, b in taken
    )


def _outside(box: tuple[float, float, float, float], axes: Axes) -> float:
    """Return by how much a box leaves its panel, above the area of any label."""
    left, top, right, bottom = box
    over = max(0.0, axes.x + LEFT - left) + max(0.0, right - axes.x - PANEL_WIDTH)
    over += max(0.0, axes.y + TOP - 6 - top) + max(0.0, bottom - axes.y - PANEL_HEIGHT + BOTTOM)
    return 1000 * over
