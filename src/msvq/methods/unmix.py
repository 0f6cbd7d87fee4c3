"""Un-Mix: a mixture of two pictures is as like each as its share of it; wraps another method.

Paper: Un-Mix: Rethinking Image Mixtures for Unsupervised Visual Representation Learning, arXiv 2003.05438.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, cast

import torch
from annotated_types import Gt
from torch import Tensor, nn

from msvq.core.distributed import flip
from msvq.core.errors import BadInput, unknown
from msvq.core.runtime import RandomState
from msvq.methods.base import METHODS, Batch, Loss, Method, Share, SoftLabel, TeacherMethod, swapped
from msvq.model.teacher import Backbone

VERBS = ("ema_update", "targets", "compare", "store")


class UnMix(Method):
    """The base's loss, and its loss on a mixture of the batch with its reverse, weighed by the shares.

    `base` is any method with a teacher, `base_options` its keywords. `global_share`: how often whole pictures are
    blended, rather than a box pasted. `symmetric` takes both directions of the base's loss. `through`: "student" mixes
    the query alone (Un-Mix's own code); "whole" sends the mixture of view 2 through the base's entire step, three
    times a step, teachers and queues included (the MSVQ authors' benchmark, with base byol).
    """

    title: ClassVar[str] = "Un-Mix"
    paper: ClassVar[str] = "arXiv 2003.05438"
    student_passes: ClassVar[int] = 2
    inner_keys: ClassVar[tuple[str, str] | None] = ("base", "base_options")

    def __init__(
        self,
        backbone: Backbone,
        *,
        base: str = "mocov2",
        base_options: dict[str, Any] | None = None,
        global_share: Share = 0.5,
        alpha: Annotated[float, Gt(0)] = 1.0,
        symmetric: bool = False,
        through: Literal["student", "whole"] = "student",
    ) -> None:
        super().__init__()
        options = complete_base(base, base_options or {}, symmetric=symmetric, through=through)
        self.base: Any = METHODS[base](backbone, **options)
        self.random = RandomState()
        self.global_share, self.alpha, self.symmetric, self.through = global_share, alpha, symmetric, through
        self.views = self.base.views

    @property
    def student(self) -> nn.Module:  # type: ignore[override]  # not one of its own
        """The base's."""
        return cast(nn.Module, self.base.student)

    @property
    def encoder(self) -> nn.Module:
        """The base's."""
        return cast(nn.Module, self.base.encoder)

    def forward(self, batch: Batch) -> Loss:
        """L(x) + λ L(mixture) + (1 - λ) L(mixture reversed)."""
        if self.through == "whole":
            return self._whole(batch)
        base: TeacherMethod = self.base
        base.ema_update(batch)
        share, mixture = self.mix(batch.views[0])
        q_m = base.student(mixture)
        directions = [batch, swapped(batch)] if self.symmetric else [batch]
        targets = [base.targets(direction) for direction in directions]
        loss = torch.zeros((), device=mixture.device)
        soft_labels: tuple[SoftLabel, ...] = ()
        for direction, target in zip(directions, targets, strict=True):
            plain = base.compare(base.student(direction.views[0]), target)
            loss, soft_labels = loss + plain.value, soft_labels or plain.soft_labels
            loss = loss + share * base.compare(q_m, target).value
            # Reversing the embeddings equals encoding the reversed batch, also under interleaved batch-norm groups.
            loss = loss + (1 - share) * base.compare(flip(q_m), target).value
        for target in targets:
            base.store(target, batch.labels)
        return Loss(loss, soft_labels=soft_labels)

    @classmethod
    def check_options(cls, options: Mapping[str, Any], *, where: str = "method") -> dict[str, Any]:
        """As for every method, and the base's options are checked and completed too."""
        checked = super().check_options(options, where=where)
        directions = {key: checked[key] for key in ("symmetric", "through")}
        options = complete_base(checked["base"], checked["base_options"] or {}, **directions)
        return {**checked, "base_options": options}

    def _whole(self, batch: Batch) -> Loss:
        x1, x2, *others = batch.views
        share, mixture = self.mix(x2)
        seconds = (x2, mixture, flip(mixture))
        losses: list[Loss] = [self.base(batch._replace(views=(x1, second, *others))) for second in seconds]
        plain, mixed, reverse = (loss.value for loss in losses)
        return Loss(plain + share * mixed + (1 - share) * reverse, soft_labels=losses[0].soft_labels)

    def mix(self, x: Tensor) -> tuple[float, Tensor]:
        """λ, and x [N, 3, H, W] mixed with its reverse: blended whole, or with a box of it pasted in."""
        reverse = flip(x)
        blend = self.random.uniform() < self.global_share
        share = self.random.beta(self.alpha)
        box = paste_box(share, x.shape[-2:], (self.random.uniform(), self.random.uniform()))
        if blend:
            return share, share * x + (1 - share) * reverse
        (top, bottom), (left, right) = box
        mixture = x.clone()
        mixture[..., top:bottom, left:right] = reverse[..., top:bottom, left:right]
        return 1 - (bottom - top) * (right - left) / (x.shape[-2] * x.shape[-1]), mixture


def complete_base(base: str, options: Mapping[str, Any], *, symmetric: bool, through: str) -> dict[str, Any]:
    """The base's keywords, complete and checked. MoCo has Un-Mix's temperature unless told otherwise."""
    wrappable = {name: kind for name, kind in METHODS.items() if all(hasattr(kind, verb) for verb in VERBS)}
    if base not in wrappable:
        raise unknown("base of unmix", base, wrappable)
    own: dict[str, Any] = {"temp": 0.1} if base == "mocov2" else {}
    for name, value in (("enqueue_first", True), ("second_target", "previous")):
        if options.get(name) == value and (symmetric or through == "whole"):
            other = "method.symmetric=false" if symmetric else "method.through=student"
            raise BadInput(f"method.base_options.{name} has one direction and one pass; set {other} too")
    if through == "whole":
        if symmetric:
            raise BadInput("method.through 'whole' runs the base as it is; set method.base_options.symmetric instead")
        return wrappable[base].check_options({**own, **options}, where="method.base_options")
    has_directions = "symmetric" in wrappable[base].hyperparameters()
    if has_directions:
        own["symmetric"] = "no" if base == "mocov2" else False
    elif symmetric:
        raise BadInput(f"method.symmetric is not for base {base!r}, whose loss has one direction")
    if options.get("symmetric", "no") not in ("no", False):
        raise BadInput("method.base_options.symmetric is not for unmix; set method.symmetric instead")
    return wrappable[base].check_options({**own, **options}, where="method.base_options")


def paste_box(share: float, size: tuple[int, ...], centre: tuple[float, float]) -> list[tuple[int, int]]:
    """(first, last + 1) in rows and columns of a box with some 1 - `share` of the area, clipped to the picture."""
    box = []
    for length, place in zip(size, centre, strict=True):
        half, middle = int(length * (1 - share) ** 0.5) // 2, int(length * place)
        box.append((max(0, middle - half), min(length, middle + half)))
    return box
