"""The copy of a method that looks at soft labels after training."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from msvq.data.augment import STRONG, WEAK, Augment
from msvq.data.loader import Loader
from msvq.data.patterns import make_patterns
from msvq.data.store import ImageSplit
from msvq.evaluate.diagnostics.gallery import FrozenReplay
from msvq.methods import METHODS


def test_places_are_the_pictures_in_the_queue_and_teachers_stay(tiny: Callable[..., Any]) -> None:
    images, _ = make_patterns(64, seed=0)
    pictures = ImageSplit(images, np.arange(64))  # a picture's label is its number: what the queue notes of each key
    loader = Loader(pictures, batch_size=16, seed=0, device=torch.device("cpu"))
    augment = Augment({"strong": STRONG, "weak": WEAK}, size=16, mean=(0.5,) * 3, std=(0.25,) * 3)
    method = tiny(METHODS["msvq"], bn_splits=2)
    with torch.no_grad():
        for parameter in method.student.parameters():
            parameter.add_(0.01)  # the teachers are elsewhere
    gaze = FrozenReplay(method, loader, augment, "fp32")
    for number, (soft_labels, _, _) in zip(range(6), gaze.batches(), strict=False):
        if number >= 2:  # the queue of 32 is refilled
            assert all(torch.equal(gaze.places, soft_label.labels) for soft_label in soft_labels)
    before, kept = method.teachers.state_dict(), gaze.method.get_submodule("teachers").state_dict()
    weights = [name for name, _ in method.teachers.named_parameters()]
    assert all(torch.equal(kept[name], before[name]) for name in weights)
