"""A folder with an encoder as `msvq export` writes it or a timm model has it, on disk or on the hub."""

import hashlib
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from msvq.core.errors import BadInput, first_line
from msvq.core.user_code import is_user_code, must_be_named_explicitly
from msvq.model.backbones import BackboneSettings, check_backbone, make_backbone, register_backbone
from msvq.model.hub import CONFIG, MANIFEST, ONNX, PROCESSOR, WEIGHTS, damaged, read_json
from msvq.model.initial import load_weights, match_state_dict, named_there, read_weights
from msvq.model.libraries import timm_input
from msvq.model.pooling import Encoder
from msvq.runs.encoder import Interpolation, LoadedEncoder, Preprocessing, freeze

CROP_FIRST = "crop_first"  # in PROCESSOR: whether the centre square is resized, and not all of the picture
INTERPOLATIONS: dict[int, Interpolation] = {2: "bilinear", 3: "bicubic"}  # by Pillow's numbers, which PROCESSOR has


class OnnxNetwork(Encoder):
    """An ONNX file as a network: pictures [N, 3, size, size] to features, by ONNX Runtime on the CPU."""

    digest: Tensor

    def __init__(self, path: Path) -> None:
        super().__init__()
        try:
            runtime = import_module("onnxruntime")
        except ImportError:
            raise BadInput(f"{path} needs onnxruntime; pip install 'msvq[onnx]' gives it") from None
        content = path.read_bytes()
        # In the state, so that another file is another encoder to whoever compares weights.
        self.register_buffer("digest", torch.frombuffer(bytearray(hashlib.sha256(content).digest()), dtype=torch.uint8))
        try:
            self.session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
            self.input = self.session.get_inputs()[0].name
            self.feature_dim = int(self.session.get_outputs()[0].shape[-1])
        except Exception as error:  # of a file that is damaged, or of operations that the runtime does not have
            raise BadInput(f"{str(path)!r} cannot be loaded by ONNX Runtime ({first_line(error, 200)})") from error

    def forward(self, x: Tensor) -> Tensor:
        """Features [N, d]."""
        (features,) = self.session.run(None, {self.input: x.float().contiguous().cpu().numpy()})
        return torch.from_numpy(features).to(x.device)

    def __deepcopy__(self, memo: dict[int, Any]) -> "OnnxNetwork":
        return self  # it learns nothing, and its session is no thing to copy


def is_folder(path: Path) -> bool:
    """Whether there is such a folder, by its files' names."""
    return (path / CONFIG).is_file()


def load_folder(folder: Path, name: str, backbone: str | None) -> LoadedEncoder:
    """The encoder in a folder; `name` is what a person calls it, `backbone` code of one's own that it needs."""
    config = read_json(folder / CONFIG, name)
    try:
        if "backbone" in config:
            return _load_export(folder, name, config, backbone)
        if "architecture" in config:
            if backbone is not None:
                raise BadInput(f"{name} is timm:{config['architecture']} by its {CONFIG}; leave out --backbone")
            return _load_timm(folder, name, config)
    except (ValidationError, KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, BadInput):
            raise
        raise damaged(name, CONFIG) from error
    raise BadInput(f"{name} is neither an export of msvq nor a timm model by its {CONFIG}; no other can be loaded")


def _load_export(folder: Path, name: str, config: dict[str, Any], backbone: str | None) -> LoadedEncoder:
    manifest = read_json(folder / MANIFEST, name)
    if config["format"] == "torchscript":
        raise BadInput(f"{name} is an archive of code (TorchScript), which is not run; export it in another format")
    processor = read_json(folder / PROCESSOR, name)
    size, side = int(processor["crop_size"]["height"]), next(iter(processor["size"].values()))
    how = Preprocessing(
        size=size,
        resize=None if processor.get(CROP_FIRST, side == size) else side,
        interpolation=INTERPOLATIONS[processor["resample"]],
        squash="height" in processor["size"],
        mean=processor["image_mean"],
        std=processor["image_std"],
    )
    file = ONNX if config["format"] == "onnx" else WEIGHTS
    content = folder / file
    if not content.is_file() or _sha256(content) != manifest["sha256"][file]:
        raise damaged(name, file)
    train_size = int(config.get("train_size", size))
    if file == ONNX:
        settings = BackboneSettings(name="onnx")
        network: Encoder = OnnxNetwork(content)
    else:
        settings = _settings(config["backbone"], backbone)
        network = make_backbone(settings, train_size)
        fill(network, read_weights(content), name)
    return LoadedEncoder(
        name,
        freeze(network),
        how,
        settings.for_size(train_size),
        train_size=train_size,
        feature_dim=network.feature_dim,
        method=str(manifest["method"]),
        data=str(manifest["data"]),
        step=manifest["step"],
    )


def _settings(values: dict[str, Any], backbone: str | None) -> BackboneSettings:
    settings = BackboneSettings.parse(values)
    if is_user_code(settings.name):
        if backbone is None:
            raise must_be_named_explicitly("backbone", settings.name)
        register_backbone(backbone)
        settings = settings.model_copy(update={"name": backbone})
    elif backbone is not None:
        raise BadInput(f"the export is of backbone {settings.name}; leave out --backbone")
    check_backbone(settings)
    return settings


def _load_timm(folder: Path, name: str, config: dict[str, Any]) -> LoadedEncoder:
    """A model as timm keeps them on the hub: `architecture`, and `pretrained_cfg` with how to feed it."""
    how = Preprocessing(**timm_input(config.get("pretrained_cfg", config)))  # older ones have it all in one place
    if config.get("model_args"):
        changed = ", ".join(map(str, config["model_args"]))
        raise BadInput(
            f"{name} is no plain {config['architecture']} of timm: it has model_args of its own ({changed}), which are "
            f"not passed on here; take a model without them"
        )
    settings = BackboneSettings(name=f"timm:{config['architecture']}")
    if not (folder / WEIGHTS).is_file():
        raise BadInput(f"{name} has no {WEIGHTS}; there is nothing to load")
    network = make_backbone(settings, how.size)
    fill(network, read_weights(folder / WEIGHTS), name)
    return LoadedEncoder(name, freeze(network), how, settings, train_size=how.size, feature_dim=network.feature_dim)


def fill(network: nn.Module, weights: Mapping[str, Tensor], name: str) -> str:
    """Load weights under whatever names they have, in the network's own precision; says which were taken."""
    own = network.state_dict()
    matched = match_state_dict(own, weights, name)
    load_weights(network, {key: value.to(own[key].dtype) for key, value in matched.weights.items()})
    return f"{len(own)} tensors{named_there(matched.prefix, matched.layout)}"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
