"""A run at a glance, as a notebook shows it: a few lines and two small charts, without the page around them."""

from pathlib import Path

from msvq.core.console import printable
from msvq.report.curves import MAIN, charts
from msvq.report.records import read_record
from msvq.report.tables import result_rows
from msvq.report.templates import resource, templates

SHOWN = ("knn_top1", "loss")


def summary(run: Path) -> str:
    """HTML that brings its own style, for what belongs to it alone. Names are escaped."""
    record = read_record(run)
    return (
        templates()
        .get_template("summary.html")
        .render(
            title=record.title,
            method=printable(record.method),
            source=printable(record.source),
            epochs=max((line["epoch"] for line in record.metrics if line.get("kind") == "epoch"), default=0),
            results=result_rows(record),
            charts=charts([record], [curve for curve in MAIN if curve.key in SHOWN]),
            style=resource("summary.css"),
        )
    )
