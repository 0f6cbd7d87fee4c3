"""CMSF: mean shift, and a second queue that picks further neighbours.

Paper: Constrained Mean Shift Using Distant Yet Related Neighbors for Representation Learning, arXiv 2112.04607.
"""

from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from msvq.core.distributed import all_gather
from msvq.core.errors import BadInput
from msvq.methods.base import Batch, Count, Loss, Momentum, TeacherMethod
from msvq.model.heads import ProjectorNorm, mlp, projector
from msvq.model.losses import l2_normalize, mean_shift
from msvq.model.queue import Queue, check_neighbours
from msvq.model.teacher import Backbone, Network, Teacher


class Targets(NamedTuple):
    """Two targets [N, d] of a picture, and the two groups [N, k (+ 1), d] that the query moves to."""

    k: Tensor
    v: Tensor
    unconstrained: Tensor
    constrained: Tensor


class CMSF(TeacherMethod):
    """One teacher, two queues whose slots hold the same pictures, a predictor; a strong query and weak targets.

    Neighbours of a second target z^v in M' give slots; what stands in those slots of M are constrained neighbours.
    `second_target`: "view" is a third view of the picture, the form behind the MSVQ paper's row; "previous" is the
    picture's target of the epoch before (CMSF's own code: one direction, the batch stored first, and of the
    `num_constrained` neighbours of z^v the k that are nearest to z^k). `num_pictures` comes from the data.
    """

    title: ClassVar[str] = "CMSF"
    paper: ClassVar[str] = "arXiv 2112.04607"
    student_passes: ClassVar[int] = 2
    previous: Tensor

    def __init__(
        self,
        backbone: Backbone,
        *,
        k: Count = 5,
        second_target: Literal["view", "previous"] = "view",
        num_constrained: Count = 5,
        num_pictures: Count | None = None,
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
        self.queue = Queue(queue_size, output_dim)  # M, of z^k
        self.second_queue = Queue(queue_size, output_dim)  # M', of z^v
        self.k, self.symmetric, self.second_target = k, symmetric, second_target
        self.num_constrained = num_constrained
        self.views = ("strong", "weak", "weak")
        if second_target == "previous":
            if symmetric:
                raise BadInput("method.second_target 'previous' has one direction; set method.symmetric=false too")
            check_neighbours(num_constrained, queue_size, name="num_constrained")
            if k > num_constrained or num_pictures is None:
                raise BadInput(f"method.k {k} and method.num_pictures {num_pictures} do not fit the 'previous' target")
            self.views = ("strong", "weak")
            self.register_buffer("previous", l2_normalize(torch.randn(num_pictures, output_dim)))

    def forward(self, batch: Batch) -> Loss:
        """One step, in both directions by default; the third view is encoded once and serves both."""
        self.ema_update(batch)
        targets = self.targets(batch)
        loss = self.compare(self.student(batch.views[0]), targets).value
        if self.symmetric:
            back = self.neighbours(l2_normalize(self.teacher(batch.views[0])), targets.v)
            loss = (loss + self.compare(self.student(batch.views[1]), back).value) / 2
        self.store(targets, batch.labels)
        return Loss(loss)

    def targets(self, batch: Batch) -> Targets:
        """z^k of view 2, and z^v of view 3 or of the epoch before, with their neighbours."""
        if self.second_target == "previous":
            return self._targets_of_previous_epoch(batch)
        k, v = (l2_normalize(self.teacher(x)) for x in batch.views[1:])
        return self.neighbours(k, v)

    def neighbours(self, k: Tensor, v: Tensor) -> Targets:
        """z^k with its neighbours in M, and with those that z^v finds through M'."""
        groups = [
            torch.cat([k[:, None], self.queue.keys[slots]], dim=1)
            for slots in (self.queue.nearest(k, self.k), self.second_queue.nearest(v, self.k))
        ]
        return Targets(k, v, *groups)

    def _targets_of_previous_epoch(self, batch: Batch) -> Targets:
        assert batch.indices is not None
        k, v = l2_normalize(self.teacher(batch.views[1])), self.previous[batch.indices]
        self.previous[all_gather(batch.indices)] = all_gather(k)  # the whole batch's, on every rank
        self.queue.push(k, batch.labels, at_once=True)
        self.second_queue.push(v, batch.labels, at_once=True)
        allowed = self.queue.keys[self.second_queue.nearest(v, self.num_constrained)]  # [N, k', d]
        best = (allowed * k[:, None]).sum(2).topk(self.k, dim=1).indices
        constrained = allowed.gather(1, best[..., None].expand(-1, -1, allowed.shape[2]))
        return Targets(k, v, self.queue.keys[self.queue.nearest(k, self.k)], constrained)

    def compare(self, z: Tensor, targets: Targets) -> Loss:
        """L = (L_u + L_c) / 2."""
        p = self.predictor(z)
        return Loss((mean_shift(p, targets.unconstrained) + mean_shift(p, targets.constrained)) / 2)

    def store(self, targets: Targets, labels: Tensor) -> None:
        """M takes z^k, M' takes z^v, in the same slots."""
        if self.second_target == "view":
            self.queue.push(targets.k, labels)
            self.second_queue.push(targets.v, labels)
