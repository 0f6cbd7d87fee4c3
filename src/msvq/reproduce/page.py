"""The files that a sweep leaves beside its runs: a study in every form, its figures, and a page about all so far."""

import base64
import json
import operator
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msvq.core.errors import BadInput
from msvq.core.files import write_text
from msvq.report.chart import COLOURS
from msvq.report.figures import draw_line, draw_maps, save_figure
from msvq.report.page import resource, templates
from msvq.report.records import read_record
from msvq.reproduce import formats
from msvq.reproduce.experiments import CELLS, STUDIES, find_scale
from msvq.reproduce.paper import TITLES
from msvq.reproduce.sweep import RESULTS, read_manifest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE = "report.html"
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


def write_study(out: Path, result: Mapping[str, Any], figures: list[Path]) -> list[Path]:
    """Write a result as JSON, Markdown, LaTeX and CSV. Returns the files, the Markdown first."""
    name, folder = result["name"], out / RESULTS
    picture = next((file.name for file in figures if file.suffix == ".svg"), None)
    files = {
        folder / f"{name}.md": formats.markdown(result, figure=picture),
        folder / f"{name}.json": json.dumps(result, indent=1) + "\n",
        folder / f"{name}.tex": formats.latex(result),
        folder / f"{name}.csv": formats.as_csv(result),
    }
    if result["claims"]:
        files[folder / f"{name}-claims.csv"] = formats.claims_csv(result)
    for path, text in files.items():
        write_text(path, text)
    return [*files, *figures]


def write_page(out: Path) -> Path:
    """The page about everything that was reproduced in this directory so far."""
    manifest = read_manifest(out)
    found = {path.stem: path for path in (out / RESULTS).glob("*.json")}
    studies, unreadable = [], []
    for name in STUDIES:
        if name in found:
            try:
                studies.append(_study(json.loads(found[name].read_text(encoding="utf-8")), out))
            except (ValueError, KeyError, TypeError, AttributeError):  # the numbers of others are worth a page
                unreadable.append(f"{RESULTS}/{name}.json")
    cells = [
        {
            "name": name,
            "link": f"{CELLS}/{name}/report.html",
            "hours": f"{facts['seconds'] / 3600:.2f}" if facts.get("seconds") else "",
            "failed": facts.get("failed", ""),
        }
        for name, facts in sorted(manifest["cells"].items())
    ]
    scale = manifest["scale"]
    page = templates().get_template("reproduction.html")
    text = page.render(
        title=f"Reproduction of MSVQ, scale {scale}",
        scale=scale,
        note=_note(scale),
        studies=studies,
        wordy=(formats.OTHERS, "verdict"),  # columns of words, which wrap
        unreadable=unreadable,
        cells=cells,
        style=resource("page.css"),
    )
    write_text(out / PAGE, text)
    return out / PAGE


def _note(scale: str) -> str:
    """What a scale is, in a sentence; nothing of one that another version made."""
    try:
        text = find_scale(scale).note
    except BadInput:
        return ""
    return text[0].upper() + text[1:]


def _study(result: Mapping[str, Any], out: Path) -> dict[str, Any]:
    picture = out / RESULTS / f"{result['name']}.png"
    shown = base64.b64encode(picture.read_bytes()).decode() if picture.is_file() else ""
    return {
        "name": result["name"],
        "heading": formats.heading(result),
        "figure": f"data:image/png;base64,{shown}" if shown else "",
        "sections": formats.sections(result),
        "crossings": formats.crossing_sentences(result),
        "notes": formats.notes(result),
        "command": result["command"],
    }
