"""`msvq plan`: what a run will take of time, memory and disk, and what to change if that is too much."""

import math
import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from msvq.config.resolve import LENGTH, Flags
from msvq.core.console import Display, counted, duration
from msvq.core.files import packs
from msvq.data.sources import is_path
from msvq.preflight.bench import check_steps
from msvq.preflight.estimate import ROOM, Estimate, Memory, Time, estimate
from msvq.preflight.machine import free_disk
from msvq.preflight.trial_run import fit_trial_to_budget
from msvq.train.budget import BUSY_SENTENCE

# Flags of a command.
TOLD = ("recipe", "data", "data_root", "method", "backbone", "init", "epochs", "budget", "device", "precision")
LONG = 12 * 3600.0  # seconds: longer than a night
A_WHILE = 1800.0  # seconds that nobody waits for beside the machine
BUDGETS = {"10m": 600.0, "20m": 1200.0, "1h": 3600.0, "8h": 28800.0}  # that are proposed instead
SLOWER = 1.2  # times the budget
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
    settings, display, fitted = flags.settings(), display or Display(), None
    keep = flags.kept(settings)
    if flags.seconds is not None:
        fitted = fit_trial_to_budget(settings, flags.seconds, named=flags.named, keep=keep, display=display)
        settings = fitted.settings
    needs = estimate(settings, steps=steps, display=display, keep=keep, memory=memory)
    disk = {
        "free_for_run": free_disk(Path(out or "runs")),
        "free_for_pack": free_disk(packs()) if needs.disk.pack else 0,
    }
    memory_needs = {**asdict(needs.memory), "needed": needs.memory.needed} if needs.memory else {}
    shorter = [] if fitted is not None else shorter_commands(flags, needs, out)
    budget = None if fitted is None else [*flags.length_note(), *fitted.describe()]
    notes = [note for note in needs.notes if f"note: {note}" not in (budget or ())]
    if flags.seconds is not None and needs.time.total > SLOWER * flags.seconds and BUSY_SENTENCE not in notes:
        notes.append(f"steps took longer when they were timed again: {BUSY_SENTENCE}")
    return {
        **needs.facts,
        "seconds": {**asdict(needs.time), "total": needs.time.total},
        "memory": {**memory_needs, "available": needs.available},
        "disk": {**asdict(needs.disk), "run": needs.disk.run, **disk},
        "advice": advise(needs, **disk),
        "shorter": shorter,
        "budget": budget,
        "command": pretrain_command(flags, out, download=needs.absent),
        "notes": notes,
    }


def advise(needs: Estimate, *, free_for_run: int, free_for_pack: int) -> list[str]:
    """Lines that say what does not fit or takes long, and what helps."""
    memory, there, time = needs.memory, needs.available, needs.time
    lines = []
    if memory is not None and there is not None and memory.needed > ROOM * there:
        lines += _hold_less(needs, memory, there)
    if time.total > LONG:
        lines.append(_be_done_sooner(time))
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
    return lines or [f"It fits, and takes {duration(time.total)}." if time.total > A_WHILE else "It fits."]


def _hold_less(needs: Estimate, memory: Memory, there: int) -> list[str]:
    start = f"memory: {gigabytes(memory.needed)} needed, {gigabytes(there)} there"
    parts = next((num for num in needs.divisions if memory.with_batch(1 / num) <= ROOM * there), None)
    if parts is None:
        way_out = "no part of a batch fits; lower data.limit, data.size or backbone.width, or use another machine"
        return [f"{start}: {way_out}"]
    held, train = gigabytes(memory.with_batch(1 / parts)), needs.settings.train
    return [
        f"{start}: --set train.accumulate={parts * train.accumulate} holds 1/{parts} of a step at once, some {held}",
        f"{start}: --set train.batch_size={train.batch_size // parts} needs some {held}, and learns differently",
    ]


def _be_done_sooner(time: Time) -> str:
    start = f"{counted(time.epochs, 'epoch')} take{'s' * (time.epochs == 1)} {duration(time.total)}"
    packing = time.packing or 0.0  # all else is in proportion to the epochs
    fewer = {num: packing + (time.total - packing) * num / time.epochs for num in EPOCHS if num < time.epochs}
    if not fewer:
        return f"{start}, and there is no shorter way on this machine"
    num = next((num for num, seconds in fewer.items() if seconds <= LONG), min(fewer))
    return f"{start}: --epochs {num} takes {duration(fewer[num])}"


def shorter_commands(flags: Flags, needs: Estimate, out: str | Path | None) -> list[str]:
    """Commands of runs by a budget, on the same pictures, where what was asked for takes a while."""
    fitting = [budget for budget, seconds in BUDGETS.items() if seconds <= needs.time.total / 2]
    if needs.time.total <= A_WHILE:
        return []
    others = [text for text in flags.overrides if text.partition("=")[0].strip() not in LENGTH]
    options = any(text.strip().startswith("method.") for text in others)  # they are of the method that was planned
    method = needs.settings.method_name if options else flags.method
    source = needs.settings.data.source
    free = replace(flags, recipe=None, epochs=None, overrides=others, data=source, method=method)
    return [pretrain_command(replace(free, budget=budget), out, download=needs.absent) for budget in fitting[-2:]]


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
        f"{report['batch_size']}, {report['device']} {report['precision']}"
    )
    table = Table("", "needs", "there is", box=box.SIMPLE, pad_edge=False)
    for row in seconds["resolutions"]:
        pixels = f"a step at {row['size']} pixels"
        table.add_row(pixels, f"{duration(row['seconds'])}, {row['pictures_per_second']:,.0f} pictures/s", "")
    table.add_row(f"an epoch of {counted(seconds['steps_per_epoch'], 'step')}", duration(seconds["epoch"]), "")
    whole = seconds["steps"] == seconds["epochs"] * seconds["steps_per_epoch"]
    length = counted(seconds["epochs"], "epoch") if whole else counted(seconds["steps"], "step")
    table.add_row(f"training, {length}", duration(seconds["training"]), "")
    table.add_row(f"evaluation, {counted(seconds['evaluations'], 'time')}", duration(seconds["evaluation"]), "")
    table.add_row("checkpoints", duration(seconds["checkpoints"]), "")
    table.add_row("after the last step: kNN, map, report", duration(seconds["finish"]), "")
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
    for line in report["budget"] or ():
        say(line)
    for note in report["notes"]:
        say(f"note: {note}")
    for line in report["advice"]:
        say(line)
    say(f"Start it with: {report['command']}")
    for command in report["shorter"]:
        say(f"The best for less time: {command}")


def gigabytes(num: int) -> str:
    """Bytes in GB, or in MB if they are few."""
    return f"{num / 1e9:.1f} GB" if num >= 1e8 else f"{num / 1e6:.1f} MB"
