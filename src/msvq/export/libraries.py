"""How torchvision and timm build an encoder: which of their networks it is, and what is put into it."""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from torch import Tensor, nn

from msvq.export.network import LAYERS
from msvq.export.subject import Subject

OWN_WIDTH = 64  # the only one that both libraries build a ResNet of


class Refused(Exception):
    """A format cannot hold the encoder; the text is the reason, in words that a list of other formats can follow."""


@dataclass(frozen=True)
class Building:
    """A library's network that holds the encoder's weights, with some of its layers replaced."""

    library: str  # "torchvision" or "timm"
    name: str
    arguments: dict[str, Any]
    replaced: dict[str, nn.Module]  # by their paths in the network
    prefix: str  # of the encoder's names of weights, which the library does not know

    def lines(self) -> list[str]:
        """Python that builds it, without its weights, as `encoder`."""
        arguments = "".join(f", {key}={value!r}" for key, value in self.arguments.items())
        create = "timm.create_model" if self.library == "timm" else "torchvision.models.get_model"
        made = f"encoder = {create}({json.dumps(self.name)}{arguments})"
        return [made, *(f"{_place(path)} = {_code(module)}" for path, module in self.replaced.items())]

    def weights(self, encoder: nn.Module) -> dict[str, Tensor]:
        """The encoder's weights under the library's names."""
        return {name.removeprefix(self.prefix): value for name, value in encoder.state_dict().items()}


def build(library: str, subject: Subject) -> Building:
    """How the library builds the encoder, or Refused."""
    kind, _, name = subject.network.rpartition(":")
    if subject.network in LAYERS:
        return _fitted(subject, library, subject.network, _stem(library, subject))
    if kind != library:
        raise Refused(f"{subject.network!r} is not a network of {library}")
    return _fitted(subject, library, name, {})


def _stem(library: str, subject: Subject) -> dict[str, nn.Module]:
    """The layers of a ResNet of our own that the library's begins differently with."""
    width, stem = subject.backbone["width"], subject.backbone["stem"]
    if width != OWN_WIDTH:
        raise Refused(f"{library} builds a {subject.network} of width {OWN_WIDTH} alone, not of width {width}")
    if stem == "standard":
        return {}
    first: dict[str, nn.Module] = {"conv1": nn.Conv2d(3, width, 3, 1, 1, bias=False)}
    return first | ({} if stem == "small-pool" else {"maxpool": nn.Identity()})


def _fitted(subject: Subject, library: str, name: str, replaced: dict[str, nn.Module]) -> Building:
    shapes = {key: value.shape for key, value in subject.encoder.state_dict().items()}
    for arguments in _arguments(library, subject):
        network = _create(library, name, arguments)
        if network is None:
            continue
        for path, module in replaced.items():
            network.set_submodule(path, module)
        known = {key: value.shape for key, value in network.state_dict().items()}
        prefix = "" if shapes.keys() <= known.keys() else _common_prefix(shapes)
        own = {key.removeprefix(prefix): shape for key, shape in shapes.items()}
        head = _whole_module(network, known.keys() - own.keys())
        if all(known.get(key) == shape for key, shape in own.items()) and head is not None:
            left_out: dict[str, nn.Module] = {head: nn.Identity()} if head else {}
            return Building(library, name, arguments, replaced | left_out, prefix)
    raise Refused(f"the encoder is not {library}'s {name!r} as it comes: it has other layers")


def _arguments(library: str, subject: Subject) -> list[dict[str, Any]]:
    """What to try: some networks of timm are built for pictures of one size."""
    if library == "torchvision":
        return [{"weights": None}]
    return [{"num_classes": 0}, {"num_classes": 0, "img_size": subject.size}]


def _create(library: str, name: str, arguments: dict[str, Any]) -> nn.Module | None:
    create: Callable[..., nn.Module] = (
        import_module("timm").create_model if library == "timm" else import_module("torchvision.models").get_model
    )
    try:
        return create(name, **arguments)
    except (TypeError, ValueError, RuntimeError):  # a name or an argument that it does not know
        return None


def _common_prefix(names: Iterable[str]) -> str:
    """The first part of all names, such as "network.", where it is the same."""
    first = {name.partition(".")[0] for name in names}
    return f"{first.pop()}." if len(first) == 1 else ""


def _whole_module(network: nn.Module, names: set[str]) -> str | None:
    """The path of the module whose weights are exactly these: a classifier. "" without any, None if there is none."""
    if not names:
        return ""
    found = (
        path
        for path, module in network.named_modules()
        if path and {f"{path}.{name}" for name in module.state_dict()} == names
    )
    return next(found, None)


def _place(path: str) -> str:
    return "encoder" + re.sub(r"\.(\d+)", r"[\1]", f".{path}")


def _code(module: nn.Module) -> str:
    if isinstance(module, nn.Conv2d):
        numbers = (module.in_channels, module.out_channels, module.kernel_size[0], module.stride[0])
        return f"torch.nn.Conv2d({', '.join(map(str, numbers))}, {module.padding[0]}, bias=False)"
    return "torch.nn.Identity()"
