"""Times of several things measured by turns, their ratios as rows of a table, and the peak of a process's memory."""

import ctypes
import gc
import os
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

PROCESSES = Path("/proc")  # Linux alone has it
AT_LEAST, AT_MOST = "at least", "at most"


class Spread(NamedTuple):
    """The median of several numbers, the least and the most."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}{'-' if self.low >= 0 else ' to '}{self.high:.2f})"


def spread(values: list[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


def ratio(over: list[float], under: list[float], *, times: float = 1) -> Spread:
    """Of two lists of times, repetition by repetition, so that a slow spell of the machine hits both alike."""
    return spread([times * a / b for a, b in zip(over, under, strict=True)])


def rates(seconds: Mapping[str, list[float]], num: int) -> dict[str, float]:
    """How many of `num` things a second, by what was timed."""
    return {name: round(num / statistics.median(values), 1) for name, values in seconds.items()}


def row(value: Spread | float | None, bar: tuple[str, float] | None = None, *, note: str = "") -> dict[str, Any]:
    """One measured number, and what it should be; None: it cannot be measured here."""
    if value is None:
        return {"median": None}
    numbers = value if isinstance(value, Spread) else Spread(value, value, value)
    found: dict[str, Any] = {name: round(number, 3) for name, number in numbers._asdict().items()}
    if bar:
        met = numbers.median >= bar[1] if bar[0] == AT_LEAST else numbers.median <= bar[1]
        found |= {"bar": f"{bar[0]} {bar[1]:g}{note}", "met": met}
    return found


def show(title: str, found: Mapping[str, Mapping[str, Any]]) -> str:
    """A part's rows as lines of a table."""
    lines = [title]
    for name, values in found.items():
        rest = {key: value for key, value in values.items() if key not in ("median", "low", "high", "bar", "met")}
        text = ", ".join(f"{key} {value}" for key, value in rest.items())
        if values.get("median") is not None:
            number = str(Spread(values["median"], values["low"], values["high"]))
            text = f"{number:<22}{text}"
        if "bar" in values:
            text += f"  {values['bar']}: {'met' if values['met'] else 'not met'}"
        lines.append(f"  {name:<40}{text}".rstrip())
    return "\n".join(lines)


def alternate(
    parts: Mapping[str, Callable[[], None]], repetitions: int, *, before: Mapping[str, Callable[[], None]] | None = None
) -> dict[str, list[float]]:
    """Seconds of each part: one warm-up of each, then `repetitions` by turns, every second round backwards.

    Nothing is timed before the worker processes of the other parts are idle. `before`: what a part does untimed first.
    """
    seconds: dict[str, list[float]] = {name: [] for name in parts}
    for round_ in range(repetitions + 1):
        for name in list(parts) if round_ % 2 else reversed(list(parts)):
            wait_for_workers()
            if before and name in before:
                before[name]()
            started = time.perf_counter()
            parts[name]()
            if round_:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def wait_for_workers(*, at_most: float = 60.0) -> None:
    """Return when the child processes compute no more: a DataLoader's workers stop when enough batches are ready."""
    if not PROCESSES.exists():
        time.sleep(3)
        return
    stop, used, quiet = time.monotonic() + at_most, -1, 0
    processes = below(os.getpid())
    while processes and quiet < 2 and time.monotonic() < stop:
        time.sleep(0.2)
        now = sum(ticks(process) for process in processes)
        quiet, used = (quiet + 1 if now == used else 0), now


def below(process: int) -> list[int]:
    """The processes that a process has started, and those that they have."""
    found = []
    for folder in PROCESSES.glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == process:
            found += [int(folder.name), *below(int(folder.name))]
    return found


def ticks(process: int) -> int:
    """Processor time that a process has used so far; 0 where it has ended."""
    try:
        fields = (PROCESSES / str(process) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


def memory_beyond(work: Callable[[], object]) -> float | None:
    """Megabytes by which this process's memory peaks above where it stands, while `work` runs. None without /proc."""
    if not PROCESSES.exists():
        return None
    gc.collect()
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)  # else `work` could use what is free already, and it would not count
    (PROCESSES / "self/clear_refs").write_text("5")  # the peak starts anew
    before = status("VmRSS")
    work()
    return (status("VmHWM") - before) / 1024


def status(key: str) -> int:
    """A line of this process's status, in kilobytes."""
    lines = (PROCESSES / "self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key + ":"))
