"""Line charts as inline SVG, coloured by the page's own style sheet."""

from collections.abc import Sequence
from math import floor, log10

from markupsafe import Markup, escape

WIDTH, HEIGHT = 560, 280
LEFT, RIGHT, TOP, BOTTOM = 46, 22, 14, 36


def ticks(low: float, high: float, num: int = 5) -> list[float]:
    """About `num` round numbers that span low..high."""
    span = max(high - low, 1e-9)
    power = 10 ** floor(log10(span / num))
    step = next(power * m for m in (1, 2, 5, 10) if power * m * num >= span)
    first = floor(low / step + 1e-9)
    numbers = [round(step * i, 10) for i in range(first, first + 2 * num + 2)]
    last = next(index for index, number in enumerate(numbers) if number >= high - 1e-9)
    return numbers[: max(last, 1) + 1]


def line_chart(points: Sequence[tuple[float, float]], *, x_label: str, y_label: str, unit: str = "") -> Markup:
    """One curve through (x, y) points, with axes from round numbers and the last value written out."""
    xs, ys = [x for x, _ in points], [y for _, y in points]
    x_ticks, y_ticks = ticks(min(xs), max(xs)), ticks(min(ys), max(ys))
    x_low, x_high = x_ticks[0], max(x_ticks[-1], max(xs))
    y_low, y_high = y_ticks[0], y_ticks[-1]
    left = max(LEFT, 12 + 7 * max(len(f"{tick:g}") for tick in y_ticks))  # room for long numbers

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_low) / (x_high - x_low) * (WIDTH - left - RIGHT)
        up = (y - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM)
        return round(left + across, 1), round(HEIGHT - BOTTOM - up, 1)

    parts = []
    for tick in y_ticks:
        _, y = place(x_low, tick)
        parts.append(f'<line class="grid" x1="{left}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4}" text-anchor="end">{tick:g}</text>')
    for tick in x_ticks:
        x, _ = place(tick, y_low)
        parts.append(f'<text x="{x}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{tick:g}</text>')
    curve = " ".join(f"{x},{y}" for x, y in (place(*point) for point in points))
    parts.append(f'<polyline class="curve" points="{curve}"/>')
    x, y = place(*points[-1])
    parts.append(f'<circle class="dot" cx="{x}" cy="{y}" r="4"/>')
    above = y - 10 if y > TOP + 24 else y + 22
    parts.append(f'<text class="last" x="{x}" y="{above}" text-anchor="end">{points[-1][1]:.4g}{escape(unit)}</text>')
    parts.append(
        f'<text x="{(left + WIDTH - RIGHT) / 2}" y="{HEIGHT - 4}" text-anchor="middle">{escape(x_label)}</text>'
    )
    label = escape(f"{y_label} over {x_label}: from {ys[0]:.4g} to {ys[-1]:.4g}{unit}")
    return Markup(f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg>')
