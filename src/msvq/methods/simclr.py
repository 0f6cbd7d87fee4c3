"""SimCLR: each view finds its partner in the batch; no teacher, no queue.

Paper: A Simple Framework for Contrastive Learning of Visual Representations, arXiv 2002.05709.
"""

from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge

from msvq.core.errors import BadInput
from msvq.methods.base import Batch, Count, Loss, Method, Temperature
from msvq.model.heads import ProjectorNorm, projector
from msvq.model.losses import cross_view, multi_positive_nt_xent, nt_xent
from msvq.model.teacher import Backbone, Network


class SimCLR(Method):
    """Two strong views through the student.

    `loss`: "nt-xent" has all 2N - 2 others as negatives; "cross-view" those of the other view (the authors' benchmark).
    `num_views`: ours; more than two go through the student in one pass, and each finds all others of its picture.
    """

    title: ClassVar[str] = "SimCLR"
    paper: ClassVar[str] = "arXiv 2002.05709"
    student_passes: ClassVar[int] = 2

    def __init__(
        self,
        backbone: Backbone,
        *,
        temp: Temperature = 0.2,
        hidden_dim: Count = 2048,
        output_dim: Count = 128,
        projector_layers: Count = 2,
        projector_norm: ProjectorNorm = "all",
        bn_splits: Count = 1,
        loss: Literal["nt-xent", "cross-view"] = "nt-xent",
        num_views: Annotated[int, Ge(2)] = 2,
    ) -> None:
        super().__init__()
        if loss == "cross-view" and num_views > 2:
            raise BadInput("method.loss cross-view compares two views; leave out method.num_views")
        head = projector(backbone.feature_dim, hidden_dim, output_dim, layers=projector_layers, norm=projector_norm)
        self.student = Network(backbone, head, bn_splits=bn_splits)
        self.temp, self.loss = temp, nt_xent if loss == "nt-xent" else cross_view
        self.views = ("strong",) * num_views

    def forward(self, batch: Batch) -> Loss:
        """Gradient flows through all views."""
        if len(self.views) > 2:
            z = self.student(torch.cat(batch.views))
            return Loss(multi_positive_nt_xent(z, num_views=len(self.views), temp=self.temp))
        z1, z2 = (self.student(x) for x in batch.views)
        return Loss(self.loss(z1, z2, temp=self.temp))
