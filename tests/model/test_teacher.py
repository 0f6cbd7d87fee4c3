"""Teachers: moving average, shuffling, and what they must not touch."""

import pytest
import torch
from torch import nn

from msvq.model.resnet import ResNet
from msvq.model.teacher import Network, Teacher


def student(splits: int = 1) -> Network:
    return Network(ResNet(width=2), nn.Linear(16, 4), bn_splits=splits).double()


def test_moving_average_has_its_closed_form() -> None:
    network = student()
    teacher = Teacher(network, momentum=0.9)
    start = [p.clone() for p in teacher.network.parameters()]
    for p in network.parameters():
        p.data.normal_()
    for _ in range(7):
        teacher.ema_update(network)
    shares = 0.9**7
    for now, first, target in zip(teacher.network.parameters(), start, network.parameters(), strict=True):
        torch.testing.assert_close(now, shares * first + (1 - shares) * target)


def test_momentum_one_freezes_and_zero_copies() -> None:
    network = student()
    frozen, copy = Teacher(network, momentum=1.0), Teacher(network, momentum=0.0)
    start = [p.clone() for p in network.parameters()]
    for p in network.parameters():
        p.data.normal_()
    frozen.ema_update(network)
    copy.ema_update(network)
    assert all(map(torch.equal, frozen.network.parameters(), start))
    assert all(map(torch.equal, copy.network.parameters(), network.parameters()))


def test_a_momentum_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[0, 1\], not 1.5"):
        Teacher(student(), momentum=1.5)


def test_buffers_are_the_teachers_own() -> None:
    network = student()
    teacher = Teacher(network, momentum=0.0)
    network(torch.randn(8, 3, 8, 8, dtype=torch.float64))
    untouched = [b.clone() for b in teacher.network.buffers()]
    teacher.ema_update(network)
    assert all(map(torch.equal, teacher.network.buffers(), untouched))
    teacher(torch.randn(8, 3, 8, 8, dtype=torch.float64))
    assert teacher.network.get_buffer("backbone.bn1.num_batches_tracked") == 1


def test_it_starts_as_a_copy_without_gradient() -> None:
    network = student()
    teacher = Teacher(network, momentum=0.5, shuffle=False)
    assert not any(p.requires_grad for p in teacher.parameters())
    x = torch.randn(8, 3, 8, 8, dtype=torch.float64)
    z = teacher(x)
    assert torch.equal(z, network(x))
    assert not z.requires_grad


def test_shuffling_returns_the_order_it_got() -> None:
    network = student()
    plain = Teacher(network, momentum=0.5, shuffle=False)
    shuffled = Teacher(network, momentum=0.5, shuffle=True)
    x = torch.randn(16, 3, 8, 8, dtype=torch.float64)
    torch.testing.assert_close(shuffled(x), plain(x))  # one group: the permutation cannot matter


def test_with_groups_the_permutation_matters() -> None:
    network = student(splits=8)
    plain = Teacher(network, momentum=0.5, shuffle=False)
    shuffled = Teacher(network, momentum=0.5, shuffle=True)
    x = torch.randn(16, 3, 8, 8, dtype=torch.float64)
    assert not torch.allclose(shuffled(x), plain(x))
    assert not torch.allclose(shuffled(x), shuffled(x))  # a fresh permutation each time


def test_its_random_state_is_in_the_checkpoint() -> None:
    teacher = Teacher(student(splits=8), momentum=0.5)
    x = torch.randn(16, 3, 8, 8, dtype=torch.float64)
    teacher(x)
    saved = {key: value.clone() for key, value in teacher.state_dict().items()}
    expected = teacher(x)
    other = Teacher(student(splits=8), momentum=0.5)
    other.load_state_dict(saved)
    assert torch.equal(other(x), expected)
