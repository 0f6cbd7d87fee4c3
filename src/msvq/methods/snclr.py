"""SNCLR: neighbours are positives too, each as much as it deserves.

Paper: Soft Neighbors are Positive Supporters in Contrastive Visual Representation Learning, arXiv 2303.17142.
"""

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from msvq.core.distributed import all_gather
from msvq.methods.base import Batch, Count, Loss, Momentum, TeacherMethod, Temperature
from msvq.model.heads import ProjectorNorm, mlp, projector
from msvq.model.losses import l2_normalize
from msvq.model.queue import Queue, check_neighbours
from msvq.model.teacher import Backbone, Network, Teacher


class Targets(NamedTuple):
    """The batch's keys [N, d] and, for each, its neighbours [N, k, d] in the queue."""

    k: Tensor
    neighbours: Tensor


class SNCLR(TeacherMethod):
    """One teacher, one queue, a predictor, two strong views.

    `threshold`: only neighbours with more than the even share 1/k count. `detach_labels`: off, gradient also flows
    through the soft labels, as in both published codes. `scale_by_temp`: the directions added rather than
    averaged, times 2τ, as the authors' code has it.
    """

    title: ClassVar[str] = "SNCLR"
    paper: ClassVar[str] = "arXiv 2303.17142"
    student_passes: ClassVar[int] = 2

    def __init__(
        self,
        backbone: Backbone,
        *,
        temp: Temperature = 0.2,
        k: Count = 5,
        threshold: bool = False,
        detach_labels: bool = False,
        scale_by_temp: bool = False,
        momentum: Momentum = 0.99,
        queue_size: Count = 4096,
        hidden_dim: Count = 2048,
        output_dim: Count = 128,
        projector_layers: Count = 3,
        projector_norm: ProjectorNorm = "all",
        bn_splits: Count = 8,
        shuffle: bool = True,
        symmetric: bool = True,
    ) -> None:
        super().__init__()
        check_neighbours(k, queue_size)
        head = projector(
            backbone.feature_dim,
            hidden_dim,
            output_dim,
            layers=projector_layers,
            norm=projector_norm,
            last_affine=False,
        )
        self.student = Network(backbone, head, bn_splits=bn_splits)
        self.predictor = mlp(output_dim, hidden_dim, output_dim, norm=True, last_norm=True, last_affine=False)
        self.teacher = Teacher(self.student, momentum=momentum, shuffle=shuffle)
        self.queue = Queue(queue_size, output_dim)
        self.temp, self.k, self.threshold = temp, k, threshold
        self.detach_labels, self.symmetric = detach_labels, symmetric
        self.scale = 2 * temp * (2 if symmetric else 1) if scale_by_temp else 1.0
        self.views = ("strong", "strong")

    def targets(self, batch: Batch) -> Targets:
        """Keys of view 2 and their neighbours: together the N (k + 1) candidates of every query."""
        k = l2_normalize(self.teacher(batch.views[1]))
        return Targets(k, self.queue.keys[self.queue.nearest(k, self.k)])

    def soft_labels(self, z: Tensor, neighbours: Tensor) -> Tensor:
        """a [N, k]: how much each own neighbour counts beside the own key's 1; softmax at temperature 1."""
        a = torch.softmax(torch.einsum("nd,nkd->nk", l2_normalize(z), neighbours), dim=1)
        if self.threshold:
            a = a * (a > 1 / self.k)
        return a.detach() if self.detach_labels else a

    def compare(self, z: Tensor, targets: Targets) -> Loss:
        """-1/N Σ_i Σ_c y_ic log softmax_c(p̂_i · ĉ / τ) over the candidates c."""
        p, z, keys, neighbours = map(all_gather, (l2_normalize(self.predictor(z)), z, *targets))  # of the whole batch
        num, k = neighbours.shape[:2]
        candidates = torch.cat([keys, neighbours.flatten(0, 1)])
        with torch.autocast(z.device.type, enabled=False):
            log_s = torch.log_softmax(p @ candidates.T / self.temp, dim=1)
            a = self.soft_labels(z, neighbours)
        own = torch.arange(num, device=z.device)
        slots = num + own[:, None] * k + torch.arange(k, device=z.device)
        loss = -(log_s[own, own] + (a * log_s.gather(1, slots)).sum(1)).mean()
        return Loss(loss * self.scale)

    def store(self, targets: Targets, labels: Tensor) -> None:
        """The keys join the queue."""
        self.queue.push(targets.k, labels)
