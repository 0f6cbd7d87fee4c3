"""Weights of a file: which network they are of, and what of them fits one, under whatever names it has there."""

import argparse
import pickle
import re
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from msvq.core.errors import BadInput
from msvq.core.user_code import is_user_code
from msvq.model.backbones import RESNETS, BackboneSettings, check_backbone, make_backbone, register_backbone
from msvq.model.resnet import Stem

HEADS = {"fc", "classifier", "head", "heads", "projector", "projection", "predictor", "mlp_head", "linear"}
# Slow copies: what has learned itself goes before. The last three are of the MSVQ authors' code.
TEACHERS = ("encoder_k", "teacher", "momentum", "target", "ema", "encoder_p", "f_t1", "f_t2")
COUNTERS = ("num_batches_tracked", "total_ops", "total_params")  # of batch norm and of thop; a file may lack them
INNER = "network."  # where the weights of a pooled network are
SHOWN = 3  # names in a sentence
MAX_DEPTH = 6  # dictionaries within dictionaries

# Other names for a ResNet's parts: the children of torchvision's in an nn.Sequential, where a ReLU is 2. So have it
# MSVQ and MNN of its authors and their benchmark (net.net.*), mix-bt and Barlow-Twins-HSIC (f.*).
_STEM = {"conv1": "0", "bn1": "1"}
LAYOUTS: dict[str, dict[str, str]] = {
    "": {},
    "torchvision's children in a row, without a max-pool": _STEM | {f"layer{n}": f"{n + 2}" for n in range(1, 5)},
    "torchvision's children in a row, with a max-pool": _STEM | {f"layer{n}": f"{n + 3}" for n in range(1, 5)},
}


class MatchedWeights(NamedTuple):
    """What of a file becomes a network's weights."""

    weights: dict[str, Tensor]  # by the network's own names, all of them
    prefix: str  # what they are called by in the file, before their own names
    layout: str  # of LAYOUTS: what the file has in place of those names
    left_out: list[str]  # of the same network in the file, such as its classifier, without the prefix
    elsewhere: int  # further tensors of the file


def load_weights(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """All of a module's weights into it, with the versions of its layers, which some networks ask for."""
    state: Any = OrderedDict(weights)
    state._metadata = getattr(module.state_dict(), "_metadata", {})
    module.load_state_dict(state)


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a file (.safetensors, or of torch.save), by their path in it. Nothing in it is run."""
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with torch.serialization.safe_globals([argparse.Namespace]):  # many keep their flags beside the weights
            return dict(_tensors(torch.load(path, map_location="cpu", weights_only=True)))
    except pickle.UnpicklingError as error:
        raise BadInput(
            f"{str(path)!r} is no file of weights, or holds Python objects beside them, which could run code and are "
            f"not loaded; save its state dict alone, where you trust it: torch.save(model.state_dict(), 'weights.pth')"
        ) from error
    except (MemoryError, PermissionError):  # which say nothing about the file's content
        raise
    except Exception as error:  # readers of damaged files fail in every way there is
        raise BadInput(f"{str(path)!r} is damaged, or no file of weights (.safetensors, .pth, .pt)") from error


def _tensors(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    """The tensors in nested dictionaries, with dots between the keys."""
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, Mapping) and depth < MAX_DEPTH:
        for key, inner in value.items():
            yield from _tensors(inner, f"{path}.{key}" if path else str(key), depth + 1)


class Misfit(BadInput):
    """Weights that are not of the network."""

    def __init__(self, source: str, nearest: str, way_out: str, num_wrong: int) -> None:
        super().__init__(f"{source} does not fit the backbone: {nearest}{way_out}")
        self.nearest, self.num_wrong = nearest, num_wrong


def match_state_dict(own: Mapping[str, Tensor], found: Mapping[str, Tensor], source: str) -> MatchedWeights:
    """The weights for a network whose state is `own`; raise if any is missing, has another shape or has no place."""
    inner = INNER if all(name.startswith(INNER) for name in own) else ""
    wanted = {name.removeprefix(inner): value for name, value in own.items()}
    layout, prefix, _ = max((_fit(wanted, found, layout) for layout in LAYOUTS), key=lambda fit: fit.matched)
    own_names = {theirs: ours for ours, theirs in LAYOUTS[layout].items()}
    theirs = {
        _renamed(name.removeprefix(prefix), own_names): value
        for name, value in found.items()
        if name.startswith(prefix)
    }
    missing = [name for name in wanted if name not in theirs and not name.endswith(COUNTERS)]
    wrong = [name for name in wanted if name in theirs and theirs[name].shape != wanted[name].shape]
    tops = {name.partition(".")[0] for name in wanted}
    left_out = [name for name in theirs if name not in wanted and not name.endswith(COUNTERS)]
    strange = [name for name in left_out if name.partition(".")[0] in tops and not HEADS & set(name.split("."))]
    problems = [
        (wrong, "other shapes", [f"{n} is {list(theirs[n].shape)}, not {list(wanted[n].shape)}" for n in wrong]),
        (missing, "missing", missing),
        (strange, "without a place", strange),
    ]
    if wrong or missing or strange:
        told = "; ".join(f"{what}: {_few(names)}" for bad, what, names in problems if bad)
        num = sum(name in theirs for name in wanted) - len(wrong)
        nearest = f"the nearest fit is {num} of {len(wanted)} tensors{named_there(prefix, layout)}"
        raise Misfit(source, f"{nearest}; {told}", _way_out(wrong + missing, theirs), len(wrong + missing + strange))
    weights = {f"{inner}{name}": theirs.get(name, value) for name, value in wanted.items()}
    return MatchedWeights(weights, prefix, layout, left_out, len(found) - len(theirs))


def named_there(prefix: str, layout: str) -> str:
    """What the weights are called in the file, for a sentence; nothing where they have the network's own names."""
    named = f", called {prefix}* there" if prefix else ""
    return f"{named} ({layout})" if layout else named


def _renamed(name: str, tops: Mapping[str, str]) -> str:
    top, dot, rest = name.partition(".")
    return tops.get(top, top) + dot + rest


class _Fit(NamedTuple):
    layout: str
    prefix: str
    matched: int


def _fit(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor], layout: str) -> _Fit:
    """What the names in a file begin with, for most of the wanted ones; the first of several, a teacher's last."""
    wanted = {_renamed(name, LAYOUTS[layout]): value for name, value in wanted.items()}
    matched: Counter[str] = Counter()
    for name, value in found.items():
        parts = name.split(".")
        for start in range(len(parts)):
            rest = ".".join(parts[start:])
            if rest in wanted:
                same = value.shape == wanted[rest].shape
                matched[name[: len(name) - len(rest)]] += 2 if same else 1
    most = max(matched.values(), default=0)
    best = [prefix for prefix, count in matched.items() if count == most] or [""]
    return _Fit(layout, min(best, key=lambda prefix: any(word in prefix for word in TEACHERS)), most)


def _few(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _way_out(unfit: list[str], theirs: Mapping[str, Tensor]) -> str:
    if unfit == ["conv1.weight"]:  # of a ResNet, and all else fits
        stem = "standard" if theirs["conv1.weight"].shape[-1] == 7 else "small (or small-pool)"
        return f"; --set backbone.stem={stem} gives it such a first layer"
    return "; give weights of the same network, or another --backbone"


# --- which network they are of


def named_backbone(name: str, found: Mapping[str, Tensor]) -> BackboneSettings:
    """The network of a name, of which the weights tell width and stem. Code of one's own is run to have it."""
    if is_user_code(name):
        register_backbone(name)
    settings = BackboneSettings(name=name, whiten=_is_whitened(found))
    if settings.is_resnet:
        settings = settings.model_copy(update=_resnet_shape(found))
    check_backbone(settings)
    return settings


def _resnet_shape(found: Mapping[str, Tensor]) -> dict[str, object]:
    """Width, stem and whitening, by the first convolution that takes pictures and the names of other weights."""
    first = next((value for value in found.values() if value.ndim == 4 and value.shape[1] == 3), None)
    if first is None:
        return {"stem": "standard"}
    # Layers that are numbered rather than named tell of a max-pool, which has no weights but takes a number.
    numbers = {int(match[1]) for name in found if (match := re.search(r"(?:^|\.)(\d)\.0\.conv1\.weight$", name))}
    small: Stem = "small-pool" if numbers and min(numbers) == 4 else "small"
    stem = "standard" if first.shape[-1] == 7 else small
    return {"width": first.shape[0], "stem": stem, "whiten": _is_whitened(found)}


def _is_whitened(found: Mapping[str, Tensor]) -> bool:
    return any(name.endswith("whitening.weight") for name in found)


def guess_resnet(path: str, found: Mapping[str, Tensor]) -> BackboneSettings:
    """Which of our ResNets, which are torchvision's too, the weights are of."""
    fitting: dict[int, BackboneSettings] = {}
    misfits: dict[int, str] = {}
    for name in RESNETS:
        settings = BackboneSettings(name=name).model_copy(update=_resnet_shape(found))
        with torch.device("meta"):
            own = make_backbone(settings, 224).state_dict()
        try:
            match_state_dict(own, found, path)
            fitting[len(own)] = settings
        except Misfit as error:
            misfits[error.num_wrong] = f"{name}: {error.nearest}"
    if fitting:
        return fitting[max(fitting)]  # of a small one, a larger one's file may have all and more
    raise BadInput(
        f"{path!r} is of none of {', '.join(RESNETS)}, and does not tell of which network; name it with "
        f"--backbone, such as --backbone timm:NAME; the nearest of them is {misfits[min(misfits)]}"
    )
