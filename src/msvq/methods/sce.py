"""SCE: one part own key, one part the key's relations to the queue (methods.md 3.17).

Paper: Similarity Contrastive Estimation for Self-Supervised Soft Contrastive Learning, arXiv 2111.14585.
"""

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from msvq.methods.base import Batch, Count, Loss, Method, Momentum, Share, Temperature, taught_step
from msvq.model.heads import moco_head
from msvq.model.losses import own_and_others, similarity, soft_cross_entropy, unit
from msvq.model.norm import split_batch_norm
from msvq.model.queue import Queue
from msvq.model.teacher import Backbone, Network, Teacher


class Targets(NamedTuple):
    """The key k [N, d], the queue [Q, d] as it was, and the label w [N, 1 + Q] over both."""

    k: Tensor
    keys: Tensor
    w: Tensor


class SCE(Method):
    """One teacher, one queue; a strong query and a weak key.

    `coefficient` is the paper's λ, the share of the own key. `mask_own_key`: the relations cover the queue alone, as
    in the paper; off, the key itself takes part with similarity 0, as in the authors' code. `norm`: batch norm in the
    projector, as in the authors' CIFAR configuration.
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
        norm: bool = True,
        bn_splits: Count = 8,
        shuffle: bool = True,
        symmetric: bool = True,
    ) -> None:
        super().__init__()
        head = moco_head(backbone.feature_dim, hidden_dim, output_dim, norm=norm)
        self.student = Network(backbone, head)
        split_batch_norm(self.student, bn_splits)
        self.teacher = Teacher(self.student, momentum=momentum, shuffle=shuffle)
        self.queue = Queue(queue_size, output_dim)
        self.temp, self.teacher_temp, self.coefficient = temp, teacher_temp, coefficient
        self.mask_own_key, self.symmetric = mask_own_key, symmetric
        self.views = ("strong", "weak")

    def forward(self, batch: Batch) -> Loss:
        """One step, in both directions by default."""
        return taught_step(self, batch, symmetric=self.symmetric)

    def follow(self, batch: Batch) -> None:
        """The teacher follows the student."""
        self.teacher.follow(self.student)

    def targets(self, batch: Batch) -> Targets:
        """w = λ · (own key) + (1 - λ) · s, with s the key's relations to the queue."""
        k, keys = unit(self.teacher(batch.views[1])), self.queue.keys
        own = torch.full((len(k), 1), float("-inf") if self.mask_own_key else 0.0, dtype=k.dtype, device=k.device)
        s = torch.softmax(torch.cat([own, similarity(k, keys) / self.teacher_temp], dim=1), dim=1)
        w = (1 - self.coefficient) * s
        w[:, 0] += self.coefficient
        return Targets(k, keys, w)

    def compare(self, z: Tensor, targets: Targets) -> Loss:
        """H(w, p), p over the own key and the queue."""
        logits = own_and_others(z, targets.k, targets.keys) / self.temp
        return Loss(soft_cross_entropy(targets.w, logits))

    def store(self, targets: Targets, labels: Tensor) -> None:
        """The keys join the queue."""
        self.queue.push(targets.k, labels)
