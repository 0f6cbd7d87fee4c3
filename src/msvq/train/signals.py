"""Interruptions: the first asks a run to save and stop, the second stops it at once."""

import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import ClassVar, Self

from msvq.core.launch import num_processes

SIGNALS = (signal.SIGINT, signal.SIGTERM)
ECHO = 5.0  # seconds in which torchrun, or a sweep, passes on a signal that its processes may have had themselves


class Interrupted(KeyboardInterrupt):
    """A run was asked to stop and has saved; the sentence says where it stands."""

    def __init__(self, sentence: str, signal_number: int) -> None:
        super().__init__(sentence)
        self.signal_number = signal_number


class Interruptions:
    """While entered, SIGINT and SIGTERM only note that a stop is wanted; a second one is a KeyboardInterrupt."""

    echoes: ClassVar[bool] = False  # whether who started this process passes on signals that it may have had already

    def __init__(self, announce: Callable[[str], None] = lambda sentence: None) -> None:
        self.announce = announce
        self.wanted: int | None = None  # the signal that came
        self._since = 0.0
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handlers
            self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal gave
        self._before = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.wanted is not None:
            if (self.echoes or num_processes() > 1) and time.monotonic() - self._since < ECHO:
                return
            raise KeyboardInterrupt
        self.wanted, self._since = number, time.monotonic()
        with suppress(OSError, RuntimeError, ValueError):  # a terminal that is gone must not cost the checkpoint
            self.announce("stopping: the run is saved after this step; once more to stop at once")
