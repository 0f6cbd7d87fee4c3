"""Top-1 and top-5 accuracy, as every protocol reports them."""

from typing import NamedTuple

import torch
from torch import Tensor

from msvq.core.errors import BadInput


class Scores(NamedTuple):
    """Accuracies in percent."""

    top1: float
    top5: float  # with fewer than five classes, the largest of them all


@torch.no_grad()
def scores(logits: Tensor, truth: Tensor) -> Scores:
    """Accuracies of logits or votes [M, C] by the true classes [M]; a truth of -1 is never met.

    Of equal logits some come first, so that a tie never makes two classes right.
    """
    if not len(truth):
        raise BadInput("there is no labelled test picture to measure accuracy on; give a labelled test set")
    best = logits.topk(min(5, logits.shape[1]), dim=1).indices
    right = best == truth.to(best.device)[:, None]
    return Scores(*(100 * float(right[:, :num].any(1).double().mean()) for num in (1, 5)))
