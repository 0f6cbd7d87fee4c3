"""What to change in a run that needs too much: one line for each way out, with numbers."""

import math
from collections.abc import Callable

from msvq.preflight.estimate import ROOM, Estimate, Memory

LONG = 12 * 3600.0  # seconds: longer than a night
MUCH, LITTLE = 0.1, 0.05  # of the time, for evaluation or for decoding
WORTH_A_LINE = 600.0  # seconds that advice should save
EPOCHS = (400, 200, 100, 50, 20, 10, 5, 2, 1)


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
