"""What a person sees while a run trains: a live bar in a terminal, plain lines elsewhere; and a page."""

import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from msvq.evaluate.results import percent
from msvq.runs.checkpoint import LAST
from msvq.runs.metrics import RunProgress
from msvq.train.callbacks import Line, TrainerCallback
from msvq.train.trainer import StepOutput, Trainer

REST = 50  # times what the last page took, between two of them: they take 2 % of a run at most
BAR, TIME = 10, len(" 00:00:00 left")


class Clock:
    """How long it takes to the end at the pace so far, looks at the run included."""

    def __init__(self, trainer: Trainer) -> None:
        self.first_step, self.started = trainer.step, time.monotonic()

    def seconds_left(self, trainer: Trainer) -> float | None:
        """None before the first step."""
        steps = trainer.step - self.first_step
        return (time.monotonic() - self.started) / steps * (trainer.total_steps - trainer.step) if steps else None


class LivePage(TrainerCallback):
    """Has the page of the run written while it trains, at every look, but for those that would slow it."""

    name, may_fail = "report.html", True

    def __init__(self, write: Callable[[Path, RunProgress], object]) -> None:
        self.write = write
        self.next = 0.0  # on the clock: not before

    def on_train_start(self, trainer: Trainer) -> None:
        """Nothing is written before there is something to go on from."""
        self.trainer, self.clock, self.shown = trainer, Clock(trainer), False

    def on_log(self, line: Line) -> None:
        """Write the page after a look at the run, or as soon as it can be."""
        there = (self.trainer.checkpoints / LAST).is_file()
        if there and (line["kind"] == "eval" or not self.shown) and time.monotonic() >= self.next:
            self._write(self.clock.seconds_left(self.trainer), running=True)

    def on_train_end(self, trainer: Trainer) -> None:
        """Say that it stopped, or that it is being judged."""
        if (trainer.checkpoints / LAST).is_file():
            self._write(None, running=trainer.step == trainer.total_steps and sys.exception() is None)

    def _write(self, seconds_left: float | None, *, running: bool) -> None:
        begun, trainer = time.monotonic(), self.trainer
        self.write(trainer.checkpoints.parent, RunProgress(trainer.step, trainer.total_steps, seconds_left, running))
        self.shown, ended = True, time.monotonic()
        self.next = ended + REST * (ended - begun)


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
        self.clock = Clock(trainer)
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
        left = timedelta(seconds=round(self.clock.seconds_left(trainer) or 0))
        facts = "  ".join([_epoch(trainer), *describe(trainer, loss).values(), f"{left} left"])
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
        for name in ("speed", "best", "spread", "loss"):  # the time left is worth more, and what was reached
            if fixed + len("  ".join(facts.values())) > self.console.width and len(facts) > 1:
                facts.pop(name, None)
        self.bar.update(self.task, completed=trainer.step, description=epoch, facts="  ".join(facts.values()))


def _epoch(trainer: Trainer) -> str:
    return f"epoch {trainer.epoch}/{trainer.settings.epochs}"


def describe(trainer: Trainer, loss: float) -> dict[str, str]:
    """The loss, what was last measured and when, and how fast it goes, by their names."""
    facts, measured = {"loss": f"loss {loss:.3f}"}, trainer.measured
    if "knn_top1" in measured:  # what needs no labels stays in the log
        facts["kNN"] = f"kNN {percent(measured['knn_top1'])}{_when(trainer, 'knn_top1')}"
        if "knn_top1_best" in measured and not _when(trainer, "knn_top1"):
            facts["best"] = f"(best {percent(measured['knn_top1_best'])})"
    elif "rank" in measured:
        facts["rank"] = f"rank {measured['rank']:.1f}{_when(trainer, 'rank')}"
        if "feature_spread" in measured:
            facts["spread"] = f"spread {measured['feature_spread']:.3f}"
    return {**facts, "speed": f"{trainer.images_per_second:.0f} pictures/s"}


def _when(trainer: Trainer, key: str) -> str:
    """After which epoch it was measured, where that is not the last one."""
    epoch = trainer.measured_at[key]
    return "" if epoch == trainer.epoch else f" after epoch {epoch}" if epoch else " untrained"
