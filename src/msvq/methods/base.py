"""The contract between a method and the trainer."""

import inspect
from collections.abc import Mapping
from math import inf
from typing import Annotated, Any, ClassVar, NamedTuple, cast, get_type_hints

from annotated_types import Ge, Gt, Le, Lt
from pydantic import ValidationError, create_model
from torch import Tensor, nn

from msvq.core.errors import BadInput
from msvq.core.schema import Section, explain
from msvq.model.queue import Queue
from msvq.model.teacher import Teacher

Momentum = Annotated[float, Ge(0), Lt(1)]
Temperature = Annotated[float, Gt(0), Lt(inf)]
Share = Annotated[float, Ge(0), Le(1)]
Count = Annotated[int, Ge(1)]


class Batch(NamedTuple):
    """What a method sees of one step."""

    views: tuple[Tensor, ...]  # one [N, 3, H, W] per entry of Method.views, normalised, channels_last
    labels: Tensor  # [N], for analysis and the supervised row only; -1 where unknown
    progress: float  # 0..1 over the whole run
    indices: Tensor | None = None  # [N], where in the training data each picture stands


class SoftLabel(NamedTuple):
    """How similar a teacher found a view to the entries of a queue: softmax(z·K/τ), for analysis to look at."""

    name: str  # of the view, such as "view2"
    z: Tensor  # the teacher's unit embeddings [N, d]
    keys: Tensor  # the queue's keys [Q, d] before this batch is stored
    labels: Tensor  # of the keys [Q], -1 where unknown
    temp: float


class Loss(NamedTuple):
    """What a method answers: the scalar to minimise, scalars worth a curve, and what its teachers saw."""

    value: Tensor
    logs: Mapping[str, Tensor] = {}
    soft_labels: tuple[SoftLabel, ...] = ()


class Method(nn.Module):
    """A self-supervised method. Its constructor takes a backbone and, by keyword, its hyperparameters.

    The keywords' types and ranges are the schema of a recipe's `method:` block, their defaults the paper's.
    """

    title: ClassVar[str] = "a method without a title"  # as printed in a table
    paper: ClassVar[str] = "-"  # where it was published
    student_passes: ClassVar[int] = 1  # forward and backward passes of the student in one step, by default
    needs_labels: ClassVar[bool] = False
    inner_keys: ClassVar[tuple[str, str] | None] = None  # keywords for a method that it wraps: its name, its keywords

    views: tuple[str, ...]  # the augmentations it wants, such as ("strong", "weak")
    constant_rate: tuple[nn.Module, ...] = ()  # parts whose learning rate does not follow the schedule
    student: nn.Module

    def forward(self, batch: Batch) -> Loss:
        """One step's loss; teachers and queues are brought up to date on the way."""
        raise TypeError(f"{type(self).__name__} does not define forward(batch)")

    @property
    def encoder(self) -> nn.Module:
        """The backbone that is evaluated and exported."""
        return cast(nn.Module, self.student.backbone)

    def defer_updates(self, *, teachers: bool, queues: bool) -> None:
        """Whether teachers stand still and queues put aside what is pushed, while a batch is computed in parts."""
        for module in self.modules():
            if isinstance(module, Teacher):
                module.frozen = teachers
            elif isinstance(module, Queue):
                module.defer() if queues else module.flush()

    @classmethod
    def hyperparameters(cls) -> dict[str, tuple[Any, Any]]:
        """Keyword -> (annotated type, default), read from the constructor."""
        hints = get_type_hints(cls.__init__, include_extras=True)
        keywords = [p for p in inspect.signature(cls).parameters.values() if p.kind is p.KEYWORD_ONLY]
        for p in keywords:
            if p.name not in hints or p.default is p.empty:
                raise BadInput(f"{cls.__name__}: the keyword {p.name!r} needs a type and a default")
        return {p.name: (hints[p.name], p.default) for p in keywords}

    @classmethod
    def check_options(cls, options: Mapping[str, Any], *, where: str = "method") -> dict[str, Any]:
        """Every keyword of the constructor, with `options` over the defaults; types and ranges checked.

        `where` is how a mistake names the block.
        """
        keywords: dict[str, Any] = cls.hyperparameters()
        schema = create_model(cls.__name__, __base__=Section, **keywords)
        try:
            checked: dict[str, Any] = schema.model_validate(options).model_dump(mode="json")
        except ValidationError as error:
            raise explain(error, keywords, where=where) from None
        return checked

    @classmethod
    def all_options(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options, and between them those of a method that it wraps."""
        inner = options.get(cls.inner_keys[1]) if cls.inner_keys else None
        return {**(inner if isinstance(inner, Mapping) else {}), **options}

    @classmethod
    def replace_options(cls, options: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
        """The options with other values, each where the keyword is: its own, or of a method that it wraps."""
        replaced = {key: changes.get(key, value) for key, value in options.items()}
        if cls.inner_keys and isinstance(inner := replaced.get(cls.inner_keys[1]), Mapping):
            replaced[cls.inner_keys[1]] = {key: changes.get(key, value) for key, value in inner.items()}
        return replaced


METHODS: dict[str, type[Method]] = {}  # by name; filled by the package, and by whoever adds a method of their own


def swapped(batch: Batch) -> Batch:
    """The batch with its first two views exchanged, for the other direction of a symmetric loss."""
    first, second, *others = batch.views
    return batch._replace(views=(second, first, *others))


class TeacherMethod(Method):
    """A method with a teacher, as a step of four verbs. Un-Mix can wrap whatever has them."""

    teacher: Teacher
    symmetric: bool = False  # whether the loss is the mean of both directions

    def forward(self, batch: Batch) -> Loss:
        """One step. Both directions read the queues before the first one's keys, and no others, are stored."""
        self.ema_update(batch)
        targets = self.targets(batch)
        loss = self.compare(self.student(batch.views[0]), targets)
        if self.symmetric:
            other = swapped(batch)
            back = self.compare(self.student(other.views[0]), self.targets(other))
            loss = loss._replace(value=(loss.value + back.value) / 2)
        self.store(targets, batch.labels)
        return loss

    def ema_update(self, batch: Batch) -> None:
        """The teacher follows the student's backbone and projector."""
        self.teacher.ema_update(self.student)

    def targets(self, batch: Batch) -> Any:
        """The teachers' side of the step, without gradient: what view 1 is to be compared with."""
        raise TypeError(f"{type(self).__name__} does not define targets(batch)")

    def compare(self, z: Tensor, targets: Any) -> Loss:
        """The loss of the student's embeddings z [N, d] of view 1."""
        raise TypeError(f"{type(self).__name__} does not define compare(z, targets)")

    def store(self, targets: Any, labels: Tensor) -> None:
        """Bring the queues up to date; there is none unless a method says so."""
