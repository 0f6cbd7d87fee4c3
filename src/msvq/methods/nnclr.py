"""NNCLR: the positive is the other view's nearest neighbour in a support set.

Paper: With a Little Help from My Friends, arXiv 2104.14548.
"""

from typing import ClassVar

from torch import Tensor

from msvq.methods.base import Batch, Count, Loss, Method, Temperature
from msvq.model.heads import ProjectorNorm, mlp, projector
from msvq.model.losses import neighbour_contrast
from msvq.model.queue import Queue, check_neighbours
from msvq.model.teacher import Backbone, Network


class NNCLR(Method):
    """No teacher; two strong views, a predictor, a queue of the student's own embeddings.

    `k` neighbours each count as a positive. `both_ways`: also let the prediction find its neighbours (the MSVQ authors'
    benchmark); off, the neighbour alone looks for its prediction, as in the paper.
    """

    title: ClassVar[str] = "NNCLR"
    paper: ClassVar[str] = "arXiv 2104.14548"
    student_passes: ClassVar[int] = 2

    def __init__(
        self,
        backbone: Backbone,
        *,
        temp: Temperature = 0.2,
        k: Count = 1,
        queue_size: Count = 4096,
        hidden_dim: Count = 2048,
        output_dim: Count = 128,
        projector_layers: Count = 3,
        projector_norm: ProjectorNorm = "all",
        bn_splits: Count = 1,
        both_ways: bool = True,
    ) -> None:
        super().__init__()
        check_neighbours(k, queue_size)
        head = projector(backbone.feature_dim, hidden_dim, output_dim, layers=projector_layers, norm=projector_norm)
        self.student = Network(backbone, head, bn_splits=bn_splits)
        self.predictor = mlp(output_dim, hidden_dim, output_dim, norm=True)
        self.queue = Queue(queue_size, output_dim)
        self.temp, self.k, self.both_ways = temp, k, both_ways
        self.views = ("strong", "strong")

    def forward(self, batch: Batch) -> Loss:
        """The mean of both directions; the search comes before the batch is stored."""
        z1, z2 = (self.student(x) for x in batch.views)
        p1, p2 = self.predictor(z1), self.predictor(z2)
        loss = (self.compare(p1, z2) + self.compare(p2, z1)) / 2
        self.queue.push(z1, batch.labels)
        return Loss(loss)

    def compare(self, p: Tensor, z: Tensor) -> Tensor:
        """Predictions p [N, d] against the neighbours of z [N, d], through which no gradient flows."""
        neighbours = self.queue.keys[self.queue.nearest(z, self.k)]
        return neighbour_contrast(p, neighbours, temp=self.temp, both_ways=self.both_ways)
