"""Any network as an encoder: what it makes of pictures is looked at once, and maps are averaged."""

import copy
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from msvq.core.errors import BadInput, first_line
from msvq.core.runtime import eval_mode


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


class Pixels(Encoder):
    """What one has without a network: pictures at 8 x 8 pixels, each less the picture's mean, [N, 192]."""

    side = 8
    feature_dim = 3 * side**2

    def forward(self, x: Tensor) -> Tensor:
        """Features [N, 192]."""
        pixels = F.interpolate(x, (self.side, self.side), mode="area").flatten(1)
        return pixels - pixels.mean(1, keepdim=True)


def as_encoder(network: nn.Module, name: str, size: int) -> Encoder:
    """The network with its `feature_dim`, found by trying it on pictures of `size` pixels; pooled if it is not yet."""
    shape = output_shape(network, name, size)
    if len(shape) not in (2, 4) or shape[0] != 2:
        raise BadInput(
            f"backbone {name} makes {list(shape)} of 2 pictures; features are [2, d], or maps [2, d, height, width], "
            f"which are averaged"
        )
    encoder = cast(Encoder, network if len(shape) == 2 else Pooled(network))
    if getattr(encoder, "feature_dim", None) != shape[1]:
        try:
            encoder.feature_dim = shape[1]
        except AttributeError:  # a property
            raise BadInput(
                f"backbone {name} says that its feature_dim is {encoder.feature_dim}, and makes {shape[1]} features; "
                f"leave the attribute out, or let it tell their number"
            ) from None
    return encoder


def check_sizes(encoder: Encoder, name: str, sizes: dict[int, str]) -> None:
    """Raise if the network cannot take pictures of one of the sizes, or makes another number of features of them.

    Each size has the setting that asks for it.
    """
    for size, setting in sizes.items():
        found = output_shape(encoder, name, size, setting)[1:]
        if list(found) != [encoder.feature_dim]:
            raise BadInput(
                f"backbone {name} makes {list(found)} features of a picture of {size} pixels and "
                f"[{encoder.feature_dim}] of one of data.size; let it end in maps, which are averaged, or "
                f"--set {setting} to data.size{_instead(setting)}"
            )


@torch.no_grad()
def output_shape(network: nn.Module, name: str, size: int, setting: str = "data.size") -> torch.Size:
    """The shape of what a network makes of two black pictures: as they come, in eval mode, and as training has them.

    The network itself is tried in eval mode alone, so that only layers which wait for their first input are changed. A
    copy is tried in channels_last order and both modes, without a trace in statistics and generators: otherwise a
    `view` of such maps, or a tuple in train mode, would come to light at the first step.
    """
    pictures = torch.zeros(2, 3, size, size)
    try:
        with eval_mode(network):
            output = network(pictures)
    except Exception as error:  # whatever the code of others may raise
        raise BadInput(
            f"backbone {name} cannot take pictures of {size} pixels ({first_line(error, 200)}); --set {setting} to "
            f"what it takes{_instead(setting)}, or give another --backbone"
        ) from error
    shape = _shape(output, name)
    mode, pictures = "eval", pictures.to(memory_format=torch.channels_last)
    try:
        with torch.random.fork_rng(devices=[]):
            other = copy.deepcopy(network).to(memory_format=torch.channels_last)
            for mode in ("eval", "train"):
                found = _shape(other.train(mode == "train")(pictures), f"{name} in {mode} mode")
                if found != shape:
                    raise BadInput(
                        f"backbone {name} makes {list(shape)} of 2 pictures in eval mode, and in {mode} mode with "
                        f"channels_last order {list(found)}; they have to be the same"
                    )
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(
            f"backbone {name} fails in {mode} mode on pictures in channels_last order, which training uses "
            f"({first_line(error, 200)}); change its forward, or give another --backbone"
        ) from error
    return shape


def _shape(output: object, name: str) -> torch.Size:
    if not isinstance(output, Tensor):
        raise BadInput(f"backbone {name} gives a {type(output).__name__}; a backbone gives one tensor of features")
    return output.shape


def _instead(setting: str) -> str:
    return " (null: data.size throughout)" if setting == "train.resolution" else ""
