"""What a person sees while a run trains: a live bar in a terminal, plain lines elsewhere."""

import time
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

# What of the measurements is shown, in this order.
SHOWN = {
    "knn_top1": "  kNN {:.1f} %",
    "knn_top1_best": " (best {:.1f})",
    "rank": "  rank {:.1f}",
    "feature_spread": "  spread {:.3f}",
}


class TrainingDisplay:
    """Epoch, loss, what was last measured, pictures per second and time left."""

    def __init__(self, console: Console, *, total_steps: int, epochs: int) -> None:
        self.console, self.total_steps, self.epochs = console, total_steps, epochs
        self.measured: dict[str, Any] = {}  # by the names of the log
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

    def __enter__(self) -> Self:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()

    def announce(self, sentence: str) -> None:
        """Say something while the bar goes on."""
        self.console.print(sentence, soft_wrap=True, markup=False, highlight=False, emoji=False)

    def start(self, step: int) -> None:
        """Begin counting at `step`, which is not 0 when a run is resumed."""
        self.first_step, self.started = step, time.monotonic()
        if self.bar is not None:
            self.task = self.bar.add_task("starting", total=self.total_steps, completed=step, facts="")

    def step(self, step: int, epoch: int, loss: float, images_per_second: float) -> None:
        """One step is done."""
        if self.bar is not None:
            facts = self._facts(loss, images_per_second)
            self.bar.update(self.task, completed=step, description=f"epoch {epoch}/{self.epochs}", facts=facts)

    def epoch(self, step: int, epoch: int, loss: float, images_per_second: float) -> None:
        """An epoch is done: a log line where there is no bar."""
        if self.bar is None:
            per_step = (time.monotonic() - self.started) / max(1, step - self.first_step)
            left = timedelta(seconds=round(per_step * (self.total_steps - step)))
            facts = self._facts(loss, images_per_second)
            self.console.print(f"epoch {epoch}/{self.epochs}  {facts}  {left} left", soft_wrap=True)

    def _facts(self, loss: float, images_per_second: float) -> str:
        known = [key for key in SHOWN if key in self.measured]
        if "knn_top1" in known:  # what needs no labels stays in the log
            known = [key for key in known if key.startswith("knn")]
        measured = "".join(SHOWN[key].format(self.measured[key]) for key in known)
        return f"loss {loss:.3f}{measured}  {images_per_second:.0f} pictures/s"
