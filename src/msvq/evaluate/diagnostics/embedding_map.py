"""A map of pictures in the plane: those that an encoder finds alike lie close together."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from msvq.core.console import printable
from msvq.data.store import ImageDataset, ImageSplit
from msvq.evaluate.diagnostics.gallery import NUM_NEIGHBOURS, save_arrays
from msvq.evaluate.features import Features
from msvq.evaluate.knn import nearest_others
from msvq.model.losses import l2_normalize

NUM_DIMENSIONS = 50  # that t-SNE sees at most
PERPLEXITY = 30.0  # scikit-learn's default
FEWEST = 4  # pictures that t-SNE can arrange
SIDE, BATCH = 48, 256


def embed_in_plane(features: Tensor, seed: int) -> NDArray[np.float32]:
    """Places float32 [n, 2] of features [n, d] by t-SNE, the same for the same seed.

    Fewer than four, and features that are all the same, lie where their two main directions put them.
    """
    main = main_directions(features, NUM_DIMENSIONS)
    plane = F.pad(main, (0, max(0, 2 - main.shape[1])))[:, :2].numpy()
    scale = float(plane[:, 0].std()) if len(plane) else 0.0
    if len(main) < FEWEST or scale == 0:
        return plane.astype(np.float32)
    from sklearn.manifold import TSNE  # here, for it takes a second to import

    perplexity = min(PERPLEXITY, (len(main) - 1) / 3)  # a third of the others are neighbours at most
    start = (plane / scale * 1e-4).astype(np.float32)  # as its init="pca"
    places = TSNE(perplexity=perplexity, init=start, random_state=seed, n_jobs=1).fit_transform(
        (main / main.norm(dim=1).max()).float().numpy()
    )
    return np.asarray(places, np.float32)


def main_directions(features: Tensor, num: int) -> Tensor:
    """Features [n, d] without their mean, along their `num` widest directions at most, fp64 [n, k].

    What is not a number counts as 0. Each direction points where its largest part is positive: without that, its
    sign would be an accident.
    """
    rows = features.double().cpu().nan_to_num(0, 0, 0)
    if not len(rows):
        return torch.zeros(0, 0, dtype=torch.float64)
    left, values, right = torch.linalg.svd(rows - rows.mean(0), full_matrices=False)
    values = values.where(values > 1e-9 * rows.norm(dim=1).max(), 0)  # rounding is no direction
    largest = right.gather(1, right.abs().argmax(1, keepdim=True))[:, 0]
    along: Tensor = left * values * largest.sign()
    return along[:, :num]


def to_unit_square(places: NDArray[np.float32]) -> NDArray[np.float32]:
    """Places [n, 2] moved and scaled, both sides alike, until they just fit into 0..1; the shorter side is centred."""
    if not len(places):
        return places
    low, high = places.min(0), places.max(0)
    side = float((high - low).max())
    if side == 0:
        return np.full_like(places, 0.5)
    fitted: NDArray[np.float32] = np.clip((places - (low + high) / 2) / side + 0.5, 0, 1).astype(np.float32)
    return fitted


def thumbnails(pictures: ImageSplit, most: int = SIDE) -> NDArray[np.uint8]:
    """The pictures as uint8 [n, h, w, 3], no side above `most`: areas are averaged, smaller ones left as is."""
    height, width = pictures.shape[1:3]
    shrink = min(1.0, most / max(height, width))
    size = [max(1, round(side * shrink)) for side in (height, width)]
    parts = []
    for images in pictures.batches_in_order(BATCH):
        if shrink < 1:
            planes = torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2).float()
            means = F.interpolate(planes, size, mode="area").round().to(torch.uint8)
            images = means.permute(0, 2, 3, 1).numpy()
        parts.append(images)
    return np.concatenate(parts) if parts else np.zeros((0, *size, 3), np.uint8)


def save_map(
    path: Path, data: ImageDataset, encoders: dict[str, nn.Module], features: Features, *, num: int = 1500
) -> None:
    """Write a map of at most `num` pictures by each of the encoders ("before", "after"), and what it shows.

    By each encoder's name: places float32 [n, 2] in the unit square. `labels` int64 [n], `images` uint8 [n, h, w, 3],
    `names` of files [n], `class_names`, and `neighbours` int64 [n, 6] by the last encoder. They are test pictures
    where there are labels, else training pictures.
    """
    pictures = (data.test if data.has_labels else data.train).subsample(num)
    arrays: dict[str, NDArray[Any]] = {
        "labels": pictures.labels.astype(np.int64),
        "images": thumbnails(pictures),
        "names": np.array([printable(name) for name in pictures.file_names()], dtype=str),
        "class_names": np.array(data.class_names, dtype=str),
    }
    for name, encoder in encoders.items():
        found = l2_normalize(features(encoder, pictures))  # pictures are compared by cosine
        arrays[name] = to_unit_square(embed_in_plane(found, seed=0))
        arrays["neighbours"] = nearest_others(found, NUM_NEIGHBOURS)[1].numpy().astype(np.int64)
    save_arrays(path, arrays)
