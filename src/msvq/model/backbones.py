"""Which network: a ResNet of this package, one of torchvision or timm, or code of one's own."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge
from torch import nn

from msvq.core.errors import BadInput, unknown
from msvq.core.schema import Section
from msvq.core.user_code import failure, is_user_code, must_be_named_explicitly, run_file
from msvq.model.libraries import RANDOM, check_library, is_library, make_library, unknown_backbone
from msvq.model.pooling import Encoder, as_encoder
from msvq.model.resnet import BasicBlock, Block, Bottleneck, ResNet, Stem, resolve_stem
from msvq.model.whitening import Whitened

RESNETS: dict[str, tuple[type[Block], tuple[int, ...]]] = {
    "resnet8": (BasicBlock, (0, 1, 1, 1)),  # ours, for minutes on a processor: no block at full resolution
    "resnet14": (BasicBlock, (0, 2, 2, 2)),
    "resnet18": (BasicBlock, (2, 2, 2, 2)),
    "resnet34": (BasicBlock, (3, 4, 6, 3)),
    "resnet50": (Bottleneck, (3, 4, 6, 3)),
}
LIBRARY = "library"  # as `init`: the weights that torchvision or timm have trained
_code: dict[str, Callable[..., Any]] = {}  # functions in files that a person has named


class BackboneSettings(Section):
    """Which network, and what it starts from.

    `width`: channels of a ResNet's first stage; 64 is the standard one. `stem`: a ResNet's first layers. `init`:
    weights to start training from (a file, a run, or "library"); make_backbone does not look at it. `whiten`: the
    encoder ends in a layer that whitens its features, fitted to training pictures.
    """

    name: str = "resnet18"
    width: Annotated[int, Ge(1)] = 64
    stem: Stem = "auto"
    init: str | None = None
    whiten: bool = False  # whether the encoder ends in a layer that whitens its features

    @property
    def is_resnet(self) -> bool:
        """Whether width and stem mean something."""
        return self.name in RESNETS

    @property
    def starts_trained(self) -> bool:
        """Whether it starts from weights that know something."""
        return self.init is not None and not self.init.endswith(RANDOM)

    @property
    def title(self) -> str:
        """As a person calls it."""
        return f"{self.name} width {self.width}" if self.is_resnet else self.name

    def for_size(self, size: int) -> "BackboneSettings":
        """With a stem that no longer depends on the size of the pictures."""
        return self.model_copy(update={"stem": resolve_stem(self.stem, size)}) if self.is_resnet else self


def check_backbone(settings: BackboneSettings) -> None:
    """Raise if there is no such backbone, it is code that nobody named, or it has settings that mean nothing to it."""
    if is_user_code(settings.name):
        if settings.name not in _code:
            raise must_be_named_explicitly("backbone", settings.name)
    elif is_library(settings.name):
        check_library(settings.name)
    elif not settings.is_resnet:
        raise unknown_backbone(settings.name, RESNETS)
    for key in ("width", "stem"):
        if not settings.is_resnet and getattr(settings, key) != getattr(BackboneSettings(), key):
            raise BadInput(f"backbone.{key} is for {', '.join(RESNETS)}; {settings.name} has none, leave it out")


def register_backbone(name: str) -> None:
    """Run the file of `file.py:function` and remember the function.

    This executes the file, so call it only with what a person typed, never with what a recipe or a run contains.
    """
    module, wanted = run_file(name, "backbone")
    here = {key: value for key, value in vars(module).items() if callable(value) and not key.startswith("_")}
    if wanted not in here:
        own = [key for key, value in here.items() if getattr(value, "__module__", "") == module.__name__]
        raise unknown(f"function in {module.__file__}", wanted, own)
    _code[name] = here[wanted]


def make_backbone(settings: BackboneSettings, size: int) -> Encoder:
    """The untrained backbone that the settings name, for training pictures of `size` pixels."""
    check_backbone(settings)
    if settings.is_resnet:
        block, blocks = RESNETS[settings.name]
        made: Encoder = ResNet(blocks, block=block, width=settings.width, stem=resolve_stem(settings.stem, size))
    else:
        own = make_library(settings.name, size) if is_library(settings.name) else _from_code(settings.name, size)
        made = as_encoder(own, settings.name, size)
    return Whitened(made) if settings.whiten else made


def _from_code(name: str, size: int) -> nn.Module:
    """What the function of a file returns; it is told the size of the pictures if it has a keyword for it."""
    function = _code[name]
    try:
        takes_size = "size" in inspect.signature(function).parameters
        made = function(size=size) if takes_size else function()
    except Exception as error:
        file = Path(name.rpartition(":")[0])
        raise BadInput(f"backbone {name} failed: {failure(error, file)}") from error
    if not isinstance(made, nn.Module):
        raise BadInput(f"backbone {name} returned a {type(made).__name__}; it has to return a torch.nn.Module")
    return made
