"""How torchvision and timm build an encoder: which of their networks it is, and what is changed in it."""

import json
import warnings
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple

from torch import nn

from msvq.model.libraries import CLASSIFIERS, is_library
from msvq.model.whitening import without_whitening
from msvq.runs.encoder import LoadedEncoder

CREATE = {"torchvision": "models.get_model", "timm": "create_model"}
OWN_WIDTH = 64  # the only one that both libraries build a ResNet of


class Refused(Exception):
    """A format cannot hold the encoder; the text is the reason, which a list of other formats can follow."""


class Misfit(Refused):
    """The encoder is not the network that its name says, so that no library can build it."""


class Change(NamedTuple):
    """A layer of a library's network that is another one in the encoder."""

    layer: str
    code: str
    module: nn.Module


@dataclass(frozen=True)
class Building:
    """A library's network that takes the encoder's weights."""

    library: str
    name: str
    arguments: dict[str, Any]
    changes: list[Change]

    def lines(self) -> list[str]:
        """Python that builds it, without its weights, as `encoder`."""
        arguments = "".join(f", {key}={value!r}" for key, value in self.arguments.items())
        made = f"encoder = {self.library}.{CREATE[self.library]}({json.dumps(self.name)}{arguments})"
        return [made, *(f"encoder.{change.layer} = {change.code}" for change in self.changes)]


def library_of(network: str) -> str | None:
    """The library that a backbone's name names."""
    return network.partition(":")[0] if is_library(network) else None


def build(library: str, encoder: LoadedEncoder) -> Building:
    """How the library builds the encoder, or Refused."""
    own = encoder.backbone.is_resnet
    if not own and library_of(encoder.backbone.name) != library:
        raise Refused(f"{encoder.title!r} is not a network of {library}")
    name = encoder.backbone.name if own else encoder.backbone.name.partition(":")[2]
    stem = _stem(library, encoder) if own else []
    backbone = without_whitening(encoder.network)
    wanted = {key: value.shape for key, value in backbone.state_dict().items()}
    for arguments in _arguments(library, encoder.train_size):
        network = _create(library, name, arguments)
        if network is None:
            continue
        changes = stem + (_without_classifier(network, backbone) if library == "torchvision" else [])
        for change in changes:
            setattr(network, change.layer, change.module)
        if {key: value.shape for key, value in network.state_dict().items()} == wanted:
            return Building(library, name, arguments, changes)
    raise Misfit(f"the encoder is not {library}'s {name!r} as it comes, but has other layers")


def _arguments(library: str, size: int) -> list[dict[str, Any]]:
    """What to try: some networks are built for pictures of one size, or have heads that only training uses."""
    if library == "torchvision":
        more: list[dict[str, Any]] = [{}, {"image_size": size}, {"input_size": (size, size)}]
        return [{"weights": None, **one} for one in (*more, {"aux_logits": False, "init_weights": False})]
    sized: list[dict[str, Any]] = [{"dynamic_img_size": True}, {"strict_img_size": False}, {}]
    return [*({"num_classes": 0, "img_size": size, **one} for one in sized), {"num_classes": 0}]


def _create(library: str, name: str, arguments: dict[str, Any]) -> nn.Module | None:
    create: Any = import_module(library)
    for part in CREATE[library].split("."):
        create = getattr(create, part)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = create(name, **arguments)
    except (TypeError, ValueError, RuntimeError):  # a name or an argument that it does not know
        return None
    return made if isinstance(made, nn.Module) else None


def _stem(library: str, encoder: LoadedEncoder) -> list[Change]:
    """The first layers of a ResNet for small pictures, which the library's begins differently with."""
    width, stem = encoder.backbone.width, encoder.backbone.stem
    if width != OWN_WIDTH:
        raise Refused(f"{library} builds a {encoder.backbone.name} of width {OWN_WIDTH} alone, not of width {width}")
    if stem == "standard":
        return []
    code = f"torch.nn.Conv2d(3, {width}, kernel_size=3, padding=1, bias=False)"
    first = Change("conv1", code, nn.Conv2d(3, width, kernel_size=3, padding=1, bias=False))
    return [first] if stem == "small-pool" else [first, _nothing("maxpool")]


def _without_classifier(network: nn.Module, encoder: nn.Module) -> list[Change]:
    """What of torchvision's head the encoder has: norms and pools before the first layer with classes."""
    changes = []
    name = next((name for name in CLASSIFIERS if hasattr(network, name)), None)
    if name is not None:
        head, kept = getattr(network, name), getattr(encoder, name, None)
        if isinstance(head, nn.Sequential) and isinstance(kept, nn.Sequential):
            changes.append(Change(name, f"encoder.{name}[:{len(kept)}]", head[: len(kept)]))
        elif isinstance(kept, nn.AdaptiveAvgPool2d):
            changes.append(_pool(name))
        else:
            changes.append(_nothing(name))
    pool = getattr(network, "avgpool", None)
    if isinstance(pool, nn.AdaptiveAvgPool2d) and pool.output_size not in (1, (1, 1)):
        changes.append(_pool("avgpool"))
    return changes


def _pool(layer: str) -> Change:
    return Change(layer, "torch.nn.AdaptiveAvgPool2d(1)", nn.AdaptiveAvgPool2d(1))


def _nothing(layer: str) -> Change:
    return Change(layer, "torch.nn.Identity()", nn.Identity())
