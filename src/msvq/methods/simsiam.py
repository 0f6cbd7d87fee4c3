"""SimSiam: predict the other view's embedding, which stands still; no teacher.

Paper: Exploring Simple Siamese Representation Learning, arXiv 2011.10566.
"""

from typing import ClassVar

from torch import nn

from msvq.core.errors import BadInput
from msvq.methods.base import Batch, Count, Loss, Method
from msvq.model.heads import ProjectorNorm, mlp, projector
from msvq.model.losses import negative_cosine
from msvq.model.resnet import Block
from msvq.model.teacher import Backbone, Network


class SimSiam(Method):
    """Two strong views through the student, and a predictor with a narrow middle.

    `projector_layers`: 2 is the CIFAR setting; 3 the ImageNet one, whose last batch norm has no weight and bias.
    `zero_init_residual`: start each residual block as the identity, and `constant_predictor_rate`: keep the predictor's
    learning rate at its peak, both as the authors' code does or can do.
    """

    title: ClassVar[str] = "SimSiam"
    paper: ClassVar[str] = "arXiv 2011.10566"
    student_passes: ClassVar[int] = 2

    def __init__(
        self,
        backbone: Backbone,
        *,
        hidden_dim: Count = 2048,
        output_dim: Count = 2048,
        predictor_dim: Count = 512,
        projector_layers: Count = 2,
        projector_norm: ProjectorNorm = "all",
        zero_init_residual: bool = False,
        constant_predictor_rate: bool = False,
        bn_splits: Count = 1,
    ) -> None:
        super().__init__()
        head = projector(
            backbone.feature_dim,
            hidden_dim,
            output_dim,
            layers=projector_layers,
            norm=projector_norm,
            last_affine=projector_layers <= 2,
        )
        self.student = Network(backbone, head, bn_splits=bn_splits)
        self.predictor = mlp(output_dim, predictor_dim, output_dim, norm=True)
        self.constant_rate = (self.predictor,) if constant_predictor_rate else ()
        if zero_init_residual:
            self._begin_as_shortcuts()
        self.views = ("strong", "strong")

    def _begin_as_shortcuts(self) -> None:
        blocks = [module for module in self.student.modules() if isinstance(module, Block)]
        if not blocks:
            raise BadInput("method.zero_init_residual is about the blocks of a resnet; leave it out with this backbone")
        for block in blocks:
            nn.init.zeros_(block.get_submodule(block.last_norm).get_parameter("weight"))

    def forward(self, batch: Batch) -> Loss:
        """The mean over both directions of -cos(p, sg(z))."""
        z1, z2 = (self.student(x) for x in batch.views)
        p1, p2 = self.predictor(z1), self.predictor(z2)
        return Loss((negative_cosine(p1, z2) + negative_cosine(p2, z1)) / 2)
