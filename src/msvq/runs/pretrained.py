"""The encoders of the list, loaded: from the package, or from the hub."""

import hashlib
from pathlib import Path

from msvq.core.errors import BadInput
from msvq.model import pretrained
from msvq.model.backbones import make_backbone
from msvq.model.initial import read_weights
from msvq.model.pretrained import Pretrained
from msvq.runs.encoder import EncoderMetadata, LoadedEncoder, Preprocessing, freeze
from msvq.runs.encoder_folder import WEIGHTS, fetch_folder, fill, load_folder


def load_pretrained(entry: Pretrained) -> LoadedEncoder:
    """An encoder of the list, if its file is the one that the list was written for."""
    if entry.hub is not None:
        folder = fetch_folder(entry.hub)
        _check(folder / WEIGHTS, entry)
        return load_folder(folder, entry.name, None)
    assert entry.file is not None
    known, file = EncoderMetadata.model_validate(entry.encoder), pretrained.BUNDLED / entry.file
    _check(file, entry)
    network = make_backbone(known.backbone, known.train_size)
    fill(network, read_weights(file), entry.name)  # half precision in the file, single here
    return LoadedEncoder(
        entry.name,
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
