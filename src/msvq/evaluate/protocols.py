"""The frozen protocols by name. A protocol never changes: what would be a change is a new version of its id."""

import statistics
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from msvq.core.console import printable
from msvq.core.errors import BadInput
from msvq.core.runtime import or_too_large
from msvq.core.schema import Section, assign, diff
from msvq.core.version import __version__
from msvq.data.store import ImageDataset
from msvq.evaluate.features import NOT_FINITE, EvalContext, scores
from msvq.evaluate.finetune import FinetuneSettings, finetune
from msvq.evaluate.knn import KnnSettings, knn_scores
from msvq.evaluate.labels import Rows, chance, stratified
from msvq.evaluate.linear import SEED, LinearSettings, linear_evaluation
from msvq.evaluate.probe import ProbeSettings, probe
from msvq.evaluate.results import EvalResult
from msvq.model.backbones import make_backbone

PRECISION = "fp32"  # of a frozen protocol: the same on every machine
BULKY = ("confusion", "class_names", "mistakes")  # of a result; not kept for each of several seeds
MOST_CONFUSED = 1000  # classes beyond which a matrix of all pairs of them is not kept


Result = dict[str, Any]


class EvalProtocol(NamedTuple):
    """How an encoder is judged. Of `measure`'s result, floats are averaged over seeds."""

    settings: type[Section]
    protocol_id: Callable[[Any], tuple[str, tuple[str, ...]]]  # the id, and which settings it names
    measure: Callable[[EvalContext, Any, Rows | None, int], Result]
    random: bool  # whether the seed matters with all labels
    first_seed: int = 0


def evaluate_knn(context: EvalContext, settings: KnnSettings, rows: Rows | None, seed: int) -> Result:
    """Votes of the nearest labelled pictures."""
    num_labels = len(context.data.labelled if rows is None else rows)
    if settings.k > num_labels:
        raise BadInput(
            f"kNN asks for k = {settings.k} neighbours of {num_labels:,} labelled pictures; "
            f"--set k={num_labels} or fewer"
        )
    bank, known, test, truth = context.features(rows)
    num_classes = max(context.data.num_classes, 1 + int(max(known.max(), truth.max())))
    test, truth = test[truth >= 0], truth[truth >= 0]
    if not (bank.isfinite().all() and test.isfinite().all()):
        raise BadInput(NOT_FINITE)
    votes = knn_scores(bank, known, test, k=settings.k, temp=settings.temp, num_classes=num_classes)
    return {**scores(votes, truth)._asdict(), **find_mistakes(context.data, votes.argmax(1).numpy())}


def find_mistakes(data: ImageDataset, guesses: NDArray[np.int64]) -> Result:
    """What the labelled test pictures are taken for: the confusion matrix, and the files that are taken wrongly."""
    labels = data.test.labels_as_read()
    rows = np.flatnonzero(labels >= 0)
    truth, found = labels[rows], Result(class_names=list(data.class_names))
    num_classes = max(data.num_classes, 1 + int(max(truth.max(), guesses.max())))
    if num_classes <= MOST_CONFUSED:
        confusion = np.zeros((num_classes, num_classes), np.int64)
        np.add.at(confusion, (truth, guesses), 1)
        found["confusion"] = confusion.tolist()  # rows: truth, columns: guess
    names = [*data.class_names, *(f"class {number}" for number in range(data.num_classes, num_classes))]
    if data.test.names is not None:
        files = data.test.file_names()
        found["mistakes"] = [
            {"name": printable(files[rows[place]]), "class": names[truth[place]], "guess": names[guesses[place]]}
            for place in np.flatnonzero(guesses != truth)
        ]
    return found


def evaluate_probe(context: EvalContext, settings: ProbeSettings, rows: Rows | None, seed: int) -> Result:
    """Logistic regression on the features."""
    bank, known, test, truth = context.features(rows)
    found = probe(bank, known.numpy(), test, truth.numpy(), settings=settings, seed=seed)
    chosen: Result = {"strength": found.strength, "converged": found.converged}
    chosen |= {"validation": {f"{s:g}": top1 for s, top1 in found.validation.items()}}
    return {**found.scores._asdict(), **chosen, **find_mistakes(context.data, found.guesses)}


def _enough_memory(context: EvalContext, batch_size: int, lower: str) -> AbstractContextManager[None]:
    return or_too_large(
        f"a step of {batch_size} pictures does not fit into the memory of {context.device}; lower {lower} with --set"
    )


def evaluate_linear(context: EvalContext, settings: LinearSettings, rows: Rows | None, seed: int) -> Result:
    """The paper's linear evaluation; the last epoch is the headline, the best stands beside it."""
    with _enough_memory(context, settings.batch_size, "batch_size or size"):
        found = linear_evaluation(context, settings, rows, seed)
    best = {"top1_best": found.best.top1, "top5_best": found.best.top5, "best_epoch": found.best_epoch}
    curve = [epoch.top1 for epoch in found.epochs]
    return {**found.last._asdict(), **best, "curve": curve, **find_mistakes(context.data, found.guesses)}


def evaluate_finetune(context: EvalContext, settings: FinetuneSettings, rows: Rows | None, seed: int) -> Result:
    """The network trained on with labels, beside the same network from scratch."""
    with _enough_memory(context, settings.batch_size, "batch_size"):
        tuned = finetune(context, settings, rows, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fresh = replace(context, encoder=make_backbone(context.backbone, context.data.size))
    whole = settings.model_copy(update={"depth": "all"})  # a frozen stage of fresh weights would be no comparison
    with _enough_memory(context, settings.batch_size, "batch_size"):
        scratch = finetune(fresh, whole, rows, seed, scratch=True).last
    beside = {"scratch_top1": scratch.top1, "scratch_top5": scratch.top5, "steps": tuned.steps}
    return {**tuned.last._asdict(), **beside, **find_mistakes(context.data, tuned.guesses)}


PROTOCOLS = {
    "knn": EvalProtocol(KnnSettings, lambda s: (f"knn-{s.k}-t{s.temp:g}/1", ("k", "temp")), evaluate_knn, random=False),
    "probe": EvalProtocol(ProbeSettings, lambda s: ("probe/1", ()), evaluate_probe, random=True),
    "linear": EvalProtocol(
        LinearSettings,
        lambda s: (f"linear-{s.epochs}{'-step' if s.schedule == 'step' else ''}/1", ("epochs", "schedule")),
        evaluate_linear,
        random=True,
        first_seed=SEED,
    ),
    "finetune": EvalProtocol(
        FinetuneSettings,
        lambda s: (f"finetune-{s.depth}/1", ("depth",)),
        evaluate_finetune,
        random=True,
        first_seed=SEED,
    ),
}


def protocol_settings(kind: type[Section], given: dict[str, Any]) -> tuple[Section, dict[str, Any]]:
    """The protocol's settings, and which of the given ones change it."""
    values = kind().model_dump(mode="json")
    for path, value in given.items():
        assign(values, path, value)
    settings = kind.parse(values)
    changed = [f"{change.path}." for change in diff(kind(), settings)]
    return settings, {key: value for key, value in given.items() if any(path.startswith(f"{key}.") for path in changed)}


def protocol_id(protocol: str, settings: Section, changes: Mapping[str, Any]) -> str:
    """The protocol's name and version; what was changed stands behind it, so that nobody compares unlike numbers."""
    name, told = PROTOCOLS[protocol].protocol_id(settings)
    return name + "".join(f"+{key}={value}" for key, value in changes.items() if key not in told)


def run_protocol(
    protocol: str,
    context: EvalContext,
    settings: Section,
    changes: Mapping[str, Any],
    *,
    labels: float = 1.0,
    seeds: int = 1,
    transfer: bool = False,
    checkpoint: str,
    step: int | None,
) -> EvalResult:
    """What a protocol says of an encoder: means over the seeds, and each of them.

    `changes`: how the settings differ from the protocol's. `transfer`, `checkpoint` and `step` are where the pictures
    and the encoder came from, for the record.
    """
    chosen = PROTOCOLS[protocol]
    known = context.data.labelled.labels
    repeats = seeds if chosen.random or labels < 1 else 1
    if seeds > repeats:
        context.display.note(f"note: {protocol} with all labels has no randomness, so one measurement is enough")
    each = []
    for number in range(repeats):
        rows = stratified(known, labels, seed=number) if labels < 1 else None
        seed = chosen.first_seed + number
        each.append({"seed": seed, **chosen.measure(context, settings, rows, seed)})
    accuracies = [key for key in each[0] if "top1" in key or "top5" in key]
    found = {key: statistics.mean(one[key] for one in each) for key in accuracies}
    if len(each) > 1:
        found |= {f"{key}_std": statistics.stdev(one[key] for one in each) for key in accuracies}
    else:
        found |= {key: value for key, value in each[0].items() if key not in (*accuracies, "seed")}
    return EvalResult(
        protocol=protocol_id(protocol, settings, changes),
        kind=protocol,
        **found,
        seeds=[one["seed"] for one in each],
        runs=[{key: value for key, value in one.items() if key not in BULKY} for one in each],
        labels=labels,
        num_labels=len(known) if labels == 1 else len(stratified(known, labels, seed=0)),
        num_test=len(context.data.test),
        chance=chance(context.data.test.labels),
        settings=settings.model_dump(mode="json"),
        precision=context.precision,
        msvq=__version__,
        data=context.data.name,
        data_fingerprint=context.data.fingerprint,
        transfer=transfer,
        checkpoint=checkpoint,
        step=step,
        changes=dict(changes),
    )
