"""Projectors and predictors: small perceptrons on top of the backbone's features."""

from itertools import pairwise

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


def moco_head(feature_dim: int, hidden_dim: int, output_dim: int, *, norm: bool = False) -> nn.Sequential:
    """The paper's projector: two linear layers; with batch norm, MSVQ-dagger's."""
    return mlp(feature_dim, hidden_dim, output_dim, norm=norm)
