"""`msvq plan`: what a run will take of time, memory and disk, and what to change if that is too much."""

import shlex
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from msvq.config.resolve import Flags, recipe_names
from msvq.config.settings import Settings
from msvq.core.console import Display
from msvq.core.errors import BadInput
from msvq.core.files import packs
from msvq.data.sources import is_path
from msvq.preflight.advice import advise, duration, gigabytes
from msvq.preflight.bench import check_steps
from msvq.preflight.estimate import Estimate, estimate
from msvq.preflight.machine import free_disk

TRIAL_STEPS = 2  # of another setting that is proposed
TOLD = ("recipe", "data", "data_root", "method", "backbone", "epochs", "device", "precision")  # flags of a command
NARROW = 16  # width that is proposed; at most half of what there is


def plan(
    flags: Flags,
    *,
    out: str | Path | None = None,
    steps: int = 5,
    memory: int | None = None,
    display: Display | None = None,
) -> dict[str, Any]:
    """Plan a run, as plain values. `memory`: bytes instead of the machine's."""
    check_steps(steps)

    def estimate_with(flags: Flags, steps: int, what: str = "") -> Estimate:
        settings = flags.settings()
        keep = flags.kept(settings)
        return estimate(settings, steps=steps, display=display or Display(), keep=keep, memory=memory, what=what)

    needs = estimate_with(flags, steps)
    disk = {"free_for_run": free_disk(Path(out or "runs")), "free_for_pack": free_disk(packs())}

    def alternatives() -> dict[str, Estimate]:
        """Other settings, tried: costs time, so only if this run is too much."""
        found = {}
        for words, other in _other_flags(flags, needs.settings).items():
            with suppress(BadInput):  # they do not go together
                found[words] = estimate_with(other, TRIAL_STEPS, f" with {words}")
        return found

    memory_needs = {**asdict(needs.memory), "needed": needs.memory.needed} if needs.memory else {}
    return {
        **needs.facts,
        "seconds": {**asdict(needs.time), "total": needs.time.total},
        "memory": {**memory_needs, "available": needs.available},
        "disk": {**asdict(needs.disk), "run": needs.disk.run, **disk},
        "advice": advise(needs, alternatives, **disk),
        "command": pretrain_command(flags, out, download=needs.absent),
        "notes": list(needs.notes),
    }


def _other_flags(flags: Flags, settings: Settings) -> dict[str, Flags]:
    """Flags of a smaller run, by the words that ask for it."""
    found = {}
    if "fast" in recipe_names() and flags.recipe != "fast":
        found["--recipe fast"] = replace(flags, recipe="fast", data=settings.data.source)
    if settings.backbone.is_resnet and settings.backbone.width > NARROW:
        setting = f"backbone.width={NARROW}"
        found[f"--set {setting}"] = replace(flags, overrides=[*flags.overrides, setting])
    return found


def pretrain_command(flags: Flags, out: str | Path | None, *, download: bool) -> str:
    """The command that starts the run."""
    told = {name: getattr(flags, name) for name in TOLD if getattr(flags, name) is not None}
    words = [word for name, value in told.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    words += [word for text in flags.overrides for word in ("--set", text)]
    source = flags.settings().data.source
    name = Path(source).stem if is_path(source) else source
    place = str(out or f"runs/{name or 'mine'}")
    return shlex.join(["msvq", "pretrain", *words, *["--download"] * download, "--out", place])


def show(report: dict[str, Any], console: Console) -> None:
    """Print the plan for a person: a table, then what to change."""
    say = Display(console).note
    pictures, seconds, memory, disk = (report[key] for key in ("pictures", "seconds", "memory", "disk"))
    say(
        f"{report['method']} on {report['data']}: {pictures['train']:,} pictures, {report['backbone']}, batches of "
        f"{report['batch_size']}, {report['device']} {report['precision']}",
    )
    table = Table("", "needs", "there is", box=box.SIMPLE, pad_edge=False)
    for row in seconds["resolutions"]:
        pixels = f"a step at {row['size']} pixels"
        table.add_row(pixels, f"{duration(row['seconds'])}, {row['pictures_per_second']:,.0f} pictures/s", "")
    table.add_row(f"an epoch of {seconds['steps_per_epoch']:,} steps", duration(seconds["epoch"]), "")
    table.add_row(f"training, {seconds['epochs']} epochs", duration(seconds["training"]), "")
    table.add_row(f"evaluation, {seconds['evaluations']} times", duration(seconds["evaluation"]), "")
    table.add_row("checkpoints", duration(seconds["checkpoints"]), "")
    if seconds["packing"]:
        table.add_row("packing the pictures, once", duration(seconds["packing"]), "")
    table.add_row("the whole run", duration(seconds["total"]), "", end_section=True)
    if "needed" in memory:
        there = "" if memory["available"] is None else gigabytes(memory["available"])
        table.add_row("memory", gigabytes(memory["needed"]), there)
    table.add_row("disk for the run", gigabytes(disk["run"]), gigabytes(disk["free_for_run"]))
    if disk["pack"]:
        table.add_row("disk for packed pictures", gigabytes(disk["pack"]), gigabytes(disk["free_for_pack"]))
    console.print(table)
    for note in report["notes"]:
        say(f"note: {note}")
    for line in report["advice"]:
        say(line)
    say(f"Start it with: {report['command']}")
