"""What one has without an encoder, as an encoder: the pixels themselves."""

import torch.nn.functional as F
from torch import Tensor

from msvq.model.pooling import Encoder

SIDE = 8


class Pixels(Encoder):
    """Pictures [N, 3, H, W] at 8 x 8 pixels, each less the picture's mean: [N, 192]."""

    feature_dim = 3 * SIDE**2

    def forward(self, x: Tensor) -> Tensor:
        """Features [N, 192]."""
        pixels = F.interpolate(x, (SIDE, SIDE), mode="area").flatten(1)
        return pixels - pixels.mean(1, keepdim=True)
