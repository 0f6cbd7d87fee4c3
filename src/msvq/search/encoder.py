"""An encoder that is ready to embed: its weights, how to feed it, and a key that tells it from every other."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from msvq.api import Run
from msvq.core.errors import BadInput
from msvq.core.runtime import check_precision, or_too_large, resolve_device, resolve_precision
from msvq.core.user_code import is_user_code
from msvq.evaluate.features import extract_features
from msvq.model.libraries import is_library
from msvq.runs.weights import LoadedEncoder, load_encoder, preprocessing_of

# On a CPU the network always gets so many pictures, the last of them filled up: what it computes for a picture depends
# on the shape of the whole batch in the last bits, and so would not on --batch-size.
CHUNK = 64


@dataclass(frozen=True)
class Embedder:
    """Pictures uint8 [n, H, W, 3] to features float32 [n, d]."""

    encoder: nn.Module
    checkpoint: str
    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    feature_dim: int
    device: torch.device
    precision: str
    key: str  # of the weights, the network and all else that changes the numbers

    def __call__(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Features of the pictures; the same for a picture whatever the others are, in fp32 on a CPU."""
        batches = _filled(images) if self.device.type == "cpu" else iter([images])
        way = "free some" if self.device.type == "cpu" else "lower 'msvq embed --batch-size', or give --device cpu"
        with or_too_large(f"{len(images)} pictures at a time do not fit into the memory of {self.device}; {way}"):
            features = extract_features(
                self.encoder,
                batches,
                size=self.size,
                mean=self.mean,
                std=self.std,
                device=self.device,
                precision=self.precision,
                feature_dim=self.feature_dim,
            )
        numbers: NDArray[np.float32] = features[: len(images)].numpy()
        if not np.isfinite(numbers).all():
            raise BadInput(
                f"the {self.checkpoint} checkpoint gives features that are not numbers, so its training has diverged "
                f"(or --precision {self.precision} is too coarse); take another --checkpoint"
            )
        return numbers


def _filled(images: NDArray[np.uint8]) -> Iterator[NDArray[np.uint8]]:
    for start in range(0, len(images), CHUNK):
        rows = images[start : start + CHUNK]
        missing = CHUNK - len(rows)
        yield np.pad(rows, ((0, missing), (0, 0), (0, 0), (0, 0))) if missing else rows


def open_embedder(
    run: Run, *, checkpoint: str = "last", device: str | None = None, precision: str | None = None
) -> Embedder:
    """The run's encoder on a device, in fp32 unless asked otherwise."""
    chosen = check_precision(precision or "fp32")
    weights = load_encoder(run, checkpoint)
    target = resolve_device(device or "auto")
    exact = resolve_precision(chosen, target)
    fed = preprocessing_of(run, checkpoint)
    state = weights.encoder.state_dict()
    facts = [fed.model_dump(mode="json"), exact, target.type, CHUNK, _network(weights)]
    digest = hashlib.sha256(json.dumps(facts).encode())
    for name in sorted(state):
        digest.update(name.encode())
        digest.update(state[name].detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return Embedder(
        encoder=weights.encoder.to(target),
        checkpoint=weights.checkpoint,
        size=fed.size,
        mean=fed.mean,
        std=fed.std,
        feature_dim=int(weights.encoder.feature_dim),  # type: ignore[arg-type]  # what every backbone has
        device=target,
        precision=exact,
        key=digest.hexdigest()[:32],
    )


def _network(weights: LoadedEncoder) -> list[Any]:
    """What the network is: the same weights give other features in another one, or after a change of its code."""
    name, size = weights.backbone.name, weights.train_size
    if is_library(name):  # which may build it otherwise in its next version
        return [name, version(name.partition(":")[0]), size]
    if not is_user_code(name):
        return [name, weights.backbone.width, weights.backbone.stem, size]
    file, _, function = name.rpartition(":")
    return [hashlib.sha256(Path(file).read_bytes()).hexdigest(), function, size]
