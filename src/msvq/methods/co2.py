"""CO2: MoCo, and query and key shall find the negatives alike.

Paper: CO2: Consistent Contrast for Unsupervised Visual Representation Learning, arXiv 2010.02217.
"""

from typing import Annotated, ClassVar, NamedTuple

import torch
from annotated_types import Ge
from torch import Tensor

from msvq.methods.base import Batch, Count, Loss, Momentum, SoftLabel, TeacherMethod, Temperature
from msvq.model.heads import ProjectorNorm, projector
from msvq.model.losses import info_nce, l2_normalize, similarity
from msvq.model.queue import Queue
from msvq.model.relations import by_rows
from msvq.model.teacher import Backbone, Network, Teacher


class Targets(NamedTuple):
    """The query's own key k [N, d], and the queue [Q, d] of negatives as it was."""

    k: Tensor
    keys: Tensor


class CO2(TeacherMethod):
    """One teacher, one queue, two strong views. `alpha` weighs the consistency term."""

    title: ClassVar[str] = "CO2"
    paper: ClassVar[str] = "arXiv 2010.02217"

    def __init__(
        self,
        backbone: Backbone,
        *,
        temp: Temperature = 0.2,
        alpha: Annotated[float, Ge(0)] = 0.3,
        consistency_temp: Temperature = 0.05,
        momentum: Momentum = 0.99,
        queue_size: Count = 4096,
        hidden_dim: Count = 2048,
        output_dim: Count = 128,
        projector_layers: Count = 2,
        projector_norm: ProjectorNorm = "none",
        bn_splits: Count = 8,
        shuffle: bool = True,
    ) -> None:
        super().__init__()
        head = projector(backbone.feature_dim, hidden_dim, output_dim, layers=projector_layers, norm=projector_norm)
        self.student = Network(backbone, head, bn_splits=bn_splits)
        self.teacher = Teacher(self.student, momentum=momentum, shuffle=shuffle)
        self.queue = Queue(queue_size, output_dim)
        self.temp, self.alpha, self.consistency_temp = temp, alpha, consistency_temp
        self.views = ("strong", "strong")

    def targets(self, batch: Batch) -> Targets:
        """Keys of view 2."""
        return Targets(l2_normalize(self.teacher(batch.views[1])), self.queue.keys)

    def compare(self, z: Tensor, targets: Targets) -> Loss:
        """L_MoCo + α/2 [KL(R_k || R_q) + KL(R_q || R_k)], R over the negatives only; gradient through q alone."""
        k, keys = targets
        consistency = by_rows(self._symmetric_kl, keys, l2_normalize(z), k) / len(z)
        contrast = info_nce(z, k, keys, temp=self.temp)
        soft_label = SoftLabel("view2", k, keys, self.queue.labels, self.consistency_temp)
        logs = {"consistency": consistency.detach() / 2}
        return Loss(contrast + self.alpha * consistency / 2, logs, (soft_label,))

    def _symmetric_kl(self, q: Tensor, k: Tensor, keys: Tensor) -> Tensor:
        """KL(R_k || R_q) + KL(R_q || R_k) = Σ (R_k - R_q) (log R_k - log R_q), added over unit q, k [n, d]."""
        log_q = torch.log_softmax(similarity(q, keys) / self.consistency_temp, dim=1)
        log_k = torch.log_softmax(similarity(k, keys) / self.consistency_temp, dim=1)
        return ((log_k.exp() - log_q.exp()) * (log_k - log_q)).sum()

    def store(self, targets: Targets, labels: Tensor) -> None:
        """The keys become negatives of the steps to come."""
        self.queue.push(targets.k, labels)
