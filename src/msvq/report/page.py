"""`report.html`: one self-contained page about a run, from the files in its directory alone."""

import base64
import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from jinja2 import Environment, PackageLoader
from numpy.typing import NDArray
from PIL import Image

from msvq.files import write_text
from msvq.report.chart import line_chart
from msvq.train.runlog import read_metrics

THUMBNAIL = 64  # pixels at least: small pictures are enlarged without smoothing


def write_report(run: Path) -> Path:
    """Write the run's page and return its path."""
    settings = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    metrics = read_metrics(run / "metrics.jsonl")
    losses = [(line["step"], line["loss"]) for line in metrics if line["kind"] == "step"]
    scores = [(line["epoch"], line["knn_top1"]) for line in metrics if "knn_top1" in line]
    ranks = [(line["epoch"], line["rank"]) for line in metrics if "rank" in line]
    health = [line for line in metrics if "rank" in line]
    environment = Environment(loader=PackageLoader("msvq", "report"), autoescape=True, trim_blocks=True)
    page = environment.get_template("page.html").render(
        title=run.name,
        method=settings["method"]["name"],
        source=settings["data"]["source"],
        settings=yaml.safe_dump({k: v for k, v in settings.items() if k != "method_defaults"}, sort_keys=False),
        environment=_read_json(run / "environment.json"),
        table=_read_json(run / "eval" / "demo.json"),
        loss_chart=line_chart(smooth(losses), x_label="step", y_label="loss") if len(losses) > 1 else None,
        knn_chart=line_chart(scores, x_label="epoch", y_label="kNN accuracy", unit=" %") if len(scores) > 1 else None,
        knn=scores,
        rank_chart=line_chart(ranks, x_label="epoch", y_label="rank") if len(ranks) > 1 else None,
        health=health,
        skipped=_count_lines(run / "skipped.csv"),
        neighbours=_read_neighbours(run / "eval" / "neighbours.npz"),
    )
    write_text(run / "report.html", page)
    return run / "report.html"


def smooth(points: list[tuple[float, float]], num: int = 200) -> list[tuple[float, float]]:
    """At most `num` points, each the mean of its stretch of the curve."""
    chunks = np.array_split(np.array(points, dtype=float), min(num, len(points)))
    return [(float(chunk[-1, 0]), float(chunk[:, 1].mean())) for chunk in chunks]


def _count_lines(path: Path) -> int:
    """Rows of a CSV file after its header."""
    if not path.is_file():
        return 0
    with path.open(encoding="utf-8", newline="") as file:
        return max(0, sum(1 for _ in csv.reader(file)) - 1)


def _read_json(path: Path) -> Mapping[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _read_neighbours(path: Path) -> list[dict[str, Any]]:
    """Rows of a query and its neighbours, each a thumbnail with its class and whether that is the query's."""
    if not path.is_file():
        return []
    with np.load(path, allow_pickle=False) as arrays:
        saved = {name: arrays[name] for name in arrays.files}

    def cell(image: NDArray[np.uint8], label: int, truth: int) -> dict[str, Any]:
        name = str(saved["class_names"][label]) if label >= 0 else ""
        return {"src": thumbnail(image), "name": name, "same": label >= 0 and label == truth}

    rows = []
    for index, truth in enumerate(saved["query_labels"]):
        row: dict[str, Any] = {"labelled": truth >= 0, "query": cell(saved["queries"][index], truth, truth)}
        for when in ("before", "after"):
            found = zip(saved[when][index], saved[f"{when}_labels"][index], strict=True)
            row[when] = [cell(image, label, truth) for image, label in found]
        rows.append(row)
    return rows


def thumbnail(image: NDArray[np.uint8]) -> str:
    """A picture uint8 [H, W, 3] as a PNG in a data address."""
    picture = Image.fromarray(image)
    factor = max(1, THUMBNAIL // max(picture.size))
    picture = picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST)
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
