"""What watches a training, by one protocol: kNN, diagnostics, loggers, the progress bar, and functions of one's own."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from msvq.core.distributed import RaisedOnOtherRank, all_reduce_max, barrier, errors_on_all_ranks
from msvq.core.errors import BadInput, first_line
from msvq.core.launch import is_main_process
from msvq.runs.metrics import read_metrics

if TYPE_CHECKING:
    from msvq.train.trainer import StepOutput, Trainer

Line = Mapping[str, Any]  # of metrics.jsonl, with "kind" ("step", "epoch" or "eval"), "step" and "epoch"
Callback = Callable[[Line], object]  # called with every line, in the first process; an error ends the run once saved


class TrainerCallback:
    """Watches a training. A hook that is not defined does nothing."""

    may_fail: ClassVar[bool] = False  # whether the run goes on without it, if it does
    name: str = ""  # what it is called then

    def on_train_start(self, trainer: "Trainer") -> None:
        """Training begins, or goes on, at `trainer.step`. What is raised here ends it before the first step."""

    def on_step(self, trainer: "Trainer", output: "StepOutput") -> None:
        """A step is done."""

    def on_epoch_end(self, trainer: "Trainer") -> Mapping[str, Any]:
        """Numbers for the log, by their names there. Called before the first epoch too, as the end of epoch 0."""
        return {}

    def on_save(self, trainer: "Trainer") -> None:
        """A checkpoint is about to be written."""

    def on_log(self, line: Line) -> None:
        """A line was written to metrics.jsonl; called in the first process alone."""

    def on_train_end(self, trainer: "Trainer") -> None:
        """Nothing more is coming, whatever the reason."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""


class Logger(TrainerCallback):
    """A service that shows curves, beside metrics.jsonl and from the same lines.

    When a run goes on it is told of all earlier lines again, so one that is added later lacks nothing; it has to know,
    or to forget, what it has.
    """

    may_fail = True  # it has the network and other people's servers against it

    def open(self, run: Path, settings: Mapping[str, Any]) -> str:
        """Begin, or go on; returns a sentence about where to look. Raises BadInput if it cannot."""
        raise TypeError(f"{type(self).__name__} does not define open(run, settings)")

    def on_train_start(self, trainer: "Trainer") -> None:
        """Begin with what the run has logged so far."""
        trainer.announce(self.open(trainer.log.path.parent, trainer.record.get("settings", {})))
        for line in read_metrics(trainer.log.path):
            self.on_log(line)


class FunctionCallback(TrainerCallback):
    """A function of one's own, which gets every line of the log."""

    def __init__(self, function: Callback) -> None:
        self.function = function

    def on_log(self, line: Line) -> None:
        """Pass it on."""
        self.function(line)


def wrap_functions(functions: Sequence[Callback]) -> list[FunctionCallback]:
    """Functions as callbacks; raise if they are none."""
    given: list[Any] = list(functions) if isinstance(functions, Iterable) else [None]
    if not all(map(callable, given)):
        raise BadInput(f"callbacks is a list of functions that take a line of the log, not {functions!r}")
    return [FunctionCallback(function) for function in given]


class CallbackList(TrainerCallback):
    """Calls all of them in order.

    One that may fail, and does, is reported once and left out: metrics.jsonl has every line. A function that fails has
    a mistake in it, or wants the run to stop: its error is kept in `failure`, for the trainer to raise when the run is
    saved.
    """

    def __init__(self, callbacks: Iterable[TrainerCallback], announce: Callable[[str], None]) -> None:
        self.callbacks, self.announce = list(callbacks), announce
        self.started: list[TrainerCallback] = []
        self.failure: Exception | None = None
        self.someone_listens = False  # in any process; all of them know alike

    def on_train_start(self, trainer: "Trainer") -> None:
        """In order; what one of them raises ends all processes."""
        with errors_on_all_ranks():
            for callback in self.callbacks:
                callback.on_train_start(trainer)
                self.started.append(callback)
        listening = (type(callback).on_log is not TrainerCallback.on_log for callback in self.callbacks)
        self.someone_listens = bool(all_reduce_max(any(listening))[0])

    def on_step(self, trainer: "Trainer", output: "StepOutput") -> None:
        """A step is done."""
        for callback in self.callbacks:
            callback.on_step(trainer, output)

    def on_epoch_end(self, trainer: "Trainer") -> Mapping[str, Any]:
        """The numbers of all; each finds those before it in `trainer.measured`."""
        numbers: dict[str, Any] = {}
        for callback in self.callbacks:
            found = callback.on_epoch_end(trainer)
            numbers |= found
            trainer.measured |= found
            trainer.measured_at |= dict.fromkeys(found, trainer.epoch)
        return numbers

    def on_save(self, trainer: "Trainer") -> None:
        """A checkpoint is about to be written."""
        for callback in self.callbacks:
            callback.on_save(trainer)

    def on_log(self, line: Line) -> None:
        """Returns when it is heard in the first process, where it may take longer than a step may."""
        for callback in list(self.callbacks) if is_main_process() else ():
            if callback.may_fail:
                self._try(callback, partial(callback.on_log, line))
            elif self.failure is None:
                try:
                    callback.on_log(line)
                except Exception as error:
                    self.failure = error
        if self.someone_listens:
            barrier()

    def on_train_end(self, trainer: "Trainer") -> None:
        """In the opposite order, those that have begun."""
        for callback in reversed(self.started):
            if callback.may_fail:
                self._try(callback, partial(callback.on_train_end, trainer))
            else:
                callback.on_train_end(trainer)
        self.started = []

    def state_dict(self) -> dict[str, Any]:
        """The states of those that have one, by the names of their classes."""
        return {type(callback).__name__: state for callback in self.callbacks if (state := callback.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from saved states."""
        for callback in self.callbacks:
            if type(callback).__name__ in state:
                callback.load_state_dict(state[type(callback).__name__])

    def raise_failure(self, sentence: str) -> NoReturn:
        """End a run that is saved, which `sentence` says, with a function's error; another process raises it."""
        if self.failure is None:
            raise RaisedOnOtherRank
        self.failure.add_note(sentence)
        raise self.failure

    def _try(self, callback: TrainerCallback, work: Callable[[], None]) -> None:
        if callback not in self.callbacks:
            return
        try:
            work()
        except Exception as error:
            self.callbacks.remove(callback)
            what = f"warning: {callback.name} fails ({first_line(error)})"
            self.announce(f"{what}; the run goes on without it, and metrics.jsonl has all")
