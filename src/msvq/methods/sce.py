"""SCE: one part own key, one part the key's relations to the queue.

Paper: Similarity Contrastive Estimation for Self-Supervised Soft Contrastive Learning, arXiv 2111.14585.
"""

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from msvq.methods.base import Batch, Count, Loss, Momentum, Share, SoftLabel, TeacherMethod, Temperature
from msvq.model.heads import ProjectorNorm, projector
from msvq.model.losses import l2_normalize
from msvq.model.queue import Queue
from msvq.model.relations import Relation, relation
from msvq.model.teacher import Backbone, Network, Teacher


class Targets(NamedTuple):
    """The label w over the own key and the queue, in two pieces."""

    k: Tensor  # unit keys [N, d]
    keys: Tensor  # the queue [Q, d] as it was
    own: Tensor  # [N], the own key's weight
    s: Relation  # how the rest is spread over the queue


class SCE(TeacherMethod):
    """One teacher, one queue; a strong query and a weak key.

    `coefficient` is the paper's λ, the share of the own key. `mask_own_key`: the relations cover the queue alone, as
    in the paper; off, the key itself takes part with similarity 0, as in the authors' code. `projector_norm` is that of
    the authors' CIFAR configuration.
    """

    title: ClassVar[str] = "SCE"
    paper: ClassVar[str] = "arXiv 2111.14585"
    student_passes: ClassVar[int] = 2

    def __init__(
        self,
        backbone: Backbone,
        *,
        temp: Temperature = 0.1,
        teacher_temp: Temperature = 0.05,
        coefficient: Share = 0.5,
        mask_own_key: bool = True,
        momentum: Momentum = 0.99,
        queue_size: Count = 4096,
        hidden_dim: Count = 512,
        output_dim: Count = 128,
        projector_layers: Count = 2,
        projector_norm: ProjectorNorm = "hidden",
        bn_splits: Count = 8,
        shuffle: bool = True,
        symmetric: bool = True,
    ) -> None:
        super().__init__()
        head = projector(backbone.feature_dim, hidden_dim, output_dim, layers=projector_layers, norm=projector_norm)
        self.student = Network(backbone, head, bn_splits=bn_splits)
        self.teacher = Teacher(self.student, momentum=momentum, shuffle=shuffle)
        self.queue = Queue(queue_size, output_dim)
        self.temp, self.teacher_temp, self.coefficient = temp, teacher_temp, coefficient
        self.mask_own_key, self.symmetric = mask_own_key, symmetric
        self.views = ("strong", "weak")

    def targets(self, batch: Batch) -> Targets:
        """w = λ · (own key) + (1 - λ) · s, with s the key's relations to the queue."""
        k, keys = l2_normalize(self.teacher(batch.views[1])), self.queue.keys
        s = relation(k, keys, self.teacher_temp)
        # A key that is not masked takes part in s with similarity 0, and so with the share of e^0.
        share = torch.zeros_like(s.logsumexp) if self.mask_own_key else torch.sigmoid(-s.logsumexp)
        return Targets(k, keys, self.coefficient + (1 - self.coefficient) * share, s)

    def compare(self, z: Tensor, targets: Targets) -> Loss:
        """H(w, p), p over the own key and the queue."""
        k, keys, own, s = targets
        z = l2_normalize(z)
        own_logit, others = (z * k).sum(1) / self.temp, relation(z, keys, self.temp)
        wanted = own * own_logit + (1 - own) * (z * s.mean_key).sum(1) / self.temp
        soft_label = SoftLabel("view2", k, keys, self.queue.labels, self.teacher_temp)
        return Loss((torch.logaddexp(own_logit, others.logsumexp) - wanted).mean(), soft_labels=(soft_label,))

    def store(self, targets: Targets, labels: Tensor) -> None:
        """The keys join the queue."""
        self.queue.push(targets.k, labels)
