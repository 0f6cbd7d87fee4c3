"""A text or CSV file that lists pictures."""

import csv
import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np

from msvq.core.errors import BadInput
from msvq.data.sources.base import TEST_NAMES
from msvq.data.sources.folders import FileImages

LISTS = (".txt", ".csv", ".tsv")

# Columns of a CSV list by name, in any order: file, label and split. Without a header they come in this order.
_COLUMNS = (
    ("file", "path", "filename", "filepath", "file_name", "image", "picture", "name"),
    ("label", "class", "target", "category"),
    ("split", "set", "subset"),
)


def list_file(path: Path, *, use_labels: bool = True, keep_all: bool = False) -> FileImages:
    """A list of files: a .txt with a file per line and perhaps a tab and its label, or a .csv with a header.

    Relative names start at the list's own folder. A split column says train or test (or val); `keep_all` takes no
    notice of splits and keeps every picture.
    """
    rows = list(_rows(path))
    if not rows:
        raise BadInput(f"the list {str(path)!r} is empty; it needs a file name per line")
    root = os.path.abspath(path.parent)
    names, words, splits = map(list, zip(*rows, strict=True))
    known = sorted({word for word in words if word not in ("", "-1")}, key=_rank)
    kinds = {word: label for label, word in enumerate(known)} if use_labels and len(known) > 1 else {}
    files = FileImages(
        origin=str(path),
        root=root,
        names=names,
        size_mtime=np.array([_size_mtime(os.path.join(root, name)) for name in names], np.int64),
        labels=np.array([kinds.get(word, -1) for word in words], np.int64),
        num_train=len(names),
        class_names=tuple(kinds),
    )
    if keep_all:
        return files
    is_test = np.array([split in TEST_NAMES for split in splits])
    return replace(files.select(np.argsort(is_test, kind="stable")), num_train=int((~is_test).sum())).arranged()


def _rank(word: str) -> tuple[bool, str, str]:
    """Numbers as numbers, then words."""
    return not word.isdigit(), word.zfill(20) if word.isdigit() else "", word


def _size_mtime(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return -1, -1
    return status.st_size, status.st_mtime_ns


def _rows(path: Path) -> Iterator[tuple[str, str, str]]:
    """File, label and split of each line; the last two may be empty."""
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        if path.suffix.lower() in (".csv", ".tsv"):
            yield from _csv_rows(path, csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ","))
            return
        for line in file:
            name, _, label = line.rstrip("\r\n").partition("\t")
            if not name.strip() or name.startswith("# "):
                continue
            if not label and not os.path.exists(path.parent / name):  # "picture.jpg 3", if that is what it is
                first, _, last = name.rpartition(" ")
                if first and os.path.exists(path.parent / first):
                    name, label = first, last
            yield name, label.strip(), ""


def _csv_rows(path: Path, rows: Iterator[list[str]]) -> Iterator[tuple[str, str, str]]:
    try:
        first = next((row for row in rows if any(map(str.strip, row))), [])
        titles = [title.strip().lower() for title in first]
        places = [next((titles.index(t) for t in known if t in titles), None) for known in _COLUMNS]
        if places[0] is None:
            places, rows = [0, 1, 2], chain([first], rows)
        for row in rows:
            name, label, split = (_cell(row, place) for place in places)
            if name:
                yield name, label, split.lower()
    except csv.Error as error:
        raise BadInput(f"the list {str(path)!r} is not valid CSV: {error}") from None


def _cell(row: list[str], index: int | None) -> str:
    return row[index].strip() if index is not None and index < len(row) else ""
