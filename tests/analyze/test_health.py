"""Numbers that tell a collapse without labels."""

import numpy as np
import torch

from msvq.analyze.health import HealthMonitor, effective_rank, feature_std
from msvq.data.store import Pictures


def test_rank_counts_the_directions_that_are_used() -> None:
    torch.manual_seed(0)
    directions = torch.linalg.qr(torch.randn(500, 500))[0]
    assert abs(effective_rank(directions[:, :7]) - 7) < 1e-3  # seven equal singular values
    spread = torch.diag(torch.tensor([3.0, 1.0]))
    p = torch.tensor([0.75, 0.25])
    assert abs(effective_rank(directions[:, :2] @ spread) - float(torch.exp(-(p * p.log()).sum()))) < 1e-3
    assert abs(effective_rank(torch.ones(50, 8)) - 1) < 1e-3


def test_std_is_zero_when_all_features_point_one_way() -> None:
    direction = torch.randn(16)
    assert feature_std(torch.rand(100, 1) * direction + 0) < 1e-6  # of any length
    uniform = torch.randn(20_000, 64)
    assert abs(feature_std(uniform) - 64**-0.5) < 1e-3


def test_the_monitor_measures_a_sample_before_and_after() -> None:
    pictures = Pictures(np.zeros((5000, 8, 8, 3), np.uint8), np.full(5000, -1, np.int64))
    seen: list[int] = []

    def features(encoder: object, some: Pictures) -> torch.Tensor:
        seen.append(len(some))
        return torch.randn(len(some), 8)

    monitor = HealthMonitor(pictures, every=3, epochs=7, features=features)
    assert [epoch for epoch in range(8) if monitor.due(epoch)] == [0, 3, 6, 7]

    class Anything:
        encoder = None

    values = monitor.measure(Anything(), 0)  # type: ignore[arg-type]
    assert set(values) == {"feature_std", "rank"}
    assert 1666 <= seen[0] <= 2000
