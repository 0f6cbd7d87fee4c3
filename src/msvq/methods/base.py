"""The contract between a method and the trainer."""

import inspect
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, NamedTuple, cast, get_type_hints

from annotated_types import Ge, Gt, Le, Lt
from torch import Tensor, nn

Momentum = Annotated[float, Ge(0), Lt(1)]
Temperature = Annotated[float, Gt(0)]
Share = Annotated[float, Ge(0), Le(1)]
Count = Annotated[int, Ge(1)]


class Batch(NamedTuple):
    """What a method sees of one step."""

    views: tuple[Tensor, ...]  # one [N, 3, H, W] per entry of Method.views, normalised, channels_last
    labels: Tensor  # [N], for analysis and the supervised row only; -1 where unknown
    progress: float  # 0..1 over the whole run


class Loss(NamedTuple):
    """What a method answers: the scalar to minimise, and scalars worth a curve."""

    value: Tensor
    logs: Mapping[str, Tensor] = {}


class Method(nn.Module):
    """A self-supervised method. Its constructor takes a backbone and, by keyword, its hyperparameters.

    The keywords' types and ranges are the schema of a recipe's `method:` block, their defaults the paper's.
    """

    title: ClassVar[str]  # as printed in a table
    paper: ClassVar[str]  # where it was published
    student_passes: ClassVar[int] = 1  # forward and backward passes of the student in one step

    views: tuple[str, ...]  # the augmentations it wants, such as ("strong", "weak")
    student: nn.Module

    def forward(self, batch: Batch) -> Loss:
        """One step's loss; teachers and queues are brought up to date on the way."""
        raise TypeError(f"{type(self).__name__} does not define forward(batch)")

    @property
    def encoder(self) -> nn.Module:
        """The backbone that is evaluated and exported."""
        return cast(nn.Module, self.student.backbone)

    @classmethod
    def hyperparameters(cls) -> dict[str, tuple[Any, Any]]:
        """Keyword -> (annotated type, default), read from the constructor."""
        hints = get_type_hints(cls.__init__, include_extras=True)
        keywords = inspect.signature(cls).parameters.values()
        return {p.name: (hints[p.name], p.default) for p in keywords if p.kind is p.KEYWORD_ONLY}
