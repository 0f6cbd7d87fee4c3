"""Projectors and predictors: small perceptrons on top of the backbone's features."""

from itertools import pairwise
from typing import Literal

from torch import nn


def mlp(*sizes: int, norm: bool = False, last_norm: bool = False, last_affine: bool = True) -> nn.Sequential:
    """Linear layers of these sizes with ReLU between them, PyTorch's default initialisation.

    `norm` puts batch norm before each ReLU, `last_norm` after the last layer (`last_affine`: with weight
    and bias). A linear layer before batch norm has no bias, since the norm would remove it.
    """
    layers: list[nn.Module] = []
    pairs = list(pairwise(sizes))
    for index, (num_in, num_out) in enumerate(pairs):
        last = index == len(pairs) - 1
        normed = last_norm if last else norm
        layers.append(nn.Linear(num_in, num_out, bias=not normed))
        if normed:
            layers.append(nn.BatchNorm1d(num_out, affine=last_affine if last else True))
        if not last:
            layers.append(nn.ReLU(inplace=True))
    return nn.Sequential(*layers)


# Where batch norm stands: nowhere, before each ReLU, or behind the last layer as well.
ProjectorNorm = Literal["none", "hidden", "all"]


def projector(
    feature_dim: int,
    hidden_dim: int,
    output_dim: int,
    *,
    layers: int = 2,
    norm: ProjectorNorm = "none",
    last_affine: bool = True,
) -> nn.Sequential:
    """So many linear layers with ReLU between them; the paper's is the default, with norm "hidden" MSVQ-dagger's."""
    sizes = (feature_dim, *[hidden_dim] * (layers - 1), output_dim)
    return mlp(*sizes, norm=norm != "none", last_norm=norm == "all", last_affine=last_affine)
