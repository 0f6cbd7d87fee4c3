"""What to change in a run that needs too much: one line for each way out, with numbers."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from msvq.preflight.estimate import ROOM, Estimate, Memory

LONG = 12 * 3600.0  # seconds: longer than a night
MUCH, LITTLE = 0.1, 0.05  # of the time, for evaluation or for decoding
WORTH_A_LINE = 600.0  # seconds that advice should save
EPOCHS = (400, 200, 100, 50, 20, 10, 5, 2, 1)

Room = Mapping[str, int | None]  # bytes of "memory", and of disk for the "run" and the "pack"


@dataclass(frozen=True)
class Alternative:
    """Flags that were tried, and what a run with them needs."""

    flags: str
    needs: Estimate


def advise(needs: Estimate, room: Room, alternatives: Callable[[], list[Alternative]]) -> list[str]:
    """Lines that say what does not fit or takes long, and what helps. `alternatives` is asked only then."""
    memory, there, time = needs.memory, room["memory"], needs.time
    short = memory is not None and there is not None and memory.needed > ROOM * there
    tried = alternatives() if short or time.total > LONG else []
    lines = _memory(needs, memory, there, tried) if short and memory is not None and there is not None else []
    if time.total > LONG:
        lines += _time(needs, tried)
    if time.evaluation > MUCH * time.total and time.evaluation > WORTH_A_LINE:
        every = needs.settings.evaluate.every * max(2, math.ceil(time.evaluation / (LITTLE * time.total)))
        saved = time.evaluation * (1 - needs.settings.evaluate.every / every)
        lines.append(
            f"evaluation takes {time.evaluation / time.total:.0%} of the run: --set evaluate.every={every} saves some "
            f"{duration(saved)}"
        )
    if needs.settings.data.mode == "stream" and any(row["share_of_reading"] > MUCH for row in time.resolutions):
        share = max(row["share_of_reading"] for row in time.resolutions)
        lines.append(f"decoding takes {share:.0%} of a step: --set data.mode=store packs the pictures once")
    return lines + _disk(needs, room) or ["It fits."]


def _memory(needs: Estimate, memory: Memory, there: int, tried: list[Alternative]) -> list[str]:
    """Ways to hold less."""
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
    for other in tried:
        other_memory = other.needs.memory
        if other_memory is not None and other_memory.needed <= ROOM * there:
            lines.append(f"{start}: {other.flags} needs {gigabytes(other_memory.needed)} (measured)")
    if lines:
        return lines
    return [f"{start}: no part of a batch fits; lower data.limit, data.size or backbone.width, or use another machine"]


def _time(needs: Estimate, tried: list[Alternative]) -> list[str]:
    """Ways to be done sooner."""
    time = needs.time
    start = f"{time.epochs} epochs take {duration(time.total)}"
    lines = [
        f"{start}: {other.flags} takes {duration(other.needs.time.total)}, "
        f"{time.total / other.needs.time.total:.1f} times as fast (measured)"
        for other in tried
        if other.needs.time.total < 0.8 * time.total
    ]
    fewer = [(num, _with_epochs(needs, num)) for num in EPOCHS if num < time.epochs]
    if fewer:
        num, seconds = next((pair for pair in fewer if pair[1] <= LONG), fewer[-1])
        lines.append(f"{start}: --epochs {num} takes {duration(seconds)}")
    return lines or [f"{start}, and there is no shorter way on this machine"]


def _with_epochs(needs: Estimate, num: int) -> float:
    """Seconds of so many epochs: all but packing is in proportion."""
    packing = needs.time.packing or 0.0
    return packing + (needs.time.total - packing) * num / needs.time.epochs


def _disk(needs: Estimate, room: Room) -> list[str]:
    lines, disk = [], needs.disk
    free, free_for_pack = room["run"], room["pack"]
    if free is not None and disk.run > free:
        lines.append(
            f"disk: the run needs {gigabytes(disk.run)}, {gigabytes(free)} are free: give an --out on another disk"
        )
    if free_for_pack is not None and disk.pack > free_for_pack:
        lines.append(
            f"disk: the packed pictures need {gigabytes(disk.pack)}, {gigabytes(free_for_pack)} are free: "
            f"MSVQ_HOME=DIR puts them elsewhere, --set data.mode=stream packs nothing"
        )
    return lines


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
