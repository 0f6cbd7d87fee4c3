"""What the page says: did it work, in numbers and plain words; then tables of protocols, runs, confusion, classes."""

import heapq
from collections.abc import Mapping, Sequence
from typing import Any

from msvq.report.chart import swatch
from msvq.report.records import Record, is_number

# A sign and a word for each state, so that colour is never alone.
STATES = {
    "healthy": ("✓", "Healthy"),
    "collapsing": ("!", "Collapsing"),
    "collapsed": ("✕", "Collapsed"),
    "unknown": ("?", "Not known"),
}
MAX_MATRIX = 20  # classes; a larger matrix is not readable
NUM_PAIRS = 15
# What runs are compared by, and how it is told.
COLUMNS = {
    "kNN, untrained": "{:.1f}%",
    "kNN, trained": "{:.1f}%",
    "linear": "{:.1f}%",
    "logistic": "{:.1f}%",
    "fine-tuned": "{:.1f}%",
    "false negatives found": "{:.2f}",
    "rank": "{:.1f}",
    "pictures / s": "{:.0f}",
}
NOT_JUDGED = ("kNN, untrained", "rank", "pictures / s")
KIND_NAMES = {
    "knn": "kNN: neighbours vote",
    "linear": "Linear classifier on frozen features",
    "probe": "Logistic regression on frozen features",
    "finetune": "Network fine-tuned with labels",
}


def verdict(record: Record) -> dict[str, Any]:
    """State, sentences, advice and big numbers of a run."""
    judged, state = record.verdict, record.verdict.get("state", "")
    sign, word = STATES.get(state, STATES["unknown"])
    sentences = [judged.get("sentence"), _in_words(record)]
    return {
        "state": state if state in STATES or not state else "unknown",
        "sign": sign,
        "word": word,
        "sentences": [sentence for sentence in sentences if sentence],
        "advice": judged.get("advice") or [],
        **_numbers(record),
    }


def _numbers(record: Record) -> dict[str, Any]:
    """The question that the big numbers answer, and the numbers."""
    scores = record.values("knn_top1")
    if record.demo:
        k = record.section("evaluate").get("knn_k", 200)
        question = f"How often do a picture's {k} nearest neighbours vote for its class?"
        numbers = [(f"{accuracy:.1f} %", name) for name, accuracy in record.demo.items()]
        return {"question": question, "numbers": numbers}
    if scores:
        question = "How often do a picture's nearest neighbours vote for its class?"
        numbers = [(f"{scores[0]:.1f} %", "untrained encoder"), (f"{scores[-1]:.1f} %", "after training")]
        return {"question": question, "numbers": numbers if len(scores) > 1 else numbers[:1]}
    ranks, spreads = record.values("rank"), record.values("feature_spread")
    if ranks:
        numbers = [(f"{ranks[0]:.1f}", "rank, untrained encoder"), (f"{ranks[-1]:.1f}", "rank, after training")]
        if spreads:
            numbers.append((f"{spreads[-1]:.2f}", f"spread, from {spreads[0]:.2f}"))
        return {"question": "Do the features tell pictures apart?", "numbers": numbers}
    return {"question": "", "numbers": []}


def _in_words(record: Record) -> str:
    """What the numbers mean."""
    scores = record.values("knn_top1")
    if len(scores) > 1:
        change = scores[-1] - scores[0]
        if abs(change) < 0.5:
            return f"Nearest neighbours are as often right as before training: {scores[-1]:.1f} %. It learned little."
        way = "up" if change > 0 else "down"
        end = "" if change > 0 else " Training made the features worse."
        return (
            f"Of 100 test pictures, the nearest neighbours now name {scores[-1]:.0f} rightly, "
            f"{way} from {scores[0]:.0f} before training.{end}"
        )
    if record.curve("rank") and not scores:
        return (
            "There are no labels, so no accuracy. Rank is the number of directions that the features really use; "
            "a rank near 1 or a spread near 0 means that the encoder has collapsed. "
            "The neighbours below show what it finds alike."
        )
    return ""


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
    measured = [_measured(record) for record in records]
    kept = [name for name in COLUMNS if any(is_number(values[name]) for values in measured)]
    judged = [name for name in kept if name not in NOT_JUDGED and len(records) > 1]
    best = {name: max(values[name] for values in measured if is_number(values[name])) for name in judged}
    rows = []
    for index, (record, values) in enumerate(zip(records, measured, strict=True)):
        state = record.verdict.get("state", "")
        cells = [
            {"text": number(values[name], COLUMNS[name]), "best": name in best and values[name] == best[name]}
            for name in kept
        ]
        rows.append(
            {
                "swatch": swatch(index),
                "title": record.title,
                "method": record.method,
                "data": record.source,
                "epochs": _epochs(record),
                "cells": cells,
                "state": state,
                "sign": STATES.get(state, STATES["unknown"])[0],
            }
        )
    return {"columns": kept, "rows": rows}


def _measured(record: Record) -> dict[str, Any]:
    """A run's values of COLUMNS; None where nothing was measured."""
    knn, found = record.values("knn_top1"), record.false_negatives.get("all") or {}
    linear, logistic, tuned = (record.result(kind) for kind in ("linear", "probe", "finetune"))
    values = (
        _last(knn[:1]),
        _last(knn),
        linear and linear.top1,
        logistic and logistic.top1,
        tuned and tuned.top1,
        found["found"] if "found" in found else _last(record.values("false_negatives.all")),
        _last(record.values("rank")),
        _last(record.values("images_per_second", "epoch")),
    )
    return dict(zip(COLUMNS, values, strict=True))


def _last(values: Sequence[float]) -> float | None:
    return values[-1] if values else None


def _epochs(record: Record) -> str:
    done, planned = record.num_epochs, record.section("train").get("epochs")
    if planned and 0 < done < planned:
        return f"{done} of {planned}"
    return str(done) if done else "–"


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
    return {"names": names, "rows": rows, "pairs": confused_pairs(matrix, names), "num_classes": len(matrix)}


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
