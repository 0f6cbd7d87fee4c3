"""How far a sweep is: one bar in a terminal, a line for each cell elsewhere; both with the time left."""

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from msvq.core.console import printable
from msvq.data.sources import PATTERNS_TEST, PATTERNS_TRAIN
from msvq.data.sources.benchmarks import BENCHMARKS, STL10_LABELLED
from msvq.reproduce.cells import Cell, Task, is_finished
from msvq.runs.metrics import read_metrics

# How often a protocol takes all labelled and test pictures, in time: a probe takes their features once, and then fits.
PROTOCOL_PASSES = {"linear": 100, "probe": 2}


def total_steps(cell: Cell) -> int:
    """Steps of the whole run, by the data set's number of pictures."""
    train = cell.settings().train
    num = labelled(cell) if cell.method == "supervised" else trained_on(cell)
    return train.epochs * (num // train.batch_size)


def trained_on(cell: Cell) -> int:
    """How many pictures there are to train on."""
    num = BENCHMARKS[cell.dataset].num_train if cell.dataset in BENCHMARKS else PATTERNS_TRAIN
    return min(num, cell.settings().data.limit or num)


def labelled(cell: Cell) -> int:
    """How many of the training pictures have labels."""
    return STL10_LABELLED if cell.dataset == "stl10" else trained_on(cell)


class Work(NamedTuple):
    """How much a task is, in pictures through the network: training with its evaluations, and each protocol."""

    training: float
    protocols: Mapping[str, float]

    @property
    def total(self) -> float:
        """All of it."""
        return self.training + sum(self.protocols.values())

    def done(self, task: Task) -> float:
        """What is done of it, by the run's files."""
        measured = sum(self.protocols[name] for name in task.protocols if is_finished(task.run, [name]))
        return self.training * share_done(task.cell, task.run) + measured


def work(task: Task) -> Work:
    """By the numbers of pictures, and by the passes of the method (a picture's forward pass is one)."""
    settings, cell = task.cell.settings(), task.cell
    num_test = BENCHMARKS[cell.dataset].num_test if cell.dataset in BENCHMARKS else PATTERNS_TEST
    known = labelled(cell)
    bank = min(known, settings.evaluate.knn_bank or known)
    steps = total_steps(cell) * settings.train.batch_size * cell.cost()
    evaluations = 1 + -(-settings.train.epochs // settings.evaluate.every)
    after = {name: PROTOCOL_PASSES.get(name, 1) * float(known + num_test) for name in task.protocols}
    return Work(steps + evaluations * (bank + num_test), after)


def share_done(cell: Cell, run: Path) -> float:
    """How far a run's training is, 0 to 1, by its log."""
    lines = read_metrics(run / "metrics.jsonl")
    return min(1.0, max((line["step"] for line in lines), default=0) / max(1, total_steps(cell)))


def time_left(elapsed: float, done_before: float, done: float, total: float) -> float | None:
    """Seconds, if work goes on as it went since the sweep was started; None while nothing is known."""
    achieved = done - done_before
    return elapsed * (total - done) / achieved if achieved > 0 else None


class SweepDisplay:
    """The progress of all cells together."""

    def __init__(self, console: Console, tasks: Sequence[Task]) -> None:
        self.console, self.num = console, len(tasks)
        self.work = {task.cell.name: work(task) for task in tasks}
        finished = [task.cell.name for task in tasks if task.is_finished]
        self.total, self.done = sum(one.total for one in self.work.values()), len(finished)
        self.achieved = {name: self.work[name].total for name in finished}
        self.running: dict[str, tuple[Task, float]] = {}  # with the time of its start
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

    def begin(self, task: Task) -> None:
        """A cell starts, or goes on."""
        name = task.cell.name
        self.running[name] = (task, time.monotonic())
        self.achieved[name] = self.work[name].done(task)
        if self.before is not None:
            self.before += self.achieved[name]  # an earlier sweep's work says nothing about our speed
        going_on = " goes on" if self.achieved[name] else ""
        if self.bar is None:
            self.say(f"[{self.done + len(self.running)}/{self.num}] {name}{going_on} ...")

    def end(self, task: Task, answer: Mapping[str, Any]) -> None:
        """A cell is over."""
        name, run = task.cell.name, task.run
        _, started = self.running.pop(name)
        took = f"{name}: {answer['state']} after {timedelta(seconds=round(time.monotonic() - started))}"
        if answer["state"] == "finished":
            self.done += 1
        scores = [line["knn_top1"] for line in read_metrics(run / "metrics.jsonl") if line.get("knn_top1") is not None]
        knn = f", kNN {scores[-1]:.1f} %" if scores and answer["state"] == "finished" else ""
        why = f" ({answer['reason']})" if answer["reason"] else ""
        if answer["state"] != "stopped":
            self.achieved[name] = self.work[name].total
        self.say(f"{took}{knn}{why}; {self._left()}")

    def look(self) -> None:
        """See how far the running cells are; every few seconds is enough."""
        if self.before is None:
            self.before = sum(self.achieved.values())
        if time.monotonic() - self.looked < 2:
            return
        self.looked = time.monotonic()
        for name, (task, _) in self.running.items():
            self.achieved[name] = self.work[name].done(task)
        if self.bar is not None:
            names = ", ".join(
                f"{name} {100 * self.achieved[name] / max(1.0, self.work[name].total):.0f} %" for name in self.running
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
