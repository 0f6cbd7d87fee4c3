"""`msvq bench`: what a training step costs on this machine, part by part, and how near it comes to the possible."""

from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Column, Table

from msvq.config.resolve import Flags
from msvq.core.console import Display
from msvq.core.errors import BadInput
from msvq.core.version import __version__
from msvq.preflight.machine import forget_peak, peak_memory
from msvq.preflight.timing import Timing, time_steps
from msvq.preflight.trial_run import open_trial
from msvq.runs.run_dir import device_name
from msvq.train.budget import Stage, stages
from msvq.train.trainer import Trainer

LEAST_STEPS = 3  # a median of fewer says little


def bench(flags: Flags, *, steps: int = 10, display: Display | None = None) -> dict[str, Any]:
    """Time a recipe's training step. Seconds in, plain values out."""
    check_steps(steps)
    settings, display = flags.settings(), display or Display()
    with open_trial(settings, display, keep=flags.kept(settings)) as trial:
        forget_peak(trial.trainer.device)
        timings = [_measure(trial.trainer, stage, steps, display) for stage in stages(trial.trainer)]
        peak = peak_memory(trial.trainer.device)
    machine = {"device_name": device_name(trial.trainer.device), "torch": torch.__version__, "msvq": __version__}
    figures = {"steps": steps, "resolutions": timings, "peak_memory": peak}
    return {**trial.describe(), **machine, **figures, "notes": trial.notes}


def check_steps(steps: int) -> None:
    """Raise if so few steps would say little."""
    if steps < LEAST_STEPS:
        raise BadInput(f"--steps {steps} says little: give at least {LEAST_STEPS}")


def _measure(trainer: Trainer, stage: Stage, steps: int, display: Display) -> dict[str, Any]:
    """The figures at one size of crop."""
    what = f"timing steps at {stage.size} pixels"
    timed = time_steps(trainer, steps, start=stage.start, limit=True, display=display, description=what)
    whole = timed.seconds
    if trainer.device.type != "cpu":  # waiting at the end of each part has a price there, which the run does not pay
        whole = time_steps(trainer, steps, start=stage.start, parts=False, display=display, description=what).seconds
    together = sum(timed.parts.values())
    return {
        "size": stage.size,
        "share_of_run": stage.share,
        "parts": [
            {"name": name, **_figures(timed, seconds), "share": seconds / together}
            for name, seconds in timed.parts.items()
        ],
        "step": _figures(timed, whole),
        "limit": _figures(timed, timed.limit),
        "share_of_limit": timed.share_of_limit if trainer.device.type == "cpu" else timed.limit / whole,
    }


def _figures(timed: Timing, seconds: float) -> dict[str, float]:
    return {"milliseconds": 1000 * seconds, "pictures_per_second": timed.pictures / seconds}


def show(report: dict[str, Any], console: Console) -> None:
    """Print the report for a person."""
    say = Display(console).note
    for timing in report["resolutions"]:
        say(
            f"{report['method']} on {report['data']}: {report['backbone']}, batches of {report['batch_size']}, "
            f"{timing['size']} pixels, {report['device']} {report['precision']}"
        )
        columns = (Column(name, justify="right" if name else "left") for name in ("", "ms", "share", "pictures/s"))
        table = Table(*columns, box=box.SIMPLE, pad_edge=False)
        for part in timing["parts"]:
            table.add_row(part["name"], *_cells(part), end_section=part is timing["parts"][-1])
        table.add_row("a whole step", *_cells({"share": 1.0, **timing["step"]}))
        table.add_row("the limit", *_cells({"share": timing["share_of_limit"], **timing["limit"]}))
        console.print(table)
    say(
        "The limit is the networks alone, on pictures that are there already: teachers forward, student forward and "
        "backward. Its share tells how near the step comes to it."
    )
    if any(timing["share_of_limit"] > 1 for timing in report["resolutions"]):
        say("A share above 100 % means that other work disturbed the timing: try again, or with more --steps.")
    if report["peak_memory"] is not None:
        where = "on the GPU" if report["device"].startswith("cuda") else "by the whole process"
        say(f"Most memory held, {where}: {report['peak_memory'] / 1e9:.2f} GB.")
    for note in report["notes"]:
        say(f"note: {note}")


def _cells(row: dict[str, Any]) -> tuple[str, str, str]:
    speed = row["pictures_per_second"]
    return f"{row['milliseconds']:,.1f}", f"{row['share']:.1%}", f"{speed:,.0f}" if speed >= 10 else f"{speed:.1f}"
