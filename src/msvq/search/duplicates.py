"""`msvq duplicates`: pictures that are the same to the encoder, found by comparing every pair, some at a time."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from msvq.core.console import Advance, Display
from msvq.core.errors import BadInput
from msvq.core.files import to_csv, write_text
from msvq.data.sources.base import ImageSource, Positions
from msvq.search.feature_shards import Skipped
from msvq.search.index import Index, Match, open_index
from msvq.search.inputs import Inputs
from msvq.search.page import ENDINGS, Group, make_thumbnails, match_cells, write_page

THRESHOLD = 0.98
ROUNDING = 1e-6  # the cosine of equal features is 1 but for this
ROWS, COLUMNS = 1024, 4096  # pairs that are compared at a time: 16 MB of cosines
PAGE_GROUPS, PAGE_PICTURES = 100, 24  # shown on a page
CROWD = 0.1  # a group with more of all pictures than this says more about the encoder than about them


@dataclass(frozen=True)
class Duplicates:
    """Groups of pictures, the most similar first: each is joined to the others by pairs above the threshold.

    A picture is compared with the most similar other one.
    """

    groups: tuple[tuple[Match, ...], ...]
    num_pictures: int
    threshold: float
    skipped: Skipped

    @property
    def num_members(self) -> int:
        """How many pictures are in any group."""
        return sum(map(len, self.groups))

    @property
    def crowded(self) -> bool:
        """Whether one group holds so much of everything that the threshold must be too low."""
        largest = max(map(len, self.groups), default=0)
        return largest > max(10, CROWD * self.num_pictures)

    def at(self, threshold: float) -> int:
        """How many pictures would be in a group at a higher threshold."""
        return sum(member.similarity >= threshold for group in self.groups for member in group)


@dataclass
class Links:
    """What comparing pairs leaves behind: one entry per picture, however many pairs there are."""

    first: Positions  # [N]: a row before it that it is joined to, perhaps through others; itself if there is none
    best: NDArray[np.float32]  # [N]: the similarity to the nearest, 0 where none is near
    nearest: Positions  # [N]: its row


def link(
    features: NDArray[np.float32], threshold: float, device: torch.device, advance: Advance = lambda num: None
) -> Links:
    """Compare all pairs of unit features [N, d]. `advance` is told of every row that has been compared with all."""
    num = len(features)
    links = Links(np.arange(num), np.zeros(num, np.float32), np.full(num, -1))
    for first in range(0, num, ROWS):
        rows = torch.from_numpy(features[first : first + ROWS]).to(device)
        for start in range(first, num, COLUMNS):
            columns = torch.from_numpy(features[start : start + COLUMNS]).to(device)
            cosines = rows @ columns.T
            if start == first:  # a picture with itself, and pairs that come the other way round
                cosines.masked_fill_(torch.ones_like(cosines, dtype=torch.bool).tril(), -2)
            hit = (cosines.amax(1) >= threshold - ROUNDING).nonzero()[:, 0]
            if len(hit):
                _join(links, cosines[hit].cpu(), first + hit.cpu().numpy(), start, threshold - ROUNDING)
        advance(len(rows))
    _leaders(links.first, np.arange(num))
    return links


def _join(links: Links, cosines: torch.Tensor, rows: Positions, start: int, threshold: float) -> None:
    """Note the pairs among some rows and the columns from `start`, given their cosines [rows, columns]."""
    columns = np.arange(start, start + cosines.shape[1])
    for own, other, dim in ((rows, columns, 1), (columns, rows, 0)):
        value, place = (found.numpy() for found in cosines.max(dim))
        better = (value >= threshold) & (value > links.best[own])
        links.best[own[better]], links.nearest[own[better]] = value[better], other[place[better]]
    one, two = (found.numpy() for found in (cosines >= threshold).nonzero(as_tuple=True))
    _merge(links.first, rows[one], columns[two])


def _merge(first: Positions, one: Positions, two: Positions) -> None:
    """Join pairs of rows: of the first rows that lead their groups, the later one follows the earlier."""
    while len(one):
        ahead = _leaders(first, one), _leaders(first, two)
        apart = ahead[0] != ahead[1]
        one, two = one[apart], two[apart]
        np.minimum.at(first, np.maximum(*ahead)[apart], np.minimum(*ahead)[apart])


def _leaders(first: Positions, rows: Positions) -> Positions:
    """The row that each row's group begins with; noted, so that the way is short the next time."""
    found = first[rows]
    while (found != (further := first[found])).any():
        found = further
    first[rows] = found
    return found


def find_duplicates(
    inputs: Inputs,
    *,
    threshold: float = THRESHOLD,
    out: Path | None = None,
    html: Path | None = None,
    display: Display | None = None,
) -> Duplicates:
    """Groups of pictures whose features have a cosine of at least `threshold`.

    `out` is a .csv of all groups, `html` a page of the first.
    """
    display = display or Display()
    if not 0 < threshold <= 1:
        raise BadInput(f"--threshold is a cosine above 0 and at most 1, such as {THRESHOLD}, not {threshold}")
    inputs.check_output("--out", out, [".csv"])
    inputs.check_output("--html", html, ENDINGS)
    encoder, source = inputs.open(display)
    index = open_index(source, encoder, display)
    with display.task("comparing pictures", len(index)) as advance:
        links = link(index.features, threshold, encoder.device, advance)
    found = Duplicates(_groups(index, links), len(index), threshold, index.left_out)
    if out is not None:
        write_text(out, _as_csv(found))
    if html is not None:
        _write_html(html, source, found)
    return found


def _groups(index: Index, links: Links) -> tuple[tuple[Match, ...], ...]:
    joined = np.flatnonzero(links.nearest >= 0)
    order = joined[np.argsort(links.first[joined], kind="stable")]
    together = np.split(order, np.flatnonzero(np.diff(links.first[order])) + 1) if len(order) else []

    def rank(row: int) -> tuple[float, int, int]:
        """The most similar first, and two that are each other's nearest side by side."""
        # By four digits: the cosines of equal pictures differ in the last ones.
        return -round(float(links.best[row]), 4), min(row, int(links.nearest[row])), row

    def match(row: int) -> Match:
        return index.match(row, min(float(links.best[row]), 1.0), index.name(links.nearest[row]))

    ranked = sorted((sorted(rows.tolist(), key=rank) for rows in together), key=lambda rows: rank(rows[0]))
    return tuple(tuple(map(match, rows)) for rows in ranked)


def _as_csv(found: Duplicates) -> str:
    """A row per picture: the number of its group, its name and class, and the similarity to its nearest."""
    rows = [
        (number, match.name, match.class_name, f"{match.similarity:.6f}", match.other)
        for number, group in enumerate(found.groups, start=1)
        for match in group
    ]
    return to_csv([("group", "file", "class", "similarity", "nearest"), *rows])


def _write_html(path: Path, source: ImageSource, found: Duplicates) -> None:
    chosen = [group[:PAGE_PICTURES] for group in found.groups[:PAGE_GROUPS]]
    thumbnails = make_thumbnails(source, (match.position for group in chosen for match in group))
    groups = []
    for number, (group, shown) in enumerate(zip(found.groups, chosen, strict=False), start=1):
        more = f"The first {len(shown):,} of them." if len(shown) < len(group) else ""
        groups.append(Group(f"Group {number}: {len(group):,} pictures", more, match_cells(shown, thumbnails)))
    first = f" The first {PAGE_GROUPS} groups are shown." if len(found.groups) > PAGE_GROUPS else ""
    sentence = (
        f"{found.num_members:,} of {found.num_pictures:,} pictures in {source.title} are in {len(found.groups):,} "
        f"groups. Below each stands the cosine of its features with those of its nearest, at least "
        f"{found.threshold:g}; 1 is the same to the encoder.{first}"
    )
    write_page(path, "Near-duplicates", sentence, groups)
