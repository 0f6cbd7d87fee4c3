"""Nearest neighbours of a few test pictures, before and after training, for a person to look at."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from msvq.data.store import DataSet
from msvq.files import write_atomically
from msvq.model.losses import unit


def nearest(bank: Tensor, queries: Tensor, num: int) -> Tensor:
    """Indices [M, num] of the bank's [N, d] most similar entries to queries [M, d], nearest first."""
    return (unit(queries) @ unit(bank).T).topk(min(num, len(bank)), dim=1).indices


def choose_queries(labels: Tensor, num: int, seed: int = 0) -> Tensor:
    """Indices [num] of test pictures, the classes in turn, at random within a class."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=generator)
    by_class = [order[labels[order] == label] for label in torch.unique(labels)]
    rounds = range(max(len(members) for members in by_class))
    turns = [members[turn] for turn in rounds for members in by_class if turn < len(members)]
    return torch.stack(turns[:num])


def save_neighbours(
    path: Path, data: DataSet, before: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor], *, num: int = 6
) -> None:
    """Write queries and their neighbours as small pictures; `before`, `after`: features of (bank, test)."""
    queries = choose_queries(torch.from_numpy(data.test.labels), max(10, data.num_classes))[:10]
    arrays = {"queries": data.test.images[queries], "query_labels": data.test.labels[queries]}
    for name, (bank, test) in (("before", before), ("after", after)):
        found = nearest(bank, test[queries], num)
        arrays[name] = data.bank.images[found]
        arrays[f"{name}_labels"] = data.bank.labels[found]
    arrays["class_names"] = np.array(data.class_names)
    write_atomically(path, lambda file: np.savez(file, allow_pickle=False, **arrays))
