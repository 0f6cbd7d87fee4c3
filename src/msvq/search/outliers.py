"""`msvq outliers`: the pictures least like all others, and why."""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from msvq.core.console import Display
from msvq.core.errors import BadInput
from msvq.data.decode import IMAGE_RECORD
from msvq.evaluate.diagnostics.groups import NEIGHBOURS, TELLING, explain, measure_oddness
from msvq.search.findings import Findings, make_card, open_features, open_pictures
from msvq.search.index import Index
from msvq.search.inputs import Inputs
from msvq.search.neighbours import approximation_notes, nearest_neighbours
from msvq.search.page import Group

NUM = 50  # pictures, where nothing is said
FEWEST = 3  # pictures of which one may be odd


@dataclass(frozen=True, kw_only=True)
class Outliers(Findings):
    """The oddest pictures first."""

    positions: NDArray[np.int64]  # [n] in the source
    scores: NDArray[np.float64]  # [n]: deviations from what is usual


def find_outliers(
    inputs: Inputs,
    *,
    num: int | None = None,
    out: Path | None = None,
    html: Path | None = None,
    display: Display | None = None,
) -> Outliers:
    """The `num` pictures least like all others, the oddest first; None: fifty, or as many as there are."""
    display = display or Display()
    index = open_features(*open_pictures(inputs, out, html, display, num=num), display, num=num)
    if len(index) < FEWEST:
        raise BadInput(f"{len(index)} pictures are too few to tell which are odd; name more with --data")
    num = NUM if num is None else num
    cosines, _ = nearest_neighbours(index.features, NEIGHBOURS, display, "comparing features")
    looks, is_read = _examine(index, display)
    deviations = measure_oddness(cosines, looks["thumbnail"], looks["width"], looks["height"])
    scores = np.where(is_read, deviations.max(0), -np.inf)
    order = np.argsort(-scores, kind="stable")[: min(num, int(is_read.sum()))]
    reasons = [explain(deviations[:, row]) for row in order.tolist()]
    found = _describe(index, order, scores[order], cosines.mean(1)[order], reasons)
    found.write(out, html)
    return found


def _examine(index: Index, display: Display) -> tuple[NDArray[np.void], NDArray[np.bool_]]:
    """A record of each picture of the index, and which could still be read."""
    records, is_read = np.zeros(len(index.source), IMAGE_RECORD), np.ones(len(index.source), np.bool_)
    start = 0
    task = display.task("looking at the pictures", len(index.source))
    with task as advance, closing(index.source.examined()) as results:
        for result in results:
            stop = start + len(result.rows)
            records[start:stop] = result.rows
            is_read[[start + place for place in result.reasons]] = False
            advance(stop - start)
            start = stop
    return records[index.kept], is_read[index.kept]


def _describe(
    index: Index,
    order: NDArray[np.int64],
    scores: NDArray[np.float64],
    cosines: NDArray[np.float32],
    reasons: list[str],
) -> Outliers:
    cards = [make_card(index, row, why) for row, why in zip(order.tolist(), reasons, strict=True)]
    rows = tuple(
        (rank, round(score, 2), why, card.name, card.class_name, round(cosine, 4))
        for rank, (score, why, card, cosine) in enumerate(
            zip(scores.tolist(), reasons, cards, cosines.tolist(), strict=True), start=1
        )
    )
    odd = int((scores >= TELLING).sum())
    sentence = (
        f"The {len(order):,} of {len(index):,} pictures in {index.source.title} that are least like the others, the "
        f"oddest first; {odd:,} of them stand out by more than {TELLING} deviations."
    )
    return Outliers(
        title="Odd pictures",
        sentence=sentence,
        columns=("rank", "score", "why", "file", "class", "cosine"),
        rows=rows,
        groups=(Group("The oddest first", "", cards),),
        source=index.source,
        skipped=index.left_out,
        notes=approximation_notes(len(index)),
        positions=index.kept[order],
        scores=scores,
    )
