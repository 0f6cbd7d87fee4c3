"""The accuracies that were measured of the very weights that are exported."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from msvq.report.records import is_number, read_record
from msvq.runs.encoder import LoadedEncoder


class Measured(NamedTuple):
    """One accuracy, in percent."""

    protocol: str  # its id
    data: str
    note: str  # what else there is to know before it is compared
    top1: float
    top5: float | None


def measured(encoder: LoadedEncoder) -> list[Measured]:
    """From RUN/eval, and from the log what it says of this step and no file of RUN/eval does."""
    record = read_record(encoder.run.path)
    results = [result for result in record.results if _is_of(result, encoder)]
    found = [row for row in map(_of_result, results) if row is not None]
    own_knn = any(result.get("kind") == "knn" and not result.get("transfer") for result in results)
    keys = {"knn_top1": "test pictures, measured while training"} if not own_knn else {}
    keys |= {"knn_top1_val": "training pictures whose labels were held out"}
    lines = [line for line in record.metrics if encoder.of_run and line["step"] == encoder.step]
    return found + [row for key, note in keys.items() for row in _from_log(lines, key, note, encoder)]


def _is_of(result: Mapping[str, Any], encoder: LoadedEncoder) -> bool:
    same_step = encoder.step is None or result.get("step") in (None, encoder.step)
    return result.get("checkpoint", "last") == encoder.checkpoint and same_step


def _of_result(result: Mapping[str, Any]) -> Measured | None:
    top1, top5, labels = result.get("top1"), result.get("top5"), result.get("labels", 1)
    if not is_number(top1):
        return None
    notes = ["not the data it was trained on"] if result.get("transfer") else []
    if is_number(labels) and labels < 1:
        notes.append(f"with {100 * labels:g} % of the labels")
    if is_number(result.get("num_test")):
        notes.append(f"{result['num_test']:,} test pictures")
    data = str(result.get("data", "unknown data"))
    return Measured(str(result["protocol"]), data, ", ".join(notes), float(top1), _number(top5))


def _from_log(lines: Sequence[Mapping[str, Any]], key: str, note: str, encoder: LoadedEncoder) -> list[Measured]:
    """The online kNN, in the precision of the training."""
    settings, values = encoder.run.config.evaluate, [line[key] for line in lines if is_number(line.get(key))]
    name = f"online knn, k at most {settings.knn_k}, t {settings.knn_temp:g}"
    return [Measured(name, encoder.data, note, float(values[-1]), None)] if values else []


def _number(value: Any) -> float | None:
    return float(value) if is_number(value) else None
