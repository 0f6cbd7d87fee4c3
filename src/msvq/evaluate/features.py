"""Features of many pictures: backbone in eval mode, no augmentation."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from numpy import uint8
from numpy.typing import NDArray
from torch import Tensor, nn

from msvq.core.distributed import map_sharded
from msvq.core.runtime import autocast
from msvq.data.augment import eval_view
from msvq.data.store import ImageDataset, ImageSplit


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


def feature_function(
    data: ImageDataset, device: torch.device, precision: str, advance: Callable[[int], None] = lambda num: None
) -> Callable[[nn.Module, ImageSplit], Tensor]:
    """A function from an encoder and pictures to features [N, d], as the data set is tested.

    `advance` is told how many pictures are done. On several ranks each computes a share, and has all in the end.
    """

    def features(encoder: nn.Module, pictures: ImageSplit) -> Tensor:
        return map_sharded(len(pictures), lambda rows: of_share(encoder, pictures.slice(rows.start, rows.stop)))

    def of_share(encoder: nn.Module, pictures: ImageSplit) -> Tensor:
        def batches() -> Iterator[NDArray[uint8]]:
            for images in pictures.batches_in_order(500):
                yield images
                advance(len(images))

        return extract_features(
            encoder,
            batches(),
            size=data.test_size,
            mean=data.mean,
            std=data.std,
            device=device,
            precision=precision,
        )

    return features
