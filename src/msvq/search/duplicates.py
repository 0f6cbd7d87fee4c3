"""`msvq duplicates`: pictures that are there more than once, candidates by features, then each pair by its pixels."""

import hashlib
import math
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from msvq.core.console import Display, counted
from msvq.core.errors import BadInput
from msvq.core.files import disk_full_error, is_disk_full, reserve
from msvq.data.decode import Unreadable, read_content
from msvq.data.sources.base import EncodedSource, ImageSource, Positions
from msvq.data.to_rgb import fit_square
from msvq.search.findings import Cell, Findings, fill_folder, make_card, open_pictures
from msvq.search.index import Index, open_index
from msvq.search.inputs import Inputs
from msvq.search.neighbours import approximation_notes, nearest_neighbours, nearest_rows
from msvq.search.page import Card, Group
from msvq.search.same_picture import (
    CHANGES,
    PAIRS,
    PARTS,
    SIDE,
    colours_of_parts,
    colours_of_wholes,
    compare,
    turn_invariant,
)

NEIGHBOURS = 6  # of each picture that are compared with it, by features, by thumbnails, and by parts
ROWS = 4096  # pictures that are described at a time
MOST_PARTED = 100_000  # pictures up to which the parts of each are looked at; of more they need gigabytes
PORTION = 64  # pictures that are decoded at a time
BEST, EXACT, ALIKE = "best", "exact", "alike"
COLUMNS = ("group", "kind", "file", "class", "copy_of", "cosine")

Pairs = NDArray[np.int64]  # [2, P]: rows of an index, the lower first


@dataclass(frozen=True, kw_only=True)
class Duplicates(Findings):
    """Groups of one picture each, the largest file first; and, if asked for, groups of pictures that are alike."""

    members: tuple[tuple[int, ...], ...]  # of each group: positions in the source
    num_same: int  # so many groups are of one picture; those behind them are merely alike
    num_pictures: int


def find_duplicates(
    inputs: Inputs,
    *,
    threshold: float | None = None,
    into: Path | None = None,
    out: Path | None = None,
    html: Path | None = None,
    display: Display | None = None,
) -> Duplicates:
    """Groups of pictures that are one picture: equal files, or resized, saved again, turned, mirrored, cropped.

    `threshold`: list pairs too that are merely alike, from this cosine of their features on. `into` is a new folder,
    filled with a folder of links per group.
    """
    display = display or Display()
    if threshold is not None and not 0 < threshold <= 1:
        raise BadInput(f"--threshold is a cosine above 0 and at most 1, such as 0.98, not {threshold}")
    encoder, source = open_pictures(inputs, out, html, display, into=into)
    index = open_index(source, encoder, display)  # also by a collapsed encoder: thumbnails find copies as well
    notes = [*approximation_notes(len(index))]
    if len(index) > MOST_PARTED:
        notes.append(f"of more than {MOST_PARTED:,} pictures no parts are compared, so a weak encoder may miss crops")
    squares, is_read = read_squares(index, display)
    pairs = find_candidates(index.features, squares, display)
    pairs = pairs[:, is_read[pairs].all(0)]
    change = compare_pairs(squares, pairs, display)
    cosine = pair_cosines(index.features, pairs)

    def grouped(chosen: NDArray[np.bool_]) -> list[list[Row]]:
        some = pairs[:, chosen]
        return _make_groups(index, some, _name_kinds(index, squares, some, change[chosen]), cosine[chosen])

    same = grouped(change > 0)
    alike = [] if threshold is None else grouped((change == 0) & (cosine >= threshold))
    found = _describe(index, same, alike, notes)
    found.write(out, html)
    if into is not None:
        places = {f"group-{number:04}": members for number, members in enumerate(found.members, start=1)}
        fill_folder(into, index.source, places, display)
    return found


def read_squares(index: Index, display: Display) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Small squares [M, SIDE, SIDE, 3] of all pictures, in a file that is gone afterwards; and which were read."""
    shape, is_read = (len(index), SIDE, SIDE, 3), np.ones(len(index), np.bool_)
    with tempfile.TemporaryFile() as file:
        try:
            reserve(file, math.prod(shape))
        except OSError as error:
            if not is_disk_full(error):
                raise
            place, way_out = Path(tempfile.gettempdir()), "or point TMPDIR at another disk"
            raise disk_full_error(place, math.prod(shape), "small squares of the pictures need", way_out) from None
        squares = np.memmap(file, np.uint8, "r+", shape=shape)
    portions = [index.kept[start : start + PORTION] for start in range(0, len(index), PORTION)]
    start = 0
    task = display.task("looking at the pictures", len(index))
    with task as advance, closing(index.source.decoded(portions, SIDE)) as results:
        for result in results:
            stop = start + len(result.rows)
            squares[start:stop] = [np.asarray(fit_square(Image.fromarray(pixels), SIDE)) for pixels in result.rows]
            is_read[[start + place for place in result.reasons]] = False
            advance(stop - start)
            start = stop
    return squares, is_read


def find_candidates(features: NDArray[np.float32], squares: NDArray[np.uint8], display: Display) -> Pairs:
    """Pairs of rows that may be one picture: near by features, by thumbnails however turned, a part, or equal."""
    num = len(features)
    found = [_equal_squares(squares)]
    if num > 1:
        thumbnails = _described(turn_invariant, squares)
        for vectors, task in ((features, "comparing features"), (thumbnails, "comparing thumbnails")):
            _, rows = nearest_neighbours(vectors, NEIGHBOURS, display, task)
            found.append(np.stack([np.repeat(np.arange(num), rows.shape[1]), rows.reshape(-1)]))
    if 1 < num <= MOST_PARTED:
        found.append(_likely_crops(squares, display))
    pairs = np.sort(np.concatenate(found, axis=1), axis=0)
    return np.stack(np.divmod(np.unique(pairs[0] * num + pairs[1]), num))


def _likely_crops(squares: NDArray[np.uint8], display: Display) -> Pairs:
    """Each picture with those of which it looks like a part: features of a weak encoder do not tell."""
    wholes, parts = (_described(describe, squares) for describe in (colours_of_wholes, colours_of_parts))
    _, rows = nearest_rows(parts, wholes, NEIGHBOURS + PARTS, display, "comparing parts")
    owners = rows // PARTS
    seen = np.tril(owners[:, :, None] == owners[:, None, :], -1).any(2)
    others = ~seen & (owners != np.arange(len(owners))[:, None])
    row, place = np.nonzero(others & (others.cumsum(1) <= NEIGHBOURS))
    return np.stack([row, owners[row, place]])


def _described(
    describe: Callable[[NDArray[np.uint8]], NDArray[np.float32]], squares: NDArray[np.uint8]
) -> NDArray[np.float32]:
    """Some squares at a time."""
    return np.concatenate([describe(squares[start : start + ROWS]) for start in range(0, len(squares), ROWS)])


def _equal_squares(squares: NDArray[np.uint8]) -> Pairs:
    """Each square with the first that it equals: a thousand equal ones would crowd all else out of neighbours."""
    flat = np.ascontiguousarray(squares).reshape(len(squares), -1)
    digests = np.array([hashlib.sha1(row.data, usedforsecurity=False).digest() for row in flat], "S20")
    _, first, group = np.unique(digests, return_index=True, return_inverse=True)
    pairs = np.stack([first[group], np.arange(len(squares))])
    return pairs[:, pairs[0] != pairs[1]]


def compare_pairs(squares: NDArray[np.uint8], pairs: Pairs, display: Display) -> NDArray[np.int64]:
    """What was changed between the two of each pair, a code of CHANGES; 0: they are two pictures."""
    change = np.zeros(pairs.shape[1], np.int64)
    with display.task("comparing pairs", pairs.shape[1]) as advance:
        for start in range(0, pairs.shape[1], PAIRS):
            some = pairs[:, start : start + PAIRS]
            change[start : start + PAIRS] = compare(squares[some[0]], squares[some[1]])
            advance(some.shape[1])
    return change


def pair_cosines(features: NDArray[np.float32], pairs: Pairs) -> NDArray[np.float32]:
    """Of the unit features of each pair [P], some at a time."""
    cosines = np.zeros(pairs.shape[1], np.float32)
    for start in range(0, pairs.shape[1], PAIRS):
        one, other = pairs[:, start : start + PAIRS]
        cosines[start : start + PAIRS] = np.einsum("pd,pd->p", features[one], features[other])
    return cosines


def _name_kinds(index: Index, squares: NDArray[np.uint8], pairs: Pairs, change: NDArray[np.int64]) -> NDArray[np.str_]:
    """Each pair's kind in words; files are exact copies if all their bytes are the same."""
    content = cache(_content_of(index))
    kinds = np.array([ALIKE, *CHANGES[1:]])[change].astype("U32")
    for place in np.flatnonzero(change).tolist():
        one, other = pairs[:, place].tolist()
        if np.array_equal(squares[one], squares[other]) and content(one) == content(other) is not None:
            kinds[place] = EXACT
    return kinds


def _content_of(index: Index) -> Callable[[int], bytes | None]:
    """A function that gives a hash of a row's file, or of its pixels where it is an array."""

    def content(row: int) -> bytes | None:
        source, position = index.source, int(index.kept[row])
        if isinstance(source, EncodedSource):
            try:
                return hashlib.sha1(read_content(source[position]), usedforsecurity=False).digest()
            except Unreadable:  # gone meanwhile
                return None
        with closing(source.decoded([np.array([position])], SIDE)) as results:
            return hashlib.sha1(next(results).rows.tobytes(), usedforsecurity=False).digest()

    return content


Row = tuple[int, str, int | None, float | None]  # row of the index, kind, the row that it is a copy of, their cosine


def _make_groups(index: Index, pairs: Pairs, kinds: NDArray[np.str_], cosines: NDArray[np.float32]) -> list[list[Row]]:
    """Groups that the pairs join: the best picture first, then each with the one that it is a copy of."""
    num = len(index)
    _, group = connected_components(coo_matrix((np.ones(pairs.shape[1]), (pairs[0], pairs[1])), (num, num)), False)
    joined: dict[int, list[int]] = {}
    for row in np.unique(pairs).tolist():
        joined.setdefault(int(group[row]), []).append(row)
    partners: dict[int, list[tuple[int, str, float]]] = {}
    for (one, other), kind, cosine in zip(pairs.T.tolist(), kinds.tolist(), cosines.tolist(), strict=True):
        partners.setdefault(one, []).append((other, kind, cosine))
        partners.setdefault(other, []).append((one, kind, cosine))
    groups = []
    for rows in joined.values():
        best = rows[_best_of(index.source, index.kept[rows])]
        members: list[Row] = [(best, BEST, None, None)]
        for row in rows:
            if row != best:  # compared with the best one, or else with the most similar
                other, kind, cosine = max(partners[row], key=lambda found: (found[0] == best, found[2]))
                members.append((row, kind, other, cosine))
        groups.append(members)
    return groups


def _best_of(source: ImageSource, positions: Positions) -> int:
    """Which of some pictures to keep: the one with the most pixels, then the most bytes, then the first."""
    pixels = [width * height for width, height in source.sizes(positions.tolist())]
    num_bytes = np.zeros(len(positions)) if source.size_mtime is None else source.size_mtime[positions, 0]
    return max(range(len(positions)), key=lambda place: (pixels[place], num_bytes[place], -place))


def _describe(index: Index, same: list[list[Row]], alike: list[list[Row]], notes: list[str]) -> Duplicates:
    rows: list[tuple[Cell, ...]] = []
    groups = []
    for number, members in enumerate([*same, *alike], start=1):
        cards: list[Card] = []
        for row, kind, other, cosine in members:
            card = make_card(index, row, kind)
            rounded = None if cosine is None else round(cosine, 4)
            rows.append((number, kind, card.name, card.class_name, "" if other is None else index.name(other), rounded))
            cards.append(card)
        words = "pictures that are alike" if number > len(same) else "copies of one picture"
        groups.append(Group(f"Group {number}: {len(members):,} {words}", "", cards))
    copies, likes = ({row for members in some for row, *_ in members} for some in (same, alike))
    told = counted(len(same), "group")
    sentence = f"{len(copies):,} of {len(index):,} pictures in {index.source.title} are copies, in {told}"
    if not same:
        sentence = f"none of the {len(index):,} pictures in {index.source.title} is there twice"
    if alike:
        others = len(likes - copies)
        sentence += (
            f"; {others:,} others are merely alike, to these or to each other, in {counted(len(alike), 'group')}"
        )
    return Duplicates(
        title="Pictures that are there more than once",
        sentence=f"{sentence}. The best of a group, by pixels and bytes, stands first; nothing is deleted.",
        columns=COLUMNS,
        rows=tuple(rows),
        groups=tuple(groups),
        source=index.source,
        skipped=index.left_out,
        notes=tuple(notes),
        members=tuple(tuple(int(index.kept[row]) for row, *_ in members) for members in [*same, *alike]),
        num_same=len(same),
        num_pictures=len(index),
    )
