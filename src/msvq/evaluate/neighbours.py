"""Nearest neighbours of a few pictures, before and after training, for a person to look at."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from msvq.core.files import write_atomically
from msvq.data.store import ImageDataset, ImageSplit
from msvq.model.losses import l2_normalize

NUM_QUERIES, NUM_BANK = 10, 10_000


def nearest(bank: Tensor, queries: Tensor, num: int, *, own: Tensor | None = None) -> Tensor:
    """Indices [M, num] of the bank's [N, d] most similar entries to queries [M, d], nearest first.

    `own` [M] are the queries' own places in the bank, which are left out.
    """
    similarities = l2_normalize(queries) @ l2_normalize(bank).T
    if own is not None:
        similarities.scatter_(1, own[:, None], -2)
    return similarities.topk(min(num, len(bank) - (own is not None)), dim=1).indices


def choose_queries(labels: Tensor, num: int, seed: int = 0) -> Tensor:
    """Indices [num] of pictures, the classes in turn, at random within a class."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=generator)
    by_class = [order[labels[order] == label] for label in torch.unique(labels)]
    rounds = range(max(len(members) for members in by_class))
    turns = [members[turn] for turn in rounds for members in by_class if turn < len(members)]
    return torch.stack(turns[:num])


def save_neighbours(
    path: Path,
    data: ImageDataset,
    encoders: dict[str, nn.Module],
    features: Callable[[nn.Module, ImageSplit], Tensor],
    *,
    num: int = 6,
) -> None:
    """Write queries and their neighbours as small pictures, by each of the encoders ("before", "after").

    Test pictures are looked up among training pictures; without labels, training pictures among the others.
    """
    bank = (data.labelled if data.has_labels else data.train).subsample(NUM_BANK)
    source = data.test if data.has_labels else bank
    queries = choose_queries(torch.from_numpy(source.labels), max(NUM_QUERIES, data.num_classes))[:NUM_QUERIES]
    asked = ImageSplit(source.take(queries.numpy()), source.labels[queries.numpy()])
    arrays: dict[str, NDArray[Any]] = {"queries": asked.take(range(len(asked))), "query_labels": asked.labels}
    for name, encoder in encoders.items():
        own = None if data.has_labels else queries
        found = nearest(features(encoder, bank), features(encoder, asked), num, own=own).numpy()
        arrays[name] = bank.take(found.reshape(-1)).reshape(*found.shape, *bank.shape[1:])
        arrays[f"{name}_labels"] = bank.labels[found]
    arrays["class_names"] = np.array(data.class_names, dtype=str)
    write_atomically(path, lambda file: np.savez(file, allow_pickle=False, **arrays))
