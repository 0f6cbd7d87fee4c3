"""Runs the cells of a sweep: finished ones are skipped, begun ones go on, failed ones stop no other.

A sweep is a directory with a manifest; its cells run in child processes (worker.py), as many at once as one likes.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from msvq.core.console import Display
from msvq.core.errors import BadInput
from msvq.core.files import LOCK, check_no_link, holds_already, write_text
from msvq.core.launch import child_environment
from msvq.core.version import __version__
from msvq.data.workers import available_cores
from msvq.report.numbers import tell_knn
from msvq.report.records import read_record
from msvq.reproduce.estimate import count_work, time_left
from msvq.reproduce.experiments import CELLS, MADE_BY, Task
from msvq.runs.run_dir import locked
from msvq.train.signals import Interrupted, Interruptions

MANIFEST, RESULTS, LOGS, ERRORS = "sweep.json", "results", "logs", "errors.log"
PROGRAM = "from msvq.reproduce.worker import main; main()"  # of a child process
KILLED = -9  # the code of a process that SIGKILL ended; Windows has no such signal
LOOK = 1.0  # seconds between looks at how far the cells are
WRITE = 60.0  # seconds between notes of what the running cells have taken: all that is forgotten if this is killed
GRACE = 120.0  # seconds that a cell has to save itself when it is asked to stop


def check_out(out: Path, scale: str) -> None:
    """Raise if `out` is not for this sweep: a file, a directory of something else, or of another scale.

    Runs in their place, and nothing else, become its cells: each is checked before it is used.
    """
    if not holds_already(out, "a sweep", (out / MANIFEST).is_file(), leftovers=(LOCK, CELLS)):
        return
    known = read_manifest(out)
    if known["scale"] != scale:
        raise BadInput(
            f"--out {str(out)!r} is of a sweep at scale {known['scale']}, not {scale}; choose another directory"
        )


def read_manifest(out: Path) -> dict[str, Any]:
    """What an output directory says of its sweep."""
    try:
        known = json.loads((out / MANIFEST).read_text(encoding="utf-8"))
        return {**known, "scale": str(known["scale"]), "cells": dict(known["cells"])}
    except (OSError, ValueError, KeyError, TypeError):
        raise BadInput(f"{str(out / MANIFEST)!r} is damaged; restore it, or choose another --out") from None


@contextmanager
def sweep_directory(out: Path, scale: str, tasks: Sequence[Task], made_by: str = MADE_BY) -> Iterator[None]:
    """The directory of a sweep, for us alone, with no link in it through which other files would be written."""
    logs = [out / LOGS / name for name in (ERRORS, *(f"{task.cell.name}.log" for task in tasks))]
    for path in (out / CELLS, out / RESULTS, out / RESULTS / CELLS, out / LOGS, *logs):
        check_no_link(path)
    with locked(out):
        check_out(out, scale)  # another process may have been here since it was asked for
        if not (out / MANIFEST).is_file():
            there = {path.name: {"seconds": None} for path in sorted((out / CELLS).glob("*"))}  # nobody knows how long
            _write_manifest(out, {"made_by": made_by, "msvq": __version__, "scale": scale, "cells": there})
        yield


def add_to_manifest(out: Path, cell: str, seconds: float, answer: Mapping[str, Any] | None = None) -> None:
    """Write down what a cell took since the last time, all together; if it is over, also why it failed if it did."""
    manifest, answer = read_manifest(out), answer or {}
    known = manifest["cells"].get(cell, {})
    before = known.get("seconds", 0.0)  # None: begun elsewhere
    facts: dict[str, Any] = {"seconds": None if before is None else round(seconds + before, 1)}
    if memory := max(known.get("training_memory") or 0, answer.get("memory") or 0):
        facts["training_memory"] = memory
    if answer.get("state") == "failed":
        facts["failed"] = answer["reason"]
    manifest["cells"][cell] = facts
    _write_manifest(out, manifest)


def _write_manifest(out: Path, manifest: Mapping[str, Any]) -> None:
    write_text(out / MANIFEST, json.dumps(manifest, indent=1) + "\n")


@dataclass
class Pool:
    """As many child processes as may run at once, each with its share of the processors."""

    jobs: int
    log: Path
    data_root: Path | None
    compiled: bool = False
    processes: "list[subprocess.Popen[str]]" = field(default_factory=list)
    idle: "list[subprocess.Popen[str]]" = field(default_factory=list)
    running: "dict[Future[dict[str, Any]], Task]" = field(default_factory=dict)  # by the answer that is to come

    def start(self, task: Task) -> None:
        """Begin a task in a process that has none."""
        process = self.idle.pop() if self.idle else self._more()
        order = {
            "arguments": task.cell.arguments,
            "made_by": task.cell.made_by,
            "out": str(task.run),
            "protocols": task.protocols,
            "data_root": None if self.data_root is None else str(self.data_root),
            "compile": self.compiled,
            "log": str(self.log / f"{task.cell.name}.log"),
        }
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it is dead: that is noticed where its answer would be read
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
        answer: Future[dict[str, Any]] = Future()
        self.running[answer] = task
        threading.Thread(target=self._listen, args=(process, answer), daemon=True).start()

    def _more(self) -> "subprocess.Popen[str]":
        told = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]  # "4,2" is for nested regions
        threads = max(1, (int(told) if told.isdigit() else available_cores()) // self.jobs)
        self.log.mkdir(parents=True, exist_ok=True)
        with (self.log / ERRORS).open("a") as errors:
            process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=child_environment(OMP_NUM_THREADS=str(threads)),
                start_new_session=True,  # Ctrl-C reaches the sweep, which passes it on once
            )
        self.processes.append(process)
        return process

    def _listen(self, process: "subprocess.Popen[str]", answer: "Future[dict[str, Any]]") -> None:
        """Wait for how a task went; a process that ends without a word has failed it."""
        assert process.stdout is not None
        if line := process.stdout.readline():
            told = json.loads(line)
            if told["state"] != "stopped":  # then it leaves
                self.idle.append(process)
        else:
            code = process.wait()
            memory = " (out of memory?)" if code == KILLED else ""
            told = {"state": "failed", "reason": f"its process ended with code {code}{memory}"}
        answer.set_result(told)

    def stop(self) -> None:
        """Ask every process to save and leave."""
        if sys.platform == "win32":  # where this would end them at once
            self._say_no_more()
            return
        for process in self.processes:
            process.terminate()

    def _say_no_more(self) -> None:
        """A process that is told nothing more saves what it is at, and leaves."""
        for process in self.processes:
            assert process.stdin is not None
            with suppress(OSError):
                process.stdin.close()

    def close(self) -> None:
        """Let the processes go; one that does not leave in time is ended."""
        self._say_no_more()
        until = time.monotonic() + GRACE
        for process in self.processes:
            try:
                process.wait(timeout=max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Measurable(Protocol):
    """How much a task is, and how much of it is done, in any unit that all tasks have."""

    @property
    def total(self) -> float:
        """All of it."""

    def done(self, task: Task) -> float:
        """What is done of it, by the run's files."""


class SweepDisplay:
    """How far all cells are together: one bar in a terminal, a line for each elsewhere; both with the time left.

    `work`: by the cells' names; in pictures through the network, unless it is given.
    """

    def __init__(self, console: Console, tasks: Sequence[Task], work: Mapping[str, Measurable] | None = None) -> None:
        self.say, self.num = Display(console).note, len(tasks)
        self.work = work or {task.cell.name: count_work(task.cell, task.protocols) for task in tasks}
        self.total = sum(work.total for work in self.work.values())
        self.achieved = {task.cell.name: self.work[task.cell.name].total for task in tasks if task.is_finished}
        self.before = sum(self.achieved.values())  # an earlier sweep's work says nothing about our speed
        self.done = len(self.achieved)
        self.running: dict[str, tuple[Task, float]] = {}  # with the time of its start
        self.bar: Progress | None = None
        if console.is_terminal:
            columns = (TextColumn("[bold]{task.description}"), BarColumn(), TextColumn("{task.fields[facts]}"))
            self.bar = Progress(*columns, console=console)

    def __enter__(self) -> Self:
        self.started = time.monotonic()
        if self.bar is not None:
            self.bar.start()
            self.task = self.bar.add_task("starting", total=max(1.0, self.total), facts="")
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def begin(self, task: Task) -> None:
        """A cell starts, or goes on."""
        name = task.cell.name
        self.running[name] = (task, time.monotonic())
        self.achieved[name] = self.work[name].done(task)
        self.before += self.achieved[name]
        going_on = " goes on" if self.achieved[name] else ""
        if self.bar is None:
            self.say(f"[{self.done + len(self.running)}/{self.num}] {name}{going_on} ...")

    def end(self, task: Task, answer: Mapping[str, Any]) -> None:
        """A cell is over."""
        name, state = task.cell.name, answer["state"]
        told = f"{name}: {state} after {timedelta(seconds=round(time.monotonic() - self.running.pop(name)[1]))}"
        if state == "finished":
            self.done += 1
            with suppress(BadInput):  # a file of it is damaged, which whoever reads it is told
                known = tell_knn(read_record(task.run))
                told += f", {known}" if known else ""
        if answer["reason"]:
            told += f" ({answer['reason']})"
        if state != "stopped":
            self.achieved[name] = self.work[name].total
        self.say(f"{told}; {self._left()}")

    def look(self) -> None:
        """See how far the running cells are."""
        for name, (task, _) in self.running.items():
            self.achieved[name] = self.work[name].done(task)
        if self.bar is not None:
            shares = {name: self.achieved[name] / max(1.0, self.work[name].total) for name in self.running}
            names = ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares.items())
            done, cells = sum(self.achieved.values()), f"{self.done}/{self.num} cells"
            self.bar.update(self.task, completed=done, description=cells, facts=f"{names}  {self._left()}")

    def _left(self) -> str:
        left = time_left(time.monotonic() - self.started, self.before, sum(self.achieved.values()), self.total)
        return "time left not known yet" if left is None else f"{timedelta(seconds=round(left))} left"


def run_tasks(
    out: Path,
    tasks: Sequence[Task],
    *,
    jobs: int,
    data_root: Path | None,
    compiled: bool = False,
    display: SweepDisplay,
) -> dict[str, str]:
    """Run what is not finished. Returns the cells that failed, with the reasons; raises when it was interrupted."""
    waiting = [task for task in tasks if not task.is_finished]
    failed: dict[str, str] = {}
    if not waiting:
        return failed
    # Shares of the processors, on which the last bits depend, are the same however many cells are left.
    pool, asked = Pool(min(jobs, len(tasks)), out / LOGS, data_root, compiled), False
    noted: dict[str, float] = {}  # when the time that a cell takes was last written down
    with display, Interruptions(display.say) as stop:
        try:
            while pool.running or (waiting and stop.wanted is None):
                while waiting and len(pool.running) < pool.jobs and stop.wanted is None:
                    task = waiting.pop(0)
                    noted[task.cell.name] = time.monotonic()
                    display.begin(task)
                    pool.start(task)
                if stop.wanted is not None and not asked:
                    asked = True
                    pool.stop()
                over, _ = wait(pool.running, timeout=LOOK, return_when=FIRST_COMPLETED)
                for future, task in list(pool.running.items()):
                    name, now = task.cell.name, time.monotonic()
                    if future in over:
                        del pool.running[future]
                        answer = future.result()
                        if answer["state"] == "failed" and stop.wanted is not None:
                            answer |= {"state": "stopped", "reason": ""}  # it was ended before it could answer
                        elif answer["state"] == "stopped" and stop.wanted is None:
                            answer |= {"state": "failed", "reason": "its process was stopped by another; it is saved"}
                        add_to_manifest(out, name, now - noted[name], answer)
                        if answer["state"] == "failed":
                            failed[name] = answer["reason"]
                        display.end(task, answer)
                    elif now - noted[name] > WRITE:
                        add_to_manifest(out, name, now - noted[name])
                        noted[name] = now
                display.look()
        finally:
            pool.close()
        if stop.wanted is not None:
            raise Interrupted(f"{display.done} of {len(tasks)} cells are finished", stop.wanted)
    return failed
