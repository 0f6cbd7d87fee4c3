"""Networks of torchvision and timm, untrained and without their classifiers: `torchvision:NAME`, `timm:NAME`.

Their parameters keep the library's names, behind `network.` where `msvq.model.pooling` averages maps, so that an
encoder loads into the library's own network.
"""

import importlib
import logging
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, cast

from torch import Tensor, nn

from msvq.core.errors import BadInput, first_line, unknown

LIBRARIES = ("torchvision", "timm")
RANDOM = "@random"  # behind a network as an encoder: without the weights that it was trained to
INCEPTION = ("googlenet", "inception_v3")
OLD_NAMES = {  # of torchvision's files, as patterns, and what took their place
    r"(denselayer\d+\.(?:norm|conv))\.([12])\.": r"\1\2.",
    r"\.mlp\.linear_1\.": ".mlp.0.",
    r"\.mlp\.linear_2\.": ".mlp.3.",
}
CLASSIFIERS = ("fc", "classifier", "heads", "head")  # what torchvision calls them


def is_library(name: str) -> bool:
    """Whether a backbone is one of a library."""
    return name.startswith(tuple(f"{library}:" for library in LIBRARIES))


def make_library(name: str, size: int) -> nn.Module:
    """An untrained network for pictures of `size` pixels: features [N, d], or maps [N, d, h, w]."""
    library, _, model = name.partition(":")
    try:
        return _torchvision(model, size) if library == "torchvision" else _timm(model, size, pretrained=False)
    except Exception as error:  # each network has its own ways to say what it cannot do
        raise BadInput(
            f"backbone {name} cannot be built for pictures of {size} pixels ({first_line(error, 200)})"
        ) from error


def check_library(name: str) -> None:
    """Raise if the library is not there or has no such network."""
    library, _, model = name.partition(":")
    if library == "timm":
        try:
            importlib.import_module("timm")
        except ImportError:
            raise BadInput(f"backbone {name} needs timm; pip install 'msvq[timm]' gives it") from None
    if model.partition(".")[0] not in library_names(library):
        raise unknown_backbone(name)


def unknown_backbone(name: str, own: Iterable[str] = ()) -> BadInput:
    """The error for a backbone that does not exist, with the nearest one that does; `own`: those of this package."""
    asked, _, plain = name.rpartition(":")
    full = {model: f"{library}:{model}" for library in reversed(LIBRARIES) for model in library_names(library)}
    if asked in LIBRARIES:
        full = {model: f"{asked}:{model}" for model in library_names(asked)}
    full |= {model: model for model in own}
    near = get_close_matches(plain.lower(), full, n=1, cutoff=0.5)
    hint = f"did you mean {full[near[0]]!r}? " if near else ""
    return BadInput(
        f"unknown backbone {name!r}; {hint}it is one of resnet8, 14, 18, 34 and 50, torchvision:NAME, timm:NAME, "
        f"or path/to/file.py:function"
    )


def library_names(library: str) -> list[str]:
    """The networks that a library has; none if it is not installed."""
    if library == "torchvision":
        from torchvision import models

        return list(models.list_models(module=models))
    try:
        return cast(list[str], importlib.import_module("timm").list_models())
    except ImportError:
        return []


def library_weights(name: str, size: int) -> dict[str, Tensor]:
    """The library's own trained weights, fetched from the network or from its cache; a resnet's are torchvision's."""
    library, _, model = name.rpartition(":")
    silence_hub()
    try:
        if library == "timm":
            known = importlib.import_module("timm").get_pretrained_cfg(model)
            if known is not None and not known.has_weights:
                raise BadInput(f"timm publishes no weights of {model}; {name}{RANDOM} is the network without any")
            return cast(dict[str, Tensor], _timm(model, size, pretrained=True).state_dict())
        from torchvision import models

        weights = cast(Any, models.get_model_weights(model)).DEFAULT
        found = weights.get_state_dict(progress=False, check_hash=True, weights_only=True)
        return {_name_of_today(name): value for name, value in found.items()}
    except BadInput:
        raise
    except Exception as error:  # of the network, or of the hub's library
        raise BadInput(
            f"the trained weights of {name} could not be had ({first_sentence(error)}); the network is needed once "
            f"to fetch them; without it, give a file of weights"
        ) from error


def _name_of_today(name: str) -> str:
    """What torchvision calls a weight now; DenseNets and ViTs are published under earlier names."""
    for before, now in OLD_NAMES.items():
        name = re.sub(before, now, name)
    return name


def first_sentence(error: Exception) -> str:
    """Of what the hub's library says, which goes on and on."""
    return first_line(error).partition(". ")[0][:200]


def silence_hub() -> None:
    """Keep the hub's library from telling of each attempt to reach a network that is not there."""
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)


def library_input(name: str) -> dict[str, Any]:
    """How the library feeds its network: the fields of `Preprocessing`."""
    library, _, model = name.partition(":")
    if library == "timm":
        timm = importlib.import_module("timm")
        try:
            known = timm.get_pretrained_cfg(model, allow_unregistered=False)
        except RuntimeError:  # what stands behind the dot
            plain = model.partition(".")[0]
            raise unknown("weights of timm", model, timm.list_pretrained(f"{plain}.*") or [plain]) from None
        return timm_input(known.to_dict())
    from torchvision import models

    weights = cast(Any, models.get_model_weights(model)).DEFAULT
    how = weights.transforms()
    sizes = {"size": how.crop_size[0], "resize": how.resize_size[0], "interpolation": how.interpolation.value}
    if model in INCEPTION:  # which make this of torchvision's normalisation themselves, where it builds them
        return {**sizes, "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
    return {**sizes, "mean": tuple(how.mean), "std": tuple(how.std)}


def timm_input(known: Mapping[str, Any]) -> dict[str, Any]:
    """The same by a `pretrained_cfg`; where timm would pad, which it does for a few networks, the centre is taken."""
    size = int(known["input_size"][1])
    return {
        "size": size,
        "resize": max(size, int(size / float(known.get("crop_pct") or 0.875))),
        "interpolation": known.get("interpolation") or "bicubic",
        "squash": known.get("crop_mode") == "squash",
        "mean": known["mean"],
        "std": known["std"],
    }


def _torchvision(model: str, size: int) -> nn.Module:
    from torchvision import models

    options: dict[str, Any] = {}
    if model.startswith("vit_"):
        options = {"image_size": size}
    elif model.startswith("maxvit"):
        options = {"input_size": (size, size)}
    elif model in INCEPTION:
        options = {"aux_logits": False, "init_weights": True}
    network: nn.Module = models.get_model(model, weights=None, **options)
    name = next(name for name in CLASSIFIERS if hasattr(network, name))
    setattr(network, name, _without_classes(getattr(network, name)))
    if isinstance(getattr(network, "avgpool", None), nn.AdaptiveAvgPool2d):  # VGG's and AlexNet's leave a map
        network.avgpool = nn.AdaptiveAvgPool2d(1)
    return network


def _without_classes(head: nn.Module) -> nn.Module:
    """What of a head makes features: its norms and pools up to the first layer with classes or hidden units."""
    kept = []
    for layer in head.children() if isinstance(head, nn.Sequential) else [head]:
        if isinstance(layer, nn.Conv2d):  # SqueezeNet's, which comes before the pool
            return nn.AdaptiveAvgPool2d(1)
        if isinstance(layer, nn.Linear):
            break
        if not isinstance(layer, nn.Dropout):
            kept.append(layer)
    return nn.Sequential(*kept)


def _timm(model: str, size: int, *, pretrained: bool) -> nn.Module:
    timm = importlib.import_module("timm")
    # Transformers are made for one size; of those that can, positions are interpolated where pictures have another.
    ways: tuple[dict[str, Any], ...] = (
        {"img_size": size, "dynamic_img_size": True},
        {"img_size": size, "strict_img_size": False},
        {"img_size": size},
    )
    for options in ways:
        try:
            return cast(nn.Module, timm.create_model(model, pretrained=pretrained, num_classes=0, **options))
        except TypeError:  # it does not know such an option
            continue
    return cast(nn.Module, timm.create_model(model, pretrained=pretrained, num_classes=0))
