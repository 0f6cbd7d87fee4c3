"""What a person sees while a run trains: a live bar in a terminal, plain lines elsewhere."""

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from msvq.train.callbacks import TrainerCallback
from msvq.train.trainer import StepOutput, Trainer

# What of the measurements is shown, in this order.
SHOWN = {
    "knn_top1": "  kNN {:.1f} %",
    "knn_top1_best": " (best {:.1f})",
    "rank": "  rank {:.1f}",
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
                BarColumn(bar_width=None),
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
        if self.bar is not None:
            epoch = f"epoch {trainer.epoch}/{trainer.settings.epochs}"
            facts = describe(trainer, output.loss)
            self.bar.update(self.task, completed=trainer.step, description=epoch, facts=facts)

    def on_epoch_end(self, trainer: Trainer) -> Mapping[str, Any]:
        """A line where there is no bar."""
        if self.bar is None and trainer.epoch:
            per_step = (time.monotonic() - self.started) / max(1, trainer.step - self.first_step)
            left = timedelta(seconds=round(per_step * (trainer.total_steps - trainer.step)))
            facts = describe(trainer, trainer.epoch_loss / trainer.epoch_steps)
            epoch = f"epoch {trainer.epoch}/{trainer.settings.epochs}"
            self.console.print(f"{epoch}  {facts}  {left} left", soft_wrap=True)
        return {}

    def on_train_end(self, trainer: Trainer) -> None:
        """Leave the bar as it is."""
        if self.bar is not None:
            self.bar.stop()


def describe(trainer: Trainer, loss: float) -> str:
    """The loss, what was last measured, and how fast it goes."""
    known = [key for key in SHOWN if key in trainer.measured]
    if "knn_top1" in known:  # what needs no labels stays in the log
        known = [key for key in known if key.startswith("knn")]
    measured = "".join(SHOWN[key].format(trainer.measured[key]) for key in known)
    return f"loss {loss:.3f}{measured}  {trainer.images_per_second:.0f} pictures/s"
