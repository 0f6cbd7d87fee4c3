"""A study's results as plain values: what is written to its JSON file, from which every other form is made."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import combinations, pairwise
from typing import Any

from msvq.report.records import Points
from msvq.reproduce import paper
from msvq.reproduce.claims import judge, judge_cost, judge_false_negatives, summarise
from msvq.reproduce.collect import Measured, Score
from msvq.reproduce.experiments import Place, Request, Row

ALIKE = ("processor", "threads", "device_name", "precision", "compiled")  # of two runs whose times are compared
COSTS = {"time": "seconds_per_picture", "memory": "memory"}  # of training: what a run's measurement calls it
Found = Mapping[Place, Measured]  # what the finished cells measured

UNMEASURED: Mapping[str, Any] = {"best": None, "last": None}
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
        result["rows"] = [
            {
                "row": row.key,
                "label": row.label,
                "backprop": paper.BACKPROP.get(row.key),
                "cells": {dataset: _entry(request, row, dataset, found) for dataset in request.datasets},
            }
            for row in request.rows
        ]
    elif study.kind != "map":
        result["panels"] = [_panel(request, dataset, found) for dataset in request.datasets]
    result["claims"] = _claims(request, found)
    # What the numbers were made from; a cell of two rows stands here once.
    result["cells"] = {
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
    return result


def _scores(found: Found, dataset: str, row: str, measure: str) -> dict[int, Score]:
    """Seed -> what a row's run on a data set has come to, by one measure."""
    here = {seed: one.scores for (place, key, seed), one in found.items() if (place, key) == (dataset, row)}
    return {seed: scores[measure] for seed, scores in here.items() if measure in scores}


def _entry(request: Request, row: Row, dataset: str, found: Found) -> dict[str, Any]:
    """One place of a table: published, ours, and the difference.

    That is taken on the best epoch; but where fewer labels vote than in the paper, on the last, when all of them do.
    """
    measure, study = request.measure, request.study.name
    sources = list(paper.published(study, row.key, dataset).items())
    source, value = (None, None) if paper.main_value(study, row.key, dataset) is None else sources.pop(0)
    others = ("knn", "knn-all", "linear", *(("probe",) if measure == "linear" else ()))
    scores = {name: _scores(found, dataset, row.key, name) for name in (measure, *others)}
    ours = scores.pop(measure)
    by_epoch = _by_epoch(ours.values())
    more = {name: {**_by_epoch(of.values()), "seeds": len(of)} if of else None for name, of in scores.items()}
    compared = None if measure == "probe" else by_epoch["best"]
    if measure == "knn" and request.fewer_vote:
        compared = (more["knn-all"] or UNMEASURED)["last"]  # as in the paper, which online kNN with fewer labels is not
    linear = (more.get("linear") or UNMEASURED)["best"] if study != "knn" else None
    missing = [seed for seed in request.seeds if request.is_asked((dataset, row.key, seed)) and seed not in ours]
    return {
        "published": value,
        "source": source,
        "others": [{"source": source, "value": value} for source, value in sources],
        **by_epoch,
        **more,
        "difference": compared["mean"] - value if compared and value is not None else None,
        "linear_difference": linear["mean"] - value if linear and value is not None else None,
        "values": {str(seed): {"best": score.best, "last": score.last} for seed, score in ours.items()},
        "seeds_missing": len(missing) if row.is_on(dataset) else 0,
        "is_there": row.is_on(dataset),
    }


def _by_epoch(scores: Collection[Score]) -> dict[str, Any]:
    """Mean and deviation in the best epoch and in the last."""
    found = {"best": summarise([score.best for score in scores]), "last": summarise([score.last for score in scores])}
    return {epoch: summary and summary._asdict() for epoch, summary in found.items()}


def _claims(request: Request, found: Found) -> list[dict[str, Any]]:
    """The paper's claims that this study decides, by the best epoch; and by all labels, where fewer vote in it."""

    def best(dataset: str, measure: str, row: str) -> dict[int, float]:
        return {seed: score.best for seed, score in _scores(found, dataset, row, measure).items()}

    study = request.study
    claims: list[dict[str, Any]] = []
    for dataset in request.datasets:
        rows = [row.key for row in request.rows if row.is_on(dataset)]
        claims += judge(study.name, dataset, rows, partial(best, dataset, request.measure))
        if request.measure == "knn" and request.fewer_vote:
            for claim in judge(study.name, dataset, rows, partial(best, dataset, "knn-all")):
                claims.append(claim | {"claim": f"{claim['claim']}, by all labels"})
        if study.name in ("linear", "knn") and {"msvq", "ressl"} <= set(rows):
            claims += [judge_cost(dataset, what, _cost_ratios(what, dataset, found)) for what in COSTS]
        if study.kind == "false-negatives":
            claims.append(judge_false_negatives(dataset, _last_found(dataset, found)))
    return claims


def _cost_ratios(what: str, dataset: str, found: Found) -> dict[int, float]:
    """Seed -> what MSVQ took over what ReSSL took, where both ran on such a machine with as many threads.

    Not the time of compiled runs: who waits for the compiler is a matter of which run came first.
    """
    ratios = {}
    for seed in sorted({seed for _, _, seed in found}):
        one, other = (found.get((dataset, row, seed)) for row in ("msvq", "ressl"))
        if one is None or other is None or any(one.machine.get(key) != other.machine.get(key) for key in ALIKE):
            continue
        ours, theirs = getattr(one, COSTS[what]), getattr(other, COSTS[what])
        if ours is not None and theirs is not None and not (what == "time" and one.machine.get("compiled")):
            ratios[seed] = ours / theirs
    return ratios


def _last_found(dataset: str, found: Found) -> dict[str, dict[int, float]]:
    """View -> seed -> false negatives found in the end."""
    values: dict[str, dict[int, float]] = {}
    for (place, _, seed), one in found.items():
        for view, points in one.false_negatives.items():
            if place == dataset and points:
                values.setdefault(view, {})[seed] = points[-1][1]
    return values


Curves = dict[str, dict[int, Points]]  # name -> seed -> points


def _panel(request: Request, dataset: str, found: Found) -> dict[str, Any]:
    """A figure's curves on one data set: means over the seeds, how many those are, and where the curves cross."""
    of_knn, labels = request.study.kind == "curves", {row.key: row.label for row in request.rows}
    curves: Curves = {label: {} for label in labels.values()} if of_knn else {}
    here = {place: one for place, one in found.items() if place[0] == dataset}
    for (_, key, seed), one in here.items():
        views = {view.replace("view", "X"): points for view, points in one.false_negatives.items()}
        for name, points in ({labels[key]: one.knn_curve} if of_knn else views).items():
            curves.setdefault(name, {})[seed] = points
    asked = {place for place in request.cells() if place[0] == dataset and request.is_asked(place)}
    return {
        "dataset": dataset,
        "steps_per_epoch": next((one.steps_per_epoch for one in here.values()), None),
        "series": {name: mean_curve(list(by_seed.values())) for name, by_seed in curves.items()},
        "seeds": {name: sum(bool(points) for points in by_seed.values()) for name, by_seed in curves.items()},
        "seeds_missing": len(asked - set(found)),
        "crossings": crossings(curves) if of_knn else [],
    }


def mean_curve(curves: Sequence[Points]) -> list[dict[str, Any]]:
    """Mean and deviation over the seeds at each epoch that all of them have."""
    by_epoch = [dict(curve) for curve in curves if curve]
    shared = set.intersection(*map(set, by_epoch)) if by_epoch else set()
    summaries = {epoch: summarise([curve[epoch] for curve in by_epoch]) for epoch in sorted(shared)}
    return [{"epoch": epoch, **summary._asdict()} for epoch, summary in summaries.items() if summary is not None]


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
