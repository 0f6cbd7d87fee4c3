"""MNN: move towards the target and towards mixtures of it with its nearest neighbours in the queue.

Paper: MNN: Mixed Nearest-Neighbors for Self-Supervised Learning, arXiv 2311.00562.
"""

from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from msvq.core.runtime import RandomState
from msvq.methods.base import Batch, Count, Loss, Momentum, Share, TeacherMethod
from msvq.model.heads import ProjectorNorm, mlp, projector
from msvq.model.losses import l2_normalize, mean_shift, negative_cosine
from msvq.model.queue import Queue, check_neighbours
from msvq.model.teacher import Backbone, Network, Teacher


class Targets(NamedTuple):
    """The teacher's embedding z [N, d], of any length, and its mixtures m [N, k, d] with its neighbours."""

    z: Tensor
    mixtures: Tensor


class MNN(TeacherMethod):
    """One teacher, one queue, a predictor; a strong query and a weak target. By the authors of MSVQ, after it.

    A step has one λ, from U(0, 1) unless `neighbour_share` says which; the mixtures m_j = λ n̂_j + (1 - λ) ẑ are shorter
    than 1, the more so the less alike the two are. `renormalise`: they are mixed at the lengths that the teacher gave
    them, and then made unit vectors.
    """

    title: ClassVar[str] = "MNN"
    paper: ClassVar[str] = "arXiv 2311.00562"
    student_passes: ClassVar[int] = 2

    def __init__(
        self,
        backbone: Backbone,
        *,
        k: Count = 5,
        neighbour_share: Share | None = None,
        renormalise: bool = False,
        momentum: Momentum = 0.99,
        queue_size: Count = 4096,
        hidden_dim: Count = 2048,
        output_dim: Count = 128,
        projector_layers: Count = 2,
        projector_norm: ProjectorNorm = "hidden",
        bn_splits: Count = 8,
        shuffle: bool = True,
        symmetric: bool = True,
    ) -> None:
        super().__init__()
        check_neighbours(k, queue_size)
        head = projector(backbone.feature_dim, hidden_dim, output_dim, layers=projector_layers, norm=projector_norm)
        self.student = Network(backbone, head, bn_splits=bn_splits)
        self.predictor = mlp(output_dim, hidden_dim, output_dim, norm=True)
        self.teacher = Teacher(self.student, momentum=momentum, shuffle=shuffle)
        self.queue = Queue(queue_size, output_dim, with_lengths=renormalise)
        self.random = RandomState()
        self.k, self.neighbour_share, self.symmetric = k, neighbour_share, symmetric
        self.share = neighbour_share or 0.0  # λ of this step
        self.views = ("strong", "weak")

    def ema_update(self, batch: Batch) -> None:
        """The teacher follows the student, and λ is drawn: once a step, for both directions."""
        super().ema_update(batch)
        if not self.teacher.frozen:  # which it is after the first part of a batch
            self.share = self.random.uniform() if self.neighbour_share is None else self.neighbour_share

    def targets(self, batch: Batch) -> Targets:
        """z of view 2, and what it is mixed to with its neighbours of the steps before."""
        z = self.teacher(batch.views[1]).to(self.queue.keys.dtype)
        slots = self.queue.nearest(z, self.k)
        neighbours = self.queue.keys[slots]
        if self.queue.lengths is None:
            return Targets(z, torch.lerp(l2_normalize(z)[:, None], neighbours, self.share))
        neighbours = neighbours * self.queue.lengths[slots][..., None]
        return Targets(z, F.normalize(torch.lerp(z[:, None], neighbours, self.share), dim=2))

    def compare(self, z: Tensor, targets: Targets) -> Loss:
        """(2 - 2 p̂·ẑ) + 1/k Σ_j (2 - 2 p̂·m_j)."""
        p = self.predictor(z)
        return Loss(2 + 2 * negative_cosine(p, targets.z) + mean_shift(p, targets.mixtures))

    def store(self, targets: Targets, labels: Tensor) -> None:
        """The embeddings become neighbours of the steps to come."""
        self.queue.push(targets.z, labels)
