"""What one has without an encoder: colours and tiny pictures, as features that encoders are held against."""

from collections.abc import Callable, Mapping
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from msvq.data.store import ImageSplit
from msvq.evaluate.knn import knn_accuracy
from msvq.model.pooling import Pixels

AT_ONCE = 500  # pictures
BINS = 8  # of each colour, so 512 in all

Encode = Callable[[NDArray[np.uint8]], Tensor]  # pictures uint8 [n, H, W, 3] -> features [n, d]


def pixels_8x8(images: NDArray[np.uint8]) -> Tensor:
    """The pictures uint8 [n, H, W, 3] with 8 x 8 pixels, each less the picture's mean: [n, 192]."""
    planes = torch.from_numpy(images).permute(0, 3, 1, 2).float()
    return cast(Tensor, Pixels()(planes))


def colour_histogram(images: NDArray[np.uint8]) -> Tensor:
    """The roots of each picture's shares of 8 x 8 x 8 colours, [n, 512]: their dot products compare histograms."""
    levels = torch.from_numpy(images).flatten(1, 2).long() * BINS // 256
    colours = (levels[..., 0] * BINS + levels[..., 1]) * BINS + levels[..., 2]
    counts = torch.zeros(len(images), BINS**3).scatter_add_(1, colours, torch.ones(()).expand(colours.shape))
    return (counts / colours.shape[1]).sqrt()


BASELINES: Mapping[str, Encode] = {"colour_histogram": colour_histogram, "pixels_8x8": pixels_8x8}


def baseline_accuracies(bank: ImageSplit, test: ImageSplit, *, k: int, temp: float) -> dict[str, float]:
    """kNN accuracy of each baseline in percent, by its name."""
    banks, tests = (_features(pictures) for pictures in (bank, test))
    labels = bank.labels_as_read(), test.labels_as_read()
    return {name: knn_accuracy(banks[name], tests[name], labels, k=k, temp=temp) for name in BASELINES}


def _features(pictures: ImageSplit) -> dict[str, Tensor]:
    """Of all baselines, in one pass over the pictures."""
    parts = [[encode(images) for encode in BASELINES.values()] for images in pictures.batches_in_order(AT_ONCE)]
    return {name: torch.cat(found) for name, found in zip(BASELINES, zip(*parts, strict=True), strict=True)}
