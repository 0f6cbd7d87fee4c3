"""What the cells of a sweep have measured: read from their runs, or from small files that say the same without the run.

A sweep leaves such files in results/cells. Another sweep takes them with `--known`, so that a table can be made from
runs on several machines, or from runs that are no longer there.
"""

import json
import re
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from msvq.config.resolve import read_config
from msvq.config.settings import Settings
from msvq.core.errors import BadInput
from msvq.core.files import write_text
from msvq.report.records import Points, read_record
from msvq.reproduce.experiments import (
    CELLS,
    MADE_BY,
    Cell,
    Place,
    Request,
    Task,
    check_run,
    check_settings,
    choose_datasets,
    decisive,
    is_finished,
)

MACHINE = ("msvq", "torch", "processor", "cores", "threads", "device_name", "precision", "data_fingerprint")


@dataclass(frozen=True)
class Score:
    """An accuracy in percent after the last epoch, and in the best one, chosen on the test pictures as in the paper."""

    last: float
    best: float


@dataclass(frozen=True)
class Measured:
    """One cell's numbers."""

    cell: str
    seed: int
    scores: Mapping[str, Score] = field(default_factory=dict)  # by protocol; knn-all: the last epoch, by all labels
    knn_curve: Points = field(default_factory=list)  # (epoch, accuracy)
    false_negatives: Mapping[str, Points] = field(default_factory=dict)  # view -> (epoch, found per picture)
    steps_per_epoch: float = 1.0
    seconds_per_picture: float | None = None  # of training steps alone
    seconds: float | None = None  # of the whole cell with its evaluations
    memory: int | None = None  # most bytes that training held at once, without evaluations
    machine: Mapping[str, Any] = field(default_factory=dict)


def read_run(cell: Cell, run: Path, known: Mapping[str, Any]) -> Measured | None:
    """The numbers of a finished run; nothing of another. `known`: what the sweep wrote down about the cell."""
    if not is_finished(run):
        return None
    record = read_record(run)
    scores, knn = {}, record.curve("knn_top1")
    if trained := [value for epoch, value in knn if epoch > 0]:
        scores["knn"] = Score(trained[-1], max(trained))
    for name, protocol in (("knn-all", "knn"), ("linear", "linear"), ("probe", "probe")):
        result = record.result(protocol)
        if result is not None:
            scores[name] = Score(result.top1, result.top1 if result.top1_best is None else result.top1_best)
    views = {view for line in record.metrics for view in line.get("false_negatives") or {}}
    in_order = sorted(views, key=lambda view: (view == "all", view))
    machine = {key: record.environment[key] for key in MACHINE if key in record.environment}
    speeds = [speed for speed in record.values("images_per_second", "epoch") if speed > 0]
    return Measured(
        cell=cell.name,
        seed=cell.seed,
        scores=scores,
        knn_curve=knn,
        false_negatives={view: record.curve(f"false_negatives.{view}") for view in in_order},
        steps_per_epoch=record.steps_per_epoch or 1.0,
        # The mean over the epochs, which may have crops of different sizes.
        seconds_per_picture=statistics.fmean(1 / speed for speed in speeds) if speeds else None,
        seconds=known.get("seconds"),
        memory=known.get("training_memory"),
        machine=machine | ({"compiled": True} if record.is_compiled else {}),
    )


@dataclass(frozen=True)
class Known:
    """A cell that was measured elsewhere, and the file that says so."""

    path: Path
    scale: str
    measured: Measured
    settings: Settings

    def check(self, cell: Cell) -> None:
        """Raise if it is not what the cell is now."""
        if self.scale != cell.scale:
            raise BadInput(
                f"the cell in {str(self.path)!r} is of scale {self.scale}, not {cell.scale}; "
                f"leave out --known, or give the cells of a sweep like this one"
            )
        check_settings(cell, self.settings, f"in {str(self.path)!r}", "move that file away to run it again")

    def covers(self, task: Task) -> bool:
        """Whether nothing is left to measure of a task that has not been begun here."""
        return not task.run.exists() and set(task.protocols) <= set(self.measured.scores)


def write_known(
    results: Path, scale: str, found: Iterable[Measured], cells: Path, known: Mapping[str, Known] | None = None
) -> list[Path]:
    """Write down what was found of every cell: of its run in `cells`, or of the file that it is known from."""
    files = []
    for one in found:
        from_elsewhere = (known or {}).get(one.cell)
        if from_elsewhere is not None and from_elsewhere.measured is one:
            text = from_elsewhere.path.read_text(encoding="utf-8")
        else:
            settings = decisive(read_config(cells / one.cell / "config.yaml"))
            record = {"made_by": MADE_BY, "scale": scale, **asdict(one), "settings": settings}
            text = json.dumps(record, indent=1) + "\n"
        files.append(results / CELLS / f"{one.cell}.json")
        write_text(files[-1], text)
    return files


def read_known(folder: Path) -> dict[str, Known]:
    """Cell -> what is known of it, from a sweep's results or from the files themselves."""
    if not folder.is_dir():
        raise BadInput(f"--known {str(folder)!r} is not a folder; name the results of a sweep, such as results/mini")
    inner = folder / CELLS
    files = sorted((inner if inner.is_dir() else folder).glob("*.json"))
    if not files:
        raise BadInput(f"--known {str(folder)!r} holds no cells; they are in the folder results of a sweep's --out")
    adapter, known = TypeAdapter(Measured), {}
    for path in files:
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            settings = Settings.model_validate(found["settings"])  # with what is new since then
            measured = adapter.validate_python(found)
            known[measured.cell] = Known(path, str(found["scale"]), measured, settings)
        except (OSError, ValueError, KeyError, TypeError):
            raise BadInput(f"{str(path)!r} is no cell of a sweep, or damaged; move it away") from None
    return known


_SEED = re.compile(r"-s(\d+)$")  # at the end of a cell's name


def collect(
    request: Request, out: Path, manifest: Mapping[str, Any], known: Mapping[str, Known]
) -> tuple[Request, dict[Place, Measured]]:
    """What the finished cells of a study have measured, and a request that shows all of them.

    A table keeps what earlier commands have trained for it, of other rows, seeds and data sets, and has all rows of a
    scale that has its own; a figure has the curves that were asked for. `manifest`: what the sweep wrote down, by cell.
    `known`: cells that need no run here, but for a map, which is drawn from runs.
    """
    study, wide, asked = request.study, request, request.cells()
    if study.kind == "map":  # which is a picture of one run
        known = {}
    else:
        names = [*(path.name for path in (out / CELLS).glob("*")), *known]
        seeds = {int(end[1]) for name in names if (end := _SEED.search(name))}
        wide = replace(request, seeds=tuple(sorted({*request.seeds, *seeds})))
    if study.kind == "table":
        everywhere = choose_datasets(study, request.scale, None)
        wide = replace(wide, rows=(*study.rows, *study.extra), datasets=everywhere)
    found = {}
    for place, cell in wide.cells().items():
        run, record = out / CELLS / cell.name, known.get(cell.name)
        one = read_run(cell, run, manifest.get(cell.name, {})) if place in asked or _is_same(cell, run) else None
        if record is not None and _is_same(cell, record):
            says_more = one is None or (request.measure not in one.scores and request.measure in record.measured.scores)
            one = record.measured if says_more else one
        if one is not None:
            found[place] = one
    due = replace(request, rows=tuple(dict.fromkeys((*request.rows, *request.scale.rows_of(study)))))
    named = product(request.datasets, (row.key for row in due.rows), request.seeds)
    datasets, keys, numbers = map(set, zip(*found, *named, strict=True))
    shown = replace(
        wide,
        datasets=tuple(name for name in wide.datasets if name in datasets),
        rows=tuple(row for row in wide.rows if row.key in keys),
        seeds=tuple(seed for seed in wide.seeds if seed in numbers),
        asked=tuple(due.cells()),
    )
    return shown, found


def _is_same(cell: Cell, run: Path | Known) -> bool:
    """Whether a run is what the cell is now; one that nobody asked for is passed over if not."""
    try:
        check_run(cell, run) if isinstance(run, Path) else run.check(cell)
    except BadInput:
        return False
    return True


def check_same_pictures(found: Mapping[Place, Measured]) -> None:
    """Raise if cells of one data set were trained on different pictures: their numbers do not compare."""
    seen: dict[str, Measured] = {}
    for (dataset, _, _), one in found.items():
        first = seen.setdefault(dataset, one)
        if first.machine.get("data_fingerprint") != one.machine.get("data_fingerprint"):
            raise BadInput(
                f"the cells {first.cell} and {one.cell} were trained on different pictures of {dataset}; "
                f"move one of them away and run it again with the other's --data-root"
            )
