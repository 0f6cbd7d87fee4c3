"""An encoder's files: its weights, and the card that says what they are and how to feed them."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import torch
from annotated_types import Gt
from pydantic import BaseModel, FiniteFloat, PositiveInt
from safetensors.torch import save
from torch import Tensor, nn

from msvq.config.settings import Settings
from msvq.core.array_cache import with_checksum
from msvq.core.files import write_atomically, write_text
from msvq.core.version import __version__
from msvq.data.store import ImageDataset
from msvq.model.backbones import BackboneSettings

WEIGHTS, CARD = "encoder.safetensors", "encoder.json"
HASH, SEAL = "weights_sha256", "card_sha256"  # of the weights, and of the card itself: both, or (older runs) neither

_Deviation = Annotated[FiniteFloat, Gt(0)]


class Preprocessing(BaseModel, frozen=True):
    """At what size, and normalised how, an encoder knows pictures."""

    size: PositiveInt
    mean: tuple[FiniteFloat, FiniteFloat, FiniteFloat]
    std: tuple[_Deviation, _Deviation, _Deviation]


class EncoderMetadata(Preprocessing, frozen=True):
    """What has to be in `encoder.json`."""

    backbone: BackboneSettings
    train_size: PositiveInt
    feature_dim: PositiveInt
    weights_sha256: str | None = None


def state_dict_mismatch(own: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> str:
    """What of the tensors that were found is not as in a network's `own`, the first of it; empty if all is."""
    for name in own:
        there, wanted = found.get(name), own[name]
        # A module may keep other things than tensors in its state.
        if isinstance(there, Tensor) and isinstance(wanted, Tensor) and there.shape != wanted.shape:
            return f"{name} is {list(there.shape)}, not {list(wanted.shape)}"
    missing = next((f"{name} is not in it" for name in own if name not in found), "")
    return missing or next((f"there is no place for {name}" for name in found if name not in own), "")


def save_encoder(path: Path, encoder: nn.Module, settings: Settings, data: ImageDataset) -> None:
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
    write_text(path / CARD, json.dumps(with_checksum(card, SEAL), indent=2) + "\n")
