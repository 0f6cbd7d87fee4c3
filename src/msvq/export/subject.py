"""What is exported: an encoder, how to feed it, and where it came from."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from msvq.api import CARD, Run
from msvq.runs.weights import load_encoder, preprocessing_of


@dataclass(frozen=True)
class ExportSource:
    """An encoder in eval mode on the CPU, with the facts that every format needs."""

    run: Run
    encoder: nn.Module
    checkpoint: str
    step: int | None
    of_run: bool  # whether the run's log tells of these weights
    backbone: dict[str, Any]
    train_size: int
    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    data: str
    feature_dim: int

    @property
    def network(self) -> str:
        """The backbone's name, as in the settings: resnet18, torchvision:NAME, timm:NAME, file.py:function."""
        return str(self.backbone["name"])

    @property
    def method(self) -> str:
        """The method's name for others to read."""
        return Path(self.run.config.method_name).name

    @property
    def title(self) -> str:
        """The backbone's name for others to read: the folders of a file of one's own are nobody's business."""
        return Path(self.network).name

    @property
    def pooled(self) -> bool:
        """Whether the encoder is msvq's average over the maps of a network that is somebody else's."""
        ours = type(self.encoder).__module__.startswith("msvq.")
        return ours and [name for name, _ in self.encoder.named_children()] == ["network"]


def read_subject(run: Run, checkpoint: str) -> ExportSource:
    """The encoder in a checkpoint of a run."""
    weights, fed = load_encoder(run, checkpoint), preprocessing_of(run, checkpoint)
    with torch.inference_mode():
        features = weights.encoder(torch.zeros(1, 3, fed.size, fed.size))
    return ExportSource(
        run=run,
        encoder=weights.encoder,
        checkpoint=weights.checkpoint,
        step=weights.step,
        of_run=weights.of_run,
        backbone=weights.backbone.model_dump(mode="json"),
        train_size=weights.train_size,
        size=fed.size,
        mean=fed.mean,
        std=fed.std,
        data=_trained_on(run),
        feature_dim=features.shape[1],
    )


def _trained_on(run: Run) -> str:
    """What the data is called: by what the run began with, or, of an older run, by its card."""
    begun = run.environment()
    known = run.card if "data" not in begun and (run.path / CARD).is_file() else begun
    return str(known.get("data", Path(run.config.data.source).name))
