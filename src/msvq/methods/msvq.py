"""MSVQ and its family: one student, momentum teachers, queues, and soft labels between them.

Paper: MSVQ: Self-Supervised Learning with Multiple Sample Views and Queues, arXiv 2305.05370.
Equation numbers are the paper's.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from msvq.methods.base import Batch, Count, Loss, Method, Momentum, Share, SoftLabel, Temperature
from msvq.model.heads import ProjectorNorm, projector
from msvq.model.losses import info_nce_from_relation, l2_normalize
from msvq.model.queue import Queue
from msvq.model.relations import Relation, cross_entropy, entropy, relation, relations
from msvq.model.teacher import Backbone, Network, Teacher

WARM_START_TEMP = 0.2


class SoftLabelSpec(NamedTuple):
    """P^{view,queue}: how similar `teacher` finds a view to the entries of a queue. Counted from 1."""

    view: int
    teacher: int
    queue: int


class Targets(NamedTuple):
    """The teachers' side of one step."""

    keys: dict[int, Tensor]  # queue -> its keys [Q, d] before this batch is stored
    z: dict[int, Tensor]  # view -> unit embeddings [N, d]
    p: dict[tuple[int, int], Relation]  # (view, queue) -> soft label
    warmth: float  # weight of the contrastive term, 1 to 0


class MSVQ(Method):
    """Multiple sample views and queues. Members of the family differ in these attributes alone."""

    title: ClassVar[str] = "MSVQ"
    paper: ClassVar[str] = "arXiv 2305.05370"
    soft_label_specs: ClassVar[tuple[SoftLabelSpec, ...]] = (
        SoftLabelSpec(2, 1, 1),
        SoftLabelSpec(3, 1, 1),
        SoftLabelSpec(4, 2, 2),
    )
    stored: ClassVar[Mapping[int, int]] = {1: 2, 2: 4}  # queue -> the view whose embeddings it stores
    own_norm: ClassVar[ProjectorNorm] = "none"  # of the projector, unless told otherwise

    def __init__(
        self,
        backbone: Backbone,
        *,
        student_temp: Temperature = 0.1,
        teacher_temp: Temperature = 0.04,
        momentum1: Momentum = 0.99,
        momentum2: Momentum = 0.95,
        queue_size: Count = 4096,
        hidden_dim: Count = 2048,
        output_dim: Count = 128,
        projector_layers: Count = 2,
        projector_norm: ProjectorNorm | None = None,
        bn_splits: Count = 8,
        shuffle: bool = True,
        teacher_augmentation: Literal["weak", "strong"] = "weak",
        warm_start: Share = 0.0,
    ) -> None:
        super().__init__()
        norm = projector_norm or self.own_norm
        head = projector(backbone.feature_dim, hidden_dim, output_dim, layers=projector_layers, norm=norm)
        self.student = Network(backbone, head, bn_splits=bn_splits)
        momentums = (momentum1, momentum2)[: max(label.teacher for label in self.soft_label_specs)]
        self.teachers = nn.ModuleList(Teacher(self.student, momentum=m, shuffle=shuffle) for m in momentums)
        self.queues = nn.ModuleDict({str(b): Queue(queue_size, output_dim) for b in self.stored})
        self.student_temp, self.teacher_temp, self.warm_start = student_temp, teacher_temp, warm_start
        self.teacher_views = sorted(label.view for label in self.soft_label_specs)
        self.views = ("strong", *(teacher_augmentation for _ in self.teacher_views))

    def forward(self, batch: Batch) -> Loss:
        """Algorithm 1. The teachers follow first: they start as copies, so it equals following last."""
        self.ema_update(batch)  # Eq. 6, 12
        targets = self.targets(batch)  # the soft labels: Eq. 4, 7, 10
        z1 = self.student(batch.views[0])
        loss = self.compare(z1, targets)  # Eq. 13
        self.store(targets, batch.labels)  # after use: first in, first out
        return loss

    def ema_update(self, batch: Batch) -> None:
        """θ_t <- m θ_t + (1 - m) θ_s for each teacher."""
        for teacher in self.teachers:
            cast(Teacher, teacher).ema_update(self.student)

    def targets(self, batch: Batch) -> Targets:
        """What the teachers see in their views: P^{a,b} over the queues as they are."""
        x = dict(zip(self.teacher_views, batch.views[1:], strict=True))
        keys = {b: cast(Queue, self.queues[str(b)]).keys for b in self.stored}
        z = {a: l2_normalize(self.teachers[t - 1](x[a])) for a, t, _ in self.soft_label_specs}
        # Eq. 4, 7, 10: p[2, 1], p[3, 1] and p[4, 2] are the paper's p21, p31 and p42
        p = {(a, b): relation(z[a], keys[b], self.teacher_temp) for a, _, b in self.soft_label_specs}
        warmth = max(0.0, 1 - batch.progress / self.warm_start) if self.warm_start else 0.0
        return Targets(keys, z, p, warmth)

    def compare(self, z1: Tensor, targets: Targets) -> Loss:
        """The student's relations P^{1,b} against each soft label: the mean of H(P^{a,b}, P^{1,b})."""
        keys, z, p, w = targets
        z1 = l2_normalize(z1)
        p1 = {b: relations(z1, keys[b], self.student_temp, *self._warm_temps(b, w)) for b in keys}  # Eq. 3, 9
        loss = torch.stack([cross_entropy(p[a, b], p1[b][0]) for a, b in p]).mean()  # Eq. 5, 8, 11, 13
        with torch.no_grad():  # the paper's equations say KL, its algorithm cross entropy: same gradient
            logs = {"kl": loss - torch.stack([entropy(label) for label in p.values()]).mean()}
        if w > 0:  # ours: a contrastive term while the teachers are young
            loss = (1 - w) * loss + w * info_nce_from_relation(z1, z[2], p1[1][1])
        return Loss(loss, logs, self.soft_labels(targets))

    def soft_labels(self, targets: Targets) -> tuple[SoftLabel, ...]:
        """The soft labels as analysis sees them, with the labels of the queues' entries."""
        labels = {b: cast(Queue, self.queues[str(b)]).labels for b in self.stored}
        keys, z, temp = targets.keys, targets.z, self.teacher_temp
        return tuple(SoftLabel(f"view{a}", z[a], keys[b], labels[b], temp) for a, b in targets.p)

    @staticmethod
    def _warm_temps(queue: int, warmth: float) -> tuple[float, ...]:
        """The contrastive term's temperature, over the same cosines, while it counts; it uses queue 1 alone."""
        return (WARM_START_TEMP,) if queue == 1 and warmth > 0 else ()

    def store(self, targets: Targets, labels: Tensor) -> None:
        """Queue 1 takes Z^2, queue 2 takes Z^4."""
        for b, a in self.stored.items():
            cast(Queue, self.queues[str(b)]).push(targets.z[a], labels)

    @classmethod
    def hyperparameters(cls) -> dict[str, tuple[Any, Any]]:
        """As for every method, with the member's own norm, and no momentum of a teacher that it does not have."""
        keywords = super().hyperparameters() | {"projector_norm": (ProjectorNorm, cls.own_norm)}
        if all(label.teacher == 1 for label in cls.soft_label_specs):
            del keywords["momentum2"]
        return keywords


class ReSSL(MSVQ):
    """The smallest member: one weak view, one teacher, one queue (Eq. 5)."""

    title = "ReSSL"
    paper = "arXiv 2107.09282"
    soft_label_specs = (SoftLabelSpec(2, 1, 1),)
    stored: ClassVar[Mapping[int, int]] = {1: 2}


class MSV(MSVQ):
    """Two views in one teacher, one queue (Eq. 8)."""

    title = "MSV"
    soft_label_specs = (SoftLabelSpec(2, 1, 1), SoftLabelSpec(3, 1, 1))
    stored: ClassVar[Mapping[int, int]] = {1: 2}


class MQ(MSVQ):
    """Two teachers with a view and a queue each (Eq. 11)."""

    title = "MQ"
    soft_label_specs = (SoftLabelSpec(2, 1, 1), SoftLabelSpec(4, 2, 2))


class MSVQDagger(MSVQ):
    """MSVQ with batch norm in the projector."""

    title = "MSVQ†"
    own_norm: ClassVar[ProjectorNorm] = "hidden"


class MSVQX3(MSVQ):
    """Variation (i): X3 goes to teacher 2 and its queue, which still stores Z4 alone."""

    title = "MSVQ (X3 in teacher 2)"
    soft_label_specs = (SoftLabelSpec(2, 1, 1), SoftLabelSpec(3, 2, 2), SoftLabelSpec(4, 2, 2))


class MSVQX5(MSVQ):
    """Variation (ii): a fourth soft label, from a further view X5 in teacher 2."""

    title = "MSVQ (with X5)"
    soft_label_specs = (SoftLabelSpec(2, 1, 1), SoftLabelSpec(3, 1, 1), SoftLabelSpec(4, 2, 2), SoftLabelSpec(5, 2, 2))
