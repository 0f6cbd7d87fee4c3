"""Pictures for a person to look at: nearest neighbours before and after training, and what soft labels find."""

import copy
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from msvq.core.console import Display
from msvq.core.files import write_atomically
from msvq.core.runtime import RandomStream, autocast, derive_seed
from msvq.data.augment import Augment
from msvq.data.loader import Loader
from msvq.data.store import ImageDataset, ImageSplit
from msvq.evaluate.diagnostics.false_negatives import Audit, top_entries, worst_pairs
from msvq.evaluate.features import Features
from msvq.evaluate.knn import nearest
from msvq.methods.base import Batch, Loss, Method, SoftLabel
from msvq.model.queue import Queue

NUM_QUERIES, NUM_NEIGHBOURS, NUM_WORST = 10, 6, 8
NUM_BANK = 10_000  # pictures among which neighbours are looked up
LOOKED_AT = 20  # batches of an audit after training


def save_arrays(path: Path, arrays: dict[str, NDArray[Any]]) -> None:
    """Write arrays by name, without anything that would have to be unpickled."""
    write_atomically(path, lambda file: np.savez(file, allow_pickle=False, **arrays))


def choose_queries(labels: Tensor, num: int) -> Tensor:
    """Indices [num] of pictures, the classes in turn, at random within a class."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    by_class = [order[labels[order] == label] for label in torch.unique(labels)]
    rounds = range(max(len(members) for members in by_class))
    turns = [members[turn] for turn in rounds for members in by_class if turn < len(members)]
    return torch.stack(turns[:num])


def save_neighbours(
    path: Path, data: ImageDataset, encoders: dict[str, nn.Module], features: Features
) -> tuple[ImageSplit, Tensor]:
    """Write queries and their neighbours as small pictures, by each of the encoders ("before", "after").

    Test pictures are looked up among training pictures; without labels, training pictures among the others. Returns
    those that they were looked up among, and their features [N, d] by the last encoder.
    """
    bank = (data.labelled if data.has_labels else data.train).subsample(NUM_BANK)
    source = data.test if data.has_labels else bank
    queries = choose_queries(torch.from_numpy(source.labels), NUM_QUERIES)
    asked = ImageSplit(source.take(queries.numpy()), source.labels[queries.numpy()])
    arrays: dict[str, NDArray[Any]] = {"queries": asked.take(range(len(asked))), "query_labels": asked.labels}
    for name, encoder in encoders.items():
        own = None if data.has_labels else queries
        known = features(encoder, bank)
        found = nearest(known, features(encoder, asked), NUM_NEIGHBOURS, own=own)[1].numpy()
        arrays[name] = bank.take(found.reshape(-1)).reshape(*found.shape, *bank.shape[1:])
        arrays[f"{name}_labels"] = bank.labels[found]
    arrays["class_names"] = np.array(data.class_names, dtype=str)
    save_arrays(path, arrays)
    return bank, known


class FrozenReplay:
    """A copy of a method that looks at batches as in training, but learns nothing: its teachers stay as they are.

    `places` [Q]: which training picture each slot of the queues holds; -1 until that is known.
    """

    def __init__(self, method: Method, loader: Loader, augment: Augment, precision: str) -> None:
        self.method = copy.deepcopy(method).train()
        self.method.defer_updates(teachers=True, queues=False)
        self.loader, self.augment, self.precision = loader, augment, precision
        self.generator = torch.Generator().manual_seed(derive_seed(loader.seed, RandomStream.AUDIT))
        self.queue = next((module for module in self.method.modules() if isinstance(module, Queue)), None)
        self.places = torch.full((len(self.queue) if self.queue is not None else 0,), -1)

    @torch.no_grad()
    def batches(self) -> Iterator[tuple[tuple[SoftLabel, ...], Tensor, Tensor]]:
        """Soft labels, labels [N] and indices [N] of batches without end; read each before the next."""
        for epoch in count():
            for images, labels, indices in self.loader.epoch(epoch):
                views = self.augment(images, self.method.views, self.generator)
                pointer = 0 if self.queue is None else int(self.queue.pointer)
                before = 0 if self.queue is None else int(self.queue.pushed)
                with autocast(self.loader.device, self.precision):
                    answer: Loss = self.method(Batch(views, labels, 1.0, indices))
                yield answer.soft_labels, labels, indices
                if self.queue is not None:
                    num = int(self.queue.pushed) - before
                    slots = (pointer + torch.arange(num)) % len(self.queue)
                    self.places[slots] = indices.cpu().repeat(-(-num // len(indices)))[:num]


def audit_soft_labels(
    method: Method, data: ImageDataset, loader: Loader, augment: Augment, *, precision: str, display: Display
) -> tuple[dict[str, Any] | None, dict[str, NDArray[Any]] | None]:
    """The audit of a trained method's soft labels and a gallery of what they find; (None, None) if it has none."""
    replay = FrozenReplay(method, loader, augment, precision)
    if replay.queue is None:
        return None, None
    refill = -(-len(replay.queue) // loader.batch_size)
    audit, gallery = Audit(), None
    with display.task("looking at the soft labels", refill + LOOKED_AT) as advance:
        for number, (soft_labels, labels, indices) in enumerate(replay.batches()):
            if not soft_labels:
                return None, None
            if number >= refill and gallery is None:
                gallery = make_gallery(soft_labels, labels.cpu(), indices.cpu(), replay.places, data, loader)
            if number >= refill:
                audit.add(soft_labels, labels)
            advance(1)
            if number + 1 == refill + LOOKED_AT:
                break
    return audit.result(), gallery


def make_gallery(
    soft_labels: tuple[SoftLabel, ...],
    labels: Tensor,
    indices: Tensor,
    places: Tensor,
    data: ImageDataset,
    loader: Loader,
) -> dict[str, NDArray[Any]]:
    """Pictures of a few samples of a batch, what each soft label finds most similar, and the worst mistakes."""
    pictures, known = loader.pictures, torch.from_numpy(loader.pictures.labels)
    rows = choose_queries(labels, NUM_QUERIES)
    arrays: dict[str, NDArray[Any]] = {
        "queries": pictures.take(indices[rows].numpy()),
        "query_labels": labels[rows].numpy(),
        "views": np.array([label.name for label in soft_labels]),
        "class_names": np.array(data.class_names, dtype=str),
    }
    found = [top_entries(label._replace(z=label.z[rows.to(label.z.device)])) for label in soft_labels]
    slots = torch.stack([slots.cpu() for slots, _ in found])  # [V, M, 5]
    which = places[slots]
    shape = pictures.shape[1:]
    arrays["found_images"] = pictures.take(which.reshape(-1).numpy()).reshape(*which.shape, *shape)
    arrays["found_labels"] = known[which].numpy()
    arrays["found_weights"] = torch.stack([weights.cpu() for _, weights in found]).numpy()
    worst = [pair for soft_label in soft_labels for pair in worst_pairs(soft_label, labels, NUM_WORST)]
    worst = list({int(row): (row, slot, weight) for row, slot, weight in sorted(worst, key=lambda p: p[2])}.values())
    worst = sorted(worst, key=lambda pair: -pair[2])[:NUM_WORST]
    pairs = np.array([[int(indices[row]), int(places[slot])] for row, slot, _ in worst], np.int64).reshape(-1, 2)
    arrays["worst_images"] = pictures.take(pairs.reshape(-1)).reshape(-1, 2, *shape)
    arrays["worst_labels"] = loader.pictures.labels[pairs]
    arrays["worst_weights"] = np.array([weight for *_, weight in worst], np.float32)
    return arrays
