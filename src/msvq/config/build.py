"""What complete settings describe, built: the untrained method and its views."""

from collections.abc import Mapping

import torch
from torch import Tensor

from msvq.config.settings import Settings
from msvq.core.errors import BadInput
from msvq.data.augment import Augment
from msvq.data.store import ImageDataset
from msvq.methods import METHODS, Method
from msvq.model.backbones import make_backbone
from msvq.model.initial import load_weights
from msvq.model.pooling import check_sizes
from msvq.model.whitening import without_whitening


def build_method(settings: Settings, size: int, start: Mapping[str, Tensor] | None = None) -> Method:
    """The untrained method, the same for the same seed. `start`: weights that its backbone starts from."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.train.seed)
        backbone = make_backbone(settings.backbone, size)
        if start is not None:
            try:
                load_weights(without_whitening(backbone), start)
            except RuntimeError:
                raise BadInput(f"the weights to start from are not of {settings.backbone.title}") from None
        if not settings.backbone.is_resnet:
            check_sizes(backbone, settings.backbone.name, _sizes(settings, size))
        return METHODS[settings.method_name](backbone, **settings.method_options)


def _sizes(settings: Settings, size: int) -> dict[int, str]:
    """Every size of pictures beside `data.size` that the network may get, with the setting that asks for it."""
    crops = {side: "train.resolution" for _, side in settings.train.resolution or []}
    sizes = dict(crops)
    for kind, view in settings.augment:
        for side in (size, *crops):
            sizes.setdefault(view.side(side), f"augment.{kind}.scale")
    sizes |= {} if settings.data.test_size is None else {settings.data.test_size: "data.test_size"}
    return {side: setting for side, setting in sizes.items() if side != size}


def make_augment(settings: Settings, data: ImageDataset) -> Augment:
    """The views that a method may ask for."""
    return Augment(dict(settings.augment), size=data.size, mean=data.mean, std=data.std)
