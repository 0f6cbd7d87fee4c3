"""`msvq cluster`: groups of alike pictures, each with its most typical ones, how tight it is and what is in it."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans, MiniBatchKMeans
from sklearn.metrics import silhouette_score

from msvq.core.console import Display
from msvq.core.errors import BadInput
from msvq.report.pictures import class_name
from msvq.search.findings import Findings, fill_folder, make_card, open_features
from msvq.search.index import Index, unit_rows
from msvq.search.inputs import Inputs
from msvq.search.page import Group

ALL_AT_ONCE = 20_000  # pictures; more are learned from in batches
TRIED = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # numbers of groups, where none is given
SAMPLE = 2000  # pictures by which they are compared
ROWS = 65_536
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


def choose_num(features: NDArray[np.float32]) -> int:
    """The number of groups with the highest silhouette (how much nearer a picture is to its own than to the next)."""
    rows = np.unique(np.linspace(0, len(features) - 1, min(SAMPLE, len(features))).astype(int))
    sample = np.array(features[rows])
    best: tuple[float, int] = (-2.0, 2)
    for num in TRIED:
        if num >= len(sample):
            break
        labels, _ = assign(sample, find_centres(sample, num, starts=1))
        if len(np.unique(labels)) > 1:
            best = max(
                best, (float(silhouette_score(sample, labels, metric="cosine")), -num), key=lambda b: (b[0], b[1])
            )
    return abs(best[1])


def find_centres(features: NDArray[np.float32], num: int, starts: int = 4) -> NDArray[np.float32]:
    """Unit centres [num, d] of unit features, the same each time."""
    few = len(features) <= ALL_AT_ONCE
    learner = (
        KMeans(num, n_init=starts, random_state=0)
        if few
        else MiniBatchKMeans(num, n_init=starts, batch_size=4096, random_state=0)
    )
    return unit_rows(learner.fit(features).cluster_centers_.astype(np.float32))


def assign(
    features: NDArray[np.float32], centres: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The nearest centre of each row [N], and its cosine."""
    parts = [features[start : start + ROWS] @ centres.T for start in range(0, len(features), ROWS)]
    return np.concatenate([part.argmax(1) for part in parts]), np.concatenate([part.max(1) for part in parts])


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
