"""The nearest neighbours of every picture by its features: exact for thousands, in cells for more."""

import numpy as np
import torch
from numpy.typing import NDArray

from msvq.core.console import Display
from msvq.data.sources.base import Positions
from msvq.search.search import nearest

EXACT = 100_000  # pictures up to which each is compared with every other
QUERIES = 256  # looked up at a time
CELL, PROBED = 2000, 8  # beyond: pictures in a cell, and cells that a picture is compared with
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
    with display.task(task, total) as advance:
        for members, pool in _cells(features, display):
            there = features if len(pool) == total else np.array(features[pool])
            for start in range(0, len(members), QUERIES):
                asked = members[start : start + QUERIES]
                scores, places = nearest(there, np.array(features[asked]), num + 1)
                cosines[asked], rows[asked] = _without_self(scores, pool[places], asked)
                advance(len(asked))
    return cosines, rows


def _cells(features: NDArray[np.float32], display: Display) -> list[tuple[Positions, Positions]]:
    """Rows that are looked up together, and those that they are compared with."""
    total = len(features)
    if total <= EXACT:
        return [(np.arange(total), np.arange(total))]
    display.note(
        f"{total:,} pictures are more than {EXACT:,}: each is compared with some {CELL * PROBED:,} around it, not "
        f"with all, so a few neighbours may be missed"
    )
    from sklearn.cluster import MiniBatchKMeans  # here, for it takes a second to import

    sample = np.sort(np.random.default_rng(0).choice(total, SAMPLE, replace=False))
    learner = MiniBatchKMeans(total // CELL, batch_size=4096, n_init=1, random_state=0)
    centres = torch.from_numpy(learner.fit(features[sample]).cluster_centers_.astype(np.float32))
    centres = torch.nn.functional.normalize(centres, dim=1)
    own = np.concatenate(
        [
            (torch.from_numpy(np.array(features[start : start + 8192])) @ centres.T).argmax(1).numpy()
            for start in range(0, total, 8192)
        ]
    )
    members = np.split(np.argsort(own, kind="stable"), np.searchsorted(np.sort(own), np.arange(1, len(centres))))
    around = (centres @ centres.T).topk(min(PROBED, len(centres)), dim=1).indices.tolist()
    return [
        (some, np.sort(np.concatenate([members[cell] for cell in cells])))
        for some, cells in zip(members, around, strict=True)
        if len(some)
    ]


def _without_self(
    scores: NDArray[np.float32], rows: Positions, asked: Positions
) -> tuple[NDArray[np.float32], Positions]:
    """Each row's answers [n, k + 1] without the row itself, or without the last where equals came before it."""
    own = rows == asked[:, None]
    own[~own.any(1), -1] = True
    shape = (len(rows), rows.shape[1] - 1)
    return scores[~own].reshape(shape), rows[~own].reshape(shape)
