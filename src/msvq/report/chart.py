"""Line charts as inline SVG, coloured by the page's own style sheet.

Series differ in colour, dash and marker, so that none is told by its colour alone.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from math import floor, log10

from markupsafe import Markup, escape

from msvq.report.records import Points

# Drawn about as large as it is shown, on a phone as in three columns: so letters keep their size.
WIDTH, HEIGHT = 360, 220
LEFT, RIGHT, TOP, BOTTOM = 38, 16, 14, 36
NUM_MARKERS = 8  # about so many on a curve: more would hide it

# How series look, by their number: --c0 to --c9 of the style sheet; dashes and markers of matplotlib, as they are in
# SVG, the markers around (0, 0) and about 8 wide.
_STYLE_SHEET = (resources.files("msvq.report") / "page.css").read_text(encoding="utf-8")
COLOURS = re.findall(r"--c\d: (#\w+);", _STYLE_SHEET)[:10]  # on light paper; those on dark follow
SVG_DASHES = {"-": "", "--": "7 4", ":": "2 3", "-.": "10 3 2 3"}
SVG_MARKERS = {
    "o": "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0Z",
    "s": "M-3.5,-3.5H3.5V3.5H-3.5Z",
    "^": "M0,-4.6L4.4,3.4H-4.4Z",
    "D": "M0,-5L5,0L0,5L-5,0Z",
    "v": "M0,4.6L4.4,-3.4H-4.4Z",
    "P": "M-1.3,-4.5H1.3V-1.3H4.5V1.3H1.3V4.5H-1.3V1.3H-4.5V-1.3H-1.3Z",
}


@dataclass(frozen=True)
class Series:
    """One curve: its name, its points, and the number that decides colour, dash and marker."""

    name: str
    points: Points
    style: int = 0


def ticks(low: float, high: float, num: int = 5) -> list[float]:
    """About `num` round numbers that span low..high."""
    span = max(high - low, 1e-9, 1e-6 * abs(high))
    power = 10 ** floor(log10(span / num))
    step = next(power * m for m in (1, 2, 5, 10) if power * m * num >= span)
    first = floor(low / step + 1e-9)
    numbers = [round(step * i, 10) for i in range(first, first + 2 * num + 2)]
    last = next(index for index, number in enumerate(numbers) if number >= high - 1e-9)
    return numbers[: max(last, 1) + 1]


def line_chart(series: Sequence[Series], *, x_label: str, y_label: str, unit: str = "") -> Markup:
    """Curves with axes from round numbers; the last value is written out, in a legend if there are several."""
    xs = [x for one in series for x, _ in one.points]
    ys = [y for one in series for _, y in one.points]
    x_ticks, y_ticks = ticks(min(xs), max(xs)), ticks(min(ys), max(ys), 4)
    x_low, x_high = x_ticks[0], max(x_ticks[-1], max(xs))
    y_low, y_high = y_ticks[0], y_ticks[-1]
    top = TOP + (14 if len(series) == 1 else 0)  # room for the last value
    left = max(LEFT, 14 + 7 * max(len(f"{tick:g}") for tick in y_ticks))  # room for long numbers

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_low) / (x_high - x_low) * (WIDTH - left - RIGHT)
        up = (y - y_low) / (y_high - y_low) * (HEIGHT - top - BOTTOM)
        return round(left + across, 1), round(HEIGHT - BOTTOM - up, 1)

    parts = []
    for tick in y_ticks:
        _, y = place(x_low, tick)
        parts.append(f'<line class="grid" x1="{left}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4}" text-anchor="end">{tick:g}</text>')
    for tick in x_ticks:
        x, _ = place(tick, y_low)
        parts.append(f'<text x="{x}" y="{HEIGHT - BOTTOM + 17}" text-anchor="middle">{tick:g}</text>')
    middle = (left + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 4}" text-anchor="middle">{escape(x_label)}</text>')
    for one in series:
        parts.append(_curve(one, [place(*point) for point in one.points], unit))
    if len(series) == 1:
        x, y = place(*series[0].points[-1])
        value = escape(tell(series[0].points[-1][1], ys) + unit)
        parts.append(f'<text class="last" x="{x + 4}" y="{y - 11}" text-anchor="end">{value}</text>')
    said = "; ".join(
        f"{one.name + ' ' if len(series) > 1 else ''}from {one.points[0][1]:.4g} to {one.points[-1][1]:.4g}{unit}"
        for one in series
    )
    label = escape(f"{y_label} over {x_label}: {said}")
    drawn = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
    return Markup(drawn) + (_legend(series, ys, unit) if len(series) > 1 else "")


def tell(value: float, others: Sequence[float]) -> str:
    """A number in four digits; next to much larger ones, such as the end of a schedule, nothing."""
    return "≈ 0" if abs(value) < max(map(abs, others)) / 1000 else f"{value:.4g}"


def swatch(style: int) -> Markup:
    """A short piece of a series' line with its marker, for a legend or a table."""
    line = f'<path class="curve" d="M1,7H33"{_dash(style)}/>'
    return Markup(
        f'<svg class="swatch s{style % len(COLOURS)}" viewBox="0 0 34 14" aria-hidden="true">'
        f'{line}<path class="dot" transform="translate(17,7)" d="{_marker(style)}"/></svg>'
    )


def _curve(one: Series, places: Sequence[tuple[float, float]], unit: str) -> str:
    """The line, and markers whose titles say the value under the pointer."""
    stride = max(1, round((len(places) - 1) / NUM_MARKERS))
    shown = {*range(len(places) - 1, -1, -stride), len(places) - 1}
    dots = []
    for index in sorted(shown):
        (x, y), (at, value) = places[index], one.points[index]
        title = escape(f"{one.name + ': ' if one.name else ''}{value:.4g}{unit} at {at:.4g}")
        dots.append(
            f'<path class="dot" transform="translate({x},{y})" d="{_marker(one.style)}"><title>{title}</title></path>'
        )
    points = " ".join(f"{x},{y}" for x, y in places)
    line = f'<polyline class="curve" points="{points}"{_dash(one.style)}/>'
    return f'<g class="s{one.style % len(COLOURS)}">{line}{"".join(dots)}</g>'


def _legend(series: Sequence[Series], ys: Sequence[float], unit: str) -> Markup:
    entry = Markup("<li>{}<span>{}</span><b>{}{}</b></li>")
    entries = [entry.format(swatch(one.style), one.name, tell(one.points[-1][1], ys), unit) for one in series]
    return Markup('<ul class="legend">{}</ul>').format(Markup("").join(entries))


def _dash(style: int) -> str:
    dashes = [*SVG_DASHES.values(), "14 4", "5 2 1 2"]
    dash = dashes[style % len(dashes)]
    return f' stroke-dasharray="{dash}"' if dash else ""


def _marker(style: int) -> str:
    return list(SVG_MARKERS.values())[style % len(SVG_MARKERS)]
