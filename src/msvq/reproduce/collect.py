"""What the runs of a sweep have measured, read from their files."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msvq.report.records import Points, Record, read_record
from msvq.reproduce.cells import Cell, is_finished


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
    scores: Mapping[str, Score] = field(default_factory=dict)  # by protocol
    knn_curve: Points = field(default_factory=list)  # (epoch, accuracy)
    false_negatives: Mapping[str, Points] = field(default_factory=dict)  # view -> (epoch, found per picture)
    steps_per_epoch: float = 1.0
    seconds_per_picture: float | None = None  # of training steps alone
    seconds: float | None = None  # of the whole cell with its evaluations
    machine: Mapping[str, Any] = field(default_factory=dict)


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
    for protocol in ("linear", "probe"):
        result = record.result(protocol)
        if "top1" in result:
            scores[protocol] = Score(float(result["top1"]), float(result.get("top1_best", result["top1"])))
    found = {view for line in record.metrics for view in line.get("false_negatives") or {}}
    views = [*sorted(found - {"all"}), *({"all"} & found)]
    return Measured(
        cell=cell.name,
        seed=cell.seed,
        scores=scores,
        knn_curve=knn,
        false_negatives={view: record.curve(f"false_negatives.{view}") for view in views},
        steps_per_epoch=record.steps_per_epoch,
        seconds_per_picture=_seconds_per_picture(record),
        seconds=known.get("seconds"),
        machine={key: record.environment[key] for key in MACHINE if key in record.environment},
    )


def _seconds_per_picture(record: Record) -> float | None:
    """The mean over the epochs, which may have crops of different sizes."""
    speeds = [value for _, value in record.curve("images_per_second", "epoch") if value > 0]
    return statistics.fmean(1 / speed for speed in speeds) if speeds else None
