"""What a viewer shows beside features: a thumbnail of each picture, its place on a map, and its neighbours."""

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from msvq.core.console import Display
from msvq.data.sources.base import ImageSource, Positions
from msvq.data.store import spaced_rows
from msvq.evaluate.diagnostics.embedding_map import embed_in_plane, to_unit_square
from msvq.report.pictures import encode_picture, shrink
from msvq.search.neighbours import approximation_notes, nearest_neighbours
from msvq.search.page import PORTION, QUALITY, THUMBNAIL, decoding_side
from msvq.search.search import nearest

NEIGHBOURS = 10
ARRANGED = 3000  # pictures that t-SNE arranges; each of the others lies among those of them that it is most like
AROUND, TEMPERATURE = 3, 0.1  # how many those are, and how much more the nearer ones weigh
ROWS = 8192  # placed at a time


@dataclass(frozen=True)
class ViewerColumns:
    """What is the same length as features [N, d], and small enough to be held."""

    places: NDArray[np.float32]  # [N, 2] in the unit square
    cosines: NDArray[np.float32]  # [N, k] of each row's neighbours, the nearest first
    rows: Positions  # [N, k]: which they are


def find_viewer_columns(features: NDArray[np.float32], display: Display) -> ViewerColumns:
    """A map and neighbours of unit features [N, d], which may be mapped from disk."""
    for note in approximation_notes(len(features)):
        display.note(note)
    cosines, rows = nearest_neighbours(features, NEIGHBOURS, display, "comparing features")
    with display.busy("drawing the map"):
        return ViewerColumns(arrange(features), cosines, rows)


def arrange(features: NDArray[np.float32]) -> NDArray[np.float32]:
    """Places [N, 2] of unit features in the unit square: alike ones lie close together."""
    chosen = spaced_rows(len(features), ARRANGED)
    fixed = np.array(features[chosen])
    with threadpool_limits(1, user_api="openmp"):  # t-SNE adds up in the order of its threads
        plane = to_unit_square(embed_in_plane(torch.from_numpy(fixed), seed=0))
    places = np.zeros((len(features), 2), np.float32)
    if len(chosen) < len(features):
        for start in range(0, len(features), ROWS):
            cosines, near = nearest(fixed, np.array(features[start : start + ROWS]), AROUND)
            weights = np.exp((cosines - cosines.max(1, keepdims=True)) / TEMPERATURE)
            weights /= weights.sum(1, keepdims=True)
            places[start : start + ROWS] = np.einsum("nk,nkc->nc", weights, plane[near])
    places[chosen] = plane
    return places


def encode_thumbnails(source: ImageSource, positions: Positions) -> Generator[bytes | None]:
    """The centre square of each picture as a small JPEG, in order; None where one cannot be read any more.

    All are decoded at one size, so that one set of workers serves for the whole source.
    """
    portions = (positions[start : start + PORTION] for start in range(0, len(positions), PORTION))
    with closing(source.decoded(portions, decoding_side(source.typical_side()))) as results:
        for result in results:
            for index, pixels in enumerate(result.rows):
                yield None if index in result.reasons else encode_picture(shrink(pixels, THUMBNAIL), "jpeg", QUALITY)
