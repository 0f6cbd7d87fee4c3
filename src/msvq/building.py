"""What complete settings describe, built: the untrained method and its views."""

import torch

from msvq.config import Settings
from msvq.data.augment import Augment
from msvq.data.store import DataSet
from msvq.methods import METHODS, Method
from msvq.model.backbones import make_backbone


def build_method(settings: Settings, size: int) -> Method:
    """The untrained method, the same for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.train.seed)
        backbone = make_backbone(settings.backbone, size)
        return METHODS[settings.method_name](backbone, **settings.method_options)


def make_augment(settings: Settings, data: DataSet) -> Augment:
    """The views that a method may ask for."""
    kinds = {kind: getattr(settings.augment, kind) for kind in type(settings.augment).model_fields}
    return Augment(kinds, size=data.size, mean=data.mean, std=data.std)
