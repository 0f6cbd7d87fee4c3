"""TensorBoard and Weights & Biases, beside metrics.jsonl and from the same lines.

Each keeps a folder of its own in the run, and in it the last line it has heard, so that a resumed run logs nothing
twice, and a logger that is added later hears what it has missed.
"""

import json
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from msvq.core.errors import BadInput, unknown
from msvq.core.files import write_text
from msvq.train.callbacks import Line

KINDS = ("step", "epoch", "eval")  # the order of lines that have the same step
NOTHING = (-1, 0)
MEMORY = "msvq.json"

Position = tuple[int, int]


def position(line: Line) -> Position:
    """Where a line stands in the log."""
    return line["step"], KINDS.index(line["kind"])


def numbers(line: Line) -> dict[str, float]:
    """A line's numbers by names such as eval/knn_top1 and eval/false_negatives/all."""
    return dict(_flat(line["kind"], {key: value for key, value in line.items() if key not in ("kind", "step")}))


def _flat(name: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{name}/{key}", inner)
    elif isinstance(value, int | float):
        yield name, float(value)


class Memory:
    """What a logger has to know when a run goes on: the line that it heard last, and what else it keeps."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.kept: dict[str, Any] = dict(json.loads(path.read_bytes())) if path.is_file() else {}
            self.heard: Position = (int(self.kept["step"]), KINDS.index(self.kept["kind"])) if self.kept else NOTHING
        except (ValueError, TypeError, KeyError, RecursionError):
            raise BadInput(f"{path} is damaged; delete {path.parent} to have the whole run logged anew") from None

    def keep(self, line: Line) -> None:
        """This line was logged; `write` says so on disk."""
        self.heard = position(line)
        self.kept |= {"step": line["step"], "kind": line["kind"]}

    def write(self) -> None:
        """Have it on disk."""
        write_text(self.path, json.dumps(self.kept) + "\n")


class Remembering(ABC):
    """Logs each line once, and remembers the last."""

    memory: Memory

    def hear(self, line: Line) -> None:
        """Take a line, unless it is known."""
        self.catch_up([line])

    def catch_up(self, lines: Sequence[Line]) -> None:
        """Take those lines that are not known; what was logged is remembered once, also if a later one fails."""
        before = self.memory.heard
        try:
            for line in lines:
                if position(line) > self.memory.heard:
                    self.log(line)
                    self.memory.keep(line)
        finally:
            if self.memory.heard != before:
                self.flush()
                self.memory.write()

    @abstractmethod
    def log(self, line: Line) -> None:
        """Log a line that is new."""

    @abstractmethod
    def flush(self) -> None:
        """Have what was logged where a kill cannot reach it, before it is remembered."""


class TensorBoard(Remembering):
    """Writes RUN/tensorboard. What was logged after the step that a run goes on from is withdrawn, and comes anew."""

    name, package = "tensorboard", "tensorboard"

    def open(self, run: Path, settings: Mapping[str, Any], step: int) -> str:
        """Begin, or go on after `step`."""
        writer = import_module("torch.utils.tensorboard").SummaryWriter
        folder = run / self.name
        self.memory = Memory(folder / MEMORY)
        again = self.memory.heard != NOTHING
        self.memory.heard = min(self.memory.heard, (step, len(KINDS)))
        self.writer = writer(str(folder), purge_step=step + 1 if again else None)
        return f"TensorBoard: tensorboard --logdir {folder}"

    def log(self, line: Line) -> None:
        """A point in each of the line's curves."""
        for name, value in numbers(line).items():
            self.writer.add_scalar(name, value, line["step"])

    def flush(self) -> None:
        """Write what is in the buffer."""
        self.writer.flush()

    def close(self) -> None:
        """Nothing more is coming."""
        self.writer.close()


class WeightsAndBiases(Remembering):
    """Sends settings and numbers to wandb.ai, or keeps them in RUN/wandb where WANDB_MODE=offline.

    No pictures go there; wandb adds what it records of every machine, such as its name and load. What was sent cannot
    be withdrawn: lines that a resumed run computes again, which come out the same, are not sent.
    """

    name, package = "wandb", "wandb"

    def open(self, run: Path, settings: Mapping[str, Any], step: int) -> str:
        """Begin, or go on after `step`."""
        for place in ("wandb/settings", ".wandb/settings"):  # wandb reads it unasked, and it may name another server
            if Path(place).exists():
                raise BadInput(f"wandb would obey {place!r} of the current folder; remove it, or start elsewhere")
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # its reports about itself were not asked for
        wandb = import_module(self.package)
        self.memory = Memory(run / self.name / MEMORY)
        again = self.memory.heard != NOTHING
        self.memory.kept.setdefault("id", secrets.token_hex(6))
        self.memory.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", "msvq"),
                name=os.environ.get("WANDB_NAME", run.resolve().name),
                id=self.memory.kept["id"],
                resume="allow" if again else None,
                dir=str(run),
                config=dict(settings),
                settings=wandb.Settings(console="off", silent=True, disable_git=True, save_code=False),
            )
        except Exception as error:
            why = str(error).strip().partition("\n")[0].rstrip(".")
            raise BadInput(
                f"wandb cannot start: {why or type(error).__name__}; 'wandb login' signs in, "
                f"and WANDB_MODE=offline keeps everything here, for 'wandb sync' later"
            ) from None
        if self.run.offline:
            return f"Weights & Biases: offline, in {Path(self.run.dir).parent}; 'wandb sync' sends it"
        return f"Weights & Biases: {self.run.url}"

    def log(self, line: Line) -> None:
        """A row of the line's numbers."""
        self.run.log(numbers(line), step=line["step"])

    def flush(self) -> None:
        """wandb's own process has it already."""

    def close(self) -> None:
        """Wait until everything is sent, or written."""
        self.run.finish()


LOGGERS: dict[str, type[TensorBoard] | type[WeightsAndBiases]] = {
    kind.name: kind for kind in (TensorBoard, WeightsAndBiases)
}


def make_loggers(names: Sequence[str]) -> list[TensorBoard | WeightsAndBiases]:
    """Loggers by name, each once, if they are installed."""
    for name in names:
        if name not in LOGGERS:
            raise unknown("logger", name, LOGGERS)
        spec = find_spec(LOGGERS[name].package)
        if spec is None or spec.origin is None:  # a folder of that name is no package
            raise BadInput(f"the logger {name} needs {name}; pip install 'msvq[{name}]' gives it")
    return [LOGGERS[name]() for name in dict.fromkeys(names)]
