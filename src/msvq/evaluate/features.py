"""Features of a whole split: backbone in eval mode, no augmentation (methods.md 2.1)."""

from collections.abc import Sequence

import torch
from numpy import uint8
from numpy.typing import NDArray
from torch import Tensor, nn

from msvq.data.augment import eval_view
from msvq.train.precision import autocast


@torch.no_grad()
def extract_features(
    encoder: nn.Module,
    images: NDArray[uint8],
    *,
    size: int,
    mean: Sequence[float],
    std: Sequence[float],
    device: torch.device,
    precision: str = "fp32",
    batch_size: int = 500,
) -> Tensor:
    """Features fp32 [N, d], on the CPU, of pictures uint8 [N, H, W, 3]. The encoder's mode is restored."""
    was_training = encoder.training
    encoder.eval()
    parts = []
    for start in range(0, len(images), batch_size):
        batch = torch.from_numpy(images[start : start + batch_size]).to(device)
        with autocast(device, precision):
            parts.append(encoder(eval_view(batch, size=size, mean=mean, std=std)).float().cpu())
    encoder.train(was_training)
    return torch.cat(parts)
