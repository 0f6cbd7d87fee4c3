"""A run directory from a training loop of one's own: its encoder, and what it takes to use, judge and show it."""

import copy
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import torch
import yaml
from pydantic import ValidationError
from torch import Tensor, nn

from msvq.config.settings import Settings
from msvq.core.errors import BadInput
from msvq.core.files import SECTIONS, write_text
from msvq.core.runtime import eval_mode
from msvq.data.sources import DataSettings, absolute, check_source, open_dataset
from msvq.methods import METHODS, Method
from msvq.model.backbones import BackboneSettings, make_backbone
from msvq.model.initial import guess_resnet, named_backbone
from msvq.model.pooling import Encoder
from msvq.model.teacher import Network
from msvq.runs.encoder import Preprocessing, freeze, save_encoder
from msvq.runs.encoder_folder import fill
from msvq.runs.evaluate import with_preprocessing
from msvq.runs.run_dir import check_out, environment, locked, start_directory

MADE_BY = "msvq.save_run"
OWN_LOOP = "own loop"  # as the name of a method
NOT_KNOWN = ("seed", "precision", "device", "device_name", "threads", "processes")  # of how a loop has trained
TOLERANCE = 1e-4  # of features, between the network and the one that will be built in its place


def save_run(
    encoder: nn.Module,
    out: Path,
    *,
    data: str,
    size: int,
    mean: Sequence[float],
    std: Sequence[float],
    data_root: str | Path | None = None,
    backbone: str | None = None,
    method: str | None = None,
    overwrite: bool = False,
) -> None:
    """Write a run with this encoder to `out`; the arguments are those of `msvq.save_run`."""
    check_out(out, overwrite=overwrite)
    check_source(data)
    how = _preprocessing(size, mean, std)
    name = next((key for key, kind in METHODS.items() if type(encoder) is kind), OWN_LOOP) if method is None else method
    settings, network = rebuild_backbone(_backbone(encoder), backbone, size)
    place = DataSettings(
        source=absolute(data), root=None if data_root is None else Path(data_root), size=size, test_size=size
    )
    dataset = open_dataset(place)
    with closing(dataset), locked(out):
        pictures = with_preprocessing(dataset, how)
        config = Settings(data=place, backbone=settings.for_size(size), method={"name": name})
        known = environment(config, pictures, torch.device("cpu"), MADE_BY)
        start_directory(out, config, {key: value for key, value in known.items() if key not in NOT_KNOWN})
        told = config.model_dump(mode="json", include={"data", "backbone", "method"})
        # Of how it was trained nothing is known, so no setting says it.
        write_text(out / "config.yaml", yaml.safe_dump({key: told.get(key, {}) for key in SECTIONS}, sort_keys=False))
        save_encoder(out, network, config, pictures)


def _preprocessing(size: int, mean: Sequence[float], std: Sequence[float]) -> Preprocessing:
    try:
        return Preprocessing.model_validate({"size": size, "mean": tuple(mean), "std": tuple(std)})
    except (ValidationError, TypeError):
        raise BadInput(
            f"an encoder needs to know how it was fed: size is a number of pixels, mean and std three numbers each, "
            f"as the views were normalised; not {size!r}, {mean!r} and {std!r}"
        ) from None


def _backbone(module: nn.Module) -> nn.Module:
    """What is evaluated and exported of a method, or of a network with its projector; else the module itself."""
    if not isinstance(module, nn.Module):
        raise BadInput(f"an encoder is a torch.nn.Module from pictures to features, not a {type(module).__name__}")
    if isinstance(module, Method):
        return module.encoder
    return module.backbone if isinstance(module, Network) else module


def rebuild_backbone(network: nn.Module, backbone: str | None, size: int) -> tuple[BackboneSettings, Encoder]:
    """Settings by which a network can be built again, and what is built by them: it gives the same features.

    `backbone`: what they name, where it is none of the package's ResNets.
    """
    network = copy.deepcopy(network).cpu()
    state, kind = network.state_dict(), type(network).__name__
    if backbone is not None:
        candidates = [named_backbone(backbone, state)]
    else:
        try:
            guessed = guess_resnet(kind, state)
        except BadInput:
            raise _unnamed(kind) from None
        candidates = [guessed, guessed.model_copy(update={"stem": "small-pool"})]  # weights do not tell of a pool
    for settings in candidates:
        made = make_backbone(settings, size)
        fill(made, state, kind)
        if _same_features(freeze(made), network, size):
            return settings, made
    if backbone is None:
        raise _unnamed(kind)
    raise BadInput(f"backbone {backbone} has the weights of this {kind}, but gives other features; name what made it")


def _unnamed(kind: str) -> BadInput:
    return BadInput(
        f"nothing tells how to build a {kind} again when the run is opened; name it with backbone='file.py:NAME', a "
        f"function or class there that makes it without arguments, 'timm:NAME' or 'torchvision:NAME'"
    )


@torch.no_grad()
def _same_features(made: nn.Module, network: nn.Module, size: int) -> bool:
    pictures = torch.rand(4, 3, size, size, generator=torch.Generator().manual_seed(0))
    with eval_mode(network):
        features: Tensor = network(pictures)
    wanted = features.mean((2, 3)) if features.ndim == 4 else features
    found: Tensor = made(pictures)
    return found.shape == wanted.shape and torch.allclose(found, wanted, rtol=TOLERANCE, atol=TOLERANCE)
