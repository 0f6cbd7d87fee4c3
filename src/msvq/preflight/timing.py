"""Where the time of a training step goes: the trainer's own steps, watched from outside, part by part."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial, wraps
from statistics import median
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from msvq.core.console import Display
from msvq.core.runtime import autocast, synchronise
from msvq.data.augment import Augment
from msvq.methods.base import Method
from msvq.model.teacher import Teacher
from msvq.train.budget import endless_batches
from msvq.train.trainer import Trainer

READ, AUGMENT, TEACH, FOLLOW = "reading the batch", "augmentation", "teachers forward", "teachers follow"
LEARN, LOSS, BACKWARD, UPDATE = "student forward", "loss and queues", "backward", "optimiser"
PARTS = (READ, AUGMENT, TEACH, FOLLOW, LEARN, LOSS, BACKWARD, UPDATE)

WARM_UP = 1  # steps that are not counted: they allocate memory and choose kernels


class Call(NamedTuple):
    """One pass of a network, as a step made it."""

    network: nn.Module
    inputs: tuple[Any, ...]
    options: dict[str, Any]
    learns: bool  # with gradient


class Clock:
    """Gives every moment of a step to one part: the one that was begun last and has not ended."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.spent: dict[str, float] = {}
        self.calls: list[list[Call]] = [[]]  # the networks' passes, of each forward of the method
        self._running: list[str] = []
        self._since = 0.0

    def begin(self, part: str) -> None:
        """From now on it is `part`, until it ends."""
        self._account()
        self._running.append(part)

    def end(self) -> None:
        """Back to what was interrupted."""
        self._account()
        self._running.pop()

    def turn(self, part: str) -> None:
        """The outermost part is over and `part` follows it."""
        self._account()
        self._running[0] = part

    def call(self, part: str, network: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
        """A network begins; one inside another is a part of it."""
        if TEACH not in self._running and LEARN not in self._running:
            self.calls[-1].append(Call(network, inputs, options, torch.is_grad_enabled()))
        self.begin(part)

    def _account(self) -> None:
        synchronise(self.device)
        now = time.perf_counter()
        if self._running:
            self.spent[self._running[-1]] = self.spent.get(self._running[-1], 0.0) + now - self._since
        self._since = now


@dataclass(frozen=True)
class Timing:
    """Seconds of some steps. `limits`: of their networks alone, on the same inputs; empty if not asked for."""

    pictures: int  # in a step
    steps: list[dict[str, float]]
    limits: list[float]

    @property
    def parts(self) -> dict[str, float]:
        """The median of each part that there was."""
        seen = {name for step in self.steps for name in step}
        return {name: median(s.get(name, 0.0) for s in self.steps) for name in PARTS if name in seen}

    @property
    def seconds(self) -> float:
        """The median of the whole step."""
        return median(sum(step.values()) for step in self.steps)

    @property
    def limit(self) -> float:
        """The median of the networks alone."""
        return median(self.limits)

    @property
    def share_of_limit(self) -> float:
        """The limit's seconds in the step's; each step is compared with the run of its networks right after it."""
        return median(limit / sum(step.values()) for step, limit in zip(self.steps, self.limits, strict=True))


def time_steps(
    trainer: Trainer,
    num: int,
    *,
    start: int = 0,
    limit: bool = False,
    parts: bool = True,
    pictures: int | None = None,
    patience: float = math.inf,
    display: Display | None = None,
    description: str = "timing steps",
) -> Timing:
    """Time `num` training steps as they are at step `start` of the run, after one that is not counted.

    `limit`: after each step its networks run again, alone, so that both see the same state of the machine.
    `parts`: otherwise only the whole step is told, without waiting for an accelerator in between.
    `pictures`: so many of each batch alone. `patience`: seconds after which one step is enough.
    """
    trainer.method.train()
    batches, steps, limits, started = endless_batches(trainer), [], [], time.perf_counter()
    pictures = trainer.settings.batch_size if pictures is None else pictures
    with (display or Display()).task(description, WARM_UP + num) as advance:
        for _ in range(WARM_UP + num):
            trainer.step = start  # the schedules stand still
            clock = Clock(trainer.device)
            clock.begin(READ)
            images, labels, indices = (part[:pictures] for part in next(batches))
            clock.turn(AUGMENT)
            with watched(trainer, clock) if parts else nullcontext():
                trainer.train_step(images, labels, indices, trainer.learning_rate())
            clock.end()
            steps.append(clock.spent if parts else {"step": sum(clock.spent.values())})
            if limit:
                limits.append(replay(trainer, clock.calls))
            advance(1)
            if len(steps) > WARM_UP and time.perf_counter() - started > patience:
                break
    return Timing(pictures, steps[WARM_UP:], limits[WARM_UP:])


@contextmanager
def watched(trainer: Trainer, clock: Clock) -> Iterator[None]:
    """Tell the clock when each part of the trainer's step begins and ends; nothing of it stays behind."""
    undo = ExitStack()

    def watch(module: nn.Module, begin: Callable[..., None], end: Callable[..., None]) -> None:
        undo.callback(module.register_forward_pre_hook(begin, with_kwargs=True).remove)
        undo.callback(module.register_forward_hook(end).remove)

    def network_ends(*_: Any) -> None:
        clock.end()

    def method_begins(*_: Any) -> None:
        clock.begin(LOSS)
        clock.calls.append([])

    def method_ends(*_: Any) -> None:
        clock.end()
        clock.turn(BACKWARD)

    def timed(part: str, work: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(work)  # with the attributes of the original, which the trainer may read
        def timed_work(*arguments: Any, **options: Any) -> Any:
            clock.begin(part)
            result = work(*arguments, **options)
            clock.end()
            return result

        return timed_work

    with undo:
        for student in students(trainer.method):
            watch(student, partial(clock.call, LEARN), network_ends)
        for teacher in trainer.method.modules():
            if isinstance(teacher, Teacher):
                watch(teacher, partial(clock.call, TEACH), network_ends)
                vars(teacher)["ema_update"] = timed(FOLLOW, teacher.ema_update)  # on the instance, above the class's
                undo.callback(vars(teacher).pop, "ema_update")
        watch(trainer.method, method_begins, method_ends)
        undo.callback(trainer.optimiser.register_step_pre_hook(lambda *_: clock.turn(UPDATE)).remove)
        undo.callback(setattr, trainer, "augment", trainer.augment)
        trainer.augment = cast(Augment, timed(AUGMENT, trainer.augment))
        yield


def students(method: Method) -> list[nn.Module]:
    """What learns: the student, if the method has one, and the encoder, which may be called alone."""
    found = (getattr(method, "student", None), method.encoder)
    return [module for module in dict.fromkeys(found) if module is not None]


def replay(trainer: Trainer, calls: list[list[Call]]) -> float:
    """Seconds of the networks' passes and one backward pass of the sum of what the student says, and nothing else."""
    synchronise(trainer.device)
    started = time.perf_counter()
    for passes in calls:
        total: Tensor | None = None
        with autocast(trainer.device, trainer.precision):
            for network, inputs, options, learns in passes:
                with torch.set_grad_enabled(learns):
                    output = network(*inputs, **options)
                for tensor in output if isinstance(output, (tuple, list)) else [output]:
                    if isinstance(tensor, Tensor) and tensor.requires_grad:
                        total = tensor.float().sum() if total is None else total + tensor.float().sum()
        if total is not None:
            total.backward()
    synchronise(trainer.device)
    seconds = time.perf_counter() - started
    trainer.method.zero_grad()
    return seconds
