"""BYOL: predict the teacher's embedding of the other view; no negatives.

Paper: Bootstrap Your Own Latent, arXiv 2006.07733.
"""

import math
from typing import ClassVar, Literal

from torch import Tensor

from msvq.methods.base import Batch, Count, Loss, Momentum, TeacherMethod
from msvq.model.heads import ProjectorNorm, mlp, projector
from msvq.model.losses import negative_cosine
from msvq.model.teacher import Backbone, Network, Teacher


class BYOL(TeacherMethod):
    """One teacher, a predictor, two strong views.

    `momentum_schedule`: "constant", or the original's "cosine", which rises to 1 at the end of the run.
    """

    title: ClassVar[str] = "BYOL"
    paper: ClassVar[str] = "arXiv 2006.07733"
    student_passes: ClassVar[int] = 2

    def __init__(
        self,
        backbone: Backbone,
        *,
        momentum: Momentum = 0.99,
        momentum_schedule: Literal["constant", "cosine"] = "constant",
        hidden_dim: Count = 2048,
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
        self.predictor = mlp(output_dim, hidden_dim, output_dim, norm=True)
        self.teacher = Teacher(self.student, momentum=momentum, shuffle=shuffle)
        self.momentum, self.momentum_schedule, self.symmetric = momentum, momentum_schedule, symmetric
        self.views = ("strong", "strong")

    def ema_update(self, batch: Batch) -> None:
        """The teacher follows the student's backbone and projector."""
        if self.momentum_schedule == "cosine":
            self.teacher.momentum = 1 - (1 - self.momentum) * (math.cos(math.pi * batch.progress) + 1) / 2
        self.teacher.ema_update(self.student)

    def targets(self, batch: Batch) -> Tensor:
        """z' [N, d] of view 2."""
        z: Tensor = self.teacher(batch.views[1])
        return z

    def compare(self, z: Tensor, targets: Tensor) -> Loss:
        """|p̂ - ẑ'|² = 2 - 2 p̂·ẑ'."""
        return Loss(2 + 2 * negative_cosine(self.predictor(z), targets))
