"""A method of your own, from outside the package: Barlow Twins in a few lines.

msvq pretrain --data patterns --out runs/barlow --method examples/your_own_method.py:BarlowTwins
"""

import torch

from msvq.methods.base import Batch, Count, Loss, Method, Share
from msvq.model.heads import mlp
from msvq.model.teacher import Backbone, Network


class BarlowTwins(Method):
    """Each dimension agrees between two views and repeats no other (arXiv 2103.03230)."""

    title = "Barlow Twins"
    paper = "arXiv 2103.03230"
    student_passes = 2  # how often the backbone runs in a step

    def __init__(
        self,
        backbone: Backbone,
        *,  # the keywords are the settings: msvq pretrain ... --set method.redundancy=0.01
        redundancy: Share = 0.005,
        hidden_dim: Count = 512,
        output_dim: Count = 128,
    ) -> None:
        super().__init__()
        sizes = (backbone.feature_dim, hidden_dim, output_dim)
        self.student = Network(backbone, mlp(*sizes, norm=True, last_norm=True, last_affine=False))
        self.redundancy = redundancy
        self.views = ("strong", "strong")

    def forward(self, batch: Batch) -> Loss:
        """Called once a step, with one tensor [N, 3, H, W] per entry of `views`."""
        z1, z2 = (self.student(x).float() for x in batch.views)  # [N, d], each dimension of variance 1
        with torch.autocast(z1.device.type, enabled=False):  # the networks may run in bf16; a loss should not
            correlation = z1.T @ z2 / len(z1)
        agreement = correlation.diagonal()
        repeated = correlation.square().sum() - agreement.square().sum()
        loss = (1 - agreement).square().mean() + self.redundancy * repeated / len(correlation)
        return Loss(loss, {"agreement": agreement.detach().mean()})
