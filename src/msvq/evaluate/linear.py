"""Linear evaluation: one linear layer learns on the features of a frozen backbone."""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import numpy as np
import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt
from numpy.typing import NDArray
from torch import nn

from msvq.core.errors import BadInput
from msvq.core.runtime import RandomStream, autocast, derive_seed, step_rng, warmup_cosine
from msvq.core.schema import Section
from msvq.data.augment import ViewSettings
from msvq.evaluate.features import EvalContext, Scores, scores
from msvq.evaluate.labels import PLAIN, LabelledViews, Rows

SEED = 1337  # the paper's code's; further seeds count on from it
MOMENTUM = 0.9


class LinearSettings(Section):
    """The paper's protocol; `schedule="step"` is that of its authors' companion benchmark (docs/deviations.md)."""

    epochs: Annotated[int, Ge(1)] = 100  # passes over the labelled pictures
    batch_size: Annotated[int, Ge(1)] = 256
    schedule: Literal["cosine", "step"] = "cosine"  # step: a tenth after 60 % of the epochs, a hundredth after 80 %
    lr: Annotated[float, Gt(0)] | None = None  # None: 1 for cosine, 30 for step
    weight_decay: Annotated[float, Ge(0)] = 0.0
    size: Annotated[int, Ge(8)] | None = None  # side of the crops that it learns from; None: that of pre-training
    view: ViewSettings = PLAIN

    def learning_rate(self, step: int, *, steps_per_epoch: int) -> float:
        """The rate of a step counted from 0."""
        usual = {"cosine": 1.0, "step": 30.0}[self.schedule]
        peak = usual if self.lr is None else self.lr
        if self.schedule == "cosine":
            return warmup_cosine(step, base_lr=peak, warmup_steps=0, total_steps=self.epochs * steps_per_epoch)
        epoch = step // steps_per_epoch
        return peak * 0.1 ** sum(10 * epoch >= tenths * self.epochs for tenths in (6, 8))


@dataclass(frozen=True)
class Classifier:
    """An encoder with a linear layer that has learned from labels, and what was measured on the way."""

    epochs: tuple[Scores, ...]  # on the test pictures, after each epoch; of fine-tuning after the last alone
    losses: tuple[float, ...]  # mean over the training pictures of an epoch
    num_train: int
    num_test: int
    steps: int
    encoder: nn.Module
    head: nn.Linear
    guesses: NDArray[np.int64]  # the class that each labelled test picture is taken for in the end

    @property
    def last(self) -> Scores:
        """After the last epoch: chosen before anything was measured."""
        return self.epochs[-1]

    @property
    def best_epoch(self) -> int:
        """The first epoch, counted from 1, with the highest top-1."""
        return 1 + max(range(len(self.epochs)), key=lambda epoch: self.epochs[epoch].top1)

    @property
    def best(self) -> Scores:
        """Of the best epoch: chosen on the test pictures, as the paper's presumably are."""
        return self.epochs[self.best_epoch - 1]


def new_head(feature_dim: int, num_classes: int, *, seed: int, device: torch.device) -> nn.Linear:
    """A linear layer [d] -> [C] with weights from N(0, 0.01) and biases 0."""
    generator = torch.Generator().manual_seed(derive_seed(seed, RandomStream.PROTOCOL))
    weight = 0.01 * torch.randn(num_classes, feature_dim, generator=generator)
    head = nn.Linear(feature_dim, num_classes, device="meta").to_empty(device="cpu")  # no draw from the global state
    with torch.no_grad():
        head.weight.copy_(weight)
        head.bias.zero_()
    return head.to(device)


def train_classifier(
    context: EvalContext,
    network: nn.Module,
    head: nn.Linear,
    views: LabelledViews,
    rates: Mapping[nn.Module, Callable[[int], float]],
    *,
    epochs: int,
    weight_decay: float,
    task: str,
    after_epoch: Callable[[], None] = lambda: None,
) -> tuple[float, ...]:
    """Let each module learn at its rate of a step counted from 0, in steps of a batch of views.

    Returns each epoch's mean loss.
    """
    device, learns = context.device, any(p.requires_grad for p in network.parameters())
    groups = [{"params": list(module.parameters()), "rate": rate} for module, rate in rates.items()]
    optimiser = torch.optim.SGD(groups, lr=0.0, momentum=MOMENTUM, nesterov=True, weight_decay=weight_decay)
    scaler = torch.amp.GradScaler(device.type, enabled=learns and context.precision == "fp16")
    means = []
    with context.display.task(task, epochs * len(views)) as advance:
        for epoch in range(epochs):
            losses = []
            for step, (pictures, labels) in enumerate(views.epoch(epoch), epoch * len(views)):
                for group in optimiser.param_groups:
                    group["lr"] = group["rate"](step)
                optimiser.zero_grad()
                with step_rng(views.seed, RandomStream.PROTOCOL, step, device):
                    with torch.set_grad_enabled(learns), autocast(device, context.precision):
                        features = network(pictures)
                    loss = F.cross_entropy(head(features.float()), labels)
                    scaler.scale(loss).backward()
                scaler.step(optimiser)
                scaler.update()
                losses.append(loss.detach() * (len(labels) / len(views.pictures)))
                advance(1)
            means.append(float(torch.stack(losses).sum()))  # once an epoch, so that a GPU does not wait at every step
            if not math.isfinite(means[-1]):
                raise BadInput(
                    f"the classifier's loss became {means[-1]} in epoch {epoch + 1}; give a lower learning rate"
                )
            with torch.no_grad():
                after_epoch()
    return tuple(means)


def linear_evaluation(context: EvalContext, settings: LinearSettings, rows: Rows | None, seed: int) -> Classifier:
    """Train a classifier on `rows` of the labelled pictures (None: all of them); the encoder is left as it is.

    Every epoch sees new crops. The backbone is in eval mode throughout, so test features are computed once.
    """
    data, device, size = context.data, context.device, settings.size or context.data.size
    if size != data.test_size:
        context.display.note(
            f"note: the classifier learns on crops of {size} px, as the protocol says, and is tested at "
            f"{data.test_size} px; where features depend on the size that costs accuracy "
            f"(--set size={data.test_size} avoids it)"
        )
    views = LabelledViews(
        data, rows, view=settings.view, size=size, batch_size=settings.batch_size, seed=seed, device=device
    )
    frozen = copy.deepcopy(context.encoder).requires_grad_(False).eval()
    frozen = frozen.to(device).to(memory_format=torch.channels_last)
    views.check(frozen, "--set size=N and view.scale so that it can")
    test, truth = context.test_features(frozen)
    head = new_head(test.shape[1], views.num_classes, seed=seed, device=device)
    measured: list[Scores] = []
    losses = train_classifier(
        context,
        frozen,
        head,
        views,
        {head: partial(settings.learning_rate, steps_per_epoch=len(views))},
        epochs=settings.epochs,
        weight_decay=settings.weight_decay,
        task="linear evaluation",
        after_epoch=lambda: measured.append(scores(head(test), truth)),
    )
    steps, guesses = settings.epochs * len(views), head(test).argmax(1).cpu().numpy()
    return Classifier(tuple(measured), losses, len(views.pictures), len(truth), steps, frozen, head, guesses)
