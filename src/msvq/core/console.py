"""A bar for work that takes more than a moment, where there is a terminal; a plain line elsewhere."""

import io
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

PATIENCE = 2.0  # seconds after which work without a terminal is worth a line

# Control characters but for the end of a line and the tab, and those that turn the direction of writing.
_COMMANDS = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069]")

Advance = Callable[[int], None]


def printable(text: str) -> str:
    """Text that any file and terminal takes: bytes that are no UTF-8, and commands to a terminal, become escapes."""
    shown = _COMMANDS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
    return shown.encode(errors="backslashreplace").decode()


def say(console: Console, sentence: str, style: str | None = None) -> None:
    """Print a sentence as it is, in letters that the terminal or file can hold."""
    known = printable(sentence).encode(console.encoding, "backslashreplace").decode(console.encoding)
    console.print(known, style=style, soft_wrap=True, markup=False, highlight=False, emoji=False)


def duration(seconds: float) -> str:
    """Seconds in the unit that a person would use."""
    for unit, length in (("days", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0)):
        if seconds >= 2 * length or (unit == "s" and seconds >= 1):
            number = seconds / length
            return f"{number:.1f} {unit}" if number < 20 else f"{number:.0f} {unit}"
    return f"{1000 * seconds:.0f} ms"


def counted(num: int, noun: str, many: str | None = None) -> str:
    """So many of something: 1 epoch, 2 epochs; `many`: where an s is not enough."""
    return f"{num:,} {noun if num == 1 else many or noun + 's'}"


def printed(show: Callable[[Any, Console], None], what: object) -> str:
    """What `show` prints of it, as text."""
    console = Console(file=io.StringIO(), width=120)
    with console.capture() as text:
        show(what, console)
    return text.get().rstrip()


class TolerantStream:
    """A standard stream whose end may be full or gone: what cannot be written is dropped, and the work goes on."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.error: OSError | None = None  # the first

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        """Write if that can be."""
        self._try(partial(self.stream.write, text))
        return len(text)

    def flush(self) -> None:
        """Flush if that can be."""
        self._try(self.stream.flush)

    def _try(self, work: Callable[[], object]) -> None:
        try:
            work()
        except OSError as error:
            self.error = self.error or error
            with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - there goes what is still held, and all that follows
                os.dup2(nowhere.fileno(), self.stream.fileno())


class Display:
    """Shows how far a piece of work is."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(quiet=True)

    def note(self, sentence: str) -> None:
        """Print a sentence."""
        say(self.console, sentence)

    @contextmanager
    def busy(self, description: str) -> Iterator[None]:
        """Show that something goes on whose length is not known."""
        if not self.console.is_terminal:
            late = threading.Timer(PATIENCE, self.note, [f"{description} ..."])
            late.daemon = True
            late.start()
            try:
                yield
            finally:
                late.cancel()
            return
        with self.console.status(Text(description)):
            yield

    @contextmanager
    def task(self, description: str, total: int, *, in_bytes: bool = False) -> Iterator[Advance]:
        """Yield a function that moves the bar on by so many items (or bytes)."""
        if not self.console.is_terminal:
            started, said = time.monotonic(), False

            def wait(num: int) -> None:
                nonlocal said
                if not said and time.monotonic() - started > PATIENCE:
                    said = True
                    self.note(f"{description} ...")

            yield wait
            if said:
                self.note(f"{description}: done in {time.monotonic() - started:.0f} s")
            return
        counted = DownloadColumn() if in_bytes else MofNCompleteColumn()
        named = TextColumn("{task.description}", markup=False)
        columns = (named, BarColumn(bar_width=None), counted, TimeRemainingColumn())
        with Progress(*columns, console=self.console, transient=True) as bar:
            task = bar.add_task(description, total=total or None)
            yield lambda num: bar.advance(task, num)
