"""Linear evaluation: one linear layer learns on the features of a frozen backbone."""

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt
from numpy import uint8
from numpy.typing import NDArray
from torch import Tensor, nn

from msvq.core.console import Display
from msvq.core.errors import BadInput
from msvq.core.runtime import Stream, autocast, derive_seed, warmup_cosine
from msvq.core.schema import Section
from msvq.data.augment import ViewSettings
from msvq.data.store import ImageDataset, ImageSplit
from msvq.evaluate.features import extract_features
from msvq.evaluate.labels import PLAIN, LabelledViews, Rows
from msvq.evaluate.scores import Scores, scores

SEED = 1337  # the paper's code's
TEST_BATCH = 500
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
        if self.schedule == "cosine":
            peak = 1.0 if self.lr is None else self.lr
            return warmup_cosine(step, base_lr=peak, warmup_steps=0, total_steps=self.epochs * steps_per_epoch)
        epoch = step // steps_per_epoch
        drops = sum(10 * epoch >= tenths * self.epochs for tenths in (6, 8))
        return (30.0 if self.lr is None else self.lr) * 0.1**drops


@dataclass(frozen=True)
class LinearResult:
    """What was measured after each epoch, and the classifier of the last."""

    epochs: tuple[Scores, ...]  # on the test pictures
    losses: tuple[float, ...]  # mean over the training pictures of an epoch
    num_train: int
    num_test: int
    head: nn.Linear

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


def labelled_test(data: ImageDataset) -> ImageSplit:
    """The test pictures that have a label."""
    test = data.test.select(np.flatnonzero(data.test.labels >= 0))
    if not len(test):
        raise BadInput("there is no labelled test picture to measure accuracy on; give a labelled test set")
    return test


def features_at_test_size(
    encoder: nn.Module,
    pictures: ImageSplit,
    data: ImageDataset,
    *,
    device: torch.device,
    precision: str,
    display: Display | None = None,
) -> tuple[Tensor, Tensor]:
    """Features fp32 [M, d] of pictures at `data.test_size`, and their classes [M], both on `device`."""
    found: list[Rows] = []
    stretches = np.split(np.arange(len(pictures)), range(TEST_BATCH, len(pictures), TEST_BATCH))
    with (display or Display()).task("features of the test pictures", len(pictures)) as advance:

        def batches() -> Iterator[NDArray[uint8]]:
            for images, indices in pictures.batches(stretches):
                found.append(indices)  # a stream replaces what it cannot read any more
                yield images
                advance(len(images))

        features = extract_features(
            encoder, batches(), size=data.test_size, mean=data.mean, std=data.std, device=device, precision=precision
        )
    if not features.isfinite().all():
        raise BadInput("the encoder's features are not all finite; its training broke down, or try --precision fp32")
    return features.to(device), torch.from_numpy(pictures.labels[np.concatenate(found)]).to(device)


def new_head(feature_dim: int, num_classes: int, *, seed: int, device: torch.device) -> nn.Linear:
    """A linear layer [d] -> [C] with weights from N(0, 0.01) and biases 0."""
    generator = torch.Generator().manual_seed(derive_seed(seed, Stream.PROTOCOL))
    weight = 0.01 * torch.randn(num_classes, feature_dim, generator=generator)
    head = nn.Linear(feature_dim, num_classes, device="meta").to_empty(device="cpu")  # no draw from the global state
    with torch.no_grad():
        head.weight.copy_(weight)
        head.bias.zero_()
    return head.to(device)


def finite_mean(losses: list[Tensor], epoch: int) -> float:
    """The mean of an epoch's losses, each weighted already."""
    mean = float(torch.stack(losses).sum())  # once an epoch, so that a GPU does not wait at every step
    if not math.isfinite(mean):
        raise BadInput(f"the classifier's loss became {mean} in epoch {epoch + 1}; give a lower learning rate")
    return mean


def linear_evaluation(
    encoder: nn.Module,
    data: ImageDataset,
    rows: Rows | None,
    settings: LinearSettings,
    *,
    device: torch.device,
    precision: str = "fp32",
    seed: int = SEED,
    display: Display | None = None,
) -> LinearResult:
    """Train a classifier on `rows` of `data.labelled` (None: all that have a label); the encoder is left as it is.

    Every epoch sees new crops. The backbone is in eval mode throughout, so test features are computed once.
    """
    display, size = display or Display(), settings.size or data.size
    if size != data.test_size:
        display.note(
            f"note: the classifier learns on crops of {size} px, as the protocol says, and is tested at "
            f"{data.test_size} px; where features depend on the size that costs accuracy "
            f"(--set size={data.test_size} avoids it)"
        )
    views = LabelledViews(
        data, rows, view=settings.view, size=size, batch_size=settings.batch_size, seed=seed, device=device
    )
    frozen = copy.deepcopy(encoder).requires_grad_(False).eval().to(device).to(memory_format=torch.channels_last)
    views.check(frozen, "--set size=N and view.scale so that it can")
    test, truth = features_at_test_size(
        frozen, labelled_test(data), data, device=device, precision=precision, display=display
    )
    head = new_head(test.shape[1], views.num_classes, seed=seed, device=device)
    optimiser = torch.optim.SGD(
        head.parameters(), lr=0.0, momentum=MOMENTUM, nesterov=True, weight_decay=settings.weight_decay
    )
    measured, means = [], []
    with display.task("linear evaluation", settings.epochs * len(views)) as advance:
        for epoch in range(settings.epochs):
            losses = []
            for step, (pictures, labels) in enumerate(views.epoch(epoch), epoch * len(views)):
                optimiser.param_groups[0]["lr"] = settings.learning_rate(step, steps_per_epoch=len(views))
                with torch.no_grad(), autocast(device, precision):
                    features = frozen(pictures)
                loss = F.cross_entropy(head(features.float()), labels)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                losses.append(loss.detach() * (len(labels) / len(views.pictures)))
                advance(1)
            means.append(finite_mean(losses, epoch))
            with torch.no_grad():
                measured.append(scores(head(test), truth))
    return LinearResult(tuple(measured), tuple(means), len(views.pictures), len(truth), head)
