"""How much work a sweep is and how much of it is done, in pictures through the network; and how long that takes here.

The time left of a sweep that runs follows by how fast it went so far; that of one to come, by what `msvq plan` times.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from msvq.core.console import Display
from msvq.data.sources import PATTERNS_TEST, PATTERNS_TRAIN
from msvq.data.sources.benchmarks import BENCHMARKS, STL10_LABELLED
from msvq.methods import METHODS
from msvq.methods.msvq import MSVQ
from msvq.preflight.estimate import estimate
from msvq.reproduce.experiments import Cell, Task, is_finished
from msvq.runs.metrics import read_metrics

# Forward passes of the teachers in a step; the MSVQ family has one for each soft label.
TEACHER_VIEWS = {"mocov2": 1, "co2": 1, "unmix": 1, "byol": 2, "msf": 2, "mnn": 2, "snclr": 2, "sce": 2, "cmsf": 3}
# How often a protocol takes all labelled and test pictures, in time: a probe takes their features once, and then fits.
PROTOCOL_PASSES = {"linear": 100, "probe": 2}
TIMED_METHOD, TIMED_STEPS = "msvq", 3  # what is timed; other methods follow by their passes through the network


def passes(method: str) -> float:
    """Of a picture through the network in a step: 3 for the student's, there and back, and 1 for a teacher's view."""
    kind = METHODS[method]
    views = len(kind.soft_label_specs) if issubclass(kind, MSVQ) else TEACHER_VIEWS.get(method, 0)
    return 3.0 * kind.student_passes + views


def num_trained(cell: Cell) -> int:
    """How many pictures there are to train on."""
    num = BENCHMARKS[cell.dataset].num_train if cell.dataset in BENCHMARKS else PATTERNS_TRAIN
    return min(num, cell.settings().data.limit or num)


def num_labelled(cell: Cell) -> int:
    """How many of the training pictures have labels."""
    return STL10_LABELLED if cell.dataset == "stl10" else num_trained(cell)


def total_steps(cell: Cell) -> int:
    """Steps of the whole run, by the data set's number of pictures."""
    train = cell.settings().train
    num = num_labelled(cell) if cell.method == "supervised" else num_trained(cell)
    return train.epochs * (num // train.batch_size)


def share_done(cell: Cell, run: Path) -> float:
    """How far a run's training is, 0 to 1, by its log."""
    lines = read_metrics(run / "metrics.jsonl")
    return min(1.0, max((line["step"] for line in lines), default=0) / max(1, total_steps(cell)))


class Work(NamedTuple):
    """How much a task is, in pictures through the network."""

    steps: float
    evaluations: float
    protocols: Mapping[str, float]  # after training

    @property
    def training(self) -> float:
        """Steps and the evaluations between them."""
        return self.steps + self.evaluations

    @property
    def total(self) -> float:
        """All of it."""
        return self.training + sum(self.protocols.values())

    def done(self, task: Task) -> float:
        """What is done of it, by the run's files."""
        measured = sum(self.protocols[name] for name in task.protocols if is_finished(task.run, [name]))
        return self.training * share_done(task.cell, task.run) + measured


def count_work(cell: Cell, protocols: Sequence[str] = ()) -> Work:
    """By the numbers of pictures, and by the passes of the method."""
    settings, labelled = cell.settings(), num_labelled(cell)
    test = BENCHMARKS[cell.dataset].num_test if cell.dataset in BENCHMARKS else PATTERNS_TEST
    bank = min(labelled, settings.evaluate.knn_bank or labelled)
    evaluations = 1 + -(-settings.train.epochs // settings.evaluate.every)
    return Work(
        steps=total_steps(cell) * settings.train.batch_size * passes(cell.method),
        evaluations=float(evaluations * (bank + test)),
        protocols={name: PROTOCOL_PASSES.get(name, 1) * float(labelled + test) for name in protocols},
    )


def time_left(elapsed: float, done_before: float, done: float, total: float) -> float | None:
    """Seconds, if work goes on as it went since the sweep was started; None while nothing is known."""
    achieved = done - done_before
    return elapsed * (total - done) / achieved if achieved > 0 else None


class Speed(NamedTuple):
    """Seconds for each picture through the network."""

    step: float
    evaluation: float
    apart: float = 0.0  # seconds of a run's checkpoints, and of what comes after its last step

    def seconds_left(self, task: Task, share: float = 1.0) -> float:
        """Of a task of which this share of the training is left."""
        work = count_work(task.cell, task.protocols)
        after = sum(work.protocols[name] for name in task.protocols if not is_finished(task.run, [name]))
        training = self.step * work.steps + self.evaluation * work.evaluations + self.apart
        return share * training + self.evaluation * after


def measure_speed(cell: Cell, data_root: Path | None, display: Display) -> Speed:
    """Time a few steps and one evaluation with a cell's recipe."""
    timed = Cell(cell.scale, cell.dataset, TIMED_METHOD, (), 0)
    settings = timed.settings(data_root)
    what = f" of {TIMED_METHOD} on {cell.dataset}"
    needs = estimate(settings, steps=TIMED_STEPS, display=display, what=what)
    for told in needs.notes:  # that stand-ins were timed, for one
        display.note(told)
    work, time = count_work(timed), needs.time
    return Speed(time.training / work.steps, time.evaluation / work.evaluations, time.checkpoints + time.finish)


def plan_tasks(
    tasks: Sequence[Task], *, data_root: Path | None, display: Display
) -> Iterator[tuple[Task, Literal["finished", "begun", "new"], float]]:
    """Every cell with its state and the seconds that are left of it."""
    speeds: dict[str, Speed] = {}
    for task in tasks:
        if task.is_finished:
            yield task, "finished", 0.0
            continue
        dataset, begun = task.cell.dataset, (task.run / "config.yaml").is_file()
        if dataset not in speeds:
            speeds[dataset] = measure_speed(task.cell, data_root, display)
        share = 1 - share_done(task.cell, task.run) if begun else 1.0
        yield task, "begun" if begun else "new", speeds[dataset].seconds_left(task, share)
