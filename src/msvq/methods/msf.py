"""MSF: move towards the target and its nearest neighbours in the queue.

Paper: Mean Shift for Self-Supervised Learning, arXiv 2105.07269.
"""

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from msvq.core.errors import BadInput
from msvq.methods.base import Batch, Count, Loss, Momentum, TeacherMethod
from msvq.model.heads import ProjectorNorm, mlp, projector
from msvq.model.losses import l2_normalize, mean_shift
from msvq.model.queue import Queue, check_neighbours
from msvq.model.teacher import Backbone, Network, Teacher


class Targets(NamedTuple):
    """The target z' [N, d], and what the query moves to [N, k or k + 1, d]: the target and its neighbours."""

    z: Tensor
    neighbours: Tensor


class MSF(TeacherMethod):
    """One teacher, one queue, a predictor; a strong query and a weak target.

    Neighbours are searched before the batch is stored, and the target is added to them (the MSVQ authors' benchmark).
    `enqueue_first`: store first, so that the target is its own first neighbour (MSF's own code).
    """

    title: ClassVar[str] = "MSF"
    paper: ClassVar[str] = "arXiv 2105.07269"
    student_passes: ClassVar[int] = 2

    def __init__(
        self,
        backbone: Backbone,
        *,
        k: Count = 5,
        momentum: Momentum = 0.99,
        queue_size: Count = 4096,
        hidden_dim: Count = 2048,
        output_dim: Count = 128,
        projector_layers: Count = 2,
        projector_norm: ProjectorNorm = "hidden",
        bn_splits: Count = 8,
        shuffle: bool = True,
        symmetric: bool = True,
        enqueue_first: bool = False,
    ) -> None:
        super().__init__()
        check_neighbours(k, queue_size)
        if enqueue_first and symmetric:
            raise BadInput("method.enqueue_first has one direction; set method.symmetric=false too")
        head = projector(backbone.feature_dim, hidden_dim, output_dim, layers=projector_layers, norm=projector_norm)
        self.student = Network(backbone, head, bn_splits=bn_splits)
        self.predictor = mlp(output_dim, hidden_dim, output_dim, norm=True)
        self.teacher = Teacher(self.student, momentum=momentum, shuffle=shuffle)
        self.queue = Queue(queue_size, output_dim)
        self.k, self.symmetric, self.enqueue_first = k, symmetric, enqueue_first
        self.views = ("strong", "weak")

    def targets(self, batch: Batch) -> Targets:
        """The target of view 2 and its neighbours."""
        z = l2_normalize(self.teacher(batch.views[1]))
        if self.enqueue_first:
            self.queue.push(z, batch.labels, at_once=True)
            return Targets(z, self.queue.keys[self.queue.nearest(z, self.k)])
        neighbours = self.queue.keys[self.queue.nearest(z, self.k)]
        return Targets(z, torch.cat([z[:, None], neighbours], dim=1))

    def compare(self, z: Tensor, targets: Targets) -> Loss:
        """The mean squared distance of the prediction to all of them."""
        return Loss(mean_shift(self.predictor(z), targets.neighbours))

    def store(self, targets: Targets, labels: Tensor) -> None:
        """The targets become neighbours of the steps to come."""
        if not self.enqueue_first:
            self.queue.push(targets.z, labels)
