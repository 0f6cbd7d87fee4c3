"""The networks of a momentum method: a student that learns and teachers that follow it (methods.md 1.6)."""

import copy
from typing import Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn

from msvq.model.random_state import RandomState


@runtime_checkable
class Backbone(Protocol):
    """What a method needs of a backbone: a module from pictures to features that knows their number."""

    feature_dim: int


class Network(nn.Module):
    """A backbone with its projector: pictures [N, 3, H, W] to embeddings [N, d], not yet of unit length."""

    def __init__(self, backbone: Backbone | nn.Module, projector: nn.Module) -> None:
        super().__init__()
        self.backbone = cast(nn.Module, backbone)
        self.projector = projector

    def forward(self, x: Tensor) -> Tensor:
        """Embeddings [N, d]."""
        return cast(Tensor, self.projector(self.backbone(x)))


class Teacher(nn.Module):
    """A copy of the student that follows it slowly and never sees a gradient.

    Parameters are averaged, batch-norm buffers are not: the teacher stays in training mode and keeps
    statistics of its own. `shuffle` permutes each batch before it is forwarded and the outputs back, so
    that split batch norm groups other samples than in the student.
    """

    def __init__(self, student: nn.Module, *, momentum: float, shuffle: bool = True) -> None:
        super().__init__()
        if not 0 <= momentum <= 1:
            raise ValueError(f"a teacher's momentum lies in [0, 1], not {momentum}")
        self.network = copy.deepcopy(student).requires_grad_(False)
        self.momentum = momentum
        self.shuffle = shuffle
        self.random = RandomState()

    @torch.no_grad()
    def follow(self, student: nn.Module) -> None:
        """θ_t <- m θ_t + (1 - m) θ_s, over all parameters at once."""
        torch._foreach_lerp_(list(self.network.parameters()), list(student.parameters()), weight=1 - self.momentum)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Embeddings [N, d], in the order of `x`, without gradient."""
        if not self.shuffle:
            return cast(Tensor, self.network(x))
        order = self.random.permutation(len(x)).to(x.device)
        z: Tensor = self.network(x[order])
        return z[torch.argsort(order)]
