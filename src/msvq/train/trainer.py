"""The training loop. It knows the contract of a method and the name of none."""

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Protocol

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn

from msvq.data.augment import Augment
from msvq.data.loader import VIEWS, Loader, derive_seed
from msvq.errors import BadInput
from msvq.methods.base import Batch, Method
from msvq.model.norm import SplitBatchNorm2d
from msvq.model.queue import Queue
from msvq.settings import Section
from msvq.train.checkpoint import save_checkpoint
from msvq.train.optim import make_optimiser, warmup_cosine
from msvq.train.precision import Precision, autocast
from msvq.train.progress import TrainingDisplay
from msvq.train.runlog import RunLog


class TrainSettings(Section):
    """How long and how fast to learn; the defaults are the paper's (methods.md 1.8)."""

    epochs: Annotated[int, Ge(1)] = 200
    batch_size: Annotated[int, Ge(2)] = 256
    base_lr: Annotated[float, Gt(0)] = 0.06  # for a batch of 256; scaled with the batch
    warmup_epochs: Annotated[float, Ge(0)] = 5
    weight_decay: Annotated[float, Ge(0)] = 5e-4
    decay_norm_and_bias: bool = True
    device: str = "auto"
    precision: Precision = "auto"
    checkpoint_every: Annotated[int, Ge(1)] = 1  # epochs
    log_every: Annotated[int, Ge(1)] = 10  # steps
    seed: Annotated[int, Ge(0)] = 0


class NonFiniteLoss(BadInput):
    """Training broke down; the sentence says where, and what is left."""


class Monitor(Protocol):
    """What is measured between epochs. Its numbers go to the log; its state goes into checkpoints."""

    def due(self, epoch: int) -> bool:
        """Whether to measure after so many epochs; asked for epoch 0 too, before training."""
        ...

    def measure(self, method: Method, epoch: int) -> Mapping[str, float]:
        """The numbers, by the names they get in the log."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        ...


def check_fit(method: nn.Module, batch_size: int) -> None:
    """Raise if the batch does not suit the method's batch-norm groups or queues."""
    for module in method.modules():
        if isinstance(module, SplitBatchNorm2d) and batch_size % module.splits:
            raise BadInput(
                f"train.batch_size {batch_size} is not a multiple of the method's bn_splits {module.splits}; "
                f"change one of them"
            )
        if isinstance(module, SplitBatchNorm2d) and batch_size == module.splits > 1:
            raise BadInput(
                f"train.batch_size {batch_size} leaves one picture in each of the method's bn_splits {module.splits}; "
                f"lower bn_splits"
            )
        if isinstance(module, Queue) and len(module) < batch_size:
            raise BadInput(
                f"the method's queue_size {len(module)} is smaller than train.batch_size {batch_size}; "
                f"a queue holds at least one batch"
            )


class Trainer:
    """Trains a method and leaves metrics and checkpoints in a run directory."""

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
    ) -> None:
        check_fit(method, settings.batch_size)
        self.device = loader.device
        self.method = method.to(self.device).to(memory_format=torch.channels_last)
        self.loader, self.augment, self.settings = loader, augment, settings
        self.display, self.precision, self.monitors = display, precision, monitors
        self.checkpoints = directory / "checkpoints"
        self.log = RunLog(directory / "metrics.jsonl")
        self.optimiser = make_optimiser(
            self.method,
            weight_decay=settings.weight_decay,
            decay_norm_and_bias=settings.decay_norm_and_bias,
        )
        self.generator = torch.Generator().manual_seed(derive_seed(settings.seed, VIEWS))  # augmentation's own
        self.step, self.resumed = 0, False
        self.total_steps = settings.epochs * len(loader)
        self.peak_rate = settings.base_lr * settings.batch_size / 256

    def fit(self) -> None:
        """Train to the end, from wherever the run stands."""
        self.method.train()
        with self.display:
            self.display.start(self.step)
            if not self.resumed:
                self._measure(0)
                self.save()
            for epoch in range(self.step // len(self.loader), self.settings.epochs):
                loss, speed = self._train_epoch(epoch)
                self._measure(epoch + 1)
                self.display.epoch(self.step, epoch + 1, loss, speed)
                if (epoch + 1) % self.settings.checkpoint_every == 0 or epoch + 1 == self.settings.epochs:
                    self.save()

    def _train_epoch(self, epoch: int) -> tuple[float, float]:
        """Train to the end of an epoch; returns its mean loss and pictures per second."""
        started, first = time.monotonic(), self.step
        losses: list[float] = []
        for batch in self.loader.epoch(epoch, start=self.step % len(self.loader)):
            lr = self.learning_rate()
            loss, logs = self.train_step(*batch, lr)
            self.step += 1
            losses.append(loss)
            speed = (self.step - first) * self.settings.batch_size / (time.monotonic() - started)
            if self.step % self.settings.log_every == 0:
                values = {"loss": loss, "lr": lr, **{name: float(value) for name, value in logs.items()}}
                self.log.write("step", {"step": self.step, "epoch": epoch + 1, **values})
            self.display.step(self.step, epoch + 1, loss, speed)
        mean = sum(losses) / len(losses)
        self.log.write(
            "epoch",
            {"step": self.step, "epoch": epoch + 1, "loss": mean, "lr": lr, "images_per_second": speed},
        )
        return mean, speed

    def train_step(
        self, images: Tensor, labels: Tensor, indices: Tensor, lr: float
    ) -> tuple[float, Mapping[str, Tensor]]:
        """One step on uint8 pictures [N, H, W, 3]: views, loss, gradient, update. Returns loss and logs."""
        for group in self.optimiser.param_groups:
            group["lr"] = self.peak_rate if group["constant_rate"] else lr
        views = self.augment(images, self.method.views, self.generator)
        with autocast(self.device, self.precision):
            loss, logs = self.method(Batch(views, labels, self.step / self.total_steps, indices))
        value = float(loss.detach())
        if not math.isfinite(value):
            raise NonFiniteLoss(
                f"the loss became {value} at step {self.step + 1}; the last good checkpoint is kept in "
                f"{self.checkpoints}; try a lower train.base_lr or --precision fp32"
            )
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        return value, logs

    def learning_rate(self) -> float:
        """The rate of the coming step."""
        return warmup_cosine(
            self.step,
            base_lr=self.peak_rate,
            warmup_steps=round(self.settings.warmup_epochs * len(self.loader)),
            total_steps=self.total_steps,
        )

    def _measure(self, epoch: int) -> None:
        for monitor in self.monitors:
            if monitor.due(epoch):
                values = monitor.measure(self.method, epoch)
                self.display.measured.update(values)
                self.log.write("eval", {"step": self.step, "epoch": epoch, **values})
        self.method.train()

    def save(self) -> None:
        """Write a checkpoint with everything in it."""
        state = {
            "step": self.step,
            "method": self.method.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "generator": self.generator.get_state(),
            "monitors": [monitor.state_dict() for monitor in self.monitors],
        }
        save_checkpoint(self.checkpoints, state)

    def load(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint; what was logged after it is forgotten."""
        self.step, self.resumed = state["step"], True
        self.method.load_state_dict(state["method"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.generator.set_state(state["generator"])
        for monitor, saved in zip(self.monitors, state["monitors"], strict=True):
            monitor.load_state_dict(saved)
        self.log.rewind(self.step)
