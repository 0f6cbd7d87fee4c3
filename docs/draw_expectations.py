"""Make the figure and the table of docs/what-to-expect.md: `python docs/draw_expectations.py`.

Both are of benchmarks/what-to-expect.json, which benchmarks/time_to_accuracy.py writes. A number is a run's in the end,
planned for so many minutes; the thin lines are what runs had on their way.
"""

import json
import re
from collections.abc import Iterable
from html import escape
from math import ceil, floor, log
from pathlib import Path
from statistics import mean
from typing import Any

from msvq.data.sources.benchmarks import BENCHMARKS

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "benchmarks" / "what-to-expect.json"
PAGE = ROOT / "docs" / "what-to-expect.md"
FIGURE = ROOT / "docs" / "images" / "what-to-expect.svg"
BLOCK = re.compile(r"(?<=<!-- made by docs/draw_expectations.py -->\n).*?(?=<!-- end of what is made -->)", re.DOTALL)

INK, SOFT, PAPER, LINES = "#1d2230", "#667085", "#fbfaf7", "#d9dbe1"
CONTENDERS = {
    "budget": ("msvq with a budget", "#b5471f"),
    "ours": ("MSVQ as in the paper", "#1b6b6f"),
    "mocov2": ("our MoCoV2 at the same recipe", "#8a6d1f"),
    "lightly-simclr": ("lightly's SimCLR", "#6b2d5c"),
    "lightly-mocov2": ("lightly's MoCoV2", "#3d5a98"),
    "lightly-byol": ("lightly's BYOL", "#5b7f3a"),
    "lightly-fastsiam": ("lightly's FastSiam", "#a0508a"),
}
SHORTEST, LONGEST, TICKS = 1, 480, (1, 2, 5, 10, 20, 60, 120, 240, 480)
WIDTH, HEIGHT, LEFT, TOP, HEAD = 560, 340, 50, 40, 60  # of a panel, of its margins, and of the legend above all

Run = dict[str, Any]


def top1(run: Run) -> float:
    """In the end."""
    return float(run["curve"][-1]["knn_top1"])


def machine(run: Run) -> str:
    """Where it was trained, in words."""
    return f"{run['processor']}, {run['threads']} threads, bf16 {'native' if run['bf16'] else 'not native'}"


def pictures(run: Run) -> str:
    """What it was trained on, in words."""
    title = BENCHMARKS[run["data"]].title
    return f"{title}, {run['classes']} classes, {run['size']} px"


def by(key: Any, runs: Iterable[Run]) -> dict[Any, list[Run]]:
    """Runs in groups: contenders in their order, then minutes and seeds in theirs."""
    groups: dict[Any, list[Run]] = {}
    for run in sorted(
        runs, key=lambda run: (run["data"], [*CONTENDERS].index(run["contender"]), run["minutes"], run["seed"])
    ):
        groups.setdefault(key(run), []).append(run)
    return groups


def finals(runs: Iterable[Run]) -> dict[str, dict[float, list[float]]]:
    """What each contender has in the end, by minutes: a number of each seed."""
    return {
        name: {minutes: [top1(run) for run in ones] for minutes, ones in by(lambda run: run["minutes"], theirs).items()}
        for name, theirs in by(lambda run: run["contender"], runs).items()
    }


def leaders(found: dict[str, dict[float, list[float]]]) -> dict[float, str]:
    """Who has most, by the mean of the seeds, at the minutes that several were given."""
    all_minutes = sorted({minutes for values in found.values() for minutes in values})
    several = {minutes: [name for name in found if minutes in found[name]] for minutes in all_minutes}
    return {
        minutes: max(names, key=lambda name: mean(found[name][minutes]))
        for minutes, names in several.items()
        if len(names) > 1
    }


# --- the table


def make_block(runs: list[Run]) -> str:
    """What stands between the marks of the page: the table, who leads, and what msvq trained."""
    if not runs:
        return "No run is measured yet.\n"
    return "\n".join(
        f"On {name}:\n\n{table(ones)}\n{tell(ones)}{last_layer(ones)}" for name, ones in by(machine, runs).items()
    )


def table(runs: list[Run]) -> str:
    """kNN by contender and minutes, all seeds; the leader is bold."""
    minutes = sorted({run["minutes"] for run in runs})
    lines = [
        f"| kNN, %, after minutes | {' | '.join(f'{one:g}' for one in minutes)} |",
        "|---" * (len(minutes) + 1) + "|",
    ]
    for name, ones in by(pictures, runs).items():
        found = finals(ones)
        leading = leaders(found)
        lines.append(f"| **{name}** |" + " |" * len(minutes))
        for contender, values in found.items():
            cells = [", ".join(f"{value:.1f}" for value in values.get(one, [])) for one in minutes]
            bold = [
                f"**{cell}**" if leading.get(one) == contender else cell
                for one, cell in zip(minutes, cells, strict=True)
            ]
            lines.append(f"| {CONTENDERS[contender][0]} | {' | '.join(bold)} |")
    return "\n".join(lines) + "\n"


def tell(runs: list[Run]) -> str:
    """Sentences: who leads when, and which networks msvq took."""
    lines = []
    for name, ones in by(pictures, runs).items():
        leading = leaders(finals(ones))
        for contender in dict.fromkeys(leading.values()):
            when = ", ".join(f"{minutes:g}" for minutes, leader in leading.items() if leader == contender)
            lines.append(f"- {name}: {CONTENDERS[contender][0]} leads after {when} min.")
        taken = by(lambda run: run["pace"]["network"], [run for run in ones if run["contender"] == "budget"])
        for network, theirs in taken.items():
            when = ", ".join(f"{minutes:g}" for minutes in dict.fromkeys(run["minutes"] for run in theirs))
            lines.append(f"- {name}: msvq took {network} for {when} min.")
    return "\n".join(lines) + "\n"


def last_layer(runs: list[Run]) -> str:
    """What each contender has with and without a last layer that whitens, in the mean of its seeds."""
    lines = []
    for name, ones in by(pictures, [run for run in runs if "knn_plain" in run["curve"][-1]]).items():
        for (contender, minutes), theirs in by(lambda run: (run["contender"], run["minutes"]), ones).items():
            plain, white = (mean(run["curve"][-1][key] for run in theirs) for key in ("knn_plain", "knn_whitened"))
            lines.append(f"| {name} | {CONTENDERS[contender][0]} | {minutes:g} | {plain:.1f} | {white:.1f} |")
    head = "| means of the seeds | | minutes | plain features | whitened |\n|---|---|---|---|---|\n"
    return f"\n{head}" + "\n".join(lines) + "\n" if lines else ""


# --- the figure


def text(x: float, y: float, words: str, colour: str = SOFT, *, anchor: str = "middle", size: float = 12) -> str:
    """A few words."""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} fill="{colour}" font-size="{size}">{escape(words)}</text>'


def line(points: list[tuple[float, float]], colour: str, *, width: float, opacity: float = 1.0) -> str:
    """Through some points."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}" opacity="{opacity}"/>'


def panel(runs: list[Run], left: float, top: float) -> str:
    """Accuracy against minutes on one data set and machine; minutes grow by factors."""
    wide, high = WIDTH - LEFT - 20, HEIGHT - TOP - 40
    left, top = left + LEFT, top + TOP
    points = [(point["minutes"], point["knn_top1"]) for run in runs for point in run["curve"]]
    seen = [value for minutes, value in points if minutes >= SHORTEST] + [top1(run) for run in runs]
    low, most = 10 * floor(min(seen) / 10), 10 * ceil((max(seen) + 0.1) / 10)
    first = min(SHORTEST, *(run["minutes"] for run in runs))
    last = max(LONGEST, *(run["minutes"] for run in runs))

    def place(minutes: float, value: float) -> tuple[float, float]:
        return left + wide * log(minutes / first) / log(last / first), top + high * (most - value) / (most - low)

    parts = [
        f'<rect x="{left}" y="{top}" width="{wide}" height="{high}" fill="#fff" stroke="{LINES}"/>',
        text(left, top - 22, pictures(runs[0]), INK, anchor="start", size=14),
        text(left, top - 7, machine(runs[0]), anchor="start"),
        text(left + wide / 2, top + high + 34, "minutes of training"),
    ]
    for tick in TICKS:
        x, _ = place(tick, low)
        parts += [line([(x, top), (x, top + high)], LINES, width=1), text(x, top + high + 17, str(tick))]
    for value in range(low, most + 1, 10):
        _, y = place(first, value)
        parts += [
            line([(left, y), (left + wide, y)], LINES, width=1),
            text(left - 6, y + 4, f"{value} %", anchor="end"),
        ]
    for name, ones in by(lambda run: run["contender"], runs).items():
        colour = CONTENDERS[name][1]
        for run in ones:
            way = [place(point["minutes"], point["knn_top1"]) for point in run["curve"] if point["minutes"] >= first]
            parts.append(line(way, colour, width=1, opacity=0.35))
            x, y = place(run["minutes"], top1(run))
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>')
        means = [place(minutes, mean(values)) for minutes, values in finals(ones)[name].items()]
        parts.append(line(means, colour, width=2))
    return "".join(parts)


def drawing(runs: list[Run]) -> str:
    """A panel for each data set, a row for each machine."""
    rows = [by(pictures, ones) for ones in by(machine, runs).values()]
    width, height = 2 * WIDTH, HEAD + HEIGHT * len(rows)
    panels = [
        panel(ones, number * WIDTH, HEAD + row * HEIGHT)
        for row, columns in enumerate(rows)
        for number, ones in enumerate(columns.values())
    ]
    names = list(by(lambda run: run["contender"], runs))
    legend = [
        text(
            20 + 260 * (number % 4),
            22 + 22 * (number // 4),
            f"● {CONTENDERS[name][0]}",
            CONTENDERS[name][1],
            anchor="start",
            size=14,
        )
        for number, name in enumerate(names)
    ] or [text(20, 36, "No run is measured yet.", INK, anchor="start", size=14)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="kNN accuracy against minutes of training" font-family="system-ui, sans-serif">'
        f'<rect width="{width}" height="{height}" fill="{PAPER}"/>{"".join([*legend, *panels])}</svg>\n'
    )


def refresh(page: str, runs: list[Run]) -> str:
    """The page's text with its block made anew."""
    return BLOCK.sub(lambda _: f"\n{make_block(runs)}\n", page)


if __name__ == "__main__":
    measured = json.loads(RUNS.read_text(encoding="utf-8"))["runs"]
    FIGURE.write_text(drawing(measured), encoding="utf-8")
    PAGE.write_text(refresh(PAGE.read_text(encoding="utf-8"), measured), encoding="utf-8")
