"""A study's results as plain values: what is written to its JSON file, from which every other form is made."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import combinations, pairwise
from typing import Any

from msvq.report.records import Points
from msvq.reproduce import paper
from msvq.reproduce.claims import judge, judge_cost, judge_false_negatives, summarise
from msvq.reproduce.collect import Measured
from msvq.reproduce.experiments import Place, Request, Row

ALIKE = ("processor", "threads", "device_name", "precision", "compiled")  # of two runs whose times are compared
Found = Mapping[Place, Measured]  # what the finished cells measured

MEASURES = {
    "knn": "weighted kNN, k = 200, T = 0.1, on the student's features",
    "linear": "linear evaluation, 100 epochs (the paper's protocol)",
    "probe": "probe: one logistic regression on features; not the paper's protocol, so no difference is taken",
}


def build_result(request: Request, found: Found, *, command: str) -> dict[str, Any]:
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
        "fewer_vote": request.fewer_vote,
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
    """One place of a table: published, ours, and the difference.

    That is taken on the best epoch; but where fewer labels vote than in the paper, on the last, when all of them do.
    """
    measure = request.measure
    sources = list(paper.published(request.study.name, row.key, dataset).items())
    value = paper.main_value(request.study.name, row.key, dataset)
    main = None if value is None else sources[0]
    cells = {seed: found[dataset, row.key, seed] for seed in request.seeds if (dataset, row.key, seed) in found}
    scores = {seed: cell.scores[measure] for seed, cell in cells.items() if measure in cell.scores}
    best, last = summarise([s.best for s in scores.values()]), summarise([s.last for s in scores.values()])
    ours = None if best is None or measure == "probe" else best.mean
    asked = [seed for seed in request.seeds if request.is_asked((dataset, row.key, seed))]
    more = {name: _both(cells.values(), name) for name in ("knn", "knn-all", "linear") if name != measure}
    if measure == "knn" and request.fewer_vote:
        everyone = more.get("knn-all")  # as in the paper, which online kNN with fewer labels is not
        ours = None if everyone is None else everyone["last"]["mean"]
    linear = more.get("linear") if request.study.name != "knn" else None  # beside the published linear accuracy
    return {
        "published": main and main[1],
        "source": main and main[0],
        "others": [{"source": source, "value": value} for source, value in sources if (source, value) != main],
        "best": best and best._asdict(),
        "last": last and last._asdict(),
        **more,
        "difference": None if ours is None or main is None else ours - main[1],
        "linear_difference": linear["best"]["mean"] - main[1] if linear and main else None,
        "values": {str(seed): {"best": score.best, "last": score.last} for seed, score in scores.items()},
        "seeds_missing": len(set(asked) - set(scores)) if row.is_on(dataset) else 0,
        "is_there": row.is_on(dataset),
    }


def _both(cells: Iterable[Measured], protocol: str) -> dict[str, Any] | None:
    """What another protocol than the table's says of the same runs, in the best epoch and the last."""
    scores = [cell.scores[protocol] for cell in cells if protocol in cell.scores]
    best, last = summarise([score.best for score in scores]), summarise([score.last for score in scores])
    return {"best": best._asdict(), "last": last._asdict(), "seeds": len(scores)} if best and last else None


def _claims(request: Request, found: Found) -> list[dict[str, Any]]:
    """The paper's claims that this study decides, by the best epoch; and by all labels, where fewer vote in it."""
    claims: list[dict[str, Any]] = []
    for dataset in request.datasets:

        def best(row: str, measure: str = request.measure, dataset: str = dataset) -> dict[int, float]:
            return {
                seed: one.scores[measure].best
                for (place, key, seed), one in found.items()
                if (place, key) == (dataset, row) and measure in one.scores
            }

        rows = [row.key for row in request.rows if row.is_on(dataset)]
        claims += judge(request.study.name, dataset, rows, best)
        if request.measure == "knn" and request.fewer_vote:
            for claim in judge(request.study.name, dataset, rows, partial(best, measure="knn-all")):
                claims.append(claim | {"claim": f"{claim['claim']}, by all labels"})
        if request.study.name in ("linear", "knn") and {"msvq", "ressl"} <= set(rows):
            claims += [judge_cost(dataset, what, *_costs(what, dataset, found)) for what in ("time", "memory")]
        if request.study.kind == "false-negatives":
            claims.append(judge_false_negatives(dataset, _last_found(dataset, found)))
    return claims


def _costs(what: str, dataset: str, found: Found) -> tuple[dict[int, float], dict[int, float]]:
    """Seed -> what MSVQ took, and ReSSL, where both ran on such a machine with as many threads.

    Not the time of compiled runs: who waits for the compiler is a matter of which run came first.
    """
    msvq, ressl = {}, {}
    for seed in sorted({seed for _, _, seed in found}):
        one, other = (found.get((dataset, row, seed)) for row in ("msvq", "ressl"))
        if one is None or other is None or any(one.machine.get(key) != other.machine.get(key) for key in ALIKE):
            continue
        if what == "time" and one.machine.get("compiled"):
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


Curves = dict[str, dict[int, Points]]  # name -> seed -> points
Curve = list[dict[str, Any]]  # mean and deviation at each epoch


def _knn_panel(request: Request, dataset: str, found: Found) -> dict[str, Any]:
    curves: Curves = {row.label: {} for row in request.rows}
    titles = {row.key: row.label for row in request.rows}
    for (place, key, seed), one in found.items():
        if place == dataset:
            curves[titles[key]][seed] = one.knn_curve
    return _panel(request, dataset, found, curves, crossings(curves))


def _false_negative_panel(request: Request, dataset: str, found: Found) -> dict[str, Any]:
    curves: Curves = {}
    for (place, _, seed), one in found.items():
        for view, points in one.false_negatives.items():
            if place == dataset:
                curves.setdefault(view.replace("view", "X"), {})[seed] = points
    return _panel(request, dataset, found, curves, [])


def _panel(
    request: Request, dataset: str, found: Found, curves: Curves, crossed: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """A figure's curves on one data set: means over the seeds, how many those are, and where the curves cross."""
    steps = next((one.steps_per_epoch for (place, _, _), one in found.items() if place == dataset), None)
    asked = [place for place in request.cells() if place[0] == dataset and request.is_asked(place)]
    return {
        "dataset": dataset,
        "steps_per_epoch": steps,
        "series": {name: mean_curve(list(by_seed.values())) for name, by_seed in curves.items()},
        "seeds": {name: sum(bool(points) for points in by_seed.values()) for name, by_seed in curves.items()},
        "seeds_missing": len(set(asked) - set(found)),
        "crossings": list(crossed),
    }


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


def crossings(curves: Curves) -> list[dict[str, Any]]:
    """Where one mean overtakes another: between which two measurements, and in how many of the seeds it is ahead then.

    Of two curves, the seeds count that both have: else a lucky seed of one would be a crossing.
    """
    found = []
    for first, second in combinations(curves, 2):
        shared = sorted(seed for seed, points in curves[first].items() if points and curves[second].get(seed))
        one, other = (
            {point["epoch"]: point["mean"] for point in mean_curve([curves[name][seed] for seed in shared])}
            for name in (first, second)
        )
        gaps = [(epoch, one[epoch] - other[epoch]) for epoch in sorted(set(one) & set(other)) if epoch > 0]
        for (before, old), (after, new) in pairwise([(epoch, gap) for epoch, gap in gaps if gap != 0]):
            if (old > 0) != (new > 0):
                ahead, behind = (first, second) if new > 0 else (second, first)
                agree = sum(dict(curves[ahead][seed])[after] > dict(curves[behind][seed])[after] for seed in shared)
                between = {"after": before, "until": after, "seeds": len(shared), "seeds_ahead": agree}
                found.append({"ahead": ahead, "behind": behind, **between})
    return sorted(found, key=lambda crossing: crossing["until"])


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
