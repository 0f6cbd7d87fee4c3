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
from msvq.core.console import Display
from msvq.core.errors import BadInput
from msvq.core.files import packs
from msvq.core.runtime import resolve_device
from msvq.data.sources import is_path
from msvq.preflight.advice import Alternative, advise, duration, gigabytes
from msvq.preflight.bench import check_steps
from msvq.preflight.estimate import Estimate, estimate
from msvq.preflight.machine import available_memory, free_disk
from msvq.preflight.trial_run import TrialData, opened_scene

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
    display = display or Display()
    settings = flags.settings()
    target = resolve_device(settings.train.device)
    there = available_memory(target) if memory is None else memory
    needs, scene = _estimate(flags, steps, there, display)
    room = {"memory": there, "run": free_disk(Path(out or "runs")), "pack": free_disk(packs())}

    def alternative(words: str, **changes: Any) -> Alternative | None:
        """What the run would need with other settings; None if they do not go together."""
        with suppress(BadInput):
            return Alternative(words, _estimate(replace(flags, **changes), TRIAL_STEPS, there, display, words)[0])
        return None

    def alternatives() -> list[Alternative]:
        """Other settings, tried: costs time, so only if this run is too much."""
        found = []
        if "fast" in recipe_names() and flags.recipe != "fast":
            found.append(alternative("--recipe fast", recipe="fast", data=settings.data.source))
        if (width := NARROW) < needs.settings.backbone.width and needs.settings.backbone.is_resnet:
            setting = f"backbone.width={width}"
            found.append(alternative(f"--set {setting}", overrides=[*flags.overrides, setting]))
        return [one for one in found if one is not None]

    return {
        **_facts(needs, scene),
        **_needs(needs, room),
        "advice": advise(needs, room, alternatives),
        "command": pretrain_command(flags, settings.data.source, out, download=scene.absent),
        "notes": list(needs.notes),
    }


def _estimate(
    flags: Flags, steps: int, available: int | None, display: Display, words: str = ""
) -> tuple[Estimate, TrialData]:
    settings, what = flags.settings(), f" with {words}" if words else ""
    with opened_scene(settings, display) as scene:
        keep = flags.kept(settings)
        return estimate(settings, scene, keep=keep, steps=steps, available=available, display=display, what=what), scene


def pretrain_command(flags: Flags, source: str, out: str | Path | None, *, download: bool) -> str:
    """The command that starts the run."""
    told = {name: getattr(flags, name) for name in TOLD if getattr(flags, name) is not None}
    words = [word for name, value in told.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    words += [word for text in flags.overrides for word in ("--set", text)]
    name = Path(source).stem if is_path(source) else source
    place = str(out or f"runs/{name or 'mine'}")
    return shlex.join(["msvq", "pretrain", *words, *["--download"] * download, "--out", place])


def _facts(needs: Estimate, scene: TrialData) -> dict[str, Any]:
    settings, data = needs.settings, scene.data
    return {
        "data": settings.data.source,
        "pictures": {
            "train": len(data.train),
            "labelled": len(data.labelled),
            "test": len(data.test),
            "classes": data.num_classes,
        },
        "method": settings.method_name,
        "backbone": settings.backbone.title,
        "batch_size": settings.train.batch_size,
        "device": str(needs.device),
        "precision": settings.train.precision,
    }


def _needs(needs: Estimate, room: dict[str, int | None]) -> dict[str, Any]:
    memory = needs.memory
    return {
        "seconds": {**asdict(needs.time), "total": needs.time.total},
        "memory": {
            **({} if memory is None else {**asdict(memory), "needed": memory.needed}),
            "available": room["memory"],
        },
        "disk": {
            **asdict(needs.disk),
            "run": needs.disk.run,
            "free_for_run": room["run"],
            "free_for_pack": room["pack"],
        },
    }


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
