"""The accuracies that were measured of the very weights that are exported."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeGuard

from msvq.export.subject import Subject
from msvq.report.records import read_record


class Measured(NamedTuple):
    """One accuracy, in percent."""

    protocol: str  # its id
    data: str
    note: str  # what else there is to know before it is compared
    top1: float
    top5: float | None


def measured(subject: Subject) -> list[Measured]:
    """From RUN/eval, and from the log what it says of this step."""
    record = read_record(subject.run.path)
    found = [_of_result(result) for result in record.results if _is_of(result, subject)]
    return [row for row in found if row is not None] + _from_log(record.metrics, subject)


def _is_of(result: Mapping[str, Any], subject: Subject) -> bool:
    same_step = subject.step is None or result.get("step") in (None, subject.step)
    return result.get("checkpoint", "last") == subject.checkpoint and same_step


def _of_result(result: Mapping[str, Any]) -> Measured | None:
    top1, top5, labels = result.get("top1"), result.get("top5"), result.get("labels", 1)
    if not _is_number(top1):
        return None
    notes = ["not the data it was trained on"] if result.get("transfer") else []
    if _is_number(labels) and labels < 1:
        notes.append(f"with {100 * labels:g} % of the labels")
    if _is_number(result.get("num_test")):
        notes.append(f"{result['num_test']:,} test pictures")
    data = str(result.get("data", "unknown data"))
    return Measured(str(result["protocol"]), data, ", ".join(notes), float(top1), _number(top5))


def _from_log(metrics: Any, subject: Subject) -> list[Measured]:
    """The online kNN of held-out pictures, which decides which checkpoint is best and is in no file of RUN/eval."""
    lines = [line for line in metrics if line["step"] == subject.step and _is_number(line.get("knn_top1_val"))]
    if not lines:
        return []
    settings = subject.run.config.evaluate
    name = f"online knn, k at most {settings.knn_k}, t {settings.knn_temp:g}"
    note = "training pictures whose labels were held out"
    return [Measured(name, subject.data, note, float(lines[-1]["knn_top1_val"]), None)]


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and math.isfinite(value)


def _number(value: Any) -> float | None:
    return float(value) if _is_number(value) else None
