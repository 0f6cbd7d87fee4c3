"""Features of many pictures: backbone in eval mode, no augmentation (methods.md 2.1)."""

from collections.abc import Iterable, Sequence

import torch
from numpy import uint8
from numpy.typing import NDArray
from torch import Tensor, nn

from msvq.data.augment import eval_view
from msvq.train.precision import autocast


@torch.no_grad()
def extract_features(
    encoder: nn.Module,
    batches: Iterable[NDArray[uint8]],
    *,
    size: int,
    mean: Sequence[float],
    std: Sequence[float],
    device: torch.device,
    precision: str = "fp32",
    feature_dim: int = 0,
) -> Tensor:
    """Features fp32 [N, d], on the CPU, of batches of pictures uint8 [n, H, W, 3]. The encoder's mode is restored.

    Without any picture: [0, feature_dim].
    """
    was_training = encoder.training
    encoder.eval()
    parts = []
    try:
        for images in batches:
            view = eval_view(torch.from_numpy(images).to(device), size=size, mean=mean, std=std)
            with autocast(device, precision):
                features = encoder(view)
            parts.append(features.float().cpu())
    finally:
        encoder.train(was_training)
    return torch.cat(parts) if parts else torch.zeros(0, feature_dim)
