"""Finished cells as small files: what a run has measured and with which settings, without the run itself.

A sweep leaves them in results/cells. Another sweep takes them with `--known`, so that a table can be made from runs
on several machines, or from runs that are no longer there.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from msvq.config.resolve import read_config
from msvq.config.settings import Settings
from msvq.core.errors import BadInput
from msvq.core.files import write_text
from msvq.reproduce.cells import FREE, MADE_BY
from msvq.reproduce.collect import Known, Measured, Score

FOLDER = "cells"  # in a sweep's results


def write_records(
    results: Path, scale: str, found: Iterable[Measured], cells: Path, known: Mapping[str, Known] | None = None
) -> list[Path]:
    """Write down what was found of every cell: of its run in `cells`, or of the file that it is known from."""
    files = []
    for one in found:
        from_elsewhere = (known or {}).get(one.cell)
        if from_elsewhere is not None and from_elsewhere.measured is one:
            text = from_elsewhere.path.read_text(encoding="utf-8")
        else:
            settings = read_config(cells / one.cell / "config.yaml").model_dump(mode="json")
            record = {"made_by": MADE_BY, "scale": scale, **asdict(one), "settings": _without_free(settings)}
            text = json.dumps(record, indent=1) + "\n"
        files.append(results / FOLDER / f"{one.cell}.json")
        write_text(files[-1], text)
    return files


def _without_free(settings: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """The settings that decide what is learned."""
    return {
        key: _without_free(value, f"{path}{key}.") if isinstance(value, Mapping) else value
        for key, value in settings.items()
        if f"{path}{key}" not in FREE
    }


def read_records(folder: Path) -> dict[str, Known]:
    """Cell -> what is known of it, from a sweep's results or from the files themselves."""
    if not folder.is_dir():
        raise BadInput(f"--known {str(folder)!r} is not a folder; name the results of a sweep, such as results/mini")
    inner = folder / FOLDER
    files = sorted((inner if inner.is_dir() else folder).glob("*.json"))
    if not files:
        raise BadInput(f"--known {str(folder)!r} holds no cells; they are in the folder results of a sweep's --out")
    records = [_read(path) for path in files]
    return {record.measured.cell: record for record in records}


def _read(path: Path) -> Known:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        scores = {name: Score(float(score["last"]), float(score["best"])) for name, score in found["scores"].items()}
        one = Measured(
            cell=str(found["cell"]),
            seed=int(found["seed"]),
            scores=scores,
            knn_curve=_points(found["knn_curve"]),
            false_negatives={view: _points(points) for view, points in found["false_negatives"].items()},
            steps_per_epoch=float(found["steps_per_epoch"]),
            seconds_per_picture=_number(found["seconds_per_picture"]),
            seconds=_number(found["seconds"]),
            memory=None if found["memory"] is None else int(found["memory"]),
            machine=dict(found["machine"]),
        )
        settings = Settings.model_validate(found["settings"]).model_dump(mode="json")  # with what is new since then
        return Known(path, str(found["scale"]), one, settings)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ValidationError):
        raise BadInput(f"{str(path)!r} is no cell of a sweep, or damaged; move it away") from None


def _points(pairs: Iterable[Iterable[float]]) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in pairs]


def _number(value: float | None) -> float | None:
    return None if value is None else float(value)
