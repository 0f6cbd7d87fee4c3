"""Fine-tuning: the whole network or its last stage learns on, with a linear head, from few or all labels."""

import copy
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt
from torch import nn

from msvq.core.console import Display
from msvq.core.errors import BadInput
from msvq.core.runtime import Stream, autocast, loss_scaler, step_rng, warmup_cosine
from msvq.core.schema import Section
from msvq.data.augment import ViewSettings
from msvq.data.store import ImageDataset
from msvq.evaluate.labels import PLAIN, LabelledViews, Rows, num_batches
from msvq.evaluate.linear import MOMENTUM, SEED, features_at_test_size, finite_mean, labelled_test, new_head
from msvq.evaluate.scores import Scores, scores
from msvq.model.norm import split_batch_norm


class FinetuneSettings(Section):
    """One choice for every data set, encoder and number of labels, made once and not tuned for any of them.

    n labelled pictures are seen in s = ceil(n / `batch_size`) batches of equal size an epoch (one less if a picture
    were alone in one), for E = max(`epochs`, ceil(`min_steps` / s)) epochs: few labels still get `min_steps` steps.

    Rates fall to 0 by half a cosine. The backbone learns at `lr_backbone` where it was trained before, which keeps
    what it knows, and at `lr_scratch`, a usual rate for a ResNet, where its weights are fresh. Weights decay all alike.
    """

    depth: Literal["all", "last"] = "all"  # last: `layer4` alone; what stands before it is frozen, in eval mode
    epochs: Annotated[int, Ge(1)] = 30
    min_steps: Annotated[int, Ge(1)] = 1000
    batch_size: Annotated[int, Ge(2)] = 256
    lr_head: Annotated[float, Gt(0)] = 0.1  # of the new linear layer
    lr_backbone: Annotated[float, Gt(0)] = 0.01
    lr_scratch: Annotated[float, Gt(0)] = 0.1
    weight_decay: Annotated[float, Ge(0)] = 5e-4
    view: ViewSettings = PLAIN

    def num_epochs(self, num_pictures: int) -> int:
        """E above."""
        return max(self.epochs, -(-self.min_steps // num_batches(num_pictures, self.batch_size, even=True)))


@dataclass(frozen=True)
class FinetuneResult:
    """What came out after the last epoch; no other was looked at."""

    scores: Scores  # on the test pictures
    losses: tuple[float, ...]  # mean over the training pictures of each epoch
    num_train: int
    num_test: int
    steps: int
    encoder: nn.Module
    head: nn.Linear


def learning_part(network: nn.Module, depth: Literal["all", "last"]) -> nn.Module:
    """What learns of `network`, in train mode; all the rest is frozen, in eval mode, running statistics included."""
    last = getattr(network, "layer4", None)
    if depth == "last" and not isinstance(last, nn.Module):
        raise BadInput(
            f"a {type(network).__name__} has no last stage named 'layer4' to fine-tune alone; use depth 'all'"
        )
    learning = last if depth == "last" and last is not None else network
    network.requires_grad_(False).eval()
    return learning.requires_grad_(True).train()


def finetune(
    encoder: nn.Module,
    data: ImageDataset,
    rows: Rows | None,
    settings: FinetuneSettings,
    *,
    device: torch.device,
    scratch: bool = False,
    precision: str = "fp32",
    seed: int = SEED,
    display: Display | None = None,
) -> FinetuneResult:
    """Train a copy of the encoder and a head on `rows` of `data.labelled` (None: all that have a label).

    `scratch`: its weights are fresh, so the backbone learns at `lr_scratch`. The encoder itself is left as it is.
    """
    # Even batches: statistics of a last batch of one or two pictures would spoil batch norm.
    views = LabelledViews(
        data, rows, view=settings.view, batch_size=settings.batch_size, seed=seed, device=device, even=True
    )
    network = copy.deepcopy(encoder).to(device).to(memory_format=torch.channels_last)
    split_batch_norm(network, 1)  # what a method split is ordinary again, for batches of any size
    views.check(network, "--set view.scale=1")
    test = labelled_test(data)
    few, _ = features_at_test_size(network, test.sample(1), data, device=device, precision=precision)
    head = new_head(few.shape[1], views.num_classes, seed=seed, device=device)
    learning = learning_part(network, settings.depth)
    peaks = {learning: settings.lr_scratch if scratch else settings.lr_backbone, head: settings.lr_head}
    optimiser = torch.optim.SGD(
        [{"params": list(module.parameters()), "peak": peak} for module, peak in peaks.items()],
        lr=0.0,
        momentum=MOMENTUM,
        nesterov=True,
        weight_decay=settings.weight_decay,
    )
    scaler = loss_scaler(device, precision)
    epochs = settings.num_epochs(len(views.pictures))
    steps = epochs * len(views)
    means = []
    with (display or Display()).task("fine-tuning", steps) as advance:
        for epoch in range(epochs):
            losses = []
            for step, (pictures, labels) in enumerate(views.epoch(epoch), epoch * len(views)):
                for group in optimiser.param_groups:
                    group["lr"] = warmup_cosine(step, base_lr=group["peak"], warmup_steps=0, total_steps=steps)
                optimiser.zero_grad()
                with step_rng(seed, Stream.PROTOCOL, step, device):
                    with autocast(device, precision):
                        features = network(pictures)
                    loss = F.cross_entropy(head(features.float()), labels)
                    scaler.scale(loss).backward()
                scaler.step(optimiser)
                scaler.update()
                losses.append(loss.detach() * (len(labels) / len(views.pictures)))
                advance(1)
            means.append(finite_mean(losses, epoch))
    network.requires_grad_(False).eval()
    features, truth = features_at_test_size(network, test, data, device=device, precision=precision, display=display)
    with torch.no_grad():
        found = scores(head(features), truth)
    return FinetuneResult(found, tuple(means), len(views.pictures), len(truth), steps, network, head)
