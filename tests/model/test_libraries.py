"""Backbones of torchvision and timm, and code of one's own."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch import nn

from msvq.core.errors import BadInput
from msvq.methods import METHODS
from msvq.model import backbones
from msvq.model.backbones import BackboneSettings, make_backbone, register_backbone
from msvq.model.norm import SplitBatchNorm2d, convert_sync_batchnorm_, split_batch_norm
from msvq.model.pooling import check_sizes

timm = pytest.importorskip("timm")


def make(name: str, size: int = 32, **settings: Any) -> Any:
    return make_backbone(BackboneSettings(name=name, **settings), size)


@pytest.mark.parametrize(
    ("name", "dim"),
    [
        ("timm:test_vit", 64),
        ("timm:test_convnext", 64),
        ("timm:test_efficientnet", 256),
        ("timm:convnext_atto", 320),
        ("timm:vit_tiny_patch16_224", 192),
        ("torchvision:mobilenet_v3_small", 576),
        ("torchvision:efficientnet_b0", 1280),
        ("torchvision:shufflenet_v2_x0_5", 1024),
        ("torchvision:squeezenet1_1", 512),
        ("torchvision:googlenet", 1024),
    ],
)
def test_features_are_pooled_and_counted(name: str, dim: int) -> None:
    network = make(name).eval()
    assert network.feature_dim == dim
    assert network(torch.zeros(3, 3, 32, 32)).shape == (3, dim)


def test_the_weights_have_the_librarys_names() -> None:
    theirs = timm.create_model("test_convnext", num_classes=0).state_dict()
    assert {k: v.shape for k, v in make("timm:test_convnext").state_dict().items()} == {
        k: v.shape for k, v in theirs.items()
    }
    known = torchvision.models.mobilenet_v3_small().state_dict()
    for name, value in make("torchvision:mobilenet_v3_small").state_dict().items():
        assert known[name].shape == value.shape


def test_a_transformer_takes_other_sizes_that_its_patches_divide() -> None:
    network = make("timm:test_vit", 32).eval()
    assert network(torch.zeros(2, 3, 48, 48)).shape == (2, 64)
    with pytest.raises(BadInput, match=r"cannot take pictures of 40 pixels .*divisible by patch size.*data\.size"):
        make("timm:test_vit", 40)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("resnt50", r"unknown backbone 'resnt50'; did you mean 'resnet50'\?"),
        ("mobilenet_v3_small", "did you mean 'torchvision:mobilenet_v3_small'"),
        ("vit_tiny_patch16_224", "did you mean 'timm:vit_tiny_patch16_224'"),
        ("timm:convnext_ato", "did you mean 'timm:convnext_atto'"),
        ("timm:hf-hub:someone/model", "unknown backbone"),
        ("timm:local-dir:/tmp", "unknown backbone"),
        ("torchvision:", "unknown backbone"),
        ("keras:vgg", "torchvision:NAME, timm:NAME, or path/to/file.py:function"),
        ("torchvision:maxvit_t", "cannot be built for pictures of 32 pixels"),
        ("torchvision:alexnet", "cannot take pictures of 32 pixels"),
    ],
)
def test_what_there_is_not(name: str, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        make(name)


@pytest.mark.parametrize("setting", [{"width": 16}, {"stem": "small"}])
def test_settings_of_resnets_mean_nothing_to_others(setting: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=f"backbone.{next(iter(setting))} is for resnet8, resnet14, resnet18"):
        make("timm:test_vit", **setting)


def test_without_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(BadInput, match=r"needs timm; pip install 'msvq\[timm\]' gives it"):
        make("timm:test_vit")
    with pytest.raises(BadInput, match="did you mean 'resnet18'"):
        make("resnet19")


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize("name", ["timm:test_vit", "timm:test_efficientnet"])
def test_every_method_learns_with_and_without_batch_norm(name: str, kind: str, random_batch: Any) -> None:
    tiny = {"queue_size": 32, "hidden_dim": 16, "output_dim": 8, "predictor_dim": 4, "bn_splits": 4}
    facts = {"num_classes": 4, "num_pictures": 64}
    known = METHODS[kind].hyperparameters()
    options: dict[str, Any] = {key: value for key, value in {**tiny, **facts}.items() if key in known}
    if "base_options" in known:
        options["base_options"] = {"queue_size": 32, "hidden_dim": 16, "output_dim": 8, "bn_splits": 4}
    method = METHODS[kind](make(name), **options).train()
    method(random_batch(method, 16, size=32)).value.backward()
    first = next(p for p in method.encoder.parameters() if p.ndim == 4)
    assert first.grad is not None and first.grad.abs().sum() > 0


def test_a_norm_with_an_activation_keeps_it_when_it_is_split() -> None:
    whole, split = make("timm:test_efficientnet"), make("timm:test_efficientnet")
    split.load_state_dict(whole.state_dict())
    split_batch_norm(split, 2)
    assert any(isinstance(module, SplitBatchNorm2d) for module in split.modules())
    assert list(split.state_dict()) == list(whole.state_dict())
    x = torch.randn(4, 3, 32, 32)
    torch.testing.assert_close(split.eval()(x), whole.eval()(x))
    twice = torch.cat([x, x])  # two equal groups have the statistics of one
    torch.testing.assert_close(split.train()(twice)[:4], whole.train()(x), rtol=1e-3, atol=1e-4)
    alone = make("timm:test_efficientnet")
    alone.load_state_dict(whole.state_dict())
    convert_sync_batchnorm_(alone)
    torch.testing.assert_close(alone.eval()(x), whole.eval()(x))


class Unusual(nn.BatchNorm2d):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) * 2


def test_a_norm_of_unknown_kind_is_not_split() -> None:
    with pytest.raises(BadInput, match="is a Unusual, which cannot be split"):
        split_batch_norm(nn.Sequential(Unusual(3)), 2)
    with pytest.raises(BadInput, match="is a Unusual, which cannot see the batches of several processes as one"):
        convert_sync_batchnorm_(nn.Sequential(Unusual(3)))


MAPS = "from torch import nn\n\ndef net():\n    return nn.Conv2d(3, 5, 3, 2)\n"


def written(tmp_path: Path, text: str) -> str:
    (tmp_path / "mine.py").write_text(text)
    return f"{tmp_path}/mine.py:net"


def test_code_of_ones_own_is_pooled(tmp_path: Path) -> None:
    name = written(tmp_path, MAPS)
    with pytest.raises(BadInput, match="name it yourself: --backbone"):
        make(name)
    register_backbone(name)
    network = make(name)
    x = torch.randn(2, 3, 16, 16)
    assert network.feature_dim == 5
    torch.testing.assert_close(network(x), network.network(x).mean((2, 3)))


def test_code_of_ones_own_may_ask_for_the_size(tmp_path: Path) -> None:
    text = (
        "from torch import nn\n\ndef net(*, size):\n    return nn.Sequential(nn.Flatten(), nn.Linear(3 * size**2, 7))\n"
    )
    name = written(tmp_path, text)
    register_backbone(name)
    assert make(name, 8).feature_dim == 7


def module(forward: str) -> str:
    """A class of one's own with this in its `forward`."""
    made = "        super().__init__()\n        self.conv = nn.Conv2d(3, 4, 3)\n"
    return (
        f"from torch import nn\n\nclass net(nn.Module):\n    def __init__(self):\n{made}\n"
        f"    def forward(self, x):\n        {forward}\n"
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("def other(): ...", "unknown function in .*known: other"),
        ("import sys\nsys.exit()", r"cannot be loaded: SystemExit\(\) in line 2$"),
        ("import not_a_module", "cannot be loaded: ModuleNotFoundError"),
        ("def net():\n    return 3", "returned a int; it has to return a torch.nn.Module"),
        ("def net():\n    raise RuntimeError('no')", r"failed: RuntimeError\('no'\) in line 2"),
        ("import torch\n\ndef net():\n    return torch.nn.Linear('a', 2)", r"failed: TypeError\(.*\) in line 4$"),
        ("x = 1\n\ndef net(:\n    return 3", "cannot be loaded: SyntaxError: invalid syntax in line 3$"),
        ("import json\njson.loads('{')", r"cannot be loaded: JSONDecodeError\(.*\) in line 2$"),
        ("def net(wide):\n    return 3", r"failed: TypeError\(.*\)$"),
        ("from torch import nn\n\ndef net():\n    return nn.Flatten(2)", r"makes \[2, 3, 1024\] of 2 pictures"),
        ("from torch import nn\n\ndef net():\n    return nn.LSTM(32, 3)", "cannot take pictures of 32 pixels"),
        (module("return [x]"), "gives a list; a backbone gives one tensor"),
        (module("return (x, x) if self.training else x"), "in train mode gives a tuple; a backbone gives one tensor"),
        (module("return x if self.training else x[:, :2]"), r"makes \[2, 2, 32, 32\] .* train mode .*\[2, 3, 32, 32\]"),
        (module("return self.conv(x).view(len(x), -1)"), r"channels_last order, which training uses \(.*reshape"),
        (
            module("return x.flatten(1)\n\n    @property\n    def feature_dim(self):\n        return 9"),
            "says that its feature_dim is 9, and makes 3072 features",
        ),
    ],
)
def test_bad_code(tmp_path: Path, text: str, sentence: str) -> None:
    name = written(tmp_path, text)
    with pytest.raises(BadInput, match=sentence):
        register_and_make(name)


def register_and_make(name: str) -> None:
    register_backbone(name)
    make(name)


def test_a_number_of_features_that_tells_itself(tmp_path: Path) -> None:
    name = written(
        tmp_path, module("return x.mean((2, 3))\n\n    @property\n    def feature_dim(self):\n        return 3")
    )
    register_backbone(name)
    assert make(name).feature_dim == 3


def test_trying_a_network_leaves_it_and_the_generator(tmp_path: Path) -> None:
    layers = "nn.LazyConv2d(4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5)"
    name = written(tmp_path, f"from torch import nn\n\ndef net():\n    return nn.Sequential({layers})\n")
    register_backbone(name)
    network = make(name)
    assert network.training
    assert network.network[0].weight.shape == (4, 3, 3, 3)
    assert network.network[1].num_batches_tracked == 0
    before = torch.get_rng_state()
    check_sizes(network, name, {20: "data.test_size"})
    assert torch.equal(torch.get_rng_state(), before)
    assert network.network[1].num_batches_tracked == 0


def test_the_number_of_features_is_the_same_at_every_size(tmp_path: Path) -> None:
    squeezed = make("torchvision:squeezenet1_1", 64)
    assert squeezed.feature_dim == 512
    check_sizes(squeezed, "squeezenet", {32: "data.test_size"})
    name = written(tmp_path, module("return self.conv(x).flatten(1)"))
    register_backbone(name)
    with pytest.raises(
        BadInput, match=r"makes \[1296\] features of a picture of 20 pixels and \[3600\] .*data\.test_size"
    ):
        check_sizes(make(name), name, {20: "data.test_size"})


@pytest.fixture(autouse=True)
def _registry_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backbones, "_code", {})
