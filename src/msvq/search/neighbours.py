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
    return _without_self(*nearest_rows(features, features, min(num, total - 1) + 1, display, task))


def nearest_rows(
    features: NDArray[np.float32], queries: NDArray[np.float32], num: int, display: Display, task: str
) -> tuple[NDArray[np.float32], Positions]:
    """Cosines and rows [Q, num] of the unit features [N, d] most like each unit query [Q, d], nearest first.

    Exact for as many comparisons as EXACT pictures with each other; beyond, in cells.
    """
    total = len(features)
    num = min(num, total)
    cosines, rows = np.zeros((len(queries), num), np.float32), np.zeros((len(queries), num), np.int64)
    with display.task(task, len(queries)) as advance:
        for members, pool in _cells(features, queries, num):
            there = features if len(pool) == total else np.array(features[pool])
            for start in range(0, len(members), QUERIES):
                asked = members[start : start + QUERIES]
                cosines[asked], places = nearest(there, np.array(queries[asked]), num)
                rows[asked] = pool[places]
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


def _cells(
    features: NDArray[np.float32], queries: NDArray[np.float32], least: int
) -> Iterator[tuple[Positions, Positions]]:
    """Queries that are looked up together, and the rows that they are compared with: `least` or more."""
    total = len(features)
    if total * len(queries) <= EXACT**2:
        yield np.arange(len(queries)), np.arange(total)
        return
    sample = np.sort(np.random.default_rng(0).choice(total, min(SAMPLE, total), replace=False))
    centres = find_centres(features[sample], max(1, total // CELL), starts=1)
    parts = [part for _, cell in _grouped(features, centres) for part in np.array_split(cell, -(-len(cell) // LARGEST))]
    middles = unit_rows(np.array([features[some].mean(axis=0) for some in parts]))
    sizes = np.array([len(some) for some in parts])
    for cell, asked in _grouped(queries, centres):
        around = np.argsort(-(middles @ centres[cell]), kind="stable")
        enough = max(PROBED, int(np.searchsorted(np.cumsum(sizes[around]), least)) + 1)
        yield asked, np.sort(np.concatenate([parts[place] for place in around[:enough]]))


def _grouped(vectors: NDArray[np.float32], centres: NDArray[np.float32]) -> Iterator[tuple[int, Positions]]:
    """Each centre that is the nearest of some rows, and these rows."""
    nearest_centre, _ = assign(vectors, centres)
    order = np.argsort(nearest_centre, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(nearest_centre[order])) + 1):
        yield int(nearest_centre[rows[0]]), rows


def _without_self(scores: NDArray[np.float32], rows: Positions) -> tuple[NDArray[np.float32], Positions]:
    """Each row's answers [N, k + 1] without the row itself, or without the last where equals came before it."""
    own = rows == np.arange(len(rows))[:, None]
    own[~own.any(1), -1] = True
    shape = (len(rows), rows.shape[1] - 1)
    return scores[~own].reshape(shape), rows[~own].reshape(shape)
