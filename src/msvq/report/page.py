"""`report.html`: one self-contained page about one run or several, from the files in their directories alone."""

import base64
import hashlib
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from msvq.core.errors import BadInput
from msvq.core.files import check_no_link, check_not_of_a_run, check_places, resolve_parent, write_text
from msvq.report.curves import MAIN, MORE, charts, false_negative_charts, teacher_charts
from msvq.report.figures import draw_figures
from msvq.report.maps import first_views, map_data
from msvq.report.numbers import class_rows, comparison, confusion, progress, soft_label_rows, verdict
from msvq.report.pictures import cell
from msvq.report.records import Record, read_record, read_records
from msvq.report.templates import resource, templates
from msvq.runs.metrics import RunProgress

SCRIPTS = ("page.js", "map.js")
WRITTEN = ("report.html", "figures")  # in a run
RENEW = 20  # seconds after which the page of a run that trains is read again
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


def write_live_report(run: Path, standing: RunProgress) -> None:
    """Write the page of a run that trains, or that has just stopped; figures are for the end."""
    check_places(run, WRITTEN)
    write_text(run / "report.html", render([read_record(run)], standing))


def is_report_final(run: Path) -> bool:
    """Whether the page was written when the run had been judged, not while it trained."""
    page, judged = run / "report.html", run / "eval" / "analysis.json"
    return page.is_file() and page.stat().st_mtime_ns >= judged.stat().st_mtime_ns


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


def render(records: Sequence[Record], standing: RunProgress | None = None) -> str:
    """The page as text. `standing`: how far the run is, where it is not over."""
    maps, sheets = map_data(records)
    scripts = [resource(name) for name in SCRIPTS]
    several = len(records) > 1
    page = templates().get_template("page.html")
    return page.render(
        cell=cell,
        title=" · ".join(record.title for record in records),
        several=several,
        runs=[_run(record, standing, own_curves=not several) for record in records],
        renew=RENEW if standing is not None and standing.running else None,
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
    drawn = charts([record], [curve for curve in MAIN if curve.key in AT_A_GLANCE])
    return templates().get_template("summary.html").render(record=record, charts=drawn, style=resource("summary.css"))


def _run(record: Record, standing: RunProgress | None, *, own_curves: bool) -> dict[str, Any]:
    """What the page says about one run."""
    more = [curve for curve in MORE if curve.key != "false_negatives.all"]  # it is in the chart of all soft labels
    command = f"msvq pretrain --recipe {shlex.quote(str(record.path / 'config.yaml'))} --out runs/again"
    return {
        "record": record,
        "progress": progress(record, standing),
        "verdict": verdict(record),
        "charts": charts([record], MAIN) if own_curves else [],
        "more_charts": charts([record], more) + teacher_charts(record) if own_curves else [],
        "teacher_charts": teacher_charts(record),
        "neighbours": record.arrays("neighbours"),
        "groups": record.arrays("groups"),
        "confusion": confusion(record),
        "gallery": record.arrays("gallery"),
        "soft_labels": soft_label_rows(record.false_negatives),
        "false_negative_charts": false_negative_charts(record),
        "by_class": class_rows(record.false_negatives),
        "settings": _settings(record),
        "command": command,
    }


def _settings(record: Record) -> str:
    kept = {key: value for key, value in record.settings.items() if key != "method_defaults"}
    return yaml.safe_dump(kept, sort_keys=False, allow_unicode=True) if kept else ""


def _hash(script: str) -> str:
    """What the page's security policy allows: these scripts, and no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
