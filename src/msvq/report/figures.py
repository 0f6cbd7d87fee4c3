"""Figures for a paper or a slide, as PNG and SVG: the MSVQ paper's figures 4, 5 and 6 of one's own runs."""

import logging
import re
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from msvq.core.errors import BadInput
from msvq.core.files import write_atomically
from msvq.report.curves import ALL, views
from msvq.report.pictures import class_name
from msvq.report.records import Points, Record
from msvq.report.templates import resource

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# How series look, by their number, as in chart.html.
COLOURS = re.findall(r"--c\d: (#\w+);", resource("page.css"))[:10]  # on light paper; those on dark follow
DASHES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "p", "h")
STYLE: dict[Any, Any] = {
    "text.parse_math": False,  # a class may be named $x$
    "svg.fonttype": "none",
    "svg.hashsalt": "msvq",  # the same figure is the same file
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e1d9",
    "axes.axisbelow": True,
    "savefig.dpi": 160,
}


def draw_figures(records: Sequence[Record], folder: Path) -> list[Path]:
    """Draw what the runs have: kNN curves, false negatives found, maps side by side. Return the files."""
    drawings = {"knn": _knn_curves, "false_negatives": _false_negatives, "map": draw_maps}
    drawn = {name: choose(records) for name, choose in drawings.items()}
    return [file for name, draw in drawn.items() if draw for file in save_figure(draw, folder / name)]


def _knn_curves(records: Sequence[Record]) -> Any:
    """Figure 4: what draws kNN accuracy over the epochs, one curve a run; None: there is nothing to draw."""
    curves = [(record.title, record.curve("knn_top1")) for record in records]
    if not any(len(points) > 1 for _, points in curves):
        return None

    def draw(figure: "Figure") -> None:
        axes = figure.subplots()
        for style, (name, points) in enumerate(curves):
            draw_line(axes, points, name, style)
        axes.set(xlabel="epoch", ylabel="kNN accuracy (%)")
        if len(records) > 1:
            axes.legend(frameon=False)

    return draw


def _false_negatives(records: Sequence[Record]) -> Any:
    """Figure 5: false negatives found by each soft label and by all, over the epochs, one panel a run."""
    shown = [record for record in records if len(record.curve("false_negatives.all")) > 1]
    if not shown:
        return None

    def draw(figure: "Figure") -> None:
        figure.set_size_inches(1.4 + 4.2 * len(shown), 3.6)
        panels = figure.subplots(1, len(shown), squeeze=False, sharey=True)[0]
        for axes, record in zip(panels, shown, strict=True):
            for style, view in enumerate((*views(record), ALL)):
                draw_line(axes, record.curve(f"false_negatives.{view}"), view, style)
            axes.set(xlabel="epoch", title=record.title if len(records) > 1 else "")
        panels[0].set(ylabel="false negatives found per picture")
        panels[0].legend(frameon=False)

    return draw


def draw_maps(records: Sequence[Record]) -> Any:
    """Figure 6: what draws one run before and after training, or two runs after it, side by side; None: no maps."""
    found = [(record, record.arrays("map")) for record in records]
    found = [(record, saved) for record, saved in found if saved and len(saved["labels"])]
    if not found:
        return None
    panels = [(record.title, saved, saved["after"]) for record, saved in found[:2]]
    if len(panels) == 1:
        saved = found[0][1]
        panels = [(f"{when} training", saved, saved[when]) for when in ("before", "after")]

    def draw(figure: "Figure") -> None:
        figure.set_size_inches(9.2, 5.4)
        drawn: dict[str, Any] = {}
        names = {class_name(s["class_names"], label) for _, s, _ in panels for label in np.unique(s["labels"])}
        order = sorted(names, key=_places(panels).__getitem__)
        for axes, (title, saved, points) in zip(figure.subplots(1, 2), panels, strict=True):
            labels = np.array([class_name(saved["class_names"], label) for label in saved["labels"]])
            for style, name in enumerate(order):
                x, y = points[labels == name].T
                drawn[name] = axes.scatter(x, y, s=9, linewidths=0.4, alpha=0.85, **_mark(style, bool(name)))
            axes.set(title=title, xlabel="t-SNE, first axis", ylabel="t-SNE, second axis")
            axes.set(xticks=[], yticks=[], aspect="equal", xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
        if 1 < len(drawn) <= 30:
            shown = [f" {name}" for name in drawn]  # a name that begins with _ would be left out
            figure.legend(drawn.values(), shown, loc="outside lower center", ncols=6, frameon=False, markerscale=2)

    return draw


def _places(panels: Sequence[tuple[str, dict[str, Any], Any]]) -> dict[str, int]:
    """Each class's place in the first list of names that has it, so that it looks as on the page."""
    places = {class_name([], -1): -1}
    for _, saved, _ in panels:
        for label in np.unique(saved["labels"]).tolist():
            places.setdefault(class_name(saved["class_names"], label), label)
    return places


def _mark(style: int, is_class: bool) -> dict[str, Any]:
    if not is_class:
        return {"color": COLOURS[1], "marker": "o"}
    shape = (style + style // len(COLOURS)) % len(MARKERS)
    return {"color": COLOURS[style % len(COLOURS)], "marker": MARKERS[shape]}


def draw_line(axes: "Axes", points: Points, name: str, style: int) -> None:
    """A curve whose colour, dash and marker follow from its number, so that none is told by its colour alone."""
    if points:
        x, y = zip(*points, strict=True)
        look: dict[str, Any] = {"color": COLOURS[style % len(COLOURS)], "linestyle": DASHES[style % len(DASHES)]}
        every = max(1, len(points) // 10)
        axes.plot(x, y, label=f" {name}", marker=MARKERS[style % len(MARKERS)], markersize=5, markevery=every, **look)


def save_figure(draw: Any, path: Path) -> list[Path]:
    """Draw once, write twice. Imported here: it takes a second, and a page needs none of it."""
    log = logging.getLogger("matplotlib")
    level = log.level
    log.setLevel(logging.ERROR)  # where there is no home, it warns that it keeps its fonts elsewhere
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except UnicodeDecodeError:
        raise BadInput("matplotlib's settings, in a file matplotlibrc, are no text; remove it") from None
    finally:
        log.setLevel(level)

    written = []
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # letters that the font lacks
        matplotlib.rcdefaults()  # whatever a matplotlibrc says, for that of the current folder may be a stranger's
        matplotlib.rcParams.update(STYLE)
        figure = Figure(figsize=(5.4, 3.6), layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure)
        figure.draw_without_rendering()  # once more settles it: margins decide the ticks, whose letters need margins
        for suffix, metadata in ((".png", {}), (".svg", {"Date": None})):
            file = path.with_name(path.name + suffix)
            write_atomically(file, partial(figure.savefig, format=suffix[1:], metadata=metadata))
            written.append(file)
    return written
