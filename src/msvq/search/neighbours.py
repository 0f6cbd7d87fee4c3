"""The nearest neighbours of every picture by its features: exact for thousands, in cells for more."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from msvq.core.console import Display
from msvq.data.sources.base import Positions
from msvq.evaluate.diagnostics.groups import assign, find_centres
from msvq.search.index import unit_rows
from msvq.search.search import nearest

EXACT = 100_000  # pictures up to which each is compared with every other
QUERIES = 256  # looked up at a time
CELL, PROBED = 2000, 8  # beyond: pictures in a cell, and cells that a picture is compared with
LARGEST = 4 * CELL  # pictures in a cell: a larger one, of pictures that all look the same, is cut into several
SAMPLE = 50_000  # pictures that the cells are learned from


def nearest_neighbours(
    features: NDArray[np.float32], num: int, display: Display, task: str
) -> tuple[NDArray[np.float32], Positions]:
    """Cosines and rows [N, num] of the unit features [N, d] most like each row, itself left out, nearest first.

    Above EXACT rows the time would grow with their square, so each is compared with the cells around it alone.
    """
    total = len(features)
    num = min(num, total - 1)
    cosines, rows = np.zeros((total, num), np.float32), np.zeros((total, num), np.int64)
    for note in approximation_notes(total):
        display.note(note)
    with display.task(task, total) as advance:
        for members, pool in _cells(features, num + 1):
            there = features if len(pool) == total else np.array(features[pool])
            for start in range(0, len(members), QUERIES):
                asked = members[start : start + QUERIES]
                scores, places = nearest(there, np.array(features[asked]), num + 1)
                cosines[asked], rows[asked] = _without_self(scores, pool[places], asked)
                advance(len(asked))
    return cosines, rows


def approximation_notes(total: int) -> tuple[str, ...]:
    """What is to be said of the neighbours of so many pictures: nothing, where they are exact."""
    if total <= EXACT:
        return ()
    return (
        f"{total:,} pictures are more than {EXACT:,}: each is compared with some {CELL * PROBED:,} around it, not "
        f"with all, so a few neighbours may be missed",
    )


def _cells(features: NDArray[np.float32], least: int) -> Iterator[tuple[Positions, Positions]]:
    """Rows that are looked up together, and those that they are compared with: `least` or more."""
    total = len(features)
    if total <= EXACT:
        yield np.arange(total), np.arange(total)
        return
    sample = np.sort(np.random.default_rng(0).choice(total, SAMPLE, replace=False))
    own, _ = assign(features, find_centres(features[sample], total // CELL, starts=1))
    cells = np.split(np.argsort(own, kind="stable"), np.flatnonzero(np.diff(np.sort(own))) + 1)
    members = [part for cell in cells for part in np.array_split(cell, -(-len(cell) // LARGEST))]
    centres = unit_rows(np.array([features[some].mean(axis=0) for some in members]))
    sizes = np.array([len(some) for some in members])
    for some, similarity in zip(members, centres @ centres.T, strict=True):
        around = np.argsort(-similarity, kind="stable")
        enough = max(PROBED, int(np.searchsorted(np.cumsum(sizes[around]), least)) + 1)
        yield some, np.sort(np.concatenate([members[cell] for cell in around[:enough]]))


def _without_self(
    scores: NDArray[np.float32], rows: Positions, asked: Positions
) -> tuple[NDArray[np.float32], Positions]:
    """Each row's answers [n, k + 1] without the row itself, or without the last where equals came before it."""
    own = rows == asked[:, None]
    own[~own.any(1), -1] = True
    shape = (len(rows), rows.shape[1] - 1)
    return scores[~own].reshape(shape), rows[~own].reshape(shape)
