"""`report.html`: one self-contained page about one run or several, from the files in their directories alone."""

import base64
import hashlib
import shlex
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from jinja2 import ChoiceLoader, Environment, PackageLoader
from markupsafe import Markup

from msvq.core.console import printable
from msvq.core.errors import BadInput
from msvq.core.files import check_no_link, check_not_of_a_run, check_places, resolve_parent, write_text
from msvq.report.curves import MAIN, MORE, charts, false_negative_charts, teacher_charts
from msvq.report.figures import draw_figures
from msvq.report.maps import first_views, map_data
from msvq.report.numbers import class_rows, comparison, confusion, number, result_rows, soft_label_rows, verdict
from msvq.report.pictures import gallery, neighbour_rows
from msvq.report.records import Record, read_record, read_records

SCRIPTS = ("page.js", "map.js")
WRITTEN = ("report.html", "figures")  # in a run
AT_A_GLANCE = ("knn_top1", "loss")  # curves of the summary


def write_report(runs: Path | Sequence[Path], out: Path | None = None, *, figures: bool = True) -> Path:
    """Write the page of one run, or of several side by side, and return its path.

    Without `out` it is `report.html` in the run, or beside the first of several. `figures` are written to each
    run's own `figures`; those that compare several runs, to `<name of the page>-figures` beside the page.
    """
    paths = [runs] if isinstance(runs, Path) else list(runs)
    if not paths:
        raise ValueError("a report needs at least one run")
    if out is None:
        out = (paths[0] if len(paths) == 1 else paths[0].parent) / "report.html"
    compared = out.with_name(f"{out.stem}-figures")
    if len(paths) > 1:
        check_no_link(compared)
    for path in paths:
        check_places(path, WRITTEN)
    records = read_records(paths)
    write_text(out, render(records))
    if figures:
        for record in records:
            draw_figures([record], record.path / "figures")
        if len(records) > 1:
            draw_figures(records, compared)
    return out


def report_on(runs: Sequence[Path], *, out: Path | None = None) -> Path:
    """`msvq report`: the page of runs that a person names."""
    for run in runs:
        if not (run / "config.yaml").is_file():
            raise BadInput(f"{str(run)!r} is not a run: there is no config.yaml in it")
    if len(runs) > 1 and out is None:
        raise BadInput("a page about several runs belongs to none of them; say where it goes with --out compare.html")
    if out is not None and out.is_dir():
        raise BadInput(f"--out {str(out)!r} is a directory; name a file such as {str(out / 'report.html')!r}")
    if out is not None and out.suffix.lower() not in (".html", ".htm"):
        raise BadInput(f"--out {str(out)!r} should end in .html: the report is a page")
    if out is not None and (len(runs) > 1 or resolve_parent(out) != resolve_parent(runs[0] / "report.html")):
        check_not_of_a_run("--out", out)
    return write_report(list(runs), out)


def render(records: Sequence[Record]) -> str:
    """The page as text."""
    environment = templates()
    environment.filters["number"] = number
    maps, sheets = map_data(records)
    scripts = [resource(name) for name in SCRIPTS]
    several = len(records) > 1
    return environment.get_template("page.html").render(
        title=" · ".join(record.title for record in records),
        several=several,
        runs=[_run(record, own_curves=not several) for record in records],
        comparison=comparison(records) if several else None,
        charts=charts(records, MAIN) if several else [],
        more_charts=charts(records, MORE) if several else [],
        map=maps,
        map_sheets=sheets,
        map_start=first_views(maps) if maps else (0, 0),
        style=resource("page.css"),
        scripts=scripts,
        hashes=[_hash(script) for script in scripts],
    )


def summary(run: Path) -> str:
    """A run at a glance, as a notebook shows it: HTML that brings its own style, for what belongs to it alone."""
    record = read_record(run)
    template = templates().get_template("summary.html")
    return template.render(
        title=record.title,
        method=printable(record.method),
        source=printable(record.source),
        epochs=record.num_epochs,
        results=result_rows(record),
        charts=charts([record], [curve for curve in MAIN if curve.key in AT_A_GLANCE]),
        style=resource("summary.css"),
    )


def _run(record: Record, *, own_curves: bool) -> dict[str, Any]:
    """What the page says about one run."""
    more = [curve for curve in MORE if curve.key != "false_negatives.all"]  # it is in the chart of all soft labels
    found = {
        "neighbours": neighbour_rows(record),
        "confusion": confusion(record),
        "gallery": gallery(record),
        "soft_labels": soft_label_rows(record.false_negatives),
    }
    return {
        "title": record.title,
        "method": record.method,
        "source": printable(record.source),
        "how": _how(record),
        "num_skipped": record.num_skipped,
        "verdict": verdict(record),
        "charts": charts([record], MAIN) if own_curves else [],
        "more_charts": charts([record], more) + teacher_charts(record) if own_curves else [],
        "teacher_charts": teacher_charts(record),
        "results": result_rows(record),
        "false_negatives": record.false_negatives,
        "false_negative_charts": false_negative_charts(record),
        "by_class": class_rows(record.false_negatives),
        "settings": _settings(record),
        "environment": {key: printable(str(value)) for key, value in record.environment.items()},
        "command": printable(
            f"msvq pretrain --recipe {shlex.quote(str(record.path / 'config.yaml'))} --out runs/again"
        ),
        "absent": _absent(record, found),
        **found,
    }


def _how(record: Record) -> str:
    if record.method == "supervised":
        return "learned from labels."
    judged = " Labels are used only to judge the result." if record.values("knn_top1") else ""
    return f"learned without labels.{judged}"


def _settings(record: Record) -> str:
    kept = {key: value for key, value in record.settings.items() if key != "method_defaults"}
    return yaml.safe_dump(kept, sort_keys=False, allow_unicode=True) if kept else ""


def _absent(record: Record, found: dict[str, Any]) -> list[str]:
    """What a reader may look for in vain, each with the file that would hold it."""
    files = {
        "the verdict on its health": (bool(record.analysis), "eval/analysis.json"),
        "the map of its features": ((record.path / "eval" / "map.npz").is_file(), "eval/map.npz"),
        "nearest neighbours": (bool(found["neighbours"]), "eval/neighbours.npz"),
        "which classes are confused": (bool(found["confusion"]), "eval/knn.json"),
        "the false negatives": (bool(found["gallery"] or found["soft_labels"]), "eval/gallery.npz"),
    }
    return [f"{what} ({file})" for what, (is_there, file) in files.items() if not is_there]


def _hash(script: str) -> str:
    """What the page's security policy allows: these scripts, and no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def templates(package: str = "report") -> Environment:
    """The templates of a package of msvq, and those of the report."""
    loader = ChoiceLoader([PackageLoader("msvq", name) for name in dict.fromkeys((package, "report"))])
    return Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)


def resource(name: str, package: str = "report") -> Markup:
    """A style or script of our own, which goes into a page as it is."""
    return Markup((resources.files(f"msvq.{package}") / name).read_text(encoding="utf-8"))
