"""A run that fits the time there is: what to train is chosen, the pace of this machine taken, the steps fixed."""

import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import count
from statistics import mean, median
from typing import NamedTuple

import torch
from torch import Tensor

from msvq.config.budget import LOOKING, MOST_LOOKS, choices, expectation, fix_length, is_usual
from msvq.config.settings import Settings
from msvq.core.errors import BadInput
from msvq.core.runtime import synchronise
from msvq.data.store import ImageDataset
from msvq.evaluate.diagnostics.copies import NUM_PICTURES
from msvq.evaluate.diagnostics.gallery import NUM_BANK
from msvq.evaluate.features import feature_function
from msvq.evaluate.knn import last_bank
from msvq.train.trainer import Trainer

WARM_UP = 2  # steps that are not counted: they allocate memory and choose kernels
LEAST_STEPS, MOST_STEPS, ENOUGH = 3, 50, 1.0  # timed at each size of crop, and seconds that are enough
BUSY = 1.5  # times the fastest step: a median above it is of a machine that does something else, too
STARVED = 0.75  # share of a step in which a processor computes it: with less, others have the processor
BUSY_SENTENCE = "the machine is busy with something else, so this pace is not to be trusted"
SAMPLE = 256  # pictures whose features are taken
FINISH, PER_POINT = 6.0, 0.005  # seconds of what comes after the steps, and of each picture on the map
PER_PAIR = 3e-8  # seconds of a labelled and a test picture in three votes (two baselines, an encoder), on two cores
GROUPS = 3.0  # seconds of finding groups, without labels

Trial = Callable[[Settings], AbstractContextManager[Trainer]]  # a trainer as the run will have it, to try


class Stage(NamedTuple):
    """A stretch of the run at one size of crop."""

    start: int  # step
    share: float  # of the run
    size: int  # pixels


class Pace(NamedTuple):
    """What was measured of a run, in seconds."""

    stages: list[tuple[Stage, float]]  # with the seconds of a step
    look: float  # at the run on its way
    finish: float  # from the last step to the report
    steps_per_epoch: int
    busy: bool  # the machine does something else, too: the seconds are not to be trusted

    @property
    def step(self) -> float:
        """The mean over the run."""
        return sum(stage.share * seconds for stage, seconds in self.stages)


class Fitted(NamedTuple):
    """A run that fits."""

    settings: Settings
    pace: Pace
    num_steps: int
    done: float  # when, as time.time() tells it
    usual: bool  # nothing that matters was named: it is what the expectations were measured of

    def describe(self) -> list[str]:
        """What will be done, why, and when it will be over, in a few lines."""
        settings, pace = self.settings, self.pace
        crops = ", ".join(str(stage.size) for stage, _ in pace.stages)
        lines = [
            f"plan: {settings.method_name}, {settings.backbone.title}, crops of {crops} pixels"
            f"{': the largest network that makes enough steps in the time' if self.usual else ''}",
            f"plan: {self.num_steps:,} steps ({self.num_steps / pace.steps_per_epoch:.1f} epochs) of "
            f"{1000 * pace.step:.0f} ms; done about {time.strftime('%H:%M:%S', time.localtime(self.done))}",
        ]
        if settings.backbone.starts_trained:
            lines.append(
                f"plan: rate {settings.train.base_lr:g}: it goes on from trained weights, which a high one spoils"
            )
        elif self.usual:
            lines.append(f"plan: what to expect: {expectation(self.num_steps)}")
        else:
            lines.append("plan: what to expect is known only of what a budget chooses itself")
        if pace.busy:
            lines.append(f"note: {BUSY_SENTENCE}")
        return lines


def stages(trainer: Trainer) -> list[Stage]:
    """The stretches of `train.resolution`, or the whole run at the data's own size."""
    schedule = trainer.settings.resolution or [(0.0, trainer.augment.size)]
    ends = [share for share, _ in schedule[1:]] + [1.0]
    return [
        Stage(min(math.ceil(share * trainer.total_steps), trainer.total_steps - 1), end - share, size)
        for (share, size), end in zip(schedule, ends, strict=True)
    ]


def fit_to_budget(
    settings: Settings,
    data: ImageDataset,
    seconds: float,
    spent: Callable[[], float],
    *,
    keep: Collection[str],
    trial: Trial,
) -> Fitted:
    """Settings of a run that ends when as many seconds are `spent`, with all that comes before and after its steps.

    The networks that a budget chooses from are tried one after the other, as long as a larger one is worth it. What was
    named (`keep`) stays as it is.
    """
    offered = choices(settings, seconds - spent(), (data.size, data.test_size), keep=keep)
    paces: list[Pace] = []
    every = settings.evaluate.every if "evaluate.every" in keep else None

    def fit(pace: Pace) -> tuple[int, int]:
        """Looks and steps in what is left."""
        left = seconds - spent() - pace.finish - pace.look  # before the first step
        if every is not None:
            look_too = pace.step + pace.look / (every * pace.steps_per_epoch)
            return 1, int((left - pace.look) / look_too)
        looks = max(1, min(MOST_LOOKS, int(LOOKING * left / pace.look)))
        return looks, int((left - looks * pace.look) / pace.step)

    def count_steps(number: int) -> int:
        with trial(offered[number].settings) as trainer:
            paces.append(measure_pace(trainer, data, offered[number].settings))
        return fit(paces[-1])[1]

    number = climb([choice.least_steps for choice in offered], count_steps)
    pace = paces[number]
    looks, steps = fit(pace)  # once more: trying a larger network has taken time
    if steps < pace.steps_per_epoch:
        needed = spent() + pace.finish + 2 * pace.look + pace.steps_per_epoch * pace.step
        raise BadInput(
            f"the time is too short to see each of the {len(data.train):,} pictures once: give --budget "
            f"{in_minutes(needed)} or more, or fewer pictures with --set data.limit=..."
        )
    fixed = fix_length(offered[number].settings, steps, pace.steps_per_epoch, looks=looks, keep=keep)
    return Fitted(fixed, pace, steps, time.time() + seconds - spent(), is_usual(settings, keep))


def climb(least_steps: Sequence[int], count_steps: Callable[[int], int]) -> int:
    """The number of the largest network, the smallest being 0, that makes its least steps.

    `count_steps` says how many a network makes. One that the network below rules out is not asked for: it is slower.
    """
    steps = count_steps(0)
    for number, least in enumerate(least_steps[1:], start=1):
        if steps < least or (steps := count_steps(number)) < least:
            return number - 1
    return len(least_steps) - 1


def in_minutes(seconds: float) -> str:
    """A time to give as a budget, rounded up."""
    return f"{math.ceil(1.1 * seconds / 10) * 10}s" if seconds < 120 else f"{math.ceil(1.1 * seconds / 60)}m"


def measure_pace(trainer: Trainer, data: ImageDataset, settings: Settings) -> Pace:
    """Some steps at each size of crop, a look at the run on its way, and features of a few pictures."""
    device, encoder = trainer.device, trainer.method.encoder
    timed = [(stage, *time_steps(trainer, stage)) for stage in stages(trainer)]
    trainer.step = 0
    look = seconds_of(lambda: trainer.callbacks.on_epoch_end(trainer), device)
    sample, features = data.train.subsample(SAMPLE), feature_function(data, device, "fp32")
    features(encoder, sample)
    per_picture = seconds_of(lambda: features(encoder, sample), device) / len(sample)
    return Pace(
        [(stage, seconds) for stage, seconds, _ in timed],
        look,
        seconds_to_finish(per_picture, data, settings),
        len(trainer.loader),
        settings.data.mode != "stream" and any(busy for *_, busy in timed),  # which shares the machine with itself
    )


def seconds_to_finish(per_picture: float, data: ImageDataset, settings: Settings) -> float:
    """From the last step to the report: kNN, neighbours, map and changed copies, by the seconds of a feature."""
    bank = last_bank(data.labelled, settings.evaluate.knn_bank)
    judged = len(bank) + len(data.test)
    compared = 0.0
    if len(bank) > (settings.evaluate.knn_bank or len(bank)):  # the untrained network, too, and baselines by so many
        judged, compared = 2 * judged, PER_PAIR * len(bank) * len(data.test)
    looked_up = 2 * (min(NUM_BANK, len(data.train)) + settings.analyze.map)
    tested = 4 * min(NUM_PICTURES, len(data.train) + len(data.test))  # originals and copies, before and after
    groups = 0 if data.has_labels else GROUPS
    return FINISH + groups + compared + PER_POINT * settings.analyze.map + per_picture * (judged + looked_up + tested)


def time_steps(trainer: Trainer, stage: Stage) -> tuple[float, bool]:
    """Seconds of a step with the reading of its pictures, and whether something else keeps the machine busy."""
    trainer.method.train()
    batches = endless_batches(trainer)
    read: list[float] = []
    seconds: list[float] = []
    computed: list[float] = []
    while len(seconds) < WARM_UP + MOST_STEPS:
        begun = time.perf_counter()
        batch = next(batches)
        read.append(time.perf_counter() - begun)
        trainer.step = stage.start  # the schedules stand still
        started = time.process_time()
        seconds.append(seconds_of(partial(trainer.train_step, *batch, trainer.learning_rate()), trainer.device))
        computed.append(time.process_time() - started)
        counted = seconds[WARM_UP:]
        if len(counted) >= LEAST_STEPS and sum(counted) + sum(read[WARM_UP:]) > ENOUGH:
            break
    starved = trainer.device.type == "cpu" and sum(computed[WARM_UP:]) < STARVED * sum(counted)
    return median(counted) + mean(read[WARM_UP:]), starved or median(counted) > BUSY * min(counted)


def endless_batches(trainer: Trainer) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Batches of one epoch after the other."""
    for epoch in count():
        yield from trainer.loader.epoch(epoch)


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """How long some work takes, with what it leaves to an accelerator."""
    synchronise(device)
    started = time.perf_counter()
    work()
    synchronise(device)
    return time.perf_counter() - started
