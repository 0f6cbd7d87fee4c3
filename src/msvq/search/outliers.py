"""`msvq outliers`: the pictures least like all others, and why."""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from msvq.core.console import Display
from msvq.data.decode import IMAGE_RECORD
from msvq.search.findings import Findings, make_card, open_features
from msvq.search.index import Index
from msvq.search.inputs import Inputs
from msvq.search.neighbours import nearest_neighbours
from msvq.search.page import Group

NEIGHBOURS = 10  # whose mean distance tells how far a picture is from everything
TELLING = 3.5  # robust deviations from which a number is a reason (Iglewicz and Hoaglin's rule for outliers)
# Deviations are at least these, or a folder in which all are of one size would call one pixel more an oddity: cosine
# distance; logarithms of contrast, size and shape; shares of 255 for colour.
LEAST = {"far": 0.01, "empty": 0.3, "size": 0.2, "shape": 0.1, "colour": 0.1}
WHY = {
    "far": "far from everything",
    "empty": "nearly empty or uniform",
    "size": "another size",
    "shape": "another shape",
    "colour": "another colour",
}


@dataclass(frozen=True, kw_only=True)
class Outliers(Findings):
    """The oddest pictures first."""

    positions: NDArray[np.int64]  # [n] in the source
    scores: NDArray[np.float64]  # [n]: deviations from what is usual


def find_outliers(
    inputs: Inputs,
    *,
    num: int = 50,
    out: Path | None = None,
    html: Path | None = None,
    display: Display | None = None,
) -> Outliers:
    """The `num` pictures least like all others, the oddest first."""
    display = display or Display()
    _, index = open_features(inputs, out, html, display, num=num)
    cosines, _ = nearest_neighbours(index.features, NEIGHBOURS, display, "comparing features")
    measured = {"far": 1 - cosines.mean(1), **measure_looks(_examine(index, display))}
    deviations = np.stack([robust_deviations(values, LEAST[name]) for name, values in measured.items()])
    deviations[1] = -deviations[1]  # much contrast is nothing odd, little is
    scores = deviations.max(0)
    order = np.argsort(-scores, kind="stable")[:num]
    reasons = [explain(deviations[:, row]) for row in order.tolist()]
    found = _describe(index, order, scores[order], cosines.mean(1)[order], reasons)
    found.write(out, html)
    return found


def robust_deviations(values: NDArray[np.float64], least: float) -> NDArray[np.float64]:
    """How far each value is above the median, in deviations that outliers do not change (1.4826 times the MAD)."""
    middle = np.median(values)
    found: NDArray[np.float64] = (values - middle) / max(1.4826 * float(np.median(np.abs(values - middle))), least)
    return found


def measure_looks(records: NDArray[np.void]) -> dict[str, NDArray[np.float64]]:
    """Of IMAGE_RECORDs [N]: the logarithm of the contrast, and how far size, shape and colour are from the usual."""
    thumbnails = records["thumbnail"].reshape(-1, 64, 3).astype(np.float64) / 255
    contrast = np.log(thumbnails.std(axis=1).mean(axis=1) + 1 / 255)
    width, height = np.maximum(records["width"], 1), np.maximum(records["height"], 1)
    size, shape = np.log(np.minimum(width, height)), np.log(width / height)
    colour, saturation = thumbnails.mean(axis=1), np.ptp(thumbnails, axis=2).mean(axis=1)
    looks = np.concatenate([colour - colour.mean(axis=1, keepdims=True), saturation[:, None]], axis=1)
    return {
        "empty": contrast,
        "size": np.abs(size - np.median(size)),
        "shape": np.abs(shape - np.median(shape)),
        "colour": np.linalg.norm(looks - np.median(looks, axis=0), axis=1),
    }


def explain(deviations: NDArray[np.float64]) -> str:
    """What is odd about a picture, the oddest first; by the deviations in the order of WHY."""
    order = np.argsort(-deviations, kind="stable").tolist()
    words = [list(WHY.values())[place] for place in order if deviations[place] >= TELLING]
    return ", ".join(words) or "a little unusual"


def _examine(index: Index, display: Display) -> NDArray[np.void]:
    """A record of each picture of the index."""
    rows = [np.zeros(0, IMAGE_RECORD)]
    task = display.task("looking at the pictures", len(index.source))
    with task as advance, closing(index.source.examined()) as results:
        for result in results:
            rows.append(result.rows)
            advance(len(result.rows))
    return np.concatenate(rows)[index.kept]


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
        positions=index.kept[order],
        scores=scores,
    )
