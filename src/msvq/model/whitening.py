"""A last layer without labels: features that are uncorrelated and vary equally in all directions.

What a network learns by telling pictures apart lies along few directions that vary much; those that vary little tell
kinds of things apart as well, and cosine similarity hardly sees them. Centring the features and dividing them by the
square root of their covariance is worth some eight points of kNN on CIFAR-10 (docs/research-log.md).
"""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from msvq.model.pooling import Encoder

RIDGE = 0.1  # of the mean variance, added in all directions: of few pictures, the smallest variances mean little


class Whitening(nn.Module):
    """A linear map [N, d] -> [N, d], nothing until it is fitted; it holds what `nn.Linear` would, by the same names."""

    weight: Tensor
    bias: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.eye(dim))
        self.register_buffer("bias", torch.zeros(dim))

    @torch.no_grad()
    def fit(self, features: Tensor) -> None:
        """To features [N, d]: weight = (covariance + ridge)^(-1/2), symmetric, and bias = -weight @ mean.

        Features that are no numbers, or all the same, leave it as it is.
        """
        values = features.double()
        centred = values - values.mean(0)
        covariance = centred.T @ centred / max(1, len(values))
        ridge = RIDGE * float(covariance.diagonal().mean())
        if not 0 < ridge < float("inf"):
            return
        variances, directions = torch.linalg.eigh(covariance)
        weight = directions @ ((variances + ridge) ** -0.5 * directions).T
        self.weight.copy_(weight)
        self.bias.copy_(-weight @ values.mean(0))

    def undo(self, whitened: Tensor) -> Tensor:
        """The features that were whitened, in fp64 on the CPU, which has it."""
        weight, bias, values = (x.cpu().double() for x in (self.weight, self.bias, whitened))
        solved: Tensor = torch.linalg.solve(weight, (values - bias).T)
        return solved.T

    def forward(self, features: Tensor) -> Tensor:
        """In fp32: what lies along small variances would be lost in less."""
        if torch.is_autocast_enabled(features.device.type):
            with torch.autocast(features.device.type, enabled=False):
                return F.linear(features.float(), self.weight, self.bias)
        return F.linear(features, self.weight, self.bias)


class Whitened(Encoder):
    """A backbone whose features are whitened.

    In training mode they go on to a projector as they are, until the encoder is taken away to be used (`fixed`).
    """

    def __init__(self, network: Encoder) -> None:
        super().__init__()
        self.network, self.feature_dim = network, network.feature_dim
        self.whitening = Whitening(network.feature_dim)
        self.fixed = False

    def forward(self, x: Tensor) -> Tensor:
        """Features [N, d]."""
        features = cast(Tensor, self.network(x))
        return features if self.training and not self.fixed else cast(Tensor, self.whitening(features))


def without_whitening(encoder: nn.Module) -> nn.Module:
    """The backbone itself, whose features are as it learned them."""
    return encoder.network if isinstance(encoder, Whitened) else encoder
