"""A study's results as plain values: what is written to its JSON file, from which every other form is made."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from msvq.reproduce import paper
from msvq.reproduce.cells import Request
from msvq.reproduce.claims import judge, judge_cost, judge_false_negatives
from msvq.reproduce.collect import Measured, Place
from msvq.reproduce.statistics import summarise
from msvq.reproduce.studies import Row

ALIKE = ("processor", "threads", "device_name", "precision", "compiled")  # of two runs whose times are compared
Found = Mapping[Place, Measured]  # what the finished cells measured

MEASURES = {
    "knn": "weighted kNN, k = 200, T = 0.1, on the student's features",
    "linear": "linear evaluation, 100 epochs (the paper's protocol)",
    "probe": "probe: one logistic regression on features; not the paper's protocol, so no difference is taken",
}


def build(request: Request, found: Found, *, command: str) -> dict[str, Any]:
    """Everything that there is to say about a study, with what it was made from."""
    study = request.study
    result: dict[str, Any] = {
        "name": study.name,
        "number": study.number,
        "title": study.title,
        "kind": study.kind,
        "scale": request.scale.name,
        "scale_note": request.scale.note,
        "measure": request.measure,
        "first_column": study.first_column,
        "datasets": list(request.datasets),
        "seeds": list(request.seeds),
        "command": command,
    }
    if study.kind == "table":
        result["rows"] = [_row(request, row, found) for row in request.rows]
    elif study.kind == "curves":
        result["panels"] = [_knn_panel(request, dataset, found) for dataset in request.datasets]
    elif study.kind == "false-negatives":
        result["panels"] = [_false_negative_panel(request, dataset, found) for dataset in request.datasets]
    result["claims"] = _claims(request, found)
    result["cells"] = _cells(request, found)
    return result


def _row(request: Request, row: Row, found: Found) -> dict[str, Any]:
    return {
        "row": row.key,
        "label": row.label,
        "backprop": paper.BACKPROP.get(row.key),
        "cells": {dataset: _entry(request, row, dataset, found) for dataset in request.datasets},
    }


def _entry(request: Request, row: Row, dataset: str, found: Found) -> dict[str, Any]:
    """One place of a table: published, ours, and the difference, which is taken on the best epoch."""
    measure = request.measure
    sources = list(paper.published(request.study.name, row.key, dataset).items())
    value = paper.main_value(request.study.name, row.key, dataset)
    main = None if value is None else sources[0]
    cells = {seed: found[dataset, row.key, seed] for seed in request.seeds if (dataset, row.key, seed) in found}
    scores = {seed: cell.scores[measure] for seed, cell in cells.items() if measure in cell.scores}
    best, last = summarise([s.best for s in scores.values()]), summarise([s.last for s in scores.values()])
    comparable = best is not None and main is not None and measure != "probe"
    asked = [seed for seed in request.seeds if request.is_asked(dataset, row, seed)]
    more = {name: _both(cells.values(), name) for name in ("knn", "knn-all", "linear") if name != measure}
    linear = more.get("linear") if request.study.name != "knn" else None  # beside the published linear accuracy
    return {
        "published": main and main[1],
        "source": main and main[0],
        "others": [{"source": source, "value": value} for source, value in sources if (source, value) != main],
        "best": best and best._asdict(),
        "last": last and last._asdict(),
        **more,
        "difference": best.mean - main[1] if comparable and best and main else None,
        "linear_difference": linear["best"]["mean"] - main[1] if linear and main else None,
        "values": {str(seed): {"best": score.best, "last": score.last} for seed, score in scores.items()},
        "seeds_missing": len(set(asked) - set(scores)) if row.is_on(dataset) else 0,
        "is_there": row.is_on(dataset),
    }


def _both(cells: Iterable[Measured], protocol: str) -> dict[str, Any] | None:
    """What another protocol than the table's says of the same runs, in the best epoch and the last."""
    scores = [cell.scores[protocol] for cell in cells if protocol in cell.scores]
    best, last = summarise([score.best for score in scores]), summarise([score.last for score in scores])
    return {"best": best._asdict(), "last": last._asdict()} if best and last else None


def _claims(request: Request, found: Found) -> list[dict[str, Any]]:
    """The paper's claims that this study decides, by the best epoch."""
    claims: list[dict[str, Any]] = []
    for dataset in request.datasets:

        def best(row: str, dataset: str = dataset) -> dict[int, float]:
            return {
                seed: one.scores[request.measure].best
                for (place, key, seed), one in found.items()
                if (place, key) == (dataset, row) and request.measure in one.scores
            }

        rows = [row.key for row in request.rows if row.is_on(dataset)]
        claims += judge(request.study.name, dataset, rows, best)
        if request.study.name in ("linear", "knn") and {"msvq", "ressl"} <= set(rows):
            claims += [judge_cost(dataset, what, *_taken(what, dataset, found)) for what in ("time", "memory")]
        if request.study.kind == "false-negatives":
            claims.append(judge_false_negatives(dataset, _last_found(dataset, found)))
    return claims


def _taken(what: str, dataset: str, found: Found) -> tuple[dict[int, float], dict[int, float]]:
    """Seed -> what MSVQ took, and ReSSL, where both ran on such a machine with as many threads."""
    msvq, ressl = {}, {}
    for seed in sorted({seed for _, _, seed in found}):
        one, other = (found.get((dataset, row, seed)) for row in ("msvq", "ressl"))
        if one is None or other is None or any(one.machine.get(key) != other.machine.get(key) for key in ALIKE):
            continue
        if what in one.cost and what in other.cost:
            msvq[seed], ressl[seed] = one.cost[what], other.cost[what]
    return msvq, ressl


def _last_found(dataset: str, found: Found) -> dict[str, dict[int, float]]:
    """View -> seed -> false negatives found in the end."""
    values: dict[str, dict[int, float]] = {}
    for (place, _, seed), one in found.items():
        for view, points in one.false_negatives.items():
            if place == dataset and points:
                values.setdefault(view, {})[seed] = points[-1][1]
    return values


def _knn_panel(request: Request, dataset: str, found: Found) -> dict[str, Any]:
    series = {}
    for row in request.rows:
        runs = [one for (place, key, _), one in found.items() if (place, key) == (dataset, row.key)]
        series[row.label] = mean_curve([run.knn_curve for run in runs])
    steps = next((one.steps_per_epoch for (place, _, _), one in found.items() if place == dataset), None)
    found_crossings = [
        crossing | {"step": None if steps is None else round(crossing["epoch"] * steps)}
        for crossing in crossings(series)
    ]
    return {"dataset": dataset, "steps_per_epoch": steps, "series": series, "crossings": found_crossings}


def _false_negative_panel(request: Request, dataset: str, found: Found) -> dict[str, Any]:
    runs = [one for (place, _, _), one in found.items() if place == dataset]
    views = list(dict.fromkeys(view for run in runs for view in run.false_negatives))
    series = {
        view.replace("view", "X"): mean_curve([run.false_negatives.get(view, []) for run in runs]) for view in views
    }
    steps = next((one.steps_per_epoch for one in runs), None)
    return {"dataset": dataset, "steps_per_epoch": steps, "series": series, "crossings": []}


Curve = list[dict[str, Any]]


def mean_curve(curves: Sequence[Sequence[tuple[float, float]]]) -> Curve:
    """Mean and deviation over the seeds at each epoch that all of them have."""
    by_epoch = [dict(curve) for curve in curves if curve]
    if not by_epoch:
        return []
    shared = sorted(set.intersection(*(set(curve) for curve in by_epoch)))
    points = []
    for epoch in shared:
        summary = summarise([curve[epoch] for curve in by_epoch])
        assert summary is not None
        points.append({"epoch": epoch, **summary._asdict()})
    return points


def crossings(series: Mapping[str, Curve]) -> list[dict[str, Any]]:
    """Where one mean curve overtakes another: at which epoch, between two measurements in a straight line."""
    found, names = [], list(series)
    means = {name: {point["epoch"]: point["mean"] for point in series[name]} for name in names}
    for index, first in enumerate(names):
        for second in names[index + 1 :]:
            epochs = sorted(set(means[first]) & set(means[second]))
            gaps = [(epoch, means[first][epoch] - means[second][epoch]) for epoch in epochs if epoch > 0]
            gaps = [(epoch, gap) for epoch, gap in gaps if gap != 0]
            for (before, old), (after, new) in pairwise(gaps):
                if (old > 0) != (new > 0):
                    epoch = before + (after - before) * abs(old) / (abs(old) + abs(new))
                    ahead, behind = (first, second) if new > 0 else (second, first)
                    found.append({"epoch": round(epoch, 2), "ahead": ahead, "behind": behind})
    return sorted(found, key=lambda crossing: crossing["epoch"])


def _cells(request: Request, found: Found) -> dict[str, Any]:
    """What the numbers were made from; a cell of two rows stands here once."""
    return {
        one.cell: {
            "dataset": dataset,
            "seed": seed,
            "scores": {name: {"best": score.best, "last": score.last} for name, score in one.scores.items()},
            "knn_curve": [[epoch, round(value, 4)] for epoch, value in one.knn_curve],
            "seconds": one.seconds,
            "seconds_per_picture": one.seconds_per_picture,
            "memory": one.memory,
            "machine": dict(one.machine),
        }
        for (dataset, _, seed), one in found.items()
    }
