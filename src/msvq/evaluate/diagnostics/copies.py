"""Do changed copies of pictures find their originals? A test of an encoder that needs no labels.

Each picture is cut, resized, mirrored, put in another light and recompressed; its copy is looked up among all
originals by cosine. A colour histogram and a tiny picture take the same test: an encoder ought to beat both.

How strongly the pictures are changed decides whether the order of encoders agrees with what labels would say
(`benchmarks/verdict.py` measures it): with larger crops the pixels themselves find the copies, with less light the
histogram, and with more of it no histogram does, though it may still be the better guide to what pictures show.
"""

import io
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from msvq.data.augment import Augment, ViewSettings
from msvq.data.store import ImageDataset, ImageSplit
from msvq.evaluate.baselines import BASELINES, Encode
from msvq.evaluate.features import Features
from msvq.evaluate.results import standard_error
from msvq.model.losses import l2_normalize
from msvq.model.relations import rows_at_once

NUM_PICTURES = 2000
AT_ONCE = 500
SEED = 0  # the same copies in every run, so that runs compare
CHANGES = ViewSettings(crop_area=(0.2, 0.5), flip=0.5, jitter=(0.4, 0.4, 0.4, 0.05), jitter_p=1.0)
JPEG_QUALITY = 50


def make_changed_copies(images: NDArray[np.uint8], generator: torch.Generator) -> NDArray[np.uint8]:
    """A changed copy of each of the pictures uint8 [n, H, W, 3], square: [n, side, side, 3], the shorter side."""
    side = min(images.shape[1:3])
    augment = Augment({"copy": CHANGES}, size=side, mean=(0, 0, 0), std=(1, 1, 1))
    (views,) = augment(torch.from_numpy(images), ("copy",), generator)
    changed: NDArray[np.uint8] = views.permute(0, 2, 3, 1).mul(255).round().clamp(0, 255).to(torch.uint8).numpy()
    return np.stack([recompress(image) for image in changed])


def recompress(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The picture [H, W, 3] after a lossy round trip."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=JPEG_QUALITY)
    return np.asarray(Image.open(file))


def places_of_originals(originals: Tensor, copies: Tensor) -> Tensor:
    """How many of the other originals [n, d] are more similar to each copy [n, d] than its own: [n], 0 is found.

    Of those that are just as similar, half count. A copy whose features are no numbers comes last.
    """
    bank, queries = l2_normalize(originals.float()), l2_normalize(copies.float())
    places = torch.full((len(bank),), float(len(bank)))
    rows = rows_at_once(bank)
    for start in range(0, len(bank), rows):
        similarities = queries[start : start + rows] @ bank.T
        own = similarities.diagonal(start)[:, None]
        before = (similarities > own).sum(1) + ((similarities == own).sum(1) - 1) / 2
        places[start : start + rows] = torch.where(similarities.isfinite().all(1), before, len(bank))
    return places


def pictures_to_copy(data: ImageDataset) -> tuple[ImageSplit, ImageSplit]:
    """Held-out pictures, as many as are wanted, and others that fill up."""
    held = data.test.subsample(NUM_PICTURES)
    return held, data.train.subsample(NUM_PICTURES - len(held))


def in_batches(parts: Iterable[ImageSplit]) -> Iterator[NDArray[np.uint8]]:
    """All of their pictures."""
    return (images for part in parts for images in part.batches_in_order(AT_ONCE))


def measure_copies(data: ImageDataset, encoders: Mapping[str, nn.Module], features: Features) -> dict[str, Any]:
    """How often changed copies find their originals, by the encoders and by what one has without any.

    `held_out` says how many of the `pictures` are held-out ones.
    """
    held, seen = pictures_to_copy(data)
    networks = {name: encoding(encoder, features) for name, encoder in encoders.items()}
    recall = measure_recall(in_batches((held, seen)), {**networks, **BASELINES})
    return {"pictures": len(held) + len(seen), "held_out": len(held), "recall": recall}


def encoding(encoder: nn.Module, features: Features) -> Encode:
    """An encoder as a function of pictures uint8 [n, H, W, 3]."""
    return lambda images: features(encoder, ImageSplit(images, np.full(len(images), -1, np.int64)))


def measure_recall(batches: Iterable[NDArray[np.uint8]], encoders: Mapping[str, Encode]) -> dict[str, dict[str, float]]:
    """The share of changed copies, in percent, whose original is the nearest, or among the ten nearest, of all.

    By each of the encoders: `at_1`, `at_10`, and their standard errors.
    """
    generator = torch.Generator().manual_seed(SEED)
    found: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in encoders}
    for images in batches:
        changed = make_changed_copies(images, generator)
        for name, encode in encoders.items():
            found[name].append((encode(images), encode(changed)))
    return {name: _recall(*(torch.cat(part) for part in zip(*parts, strict=True))) for name, parts in found.items()}


def _recall(originals: Tensor, copies: Tensor) -> dict[str, Any]:
    places = places_of_originals(originals, copies)
    shares = {f"at_{num}": float((places < num).double().mean()) for num in (1, 10)}
    errors = {f"{name}_error": 100 * standard_error(share, len(places)) for name, share in shares.items()}
    return {name: 100 * share for name, share in shares.items()} | errors
