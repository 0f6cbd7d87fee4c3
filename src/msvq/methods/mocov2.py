"""MoCoV2: a query finds its own key among a queue of others'.

Paper: Improved Baselines with Momentum Contrastive Learning, arXiv 2003.04297.
"""

from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import BeforeValidator
from torch import Tensor

from msvq.methods.base import Batch, Count, Loss, Method, Momentum, SoftLabel, Temperature, swapped
from msvq.model.heads import ProjectorNorm, projector
from msvq.model.losses import info_nce, l2_normalize
from msvq.model.queue import Queue
from msvq.model.teacher import Backbone, Network, Teacher

# YAML reads a bare no as false.
Symmetric = Annotated[Literal["no", "mean", "sum"], BeforeValidator(lambda given: "no" if given is False else given)]


class Targets(NamedTuple):
    """The query's own key k [N, d], and the queue [Q, d] of negatives as it was."""

    k: Tensor
    keys: Tensor


class MoCoV2(Method):
    """One teacher, one queue, two strong views.

    `symmetric`: "no" is the paper's table; "mean" averages both directions and stores one view's keys (the MSVQ
    authors' benchmark); "sum" adds them and stores both (MoCo's CIFAR demo).
    """

    title: ClassVar[str] = "MoCoV2"
    paper: ClassVar[str] = "arXiv 2003.04297"

    def __init__(
        self,
        backbone: Backbone,
        *,
        temp: Temperature = 0.2,
        momentum: Momentum = 0.99,
        queue_size: Count = 4096,
        hidden_dim: Count = 2048,
        output_dim: Count = 128,
        projector_layers: Count = 2,
        projector_norm: ProjectorNorm = "none",
        bn_splits: Count = 8,
        shuffle: bool = True,
        symmetric: Symmetric = "no",
    ) -> None:
        super().__init__()
        head = projector(backbone.feature_dim, hidden_dim, output_dim, layers=projector_layers, norm=projector_norm)
        self.student = Network(backbone, head, bn_splits=bn_splits)
        self.teacher = Teacher(self.student, momentum=momentum, shuffle=shuffle)
        self.queue = Queue(queue_size, output_dim)
        self.temp, self.symmetric = temp, symmetric
        self.views = ("strong", "strong")

    def forward(self, batch: Batch) -> Loss:
        """One step, in one direction or both."""
        self.ema_update(batch)
        targets = self.targets(batch)
        loss = self.compare(self.student(batch.views[0]), targets)
        if self.symmetric == "no":
            self.store(targets, batch.labels)
            return loss
        other = swapped(batch)
        back = self.targets(other)
        total = loss.value + self.compare(self.student(other.views[0]), back).value
        self.store(targets, batch.labels)
        if self.symmetric == "mean":
            return loss._replace(value=total / 2)
        self.store(back, batch.labels)
        return loss._replace(value=total)

    def ema_update(self, batch: Batch) -> None:
        """The teacher follows the student."""
        self.teacher.ema_update(self.student)

    def targets(self, batch: Batch) -> Targets:
        """Keys of view 2."""
        return Targets(l2_normalize(self.teacher(batch.views[1])), self.queue.keys)

    def compare(self, z: Tensor, targets: Targets) -> Loss:
        """-log of the softmax weight of the own key against the queue."""
        soft_label = SoftLabel("view2", targets.k, targets.keys, self.queue.labels, self.temp)
        return Loss(info_nce(z, targets.k, targets.keys, temp=self.temp), soft_labels=(soft_label,))

    def store(self, targets: Targets, labels: Tensor) -> None:
        """The keys become negatives of the steps to come."""
        self.queue.push(targets.k, labels)
