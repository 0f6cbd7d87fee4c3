"""What the map's script needs: where each picture lies, what it is, and one sheet with all thumbnails."""

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msvq.core.console import printable
from msvq.report.pictures import class_name, sprite_sheet
from msvq.report.records import Record

GRID = 10_000  # positions are told as whole numbers up to this: shorter, and finer than any screen


def map_data(records: Sequence[Record]) -> tuple[dict[str, Any], list[str]]:
    """The maps of all runs as plain values, and the sheets of thumbnails; runs that show the same pictures share one.

    classes: names.  sets: pictures with `labels` (indices of classes, or -1) and `names`.
    neighbours: for each run, the pictures [n, 6] that its encoder finds nearest.
    views: one map each, with the positions `x` and `y` of its set's pictures, and the number of its neighbours.
    """
    classes: dict[str, int] = {}
    sets: list[dict[str, Any]] = []
    sheets: list[str] = []
    known: dict[str, int] = {}
    neighbours: list[list[list[int]]] = []
    views: list[dict[str, Any]] = []
    for record in records:
        saved = record.arrays("map")
        if not saved or not len(saved["labels"]):
            continue
        same = hashlib.sha256(saved["images"].tobytes() + saved["labels"].tobytes()).hexdigest()
        if same not in known:
            known[same] = len(sets)
            sheet = sprite_sheet(saved["images"])
            sheets.append(sheet.pop("src"))
            sets.append({"sheet": sheet, **_picture_set(saved, classes)})
        neighbours.append(saved["neighbours"].tolist())
        for when in ("before", "after"):
            views.append(
                {
                    "run": record.title,
                    "when": when,
                    "set": known[same],
                    "x": _positions(saved[when][:, 0]),
                    "y": _positions(saved[when][:, 1]),
                    "neighbours": len(neighbours) - 1,
                }
            )
    if not views:
        return {}, []
    return {"classes": list(classes), "sets": sets, "neighbours": neighbours, "views": views, "grid": GRID}, sheets


def first_views(data: dict[str, Any]) -> tuple[int, int]:
    """The two maps to begin with: one run before and after, or two runs after."""
    after = [index for index, view in enumerate(data["views"]) if view["when"] == "after"]
    if len(after) > 1:
        return after[0], after[1]
    return 0, len(data["views"]) - 1


def _picture_set(saved: dict[str, NDArray[Any]], classes: dict[str, int]) -> dict[str, Any]:
    number = {-1: -1}
    for label in np.unique(saved["labels"]).tolist():  # in the order of the data set, as in the figures
        if label >= 0:
            number[label] = classes.setdefault(class_name(saved["class_names"], label), len(classes))
    labels = [number[max(label, -1)] for label in saved["labels"].tolist()]
    return {"labels": labels, "names": [printable(str(name)) for name in saved["names"]]}


def _positions(values: NDArray[Any]) -> list[int]:
    inside = np.clip(np.nan_to_num(values.astype(float), nan=0.5), 0, 1)
    return [int(value) for value in np.rint(inside * GRID)]
