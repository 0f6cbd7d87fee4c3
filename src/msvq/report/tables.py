"""Tables of the page: protocols, runs beside one another, the confusion matrix, classes."""

import heapq
from collections.abc import Mapping, Sequence
from typing import Any

from msvq.report.chart import swatch
from msvq.report.records import Record, is_number
from msvq.report.verdict import STATES

MAX_MATRIX = 20  # classes; a larger matrix is not readable
NUM_PAIRS = 15
KIND_NAMES = {
    "knn": "kNN: neighbours vote",
    "linear": "Linear classifier on frozen features",
    "probe": "Logistic regression on frozen features",
    "finetune": "Network fine-tuned with labels",
}


def number(value: Any, pattern: str) -> str:
    """A number as its pattern says, a dash where there is none."""
    return pattern.format(value).replace("%", " %") if is_number(value) else "–"


def percent(value: Any) -> str:
    """An accuracy of 0 to 100 in words."""
    return number(value, "{:.1f}%")


def result_rows(record: Record) -> list[dict[str, str]]:
    """One row for each protocol that was measured."""
    rows = []
    last_step = record.last_step
    for result in record.results:
        top1, num_seeds = percent(result.top1), len(result.seeds)
        if num_seeds > 1 and result.top1_std is not None:
            top1 = f"{result.top1:.1f} ± {result.top1_std:.1f} %"
        notes = []
        if result.top1_best is not None:
            notes.append(f"best epoch {percent(result.top1_best)}")
        if result.scratch_top1 is not None:
            notes.append(f"from scratch {percent(result.scratch_top1)}")
        if result.labels < 1:
            notes.append(f"{100 * result.labels:g} % of the labels")
        if num_seeds > 1:
            notes.append(f"{num_seeds} seeds")
        if result.checkpoint == "last" and (result.step or last_step) < last_step:
            notes.append(f"after {result.step:,} of {last_step:,} steps")
        rows.append(
            {
                "name": KIND_NAMES.get(result.kind, result.kind),
                "protocol": result.protocol,
                "data": result.data,
                "checkpoint": result.checkpoint,
                "top1": top1,
                "top5": percent(result.top5),
                "notes": ", ".join(notes),
            }
        )
    return rows


def comparison(records: Sequence[Record]) -> dict[str, Any]:
    """Runs as rows; the columns that at least one run has. The best of a column of accuracies is marked."""
    columns: dict[str, list[tuple[float | None, str]]] = {
        "kNN, untrained": [_number(_knn(record)[:1], percent) for record in records],
        "kNN, trained": [_number(_knn(record)[-1:], percent) for record in records],
        "linear": [_accuracy(record, "linear") for record in records],
        "logistic": [_accuracy(record, "probe") for record in records],
        "fine-tuned": [_accuracy(record, "finetune") for record in records],
        "false negatives found": [_number([_found(record)], "{:.2f}".format) for record in records],
        "rank": [_number([y for _, y in record.curve("rank")[-1:]], "{:.1f}".format) for record in records],
        "pictures / s": [
            _number([y for _, y in record.curve("images_per_second", "epoch")[-1:]], "{:.0f}".format)
            for record in records
        ],
    }
    kept = {name: cells for name, cells in columns.items() if any(value is not None for value, _ in cells)}
    rows = []
    for index, record in enumerate(records):
        cells = []
        for name, column in kept.items():
            value, text = column[index]
            best = max((other for other, _ in column if other is not None), default=None)
            judged = name not in ("kNN, untrained", "rank", "pictures / s")
            cells.append({"text": text, "best": judged and len(records) > 1 and value is not None and value == best})
        verdict = record.analysis.get("verdict") or {}
        rows.append(
            {
                "swatch": swatch(index),
                "title": record.title,
                "method": record.method,
                "data": record.source,
                "epochs": _epochs(record),
                "cells": cells,
                "state": verdict.get("state", ""),
                "sign": STATES.get(verdict.get("state", ""), ("?", ""))[0],
            }
        )
    return {"columns": list(kept), "rows": rows}


def confusion(record: Record) -> dict[str, Any]:
    """The kNN confusion matrix: in full if it can be read, and always the pairs that are confused most."""
    result = record.result("knn")
    if result is None or not result.confusion:
        return {}
    matrix = result.confusion
    names = [*result.class_names, *(f"class {index}" for index in range(len(result.class_names), len(matrix)))]
    rows = []
    for truth, counts in enumerate(matrix if len(matrix) <= MAX_MATRIX else []):
        total = max(1, sum(counts))
        cells = [
            {"count": count, "share": count / total, "own": guess == truth, "guess": names[guess]}
            for guess, count in enumerate(counts)
        ]
        rows.append({"name": names[truth], "cells": cells, "right": counts[truth] / total, "total": sum(counts)})
    return {
        "names": names,
        "rows": rows,
        "pairs": confused_pairs(matrix, names),
        "num_classes": len(matrix),
    }


def confused_pairs(matrix: Sequence[Sequence[int]], names: Sequence[str], num: int = NUM_PAIRS) -> list[dict[str, Any]]:
    """The pairs of classes (truth, guess) that are mistaken most often."""
    mistakes = (
        (count, truth, guess)
        for truth, counts in enumerate(matrix)
        for guess, count in enumerate(counts)
        if guess != truth and count > 0
    )
    most = heapq.nsmallest(num, mistakes, key=lambda mistake: -mistake[0])
    return [
        {"truth": names[truth], "guess": names[guess], "count": count, "share": count / sum(matrix[truth])}
        for count, truth, guess in most
    ]


def soft_label_rows(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What each soft label finds, weighs and how sharp it is; then all of them, and a label that knows nothing."""
    views = sorted(key for key in found if key.startswith("view"))
    titles = {view: f"soft label of {view}" for view in views}
    titles |= {"all": "all of them together", "one_hot": "a one-hot label, as in MoCo"}
    return [{"title": title, **found[key]} for key, title in titles.items() if isinstance(found.get(key), Mapping)]


def class_rows(found: Mapping[str, Any]) -> dict[str, Any]:
    """False negatives by class, those with most first."""
    by_class: Mapping[str, Mapping[str, float]] = found.get("by_class") or {}
    views = sorted({key for values in by_class.values() for key in values if key.startswith("view")})
    rows: list[dict[str, Any]] = [{"name": name, **values} for name, values in by_class.items()]
    rows.sort(key=lambda row: -float(row.get("all") or 0))
    return {"views": views, "rows": rows} if rows else {}


def _knn(record: Record) -> list[float]:
    return [value for _, value in record.curve("knn_top1")]


def _found(record: Record) -> Any:
    together = record.false_negatives.get("all") or {}
    if "found" in together:
        return together["found"]
    return next((y for _, y in reversed(record.curve("false_negatives.all"))), None)


def _epochs(record: Record) -> str:
    done = [int(line["epoch"]) for line in record.metrics if line.get("kind") == "epoch"]
    planned = (record.settings.get("train") or {}).get("epochs")
    if done and planned and done[-1] < planned:
        return f"{done[-1]} of {planned}"
    return str(done[-1]) if done else "–"


def _accuracy(record: Record, kind: str) -> tuple[float | None, str]:
    result = record.result(kind)
    return _number([result.top1] if result else [], percent)


def _number(values: Sequence[Any], tell: Any) -> tuple[float | None, str]:
    if values and is_number(values[0]):
        return float(values[0]), tell(values[0])
    return None, "–"
