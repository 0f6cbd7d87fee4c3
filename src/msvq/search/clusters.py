"""`msvq cluster`: groups of alike pictures, each with its most typical ones, how tight it is and what is in it."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from msvq.core.console import Display
from msvq.core.errors import BadInput
from msvq.evaluate.diagnostics.groups import TRIED, assign, choose_num, find_centres
from msvq.report.pictures import class_name
from msvq.search.findings import Findings, fill_folder, make_card, open_features
from msvq.search.index import Index
from msvq.search.inputs import Inputs
from msvq.search.page import Group

TYPICAL = 12  # pictures of a group that are shown


@dataclass(frozen=True, kw_only=True)
class Clusters(Findings):
    """Groups of alike pictures, the largest first; within a group, the most typical picture first."""

    positions: NDArray[np.int64]  # [N] in the source, of all pictures with features
    assignments: NDArray[np.int64]  # [N]: the group of each, counted from 0
    centres: NDArray[np.float32]  # [K, d], of length 1


def cluster_pictures(
    inputs: Inputs,
    *,
    num: int | None = None,
    into: Path | None = None,
    out: Path | None = None,
    html: Path | None = None,
    display: Display | None = None,
) -> Clusters:
    """Put all pictures into `num` groups by k-means on unit features; None: as many as tell them apart best."""
    display = display or Display()
    _, index = open_features(inputs, out, html, display, num=num, least=2, into=into)
    if num is None and len(index) <= TRIED[0]:
        raise BadInput(f"{len(index)} pictures are too few for groups; name more with --data")
    with display.busy("finding groups"):
        groups = num or choose_num(index.features)
        centres = find_centres(index.features, groups)
        assignments, cosines = assign(index.features, centres)
    found = _describe(index, centres, assignments, cosines)
    found.write(out, html)
    if into is not None:
        order = np.lexsort((-cosines, found.assignments))
        places = {
            f"group-{number + 1:03}": index.kept[order[found.assignments[order] == number]].tolist()
            for number in range(len(found.centres))
        }
        fill_folder(into, index.source, places, display)
    return found


def _describe(
    index: Index, centres: NDArray[np.float32], assignments: NDArray[np.int64], cosines: NDArray[np.float32]
) -> Clusters:
    sizes = np.bincount(assignments, minlength=len(centres))
    order = np.argsort(-sizes, kind="stable")[: int((sizes > 0).sum())]
    new_number = np.zeros(len(centres), np.int64)
    new_number[order] = np.arange(len(order))
    rows, groups = [], []
    for number, old in enumerate(order.tolist(), start=1):
        members = np.flatnonzero(assignments == old)
        members = members[np.argsort(-cosines[members], kind="stable")]
        tightness, content = float(cosines[members].mean()), _content(index, members)
        cards = [make_card(index, row, f"{cosines[row]:.3f}") for row in members.tolist()]
        rows += [
            (number, card.name, card.class_name, round(float(cosines[row]), 4))
            for card, row in zip(cards, members, strict=True)
        ]
        told = f"The most typical first. Tightness (mean cosine with the centre) {tightness:.3f}. {content}".strip()
        groups.append(Group(f"Group {number}: {len(members):,} pictures", told, cards[:TYPICAL]))
    sentence = (
        f"{len(index):,} pictures in {index.source.title} in {len(order):,} groups, the largest first, "
        f"{sizes[order].max():,} to {sizes[order].min():,} pictures each."
    )
    return Clusters(
        title="Groups of alike pictures",
        sentence=sentence,
        columns=("group", "file", "class", "cosine"),
        rows=tuple(rows),
        groups=tuple(groups),
        source=index.source,
        skipped=index.left_out,
        positions=np.array(index.kept),
        assignments=new_number[assignments],
        centres=centres[order],
    )


def _content(index: Index, members: NDArray[np.int64]) -> str:
    """What is in a group by its labels, where there are some."""
    labels = index.source.labels[index.kept[members]]
    counted = Counter(labels[labels >= 0].tolist()).most_common(3)
    named = [f"{num / len(members):.0%} {class_name(index.source.class_names, label)}" for label, num in counted]
    return f"In it: {', '.join(named)}." if named else ""
