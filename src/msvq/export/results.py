"""The accuracies that were measured of the very weights that are exported."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from msvq.evaluate.results import EvalResult, read_results
from msvq.report.records import is_number
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
    results = [result for result in read_results(encoder.run.path / "eval") if _is_of(result, encoder)]
    own_knn = any(result.kind == "knn" and not result.transfer for result in results)
    keys = {"knn_top1": "test pictures, measured while training"} if not own_knn else {}
    keys |= {"knn_top1_val": "training pictures whose labels were held out"}
    lines = [line for line in encoder.run.metrics() if encoder.of_run and line["step"] == encoder.step]
    found = [Measured(r.protocol, r.data or "unknown data", _note(r), r.top1, r.top5) for r in results]
    return found + [row for key, note in keys.items() for row in _from_log(lines, key, note, encoder)]


def _is_of(result: EvalResult, encoder: LoadedEncoder) -> bool:
    same_step = encoder.step is None or result.step in (None, encoder.step)
    return result.checkpoint == encoder.checkpoint and same_step


def _note(result: EvalResult) -> str:
    notes = ["not the data it was trained on"] if result.transfer else []
    if result.labels < 1:
        notes.append(f"with {100 * result.labels:g} % of the labels")
    if result.num_test is not None:
        notes.append(f"{result.num_test:,} test pictures")
    return ", ".join(notes)


def _from_log(lines: Sequence[Mapping[str, Any]], key: str, note: str, encoder: LoadedEncoder) -> list[Measured]:
    """The online kNN, in the precision of the training."""
    settings, values = encoder.run.config.evaluate, [line[key] for line in lines if is_number(line.get(key))]
    name = f"online knn, k at most {settings.knn_k}, t {settings.knn_temp:g}"
    return [Measured(name, encoder.data, note, float(values[-1]), None)] if values else []
