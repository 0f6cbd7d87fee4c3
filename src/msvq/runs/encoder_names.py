"""An encoder by its name: a run, a network of a library, a file of weights, an export, one of the hub.

Nothing that is loaded runs code: weights are read by safetensors or `weights_only`. A file of code is run only if a
person has named it with --backbone.
"""

import hashlib
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from msvq.core.errors import BadInput, unknown
from msvq.core.files import expanduser
from msvq.model import pretrained
from msvq.model.backbones import BackboneSettings, check_backbone, make_backbone
from msvq.model.hub import HUB, ONNX, fetch_folder
from msvq.model.hub import WEIGHTS as FOLDER_WEIGHTS
from msvq.model.initial import guess_resnet, named_backbone, read_weights
from msvq.model.libraries import RANDOM, is_library, library_input, library_weights
from msvq.model.pooling import Pixels
from msvq.model.pretrained import Pretrained, find_pretrained, list_pretrained
from msvq.model.resnet import Stem
from msvq.runs.encoder import EncoderMetadata, LoadedEncoder, Preprocessing, freeze, load_run_encoder
from msvq.runs.encoder_folder import fill, is_folder, load_folder
from msvq.runs.run_dir import WEIGHTS, RunDir, open_run

PIXELS = "pixels"
SEED = 0  # of fresh weights: the same network every time
ENDINGS = (".safetensors", ".pth", ".pt", ".ckpt", ".bin")
IMAGENET: dict[str, Any] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
SIZES: dict[Stem, int] = {"small": 32, "small-pool": 64}  # that stems are made for; else as ImageNet's networks have it
WAYS = (
    "an encoder is the directory of a run, timm:NAME, torchvision:NAME, a file of weights, a folder of 'msvq export', "
    "hf:OWNER/NAME or a name that 'msvq pretrained' lists"
)

EncoderName = str | Path | RunDir | LoadedEncoder


def find_run(name: EncoderName, *, backbone: str | None = None) -> RunDir | None:
    """The run that a name means; None if it means another encoder. Raises if there is no such encoder, by its name."""
    if isinstance(name, RunDir):
        return name
    if isinstance(name, LoadedEncoder):
        return name.run
    place = expanduser(name)
    if (place / "config.yaml").is_file():
        return open_run(place, backbone=backbone)
    needless = not place.is_file() and not is_folder(place) and not str(name).startswith(HUB)
    if backbone is not None and needless:
        raise BadInput(f"--backbone says what network a file of weights is of; {name} says it itself, so leave it out")
    if _loader(str(name)) is not None or place.is_file() or is_folder(place):
        return None
    if place.exists():
        raise BadInput(f"{str(name)!r} is not a run: there is no config.yaml in it, nor is it an export; {WAYS}")
    if place.suffix or len(place.parts) > 1:
        raise BadInput(f"there is no file or folder {str(name)!r}; {WAYS}")
    known = [PIXELS, *(entry.name for entry in list_pretrained())]
    raise BadInput(f"{unknown('encoder', str(name), known)}; {WAYS}")


def load_encoder(name: EncoderName, checkpoint: str = "last", *, backbone: str | None = None) -> LoadedEncoder:
    """The encoder that a name means. The network is used only for weights of a library or the hub.

    `checkpoint`: of a run, "last", "best" or a file. `backbone`: the network that a file of weights is of, where it
    does not tell; or code of one's own (`file.py:function`), which is run only because it is named here.
    """
    run = None if isinstance(name, LoadedEncoder) else find_run(name, backbone=backbone)
    if run is not None:
        return load_run_encoder(run, checkpoint)
    if checkpoint != "last":
        raise BadInput(f"--checkpoint is for the directory of a run; {name} has no checkpoints, leave it out")
    if isinstance(name, LoadedEncoder):
        return name
    load = _loader(str(name), backbone)
    if load is not None:
        return load(str(name))
    place = expanduser(str(name))
    return load_folder(place, str(name), backbone) if place.is_dir() else _load_file(place, backbone)


def is_name(name: str) -> bool:
    """Whether a name is no path, but of a library, the hub or the package."""
    return _loader(name) is not None


def no_data(name: EncoderName) -> BadInput:
    """The error for an encoder that brings no pictures along."""
    return BadInput(f"--data is needed: {name} is no run, whose own pictures could be taken")


def _loader(name: str, backbone: str | None = None) -> Callable[[str], LoadedEncoder] | None:
    """How a name that is no path is loaded; None if it is none that is known."""
    if is_library(name):
        return _load_library
    if name.startswith(HUB):
        return lambda name: load_folder(fetch_folder(name.removeprefix(HUB)), name, backbone)
    if name == PIXELS:
        return _load_pixels
    entry = find_pretrained(name)
    return None if entry is None else lambda _: _load_listed(entry)


def _load_listed(entry: Pretrained) -> LoadedEncoder:
    """An encoder of the list, of the package or the hub, if its file is the one that the list was written for."""
    folder = pretrained.BUNDLED if entry.hub is None else fetch_folder(entry.hub)
    file = folder / (str(entry.file) if entry.hub is None else FOLDER_WEIGHTS)
    if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != entry.sha256:
        way_out = "fetch it again" if entry.hub else "install msvq again"
        raise BadInput(f"the weights of {entry.name} are damaged: their checksum is not the one of the list; {way_out}")
    if entry.hub is not None:
        return load_folder(folder, entry.name, None)
    known = EncoderMetadata.model_validate(entry.encoder)
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


def _load_library(name: str) -> LoadedEncoder:
    network = name.removesuffix(RANDOM)
    settings = BackboneSettings(name=network)
    check_backbone(settings)
    how = Preprocessing(**library_input(network))
    weights = None if name.endswith(RANDOM) else library_weights(network, how.size)
    return _build(name, settings, how, weights)


def _load_pixels(name: str) -> LoadedEncoder:
    how, network = Preprocessing(size=32, mean=(0, 0, 0), std=(1, 1, 1)), Pixels()
    settings = BackboneSettings(name=PIXELS)
    return LoadedEncoder(name, freeze(network), how, settings, train_size=32, feature_dim=network.feature_dim)


def _build(
    name: str,
    settings: BackboneSettings,
    how: Preprocessing,
    weights: Mapping[str, Tensor] | None,
    *,
    guessed: bool = False,
) -> LoadedEncoder:
    """A network with these weights; None: with fresh ones, the same every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        network = make_backbone(settings, how.size)
    note = ""
    if weights is not None:
        note = f"{name}: {settings.title}, {fill(network, weights, name)}"
    if guessed:
        note += (
            f"; it does not say how to prepare pictures: {how.size} pixels and ImageNet's colours are taken, or what "
            f"the data set has that it is judged on"
        )
    return LoadedEncoder(
        name,
        freeze(network),
        how,
        settings.for_size(how.size),
        train_size=how.size,
        feature_dim=network.feature_dim,
        note=note if guessed else "",
        guessed=guessed,
    )


# --- files of weights


def _load_file(path: Path, backbone: str | None) -> LoadedEncoder:
    """What a file of weights holds: of a run or an export that it lies in, or of other code."""
    folder = path.parent.parent if path.parent.name == "checkpoints" else path.parent
    if (folder / "config.yaml").is_file() and (path.name == WEIGHTS or folder != path.parent):
        return load_run_encoder(open_run(folder, backbone=backbone), str(path))
    if path.name in (FOLDER_WEIGHTS, ONNX) and is_folder(path.parent):
        return load_folder(path.parent, str(path), backbone)
    if path.suffix.lower() not in ENDINGS:
        raise BadInput(f"{str(path)!r} is no file of weights by its name: such end in {', '.join(ENDINGS)}")
    check_no_code(path)
    found = read_weights(path)
    settings = guess_resnet(str(path), found) if backbone is None else named_backbone(backbone, found)
    if is_library(settings.name):
        return _build(str(path), settings, Preprocessing(**library_input(settings.name)), found)
    size = SIZES.get(settings.stem, 224) if settings.is_resnet else 224
    how = Preprocessing(size=size, resize=256 if size == 224 else None, **IMAGENET)
    return _build(str(path), settings, how, found, guessed=True)


def check_no_code(path: Path) -> None:
    """Raise if a file holds a program beside its weights, as TorchScript's do."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if any("/code/" in name for name in archive.namelist()):
                raise BadInput(
                    f"{str(path)!r} is an archive of code (TorchScript), which is not run; give a file of weights alone"
                )
