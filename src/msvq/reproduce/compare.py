"""`msvq compare`: methods on one's own pictures, each with several seeds and the same time, in one table."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, NamedTuple

from rich.console import Console

from msvq.config.budget import parse_budget
from msvq.config.resolve import LENGTH, read_config
from msvq.core.console import Display, counted, duration, printable, printed
from msvq.core.errors import BadInput, unknown
from msvq.core.files import expanduser, write_text
from msvq.core.schema import parse_assignment, to_assignments
from msvq.core.user_code import is_user_code
from msvq.data.sources import absolute, check_source, open_dataset
from msvq.evaluate.results import percent_error
from msvq.methods import METHODS
from msvq.model.backbones import BackboneSettings
from msvq.report.numbers import TESTED
from msvq.report.page import write_report
from msvq.report.records import Record, is_number, read_record
from msvq.reproduce.claims import summarise
from msvq.reproduce.experiments import CELLS, Cell, Task
from msvq.reproduce.formats import Grid, render_page, spread
from msvq.reproduce.reproduce import as_table, find_data
from msvq.reproduce.sweep import RESULTS, SweepDisplay, check_out, read_manifest, run_tasks, sweep_directory
from msvq.runs.metrics import read_metrics
from msvq.train.signals import Interrupted

BUDGET = "5m"  # of each run, where nothing is said of its length
TOGETHER = "runs.html"  # the page of all runs side by side
MEASURES = {"knn": "kNN, %", "copies": "copies found, %"}  # the first that was measured decides the order
BESIDE = ("untrained", "pixels_8x8", "colour_histogram")  # what stands below the methods


@dataclass(frozen=True)
class OwnCell(Cell):
    """A run on one's own pictures: `dataset` is what --data takes, `scale` the time that it has, if any."""

    made_by: ClassVar[str] = "msvq compare"

    @property
    def name(self) -> str:
        """Of its directory."""
        return f"{_word(Path(self.method).name)}-s{self.seed}"

    @property
    def arguments(self) -> dict[str, Any]:
        """What the run is given, by the names of `msvq.pretrain`."""
        given = {"data": self.dataset, "method": self.method, "overrides": self.overrides, "seed": self.seed}
        return given | ({"budget": self.scale} if self.scale else {})


@dataclass(frozen=True)
class RunLength:
    """A run as work, 1 in all."""

    total: float = 1.0

    def done(self, task: Task) -> float:
        """By its log, once it is known how many steps there are."""
        try:
            train = read_config(task.run / "config.yaml").train
        except BadInput:
            return 0.0
        lines = read_metrics(task.run / "metrics.jsonl")
        if train.steps is not None:
            return min(1.0, max((line["step"] for line in lines), default=0) / train.steps)
        return min(1.0, max((line.get("epoch", 0) for line in lines), default=0) / train.epochs)


class Contest(NamedTuple):
    """What is asked for, checked."""

    methods: tuple[str, ...]
    num_seeds: int
    data: str
    out: Path
    seconds: float | None  # that each run has; None: its length is given otherwise
    tasks: list[Task]
    same: str  # what all of its runs have in common, in words
    command: str


@dataclass(frozen=True)
class Compared:
    """How methods compare on one's own pictures, best first. Printed, it is the table."""

    rows: tuple[Mapping[str, Any], ...]  # method, seeds, network, steps; knn and copies with their deviations
    beside: tuple[Mapping[str, Any], ...]  # the same of an untrained network, pixels, colours, chance
    path: Path  # the page
    failed: Mapping[str, str]  # run -> reason
    record: Mapping[str, Any] = field(repr=False)  # all that is in the .json beside the page

    def __str__(self) -> str:
        return printed(show, self)


def compare(
    methods: Sequence[str],
    data: str | Path,
    *,
    seeds: int = 3,
    budget: str | None = None,
    out: str | Path | None = None,
    data_root: str | Path | None = None,
    download: bool = False,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    console: Console | None = None,
) -> Compared:
    """Train each method with each seed on the same pictures, and compare them: `msvq compare`, with its options.

    `budget` is the time of each run ("5m" unless `overrides` give epochs or steps). What is finished is not trained
    again, so the same call goes on with what was stopped.
    """
    told = to_assignments(overrides)
    contest = plan_contest(methods, str(data), seeds=seeds, budget=budget, out=out, overrides=told)
    root = None if data_root is None else Path(data_root)
    return hold_contest(contest, data_root=root, download=download, console=console or Console())


def plan_contest(
    methods: Sequence[str],
    data: str,
    *,
    seeds: int = 3,
    budget: str | None = None,
    out: str | Path | None = None,
    overrides: Sequence[str] = (),
) -> Contest:
    """The runs that are asked for. Bad input is told here, before anything is touched."""
    if isinstance(methods, str) or not methods:
        raise BadInput(f"methods to compare are a list of names, not {methods!r}; known: {', '.join(METHODS)}")
    if seeds < 1:
        raise BadInput(f"--seeds is a number of repetitions, at least 1, not {seeds}")
    for name in methods:
        if name not in METHODS and not is_user_code(name):
            raise unknown("method", name, METHODS)
    check_source(data)
    told, chosen = [parse_assignment(text)[0] for text in overrides], tuple(dict.fromkeys(methods))
    own_length = any(key in told for key in LENGTH)
    time = budget if budget is not None or own_length else BUDGET
    place = expanduser(f"runs/compare-{_word(Path(absolute(data)).stem) or 'mine'}" if out is None else out)
    tasks = []
    for seed in range(seeds):  # seed by seed, so that half of it is a whole table with fewer seeds
        for name in chosen:
            cell = OwnCell(time or "", absolute(data), name, tuple(overrides), seed)
            tasks.append(Task(cell, place / CELLS / cell.name, ()))
    for task in tasks[: len(chosen)]:
        task.cell.settings()  # a setting that a method does not have, for one
    names = [task.cell.name for task in tasks]
    if len(set(names)) < len(names):
        raise BadInput("two of the methods have one name for their runs; rename a file or a class")
    words = ["--methods", ",".join(chosen), "--seeds", str(seeds), "--data", data]
    words += [word for text in overrides for word in ("--set", text)] + (["--budget", time] if time else [])
    command = shlex.join(["msvq", "compare", *words, *([] if out is None else ["--out", str(out)])])
    same = ", ".join([absolute(data), *([f"{time} each"] if time else []), *overrides])
    return Contest(chosen, seeds, data, place, parse_budget(time) if time else None, tasks, same, command)


def hold_contest(contest: Contest, *, data_root: Path | None, download: bool, console: Console) -> Compared:
    """Run what is not finished, and write the table and the page."""
    out, tasks, display = contest.out, contest.tasks, Display(console)
    check_out(out, contest.same)
    _check_pictures(contest, data_root, download=download, display=display)
    with sweep_directory(out, contest.same, tasks, tasks[0].cell.made_by):
        left = sum(not task.is_finished for task in tasks)
        length = "" if contest.seconds is None else f" of {duration(contest.seconds)} each"
        time = "" if contest.seconds is None else f", {duration(left * contest.seconds)} in all"
        done = f"{len(tasks) - left} of them finished{time if left else ''}"
        display.note(
            f"{counted(len(contest.methods), 'method')} with {counted(contest.num_seeds, 'seed')} on {contest.data}: "
            f"{counted(len(tasks), 'run')}{length}, {done}, in {out}"
        )
        shown = SweepDisplay(console, tasks, {task.cell.name: RunLength() for task in tasks})
        try:
            failed = run_tasks(out, tasks, jobs=1, data_root=data_root, display=shown)
        except Interrupted:
            if any(task.is_finished for task in tasks):
                write_comparison(contest, {})  # what is finished is a table already
            raise
        return write_comparison(contest, failed)


def _check_pictures(contest: Contest, data_root: Path | None, *, download: bool, display: Display) -> None:
    """Open the pictures once, before the time of the first run begins; raise if they are not what runs were made of."""
    find_data({contest.data}, data_root, download=download, display=display)
    settings = contest.tasks[0].cell.settings(data_root)
    dataset = open_dataset(settings.data, display=display)
    with closing(dataset):
        for name in contest.methods:
            if name in METHODS and METHODS[name].needs_labels and not dataset.has_labels:
                raise BadInput(f"{name} learns from labels, and {dataset.name} has none; leave it out of --methods")
        if not dataset.has_labels:
            display.note(f"note: {dataset.name} has no labels, so methods are compared by the copies that they find")
        for task in contest.tasks:
            known = read_record(task.run).environment.get("data_fingerprint") if task.run.is_dir() else None
            if known not in (None, dataset.fingerprint):
                raise BadInput(
                    f"the run {task.cell.name} in {str(contest.out)!r} was trained on other pictures than there are "
                    f"now in {contest.data}; choose another --out"
                )


# --- the table


def write_comparison(contest: Contest, failed: Mapping[str, str]) -> Compared:
    """What the finished runs have come to, as a table, a page and a .json."""
    records = {task.cell.name: read_record(task.run) for task in contest.tasks if task.is_finished}
    of_method = {
        name: [records[t.cell.name] for t in contest.tasks if t.cell.method == name and t.cell.name in records]
        for name in contest.methods
    }
    rows = [_row(_title(name), found, "trained") | _about(found) for name, found in of_method.items()]
    beside = [_row(TESTED[name], list(records.values()), name) for name in BESIDE]
    beside = [row for row in [*beside, *_chance(list(records.values()))] if any(row.get(key) for key in MEASURES)]
    order = next((key for key in MEASURES if any(row[key] for row in rows)), "knn")
    rows.sort(key=lambda row: -(row[order] or {"mean": -1.0})["mean"])
    result = {
        "command": contest.command,
        "data": contest.data,
        "seconds": contest.seconds,
        "seeds": contest.num_seeds,
        "rows": rows,
        "beside": beside,
        "failed": dict(failed),
        "notes": _notes(contest, rows, records.values()),
    }
    write_text(contest.out / RESULTS / "compare.json", json.dumps(result, indent=1) + "\n")
    study: dict[str, Any] = {
        "name": "compare",
        "heading": "Which method is best",
        "sections": [(contest.data, grid(result))],
    }
    study |= {"notes": result["notes"], "command": contest.command}
    if records:
        write_report([record.path for record in records.values()], contest.out / TOGETHER, figures=False)
    page = render_page(
        contest.out,
        title=f"Methods on {contest.data}",
        note=f"{counted(len(contest.methods), 'method')} on the same pictures, each with "
        f"{counted(contest.num_seeds, 'seed')}",
        studies=[study],
        together=TOGETHER if records else "",
        cells=sorted(read_manifest(contest.out)["cells"].items()),
    )
    return Compared(tuple(rows), tuple(beside), page, dict(failed), result)


def _row(title: str, records: Sequence[Record], tested: str) -> dict[str, Any]:
    """Means and deviations of what some runs say of their own features, or of others."""
    votes = [(record.knn.get("accuracy") or {}).get(tested) for record in records]
    copies = [((record.copies.get("recall") or {}).get(tested) or {}).get("at_1") for record in records]
    found = {"knn": votes, "copies": copies}
    summaries = {key: summarise([value for value in values if is_number(value)]) for key, values in found.items()}
    return {"method": title} | {key: summary and summary._asdict() for key, summary in summaries.items()}


def _about(records: Sequence[Record]) -> dict[str, Any]:
    """What the runs of a method were: their number, networks and lengths."""
    names = dict.fromkeys(BackboneSettings.model_validate(record.section("backbone")).title for record in records)
    steps = [record.last_step for record in records]
    return {"seeds": len(records), "network": ", ".join(names), "steps": round(fmean(steps)) if steps else None}


def _chance(records: Sequence[Record]) -> list[dict[str, Any]]:
    """What one has who always names the most frequent class of the test pictures."""
    known = next((value for record in records if is_number(value := record.knn.get("chance"))), None)
    return [] if known is None else [{"method": TESTED["chance"], "knn": {"mean": known, "std": None}, "copies": None}]


def _title(method: str) -> str:
    return METHODS[method].title if method in METHODS and not is_user_code(method) else Path(method).name


def _notes(contest: Contest, rows: Sequence[Mapping[str, Any]], records: Any) -> list[str]:
    """What a reader has to know to read the numbers."""
    said = ["Mean ± standard deviation over seeds, of as many runs as the table says."]
    if contest.seconds is not None:
        said.append(
            f"Each run had {duration(contest.seconds)}, with all that comes before and after its steps; a method whose "
            f"steps take longer makes fewer of them, or has a smaller network."
        )
    judged = [record.knn.get("pictures") for record in records]
    num, best = next((num for num in judged if num), None), next((row["knn"] for row in rows if row["knn"]), None)
    error = percent_error(best["mean"], num) if best else None
    if num and error is not None:
        said.append(
            f"kNN on {num:,} test pictures: their choice alone makes the best row uncertain by {error:.1f} points."
        )
    said.append("Copies found: how often a changed copy of a picture finds the picture; it needs no labels.")
    return said


def grid(result: Mapping[str, Any]) -> Grid:
    """The table: methods, best first, and below them what they are held against."""
    rows = [*result["rows"], *result["beside"]]
    shown = {
        title: [spread(row[key]) for row in rows] for key, title in MEASURES.items() if any(row[key] for row in rows)
    }
    columns = {"method": [printable(row["method"]) for row in rows], **shown}
    for key in ("network", "steps", "seeds"):
        columns[key] = [f"{value:,}" if isinstance(value := row.get(key), int) else value or "" for row in rows]
    return list(columns), [list(line) for line in zip(*columns.values(), strict=True)]


def show(compared: Compared, console: Console) -> None:
    """Print the table, what to know of it, the failures, and where the page is."""
    say = Display(console).note
    if any(row["seeds"] for row in compared.rows):
        title = f"Methods on {printable(Path(compared.record['data']).name)}"
        console.print(as_table(title, grid(compared.record), narrow=False))
        for note in compared.record["notes"]:
            say(note)
    for cell, reason in compared.failed.items():
        say(f"failed: {cell}: {reason}")
    say(f"report  {compared.path}")


def _word(text: str) -> str:
    return re.sub(r"[^\w.-]+", "-", text).strip("-.")
