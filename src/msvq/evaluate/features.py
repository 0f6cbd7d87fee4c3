"""What an encoder is judged by: features of many pictures, in eval mode and not augmented, and accuracies."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy import uint8
from numpy.typing import NDArray
from torch import Tensor, nn

from msvq.core.console import Display
from msvq.core.distributed import map_sharded
from msvq.core.errors import BadInput
from msvq.core.runtime import autocast, eval_mode, or_too_large, widest_float
from msvq.data.augment import eval_view
from msvq.data.store import ImageDataset, ImageSplit
from msvq.data.to_rgb import Resizing
from msvq.evaluate.labels import Rows
from msvq.model.backbones import BackboneSettings
from msvq.model.whitening import Whitened

AT_ONCE = 500  # pictures
WHITENED_BY = 5_000
Features = Callable[[nn.Module, ImageSplit], Tensor]  # of an encoder and pictures: [N, d]

NOT_FINITE = "the features are not all finite; the encoder's training broke down, or try --precision fp32"
NO_TEST = "there is no labelled test picture to measure accuracy on; give a labelled test set"


@torch.no_grad()
def extract_features(
    encoder: nn.Module,
    batches: Iterable[NDArray[uint8]],
    *,
    size: int,
    mean: Sequence[float],
    std: Sequence[float],
    resizing: Resizing | None = None,
    device: torch.device,
    precision: str = "fp32",
) -> Tensor:
    """Features fp32 [N, d], on the CPU, of batches of pictures uint8 [n, H, W, 3]. The encoder's mode is restored."""
    parts = []
    with eval_mode(encoder):
        for images in batches:
            with or_too_large(
                f"features of {len(images)} pictures at a time do not fit into the memory of {device}; lower "
                f"data.test_size or backbone.width, or give --device cpu"
            ):
                view = eval_view(torch.from_numpy(images).to(device), size=size, mean=mean, std=std, resizing=resizing)
                with autocast(device, precision):
                    features = encoder(view)
                parts.append(features.float().cpu())
    return torch.cat(parts) if parts else torch.zeros(0, 0)


def feature_function(
    data: ImageDataset, device: torch.device, precision: str, advance: Callable[[int], None] = lambda num: None
) -> Features:
    """A function from an encoder and pictures to features [N, d], as the data set is tested.

    `advance` is told how many pictures are done. On several ranks each computes a share, and has all in the end.
    """

    extract = partial(
        extract_features,
        size=data.test_size,
        mean=data.mean,
        std=data.std,
        resizing=data.resizing,
        device=device,
        precision=precision,
    )

    def batches(pictures: ImageSplit) -> Iterator[NDArray[uint8]]:
        for images in pictures.batches_in_order(AT_ONCE):
            yield images
            advance(len(images))

    return lambda encoder, pictures: map_sharded(
        len(pictures), lambda rows: extract(encoder, batches(pictures.slice(rows.start, rows.stop)))
    )


def fit_whitening(encoder: nn.Module, features: Features, pictures: ImageSplit) -> None:
    """Let an encoder that ends in a whitening fit it to pictures."""
    if isinstance(encoder, Whitened):
        encoder.whitening.fit(features(encoder.network, pictures.subsample(WHITENED_BY)))


@dataclass
class EvalContext:
    """What is judged, and with what."""

    encoder: nn.Module
    backbone: BackboneSettings  # to build the same network afresh
    data: ImageDataset
    device: torch.device
    precision: str
    display: Display
    cached: tuple[Tensor, Tensor] | None = None

    def features(self, rows: Rows | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of the labelled pictures (None: all of them) features [N, d] and labels [N], and the test pictures' likewise.

        Features are computed once.
        """
        if self.cached is None:
            with self.display.task("features", len(self.data.labelled) + len(self.data.test)) as advance:
                function = feature_function(self.data, self.device, self.precision, advance)
                self.cached = function(self.encoder, self.data.labelled), function(self.encoder, self.data.test)
        (bank, test), known = self.cached, torch.from_numpy(self.data.labelled.labels_as_read())
        truth = torch.from_numpy(self.data.test.labels_as_read())
        return (bank, known, test, truth) if rows is None else (bank[rows], known[rows], test, truth)

    def test_features(self, network: nn.Module, *, only_one: bool = False) -> tuple[Tensor, Tensor]:
        """A network's features [M, d] of the labelled test pictures and their classes [M], both on the device.

        `only_one`: of the first of them, to see whether it can.
        """
        test = self.data.test.select(np.flatnonzero(self.data.test.labels >= 0))
        if not len(test):
            raise BadInput(NO_TEST)
        test, display = (test.sample(1), Display()) if only_one else (test, self.display)
        with display.task("features of the test pictures", len(test)) as advance:
            features = feature_function(self.data, self.device, self.precision, advance)(network, test)
        if not features.isfinite().all():
            raise BadInput(NOT_FINITE)
        return features.to(self.device), torch.from_numpy(test.labels_as_read()).to(self.device)


class Scores(NamedTuple):
    """Accuracies in percent."""

    top1: float
    top5: float  # with fewer than five classes, the largest of them all


@torch.no_grad()
def scores(logits: Tensor, truth: Tensor) -> Scores:
    """Accuracies of logits or votes [M, C] by the true classes [M]; a truth of -1 is never met.

    Of equal logits some come first, so that a tie never makes two classes right.
    """
    if not len(truth):
        raise BadInput(NO_TEST)
    best = logits.topk(min(5, logits.shape[1]), dim=1).indices
    right = best == truth.to(best.device)[:, None]
    return Scores(*(100 * float(right[:, :num].any(1).to(widest_float(right.device)).mean()) for num in (1, 5)))
