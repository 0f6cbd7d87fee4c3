"""Supervised: the same backbone and loop with labels, the upper row of the paper's table."""

from typing import ClassVar

import torch.nn.functional as F
from torch import nn

from msvq.core.errors import BadInput
from msvq.methods.base import Batch, Count, Loss, Method
from msvq.model.teacher import Backbone, Network


class Supervised(Method):
    """A linear classifier on the backbone, trained with it. `num_classes` comes from the data unless given."""

    title: ClassVar[str] = "Supervised"
    paper: ClassVar[str] = "-"
    needs_labels: ClassVar[bool] = True

    def __init__(self, backbone: Backbone, *, num_classes: Count | None = None, bn_splits: Count = 1) -> None:
        super().__init__()
        if num_classes is None:
            raise BadInput("supervised needs labels, and the data has none; choose another --method")
        head = nn.Linear(backbone.feature_dim, num_classes)
        self.student = Network(backbone, head, bn_splits=bn_splits)
        self.views = ("plain",)

    def forward(self, batch: Batch) -> Loss:
        """Cross entropy with the labels."""
        logits = self.student(batch.views[0]).float()
        accuracy = 100 * (logits.argmax(1) == batch.labels).float().mean()
        return Loss(F.cross_entropy(logits, batch.labels), {"train_top1": accuracy})
