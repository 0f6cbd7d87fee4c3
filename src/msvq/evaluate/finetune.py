"""Fine-tuning: the whole network or its last stage learns on, with a linear head, from few or all labels."""

import copy
from functools import partial
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt
from torch import nn

from msvq.core.console import counted
from msvq.core.errors import BadInput
from msvq.core.runtime import warmup_cosine
from msvq.core.schema import Section
from msvq.data.augment import ViewSettings
from msvq.evaluate.features import EvalContext, scores
from msvq.evaluate.labels import PLAIN, LabelledViews, Rows, num_batches
from msvq.evaluate.linear import Classifier, new_head, train_classifier
from msvq.model.norm import split_batch_norm
from msvq.model.whitening import without_whitening


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
    context: EvalContext, settings: FinetuneSettings, rows: Rows | None, seed: int, *, scratch: bool = False
) -> Classifier:
    """Train a copy of the encoder and a head on `rows` of the labelled pictures (None: all of them).

    `scratch`: its weights are fresh, so the backbone learns at `lr_scratch`. The encoder itself is left as it is.
    """
    # Even batches: statistics of a last batch of one or two pictures would spoil batch norm.
    device, batch_size = context.device, settings.batch_size
    views = LabelledViews(
        context.data, rows, view=settings.view, batch_size=batch_size, seed=seed, device=device, even=True
    )
    network = copy.deepcopy(without_whitening(context.encoder)).to(device).to(memory_format=torch.channels_last)
    split_batch_norm(network, 1)  # what a method split is ordinary again, for batches of any size
    views.check(network, "--set view.scale=1")
    feature_dim = context.test_features(network, only_one=True)[0].shape[1]
    head = new_head(feature_dim, views.num_classes, seed=seed, device=device)
    learning = learning_part(network, settings.depth)
    peaks = {learning: settings.lr_scratch if scratch else settings.lr_backbone, head: settings.lr_head}
    epochs = settings.num_epochs(len(views.pictures))
    steps = epochs * len(views)
    if epochs > settings.epochs and not scratch:
        context.display.note(
            f"note: {counted(epochs, 'epoch')} instead of {settings.epochs}, for at least {settings.min_steps:,} steps "
            f"(--set min_steps=1 keeps to the epochs)"
        )
    losses = train_classifier(
        context,
        network,
        head,
        views,
        {part: partial(warmup_cosine, base_lr=lr, warmup_steps=0, total_steps=steps) for part, lr in peaks.items()},
        epochs=epochs,
        weight_decay=settings.weight_decay,
        task="fine-tuning",
    )
    features, truth = context.test_features(network.requires_grad_(False).eval())
    with torch.no_grad():
        logits = head(features)
    found, guesses = scores(logits, truth), logits.argmax(1).cpu().numpy()
    return Classifier((found,), losses, len(views.pictures), len(truth), steps, network, head, guesses)
