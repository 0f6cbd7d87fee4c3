"""Pictures on the page: thumbnails in data addresses, the neighbour grid and the false-negative gallery."""

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from msvq.core.console import printable
from msvq.report.records import Record

THUMBNAIL = 64  # pixels at most: they are shown at some 60
THUMBNAIL_QUALITY = 90
SHEET_QUALITIES = (85, 75, 65)  # the first that is small enough

Arrays = dict[str, NDArray[Any]]


def data_address(image: NDArray[np.uint8], quality: int = THUMBNAIL_QUALITY) -> str:
    """A picture uint8 [H, W, 3] in a data address: PNG or JPEG, whichever is smaller."""
    return min(_encode(image, "png"), _encode(image, "jpeg", quality), key=len)


def thumbnail(image: NDArray[np.uint8]) -> str:
    """A picture uint8 [H, W, 3] in a data address, no larger than it is shown."""
    picture = Image.fromarray(image)
    picture.thumbnail((THUMBNAIL, THUMBNAIL), Image.Resampling.LANCZOS)
    return data_address(np.asarray(picture))


def class_name(names: Sequence[Any] | NDArray[Any], label: int) -> str:
    """A label in words; empty where it is unknown."""
    if label < 0:
        return ""
    return printable(str(names[label])) if label < len(names) else f"class {label}"


def cell(image: NDArray[np.uint8], label: int, truth: int, names: NDArray[Any]) -> dict[str, Any]:
    """A thumbnail with its class and whether that is the query's: "same", "other", or "" where nobody knows."""
    known = label >= 0 and truth >= 0
    mark = ("same" if label == truth else "other") if known else ""
    small = max(image.shape[:2]) < THUMBNAIL
    return {"src": thumbnail(image), "name": class_name(names, label), "mark": mark, "small": small}


def neighbour_rows(record: Record) -> list[dict[str, Any]]:
    """Rows of a query and its neighbours before and after training."""
    saved = record.arrays("neighbours")
    if not saved:
        return []
    rows = []
    for index, truth in enumerate(saved["query_labels"]):
        row: dict[str, Any] = {"labelled": truth >= 0, "query": _query(saved, index)}
        for when in ("before", "after"):
            found = zip(saved[when][index], saved[f"{when}_labels"][index], strict=True)
            row[when] = [cell(image, label, truth, saved["class_names"]) for image, label in found]
        rows.append(row)
    return rows


def gallery(record: Record) -> dict[str, Any]:
    """Queries with what each soft label puts first, and the pairs that got most weight for no good reason."""
    saved = record.arrays("gallery")
    if not saved:
        return {}
    names, rows, worst = saved["class_names"], [], []
    for index, truth in enumerate(saved["query_labels"]):
        views = []
        for number, view in enumerate(saved["views"]):
            found = (saved[f"found_{what}"][number, index] for what in ("images", "labels", "weights"))
            cells = [
                cell(image, label, truth, names) | {"weight": float(weight)}
                for image, label, weight in zip(*found, strict=True)
            ]
            views.append({"name": str(view), "cells": cells, "right": sum(one["mark"] == "same" for one in cells)})
        rows.append({"query": _query(saved, index), "views": views, "labelled": truth >= 0})
    pairs = (saved[f"worst_{what}"] for what in ("images", "labels", "weights"))
    for images, labels, weight in zip(*pairs, strict=True):
        query, other = (cell(image, label, labels[0], names) for image, label in zip(images, labels, strict=True))
        worst.append({"query": query | {"mark": "query"}, "found": other, "weight": float(weight)})
    return {"rows": rows, "worst": worst}


def sprite_sheet(images: NDArray[np.uint8], most_bytes: int = 1_000_000) -> dict[str, Any]:
    """Pictures [n, h, w, 3] side by side in one: its address, and how to find picture i in it.

    Tiles are squares, filled up to whole blocks of JPEG (8 pixels), so that no picture bleeds into its neighbour.
    """
    num, height, width = images.shape[:3]
    size = max(height, width)
    step = -(-size // 8) * 8
    columns = max(1, int(np.ceil(num**0.5)))
    rows = max(1, -(-num // columns))
    tiles = np.zeros((rows * columns, step, step, 3), np.uint8)
    tiles[:num] = np.pad(images, ((0, 0), (0, step - height), (0, step - width), (0, 0)), mode="edge")
    sheet = tiles.reshape(rows, columns, step, step, 3).swapaxes(1, 2).reshape(rows * step, columns * step, 3)
    sheet = np.ascontiguousarray(sheet)
    for quality in SHEET_QUALITIES:
        source = _encode(sheet, "jpeg", quality)
        if len(source) < most_bytes:
            break
    return {"src": min(source, _encode(sheet, "png"), key=len), "size": size, "step": step, "columns": columns}


def _encode(image: NDArray[np.uint8], kind: str, quality: int = 0) -> str:
    buffer = io.BytesIO()
    options = {"quality": quality, "subsampling": 0} if kind == "jpeg" else {}
    Image.fromarray(image).save(buffer, kind, **options)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _query(saved: Arrays, index: int) -> dict[str, Any]:
    truth = saved["query_labels"][index]
    return cell(saved["queries"][index], truth, truth, saved["class_names"]) | {"mark": "query"}
