"""Numbers that tell a collapse without labels, and the state of teachers and queues."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from msvq.data.store import ImageSplit
from msvq.evaluate.diagnostics.health import (
    alignment,
    effective_rank,
    feature_std,
    measure_health,
    queue_health,
    spread,
    teacher_distances,
    uniformity,
)
from msvq.methods import METHODS
from msvq.model import relations
from msvq.model.losses import l2_normalize
from msvq.model.queue import Queue
from msvq.model.teacher import Network

MakeMethod = Callable[..., Any]


def test_rank_counts_the_directions_that_are_used() -> None:
    directions = torch.linalg.qr(torch.randn(500, 500))[0]
    assert abs(effective_rank(directions[:, :7]) - 7) < 1e-3  # seven equal singular values
    uneven = torch.diag(torch.tensor([3.0, 1.0]))
    p = torch.tensor([0.75, 0.25])
    assert abs(effective_rank(directions[:, :2] @ uneven) - float(torch.exp(-(p * p.log()).sum()))) < 1e-3
    assert abs(effective_rank(torch.ones(50, 8)) - 1) < 1e-3


def test_std_and_spread_are_zero_when_all_features_point_one_way() -> None:
    direction = torch.randn(16)
    assert feature_std(torch.rand(100, 1) * direction + 0) < 1e-6  # of any length
    assert spread(torch.rand(100, 1) * direction) < 1e-3
    uniform = torch.randn(20_000, 64)
    assert abs(feature_std(uniform) - 64**-0.5) < 1e-3
    assert abs(spread(uniform) - 1) < 1e-3
    halves = torch.cat([torch.eye(2)[:1].repeat(50, 1), torch.eye(2)[1:].repeat(50, 1)])
    assert spread(halves) == pytest.approx(0.5**0.5)


def test_alignment_is_the_squared_distance_of_two_views() -> None:
    first, second = torch.randn(30, 8), torch.randn(30, 8)
    slow = [float((a / a.norm() - b / b.norm()).norm() ** 2) for a, b in zip(first, second, strict=True)]
    assert alignment(first, second) == pytest.approx(sum(slow) / 30, rel=1e-5)
    assert alignment(first, 3 * first) == pytest.approx(0, abs=1e-6)
    assert alignment(first, -first) == pytest.approx(4, rel=1e-5)


def test_uniformity_is_over_distinct_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    features = torch.randn(23, 5)
    z = [row / row.norm() for row in features.double()]
    pairs = [math.exp(-2 * float((a - b).square().sum())) for i, a in enumerate(z) for b in z[i + 1 :]]
    expected = pytest.approx(math.log(sum(pairs) / len(pairs)), rel=1e-4)
    assert uniformity(features) == expected
    monkeypatch.setitem(relations.PIECE, "cpu", 23 * 4)  # four rows at a time
    assert uniformity(features) == expected


def test_uniformity_of_known_sets() -> None:
    assert uniformity(torch.eye(2)) == pytest.approx(-4)  # at right angles: exp(-2 * 2)
    assert uniformity(torch.tensor([[1.0], [-1.0]])) == pytest.approx(-8)
    assert uniformity(torch.ones(100, 8)) == pytest.approx(0, abs=1e-5)
    assert uniformity(torch.zeros(100, 8)) == pytest.approx(0, abs=1e-5)
    assert uniformity(torch.randn(1000, 4000)) == pytest.approx(-4, abs=0.02)


@pytest.mark.parametrize("value", [0.0, 1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("num", [0, 1, 2, 50])
def test_degenerate_features_do_not_crash(value: float, num: int) -> None:
    features = torch.full((num, 8), value)
    for measure in (feature_std, spread, effective_rank, uniformity):
        number = measure(features)
        assert isinstance(number, float)
        if num > 1 and math.isfinite(value):
            assert math.isfinite(number)
    assert isinstance(alignment(features, features), float)


def test_distances_of_teachers(tiny: MakeMethod) -> None:
    method = tiny(METHODS["msvq"])
    same = teacher_distances(method)
    assert same == {"student_teacher1": 0, "student_teacher2": 0, "teacher1_teacher2": 0}
    with torch.no_grad():
        for parameter in method.student.parameters():
            parameter.mul_(2)
        for parameter in method.teachers[1].parameters():
            parameter.mul_(4)
    apart = teacher_distances(method)
    assert apart == pytest.approx({"student_teacher1": 0.5, "student_teacher2": 1, "teacher1_teacher2": 3})


def test_distances_of_other_methods(tiny: MakeMethod) -> None:
    assert set(teacher_distances(tiny(METHODS["byol"]))) == {"student_teacher1"}
    assert set(teacher_distances(tiny(METHODS["unmix"]))) == {"student_teacher1"}
    assert teacher_distances(tiny(METHODS["simclr"])) == {}


def test_fill_and_age_of_queues() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = Queue(8, 2), Queue(8, 2)

    two = Two()
    assert queue_health(nn.Identity(), steps=3) == {}
    assert queue_health(two, steps=0) == {"filled": 0, "age": 0, "age_oldest": 0}
    for queue in (two.a, two.b):
        queue.push(torch.randn(4, 2), torch.zeros(4, dtype=torch.int64))
    assert queue_health(two, steps=1) == {"filled": 0.5, "age": 1, "age_oldest": 1}
    for _ in range(5):
        for queue in (two.a, two.b):
            queue.push(torch.randn(4, 2), torch.zeros(4, dtype=torch.int64))
    assert queue_health(two, steps=6) == {"filled": 1, "age": 1.5, "age_oldest": 2}  # of 1 and 2 steps ago
    assert queue_health(two, steps=3)["age_oldest"] == 1  # two pushes a step


def blank(num: int) -> ImageSplit:
    return ImageSplit(np.zeros((num, 8, 8, 3), np.uint8), np.full(num, -1, np.int64))


def test_health_is_measured_on_a_sample() -> None:
    seen: list[int] = []

    def features(encoder: object, some: ImageSplit) -> Tensor:
        seen.append(len(some))
        return torch.randn(len(some), 8)

    class Anything:
        encoder = None

    values = measure_health(Anything(), pictures=blank(5000), features=features)  # type: ignore[arg-type]
    assert set(values) == {"feature_std", "feature_spread", "rank", "uniformity"}
    assert 1666 <= seen[0] <= 2000


@pytest.mark.parametrize("name", ["msvq", "simsiam", "unmix", "supervised"])
def test_health_looks_behind_the_projector(tiny: MakeMethod, name: str) -> None:
    method = tiny(METHODS[name]).train()
    x = torch.randn(40, 3, 16, 16)

    @torch.no_grad()
    def features(encoder: nn.Module, some: ImageSplit) -> Tensor:
        encoder.eval()
        found: Tensor = encoder(x[: len(some)])
        encoder.train()
        return found

    def pairs(encoder: nn.Module) -> tuple[Tensor, Tensor]:
        first = torch.randn(4, network.backbone.feature_dim, generator=torch.Generator().manual_seed(0))
        return first, -first

    network: Any = next(module for module in method.modules() if isinstance(module, Network))
    before = {key: value.clone() for key, value in method.state_dict().items() if isinstance(value, Tensor)}
    values = measure_health(method, pictures=blank(40), features=features, pairs=pairs)
    assert all(module.training for module in method.modules())  # restored
    assert all(torch.equal(value, before[key]) for key, value in method.state_dict().items() if key in before)
    network.eval()
    with torch.no_grad():
        embeddings = network(x)
        behind = [network.projector(view) for view in pairs(network)]
    assert values["embedding_std"] == pytest.approx(float(l2_normalize(embeddings).std(0).mean()), rel=1e-4)
    assert values["embedding_rank"] == pytest.approx(effective_rank(embeddings), rel=1e-3)
    assert values["embedding_spread"] == pytest.approx(spread(embeddings), rel=1e-4)
    assert values["embedding_uniformity"] == pytest.approx(uniformity(embeddings), rel=1e-3)
    assert values["embedding_alignment"] == pytest.approx(alignment(*behind), rel=1e-3)
    assert values["alignment"] == pytest.approx(4)
