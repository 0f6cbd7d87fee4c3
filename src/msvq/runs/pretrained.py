"""Encoders that come with the package, or that it knows on the hub, by their names; `bundled/index.json` lists them."""

import hashlib
import json
from pathlib import Path

from pydantic import BaseModel, TypeAdapter

from msvq.core.errors import BadInput, unknown
from msvq.model.backbones import make_backbone
from msvq.model.initial import read_weights
from msvq.runs.encoder import EncoderMetadata, LoadedEncoder, Preprocessing, freeze
from msvq.runs.encoder_folder import WEIGHTS, fetch_folder, fill, load_folder

BUNDLED = Path(__file__).with_name("bundled")


class Pretrained(BaseModel, frozen=True):
    """An encoder of the list: its `file` lies beside the list, and `encoder` is its `encoder.json`; or `hub` has it."""

    name: str
    data: str
    method: str
    epochs: int
    knn: float | None = None  # top-1 in percent, by the frozen protocols
    linear: float | None = None
    licence: str
    sha256: str  # of the file of weights
    file: str | None = None
    hub: str | None = None  # OWNER/NAME
    encoder: EncoderMetadata | None = None


def list_pretrained() -> list[Pretrained]:
    """All of them, in the order of the list."""
    return TypeAdapter(list[Pretrained]).validate_python(json.loads((BUNDLED / "index.json").read_bytes()))


def is_pretrained(name: str) -> bool:
    """Whether the list has it."""
    return any(entry.name == name for entry in list_pretrained())


def load_pretrained(name: str) -> LoadedEncoder:
    """An encoder of the list, if its file is the one that the list was written for."""
    entry = next((entry for entry in list_pretrained() if entry.name == name), None)
    if entry is None:
        raise unknown("encoder", name, [entry.name for entry in list_pretrained()])
    if entry.hub is not None:
        folder = fetch_folder(entry.hub)
        _check(folder / WEIGHTS, entry)
        return load_folder(folder, name, None)
    assert entry.file is not None and entry.encoder is not None
    known = entry.encoder
    _check(BUNDLED / entry.file, entry)
    network = make_backbone(known.backbone, known.train_size)
    fill(network, read_weights(BUNDLED / entry.file), name)  # half precision in the file, single here
    return LoadedEncoder(
        name,
        freeze(network),
        Preprocessing(**known.model_dump()),
        known.backbone.for_size(known.train_size),
        train_size=known.train_size,
        feature_dim=network.feature_dim,
        method=entry.method,
        data=entry.data,
    )


def _check(path: Path, entry: Pretrained) -> None:
    if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != entry.sha256:
        way_out = "fetch it again" if entry.hub else "install msvq again"
        raise BadInput(f"the weights of {entry.name} are damaged: their checksum is not the one of the list; {way_out}")
