"""Weighted k-nearest-neighbour accuracy, the paper's online measure (methods.md 2.1)."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt
from numpy import int64
from numpy.typing import NDArray
from torch import Tensor, nn

from msvq.data.store import DataSet, Pictures
from msvq.methods.base import Method
from msvq.model.losses import unit
from msvq.settings import Section


class EvaluateSettings(Section):
    """Online kNN. `every`: epochs between measurements, of label-free health too."""

    every: Annotated[int, Ge(1)] = 1
    knn_k: Annotated[int, Ge(1)] = 200
    knn_temp: Annotated[float, Gt(0)] = 0.1
    knn_bank: Annotated[int, Ge(1)] | None = None  # compare with at most so many labelled pictures; None: all


def knn_predict(bank: Tensor, bank_labels: Tensor, queries: Tensor, *, k: int, temp: float, num_classes: int) -> Tensor:
    """Classes [M] of queries [M, d]: the k most similar of bank [N, d] vote with weight exp(cosine / temp).

    Computed in chunks of queries, so the whole [M, N] matrix is never held. k falls to N where N is smaller.
    """
    bank = unit(bank)
    predictions = []
    for chunk in torch.split(unit(queries), 1000):
        similarities, nearest = (chunk @ bank.T).topk(min(k, len(bank)), dim=1)
        # Relative to the nearest: the same vote for any temperature, and no overflow for a small one.
        weights = ((similarities - similarities[:, :1]) / temp).exp()
        scores = torch.zeros(len(chunk), num_classes)
        scores.scatter_add_(1, bank_labels[nearest], weights)
        predictions.append(scores.argmax(1))
    return torch.cat(predictions)


def knn_accuracy(
    bank: Tensor, queries: Tensor, labels: tuple[NDArray[int64], NDArray[int64]], *, k: int, temp: float
) -> float:
    """Top-1 accuracy in percent of queries [M, d] by a bank [N, d], given the labels of bank and queries."""
    known, truth = (torch.from_numpy(part) for part in labels)
    num_classes = 1 + int(max(known.max(), truth.max()))
    voted = knn_predict(bank, known, queries, k=k, temp=temp, num_classes=num_classes)
    return 100 * float((voted == truth).float().mean())


class KnnMonitor:
    """Measures kNN accuracy between epochs and remembers the best."""

    def __init__(
        self,
        data: DataSet,
        settings: EvaluateSettings,
        *,
        epochs: int,
        features: Callable[[nn.Module, Pictures], Tensor],
    ) -> None:
        self.bank, self.test = data.bank.thinned(settings.knn_bank), data.test
        self.settings, self.epochs, self.features = settings, epochs, features
        self.best = 0.0

    def due(self, epoch: int) -> bool:
        """Every `evaluate.every` epochs, before the first and after the last."""
        return epoch % self.settings.every == 0 or epoch == self.epochs

    def measure(self, method: Method, epoch: int) -> Mapping[str, float]:
        """`knn_top1`, and `knn_top1_best` over the epochs trained so far."""
        bank, test = (self.features(method.encoder, part) for part in (self.bank, self.test))
        labels = self.bank.labels, self.test.labels
        top1 = knn_accuracy(bank, test, labels, k=self.settings.knn_k, temp=self.settings.knn_temp)
        if epoch == 0:  # the untrained encoder is no candidate
            return {"knn_top1": top1}
        self.best = max(self.best, top1)
        return {"knn_top1": top1, "knn_top1_best": self.best}

    def state_dict(self) -> dict[str, Any]:
        """The best so far."""
        return {"best": self.best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.best = state["best"]
