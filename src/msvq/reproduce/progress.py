"""How far a sweep is: one bar in a terminal, a line for each cell elsewhere; both with the time left."""

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from msvq.data.official import OFFICIAL
from msvq.data.sources import PATTERNS_TRAIN
from msvq.display import printable
from msvq.reproduce.cells import Cell
from msvq.train.runlog import read_metrics

STL10_LABELLED = 5_000


def total_steps(cell: Cell) -> int:
    """Steps of the whole run, by the data set's number of pictures."""
    settings = cell.settings()
    num = OFFICIAL[cell.dataset].num_train if cell.dataset in OFFICIAL else PATTERNS_TRAIN
    if cell.dataset == "stl10" and cell.method == "supervised":
        num = STL10_LABELLED
    num = min(num, settings.data.limit or num)
    return settings.train.epochs * (num // settings.train.batch_size)


def work(cell: Cell) -> float:
    """How much a cell is beside the others: steps, weighed by the method's passes."""
    return total_steps(cell) * cell.cost()


def share_done(cell: Cell, run: Path) -> float:
    """How far a run is, 0 to 1, by its log."""
    lines = read_metrics(run / "metrics.jsonl")
    return min(1.0, max((line["step"] for line in lines), default=0) / max(1, total_steps(cell)))


def time_left(elapsed: float, done_before: float, done: float, total: float) -> float | None:
    """Seconds, if work goes on as it went since the sweep was started; None while nothing is known."""
    achieved = done - done_before
    return elapsed * (total - done) / achieved if achieved > 0 else None


class SweepDisplay:
    """The progress of all cells together."""

    def __init__(self, console: Console, cells: Sequence[Cell], finished: Sequence[Cell]) -> None:
        self.console, self.num = console, len(cells)
        self.work = {cell.name: work(cell) for cell in cells}
        self.total, self.done = sum(self.work.values()), len(finished)
        self.achieved = {cell.name: self.work[cell.name] for cell in finished}
        self.running: dict[str, tuple[Cell, Path]] = {}
        self.before: float | None = None
        self.looked = 0.0
        self.bar: Progress | None = None
        if console.is_terminal:
            columns = (TextColumn("[bold]{task.description}"), BarColumn(), TextColumn("{task.fields[facts]}"))
            self.bar = Progress(*columns, console=console)

    def __enter__(self) -> Self:
        self.started, self.before = time.monotonic(), None
        if self.bar is not None:
            self.bar.start()
            self.task = self.bar.add_task("starting", total=max(1.0, self.total), facts="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()

    def say(self, sentence: str) -> None:
        """Print a line; the bar goes on below it."""
        self.console.print(printable(sentence), soft_wrap=True, markup=False, highlight=False, emoji=False)

    def begin(self, cell: Cell, run: Path) -> None:
        """A cell starts, or goes on."""
        self.running[cell.name] = (cell, run)
        self.achieved[cell.name] = self.work[cell.name] * share_done(cell, run)
        if self.before is not None:
            self.before += self.achieved[cell.name]  # an earlier sweep's work says nothing about our speed
        going_on = " goes on" if self.achieved[cell.name] else ""
        if self.bar is None:
            self.say(f"[{self.done + len(self.running)}/{self.num}] {cell.name}{going_on} ...")

    def end(self, cell: Cell, answer: Mapping[str, Any]) -> None:
        """A cell is over."""
        _, run = self.running.pop(cell.name)
        took = f"{cell.name}: {answer['state']} after {timedelta(seconds=round(answer['seconds']))}"
        if answer["state"] == "finished":
            self.done += 1
        scores = [line["knn_top1"] for line in read_metrics(run / "metrics.jsonl") if line.get("knn_top1") is not None]
        knn = f", kNN {scores[-1]:.1f} %" if scores and answer["state"] == "finished" else ""
        why = f" ({answer['reason']})" if answer["reason"] else ""
        if answer["state"] != "stopped":
            self.achieved[cell.name] = self.work[cell.name]
        self.say(f"{took}{knn}{why}; {self._left()}")

    def look(self) -> None:
        """See how far the running cells are; every few seconds is enough."""
        if self.before is None:
            self.before = sum(self.achieved.values())
        if time.monotonic() - self.looked < 2:
            return
        self.looked = time.monotonic()
        for name, (cell, run) in self.running.items():
            self.achieved[name] = self.work[name] * share_done(cell, run)
        if self.bar is not None:
            names = ", ".join(
                f"{name} {100 * self.achieved[name] / max(1.0, self.work[name]):.0f} %" for name in self.running
            )
            facts = f"{names}  {self._left()}"
            self.bar.update(
                self.task,
                completed=sum(self.achieved.values()),
                description=f"{self.done}/{self.num} cells",
                facts=facts,
            )

    def _left(self) -> str:
        done = sum(self.achieved.values())
        left = time_left(time.monotonic() - self.started, self.before or 0.0, done, self.total)
        return "time left not known yet" if left is None else f"{timedelta(seconds=round(left))} left"
