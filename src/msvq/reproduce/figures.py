"""The paper's figures 4, 5 and 6 of one's own runs, as PNG and SVG."""

import operator
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msvq.report.figures import COLOURS, draw_line, draw_maps, save_figure
from msvq.report.records import read_record
from msvq.reproduce.paper import TITLES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Y_LABELS = {"curves": "kNN accuracy (%)", "false-negatives": "false negatives found per picture"}


def draw_curves(result: Mapping[str, Any], path: Path) -> list[Path]:
    """Curves over the epochs, a panel for each data set, the deviation over seeds as a band."""
    panels = [panel for panel in result["panels"] if any(panel["series"].values())]
    if not panels:
        return []

    def draw(figure: "Figure") -> None:
        figure.set_size_inches(1.2 + 4.4 * len(panels), 3.6)
        axes_of = figure.subplots(1, len(panels), squeeze=False)[0]
        for axes, panel in zip(axes_of, panels, strict=True):
            for style, (name, points) in enumerate(panel["series"].items()):
                draw_line(axes, [(point["epoch"], point["mean"]) for point in points], name, style)
                spread = [point for point in points if point["std"] is not None]
                if spread:
                    low = [point["mean"] - point["std"] for point in spread]
                    high = [point["mean"] + point["std"] for point in spread]
                    epochs = [point["epoch"] for point in spread]
                    axes.fill_between(epochs, low, high, color=COLOURS[style % len(COLOURS)], alpha=0.15, linewidth=0)
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.set(xlabel="epoch", title=TITLES[panel["dataset"]])
            if steps := panel["steps_per_epoch"]:
                over = axes.secondary_xaxis(
                    -0.24, functions=(partial(operator.mul, steps), lambda number, steps=steps: number / steps)
                )
                over.set_xlabel("steps")
        axes_of[0].set(ylabel=Y_LABELS[result["kind"]])
        axes_of[0].legend(frameon=False)

    return save_figure(draw, path)


def draw_tsne(runs: Mapping[str, Path], path: Path) -> list[Path]:
    """Maps of finished runs side by side: title -> run directory."""
    records = [replace(read_record(run), title=title) for title, run in runs.items()]
    draw = draw_maps(records)
    return [] if draw is None else save_figure(draw, path)
