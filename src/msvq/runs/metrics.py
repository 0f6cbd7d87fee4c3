"""The run's log: `metrics.jsonl`, one object per line."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from msvq.core.files import write_text
from msvq.core.launch import is_main_process
from msvq.core.ordinary_files import read_ordinary


class RunProgress(NamedTuple):
    """How far a run is that has not left all that a run leaves."""

    step: int
    total_steps: int
    seconds_left: float | None  # of training; None: not known yet
    running: bool


class MetricsWriter:
    """Appends lines to a metrics file; each is handed to the system at once. Of several ranks, one writes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Append one line, and return it as it was written."""
        line: dict[str, Any] = nan_to_none({"kind": kind, **values})
        if is_main_process():
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        return line

    def flush(self) -> None:
        """Have what was written on disk."""
        if is_main_process() and self.path.exists():
            with self.path.open("rb") as file:
                os.fsync(file.fileno())

    def rewind(self, step: int) -> None:
        """Forget what was logged after `step`, so that a resumed run does not log it twice."""
        if not is_main_process():
            return
        kept = [line for line in read_metrics(self.path) if line["step"] <= step]
        write_text(self.path, "".join(json.dumps(line) + "\n" for line in kept))


def nan_to_none(value: Any) -> Any:
    """The value with null for whatever is no number: JSON has no other word for it."""
    if isinstance(value, Mapping):
        return {key: nan_to_none(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All lines of a metrics file; one that cannot be read, such as a last line that a kill cut short, is left out."""
    if not path.exists():
        return []
    lines: list[dict[str, Any]] = []
    for text in read_ordinary(path).splitlines():
        try:
            line = json.loads(text.decode())
        except (ValueError, RecursionError):
            continue
        if isinstance(line, dict) and _is_count(line.get("step")) and _is_count(line.get("epoch", 0)):
            lines.append(line)
    return lines


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 2**53
