"""Split batch norm against ordinary batch norm on each block, and on interleaved groups."""

import copy

import pytest
import torch
from torch import Tensor, nn

from msvq.model import norm as module
from msvq.model.norm import SplitBatchNorm2d, split_batch_norm
from msvq.model.resnet import ResNet
from msvq.model.teacher import Network


def pictures(num: int = 16) -> Tensor:
    return torch.randn(num, 3, 5, 4, dtype=torch.float64) * 2 + 1


def split_norm(splits: int) -> SplitBatchNorm2d:
    norm = SplitBatchNorm2d(3, splits).double()
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    return norm


def plain_like(norm: SplitBatchNorm2d) -> nn.BatchNorm2d:
    plain = nn.BatchNorm2d(3).double()
    plain.load_state_dict(norm.state_dict())
    return plain


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_each_block_is_normalised_by_itself(layout: torch.memory_format) -> None:
    x, norm = pictures().to(memory_format=layout), split_norm(8)
    y = norm(x)
    for block in range(8):
        place = slice(2 * block, 2 * block + 2)
        torch.testing.assert_close(y[place], plain_like(split_norm_reset(norm))(x[place]))


def split_norm_reset(norm: SplitBatchNorm2d) -> SplitBatchNorm2d:
    fresh = SplitBatchNorm2d(3, norm.splits).double()
    fresh.weight.data.copy_(norm.weight.data)
    fresh.bias.data.copy_(norm.bias.data)
    return fresh


def network_of(splits: int) -> Network:
    return Network(ResNet(width=2), nn.Linear(16, 4), bn_splits=splits).double()


def test_a_network_has_interleaved_groups_in_every_layer() -> None:
    x, network, plain = torch.randn(16, 3, 8, 8, dtype=torch.float64), network_of(4), network_of(1)
    plain.load_state_dict(network.state_dict())
    z = network(x)
    for group in range(4):
        torch.testing.assert_close(z[group::4], copy.deepcopy(plain)(x[group::4]))
    assert not torch.allclose(z[:4], copy.deepcopy(plain)(x[:4]))  # blocks would differ


def test_a_networks_gradient_is_that_of_its_groups() -> None:
    network, plain, weight = network_of(4), network_of(1), torch.randn(16, 4, dtype=torch.float64)
    plain.load_state_dict(network.state_dict())
    x = torch.randn(16, 3, 8, 8, dtype=torch.float64)
    (network(x) * weight).sum().backward()
    torch.stack([(plain(x[g::4]) * weight[g::4]).sum() for g in range(4)]).sum().backward()
    for mine, theirs in zip(network.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


@pytest.mark.parametrize("way", ["_by_formula"])
def test_the_way_of_a_gpu_and_of_a_compiler_gives_the_same(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, norm = pictures().requires_grad_(), split_norm(4)
    other, y = copy.deepcopy(norm), x.detach().clone().requires_grad_()
    weight = torch.randn_like(x)
    (norm(x) * weight).sum().backward()
    monkeypatch.setattr(module, "_block_by_block", getattr(module, way))
    (other(y) * weight).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    for mine, theirs in zip(norm.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)
    for name, buffer in norm.named_buffers():
        torch.testing.assert_close(buffer, other.get_buffer(name))


def test_all_blocks_at_once_give_what_they_give_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs, gradients and running statistics, in fp64, which takes that way only where it is told to."""
    x, norm = pictures(32).to(memory_format=torch.channels_last).requires_grad_(), split_norm(4)
    other, y = copy.deepcopy(norm), x.detach().clone().requires_grad_()
    weight = torch.randn_like(x)
    z = norm(x)
    (z * weight).sum().backward()
    monkeypatch.setattr(module, "_suits_one_call", lambda x, splits: True)
    monkeypatch.setattr(module, "_normalised_in_turn", None)
    z2 = other(y)
    assert z2.is_contiguous(memory_format=torch.channels_last)
    (z2 * weight).sum().backward()
    torch.testing.assert_close(z, z2)
    torch.testing.assert_close(x.grad, y.grad)
    for mine, theirs in zip(norm.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)
    for name, buffer in norm.named_buffers():
        torch.testing.assert_close(buffer, other.get_buffer(name))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_one_call_is_for_large_blocks_of_halves(dtype: torch.dtype) -> None:
    large = torch.zeros(64, 2, 16, 8, dtype=dtype).to(memory_format=torch.channels_last)  # 1,024 a block and channel
    is_half = dtype in (torch.bfloat16, torch.float16)
    assert module._suits_one_call(large, 8) is is_half
    assert not module._suits_one_call(large[:56], 8)
    assert not module._suits_one_call(large.contiguous(), 8)


@pytest.mark.parametrize("mean", [0.0, 5.0])
def test_large_blocks_in_bf16_are_normalised_as_exactly_as_they_are_given(mean: float) -> None:
    """A ReLU in place follows, as in a network; both against fp64 on the same rounded numbers."""
    x = (torch.randn(64, 4, 16, 8) + mean).bfloat16().to(memory_format=torch.channels_last).requires_grad_()
    assert module._suits_one_call(x, 8)
    norm, exact = SplitBatchNorm2d(4, 8), SplitBatchNorm2d(4, 8).double()
    y = x.detach().double().requires_grad_()
    weight = torch.randn(x.shape)
    found, expected = torch.relu_(norm(x)), torch.relu(exact(y))
    (found.float() * weight).sum().backward()
    (expected * weight.double()).sum().backward()
    torch.testing.assert_close(found.double(), expected, atol=0.01, rtol=0.01)
    for name, tolerance in (("running_mean", 1e-5), ("running_var", 1e-4)):
        kept = norm.get_buffer(name).double()
        torch.testing.assert_close(kept, exact.get_buffer(name), atol=1e-6, rtol=tolerance)
    assert x.grad is not None and y.grad is not None
    assert (x.grad.double() - y.grad).abs().mean() < 0.01 * y.grad.abs().mean()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_goes_in_and_comes_out(dtype: torch.dtype) -> None:
    x = torch.randn(16, 8, 6, 6).to(memory_format=torch.channels_last)
    norm, exact = SplitBatchNorm2d(8, 4), SplitBatchNorm2d(8, 4)
    low = x.to(dtype).requires_grad_()
    y = norm(low)
    y.float().square().sum().backward()
    assert y.dtype == dtype and low.grad is not None and low.grad.dtype == dtype
    torch.testing.assert_close(y.float(), exact(x), atol=0.05, rtol=0.05)
    torch.testing.assert_close(norm.running_var, exact.running_var, atol=1e-3, rtol=1e-2)


def test_one_group_is_ordinary_batch_norm_in_output_and_buffers() -> None:
    x, norm = pictures(), split_norm(1)
    plain = plain_like(norm)
    assert torch.equal(norm(x), plain(x))
    for mine, theirs in zip(norm.buffers(), plain.buffers(), strict=True):
        assert torch.equal(mine, theirs)


def test_eval_mode_is_ordinary_batch_norm() -> None:
    x, norm = pictures(), split_norm(8)
    norm(x)
    assert torch.equal(norm.eval()(x), plain_like(norm).eval()(x))


def test_running_statistics_follow_the_mean_of_the_groups() -> None:
    x, norm = pictures(), split_norm(8)
    norm(x)
    groups = x.chunk(8)
    variance = torch.stack([g.var(dim=(0, 2, 3), unbiased=True) for g in groups]).mean(0)
    mean = torch.stack([g.mean(dim=(0, 2, 3)) for g in groups]).mean(0)
    torch.testing.assert_close(norm.running_var, 0.9 + 0.1 * variance)
    torch.testing.assert_close(norm.running_mean, 0.1 * mean)
    assert norm.num_batches_tracked == 1


def test_gradient_is_that_of_the_groups() -> None:
    norm, weight = split_norm(4), torch.randn(16, 3, 5, 4, dtype=torch.float64)
    x = pictures().requires_grad_()
    (norm(x) * weight).sum().backward()
    y = x.detach().clone().requires_grad_()
    plain = plain_like(split_norm_reset(norm))
    zipped = zip(y.chunk(4), weight.chunk(4), strict=True)
    torch.stack([(plain(part) * w).sum() for part, w in zipped]).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    torch.testing.assert_close(norm.weight.grad, plain.weight.grad)
    torch.testing.assert_close(norm.bias.grad, plain.bias.grad)


def test_channels_last_goes_in_and_comes_out() -> None:
    x = torch.randn(16, 8, 6, 6).to(memory_format=torch.channels_last)
    assert SplitBatchNorm2d(8, 8)(x).is_contiguous(memory_format=torch.channels_last)


def test_a_batch_that_does_not_divide_is_refused() -> None:
    told = r"12 does not divide into 8 batch-norm groups; .*drop_last=True.*bn_splits=1"
    with pytest.raises(ValueError, match=told):
        split_norm(8)(pictures(12))
    with pytest.raises(ValueError, match=told):
        Network(ResNet(width=2), nn.Identity(), bn_splits=8)(torch.zeros(12, 3, 8, 8))


def test_conversion_keeps_the_state_and_leaves_heads_alone() -> None:
    network = nn.Sequential(ResNet(width=2), nn.BatchNorm1d(16))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    split_batch_norm(network, 8)
    kinds = [type(m) for m in network.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    assert kinds.count(SplitBatchNorm2d) == 20
    assert kinds.count(nn.BatchNorm1d) == 1
    assert nn.BatchNorm2d not in kinds
    after = network.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    plain = ResNet(width=2)
    plain.load_state_dict(network[0].state_dict())  # a checkpoint loads into a plain network


def test_a_frozen_norm_stays_frozen() -> None:
    network = nn.Sequential(nn.BatchNorm2d(3), nn.BatchNorm2d(3))
    network[0].bias.requires_grad_(False)
    split_batch_norm(network, 2)
    assert [parameter.requires_grad for parameter in network.parameters()] == [True, False, True, True]
