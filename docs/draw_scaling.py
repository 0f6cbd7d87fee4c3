"""Draw how cost grows: `python docs/draw_scaling.py scaling.json`, from what benchmarks/scaling.py wrote."""

import json
import sys
from html import escape
from math import log2
from pathlib import Path
from typing import Any

INK, SOFT, PAPER, TIME, MEMORY = "#1d2230", "#667085", "#fbfaf7", "#b5471f", "#1b6b6f"
WIDTH, HEIGHT, PLOT, GAP, TOP = 1100, 300, 170, 44, 70
TITLES = {
    "batch": "batch",
    "queue": "queue",
    "width": "width",
    "resolution": "resolution, px",
    "labels": "soft labels",
}


def curve(points: list[tuple[float, float]], left: float, colour: str) -> str:
    """Points in 0..1 as a line with dots."""
    places = [(left + x * PLOT, TOP + (1 - y) * PLOT) for x, y in points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in places)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>{dots}'


def text(x: float, y: float, words: str, colour: str = SOFT, *, anchor: str = "middle", size: float = 12) -> str:
    """A few words."""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} fill="{colour}" font-size="{size}">{escape(words)}</text>'


def panel(name: str, rows: list[dict[str, Any]], left: float, reach: float) -> str:
    """Time and memory relative to the first point, both axes doubling: a line at 45 degrees is proportional."""
    parts = [
        f'<rect x="{left}" y="{TOP}" width="{PLOT}" height="{PLOT}" fill="#fff" stroke="#d9dbe1"/>',
        text(left + PLOT / 2, TOP - 12, TITLES[name], INK, size=14),
    ]
    first, span = rows[0], log2(rows[-1]["value"] / rows[0]["value"])
    for key, colour in (("seconds", TIME), ("megabytes", MEMORY)):
        points = [(log2(row["value"] / first["value"]) / span, log2(row[key] / first[key]) / reach) for row in rows]
        parts.append(curve(points, left, colour))
    for row in rows:
        x = left + log2(row["value"] / first["value"]) / span * PLOT
        parts.append(
            text(x, TOP + PLOT + 18, f"{row['value'] // 1024}k" if row["value"] >= 1024 else str(row["value"]))
        )
    last = rows[-1]
    for key, colour, unit, line in (("seconds", TIME, "s", 38), ("megabytes", MEMORY, "MB", 54)):
        values = (
            f"{first[key]:.2f} to {last[key]:.2f} s" if unit == "s" else f"{first[key]:,.0f} to {last[key]:,.0f} MB"
        )
        parts.append(text(left + PLOT / 2, TOP + PLOT + line, values, colour))
    return "".join(parts)


def drawing(curves: dict[str, list[dict[str, Any]]]) -> str:
    """All panels side by side, on one vertical scale."""
    reach = max(
        log2(row[key] / rows[0][key]) for rows in curves.values() for row in rows for key in ("seconds", "megabytes")
    )
    panels = [
        panel(name, rows, 20 + index * (PLOT + GAP), reach * 1.05) for index, (name, rows) in enumerate(curves.items())
    ]
    label = "Time and memory of a training step against batch, queue, width, resolution and number of soft labels"
    head = text(20, 28, "time of a step", TIME, anchor="start", size=14) + text(
        130,
        28,
        "most memory of the process, each relative to its first point; both axes double",
        MEMORY,
        anchor="start",
        size=14,
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}" '
        f'font-family="system-ui, sans-serif"><rect width="{WIDTH}" height="{HEIGHT}" fill="{PAPER}"/>'
        f"{head}{''.join(panels)}</svg>\n"
    )


if __name__ == "__main__":
    measured = json.loads(Path(sys.argv[1]).read_text())
    Path("docs/images/scaling.svg").write_text(drawing(measured["curves"]))
