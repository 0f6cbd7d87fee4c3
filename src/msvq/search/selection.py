"""`msvq select`: a small set of pictures that covers the whole, to label first."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from msvq.core.console import Advance, Display
from msvq.data.sources.base import Positions
from msvq.search.findings import Findings, check_work, make_card, open_features, open_pictures
from msvq.search.index import Index
from msvq.search.inputs import Inputs
from msvq.search.page import Group
from msvq.search.search import embed_queries, find_queries

ROWS, OTHERS = 65_536, 256  # compared at a time
NEAR_SHARE, NEAR_LEAST = 0.25, 4  # a choice near examples is among this share of all, or so many times its size


@dataclass(frozen=True, kw_only=True)
class Selection(Findings):
    """The chosen pictures, in the order of the choice: its beginning is a choice, too."""

    positions: NDArray[np.int64]  # [n] in the source
    covered: float  # the cosine of the picture that is least like any chosen one, and that chosen one


def select_pictures(
    inputs: Inputs,
    *,
    num: int,
    near: Sequence[str | Path] = (),
    avoid: Sequence[str | Path] = (),
    out: Path | None = None,
    html: Path | None = None,
    display: Display | None = None,
) -> Selection:
    """Choose `num` pictures so that every picture is like one of them (k-centre, farthest first).

    `near`: pictures like which to choose. `avoid`: pictures that count as chosen already, such as those with labels.
    """
    display = display or Display()
    encoder, source = open_pictures(inputs, out, html, display, num=num)
    check_work(encoder, source, num, len(near) + len(avoid))
    to_be_near, to_avoid = (
        find_queries(option, list(map(str, names)), source) for option, names in (("--near", near), ("--avoid", avoid))
    )
    index = open_features(encoder, source, display, num=num)
    wanted, unwanted = (
        embed_queries("--near", to_be_near, index, encoder),
        embed_queries("--avoid", to_avoid, index, encoder),
    )
    pool = choose_pool(index.features, wanted, unwanted, num)
    features = index.features if len(pool) == len(index) else np.array(index.features[pool])
    with display.task("choosing pictures", num) as advance:
        chosen, cosines = farthest_first(features, num, unwanted, advance)
    found = _describe(index, pool[chosen], cosines)
    found.write(out, html)
    return found


def farthest_first(
    features: NDArray[np.float32],
    num: int,
    covered: NDArray[np.float32],
    advance: Advance = lambda num: None,
) -> tuple[Positions, NDArray[np.float32]]:
    """Rows [num] of unit features [N, d]: each is the one least like all that were chosen before or are `covered`.

    The first, where nothing is covered, is the most typical one. Also the cosine [num] of each with the nearest of
    those before (the last entry beyond them: of the row that remains the least covered). Gonzalez's greedy choice:
    the least covered is at most twice as far as it would be by the best choice.
    """
    nearest = nearest_cosines(features, covered)
    chosen: list[int] = []
    cosines: list[float] = []
    for _ in range(num):
        if not chosen and not len(covered):
            row = int(np.argmax(features @ features.mean(axis=0, dtype=np.float64).astype(np.float32)))
        else:
            nearest[chosen[-1:]] = 2  # never again, even among equals
            row = int(np.argmin(nearest))
        cosines.append(float(nearest[row]))
        chosen.append(row)
        np.maximum(nearest, nearest_cosines(features, features[row : row + 1]), out=nearest)
        advance(1)
    cosines.append(float(nearest.min()))
    return np.array(chosen, np.int64), np.array(cosines, np.float32)


def nearest_cosines(features: NDArray[np.float32], others: NDArray[np.float32]) -> NDArray[np.float32]:
    """Of each unit feature [N, d] with the nearest of some others [M, d]: [N]; -2 if there are none."""
    found = np.full(len(features), -2, np.float32)
    for start in range(0, len(features), ROWS):
        part = features[start : start + ROWS]
        for first in range(0, len(others), OTHERS):
            best = (part @ others[first : first + OTHERS].T).max(1)
            np.maximum(found[start : start + ROWS], best, out=found[start : start + ROWS])
    return found


def choose_pool(
    features: NDArray[np.float32], wanted: NDArray[np.float32], unwanted: NDArray[np.float32], num: int
) -> Positions:
    """Rows to choose from: all, or those most like any wanted feature and less like an unwanted one."""
    if not len(wanted):
        return np.arange(len(features))
    near, against = nearest_cosines(features, wanted), nearest_cosines(features, unwanted)
    near = np.where(against > near, near - 2, near)
    size = min(len(features), max(NEAR_LEAST * num, round(NEAR_SHARE * len(features))))
    return np.sort(np.argsort(-near, kind="stable")[:size])


def _describe(index: Index, order: Positions, cosines: NDArray[np.float32]) -> Selection:
    first = [None if cosine < -1 else round(cosine, 4) for cosine in cosines[:-1].tolist()]
    cards = [make_card(index, row, f"{rank}") for rank, row in enumerate(order.tolist(), start=1)]
    rows = tuple(
        (rank, card.name, card.class_name, c) for rank, (card, c) in enumerate(zip(cards, first, strict=True), 1)
    )
    classes = {card.class_name for card in cards if card.class_name}
    told = f" They are of {len(classes)} of {len(index.source.class_names)} classes." if classes else ""
    covered = float(cosines[-1])
    sentence = (
        f"{len(order):,} of {len(index):,} pictures in {index.source.title}, each chosen because it is least like "
        f"those before it; all that could be chosen have a cosine of at least {covered:.3f} with one of them.{told}"
    )
    return Selection(
        title="Pictures to label first",
        sentence=sentence,
        columns=("rank", "file", "class", "cosine"),
        rows=rows,
        groups=(Group("In the order of the choice", "", cards),),
        source=index.source,
        skipped=index.left_out,
        positions=index.kept[order],
        covered=covered,
    )
