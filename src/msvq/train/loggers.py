"""TensorBoard and Weights & Biases, each in a folder of its own in the run."""

import os
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msvq.core.errors import BadInput, unknown
from msvq.core.launch import is_main_process
from msvq.train.callbacks import Line, Logger

if TYPE_CHECKING:
    from msvq.train.trainer import Trainer


def numbers(line: Line) -> dict[str, float]:
    """A line's numbers by names such as eval/knn_top1 and eval/false_negatives/all."""
    return dict(_flat(line["kind"], {key: value for key, value in line.items() if key not in ("kind", "step")}))


def _flat(name: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{name}/{key}", inner)
    elif isinstance(value, int | float):
        yield name, float(value)


class TensorBoard(Logger):
    """Writes RUN/tensorboard. When a run goes on, TensorBoard forgets what it has, and all of it comes anew."""

    name = "tensorboard"

    def open(self, run: Path, settings: Mapping[str, Any]) -> str:
        """Begin anew."""
        folder = run / self.name
        writer = import_module("torch.utils.tensorboard").SummaryWriter
        self.writer = writer(str(folder), purge_step=0, flush_secs=5)
        return f"TensorBoard: tensorboard --logdir {folder}"

    def on_log(self, line: Line) -> None:
        """A point in each of the line's curves."""
        for name, value in numbers(line).items():
            self.writer.add_scalar(name, value, line["step"])

    def on_train_end(self, trainer: "Trainer") -> None:
        """Write what is in the buffer."""
        self.writer.close()


class WeightsAndBiases(Logger):
    """Sends settings and numbers to wandb.ai, or keeps them in RUN/wandb where WANDB_MODE=offline.

    No pictures go there; wandb adds what it records of every machine, such as its name and load. What was sent cannot
    be withdrawn: lines that a resumed run computes again, which come out the same, are not sent. Offline nothing is
    known of what was sent: each start of a run keeps the whole of it.
    """

    name = "wandb"

    def open(self, run: Path, settings: Mapping[str, Any]) -> str:
        """Begin, or go on under the id that wandb's newest folder is named after."""
        for place in ("wandb/settings", ".wandb/settings"):  # wandb reads it unasked, and it may name another server
            if Path(place).exists():
                raise BadInput(f"wandb would obey {place!r} of the current folder; remove it, or start elsewhere")
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # its reports about itself were not asked for
        wandb = import_module(self.name)
        begun = sorted(path.name.rpartition("run-")[2] for path in (run / self.name).glob("*run-*-*"))
        try:
            self.run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", "msvq"),
                name=os.environ.get("WANDB_NAME", run.resolve().name),
                id=begun[-1].rpartition("-")[2] if begun else None,
                resume="allow",
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

    def on_log(self, line: Line) -> None:
        """A row of the line's numbers, unless wandb is past it."""
        if line["step"] >= self.run.step:
            self.run.log(numbers(line), step=line["step"])

    def on_train_end(self, trainer: "Trainer") -> None:
        """Wait until everything is sent, or written."""
        self.run.finish()


LOGGERS: dict[str, type[Logger]] = {kind.name: kind for kind in (TensorBoard, WeightsAndBiases)}


def make_loggers(names: Sequence[str]) -> list[Logger]:
    """Loggers by name, each once, if they are installed; of several processes, the first alone has them."""
    for name in names:
        if name not in LOGGERS:
            raise unknown("logger", name, LOGGERS)
        spec = find_spec(name)
        if spec is None or spec.origin is None:  # a folder of that name is no package
            raise BadInput(f"the logger {name} needs {name}; pip install 'msvq[{name}]' gives it")
    return [LOGGERS[name]() for name in dict.fromkeys(names)] if is_main_process() else []
