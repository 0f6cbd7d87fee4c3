"""Groups of alike pictures, and odd ones: what a folder without labels holds, as an encoder sees it."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from torch import Tensor

from msvq.core.console import printable
from msvq.data.store import ImageSplit, spaced_rows
from msvq.evaluate.diagnostics.collapse import SAME
from msvq.evaluate.diagnostics.embedding_map import thumbnails
from msvq.evaluate.diagnostics.gallery import save_arrays
from msvq.evaluate.diagnostics.health import spread
from msvq.evaluate.features import AT_ONCE
from msvq.evaluate.knn import nearest_others
from msvq.model.losses import l2_normalize

ALL_AT_ONCE = 20_000  # pictures; more are learned from in batches
TRIED = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # numbers of groups, where none is given
SAMPLE = 2000  # pictures by which they are compared
ROWS = 8192  # compared or looked at, at a time

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

# For the page of a run: fewer pictures have no groups worth showing, and groups have so many on average.
FEWEST, IN_GROUP = 20, 10
NUM_GROUPS, NUM_TYPICAL, NUM_ODD, SIDE = 12, 10, 16, 64


# --- groups


def choose_num(features: NDArray[np.float32]) -> int:
    """The number of groups with the highest silhouette (how much nearer a picture is to its own than to the next)."""
    from sklearn.metrics import silhouette_score  # here, for it takes a second to import

    sample = _sample(features)
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
    """Unit centres [num, d] of unit features, the same each time; some are equal if fewer than `num` rows differ."""
    from sklearn.cluster import KMeans, MiniBatchKMeans
    from sklearn.exceptions import ConvergenceWarning

    few = len(features) <= ALL_AT_ONCE
    learner = (
        KMeans(num, n_init=starts, random_state=0)
        if few
        else MiniBatchKMeans(num, n_init=starts, batch_size=4096, random_state=0)
    )
    # k-means adds up in the order of its threads.
    with threadpool_limits(1, user_api="openmp"), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # of equal centres: their groups are empty
        centres = learner.fit(features).cluster_centers_.astype(np.float32)
    unit: NDArray[np.float32] = l2_normalize(torch.from_numpy(centres)).numpy()
    return unit


def assign(
    features: NDArray[np.float32], centres: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The nearest centre of each row [N], and its cosine."""
    found, cosines = np.zeros(len(features), np.int64), np.zeros(len(features), np.float32)
    for start in range(0, len(features), ROWS):
        part = features[start : start + ROWS] @ centres.T
        found[start : start + ROWS], cosines[start : start + ROWS] = part.argmax(1), part.max(1)
    return found, cosines


def _sample(features: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.array(features[spaced_rows(len(features), SAMPLE)])


# --- odd ones


def measure_oddness(
    cosines: NDArray[np.float32], images: NDArray[np.uint8], width: NDArray[Any], height: NDArray[Any]
) -> NDArray[np.float64]:
    """Robust deviations [5, N] in the order of WHY.

    Of the cosines [N, k] with a picture's nearest, of the pictures with 8 x 8 pixels uint8 [N, 8, 8, 3], and of their
    true sizes.
    """
    measured = {"far": 1 - cosines.mean(1), **measure_looks(images, width, height)}
    deviations = np.stack([robust_deviations(values, LEAST[name]) for name, values in measured.items()])
    deviations[1] = -deviations[1]  # much contrast is nothing odd, little is
    return deviations


def robust_deviations(values: NDArray[Any], least: float) -> NDArray[np.float64]:
    """How far each value is above the median, in deviations that outliers do not change (1.4826 times the MAD)."""
    middle = np.median(values)
    found: NDArray[np.float64] = (values - middle) / max(1.4826 * float(np.median(np.abs(values - middle))), least)
    return found


def measure_looks(
    images: NDArray[np.uint8], width: NDArray[Any], height: NDArray[Any]
) -> dict[str, NDArray[np.float64]]:
    """The logarithm of the contrast, and how far size, shape and colour are from the usual."""
    contrast, looks = np.zeros(len(images)), np.zeros((len(images), 4))
    for start in range(0, len(images), ROWS):
        part = slice(start, start + ROWS)
        pixels = images[part].reshape(-1, 64, 3).astype(np.float64) / 255
        contrast[part] = np.log(pixels.std(axis=1).mean(axis=1) + 1 / 255)
        colour = pixels.mean(axis=1)
        looks[part, :3] = colour - colour.mean(axis=1, keepdims=True)
        looks[part, 3] = np.ptp(pixels, axis=2).mean(axis=1)
    width, height = np.maximum(width, 1), np.maximum(height, 1)
    size, shape = np.log(np.minimum(width, height)), np.log(width / height)
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


# --- for the page of a run


def save_groups(path: Path, pictures: ImageSplit, features: Tensor) -> None:
    """Write typical pictures of a dozen groups, and those that stand out from all others, by features [N, d].

    By group, the largest first: `sizes` [K] and `tightness` [K] (mean cosine with the centre). `typical` uint8
    [T, h, w, 3], whose groups are `typical_groups` [T]; `odd` uint8 [n, h, w, 3] with `odd_reasons`; and the names of
    their files. Nothing is written of too few pictures, or if they all look the same to the encoder.
    """
    if len(pictures) < FEWEST or not bool(features.isfinite().all()) or spread(features) < SAME:
        return
    unit = l2_normalize(features)
    num = min(NUM_GROUPS, len(pictures) // IN_GROUP)
    assignments, cosines = assign(unit.numpy(), find_centres(_sample(unit.numpy()), num))
    sizes = np.bincount(assignments)
    order = np.argsort(-sizes, kind="stable")[: int((sizes > 0).sum())]
    members = [np.flatnonzero(assignments == group) for group in order]
    typical = [some[np.argsort(-cosines[some], kind="stable")][:NUM_TYPICAL] for some in members]
    side = np.full(len(pictures), pictures.shape[1])  # all have one size here
    near, _ = nearest_others(features, NEIGHBOURS)
    deviations = measure_oddness(near.numpy(), _tiny(pictures), side, side)
    scores = deviations.max(0)
    odd = np.argsort(-scores, kind="stable")[:NUM_ODD]
    odd = odd[scores[odd] >= TELLING]
    shown, names = np.concatenate(typical), np.array([printable(name) for name in pictures.file_names()], dtype=str)
    save_arrays(
        path,
        {
            "sizes": sizes[order],
            "tightness": np.array([cosines[some].mean() for some in members]),
            "typical": thumbnails(pictures.select(shown), SIDE),
            "typical_groups": np.repeat(np.arange(len(typical)), [len(some) for some in typical]),
            "typical_names": names[shown],
            "odd": thumbnails(pictures.select(odd), SIDE),
            "odd_reasons": np.array([explain(deviations[:, row]) for row in odd], dtype=str),
            "odd_names": names[odd],
        },
    )


def _tiny(pictures: ImageSplit) -> NDArray[np.uint8]:
    """Pictures with 8 x 8 pixels, uint8 [N, 8, 8, 3]."""
    parts = []
    for images in pictures.batches_in_order(AT_ONCE):
        planes = torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2).float()
        parts.append(F.interpolate(planes, (8, 8), mode="area").round().to(torch.uint8).permute(0, 2, 3, 1))
    tiny: NDArray[np.uint8] = torch.cat(parts).numpy()
    return tiny
