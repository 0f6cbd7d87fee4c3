"""Is the encoder collapsing? Numbers that need no labels."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from msvq.data.store import Pictures
from msvq.methods.base import Method
from msvq.model.losses import unit

NUM_PICTURES = 2000


def feature_std(features: Tensor) -> float:
    """Mean over dimensions of the deviation of unit features [N, d]: 0 if all pictures look the same to the encoder."""
    return float(unit(features).std(dim=0).mean())


def effective_rank(features: Tensor) -> float:
    """RankMe (arXiv 2210.02885) of features [N, d]: exp of the entropy of the singular values' shares, 1 to d."""
    values = torch.linalg.svdvals(features.double())
    shares = values / values.sum().clamp_min(1e-12) + 1e-7
    return float(torch.exp(-(shares * shares.log()).sum()))


class HealthMonitor:
    """Measures `feature_std` and `rank` between epochs on a fixed sample of the pictures."""

    def __init__(
        self, pictures: Pictures, *, every: int, epochs: int, features: Callable[[nn.Module, Pictures], Tensor]
    ) -> None:
        self.pictures = pictures.thinned(NUM_PICTURES)
        self.every, self.epochs, self.features = every, epochs, features

    def due(self, epoch: int) -> bool:
        """Every `every` epochs, before the first and after the last."""
        return epoch % self.every == 0 or epoch == self.epochs

    def measure(self, method: Method, epoch: int) -> Mapping[str, float]:
        """The numbers, by the names they get in the log."""
        features = self.features(method.encoder, self.pictures)
        return {"feature_std": feature_std(features), "rank": effective_rank(features)}

    def state_dict(self) -> dict[str, Any]:
        """Nothing: each measurement stands alone."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to continue from."""
