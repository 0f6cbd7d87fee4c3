"""The learning rate and the optimiser."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from msvq.core.runtime import warmup_cosine
from msvq.methods.base import Method
from msvq.methods.simsiam import SimSiam
from msvq.model.backbones import ResNet
from msvq.train.optim import make_optimiser

PER_EPOCH = 195  # CIFAR at batch 256


def rate(epoch: float) -> float:
    return warmup_cosine(
        round(epoch * PER_EPOCH), base_lr=0.06, warmup_steps=5 * PER_EPOCH, total_steps=200 * PER_EPOCH
    )


@pytest.mark.parametrize(("epoch", "share"), [(0, 0.0), (1, 0.2), (5, 1.0), (70, 0.75), (102.5, 0.5)])
def test_rate_at_the_specified_places(epoch: float, share: float) -> None:
    assert rate(epoch) == pytest.approx(0.06 * share, abs=3e-6)


def test_rate_rises_then_falls_and_never_reaches_zero() -> None:
    rates = [
        warmup_cosine(step, base_lr=0.06, warmup_steps=5 * PER_EPOCH, total_steps=200 * PER_EPOCH)
        for step in range(200 * PER_EPOCH)
    ]
    peak = rates.index(max(rates))
    assert peak == 5 * PER_EPOCH
    assert all(a < b for a, b in pairwise(rates[: peak + 1]))
    assert all(a > b for a, b in pairwise(rates[peak:]))
    assert rates[-1] == pytest.approx(1.0e-10, rel=0.05)


def test_without_warm_up_the_first_step_has_the_base_rate() -> None:
    assert warmup_cosine(0, base_lr=0.1, warmup_steps=0, total_steps=10) == 0.1


def test_everything_that_learns_decays_unless_spared() -> None:
    network = Method()
    network.student = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2).requires_grad_(False))
    (everything,) = make_optimiser(network, weight_decay=5e-4, decay_norm_and_bias=True).param_groups
    assert [len(everything["params"]), everything["weight_decay"]] == [4, 5e-4]
    assert [everything["momentum"], everything["nesterov"]] == [0.9, False]
    decayed, spared = make_optimiser(network, weight_decay=5e-4, decay_norm_and_bias=False).param_groups
    assert [len(decayed["params"]), decayed["weight_decay"]] == [1, 5e-4]
    assert [len(spared["params"]), spared["weight_decay"]] == [3, 0.0]


def test_parts_at_a_constant_rate_are_marked() -> None:
    method = SimSiam(ResNet(width=1), hidden_dim=4, output_dim=4, predictor_dim=2, constant_predictor_rate=True)
    following, constant = make_optimiser(method, weight_decay=5e-4, decay_norm_and_bias=True).param_groups
    assert [following["constant_rate"], constant["constant_rate"]] == [False, True]
    assert {id(p) for p in constant["params"]} == {id(p) for p in method.predictor.parameters()}


def test_one_step_is_the_textbooks() -> None:
    weight = nn.Parameter(torch.tensor([[2.0]]))
    module = Method()
    module.weight = weight
    optimiser = make_optimiser(module, weight_decay=0.1, decay_norm_and_bias=True)
    velocity, expected = 0.0, 2.0
    for _ in range(3):
        optimiser.param_groups[0]["lr"] = 0.5
        weight.grad = torch.tensor([[1.0]])
        optimiser.step()
        velocity = 0.9 * velocity + 1.0 + 0.1 * expected
        expected -= 0.5 * velocity
    assert weight.item() == pytest.approx(expected)
