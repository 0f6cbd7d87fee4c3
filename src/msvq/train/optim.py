"""The optimiser and its learning rate (methods.md 1.8)."""

import math
from collections.abc import Iterable

import torch
from torch import nn


def warmup_cosine(step: int, *, base_lr: float, warmup_steps: int, total_steps: int) -> float:
    """The learning rate of a step counted from 0: linear from 0 to `base_lr`, then half a cosine towards 0."""
    if step < warmup_steps:
        return base_lr * step / warmup_steps
    done = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    return base_lr / 2 * (1 + math.cos(math.pi * done))


def make_optimiser(method: nn.Module, *, weight_decay: float, decay_norm_and_bias: bool) -> torch.optim.SGD:
    """SGD with momentum 0.9 over everything that learns, the student's parameters alone.

    The paper's code decays batch-norm weights and biases too; `decay_norm_and_bias=False` spares them.
    """
    learning = [p for p in method.parameters() if p.requires_grad]
    groups: Iterable[dict[str, object]] = [{"params": learning, "weight_decay": weight_decay}]
    if not decay_norm_and_bias:
        groups = [
            {"params": [p for p in learning if p.ndim > 1], "weight_decay": weight_decay},
            {"params": [p for p in learning if p.ndim <= 1], "weight_decay": 0.0},
        ]
    fused = all(p.device.type in ("cpu", "cuda") for p in learning)
    return torch.optim.SGD(groups, lr=0.0, momentum=0.9, fused=fused)
