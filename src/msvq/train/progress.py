"""What a person sees while a run trains: a live bar in a terminal, plain lines elsewhere."""

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from msvq.runs.metrics import LOGGED_DIGITS
from msvq.train.callbacks import TrainerCallback
from msvq.train.trainer import StepOutput, Trainer

BAR, TIME = 10, len(" 00:00:00 left")
# What of the measurements is shown, in this order.
SHOWN = {
    "knn_top1": "kNN {:.1f} %",
    "knn_top1_best": " (best {:.1f})",
    "rank": "rank {:.1f}",
    "feature_spread": "  spread {:.3f}",
}


class TrainingDisplay(TrainerCallback):
    """Epoch, loss, what was last measured, pictures per second and time left. The last of the callbacks."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar: Progress | None = None
        if console.is_terminal:
            self.bar = Progress(
                TextColumn("[bold]{task.description}"),
                BarColumn(bar_width=BAR),
                MofNCompleteColumn(),
                TextColumn("{task.fields[facts]}"),
                TimeRemainingColumn(),
                TextColumn("left"),
                console=console,
            )

    def on_train_start(self, trainer: Trainer) -> None:
        """Begin counting at the trainer's step, which is not 0 when a run is resumed."""
        self.first_step, self.started = trainer.step, time.monotonic()
        if self.bar is not None:
            self.bar.start()
            self.task = self.bar.add_task("starting", total=trainer.total_steps, completed=trainer.step, facts="")

    def on_step(self, trainer: Trainer, output: StepOutput) -> None:
        """Move the bar on."""
        self._move(trainer, output.loss)

    def on_epoch_end(self, trainer: Trainer) -> Mapping[str, Any]:
        """What was just measured: in the bar, or in a line where there is none."""
        if not trainer.epoch:
            return {}
        loss = trainer.epoch_loss / trainer.epoch_steps
        if self.bar is not None:
            self._move(trainer, loss)
            return {}
        per_step = (time.monotonic() - self.started) / max(1, trainer.step - self.first_step)
        left = timedelta(seconds=round(per_step * (trainer.total_steps - trainer.step)))
        facts = "  ".join([_epoch(trainer), *describe(trainer, loss), f"{left} left"])
        self.console.print(facts, soft_wrap=True)
        return {}

    def on_train_end(self, trainer: Trainer) -> None:
        """Leave the bar as it is."""
        if self.bar is not None:
            self.bar.stop()

    def _move(self, trainer: Trainer, loss: float) -> None:
        if self.bar is None:
            return
        facts, epoch = describe(trainer, loss), _epoch(trainer)
        fixed = len(epoch) + BAR + 2 * len(str(trainer.total_steps)) + TIME + 6
        while len(facts) > 1 and fixed + len("  ".join(facts)) > self.console.width:  # the time left is worth more
            facts.pop()
        self.bar.update(self.task, completed=trainer.step, description=epoch, facts="  ".join(facts))


def _epoch(trainer: Trainer) -> str:
    return f"epoch {trainer.epoch}/{trainer.settings.epochs}"


def describe(trainer: Trainer, loss: float) -> list[str]:
    """The loss, what was last measured and when, and how fast it goes; the most important first."""
    known = [key for key in SHOWN if key in trainer.measured]
    if "knn_top1" in known:  # what needs no labels stays in the log
        known = [key for key in known if key.startswith("knn")]
    now = trainer.measured_at == trainer.epoch
    if not now and "knn_top1_best" in known:
        known.remove("knn_top1_best")
    measured = "".join(SHOWN[key].format(round(trainer.measured[key], LOGGED_DIGITS)) for key in known)
    when = "" if now or not known else f" after epoch {trainer.measured_at}" if trainer.measured_at else " untrained"
    return [f"loss {loss:.3f}", *([measured + when] if known else []), f"{trainer.images_per_second:.0f} pictures/s"]
