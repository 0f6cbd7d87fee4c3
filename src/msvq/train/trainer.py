"""The training loop. It knows the contract of a method and the name of none."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, cast

import torch
from torch import Tensor

from msvq.config.settings import TrainSettings
from msvq.core.distributed import all_reduce_max, all_reduce_mean, barrier, raise_once, rank_slice, world_size
from msvq.core.errors import BadInput
from msvq.core.launch import is_main_process
from msvq.core.runtime import RandomStream, autocast, derive_seed, keep_freed_memory, step_rng, warmup_cosine
from msvq.data.augment import Augment
from msvq.data.loader import Loader
from msvq.methods.base import Batch, Loss, Method, SoftLabel
from msvq.model.teacher import memory_format
from msvq.runs.checkpoint import BEST, SaveInterval, checked_load, save_checkpoint, write_checkpoint
from msvq.runs.metrics import MetricsWriter
from msvq.train.callbacks import CallbackList, TrainerCallback
from msvq.train.ddp import micro_batches, sync_batchnorm_stats, wrap_ddp
from msvq.train.optim import load_optimiser, make_optimiser
from msvq.train.signals import Interrupted, Interruptions
from msvq.train.step import compile_networks, enough_memory, room_for_networks

SMALLEST_SCALE = 1e-3  # of a loss in fp16: gradients that overflow even so are not finite at all


class NonFiniteLoss(BadInput):
    """Training broke down; the sentence says where, and what is left."""


class StepOutput(NamedTuple):
    """What a step gives, or a part of one."""

    # The mean over the ranks, as are the logs. Of an earlier step where an accelerator would have to be waited for: its
    # losses are read when they are logged, an epoch ends or a checkpoint is written.
    loss: float
    logs: Mapping[str, Tensor]
    soft_labels: Sequence[tuple[Sequence[SoftLabel], Tensor]]  # this rank's rows of each part, with their labels [N]


class Trainer:
    """Trains a method and leaves metrics and checkpoints in a run directory.

    On several ranks each computes its rows of every batch, and after a step all of them have the same state; the first
    writes it. `record` is what a checkpoint carries along, such as the run's settings.
    """

    def __init__(
        self,
        method: Method,
        loader: Loader,
        augment: Augment,
        settings: TrainSettings,
        *,
        directory: Path,
        precision: str,
        callbacks: Sequence[TrainerCallback] = (),
        record: Mapping[str, Any] | None = None,
        announce: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        keep_freed_memory()
        self.loader, self.augment, self.settings, self.precision = loader, augment, settings, precision
        self.device = loader.device
        self.total_steps = settings.steps or settings.epochs * len(loader)
        self.peak_lr = settings.peak_lr
        self.record, self.announce = dict(record or {}), announce
        self.checkpoints = directory / "checkpoints"
        self.log = MetricsWriter(directory / "metrics.jsonl")
        self.callbacks = CallbackList(callbacks, announce)
        self.interruptions = Interruptions(announce)
        self.save_interval = SaveInterval(settings.checkpoint_every)

        # What training changes, and a checkpoint keeps.
        with room_for_networks(self.device):
            self.method = method.to(self.device)
            self.method.to(memory_format=memory_format(method, self.device, settings.compile))
        self.ddp_method = wrap_ddp(self.method)
        self.optimiser = make_optimiser(
            self.method,
            settings.optimiser,
            weight_decay=settings.weight_decay,
            decay_norm_and_bias=settings.decay_norm_and_bias,
        )
        if settings.compile:
            compile_networks(self.method, self.optimiser, self.device, announce)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision == "fp16")  # else it does nothing
        views_seed = derive_seed(settings.seed, RandomStream.VIEWS)
        self.generator = torch.Generator().manual_seed(views_seed)  # augmentation's own
        self.step = 0
        self.epoch_loss, self.epoch_steps = 0.0, 0  # the sum over the epoch's steps so far

        # What it does not keep.
        self.resumed = False
        self.loss = math.nan  # of the last step whose loss was read
        self._unread: list[Tensor] = []  # losses of the steps since then, of their parts [A]
        self.images_per_second = 0.0  # since the epoch began, or the run went on
        self.measured: dict[str, Any] = {}  # what the callbacks have last found, by the names of the log
        self.measured_at: dict[str, int] = {}  # after which epoch, by the same names

    @property
    def epoch(self) -> int:
        """The epoch of the last step, counted from 1; 0 before the first."""
        return -(-self.step // len(self.loader))

    def fit(self) -> None:
        """Train to the end, from wherever the run stands."""
        self.method.train()
        try:
            self.callbacks.on_train_start(self)
            with self.interruptions:
                if not self.resumed:
                    self._evaluate()
                    self.save()
                while self.step < self.total_steps:
                    self._train_epoch()
        finally:
            self.callbacks.on_train_end(self)

    def _train_epoch(self) -> None:
        """Train to the end of an epoch, from wherever in it the run stands."""
        started, first = time.monotonic(), self.step
        batches = self.loader.epoch(self.step // len(self.loader), start=self.step % len(self.loader))
        for batch in islice(batches, self.total_steps - self.step):  # the run may end before the epoch does
            # Apply schedules, compute the loss, update
            lr = self.learning_rate()
            output = self.train_step(*batch, lr)
            self.step += 1

            # Log
            elapsed = time.monotonic() - started
            self.images_per_second = (self.step - first) * self.settings.batch_size / elapsed if elapsed > 0 else 0.0
            self.callbacks.on_step(self, output)
            if self.step % self.settings.log_every == 0:
                logs = {name: float(value) for name, value in output.logs.items()}
                self._log("step", {"loss": output.loss, "lr": lr, **logs})

            # Checkpoint; after the epoch's last step, it is first evaluated
            if self.step % len(self.loader) and self.step < self.total_steps:
                self._save_if_due()

        self._read_losses(self.step)
        mean = self.epoch_loss / self.epoch_steps
        self._log("epoch", {"loss": mean, "lr": lr, "images_per_second": self.images_per_second})
        self._evaluate()
        self.epoch_loss, self.epoch_steps = 0.0, 0
        self._save_if_due()

    def _evaluate(self) -> None:
        numbers = self.callbacks.on_epoch_end(self)
        if numbers:
            self._log("eval", numbers)
        self.method.train()

    def _log(self, kind: str, values: Mapping[str, Any]) -> None:
        self.callbacks.on_log(self.log.write(kind, {"step": self.step, "epoch": self.epoch, **values}))

    def train_step(self, images: Tensor, labels: Tensor, indices: Tensor, lr: float) -> StepOutput:
        """One step on uint8 pictures [N, H, W, 3], this rank's rows of the batch: views, loss, gradient, update."""
        # Apply schedules
        for group in self.optimiser.param_groups:
            group["lr"] = self.peak_lr if group["constant_rate"] else lr

        num = self.settings.accumulate
        with (
            step_rng(self.settings.seed, RandomStream.LAYERS, self.step, self.device),
            enough_memory(self.device, len(images) * world_size(), num),
        ):
            # Compute the loss and its gradient
            if self.settings.compile and self.device.type == "cuda":
                torch.compiler.cudagraph_mark_step_begin()  # what the last step left may be written over
            self.optimiser.zero_grad()
            batch = (images, labels, indices)
            micro = micro_batches(batch, num, self.ddp_method)
            parts = [self._forward_backward(*part, share=1 / num) for part in micro]

            # Update
            self.scaler.step(self.optimiser)
        self.scaler.update()
        sync_batchnorm_stats(self.method)
        self._unread.append(torch.stack([all_reduce_mean(part.value.detach()) for part, _ in parts]))
        stacked = {
            name: torch.stack([torch.as_tensor(part.logs[name]) for part, _ in parts]) for name in parts[0][0].logs
        }
        logs = {name: all_reduce_mean(values.float().mean(0).to(self.device)) for name, values in stacked.items()}

        # Wait for the device, where the loss is asked for; all of the step is queued by now
        is_logged = (self.step + 1) % self.settings.log_every == 0
        if is_logged or self.device.type == "cpu" or math.isnan(self.loss):
            logs = dict(zip(logs, self._read_losses(self.step + 1, *logs.values()), strict=True))
        return StepOutput(self.loss, logs, [(answer.soft_labels, labels) for answer, labels in parts])

    def _read_losses(self, step: int, *others: Tensor) -> Sequence[Tensor]:
        """Add the losses up to that of `step` to the epoch's; raise if one is no number. Reads `others` with them."""
        if not self._unread:
            return others
        num, scales = self.settings.accumulate, [cast(Tensor, self.scaler._scale)] if self.scaler.is_enabled() else []
        read = torch.cat([part.view(-1) for part in (*self._unread, *others, *scales)]).cpu()
        last = num * len(self._unread)
        losses, values, scale = read[:last], read[last : last + len(others)], read[last + len(others) :]
        self._unread.clear()
        for ago, parts in zip(range(len(losses) // num - 1, -1, -1), losses.split(num), strict=True):
            self.loss = sum(parts.tolist()) / num
            if not math.isfinite(self.loss):
                self._break_down(f"the loss became {self.loss} at step {step - ago}")
            self.epoch_loss, self.epoch_steps = self.epoch_loss + self.loss, self.epoch_steps + 1
        if scales and float(scale) < SMALLEST_SCALE:
            self._break_down(f"gradients overflow in fp16 at step {step}, however small")
        return values.unbind()

    def _forward_backward(
        self, images: Tensor, labels: Tensor, indices: Tensor, *, share: float
    ) -> tuple[Loss, Tensor]:
        """Add `share` of a part's gradient to what is there; returns the part's loss and labels."""
        size, num = self.resolution(), len(images) * world_size()
        views = self.augment(images, self.method.views, self.generator, size=size, rows=rank_slice(), of=num)
        with autocast(self.device, self.precision):
            answer: Loss = self.ddp_method(Batch(views, labels, self.step / self.total_steps, indices))
        self.scaler.scale(answer.value * share).backward()
        return answer, labels

    def _break_down(self, what: str) -> NoReturn:
        way_out = f"the last good checkpoint is kept in {self.checkpoints}; try a lower train.base_lr"
        raise_once(NonFiniteLoss(f"{what}; {way_out} or --precision fp32"))

    def resolution(self) -> int | None:
        """The side of the coming step's crop; None is the data's own."""
        progress = self.step / self.total_steps
        return next((side for share, side in reversed(self.settings.resolution or []) if progress >= share), None)

    def learning_rate(self) -> float:
        """The rate of the coming step."""
        return warmup_cosine(
            self.step,
            base_lr=self.peak_lr,
            warmup_steps=round(self.settings.warmup_epochs * len(self.loader)),
            total_steps=self.total_steps,
        )

    def _save_if_due(self) -> None:
        """Write a checkpoint where it is time, at the end of the run, and when the run is asked to stop."""
        # Clocks, signals and callbacks differ between ranks, what is done about them must not.
        last, broken = self.step == self.total_steps, self.callbacks.failure is not None
        wanted = self.interruptions.wanted or 0
        due, stop, failed = all_reduce_max(last or broken or self.save_interval.due(self.step), wanted, broken)
        if stop:
            self.save(at_once=True)  # on disk before anything that takes time, or may fail
        if due or stop:
            self.save()
        stands = f"{self.step:,} of {self.total_steps:,} steps"
        if failed:
            self.callbacks.raise_failure(f"the run is saved after {stands}")
        if stop:
            raise Interrupted(f"stopped and saved after {stands}", stop)

    def state_dict(self) -> dict[str, Any]:
        """Everything that a run goes on from."""
        return {
            **self._encoder_state(),
            "total_steps": self.total_steps,
            "epoch_loss": [self.epoch_loss, self.epoch_steps],
            "optimiser": self.optimiser.state_dict(),
            "scaler": self.scaler.state_dict(),
            "generator": self.generator.get_state(),
            "monitors": self.callbacks.state_dict(),
        }

    def save(self, *, at_once: bool = False) -> None:
        """Write a checkpoint with everything in it; `at_once`: without what callbacks would do first."""
        self._read_losses(self.step)
        if not at_once:
            self.callbacks.on_save(self)
            self.method.train()
        state = self.state_dict()
        self.log.flush()  # what a checkpoint follows is on disk before it
        self._write(save_checkpoint, self.checkpoints, state)
        self.save_interval.saved()

    def save_best(self) -> None:
        """Keep the method as it is now, apart from the checkpoints that a run goes on from."""
        self._write(write_checkpoint, self.checkpoints / BEST, self._encoder_state())

    def _write(self, save: Callable[[Path, dict[str, Any]], None], path: Path, state: dict[str, Any]) -> None:
        if is_main_process():
            save(path, state)
        barrier()

    def _encoder_state(self) -> dict[str, Any]:
        """The method, and what the encoder's weights are called by in its state, before their own names."""
        names = (name for name, module in self.method.named_modules() if module is self.method.encoder)
        return {
            "step": self.step,
            "encoder": f"{next(names)}.",
            "record": self.record,
            "method": self.method.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint; what was logged after it is forgotten."""
        own = self.state_dict() | {"record": {}} | ({} if state.get("scaler") else {"scaler": {}})
        with checked_load(self.checkpoints, own, state):
            self.step, self.resumed = state["step"], True
            if self.step > self.total_steps:
                raise ValueError(f"step {self.step} of {self.total_steps}")
            self.epoch_loss, self.epoch_steps = state["epoch_loss"]
            self.method.load_state_dict(state["method"])
            load_optimiser(self.optimiser, state["optimiser"])
            if state.get("scaler"):
                self.scaler.load_state_dict(state["scaler"])
            self.generator.set_state(state["generator"])
            self.callbacks.load_state_dict(state["monitors"])
        self.log.rewind(self.step)
