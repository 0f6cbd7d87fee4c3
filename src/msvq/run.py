"""A run directory, as an object: its settings, its metrics, its encoder."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from annotated_types import Gt
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, FiniteFloat, PositiveInt
from safetensors import SafetensorError
from safetensors.torch import load as read_weights
from safetensors.torch import save
from torch import Tensor, nn

from msvq.config import Settings, read_config
from msvq.data.checksums import Damaged, sealed, unsealed
from msvq.data.listing import Listing
from msvq.data.packing import pieces
from msvq.data.sources import DataSettings, locate
from msvq.data.splits import Splits
from msvq.data.store import DataSet
from msvq.data.workers import Workers
from msvq.errors import BadInput
from msvq.evaluate.features import extract_features
from msvq.files import write_atomically, write_text
from msvq.model.backbones import BackboneSettings, make_backbone, register_backbone
from msvq.own_code import is_code
from msvq.train.checkpoint import LAST
from msvq.train.runlog import read_metrics
from msvq.version import __version__

WEIGHTS, CARD = "encoder.safetensors", "encoder.json"
HASH, SEAL = "weights_sha256", "card_sha256"  # of the weights, and of the card itself: both, or (older runs) neither


_Deviation = Annotated[FiniteFloat, Gt(0)]


class _Card(BaseModel):
    """What has to be in `encoder.json`."""

    backbone: BackboneSettings
    train_size: PositiveInt
    size: PositiveInt
    mean: tuple[FiniteFloat, FiniteFloat, FiniteFloat]
    std: tuple[_Deviation, _Deviation, _Deviation]
    feature_dim: PositiveInt
    weights_sha256: str | None = None


class Run:
    """A finished or running pre-training: what `msvq.pretrain` returns and `msvq.load` opens."""

    def __init__(self, path: Path, *, backbone: str | None = None) -> None:
        self.path = path
        self.backbone = backbone  # the run's own code, where a person has named it

    def __repr__(self) -> str:
        scores = [line["knn_top1"] for line in self.metrics() if "knn_top1" in line]
        knn = f", kNN {scores[-1]:.1f} %" if scores else ""
        return f"Run({str(self.path)!r}: {self.config.method_name} on {self.config.data.source}{knn})"

    @cached_property
    def config(self) -> Settings:
        """The complete settings."""
        settings = read_config(self.path / "config.yaml")
        if self.backbone is None:
            return settings
        named = settings.backbone.model_copy(update={"name": self.backbone})
        return settings.model_copy(update={"backbone": named})

    def environment(self) -> dict[str, Any]:
        """What the run was made with: versions, hardware, and a fingerprint of its data."""
        path = self.path / "environment.json"
        try:
            return dict(json.loads(path.read_bytes())) if path.is_file() else {}
        except (ValueError, TypeError, RecursionError):
            way_out = "restore it, or delete it if the pictures are still those that the run began with"
            raise BadInput(f"{path} is damaged; {way_out}") from None

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`."""
        return read_metrics(self.path / "metrics.jsonl")

    @cached_property
    def card(self) -> dict[str, Any]:
        """`encoder.json`: what the encoder is and how to feed it."""
        path = self.path / CARD
        if not path.is_file():
            raise BadInput(f"{self.path} has no encoder yet; finish the run with --resume")
        try:
            card = json.loads(path.read_bytes())
            card = unsealed(card, SEAL) if {HASH, SEAL} & set(card) else card
            card = {**card, **_Card.model_validate(card).model_dump(mode="json", exclude_none=True)}
            if self.backbone is not None:
                card["backbone"]["name"] = self.backbone
            return card
        except (ValueError, RecursionError, TypeError, AttributeError, Damaged):
            raise self._damaged(path) from None

    @cached_property
    def encoder(self) -> nn.Module:
        """The trained backbone in eval mode: normalised pictures [N, 3, H, W] to features [N, d]."""
        backbone = BackboneSettings.model_validate(self.card["backbone"])
        encoder = make_backbone(backbone, self.card["train_size"])
        weights = self.read_encoder()
        # Where there is no checksum to tell before, weights of another network or a wrong card are noticed here.
        fits = {name: value.shape for name, value in weights.items()}
        if fits != {name: value.shape for name, value in encoder.state_dict().items()}:
            raise self._damaged(self.path / WEIGHTS)
        if encoder.feature_dim != self.card["feature_dim"]:
            raise self._damaged(self.path / CARD)
        encoder.load_state_dict(weights)
        return encoder.eval().requires_grad_(False)

    def read_encoder(self) -> dict[str, Tensor]:
        """The weights in `encoder.safetensors`, if they are those that the card was written for."""
        path, expected = self.path / WEIGHTS, self.card.get(HASH)
        if not path.is_file():
            raise BadInput(f"{path} is gone; {self._way_out()}")
        content = path.read_bytes()
        if expected is not None and hashlib.sha256(content).hexdigest() != expected:
            raise self._damaged(path)
        try:
            return read_weights(content)
        except (SafetensorError, ValueError, KeyError, TypeError):
            raise self._damaged(path) from None

    def _damaged(self, path: Path) -> BadInput:
        return BadInput(f"{path} is damaged, or not the one that this run wrote; {self._way_out()}")

    def _way_out(self) -> str:
        last = self.path / "checkpoints" / LAST
        other = f", or take --checkpoint {last}" if last.is_file() else ""
        return f"'msvq pretrain --resume --out {self.path}' writes it anew{other}"

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


def load(path: str | Path, *, backbone: str | None = None) -> Run:
    """Open a run directory. `backbone`: where its backbone is code of your own (`file.py:function`), which is run only
    because it is named here; it may have moved since.
    """
    path = Path(path)
    if not (path / "config.yaml").is_file():
        raise BadInput(f"{str(path)!r} is not a run: there is no config.yaml in it")
    if backbone is not None:
        trained = Run(path).config.backbone.name
        if backbone != trained and not (is_code(trained) and is_code(backbone)):
            raise BadInput(f"the run is of backbone {trained}, not {backbone}; leave out --backbone")
        if is_code(backbone):
            register_backbone(backbone)
    return Run(path, backbone=backbone)


def save_encoder(path: Path, encoder: nn.Module, settings: Settings, data: DataSet) -> None:
    """Write `encoder.safetensors` and the card that says how to feed it."""
    weights = save(
        {name: value.cpu().clone(memory_format=torch.contiguous_format) for name, value in encoder.state_dict().items()}
    )
    write_atomically(path / WEIGHTS, lambda file: file.write(weights))
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
        HASH: hashlib.sha256(weights).hexdigest(),
    }
    write_text(path / CARD, json.dumps(sealed(card, SEAL), indent=2) + "\n")


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
