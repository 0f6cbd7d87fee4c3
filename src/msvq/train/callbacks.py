"""Who hears of every line of the log: loggers such as TensorBoard, and functions of one's own."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from msvq.core.distributed import RaisedOnOtherRank, errors_on_all_ranks, largest, wait_for_first
from msvq.core.errors import BadInput
from msvq.core.launch import is_main_process
from msvq.runs.metrics import read_metrics

Line = Mapping[str, Any]  # of metrics.jsonl, with "kind" ("step", "epoch" or "eval"), "step" and "epoch"
Callback = Callable[[Line], object]  # called with every line, in the first process; an error ends the run once saved


class Logger(Protocol):
    """A service that shows curves. It must bear to be told of a line again when a run is resumed."""

    name: str

    def open(self, run: Path, settings: Mapping[str, Any], step: int) -> str:
        """Begin, or go on after `step`; returns a sentence about where to look. Raises BadInput if it cannot."""
        ...

    def hear(self, line: Line) -> None:
        """Take a line, unless it is known."""
        ...

    def catch_up(self, lines: Sequence[Line]) -> None:
        """Take those of a run's earlier lines that are not known."""
        ...

    def close(self) -> None:
        """Nothing more is coming."""
        ...


class Listeners:
    """Tells loggers and callbacks what is logged; of several processes, in the first alone.

    A logger that fails is reported once and left out: it has the network and other people's servers against it, and
    metrics.jsonl has every line. A callback that fails has a mistake in it, or wants the run to stop: its error is
    kept in `failure`, for the trainer to raise when the run is saved.
    """

    def __init__(self, loggers: Sequence[Logger] = (), callbacks: Sequence[Callback] = ()) -> None:
        self.loggers, self.callbacks = list(loggers), list(callbacks) if isinstance(callbacks, Iterable) else [None]
        if not all(map(callable, self.callbacks)):
            raise BadInput(f"callbacks is a list of functions that take a line of the log, not {callbacks!r}")
        self.failure: Exception | None = None
        self.anyone = False  # whether, in any process, somebody listens; all of them know alike
        self._announce: Callable[[str], None] = lambda sentence: None

    @contextmanager
    def listening(
        self, log: Path, settings: Mapping[str, Any], step: int, announce: Callable[[str], None]
    ) -> Iterator[None]:
        """Open the loggers for a run that stands at `step`, and close them in the end."""
        self._announce = announce
        opened: list[Logger] = []
        try:
            with errors_on_all_ranks():
                for logger in self.loggers if is_main_process() else ():
                    announce(logger.open(log.parent, settings, step))
                    opened.append(logger)
            self.anyone = bool(largest(bool(self.loggers or self.callbacks))[0])
            earlier = read_metrics(log) if opened else []  # of which some may not have heard
            for logger in list(opened):
                self._try(logger, partial(logger.catch_up, earlier))
            self.wait()
            yield
        finally:
            for logger in opened:
                if logger in self.loggers:
                    self._try(logger, logger.close)

    def hear(self, line: Line) -> None:
        """A line was logged."""
        for logger in list(self.loggers):
            self._try(logger, partial(logger.hear, line))
        if self.failure is None:
            try:
                for callback in self.callbacks:
                    callback(line)
            except Exception as error:
                self.failure = error

    def wait(self) -> None:
        """Wait until what was logged is heard in the first process, where it may take longer than a step may."""
        if self.anyone:
            wait_for_first()

    def stopped(self, sentence: str) -> Exception:
        """The error that ends the run, now that it is saved, which `sentence` says; another process raises it."""
        if self.failure is None:
            return RaisedOnOtherRank()
        self.failure.add_note(sentence)
        return self.failure

    def _try(self, logger: Logger, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self.loggers.remove(logger)
            why = str(error).strip().partition("\n")[0] or type(error).__name__
            self._announce(
                f"warning: {logger.name} fails ({why}); the run goes on without it, and metrics.jsonl has all"
            )
