"""How long a run takes and what it holds, from a few of its steps, one look at its evaluation and one checkpoint."""

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from msvq.config.settings import Settings, parse_save_interval
from msvq.core.console import Display
from msvq.core.errors import BadInput
from msvq.core.runtime import resolve_device
from msvq.evaluate.diagnostics.health import NUM_PICTURES, effective_rank
from msvq.evaluate.features import feature_function
from msvq.evaluate.knn import MIN_ROWS, SIMILARITIES, knn_predict, last_bank
from msvq.preflight.machine import available_memory, forget_peak, held_memory, peak_memory
from msvq.preflight.timing import READ, time_steps
from msvq.preflight.trial_run import Trial, open_trial, time_packing
from msvq.train.budget import BUSY_SENTENCE, STARVED, seconds_of, seconds_to_finish, stages
from msvq.train.monitors import is_due
from msvq.train.step import check_fit
from msvq.train.trainer import Trainer

SAMPLE = 256  # pictures whose features are taken
MOST_BANK = 20_000  # of the kNN's bank that is tried; its time grows with the number
QUERIES = 1_000  # whose neighbours are sought, to time the kNN
DIVISIONS = (2, 4, 8, 16)  # of a batch, to hold less of it at once
PATIENCE = 5.0  # seconds of steps at one size: slow steps differ little
ROOM = 0.95  # of the memory that there is: the system needs some, too
KEPT_CHECKPOINTS = 3  # the last, the one before, and the one that is being written


@dataclass(frozen=True)
class Time:
    """Seconds."""

    resolutions: list[dict[str, float]]  # one row per size of crop
    steps_per_epoch: int
    steps: int
    epochs: int
    epoch: float  # training steps alone, the mean over the run
    training: float
    evaluation: float  # all of them, while it trains
    evaluations: int
    checkpoints: float
    finish: float  # what comes after the last step, to the report
    packing: float | None  # once, before the run; None: not known

    @property
    def total(self) -> float:
        """From the command to the report."""
        return self.training + self.evaluation + self.checkpoints + self.finish + (self.packing or 0.0)


@dataclass(frozen=True)
class Memory:
    """Bytes, of the device."""

    peak: int  # measured
    before: int  # held before anything of the method was there
    fixed: int  # weights, gradients and optimiser state: whatever the batch
    evaluation: int  # features of all pictures and a chunk of their similarities
    unheld: int  # pictures that the run will hold, and the trial did not

    @property
    def needed(self) -> int:
        """What the run will hold at most."""
        return self.unheld + max(self.peak, self.before + self.fixed + self.evaluation)

    def with_batch(self, share: float) -> int:
        """About what is needed if only this share of the batch is held at once."""
        base = self.before + self.fixed
        return self.unheld + base + max(int(share * max(0, self.peak - base)), self.evaluation)


@dataclass(frozen=True)
class Disk:
    """Bytes."""

    checkpoint: int
    encoder: int
    pack: int

    @property
    def run(self) -> int:
        """What the run directory needs."""
        return KEPT_CHECKPOINTS * self.checkpoint + self.encoder


@dataclass(frozen=True)
class Estimate:
    """What a run will need."""

    settings: Settings
    time: Time
    memory: Memory | None  # None: the system does not tell
    disk: Disk
    available: int | None  # bytes of memory that the run may hold; None: the system does not tell
    divisions: tuple[int, ...] = ()  # into which the batch may be divided further
    absent: bool = False  # the data set is not on this machine
    facts: Mapping[str, Any] = field(default_factory=dict)  # what was tried, and where
    notes: Sequence[str] = ()


def estimate(
    settings: Settings,
    *,
    steps: int,
    display: Display,
    keep: Sequence[str] | None = None,
    memory: int | None = None,
    what: str = "",
) -> Estimate:
    """Try the run and add up. `memory`: bytes instead of the machine's; `what` says in a word what is tried."""
    available = available_memory(resolve_device(settings.train.device)) if memory is None else memory
    with open_trial(settings, display, keep=keep) as trial:
        trainer, device, data = trial.trainer, trial.trainer.device, trial.data.dataset
        held = _state_bytes(trainer)
        fixed = held + _num_bytes(p for p in trainer.method.parameters() if p.requires_grad)  # their gradients
        forget_peak(device)
        before = max(0, held_memory(device) - held)
        pictures, peak, notes = trainer.settings.batch_size, None, trial.notes
        few, expected = _probe(trainer, before + fixed, display)
        if available is not None and expected is not None and expected > ROOM * available:
            notes.append(f"a whole batch may not fit into memory: steps of {few} of its {pictures} pictures were timed")
            pictures, peak = few, expected
        started, computed = time.perf_counter(), time.process_time()
        resolutions = _time_steps(trial, steps, pictures, display, what)
        waited = time.process_time() - computed < STARVED * (time.perf_counter() - started)
        if waited and device.type == "cpu" and settings.data.mode != "stream":  # which waits for other processes
            notes.append(BUSY_SENTENCE)
        training = trainer.total_steps * sum(r["share_of_run"] * r["seconds"] for r in resolutions)
        with display.busy(f"timing the evaluation{what}"):
            one, finish = _time_evaluation(trial)
        saving = seconds_of(trainer.save, device)
        checkpoint = sum(file.stat().st_size for file in trainer.checkpoints.iterdir())
        packing = time_packing(trial.data, settings.data.workers)
        peak = peak_memory(device) if peak is None else peak
    settings, epochs = trial.settings, trial.settings.train.epochs
    evaluations = sum(is_due(epoch, settings.evaluate.every, epochs) for epoch in range(epochs + 1))
    every, seconds = parse_save_interval(settings.train.checkpoint_every)
    saves = 2 + int(training // seconds if every is None else trainer.total_steps // every)
    features = 0 if device.type == "cuda" else _evaluation_bytes(trial)
    counts = {"train": len(data.train), "labelled": len(data.labelled), "test": len(data.test)}
    return Estimate(
        settings,
        Time(
            resolutions=resolutions,
            steps_per_epoch=len(trainer.loader),
            steps=trainer.total_steps,
            epochs=epochs,
            epoch=training * len(trainer.loader) / trainer.total_steps,
            training=training,
            evaluation=evaluations * one,
            evaluations=evaluations,
            checkpoints=saves * saving,
            finish=finish,
            packing=packing,
        ),
        None if peak is None else Memory(peak, before, fixed, features, trial.data.unheld),
        Disk(checkpoint, _num_bytes(trainer.method.encoder.state_dict().values()), trial.data.pack),
        available,
        divisions=_divisions(trainer),
        absent=trial.data.absent,
        facts={**trial.describe(), "pictures": {**counts, "classes": data.num_classes}},
        notes=notes,
    )


def _probe(trainer: Trainer, base: int, display: Display) -> tuple[int, int | None]:
    """A part of the batch, and what a step on the whole batch would hold, so that no trial takes all memory."""
    whole, largest = trainer.settings.batch_size, max(stages(trainer), key=lambda stage: stage.size)
    for parts in reversed(_divisions(trainer)):
        with display.busy("trying a small batch"):
            time_steps(trainer, 1, start=largest.start, pictures=whole // parts)
        peak = peak_memory(trainer.device)
        return whole // parts, None if peak is None else base + parts * max(0, peak - base)
    return whole, None


def _divisions(trainer: Trainer) -> tuple[int, ...]:
    """Into how many parts the batch may be divided, more than now: batch norm wants its groups."""
    batch, parts = trainer.settings.batch_size, trainer.settings.accumulate
    found = []
    for num in DIVISIONS:
        with suppress(BadInput):
            check_fit(trainer.method, batch, num * parts)
            found.append(num)
    return tuple(found)


def _time_steps(trial: Trial, steps: int, pictures: int, display: Display, what: str) -> list[dict[str, float]]:
    """Each size of crop that the run will use; seconds are those of the whole batch."""
    results, batch = [], trial.settings.train.batch_size
    for stage in stages(trial.trainer):
        timed = time_steps(
            trial.trainer,
            steps,
            start=stage.start,
            parts=trial.trainer.device.type == "cpu",  # elsewhere waiting for each part costs time
            pictures=pictures,
            patience=PATIENCE,
            display=display,
            description=f"timing steps at {stage.size} pixels{what}",
        )
        results.append(
            {
                "size": stage.size,
                "share_of_run": stage.share,
                "steps_timed": len(timed.steps),
                "seconds": timed.seconds * batch / pictures,
                "pictures_per_second": pictures / timed.seconds,
                "share_of_reading": timed.parts.get(READ, 0.0) / timed.seconds,
            }
        )
    return results


def _time_evaluation(trial: Trial) -> tuple[float, float]:
    """Seconds of one online evaluation, and of all that comes after the last step, where more labels vote."""
    data, trainer, encoder = trial.data.dataset, trial.trainer, trial.trainer.method.encoder
    features = feature_function(data, trainer.device, trainer.precision)
    sample = (data.test if data.has_labels else data.train).slice(0, SAMPLE)
    dim = features(encoder, sample.slice(0, SAMPLE // 8)).shape[1]  # and warms up
    per_picture = seconds_of(lambda: features(encoder, sample), trainer.device) / len(sample)
    finish = seconds_to_finish(per_picture, data, trial.settings)
    if not data.has_labels:
        num = min(NUM_PICTURES, len(data.train))
        made_up = torch.randn(num, dim)
        return num * per_picture + seconds_of(lambda: effective_rank(made_up), trainer.device), finish
    settings = trial.settings.evaluate
    num_bank, num_test = min(len(data.labelled), settings.knn_bank or len(data.labelled)), len(data.test)
    most = len(last_bank(data.labelled, settings.knn_bank))
    num, queries = min(most, MOST_BANK), torch.randn(min(QUERIES, num_test), dim)
    bank, labels = torch.randn(num, dim), torch.arange(num) % data.num_classes
    options: dict[str, Any] = {"k": settings.knn_k, "temp": settings.knn_temp, "num_classes": data.num_classes}
    chunk = seconds_of(lambda: knn_predict(bank, labels, queries, **options), torch.device("cpu"))

    def voting(size: int) -> float:
        return chunk * num_test / len(queries) * size / num

    return (num_bank + num_test) * per_picture + voting(num_bank), finish + voting(most)


def _evaluation_bytes(trial: Trial) -> int:
    """Features in fp32, twice while they are joined, the bank's again at unit length, and a chunk of similarities."""
    data, knn_bank = trial.data.dataset, trial.settings.evaluate.knn_bank
    if not data.has_labels:
        return 0
    num, dim = len(last_bank(data.labelled, knn_bank)), int(getattr(trial.trainer.method.encoder, "feature_dim", 0))
    return 4 * (dim * (3 * num + 2 * len(data.test)) + max(MIN_ROWS * num, SIMILARITIES))


def _state_bytes(trainer: Trainer) -> int:
    """Weights, queues and what the optimiser remembers of each weight."""
    averages = (tensor for state in trainer.optimiser.state.values() for tensor in state.values())
    return _num_bytes(trainer.method.state_dict().values()) + _num_bytes(averages)


def _num_bytes(tensors: Iterable[Any]) -> int:
    return sum(tensor.nbytes for tensor in tensors if isinstance(tensor, torch.Tensor))
