"""The backbones, and the heads behind them."""

from typing import Any

import pytest
import torch
import torchvision
from torch import nn

from msvq.core.errors import BadInput
from msvq.methods.simsiam import SimSiam
from msvq.model.backbones import BackboneSettings, make_backbone
from msvq.model.heads import mlp, projector
from msvq.model.resnet import Bottleneck, PointConv2d, ResNet, Stem


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_parameter_counts() -> None:
    assert count(ResNet()) == 11_168_832
    assert count(projector(512, 2048, 128)) == 1_312_896


@pytest.mark.parametrize(
    ("size", "stem", "side"), [(32, "small", 4), (64, "small-pool", 4), (96, "small-pool", 6), (64, "small", 8)]
)
def test_last_map_has_the_papers_size(size: int, stem: Stem, side: int) -> None:
    network = ResNet(width=2, stem=stem)
    assert network.stages(torch.zeros(1, 3, size, size)).shape == (1, 16, side, side)
    assert network(torch.zeros(1, 3, size, size)).shape == (1, 16)


@pytest.mark.parametrize(
    ("size", "stem"),
    [(32, "small"), (48, "small"), (49, "small-pool"), (64, "small-pool"), (127, "small-pool"), (128, "standard")],
)
def test_auto_stem_goes_by_the_size(size: int, stem: Stem) -> None:
    assert BackboneSettings().for_size(size).stem == stem
    network: Any = make_backbone(BackboneSettings(width=2), size)
    assert isinstance(network.maxpool, nn.MaxPool2d) is (stem != "small")
    assert network.conv1.kernel_size == ((7, 7) if stem == "standard" else (3, 3))


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50"])
def test_the_standard_stem_makes_torchvisions_network(name: str) -> None:
    theirs = torchvision.models.get_model(name)
    theirs.fc = nn.Identity()
    ours = make_backbone(BackboneSettings(name=name, stem="standard"), 64)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x), rtol=1e-4, atol=1e-4)
    assert ours.feature_dim == (2048 if name == "resnet50" else 512)


def test_a_narrow_resnet50_learns_in_channels_last() -> None:
    network = make_backbone(BackboneSettings(name="resnet50", width=2), 32).to(memory_format=torch.channels_last)
    x = torch.randn(4, 3, 32, 32).to(memory_format=torch.channels_last)
    network(x).square().mean().backward()
    assert network.feature_dim == 64
    assert all(p.grad is not None for p in network.parameters())


def test_residual_blocks_may_start_as_shortcuts() -> None:
    network = make_backbone(BackboneSettings(name="resnet50", width=2), 32)
    method = SimSiam(network, hidden_dim=4, output_dim=4, predictor_dim=2, zero_init_residual=True)
    assert all((m.bn3.weight == 0).all() for m in method.modules() if isinstance(m, Bottleneck))
    flat: Any = nn.Sequential(nn.Flatten())
    flat.feature_dim = 3
    with pytest.raises(BadInput, match="zero_init_residual is about the blocks of a resnet"):
        SimSiam(flat, zero_init_residual=True)


def test_names_and_shapes_are_torchvisions() -> None:
    theirs = torchvision.models.resnet18().state_dict()
    for name, value in ResNet().state_dict().items():
        if name != "conv1.weight":  # 3x3 here, 7x7 there
            assert theirs[name].shape == value.shape


def test_features_equal_torchvisions_with_the_same_stem() -> None:
    theirs = torchvision.models.resnet18()
    theirs.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
    theirs.maxpool = nn.Identity()
    theirs.fc = nn.Identity()
    ours = ResNet()
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))


def test_initialisation_is_kaiming_but_for_the_stem() -> None:
    network: Any = ResNet()
    assert network.conv1.weight.std().item() == pytest.approx(0.11, abs=0.01)
    block = network.layer2[0].conv1.weight
    assert block.std().item() == pytest.approx((2 / (9 * block.shape[0])) ** 0.5, rel=0.02)
    assert all((m.weight == 1).all() for m in network.modules() if isinstance(m, nn.BatchNorm2d))


def test_head_with_norm_has_no_bias_before_it() -> None:
    head: Any = mlp(8, 16, 4, norm=True)
    assert [type(layer) for layer in head] == [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear]
    assert head[0].bias is None
    assert head[3].bias is not None
    last: Any = mlp(8, 4, last_norm=True, last_affine=False)
    assert last[0].bias is None
    assert last[1].weight is None


def test_a_point_convolution_is_the_strided_one() -> None:
    mine, theirs = PointConv2d(3, 5, 1, 2, bias=False).double(), nn.Conv2d(3, 5, 1, 2, bias=False).double()
    theirs.load_state_dict(mine.state_dict())
    for size in (8, 7):
        x = torch.randn(2, 3, size, size, dtype=torch.float64)
        torch.testing.assert_close(mine(x), theirs(x))
