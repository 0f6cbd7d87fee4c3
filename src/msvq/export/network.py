"""The network in plain PyTorch, to read its weights with; their names are torchvision's."""

import torch
from torch import Tensor, nn

# Blocks in each stage, and convolutions in each block.
LAYERS = {
    "resnet8": ((0, 1, 1, 1), 2),
    "resnet14": ((0, 2, 2, 2), 2),
    "resnet18": ((2, 2, 2, 2), 2),
    "resnet34": ((3, 4, 6, 3), 2),
    "resnet50": ((3, 4, 6, 3), 3),
}


class Block(nn.Module):
    """Convolutions and a shortcut: two of 3x3, or three of 1x1, 3x3 and 1x1, the last with four times the channels."""

    def __init__(self, inputs: int, channels: int, stride: int, convolutions: int) -> None:
        super().__init__()
        outputs = channels if convolutions == 2 else 4 * channels
        wide = convolutions == 2
        self.conv1 = nn.Conv2d(inputs, channels, 3 if wide else 1, stride if wide else 1, int(wide), bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1 if wide else stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        if not wide:
            self.conv3 = nn.Conv2d(channels, outputs, 1, bias=False)
            self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = nn.Sequential()  # nothing: the shortcut is the input itself
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] -> [N, outputs, H / stride, W / stride]."""
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        if hasattr(self, "conv3"):
            y = self.bn3(self.conv3(torch.relu(y)))
        return torch.relu(y + self.downsample(x))


class ResNet(nn.Module):
    """Normalised pictures [N, 3, H, W] to features [N, d]. `stem`: "standard", "small" or "small-pool"."""

    def __init__(self, name: str, *, width: int, stem: str) -> None:
        super().__init__()
        blocks, convolutions = LAYERS[name]
        kernel, stride = (7, 2) if stem == "standard" else (3, 1)
        self.conv1 = nn.Conv2d(3, width, kernel, stride, kernel // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.maxpool = nn.Identity() if stem == "small" else nn.MaxPool2d(3, 2, 1)
        inputs, stages = width, []
        for stage, num in enumerate(blocks):
            channels, stage_blocks = width * 2**stage, nn.Sequential()
            for block in range(num):
                step = 2 if stage > 0 and block == 0 else 1
                stage_blocks.append(Block(inputs, channels, step, convolutions))
                inputs = channels if convolutions == 2 else 4 * channels
            stages.append(stage_blocks)
        self.layer1, self.layer2, self.layer3, self.layer4 = stages

    def forward(self, x: Tensor) -> Tensor:
        """Features, averaged over the last map."""
        x = self.maxpool(torch.relu(self.bn1(self.conv1(x))))
        maps: Tensor = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return maps.mean((2, 3))
