"""The runs in a folder, best first."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from msvq.core.console import printable
from msvq.core.errors import BadInput
from msvq.core.files import LOCK, is_locked, is_run
from msvq.report.records import Record, is_number, read_record

DEPTH = 3  # folders within folders that are looked into


class Listed(NamedTuple):
    """A run at a glance; what was not measured is None."""

    name: str
    method: str
    data: str
    state: str  # the verdict of a finished run; "training" while a process is at it
    epochs: str  # that are over, of how many
    took: float | None  # seconds of training in those epochs
    changed: str  # when its log last grew
    knn: float | None  # percent
    copies: float | None  # percent of changed copies that find their originals


def list_runs(folder: Path) -> list[Listed]:
    """Those in the folder and below, by accuracy, then by copies found, then by name."""
    if not folder.is_dir():
        raise BadInput(f"there is no folder {str(folder)!r}; name the one that your runs are in")
    found = [_listed(run, folder) for run in _runs(folder, DEPTH)]
    if not found:
        raise BadInput(f"there is no run in {str(folder)!r}; name the folder that your runs are in")
    return sorted(found, key=lambda run: (-(run.knn or -1), -(run.copies or -1), run.name))


def _runs(folder: Path, depth: int) -> Iterator[Path]:
    if is_run(folder):
        yield folder
    elif depth:
        for inner in sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()):
            yield from _runs(inner, depth - 1)


def _listed(run: Path, folder: Path) -> Listed:
    name = printable(str(run.relative_to(folder)) if run != folder else run.name)
    try:
        record = read_record(run)
    except BadInput:
        return Listed(name, "", "", "damaged", "", None, "", None, None)
    log = run / "metrics.jsonl"
    changed = datetime.fromtimestamp(log.stat().st_mtime).strftime("%d %b %H:%M") if log.is_file() else ""
    return Listed(
        name,
        printable(Path(record.method).name),
        printable(Path(record.source).name),
        _state(record),
        f"{record.num_epochs}/{record.section('train').get('epochs', '?')}",
        _seconds(record),
        changed,
        record.accuracies.get("trained"),
        ((record.copies.get("recall") or {}).get("trained") or {}).get("at_1"),
    )


def _state(record: Record) -> str:
    if not record.is_finished:
        return "training" if is_locked(record.path / LOCK) else "not finished"
    return str(record.verdict.get("state", "finished"))


def _seconds(record: Record) -> float | None:
    """By the speed of each epoch, so that neither evaluations nor a pause before a resume count."""
    batch_size, seconds, before = record.section("train").get("batch_size") or 0, 0.0, 0
    for line in record.metrics:
        speed = line.get("images_per_second")
        if is_number(speed) and speed > 0:
            seconds += (line["step"] - before) * batch_size / speed
            before = line["step"]
    return seconds if is_number(seconds) and seconds > 0 else None
