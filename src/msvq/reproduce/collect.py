"""What the runs of a sweep have measured, read from their files."""

import re
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from msvq.core.errors import BadInput
from msvq.report.records import Points, Record, read_record
from msvq.reproduce.cells import Cell, Request, Task, check_same, choose_datasets, difference, is_finished
from msvq.reproduce.sweep import CELLS


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

    @property
    def cost(self) -> dict[str, float]:
        """What training took, as far as it is known: the time for a picture, and memory."""
        known = {"time": self.seconds_per_picture, "memory": self.memory}
        return {name: float(value) for name, value in known.items() if value is not None}


@dataclass(frozen=True)
class Known:
    """A cell that was measured elsewhere."""

    path: Path
    scale: str
    measured: Measured
    settings: Mapping[str, Any]

    def check(self, cell: Cell) -> None:
        """Raise if it is not what the cell is now."""
        if self.scale != cell.scale:
            raise BadInput(
                f"the cell in {str(self.path)!r} is of scale {self.scale}, not {cell.scale}; "
                f"leave out --known, or give the cells of a sweep like this one"
            )
        changed = difference(cell.settings().model_dump(mode="json"), self.settings)
        if changed is not None:
            key, now, then = changed
            raise BadInput(
                f"the cell in {str(self.path)!r} ran with another {key}: {then!r}, and it is {now!r} now; "
                f"move that file away to run it again"
            )

    def covers(self, task: Task) -> bool:
        """Whether nothing is left to measure of a task that has not been begun here."""
        return not task.run.exists() and set(task.protocols) <= set(self.measured.scores)


Place = tuple[str, str, int]  # data set, row, seed

_SEED = re.compile(r"-s(\d+)$")  # at the end of a cell's name


def gather(
    request: Request, out: Path, known: Mapping[str, Any], elsewhere: Mapping[str, Known] | None = None
) -> tuple[Request, dict[Place, Measured]]:
    """What the finished cells of a study have measured, and a request that shows all of them.

    A table keeps what earlier commands have trained for it, of other rows, seeds and data sets; a figure has the curves
    that were asked for. `known`: what the sweep wrote down, by cell. `elsewhere`: cells that need no run here, but for
    a map, which is drawn from runs.
    """
    elsewhere = elsewhere or {}
    study, wide = request.study, request
    if study.kind != "map":  # which is a picture of one run
        names = [*(path.name for path in (out / CELLS).glob("*")), *elsewhere]
        seeds = {int(end[1]) for name in names if (end := _SEED.search(name))}
        wide = replace(request, seeds=tuple(sorted({*request.seeds, *seeds})))
    if study.kind == "table":
        rows = (*study.rows, *study.extra.values())
        wide = replace(wide, rows=rows, datasets=choose_datasets(study, request.scale, None))
    found = {}
    for place, cell in wide.cells().items():
        run = out / CELLS / cell.name
        one = measured(cell, run, known.get(cell.name, {})) if _is_same(cell, run) else None
        record = elsewhere.get(cell.name) if study.kind != "map" else None
        if record is not None and _says_more(record.measured, one, request.measure) and _is_same(cell, record):
            one = record.measured
        if one is not None:
            found[place] = one
    datasets, keys, numbers = ({*column} for column in zip(*found, strict=True)) if found else (set(), set(), set())
    shown = replace(
        wide,
        datasets=tuple(name for name in wide.datasets if name in {*datasets, *request.datasets}),
        rows=tuple(row for row in wide.rows if row.key in {*keys, *(row.key for row in request.rows)}),
        seeds=tuple(seed for seed in wide.seeds if seed in {*numbers, *request.seeds}),
        asked=tuple(
            (dataset, row.key, seed) for dataset in request.datasets for row in request.rows for seed in request.seeds
        ),
    )
    return shown, found


def _says_more(known: Measured, one: Measured | None, measure: str) -> bool:
    """Whether what is known from elsewhere is to be shown in place of a run here."""
    return one is None or (measure not in one.scores and measure in known.scores)


def _is_same(cell: Cell, run: Path | Known) -> bool:
    """Whether a run is what the cell is now; one that nobody asked for is passed over if not."""
    try:
        check_same(cell, run) if isinstance(run, Path) else run.check(cell)
    except BadInput:
        return False
    return True


MACHINE = ("msvq", "torch", "processor", "cores", "threads", "device_name", "precision", "data_fingerprint")


def measured(cell: Cell, run: Path, known: Mapping[str, Any]) -> Measured | None:
    """The numbers of a finished run; nothing of another. `known`: what the sweep wrote down about the cell."""
    if not is_finished(run):
        return None
    record = read_record(run)
    scores = {}
    knn = record.curve("knn_top1")
    trained = [value for epoch, value in knn if epoch > 0]
    if trained:
        scores["knn"] = Score(trained[-1], max(trained))
    for name, protocol in (("knn-all", "knn"), ("linear", "linear"), ("probe", "probe")):
        result = record.result(protocol)
        if result is not None:
            scores[name] = Score(result.top1, result.top1 if result.top1_best is None else result.top1_best)
    found = {view for line in record.metrics for view in line.get("false_negatives") or {}}
    views = [*sorted(found - {"all"}), *({"all"} & found)]
    machine = {key: record.environment[key] for key in MACHINE if key in record.environment}
    machine |= {"compiled": True} if record.is_compiled else {}
    return Measured(
        cell=cell.name,
        seed=cell.seed,
        scores=scores,
        knn_curve=knn,
        false_negatives={view: record.curve(f"false_negatives.{view}") for view in views},
        steps_per_epoch=record.steps_per_epoch or 1.0,
        seconds_per_picture=_seconds_per_picture(record),
        seconds=known.get("seconds"),
        memory=known.get("training_memory"),
        machine=machine,
    )


def _seconds_per_picture(record: Record) -> float | None:
    """The mean over the epochs, which may have crops of different sizes."""
    speeds = [value for _, value in record.curve("images_per_second", "epoch") if value > 0]
    return statistics.fmean(1 / speed for speed in speeds) if speeds else None
