"""A child process of a sweep: it is told cells, one a line, runs each and says how it went.

A cell that takes its process down takes no other cell with it; and imports and the embedded pictures are had once.
"""

import json
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

import torch
from rich.console import Console

from msvq.api import Run, pretrain
from msvq.config.build import build_method
from msvq.config.resolve import resolve
from msvq.core.console import Display
from msvq.core.errors import BadInput
from msvq.core.files import LOCK, lock
from msvq.core.runtime import resolve_device
from msvq.evaluate.diagnostics.embedding_map import save_map
from msvq.evaluate.features import feature_function
from msvq.preflight.machine import forget_peak, peak_memory
from msvq.reproduce.experiments import is_finished
from msvq.runs.encoder import load_run_encoder
from msvq.runs.evaluate import evaluate, open_for
from msvq.train.signals import Interruptions

PATIENCE = 60.0  # seconds for a process of a sweep that was killed to save and leave
MAP_PICTURES = 500  # of the figure, where a run has drawn no map itself


def run_cell(order: dict[str, Any], console: Console) -> int | None:
    """Train a cell, or go on with it, and measure what is wanted and not there yet.

    Returns the most bytes that training held at once, without evaluations, if it trained and the system tells.
    """
    arguments = order["arguments"]
    out, data_root, display = Path(order["out"]), order["data_root"], Display(console)
    if (out / LOCK).is_file() and not (out / LOCK).is_symlink():
        # Where it stays busy, the run itself says better what is wrong.
        with suppress(TimeoutError), lock(out / LOCK, timeout=PATIENCE):
            pass
    run, memory = Run(out), TrainingMemory(resolve_device(resolve(**arguments).train.device))
    if not is_finished(out):
        run = pretrain(
            out=out,
            **arguments,
            data_root=data_root,
            compile=order["compile"] or None,  # not told: as the recipe has it
            auto_resume=True,
            console=console,
            made_by=order["made_by"],
            callbacks=[memory],
        )
    wanted = [name for name in order["protocols"] if not is_finished(out, [name])]
    for protocol in wanted:
        if protocol == "map":
            draw_map(run, data_root, display)
        else:
            evaluate(run, protocol=protocol, data_root=data_root, display=display)
    if wanted:
        run.report()  # with what was measured since
    return memory.peak


class TrainingMemory:
    """The most memory that training held at once, without evaluations: it listens to a run's log."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.peak: int | None = None
        self.begun = False

    def __call__(self, line: Mapping[str, Any]) -> None:
        """An epoch ends with a line, before it is evaluated; the evaluation ends with another.

        Before the first line of a run that goes on, its checkpoint was read, which is no part of training either.
        """
        if line["kind"] == "eval" or not self.begun:
            forget_peak(self.device)
        elif line["kind"] == "epoch":
            self.peak = max(self.peak or 0, peak_memory(self.device) or 0) or None
        self.begun = True


def draw_map(run: Run, data_root: str | None, display: Display) -> None:
    """The embedding map of a run whose recipe leaves it out."""
    data, _ = open_for(run, None, data_root, display=display)
    with closing(data):
        device = resolve_device("auto")
        fresh = build_method(run.config, data.size).to(device).encoder
        encoders = {"before": fresh, "after": load_run_encoder(run).network.to(device)}
        features = feature_function(data, device, "fp32")
        save_map(run.path / "eval" / "map.npz", data, encoders, features, num=MAP_PICTURES)


def serve(orders: TextIO, answers: TextIO) -> None:
    """Answer orders until there are no more. Who gave them may die: then the run is saved and left."""
    waiting: queue.Queue[str] = queue.Queue()

    def listen() -> None:
        for line in orders:
            waiting.put(line)
        signal.raise_signal(signal.SIGTERM)  # which lets a run save itself; os.kill would end it on Windows
        waiting.put("")  # wakes who waits: a signal that one thread raises interrupts no other

    threading.Thread(target=listen, daemon=True).start()
    answer = {"state": ""}
    while answer["state"] != "stopped" and (order := waiting.get()):
        answer = _attempt(json.loads(order))
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _attempt(order: dict[str, Any]) -> dict[str, Any]:
    """Run a cell and tell how it went; what it printed is in its log."""
    log = Path(order["log"])
    log.parent.mkdir(parents=True, exist_ok=True)
    state, reason, memory = "finished", "", None
    with log.open("a", encoding="utf-8") as file:
        try:
            memory = run_cell(order, Console(file=file, width=160))
        except BadInput as error:
            state, reason = "failed", str(error)
            file.write(f"{reason}\n")
        except KeyboardInterrupt:
            state = "stopped"
        except Exception as error:  # whatever it is, the other cells go on
            state, reason = "failed", f"{type(error).__name__}: {error}".splitlines()[0]
            traceback.print_exc(file=file)
    return {"state": state, "reason": reason, "memory": memory}


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> None:
    """The process: orders on standard input, answers on what was standard output; prints go to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    Interruptions.echoes = True  # a stop of all processes at once comes from outside and from the sweep
    signal.signal(signal.SIGTERM, _stop)  # a run that trains saves itself first; what comes after it is done again
    with suppress(KeyboardInterrupt):  # asked to stop while it had nothing to do
        serve(sys.stdin, answers)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it leaves already
