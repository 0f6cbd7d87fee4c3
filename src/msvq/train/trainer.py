"""The training loop. It knows the contract of a method and the name of none."""

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from msvq.config.settings import TrainSettings
from msvq.core.distributed import average, gather, largest, raise_once, rank_slice, wait_for_first, world_size
from msvq.core.errors import BadInput
from msvq.core.launch import is_main_process
from msvq.core.runtime import Stream, autocast, derive_seed, keep_freed_memory, loss_scaler, step_rng, warmup_cosine
from msvq.data.augment import Augment
from msvq.data.loader import Loader
from msvq.methods.base import Batch, Loss, Method, SoftLabel
from msvq.runs.checkpoint import SaveInterval, save_best, save_checkpoint, whole_state
from msvq.runs.metrics import MetricsWriter
from msvq.train.callbacks import Listeners
from msvq.train.compile import compile_errors_as_sentence, compile_networks
from msvq.train.ddp import gather_soft_labels, no_grad_sync, sync_batchnorm_stats, wrap_ddp
from msvq.train.limits import check_fit, enough_memory
from msvq.train.optim import load_optimiser, make_optimiser
from msvq.train.progress import TrainingDisplay
from msvq.train.signals import Interrupted, Interruptions

SMALLEST_SCALE = 1e-3  # of a loss in fp16: gradients that overflow even so are not finite at all


class NonFiniteLoss(BadInput):
    """Training broke down; the sentence says where, and what is left."""


class Monitor(Protocol):
    """What is measured between epochs. Its numbers go to the log; its state goes into checkpoints."""

    def due(self, epoch: int) -> bool:
        """Whether to measure after so many epochs; asked for epoch 0 too, before training."""
        ...

    def measure(self, method: Method, epoch: int) -> Mapping[str, Any]:
        """The numbers, by the names they get in the log."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        ...


class Observer(Protocol):
    """What looks at the teachers while a method trains."""

    def wants(self, step: int) -> bool:
        """Whether to look at the coming step, counted from 0."""
        ...

    def observe(self, soft_labels: Sequence[SoftLabel], labels: Tensor) -> None:
        """Look at a batch, or a part of one, with its labels [N]."""
        ...


class Trainer:
    """Trains a method and leaves metrics and checkpoints in a run directory.

    On several ranks each computes its rows of every batch, and after a step all of them have the same state; the first
    writes it.
    """

    def __init__(
        self,
        method: Method,
        loader: Loader,
        augment: Augment,
        settings: TrainSettings,
        *,
        directory: Path,
        display: TrainingDisplay,
        precision: str,
        monitors: Sequence[Monitor] = (),
        observers: Sequence[Observer] = (),
        record: Mapping[str, Any] | None = None,
        listeners: Listeners | None = None,
    ) -> None:
        keep_freed_memory()
        check_fit(method, settings.batch_size, settings.accumulate)
        self.device = loader.device
        self.method = method.to(self.device).to(memory_format=torch.channels_last)
        self.learner = wrap_ddp(self.method)
        self.loader, self.augment, self.settings = loader, augment, settings
        self.display, self.precision = display, precision
        self.monitors, self.observers = monitors, observers
        self.record = dict(record or {})  # what a checkpoint carries along, such as the run's settings
        self.checkpoints = directory / "checkpoints"
        self.listeners = listeners or Listeners()
        self.log = MetricsWriter(directory / "metrics.jsonl", self.listeners.hear)
        self.optimiser = make_optimiser(
            self.method,
            weight_decay=settings.weight_decay,
            decay_norm_and_bias=settings.decay_norm_and_bias,
            scaled=precision == "fp16",
        )
        self.scaler = loss_scaler(self.device, precision)
        if settings.compile:
            compile_networks(self.method)
        self.generator = torch.Generator().manual_seed(derive_seed(settings.seed, Stream.VIEWS))  # augmentation's own
        self.step, self.resumed = 0, False
        self.epoch_loss, self.epoch_steps = 0.0, 0  # the sum over the epoch's steps so far
        self.cadence = SaveInterval(settings.checkpoint_every)
        self.interruptions = Interruptions(display.announce)
        self.total_steps = settings.epochs * len(loader)
        self.peak_rate = settings.base_lr * settings.batch_size / 256

    def fit(self) -> None:
        """Train to the end, from wherever the run stands."""
        self.method.train()
        settings = self.record.get("settings", {})
        heard = self.listeners.listening(self.log.path, settings, self.step, self.display.announce)
        with heard, self.display, self.interruptions:
            self.display.start(self.step)
            if not self.resumed:
                self._measure(0)
                self.save()
            for epoch in range(self.step // len(self.loader), self.settings.epochs):
                loss, speed = self._train_epoch(epoch)
                self._measure(epoch + 1)
                self.display.epoch(self.step, epoch + 1, loss, speed)
                self._save_if_due(last=epoch + 1 == self.settings.epochs)

    def _save_if_due(self, *, last: bool = False) -> None:
        """Write a checkpoint where it is time, at the end of the run, and when the run is asked to stop."""
        # Clocks, signals and callbacks differ between ranks, what is done about them must not.
        broken = self.listeners.failure is not None
        wanted = self.interruptions.wanted or 0
        due, stop, failed = largest(last or broken or self.cadence.due(self.step), wanted, broken)
        if due or stop:
            self.save()
        if failed:
            raise self.listeners.stopped(f"the run is saved after {self.step:,} of {self.total_steps:,} steps")
        if stop:
            raise Interrupted(f"stopped and saved after {self.step:,} of {self.total_steps:,} steps", stop)

    def _train_epoch(self, epoch: int) -> tuple[float, float]:
        """Train to the end of an epoch; returns its mean loss and pictures per second."""
        started, first = time.monotonic(), self.step
        for batch in self.loader.epoch(epoch, start=self.step % len(self.loader)):
            lr = self.learning_rate()
            loss, logs = self.train_step(*batch, lr)
            self.step += 1
            self.epoch_loss, self.epoch_steps = self.epoch_loss + loss, self.epoch_steps + 1
            elapsed = time.monotonic() - started
            speed = (self.step - first) * self.settings.batch_size / elapsed if elapsed > 0 else 0.0
            if self.step % self.settings.log_every == 0:
                values = {"loss": loss, "lr": lr, **{name: float(value) for name, value in logs.items()}}
                self._log("step", {"step": self.step, "epoch": epoch + 1, **values})
            self.display.step(self.step, epoch + 1, loss, speed)
            if self.step % len(self.loader):  # after the epoch's last step, it is first measured
                self._save_if_due()
        mean = self.epoch_loss / self.epoch_steps
        self.epoch_loss, self.epoch_steps = 0.0, 0
        self._log(
            "epoch",
            {"step": self.step, "epoch": epoch + 1, "loss": mean, "lr": lr, "images_per_second": speed},
        )
        return mean, speed

    def _log(self, kind: str, values: Mapping[str, Any]) -> None:
        self.log.write(kind, values)
        self.listeners.wait()

    def train_step(
        self, images: Tensor, labels: Tensor, indices: Tensor, lr: float
    ) -> tuple[float, Mapping[str, Tensor]]:
        """One step on uint8 pictures [N, H, W, 3]: views, loss, gradient, update. Returns loss and logs.

        The pictures are this rank's rows of the batch, and loss and logs the means over the ranks.
        """
        for group in self.optimiser.param_groups:
            group["lr"] = self.peak_rate if group["constant_rate"] else lr
        self.optimiser.zero_grad()
        num, found = self.settings.accumulate, []
        parts = zip(*(whole.chunk(num) for whole in (images, labels, indices)), strict=True)
        with (
            step_rng(self.settings.seed, Stream.LAYERS, self.step, self.device),
            enough_memory(self.device, len(images) * world_size(), num),
            compile_errors_as_sentence(self.settings.compile),
        ):
            for number, part in enumerate(parts):
                if num > 1:  # the batch moves them once
                    self.method.defer_updates(teachers=number > 0, queues=True)
                with no_grad_sync(self.learner, number + 1 < num):
                    found.append(self._gradient(*part, share=1 / num))
            if num > 1:
                self.method.defer_updates(teachers=False, queues=False)
            self.scaler.step(self.optimiser)
        self.scaler.update()
        sync_batchnorm_stats(self.method)
        if self.scaler.is_enabled() and self.scaler.get_scale() < SMALLEST_SCALE:
            raise self._broken(f"gradients overflow in fp16 at step {self.step + 1}, however small")
        logs = {name: torch.stack([torch.as_tensor(logs[name]) for _, logs in found]) for name in found[0][1]}
        means = {name: average(values.float().mean(0).to(self.device)) for name, values in logs.items()}
        return sum(loss for loss, _ in found) / num, means

    def _gradient(
        self, images: Tensor, labels: Tensor, indices: Tensor, *, share: float
    ) -> tuple[float, Mapping[str, Tensor]]:
        """Add `share` of a part's gradient to what is there."""
        size, num = self.resolution(), len(images) * world_size()
        views = self.augment(images, self.method.views, self.generator, size=size, rows=rank_slice(), of=num)
        with autocast(self.device, self.precision):
            answer: Loss = self.learner(Batch(views, labels, self.step / self.total_steps, indices))
        loss = answer.value
        self.scaler.scale(loss * share).backward()
        value = float(average(loss.detach()))  # after the backward pass, so that a GPU does not wait in between
        if not math.isfinite(value):
            raise self._broken(f"the loss became {value} at step {self.step + 1}")
        for observer in self.observers:
            if observer.wants(self.step):
                observer.observe(gather_soft_labels(answer.soft_labels), gather(labels))
        return value, answer.logs

    def _broken(self, what: str) -> BadInput:
        way_out = f"the last good checkpoint is kept in {self.checkpoints}; try a lower train.base_lr"
        return raise_once(NonFiniteLoss(f"{what}; {way_out} or --precision fp32"))

    def resolution(self) -> int | None:
        """The side of the coming step's crop; None is the data's own."""
        progress = self.step / self.total_steps
        return next((side for share, side in reversed(self.settings.resolution or []) if progress >= share), None)

    def learning_rate(self) -> float:
        """The rate of the coming step."""
        return warmup_cosine(
            self.step,
            base_lr=self.peak_rate,
            warmup_steps=round(self.settings.warmup_epochs * len(self.loader)),
            total_steps=self.total_steps,
        )

    def _measure(self, epoch: int) -> None:
        values: dict[str, Any] = {}
        for monitor in self.monitors:
            if monitor.due(epoch):
                values |= monitor.measure(self.method, epoch)
        if values:
            self.display.measured.update(values)
            self._log("eval", {"step": self.step, "epoch": epoch, **values})
        self.method.train()

    def state_dict(self) -> dict[str, Any]:
        """Everything that a run goes on from."""
        return {
            "step": self.step,
            "encoder": self._encoder_prefix(),
            "total_steps": self.total_steps,
            "epoch_loss": [self.epoch_loss, self.epoch_steps],
            "record": self.record,
            "method": self.method.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "scaler": self.scaler.state_dict(),
            "generator": self.generator.get_state(),
            "monitors": {type(monitor).__name__: monitor.state_dict() for monitor in self.monitors},
        }

    def save(self) -> None:
        """Write a checkpoint with everything in it."""
        state = self.state_dict()
        self.log.flush()  # what a checkpoint follows is on disk before it
        if is_main_process():
            save_checkpoint(self.checkpoints, state)
        wait_for_first()
        self.cadence.saved()

    def save_best(self) -> None:
        """Keep the method as it is now, apart from the checkpoints that a run goes on from."""
        state = {"step": self.step, "encoder": self._encoder_prefix(), "record": self.record}
        state["method"] = self.method.state_dict()
        if is_main_process():
            save_best(self.checkpoints, state)
        wait_for_first()

    def _encoder_prefix(self) -> str:
        """What the encoder's weights are called by in the method's state, before their own names."""
        names = (name for name, module in self.method.named_modules() if module is self.method.encoder)
        return f"{next(names)}."

    def load(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint; what was logged after it is forgotten."""
        own = self.state_dict() | {"record": {}} | ({} if state.get("scaler") else {"scaler": {}})
        with whole_state(self.checkpoints, own, state):
            self.step, self.resumed = state["step"], True
            if self.step > self.total_steps:
                raise ValueError(f"step {self.step} of {self.total_steps}")
            self.epoch_loss, self.epoch_steps = state["epoch_loss"]
            self.method.load_state_dict(state["method"])
            load_optimiser(self.optimiser, state["optimiser"])
            if state.get("scaler"):
                self.scaler.load_state_dict(state["scaler"])
            self.generator.set_state(state["generator"])
            for monitor in self.monitors:
                monitor.load_state_dict(state["monitors"][type(monitor).__name__])
        self.log.rewind(self.step)
