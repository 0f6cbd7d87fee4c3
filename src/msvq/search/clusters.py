"""`msvq cluster`: groups of alike pictures, each with its most typical ones, how tight it is and what is in it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from msvq.core.console import Display
from msvq.core.errors import BadInput
from msvq.evaluate.diagnostics.groups import TRIED, assign, choose_num, find_centres
from msvq.report.pictures import class_name
from msvq.search.findings import Cell, Findings, check_work, fill_folder, make_card, open_features, open_pictures
from msvq.search.index import Index
from msvq.search.inputs import Inputs
from msvq.search.page import Group

TYPICAL = 12  # pictures of a group that are shown


@dataclass(frozen=True, kw_only=True)
class Clusters(Findings):
    """Groups of alike pictures, the largest first; within a group, the most typical picture first."""

    positions: NDArray[np.int64]  # [N] in the source, in the order of the rows
    assignments: NDArray[np.int64]  # [N]: the group of each, counted from 0
    centres: NDArray[np.float32]  # [K, d], of length 1
    sizes: NDArray[np.int64]  # [K]
    tightness: NDArray[np.float32]  # [K]: mean cosine with the centre
    contents: tuple[str, ...]  # [K]: what is in each group by its labels; empty without any

    def overview(self) -> tuple[Sequence[str], Sequence[tuple[Cell, ...]]]:
        """A row per group."""
        typical = [group.cards[0].name for group in self.groups]
        numbers = range(1, len(typical) + 1)
        rows = zip(numbers, self.sizes.tolist(), self.tightness.tolist(), self.contents, typical, strict=True)
        return ("group", "pictures", "tightness", "in it", "most typical"), list(rows)


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
    encoder, source = open_pictures(inputs, out, html, display, num=num, least=2, into=into)
    if num is not None:
        check_work(encoder, source, num)
    index = open_features(encoder, source, display, num=num)
    if num is None and len(index) <= TRIED[0]:
        raise BadInput(f"{len(index)} pictures are too few for groups; name more with --data")
    with display.busy("finding groups"):
        centres = find_centres(index.features, num or choose_num(index.features))
        assignments, cosines = assign(index.features, centres)
    found = _describe(index, centres, assignments, cosines)
    found.write(out, html)
    if into is not None:
        parts = np.split(found.positions, np.cumsum(found.sizes)[:-1])
        places = {f"group-{number:03}": part.tolist() for number, part in enumerate(parts, start=1)}
        fill_folder(into, index.source, places, display)
    return found


def _describe(
    index: Index, centres: NDArray[np.float32], assignments: NDArray[np.int64], cosines: NDArray[np.float32]
) -> Clusters:
    sizes = np.bincount(assignments, minlength=len(centres))
    largest = np.argsort(-sizes, kind="stable")[: int((sizes > 0).sum())]
    members = [np.flatnonzero(assignments == old) for old in largest]
    members = [some[np.argsort(-cosines[some], kind="stable")] for some in members]
    tightness = np.array([cosines[some].mean() for some in members])
    contents = tuple(_content(index, some) for some in members)
    rows: list[tuple[Cell, ...]] = []
    groups = []
    for number, some in enumerate(members, start=1):
        matches = (index.match(row, float(cosines[row])) for row in some.tolist())
        rows += [(number, match.name, match.class_name, round(match.similarity, 4)) for match in matches]
        told = f"The most typical first. Tightness (mean cosine with the centre) {tightness[number - 1]:.3f}."
        holds = f" In it: {contents[number - 1]}." if contents[number - 1] else ""
        cards = [make_card(index, row, f"{cosines[row]:.3f}") for row in some[:TYPICAL].tolist()]
        groups.append(Group(f"Group {number}: {len(some):,} pictures", told + holds, cards))
    found = len(members)
    sentence = (
        f"{len(index):,} pictures in {index.source.title} in {found:,} groups, the largest first, "
        f"{sizes.max():,} to {len(members[-1]):,} pictures each."
    )
    fewer = f"only {found:,} of {len(centres):,} groups have pictures in them: hardly more of the pictures differ"
    return Clusters(
        title="Groups of alike pictures",
        sentence=sentence,
        columns=("group", "file", "class", "cosine"),
        rows=tuple(rows),
        groups=tuple(groups),
        source=index.source,
        skipped=index.left_out,
        notes=(fewer,) if found < len(centres) else (),
        positions=index.kept[np.concatenate(members)],
        assignments=np.repeat(np.arange(found), sizes[largest]),
        centres=centres[largest],
        sizes=sizes[largest],
        tightness=tightness,
        contents=contents,
    )


def _content(index: Index, members: NDArray[np.int64]) -> str:
    """What is in a group by its labels, where there are some."""
    labels = index.source.labels[index.kept[members]]
    counted = Counter(labels[labels >= 0].tolist()).most_common(3)
    named = [f"{num / len(members):.0%} {class_name(index.source.class_names, label)}" for label, num in counted]
    return ", ".join(named)
