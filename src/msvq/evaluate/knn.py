"""Weighted k-nearest-neighbour accuracy, the paper's online measure (methods.md 2.1)."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt
from numpy import uint8
from numpy.typing import NDArray
from torch import Tensor, nn

from msvq.data.store import DataSet
from msvq.methods.base import Method
from msvq.model.losses import unit
from msvq.settings import Section


class EvaluateSettings(Section):
    """Online kNN. `every`: epochs between measurements."""

    every: Annotated[int, Ge(1)] = 1
    knn_k: Annotated[int, Ge(1)] = 200
    knn_temp: Annotated[float, Gt(0)] = 0.1


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


def knn_accuracy(bank: Tensor, queries: Tensor, data: DataSet, *, k: int, temp: float) -> float:
    """Top-1 accuracy in percent of the test split, given features of bank and test."""
    truth = torch.from_numpy(data.test.labels)
    voted = knn_predict(bank, torch.from_numpy(data.bank.labels), queries, k=k, temp=temp, num_classes=data.num_classes)
    return 100 * float((voted == truth).float().mean())


class KnnMonitor:
    """Measures kNN accuracy between epochs and remembers the best."""

    def __init__(
        self,
        data: DataSet,
        settings: EvaluateSettings,
        *,
        epochs: int,
        features: Callable[[nn.Module, NDArray[uint8]], Tensor],
    ) -> None:
        self.data, self.settings, self.epochs, self.features = data, settings, epochs, features
        self.best = 0.0
        self.latest: tuple[Tensor, Tensor] | None = None  # features of bank and test when last measured

    def due(self, epoch: int) -> bool:
        """Every `evaluate.every` epochs, before the first and after the last."""
        return epoch % self.settings.every == 0 or epoch == self.epochs

    def measure(self, method: Method, epoch: int) -> Mapping[str, float]:
        """`knn_top1`, and `knn_top1_best` over the epochs trained so far."""
        bank = self.features(method.encoder, self.data.bank.images)
        test = self.features(method.encoder, self.data.test.images)
        self.latest = bank, test
        top1 = knn_accuracy(bank, test, self.data, k=self.settings.knn_k, temp=self.settings.knn_temp)
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
