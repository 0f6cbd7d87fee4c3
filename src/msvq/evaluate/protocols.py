"""The frozen protocols by name. A protocol never changes: what would be a change is a new version of its id."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from msvq.core.console import Display
from msvq.core.errors import BadInput, unknown
from msvq.core.runtime import or_too_large
from msvq.core.schema import Section
from msvq.data.store import ImageDataset
from msvq.evaluate.features import feature_function
from msvq.evaluate.finetune import FinetuneSettings, finetune
from msvq.evaluate.knn import KnnSettings, knn_scores
from msvq.evaluate.linear import LinearSettings, linear_evaluation
from msvq.evaluate.probe import ProbeSettings, probe
from msvq.evaluate.scores import scores
from msvq.model.backbones import BackboneSettings, make_backbone

LINEAR_SEED = 1337  # the paper's code's; further seeds count on from it
MOST_CONFUSED = 1000  # classes beyond which a matrix of all pairs of them is not kept


@dataclass
class EvalContext:
    """What is judged, and with what."""

    encoder: nn.Module
    backbone: BackboneSettings  # to build the same network afresh
    data: ImageDataset
    device: torch.device
    precision: str
    display: Display
    cached: tuple[Tensor, Tensor] | None = None

    def features(self) -> tuple[Tensor, Tensor]:
        """Of the labelled pictures [N, d] and of the test pictures [M, d]; computed once."""
        if self.cached is None:
            with self.display.task("features", len(self.data.bank) + len(self.data.test)) as advance:
                function = feature_function(self.data, self.device, self.precision, advance)
                self.cached = function(self.encoder, self.data.bank), function(self.encoder, self.data.test)
        return self.cached

    def labels(self) -> tuple[Tensor, Tensor]:
        """Of the labelled pictures [N] and of the test pictures [M]; ask when their features are there."""
        return torch.from_numpy(self.data.bank.labels_as_read()), torch.from_numpy(self.data.test.labels_as_read())


Rows = NDArray[np.int64] | None
Result = dict[str, Any]


class Protocol(NamedTuple):
    """How an encoder is judged. Of `measure`'s result, floats are averaged over seeds."""

    settings: type[Section]
    identity: Callable[[Any], tuple[str, tuple[str, ...]]]  # the id, and which settings it names
    measure: Callable[[EvalContext, Any, Rows, int], Result]
    random: bool  # whether the seed matters with all labels
    first_seed: int = 0


def by_knn(subject: EvalContext, settings: KnnSettings, rows: Rows, seed: int) -> Result:
    """Votes of the nearest labelled pictures."""
    (bank, test), (known, truth) = subject.features(), subject.labels()
    if rows is not None:
        bank, known = bank[rows], known[rows]
    num_classes = max(subject.data.num_classes, 1 + int(max(known.max(), truth.max())))
    test, truth = test[truth >= 0], truth[truth >= 0]
    if not (bank.isfinite().all() and test.isfinite().all()):
        raise BadInput("the features are not all finite; the encoder's training broke down, or try --precision fp32")
    votes = knn_scores(bank, known, test, k=settings.k, temp=settings.temp, num_classes=num_classes)
    found: Result = {**scores(votes, truth)._asdict(), "class_names": list(subject.data.class_names)}
    if num_classes <= MOST_CONFUSED:
        confusion = torch.zeros(num_classes, num_classes, dtype=torch.int64)
        confusion.index_put_((truth, votes.argmax(1)), torch.ones((), dtype=torch.int64), accumulate=True)
        found["confusion"] = confusion.tolist()  # rows: truth, columns: vote
    return found


def by_probe(subject: EvalContext, settings: ProbeSettings, rows: Rows, seed: int) -> Result:
    """Logistic regression on the features."""
    (bank, test), (known, truth) = subject.features(), (part.numpy() for part in subject.labels())
    if rows is not None:
        bank, known = bank[rows], known[rows]
    found = probe(bank, known, test, truth, settings=settings, seed=seed)
    chosen = {"strength": found.strength, "converged": found.converged}
    return {**found.scores._asdict(), **chosen, "validation": {f"{s:g}": top1 for s, top1 in found.validation.items()}}


def _enough_memory(
    settings: LinearSettings | FinetuneSettings, device: torch.device, lower: str
) -> AbstractContextManager[None]:
    return or_too_large(
        f"a step of {settings.batch_size} pictures does not fit into the memory of {device}; lower {lower} with --set"
    )


def by_linear(subject: EvalContext, settings: LinearSettings, rows: Rows, seed: int) -> Result:
    """The paper's linear evaluation; the last epoch is the headline, the best stands beside it."""
    with _enough_memory(settings, subject.device, "batch_size or size"):
        found = linear_evaluation(
            subject.encoder,
            subject.data,
            rows,
            settings,
            device=subject.device,
            precision=subject.precision,
            seed=seed,
            display=subject.display,
        )
    curve = [epoch.top1 for epoch in found.epochs]
    best = {"top1_best": found.best.top1, "top5_best": found.best.top5, "best_epoch": found.best_epoch}
    return {**found.last._asdict(), **best, "curve": curve}


def by_finetuning(subject: EvalContext, settings: FinetuneSettings, rows: Rows, seed: int) -> Result:
    """The network trained on with labels, beside the same network from scratch."""
    shared: dict[str, Any] = {
        "device": subject.device,
        "precision": subject.precision,
        "seed": seed,
        "display": subject.display,
    }
    with _enough_memory(settings, subject.device, "batch_size"):
        tuned = finetune(subject.encoder, subject.data, rows, settings, **shared)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fresh = make_backbone(subject.backbone, subject.data.size)
    whole = settings.model_copy(update={"depth": "all"})  # a frozen stage of fresh weights would be no comparison
    scratch = finetune(fresh, subject.data, rows, whole, scratch=True, **shared)
    return {
        **tuned.scores._asdict(),
        "scratch_top1": scratch.scores.top1,
        "scratch_top5": scratch.scores.top5,
        "steps": tuned.steps,
    }


PROTOCOLS = {
    "knn": Protocol(KnnSettings, lambda s: (f"knn-{s.k}-t{s.temp:g}/1", ("k", "temp")), by_knn, random=False),
    "probe": Protocol(ProbeSettings, lambda s: ("probe/1", ()), by_probe, random=True),
    "linear": Protocol(
        LinearSettings,
        lambda s: (f"linear-{s.epochs}{'-step' if s.schedule == 'step' else ''}/1", ("epochs", "schedule")),
        by_linear,
        random=True,
        first_seed=LINEAR_SEED,
    ),
    "finetune": Protocol(
        FinetuneSettings,
        lambda s: (f"finetune-{s.depth}/1", ("depth",)),
        by_finetuning,
        random=True,
        first_seed=LINEAR_SEED,
    ),
}


def check_protocols(names: Iterable[str]) -> None:
    """Raise if there is no protocol of a name."""
    for name in names:
        if name not in PROTOCOLS:
            raise unknown("protocol", name, PROTOCOLS)


def check_neighbours(settings: Section, num_labels: int) -> None:
    """Raise if a vote asks for more neighbours than there are."""
    if isinstance(settings, KnnSettings) and settings.k > num_labels:
        raise BadInput(
            f"kNN asks for k = {settings.k} neighbours of {num_labels:,} labelled pictures; "
            f"--set k={num_labels} or fewer"
        )
