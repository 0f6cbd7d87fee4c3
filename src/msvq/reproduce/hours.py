"""How long a sweep will take here, by the machinery of `msvq plan`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from msvq.config.resolve import resolve
from msvq.core.console import Display
from msvq.core.runtime import resolve_device
from msvq.preflight.estimate import estimate
from msvq.preflight.machine import available_memory
from msvq.preflight.trial_run import opened_scene
from msvq.reproduce.cells import Cell, Task, is_finished
from msvq.reproduce.progress import PROTOCOL_PASSES, share_done, total_steps

STEPS = 3  # that are timed
REFERENCE = "msvq"  # the method that is timed; the others follow by their passes through the network


@dataclass(frozen=True)
class Reference:
    """Seconds of the reference method on a data set."""

    step: float  # the mean over the run
    evaluation: float  # one
    evaluations: int
    checkpoints: float = 0.0  # all of a run's
    whole: float = 1.0  # all labelled and test pictures over those that an evaluation takes


@dataclass(frozen=True)
class Planned:
    """A cell of a dry run."""

    task: Task
    state: str  # finished, begun or new
    seconds: float  # that are left


def time_reference(cell: Cell, data_root: Path | None, display: Display) -> Reference:
    """Time a few steps and one evaluation of the reference method with a cell's recipe."""
    plain = Cell(cell.scale, cell.dataset, REFERENCE, (), 0)
    settings = resolve(base=plain.settings().model_dump(mode="json"), data_root=data_root)
    device = resolve_device(settings.train.device)
    with opened_scene(settings, display) as scene:
        needs = estimate(
            settings,
            scene,
            steps=STEPS,
            available=available_memory(device),
            display=display,
            what=f" of {REFERENCE} on {cell.dataset}",
        )
        for told in needs.notes:  # that stand-ins were timed, for one
            display.note(told)
        time = needs.time
        bank, test, vote = len(scene.data.bank), len(scene.data.test), settings.evaluate.knn_bank
    steps, whole = time.steps_per_epoch * time.epochs, (bank + test) / (min(bank, vote or bank) + test)
    evaluation = time.evaluation / max(1, time.evaluations)
    return Reference(time.training / steps, evaluation, time.evaluations, time.checkpoints, whole)


def plan_tasks(tasks: Sequence[Task], *, data_root: Path | None, display: Display) -> list[Planned]:
    """Every cell with its state and the seconds that are left of it."""
    references: dict[str, Reference] = {}
    planned = []
    for task in tasks:
        state, left = "new", 1.0
        if task.is_finished:
            planned.append(Planned(task, "finished", 0.0))
            continue
        if (task.run / "config.yaml").is_file():
            state, left = "begun", 1 - share_done(task.cell, task.run)
        if task.cell.dataset not in references:
            references[task.cell.dataset] = time_reference(task.cell, data_root, display)
        planned.append(Planned(task, state, seconds_left(task, references[task.cell.dataset], left)))
    return planned


def seconds_left(task: Task, reference: Reference, left: float) -> float:
    """A cell's seconds: its steps by the method's passes, its evaluations, and the protocols after it."""
    plain = Cell(task.cell.scale, task.cell.dataset, REFERENCE, (), 0)
    step = reference.step * task.cell.cost() / plain.cost()
    beside = reference.evaluations * reference.evaluation + reference.checkpoints
    seconds = left * (step * total_steps(task.cell) + beside)
    for protocol in task.protocols:
        if not is_finished(task.run, [protocol]):
            seconds += PROTOCOL_PASSES.get(protocol, 1) * reference.whole * reference.evaluation
    return seconds
