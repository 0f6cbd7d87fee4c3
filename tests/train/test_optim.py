"""The learning rate and the optimisers."""

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from msvq.core.errors import BadInput
from msvq.core.runtime import warmup_cosine
from msvq.methods.base import Method
from msvq.methods.simsiam import SimSiam
from msvq.model.resnet import ResNet
from msvq.train.optim import NEWTON_SCHULZ, check_optimiser, make_optimiser, orthogonalize

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


class Layers(Method):
    """Convolutions, two of them of one shape, matrices that are wide and tall, a norm and biases, in fp64."""

    student: nn.Sequential

    def __init__(self) -> None:
        super().__init__()
        convolutions = [nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3)]
        self.student = nn.Sequential(*convolutions, nn.BatchNorm2d(4), nn.Linear(9, 4), nn.Linear(4, 9)).double()

    def draw_gradients(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for p in self.parameters():
            drawn = torch.randn(p.shape, generator=generator, dtype=p.dtype)
            p.grad = torch.empty_like(p).copy_(drawn)  # in the order of the parameter's memory, as autograd has it


def take_steps(method: Layers, name: str, *, lr: float, weight_decay: float, num: int = 3) -> None:
    optimiser = make_optimiser(method, name, weight_decay=weight_decay, decay_norm_and_bias=False)
    for step in range(num):
        method.draw_gradients(step)
        for group in optimiser.param_groups:
            group["lr"] = lr / (step + 1)
        optimiser.step()


def test_three_steps_of_adamw_are_the_textbooks() -> None:
    method = Layers()
    expected = {key: (p.detach().clone(), torch.zeros(()), torch.zeros(())) for key, p in method.named_parameters()}
    for step in range(3):
        method.draw_gradients(step)
        lr, t = 0.3 / (step + 1), step + 1
        for key, p in method.named_parameters():
            weight, mean, square = expected[key]
            gradient = torch.zeros_like(p) if p.grad is None else p.grad
            mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
            weight = weight * (1 - lr * (0.2 if p.ndim > 1 else 0.0))
            weight = weight - lr * mean / (1 - 0.9**t) / ((square / (1 - 0.999**t)).sqrt() + 1e-8)
            expected[key] = weight, mean, square
    take_steps(method, "adamw", lr=0.3, weight_decay=0.2)
    for key, p in method.named_parameters():
        torch.testing.assert_close(p.detach(), expected[key][0])


def test_a_step_of_lars_is_a_share_of_the_weights_and_norms_and_biases_take_sgds() -> None:
    method = Layers()
    nn.init.zeros_(method.get_parameter("student.4.weight"))
    expected = {key: (p.detach().clone(), torch.zeros(())) for key, p in method.named_parameters()}
    for step in range(3):
        method.draw_gradients(step)
        for key, p in method.named_parameters():
            weight, momentum = expected[key]
            assert p.grad is not None
            update = p.grad
            if p.ndim > 1:
                update = update + 0.2 * weight
                if weight.norm() > 0:
                    update = update * 0.001 * weight.norm() / update.norm()
            momentum = 0.9 * momentum + update
            expected[key] = weight - 0.3 / (step + 1) * momentum, momentum
    take_steps(method, "lars", lr=0.3, weight_decay=0.2)
    for key, p in method.named_parameters():
        torch.testing.assert_close(p.detach(), expected[key][0])


def with_quintic_singular_values(matrix: Tensor) -> Tensor:
    """A matrix whose singular values are taken through Muon's polynomial five times."""
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    s = s / s.norm()
    for _ in range(5):
        a, b, c = NEWTON_SCHULZ
        s = a * s + b * s**3 + c * s**5
    return torch.mm(u * s, v)


def test_a_step_of_muon_has_the_singular_vectors_of_its_momentum_and_norms_and_biases_take_sgds() -> None:
    method = Layers()
    expected = {key: (p.detach().clone(), torch.zeros(())) for key, p in method.named_parameters()}
    for step in range(3):
        method.draw_gradients(step)
        lr = 0.02 / (step + 1)
        for key, p in method.named_parameters():
            weight, momentum = expected[key]
            assert p.grad is not None
            if p.ndim == 1:
                momentum = 0.9 * momentum + p.grad
                expected[key] = weight - 0.3 * lr * momentum, momentum
                continue
            momentum = 0.95 * momentum + 0.05 * p.grad
            matrix = (0.05 * p.grad + 0.95 * momentum).flatten(1)
            scale = math.sqrt(max(1, matrix.shape[0] / matrix.shape[1]))
            update = scale * with_quintic_singular_values(matrix).view_as(p)
            expected[key] = weight * (1 - lr * 0.2) - lr * update, momentum
    take_steps(method, "muon", lr=0.02, weight_decay=0.2)
    for key, p in method.named_parameters():
        torch.testing.assert_close(p.detach(), expected[key][0])


@pytest.mark.parametrize("shape", [(2, 16, 144), (1, 144, 16), (3, 32, 32), (1, 1, 50)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_orthogonalized_matrices_keep_their_singular_vectors(shape: tuple[int, int, int], dtype: torch.dtype) -> None:
    matrices = 1e-6 * torch.randn(shape, dtype=dtype)  # as small as gradients may be
    found = orthogonalize(matrices)
    u, s, v = torch.linalg.svd(matrices, full_matrices=False)
    middle = u.mT @ found @ v.mT  # diagonal, where the singular vectors are the same
    values = middle.diagonal(dim1=1, dim2=2)
    large = s > 0.02 * matrices.norm(dim=(1, 2))[:, None]  # smaller ones do not get there in five steps
    assert large.float().mean() > 0.9
    assert float(values[large].min()) > 0.65 and float(values.max()) < 1.25
    torch.testing.assert_close(middle, torch.diag_embed(values), atol=1e-3 if dtype == torch.float32 else 1e-9, rtol=0)


def test_nothing_is_orthogonalized_of_nothing() -> None:
    assert not orthogonalize(torch.zeros(2, 3, 5)).any()


@pytest.mark.parametrize("name", ["sgd", "adamw", "lars", "muon"])
def test_a_step_is_the_same_however_a_convolution_lies_in_memory(name: str) -> None:
    plain, other = Layers(), Layers()
    other.load_state_dict(plain.state_dict())
    other.to(memory_format=torch.channels_last)
    for method in (plain, other):
        take_steps(method, name, lr=0.02, weight_decay=0.2)
    assert not other.get_parameter("student.1.weight").is_contiguous()
    for mine, theirs in zip(plain.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["adamw", "lars", "muon"])
def test_what_has_no_gradient_stays_as_it_is(name: str) -> None:
    method = Layers()
    optimiser = make_optimiser(method, name, weight_decay=0.1, decay_norm_and_bias=True)
    before = {key: p.detach().clone() for key, p in method.named_parameters()}
    optimiser.param_groups[0]["lr"] = 0.1
    method.draw_gradients(0)
    method.student[1].zero_grad()
    optimiser.step()
    still = {key for key, p in method.named_parameters() if torch.equal(p, before[key])}
    assert still == {"student.1.weight", "student.1.bias"}


def test_muon_wants_a_matrix() -> None:
    method = Method()
    method.student = nn.BatchNorm2d(4)
    check_optimiser(method, "lars")
    with pytest.raises(BadInput, match="matrices and convolutions, and Method learns none; choose another"):
        check_optimiser(method, "muon")
    method.student.add_module("frozen", nn.Linear(3, 3, bias=False).requires_grad_(False))
    with pytest.raises(BadInput, match="learns none"):
        check_optimiser(method, "muon")
