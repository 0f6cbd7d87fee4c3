"""`msvq plan`: what a run will take of time, memory and disk, and what to change if that is too much."""

import math
import shlex
from collections.abc import Callable
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
from msvq.preflight.bench import check_steps
from msvq.preflight.estimate import ROOM, Estimate, Memory, estimate
from msvq.preflight.machine import free_disk

TRIAL_STEPS = 2  # of another setting that is proposed
TOLD = ("recipe", "data", "data_root", "method", "backbone", "epochs", "device", "precision")  # flags of a command
NARROW = 16  # width that is proposed
LONG = 12 * 3600.0  # seconds: longer than a night
MUCH, LITTLE = 0.1, 0.05  # of the time, for evaluation or for decoding
WORTH_A_LINE = 600.0  # seconds that advice should save
EPOCHS = (400, 200, 100, 50, 20, 10, 5, 2, 1)


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


def advise(
    needs: Estimate, alternatives: Callable[[], dict[str, Estimate]], *, free_for_run: int, free_for_pack: int
) -> list[str]:
    """Lines that say what does not fit or takes long, and what helps.

    `alternatives`: other flags that were tried, and what a run with them needs; asked only if something is too much.
    """
    memory, there, time = needs.memory, needs.available, needs.time
    short = memory is not None and there is not None and memory.needed > ROOM * there
    tried = alternatives() if short or time.total > LONG else {}
    lines = _hold_less(needs, memory, there, tried) if short and memory and there is not None else []
    if time.total > LONG:
        lines += _be_done_sooner(needs, tried)
    if time.evaluation > MUCH * time.total and time.evaluation > WORTH_A_LINE:
        every = needs.settings.evaluate.every * max(2, math.ceil(time.evaluation / (LITTLE * time.total)))
        saved = time.evaluation * (1 - needs.settings.evaluate.every / every)
        lines.append(
            f"evaluation takes {time.evaluation / time.total:.0%} of the run: --set evaluate.every={every} saves some "
            f"{duration(saved)}"
        )
    share = max((row["share_of_reading"] for row in time.resolutions), default=0.0)
    if needs.settings.data.mode == "stream" and share > MUCH:
        lines.append(f"decoding takes {share:.0%} of a step: --set data.mode=store packs the pictures once")
    if needs.disk.run > free_for_run:
        lines.append(
            f"disk: the run needs {gigabytes(needs.disk.run)}, {gigabytes(free_for_run)} are free: "
            f"give an --out on another disk"
        )
    if needs.disk.pack > free_for_pack:
        lines.append(
            f"disk: the packed pictures need {gigabytes(needs.disk.pack)}, {gigabytes(free_for_pack)} are free: "
            f"MSVQ_HOME=DIR puts them elsewhere, --set data.mode=stream packs nothing"
        )
    return lines or ["It fits."]


def _hold_less(needs: Estimate, memory: Memory, there: int, tried: dict[str, Estimate]) -> list[str]:
    start = f"memory: {gigabytes(memory.needed)} needed, {gigabytes(there)} there"
    batch, now = needs.settings.train.batch_size, needs.settings.train.accumulate
    lines = []
    parts = next((num for num in needs.divisions if memory.with_batch(1 / num) <= ROOM * there), None)
    if parts is not None:
        held = gigabytes(memory.with_batch(1 / parts))
        lines = [
            f"{start}: --set train.accumulate={parts * now} holds 1/{parts} of a step at once, some {held}",
            f"{start}: --set train.batch_size={batch // parts} needs some {held}, and learns differently",
        ]
    lines += [
        f"{start}: {flags} needs {gigabytes(other.memory.needed)} (measured)"
        for flags, other in tried.items()
        if other.memory and other.memory.needed <= ROOM * there
    ]
    way_out = "no part of a batch fits; lower data.limit, data.size or backbone.width, or use another machine"
    return lines or [f"{start}: {way_out}"]


def _be_done_sooner(needs: Estimate, tried: dict[str, Estimate]) -> list[str]:
    time = needs.time
    start = f"{time.epochs} epochs take {duration(time.total)}"
    lines = [
        f"{start}: {flags} takes {duration(other.time.total)}, "
        f"{time.total / other.time.total:.1f} times as fast (measured)"
        for flags, other in tried.items()
        if other.time.total < 0.8 * time.total
    ]
    packing = time.packing or 0.0  # all else is in proportion to the epochs
    fewer = {num: packing + (time.total - packing) * num / time.epochs for num in EPOCHS if num < time.epochs}
    if fewer:
        num = next((num for num, seconds in fewer.items() if seconds <= LONG), min(fewer))
        lines.append(f"{start}: --epochs {num} takes {duration(fewer[num])}")
    return lines or [f"{start}, and there is no shorter way on this machine"]


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


def duration(seconds: float) -> str:
    """Seconds in the unit that a person would use."""
    for unit, length in (("days", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0)):
        if seconds >= 2 * length or (unit == "s" and seconds >= 1):
            number = seconds / length
            return f"{number:.1f} {unit}" if number < 20 else f"{number:.0f} {unit}"
    return f"{1000 * seconds:.0f} ms"


def gigabytes(num: int) -> str:
    """Bytes in GB, or in MB if they are few."""
    return f"{num / 1e9:.1f} GB" if num >= 1e8 else f"{num / 1e6:.1f} MB"
