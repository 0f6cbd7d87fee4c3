"""Line charts as inline SVG, coloured by the page's own style sheet.

Series differ in colour, dash and marker, so that none is told by its colour alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import floor, log10
from typing import Any

from markupsafe import Markup

from msvq.evaluate.results import percent
from msvq.report.records import Points
from msvq.report.templates import templates

# Drawn about as large as it is shown, on a phone as in three columns: so letters keep their size.
WIDTH, HEIGHT = 360, 220
LEFT, RIGHT, TOP, BOTTOM = 38, 16, 14, 36
NUM_MARKERS = 8  # about so many on a curve: more would hide it


@dataclass(frozen=True)
class Series:
    """One curve: its name, its points, and the number that decides colour, dash and marker."""

    name: str
    points: Points
    style: int = 0

    @property
    def marked(self) -> Points:
        """The points that get a marker, whose title says the value under the pointer; the last is one of them."""
        last = len(self.points) - 1
        stride = max(1, round(last / NUM_MARKERS))
        return self.points[last % stride :: stride]


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
    xs, ys = zip(*(point for one in series for point in one.points), strict=True)
    x_ticks, y_ticks = ticks(min(xs), max(xs)), ticks(min(ys), max(ys), 4)
    left = max(LEFT, 14 + 7 * max(len(f"{tick:g}") for tick in y_ticks))  # room for long numbers
    top = TOP + (14 if len(series) == 1 else 0)  # room for the last value
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_ticks[0]) / (max(x_ticks[-1], max(xs)) - x_ticks[0]) * (right - left)
        up = (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0]) * (bottom - top)
        return round(left + across, 1), round(bottom - up, 1)

    plot = {"width": WIDTH, "height": HEIGHT, "left": left, "right": right, "bottom": bottom, "place": place}
    plot |= {"x_ticks": x_ticks, "y_ticks": y_ticks, "tell": partial(tell, unit=unit)}
    plot |= {"last": [tell(one.points[-1][1], ys, unit) for one in series]}
    macros: Any = templates().get_template("chart.html").module
    return Markup(macros.line_chart(series, plot, x_label, y_label))


def tell(value: float, others: Sequence[float] = (), unit: str = "") -> str:
    """A percentage, or a number in four digits; next to much larger ones, such as the end of a schedule, nothing."""
    if unit == " %":
        return percent(value)
    return "≈ 0" if abs(value) < max(map(abs, others), default=0) / 1000 else f"{value:.4g}{unit}"
