"""The ResNet of the paper: 3x3 stem for small pictures, global average pool, no classifier.

Parameter names are torchvision's, so a checkpoint loads into its plain ResNet-18 (methods.md 1.3, 1.5).
"""

from typing import Annotated, Literal, cast

import torch
from annotated_types import Ge
from torch import Tensor, nn

from msvq.settings import Section

Stem = Literal["auto", "small", "small-pool"]

BLOCKS = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3)}
LARGEST_SIZE_WITHOUT_POOL = 48


class BackboneSettings(Section):
    """Which network. `width`: channels of the first stage; 64 is the standard ResNet."""

    name: Literal["resnet18", "resnet34"] = "resnet18"
    width: Annotated[int, Ge(1)] = 64
    stem: Stem = "auto"


class PointConv2d(nn.Conv2d):
    """A 1x1 convolution with stride, of the pixels that the stride leaves.

    The same numbers; PyTorch's own ends the process in the backward pass of a few channels in channels_last.
    """

    def forward(self, input: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, channels, H / stride, W / stride]."""
        down, across = self.stride
        return nn.functional.conv2d(input[:, :, ::down, ::across], self.weight, self.bias)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut: [N, C, H, W] -> [N, channels, H / stride, W / stride]."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or in_channels != channels:
            self.downsample = nn.Sequential(
                PointConv2d(in_channels, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        """One residual block."""
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        return cast(Tensor, self.relu(self.bn2(self.conv2(x)) + shortcut))


class ResNet(nn.Module):
    """Pictures [N, 3, H, W] to features [N, 8 * width].

    `stem`: "small" is the 3x3 convolution alone (CIFAR), "small-pool" adds the max-pool (64 px and more).
    """

    def __init__(self, blocks: tuple[int, ...] = (2, 2, 2, 2), *, width: int = 64, stem: Stem = "small") -> None:
        super().__init__()
        if stem == "auto":
            raise ValueError("stem 'auto' is resolved by make_backbone, from the size of the pictures")
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1) if stem == "small-pool" else nn.Identity()
        channels = [width * 2**stage for stage in range(len(blocks))]
        self.layer1 = self._stage(width, channels[0], blocks[0], stride=1)
        self.layer2 = self._stage(channels[0], channels[1], blocks[1], stride=2)
        self.layer3 = self._stage(channels[1], channels[2], blocks[2], stride=2)
        self.layer4 = self._stage(channels[2], channels[3], blocks[3], stride=2)
        self.feature_dim = channels[-1]
        self._initialise()

    @staticmethod
    def _stage(in_channels: int, channels: int, num_blocks: int, *, stride: int) -> nn.Sequential:
        first = BasicBlock(in_channels, channels, stride)
        return nn.Sequential(first, *(BasicBlock(channels, channels, 1) for _ in range(num_blocks - 1)))

    def _initialise(self) -> None:
        for name, module in self.named_modules():
            # The authors replace the stem after initialising, so it alone keeps PyTorch's default.
            if isinstance(module, nn.Conv2d) and name != "conv1":
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def stages(self, x: Tensor) -> Tensor:
        """The last feature map [N, 8 * width, h, w]."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        return cast(Tensor, self.layer4(self.layer3(self.layer2(self.layer1(x)))))

    def forward(self, x: Tensor) -> Tensor:
        """Features [N, 8 * width], averaged over the last map."""
        return torch.flatten(nn.functional.adaptive_avg_pool2d(self.stages(x), 1), 1)


def resolve_stem(stem: Stem, size: int) -> Literal["small", "small-pool"]:
    """What "auto" means for pictures of this size: the paper keeps the max-pool for 64 px, not for 32."""
    if stem == "auto":
        return "small" if size <= LARGEST_SIZE_WITHOUT_POOL else "small-pool"
    return stem


def make_backbone(settings: BackboneSettings, size: int) -> ResNet:
    """The backbone that the settings name, for training pictures of `size` pixels."""
    return ResNet(BLOCKS[settings.name], width=settings.width, stem=resolve_stem(settings.stem, size))
