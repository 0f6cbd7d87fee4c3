"""A run directory, as an object: its settings, its metrics, its encoder."""

import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from safetensors.torch import load_file, save
from torch import nn

from msvq.config import Settings, read_config
from msvq.data.listing import Listing
from msvq.data.packing import pieces
from msvq.data.sources import DataSettings, locate
from msvq.data.splits import Splits
from msvq.data.store import DataSet
from msvq.data.workers import Workers
from msvq.errors import BadInput
from msvq.evaluate.features import extract_features
from msvq.files import write_atomically, write_text
from msvq.model.backbones import BackboneSettings, make_backbone
from msvq.train.runlog import read_metrics
from msvq.version import __version__


class Run:
    """A finished or running pre-training: what `msvq.pretrain` returns and `msvq.load` opens."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        scores = [line["knn_top1"] for line in self.metrics() if "knn_top1" in line]
        knn = f", kNN {scores[-1]:.1f} %" if scores else ""
        return f"Run({str(self.path)!r}: {self.config.method_name} on {self.config.data.source}{knn})"

    @cached_property
    def config(self) -> Settings:
        """The complete settings."""
        return read_config(self.path / "config.yaml")

    def environment(self) -> dict[str, Any]:
        """What the run was made with: versions, hardware, and a fingerprint of its data."""
        path = self.path / "environment.json"
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`."""
        return read_metrics(self.path / "metrics.jsonl")

    @cached_property
    def card(self) -> dict[str, Any]:
        """`encoder.json`: what the encoder is and how to feed it."""
        path = self.path / "encoder.json"
        if not path.is_file():
            raise BadInput(f"{self.path} has no encoder yet; finish the run with --resume")
        card: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return card

    @cached_property
    def encoder(self) -> nn.Module:
        """The trained backbone in eval mode: normalised pictures [N, 3, H, W] to features [N, d]."""
        backbone = BackboneSettings.model_validate(self.card["backbone"])
        encoder = make_backbone(backbone, self.card["train_size"])
        encoder.load_state_dict(load_file(self.path / "encoder.safetensors"))
        return encoder.eval().requires_grad_(False)

    def embed(self, images: ArrayLike | Sequence[ArrayLike], *, batch_size: int = 500) -> NDArray[np.float32]:
        """Features [N, d] of pictures: uint8 (0..255) or float (0..1), of any size, one array or a list.

        Channels may come last or first; grey pictures may leave them out. A picture of another size than
        the encoder expects is resized, its shorter side first, and cropped to the centre.
        """
        pictures = _as_pictures(images)
        sizes = [picture.shape for picture in pictures]
        features = np.zeros((len(pictures), self.card["feature_dim"]), np.float32)
        for size in dict.fromkeys(sizes):  # pictures of equal size go through together
            chosen = [index for index, other in enumerate(sizes) if other == size]
            features[chosen] = extract_features(
                self.encoder,
                (
                    np.stack([pictures[index] for index in chosen[start : start + batch_size]])
                    for start in range(0, len(chosen), batch_size)
                ),
                size=self.card["size"],
                mean=self.card["mean"],
                std=self.card["std"],
                device=torch.device("cpu"),
            ).numpy()
        return features

    def embed_source(self, source: str | Path, *, workers: int | None = None) -> "Embedded":
        """Features of all pictures in a folder or a list; those that cannot be read are named, with the reason."""
        items = locate(DataSettings(source=str(source)), whole=True)
        if isinstance(items, Splits):
            raise BadInput(f"{str(source)!r} holds arrays; give them to Run.embed")
        good: list[int] = []
        skipped = list(items.unlisted) if isinstance(items, Listing) else []
        pool, side = Workers(workers), self.card["size"]

        def batches() -> Iterator[NDArray[np.uint8]]:
            start = 0
            for result in pool.map("decode", pieces(items, range(len(items)), 128), side=side):
                kept = [i for i in range(len(result.rows)) if i not in result.reasons]
                skipped.extend((items.names[start + i], reason) for i, reason in result.reasons.items())
                good.extend(start + i for i in kept)
                start += len(result.rows)
                yield result.rows[kept]

        try:
            features = extract_features(
                self.encoder,
                (images for images in batches() if len(images)),
                size=side,
                mean=self.card["mean"],
                std=self.card["std"],
                device=torch.device("cpu"),
                feature_dim=self.card["feature_dim"],
            ).numpy()
        finally:
            pool.close()
        return Embedded(features, [items.names[i] for i in good], items.labels[good], skipped)


class Embedded(NamedTuple):
    """Features of the readable pictures of a source, row by row with their names and labels."""

    features: NDArray[np.float32]  # [N, d]
    names: list[str]
    labels: NDArray[np.int64]  # -1 where unknown
    skipped: list[tuple[str, str]]  # name and reason


def load(path: str | Path) -> Run:
    """Open a run directory."""
    path = Path(path)
    if not (path / "config.yaml").is_file():
        raise BadInput(f"{str(path)!r} is not a run: there is no config.yaml in it")
    return Run(path)


def save_encoder(path: Path, encoder: nn.Module, settings: Settings, data: DataSet) -> None:
    """Write `encoder.safetensors` and the card that says how to feed it."""
    weights = {name: value.cpu().contiguous() for name, value in encoder.state_dict().items()}
    write_atomically(path / "encoder.safetensors", lambda file: file.write(save(weights)))
    card = {
        "msvq": __version__,
        "method": settings.method_name,
        "data": data.name,
        "backbone": settings.backbone.model_dump(mode="json"),
        "train_size": data.size,
        "size": data.test_size,
        "mean": data.mean,
        "std": data.std,
        "feature_dim": encoder.feature_dim,
    }
    write_text(path / "encoder.json", json.dumps(card, indent=2) + "\n")


def _as_pictures(images: ArrayLike | Sequence[ArrayLike]) -> list[NDArray[np.uint8]]:
    """Each picture as uint8 [H, W, 3]."""
    if isinstance(images, (list, tuple)):
        return [_as_picture(np.asarray(image)) for image in images]
    array = np.asarray(images)
    batched = array.ndim == 4 or (array.ndim == 3 and array.shape[-1] not in (1, 3) and array.shape[0] not in (1, 3))
    return [_as_picture(picture) for picture in (array if batched else array[None])]


def _as_picture(picture: NDArray[Any]) -> NDArray[np.uint8]:
    if picture.ndim == 2:
        picture = picture[..., None]
    if picture.ndim != 3 or not {picture.shape[0], picture.shape[-1]} & {1, 3}:
        raise BadInput(f"a picture has the shape [H, W, 3], [3, H, W] or [H, W], not {list(picture.shape)}")
    if picture.shape[-1] not in (1, 3):
        picture = np.moveaxis(picture, 0, -1)
    if np.issubdtype(picture.dtype, np.floating):
        if not (picture.min() >= 0 and picture.max() <= 1):
            raise BadInput("pictures of floating-point numbers must lie in 0..1; give 0..255 as uint8")
        picture = np.rint(picture * 255).astype(np.uint8)
    if picture.dtype != np.uint8:
        raise BadInput(f"pictures are uint8 or floating-point arrays, not {picture.dtype}")
    return np.ascontiguousarray(np.broadcast_to(picture, (*picture.shape[:2], 3)))
