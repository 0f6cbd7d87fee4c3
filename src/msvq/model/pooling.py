"""Any network as an encoder: what it makes of pictures is looked at once, and maps are averaged."""

from typing import cast

import torch
from torch import Tensor, nn

from msvq.errors import BadInput


class Encoder(nn.Module):
    """A backbone: normalised pictures [N, 3, H, W] to features [N, feature_dim]."""

    feature_dim: int


class Pooled(Encoder):
    """A network that ends in maps [N, d, h, w], and their means [N, d]."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """Features [N, d]."""
        return cast(Tensor, self.network(x).mean((2, 3)))


def as_encoder(network: nn.Module, name: str, size: int) -> Encoder:
    """The network with its `feature_dim`, found by trying it on pictures of `size` pixels; pooled if it is not yet."""
    shape = output_shape(network, name, size)
    if len(shape) not in (2, 4) or shape[0] != 2:
        raise BadInput(
            f"backbone {name} makes {list(shape)} of 2 pictures; features are [2, d], or maps [2, d, height, width], "
            f"which are averaged"
        )
    encoder = cast(Encoder, network if len(shape) == 2 else Pooled(network))
    encoder.feature_dim = shape[1]
    return encoder


def check_sizes(encoder: nn.Module, name: str, sizes: dict[int, str]) -> None:
    """Raise if the network cannot take pictures of one of the sizes; each has the setting that asks for it."""
    for size, setting in sizes.items():
        output_shape(encoder, name, size, setting)


@torch.no_grad()
def output_shape(network: nn.Module, name: str, size: int, setting: str = "data.size") -> torch.Size:
    """The shape of what a network in eval mode makes of two black pictures."""
    was_training = network.training
    network.eval()
    try:
        output = network(torch.zeros(2, 3, size, size))
    except Exception as error:  # whatever the code of others may raise
        reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        raise BadInput(
            f"backbone {name} cannot take pictures of {size} pixels ({reason[:200]}); --set {setting} to what it takes"
            f"{' (null: data.size throughout)' if setting == 'train.resolution' else ''}, or give another --backbone"
        ) from error
    finally:
        network.train(was_training)
    if not isinstance(output, Tensor):
        raise BadInput(f"backbone {name} gives a {type(output).__name__}; a backbone gives one tensor of features")
    return output.shape
