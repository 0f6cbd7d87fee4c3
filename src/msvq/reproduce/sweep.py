"""Runs the cells of a sweep: finished ones are skipped, begun ones go on, failed ones stop no other."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from msvq.core.errors import BadInput
from msvq.core.files import LOCK, check_no_link, is_temporary, write_text
from msvq.core.launch import child_environment
from msvq.core.version import __version__
from msvq.data.workers import available_cores
from msvq.reproduce.cells import MADE_BY, Cell, Task, check_same
from msvq.reproduce.progress import SweepDisplay
from msvq.runs.run_dir import locked
from msvq.train.signals import Interrupted, Interruptions

MANIFEST, CELLS, LOGS, RESULTS = "sweep.json", "cells", "logs", "results"
ERRORS = "errors.log"
PROGRAM = "from msvq.reproduce.worker import main; main()"  # of a child process
LOOK = 0.5  # seconds between looks at how far the cells are
WRITE = 60.0  # seconds between notes of what the running cells have taken: all that is forgotten if this is killed
GRACE = 120.0  # seconds that a cell has to save itself when it is asked to stop


def make_tasks(out: Path, wanted: Iterable[tuple[Cell, Sequence[str]]]) -> list[Task]:
    """One task a cell, whoever asks for it."""
    tasks: dict[Cell, tuple[str, ...]] = {}
    for cell, protocols in wanted:
        tasks[cell] = tuple(dict.fromkeys((*tasks.get(cell, ()), *protocols)))
    return [Task(cell, out / CELLS / cell.name, protocols) for cell, protocols in tasks.items()]


def check_place(out: Path, scale: str) -> None:
    """Raise if `out` is not for this sweep: a file, a directory of something else, or of another scale."""
    if out.exists() and not out.is_dir():
        raise BadInput(f"--out {str(out)!r} is a file; name a directory")
    if not out.is_dir() or all(path.name == LOCK or is_temporary(path) for path in out.iterdir()):
        return
    if not (out / MANIFEST).is_file():
        raise BadInput(f"--out {str(out)!r} holds files that are not a sweep; choose another directory")
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
def opened(out: Path, scale: str, tasks: Sequence[Task]) -> Iterator[None]:
    """The sweep's directory, checked and for us alone; nothing is changed if something is wrong with it."""
    check_place(out, scale)
    for task in tasks:
        check_same(task.cell, task.run)
    logs = [out / LOGS / name for name in (ERRORS, *(f"{task.cell.name}.log" for task in tasks))]
    for path in (out / CELLS, out / RESULTS, out / RESULTS / CELLS, out / LOGS, *logs):
        check_no_link(path)
    with locked(out):
        check_place(out, scale)  # another process may have been here meanwhile
        if not (out / MANIFEST).is_file():
            manifest = {"made_by": MADE_BY, "msvq": __version__, "scale": scale, "cells": {}}
            write_text(out / MANIFEST, json.dumps(manifest, indent=1) + "\n")
        yield


def note(out: Path, cell: str, seconds: float, answer: Mapping[str, Any] | None = None) -> None:
    """Write down what a cell took since the last note, all together, and if it is over why it failed if it did."""
    manifest = read_manifest(out)
    known, answer = manifest["cells"].get(cell, {}), answer or {}
    seconds += known.get("seconds", 0.0)
    failed = {"failed": answer["reason"]} if answer.get("state") == "failed" else {}
    memory = max(known.get("training_memory") or 0, answer.get("memory") or 0)
    held = {"training_memory": memory} if memory else {}
    manifest["cells"][cell] = {"seconds": round(seconds, 1), **held, **failed}
    write_text(out / MANIFEST, json.dumps(manifest, indent=1) + "\n")


@dataclass
class Worker:
    """A child process, and the task that it is at."""

    process: subprocess.Popen[str]
    task: Task | None = None
    noted: float = 0.0  # when the time it takes was last written down
    leaves: bool = False  # it was stopped, and takes no more

    def since_note(self) -> float:
        """Seconds since the last note, which is now."""
        before, self.noted = self.noted, time.monotonic()
        return self.noted - before

    def give(self, order: Mapping[str, Any], task: Task) -> None:
        """Have it run a cell."""
        self.task, self.noted = task, time.monotonic()
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it is dead: that is noticed where its answer would be read
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()


@dataclass
class Pool:
    """As many child processes as may run at once, each with its share of the processors."""

    jobs: int
    log: Path
    data_root: Path | None
    compiled: bool = False
    workers: list[Worker] = field(default_factory=list)
    answers: "queue.Queue[tuple[Worker, str | None]]" = field(default_factory=queue.Queue)

    def start(self, task: Task) -> None:
        """Begin a task in a process that has none."""
        worker = next((one for one in self.workers if one.task is None and not one.leaves), None) or self._more()
        order = {
            "cell": asdict(task.cell),
            "out": str(task.run),
            "protocols": task.protocols,
            "data_root": None if self.data_root is None else str(self.data_root),
            "compile": self.compiled,
            "log": str(self.log / f"{task.cell.name}.log"),
        }
        worker.give(order, task)

    def _more(self) -> Worker:
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
        worker = Worker(process)
        self.workers.append(worker)
        threading.Thread(target=self._listen, args=(worker,), daemon=True).start()
        return worker

    def _listen(self, worker: Worker) -> None:
        assert worker.process.stdout is not None
        for line in worker.process.stdout:
            self.answers.put((worker, line))
        self.answers.put((worker, None))

    def wait(self) -> tuple[Task, float, dict[str, Any]] | None:
        """The next task that is over, its seconds since the last note and its answer; or nothing after a moment."""
        try:
            worker, line = self.answers.get(timeout=LOOK)
        except queue.Empty:
            return None
        task, seconds = worker.task, worker.since_note()
        worker.task = None
        if line is None:
            self.workers.remove(worker)
            code = worker.process.wait()
            if task is None:
                return None
            reason = f"its process ended with code {code}" + (" (out of memory?)" if code == -signal.SIGKILL else "")
            return task, seconds, {"state": "failed", "reason": reason}
        assert task is not None
        answer: dict[str, Any] = json.loads(line)
        worker.leaves = answer["state"] == "stopped"
        return task, seconds, answer

    @property
    def running(self) -> list[Task]:
        """What is being done."""
        return [worker.task for worker in self.workers if worker.task is not None]

    def stop(self) -> None:
        """Ask every process to save and leave."""
        for worker in self.workers:
            worker.process.terminate()

    def close(self) -> None:
        """Let the processes go; one that does not leave in time is ended."""
        for worker in self.workers:
            assert worker.process.stdin is not None
            with suppress(OSError):
                worker.process.stdin.close()  # who is at work stops at that
        until = time.monotonic() + GRACE
        for worker in self.workers:
            try:
                worker.process.wait(timeout=max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()


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
    left = [task for task in tasks if not task.is_finished]
    failed: dict[str, str] = {}
    if not left:
        return failed
    # Shares of the processors, on which the last bits depend, are the same however many cells are left.
    pool = Pool(min(jobs, len(tasks)), out / LOGS, data_root, compiled)
    waiting, asked = list(left), False
    with display, Interruptions(display.say) as stop:
        try:
            while waiting or pool.running:
                while waiting and len(pool.running) < pool.jobs and stop.wanted is None:
                    task = waiting.pop(0)
                    display.begin(task)
                    pool.start(task)
                if stop.wanted is not None and not asked:
                    asked = True
                    pool.stop()
                if stop.wanted is not None and not pool.running:
                    break
                over = pool.wait()
                for worker in pool.workers:
                    if worker.task is not None and time.monotonic() - worker.noted > WRITE:
                        note(out, worker.task.cell.name, worker.since_note())
                if over is not None:
                    task, seconds, answer = over
                    if answer["state"] == "failed" and stop.wanted is not None:
                        answer |= {"state": "stopped", "reason": ""}  # it was ended before it could answer
                    elif answer["state"] == "stopped" and stop.wanted is None:
                        answer |= {"state": "failed", "reason": "its process was stopped by another; it is saved"}
                    note(out, task.cell.name, seconds, answer)
                    if answer["state"] == "failed":
                        failed[task.cell.name] = answer["reason"]
                    display.end(task, answer)
                display.look()
        finally:
            pool.close()
        if stop.wanted is not None:
            raise Interrupted(f"{display.done} of {len(tasks)} cells are finished", stop.wanted)
    return failed
