"""A run that fits the time there is: what to train is chosen, the pace of this machine taken, the steps fixed."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import torch

from msvq.config.budget import duration, family, within_budget
from msvq.config.settings import Settings
from msvq.core.errors import BadInput
from msvq.train.trainer import Trainer

WARM_UP = 2  # steps that are not counted: they allocate memory and choose kernels
LEAST, ENOUGH = 3, 1.5  # steps at least, and seconds, that are timed at each size of crop
UNSTEADY = 1.5  # times the fastest step: a median above it is of a machine that does other things too


class Stage(NamedTuple):
    """A stretch of the run at one size of crop."""

    start: int  # step
    share: float  # of the run
    size: int  # pixels


class Pace(NamedTuple):
    """Seconds of a step in one stage."""

    stage: Stage
    seconds: float
    steady: bool


def stages(trainer: Trainer) -> list[Stage]:
    """The stretches of `train.resolution`, or the whole run at the data's own size."""
    schedule = trainer.settings.resolution or [(0.0, trainer.augment.size)]
    ends = [share for share, _ in schedule[1:]] + [1.0]
    return [
        Stage(min(math.ceil(share * trainer.total_steps), trainer.total_steps - 1), end - share, size)
        for (share, size), end in zip(schedule, ends, strict=True)
    ]
