"""The ResNets: 3x3 stem for small pictures or torchvision's for large ones, global average pool, no classifier.

Parameter names are torchvision's, so a checkpoint loads into its plain ResNet.
"""

from typing import ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from msvq.model.pooling import Encoder

Stem = Literal["auto", "small", "small-pool", "standard"]

LARGEST_SIZE_WITHOUT_POOL = 48
SMALLEST_SIZE_OF_STANDARD = 128


class PointConv2d(nn.Conv2d):
    """A 1x1 convolution with stride, of the pixels that the stride leaves.

    The same numbers; PyTorch's own ends the process in the backward pass of a few channels in channels_last.
    """

    def forward(self, input: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, channels, H / stride, W / stride]."""
        down, across = self.stride
        return nn.functional.conv2d(input[:, :, ::down, ::across], self.weight, self.bias)


class Block(nn.Module):
    """A residual block: [N, C, H, W] -> [N, expansion * channels, H / stride, W / stride]."""

    expansion: ClassVar[int] = 1
    last_norm: ClassVar[str]  # of the residual path: where its weight is 0, the block is its shortcut

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()


def shortcut(in_channels: int, channels: int, stride: int) -> nn.Module | None:
    """What fits a block's input to its output of `channels`, where they differ."""
    if stride == 1 and in_channels == channels:
        return None
    return nn.Sequential(PointConv2d(in_channels, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))


class BasicBlock(Block):
    """Two 3x3 convolutions and a shortcut."""

    last_norm: ClassVar[str] = "bn2"

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__(in_channels, channels, stride)
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = shortcut(in_channels, channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        """One residual block."""
        skipped = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        return cast(Tensor, self.relu(self.bn2(self.conv2(x)) + skipped))


class Bottleneck(Block):
    """A 3x3 convolution between two 1x1, and a shortcut; the 3x3 has the stride, as torchvision's."""

    expansion: ClassVar[int] = 4
    last_norm: ClassVar[str] = "bn3"

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__(in_channels, channels, stride)
        out_channels = self.expansion * channels
        self.conv1 = nn.Conv2d(in_channels, channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, out_channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = shortcut(in_channels, out_channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        """One residual block."""
        skipped = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        return cast(Tensor, self.relu(self.bn3(self.conv3(x)) + skipped))


class ResNet(Encoder):
    """Pictures [N, 3, H, W] to features [N, d], where d is 8 * width, or 32 * width with bottleneck blocks.

    `stem`: "small" is the 3x3 convolution alone (CIFAR), "small-pool" adds the max-pool (64 px), "standard" is
    torchvision's 7x7 convolution with stride 2 and the max-pool (128 px and more).
    """

    def __init__(
        self,
        blocks: tuple[int, ...] = (2, 2, 2, 2),
        *,
        block: type[Block] = BasicBlock,
        width: int = 64,
        stem: Stem = "small",
    ) -> None:
        super().__init__()
        if stem == "auto":
            raise ValueError("stem 'auto' is resolved by make_backbone, from the size of the pictures")
        large = stem == "standard"
        self.conv1 = nn.Conv2d(3, width, 7 if large else 3, 2 if large else 1, 3 if large else 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if stem == "small" else nn.MaxPool2d(3, 2, 1)
        channels = [width * 2**stage for stage in range(len(blocks))]
        outputs = [block.expansion * num for num in channels]
        self.layer1 = self._stage(block, width, channels[0], blocks[0], stride=1)
        self.layer2 = self._stage(block, outputs[0], channels[1], blocks[1], stride=2)
        self.layer3 = self._stage(block, outputs[1], channels[2], blocks[2], stride=2)
        self.layer4 = self._stage(block, outputs[2], channels[3], blocks[3], stride=2)
        self.feature_dim = outputs[-1]
        self._initialise(stem)

    @staticmethod
    def _stage(block: type[Block], in_channels: int, channels: int, num_blocks: int, *, stride: int) -> nn.Sequential:
        inputs = [in_channels, *[block.expansion * channels] * (num_blocks - 1)][:num_blocks]
        return nn.Sequential(*(block(num, channels, 1 if index else stride) for index, num in enumerate(inputs)))

    def _initialise(self, stem: Stem) -> None:
        for name, module in self.named_modules():
            # The authors replace the stem after initialising, so a small one keeps PyTorch's default.
            if isinstance(module, nn.Conv2d) and (name != "conv1" or stem == "standard"):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def stages(self, x: Tensor) -> Tensor:
        """The last feature map [N, d, h, w]."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        return cast(Tensor, self.layer4(self.layer3(self.layer2(self.layer1(x)))))

    def forward(self, x: Tensor) -> Tensor:
        """Features [N, d], averaged over the last map."""
        return torch.flatten(nn.functional.adaptive_avg_pool2d(self.stages(x), 1), 1)


def resolve_stem(stem: Stem, size: int) -> Literal["small", "small-pool", "standard"]:
    """What "auto" means for pictures of this size: the paper keeps the max-pool for 64 px, not for 32."""
    if stem != "auto":
        return stem
    if size >= SMALLEST_SIZE_OF_STANDARD:
        return "standard"
    return "small" if size <= LARGEST_SIZE_WITHOUT_POOL else "small-pool"
