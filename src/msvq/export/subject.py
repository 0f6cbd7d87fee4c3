"""What is exported: an encoder, how to feed it, and where it came from."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from msvq.errors import BadInput
from msvq.run import CARD, WEIGHTS, Run
from msvq.weights import checkpoint_path, load_encoder, trained_size


@dataclass(frozen=True)
class Subject:
    """An encoder in eval mode on the CPU, with the facts that every format needs."""

    run: Run
    encoder: nn.Module
    checkpoint: str
    step: int | None
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


def read_subject(run: Run, checkpoint: str) -> Subject:
    """The encoder in a checkpoint of a run."""
    weights = load_encoder(run, checkpoint)
    own = checkpoint_path(run, checkpoint).resolve() == (run.path / WEIGHTS).resolve()
    facts = _from_card(run) if own else _from_settings(run)
    with torch.inference_mode():
        features = weights.encoder(torch.zeros(1, 3, facts["size"], facts["size"]))
    return Subject(
        run=run,
        encoder=weights.encoder,
        checkpoint=weights.checkpoint,
        step=weights.step,
        feature_dim=features.shape[1],
        **facts,
    )


def _from_card(run: Run) -> dict[str, Any]:
    card = run.card
    names = ("backbone", "train_size", "size")
    return {
        **{name: card[name] for name in names},
        "mean": tuple(card["mean"]),
        "std": tuple(card["std"]),
        "data": str(card.get("data", "unknown data")),
    }


def _from_settings(run: Run) -> dict[str, Any]:
    """Of a run that has no card yet, or of a checkpoint that the card was not written for."""
    environment = run.environment()
    if "mean" not in environment and not (run.path / CARD).is_file():
        raise BadInput(f"{run.path} does not say how its pictures are normalised; finish the run with --resume")
    known = environment if "mean" in environment else run.card
    return {
        "backbone": run.config.backbone.model_dump(mode="json"),
        "train_size": trained_size(run),
        "size": run.config.data.test_size or trained_size(run),
        "mean": tuple(known["mean"]),
        "std": tuple(known["std"]),
        "data": str(known.get("data", Path(run.config.data.source).name)),
    }
