"""Nearest neighbours, and the accuracy of their weighted votes: the paper's online measure."""

from functools import partial
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Gt, Lt
from numpy import int64
from numpy.typing import NDArray
from torch import Tensor

from msvq.core.distributed import map_sharded
from msvq.core.schema import MayChange, Section
from msvq.data.store import ImageSplit
from msvq.model.losses import l2_normalize
from msvq.model.relations import rows_at_once

# For 50,000 x 10,000 x 512 and k = 200 on a CPU; groups of 6 to 16 and larger chunks measured within a tenth of these.
GROUP = 8  # members of a group of the bank, of which the maximum is taken first
SIMILARITIES = 2**25  # held at once (134 MB), so long as the chunks keep MIN_ROWS queries
LAST_BANK = 100_000  # labelled pictures that vote when a run is over, where evaluate.knn_bank has fewer vote before
MIN_ROWS = 64  # fewer would read the bank more often than they multiply by it


class EvaluateSettings(Section):
    """Online kNN."""

    every: Annotated[int, Ge(1), MayChange.TRAINING] = 1  # epochs between measurements
    knn_k: Annotated[int, Ge(1)] = 200  # neighbours that vote
    knn_temp: Annotated[float, Gt(0)] = 0.1  # a vote weighs exp(cosine / temperature)
    knn_bank: Annotated[int, Ge(1)] | None = None  # compare with at most so many labelled pictures; None: all
    # Share of the labelled pictures that is held out of the bank for every choice, such as which checkpoint is best, so
    # that the test pictures only report.
    validation: Annotated[float, Ge(0), Lt(1)] = 0.1


class KnnSettings(Section):
    """The paper's vote."""

    k: Annotated[int, Ge(1)] = 200  # neighbours that vote
    temp: Annotated[float, Gt(0)] = 0.1  # a vote weighs exp(cosine / temperature)


def nearest(bank: Tensor, queries: Tensor, k: int, *, own: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Cosines and places [M, k] of the bank's [N, d] features most like the queries [M, d], nearest first.

    `own` [M] are the queries' own places in the bank, which are left out. Fewer than k give as many as there are; what
    is not a number counts as 0. The whole [M, N] matrix is never held.
    """
    bank, queries = (l2_normalize(features.nan_to_num(0, 0, 0)) for features in (bank, queries))
    k, parts = min(k, max(0, len(bank) - (own is not None))), []
    for rows in torch.arange(len(queries)).split(rows_at_once(bank)):
        similarities = queries[rows] @ bank.T
        if own is not None:
            similarities.scatter_(1, own[rows, None], -2)
        parts.append(similarities.topk(k, dim=1))
    cosines, places = zip(*parts, strict=True)
    return torch.cat(cosines), torch.cat(places)


def nearest_others(features: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Cosines and places [N, k] of the others most like each of the features [N, d], nearest first."""
    return nearest(features, features, k, own=torch.arange(len(features)))


def _top_similarities(chunk: Tensor, bank: Tensor, k: int, buffer: Tensor) -> tuple[Tensor, Tensor]:
    """The k largest cosines of unit queries with a unit bank, and their places, both [n, k] in no order.

    `buffer` [n, group, G] is overwritten; what lies beyond its first N numbers of a query must be -inf, and stays.
    """
    _, group, num_groups = buffer.shape
    similarities = buffer.flatten(1)  # a view: a group's members stand G apart, so that the maxima are vectorised
    torch.mm(chunk, bank.T, out=similarities[:, : len(bank)])
    if group == 1:
        values, places = similarities.topk(k, dim=1, sorted=False)
        return values, places
    # A group with one of the k largest is itself among the k with the largest maxima: only those need be searched.
    groups = buffer.amax(1).topk(k, dim=1, sorted=False).indices
    places = (groups[:, None] + torch.arange(0, group * num_groups, num_groups, device=bank.device)[:, None]).flatten(1)
    values, chosen = similarities.gather(1, places).topk(k, dim=1, sorted=False)
    return values, places.gather(1, chosen)


@torch.no_grad()
def knn_scores(bank: Tensor, bank_labels: Tensor, queries: Tensor, *, k: int, temp: float, num_classes: int) -> Tensor:
    """Votes [M, num_classes] for queries [M, d]: the k most similar of bank [N, d] vote with weight exp(cosine / temp).

    A query's weights are relative to its nearest. Computed in chunks of queries on the bank's device, so the whole
    [M, N] matrix is never held. k falls to N where N is smaller.
    """
    bank, bank_labels = l2_normalize(bank), bank_labels.to(bank.device)
    num, k = len(bank), min(k, len(bank))
    group = GROUP if 4 * k * GROUP <= num else 1  # else the groups to search are much of the bank
    num_groups = -(-num // group)
    rows = max(1, min(len(queries), max(MIN_ROWS, SIMILARITIES // num)))
    buffer = bank.new_full((rows, group, num_groups), float("-inf"))
    scores = bank.new_zeros(len(queries), num_classes)
    with torch.autocast(bank.device.type, enabled=False):  # fp32, whatever the caller computes in
        for chunk, votes in zip(queries.split(rows), scores.split(rows), strict=True):
            unit_chunk = l2_normalize(chunk.to(bank.device)).to(bank.dtype)
            similarities, nearest = _top_similarities(unit_chunk, bank, k, buffer[: len(chunk)])
            # Relative to the nearest: the same vote for any temperature, and no overflow for a small one.
            weights = ((similarities - similarities.amax(1, keepdim=True)) / temp).exp()
            votes.scatter_add_(1, bank_labels[nearest], weights)
    return scores


def knn_predict(bank: Tensor, bank_labels: Tensor, queries: Tensor, *, k: int, temp: float, num_classes: int) -> Tensor:
    """Classes [M] of queries [M, d], on the bank's device: the largest of `knn_scores`."""
    return knn_scores(bank, bank_labels, queries, k=k, temp=temp, num_classes=num_classes).argmax(1)


def knn_accuracy(
    bank: Tensor, queries: Tensor, labels: tuple[NDArray[int64], NDArray[int64]], *, k: int, temp: float
) -> float:
    """Top-1 accuracy in percent of queries [M, d] by a bank [N, d], given the labels of both; NaN if a feature is."""
    if not (bank.isfinite().all() and queries.isfinite().all()):
        return float("nan")
    known, truth = (torch.from_numpy(part) for part in labels)
    num_classes = 1 + int(max(known.max(), truth.max()))
    vote = partial(knn_predict, k=k, temp=temp, num_classes=num_classes)
    voted = map_sharded(len(queries), lambda rows: vote(bank, known, queries[rows]))
    return 100 * float((voted == truth).float().mean())


def suitable_k(labels: NDArray[int64]) -> int:
    """How many of these labelled pictures vote: the paper's 200, or as many as a class has on average.

    On photographs of 20 classes, 8, 32 and 128 of each, that was within the error of the best k; 200 lost 3, 0 and 1
    points, a single one 4, 9 and 14. The paper's data sets have 500 pictures of a class or more.
    """
    known = labels[labels >= 0]
    return max(1, min(KnnSettings().k, len(known) // max(1, len(np.unique(known)))))


def last_bank(bank: ImageSplit, knn_bank: int | None) -> ImageSplit:
    """Those that vote when a run is over: more than during it, but not without end."""
    return bank if knn_bank is None else bank.subsample(max(knn_bank, LAST_BANK))
