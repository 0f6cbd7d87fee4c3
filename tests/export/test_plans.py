"""Networks of torchvision and timm, and code of one's own: each goes to the formats that can hold it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from torch import nn
from torchvision import models

import msvq
from msvq.export.folder import write_folder
from msvq.export.library_code import build
from msvq.export.network import ResNet
from msvq.export.plans import make_plan, write_onnx, write_script
from msvq.export.verify import verify
from msvq.model.backbones import BackboneSettings, make_backbone
from msvq.runs.encoder import LoadedEncoder

MakeSubject = Callable[..., LoadedEncoder]


def exported(subject: LoadedEncoder, format: str, folder: Path) -> float:
    write_folder(folder, subject, make_plan(format, subject), format=format)
    return float(verify(folder, subject)["max_abs_difference"])


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50"])
def test_the_code_that_is_handed_over_is_the_standard_network(name: str) -> None:
    theirs, ours = models.get_model(name, weights=None).eval(), ResNet(name, width=64, stem="standard").eval()
    theirs.fc = nn.Identity()
    ours.load_state_dict(theirs.state_dict())
    pictures = torch.randn(2, 3, 64, 64)
    with torch.inference_mode():
        torch.testing.assert_close(ours(pictures), theirs(pictures), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("stem", ["small", "small-pool"])
def test_the_code_that_is_handed_over_is_our_network(stem: str) -> None:
    settings = BackboneSettings.model_validate({"name": "resnet18", "width": 4, "stem": stem})
    original, ours = make_backbone(settings, 32).eval(), ResNet("resnet18", width=4, stem=stem).eval()
    ours.load_state_dict(original.state_dict())
    pictures = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        torch.testing.assert_close(ours(pictures), original(pictures))


def test_a_network_of_timm_is_opened_as_a_local_folder(subject_of: MakeSubject, tmp_path: Path) -> None:
    encoder = timm.create_model("test_vit", num_classes=0, img_size=16, dynamic_img_size=True)
    subject = subject_of(encoder, name="timm:test_vit")
    assert exported(subject, "timm", tmp_path) <= 1e-4
    assert "local-dir:" in (tmp_path / "example.py").read_text()
    read = json.loads((tmp_path / "config.json").read_text())
    assert read["model_args"] == {"img_size": 16, "dynamic_img_size": True}
    assert read["pretrained_cfg"]["input_size"] == [3, 32, 32]


def test_a_network_of_torchvision_keeps_the_norm_of_its_head(subject_of: MakeSubject) -> None:
    encoder = models.convnext_tiny(weights=None)
    encoder.classifier = encoder.classifier[:2]
    plan = make_plan("torchvision", subject_of(encoder, name="torchvision:convnext_tiny"))
    assert "encoder.classifier = encoder.classifier[:2]" in plan.lines
    network = models.vgg11(weights=None)
    network.avgpool, network.classifier = nn.AdaptiveAvgPool2d(1), nn.Sequential()
    plan = make_plan("torchvision", subject_of(network, name="torchvision:vgg11"))
    assert "encoder.avgpool = torch.nn.AdaptiveAvgPool2d(1)" in plan.lines
    assert "encoder.classifier = encoder.classifier[:0]" in plan.lines


def test_a_network_of_torchvision_keeps_the_pool_in_its_head(subject_of: MakeSubject) -> None:
    encoder = make_backbone(BackboneSettings(name="torchvision:squeezenet1_1"), 64)
    lines = build("torchvision", subject_of(encoder, name="torchvision:squeezenet1_1")).lines()
    made: dict[str, Any] = {"torch": torch, "torchvision": torchvision}
    exec("\n".join(lines), made)  # as the example of the export does
    theirs = made["encoder"].eval()
    theirs.load_state_dict(encoder.state_dict())
    pictures = torch.randn(2, 3, 64, 64)  # large enough for a map of more than one pixel
    with torch.inference_mode():
        torch.testing.assert_close(theirs(pictures), encoder(pictures))


def test_a_resnet_with_the_standard_stem_is_timms_own(subject_of: MakeSubject) -> None:
    encoder = models.resnet18(weights=None)
    encoder.fc = nn.Identity()
    plan = make_plan("timm", subject_of(encoder, name="resnet18", width=64, stem="standard"))
    assert (plan.library, plan.config["architecture"]) == ("timm", "resnet18")
    plan = make_plan("torchvision", subject_of(encoder, name="resnet18", width=64, stem="standard"))
    assert [line for line in plan.lines if "Conv2d" in line] == []


def test_a_network_goes_to_its_own_library_alone(subject_of: MakeSubject) -> None:
    encoder = timm.create_model("test_resnet", num_classes=0)
    subject = subject_of(encoder, name="timm:test_resnet")
    with pytest.raises(
        msvq.BadInput, match=r"not a network of torchvision; .*: safetensors, timm, hf, onnx, torchscript"
    ):
        make_plan("torchvision", subject)
    with pytest.raises(msvq.BadInput, match="has other layers; formats that can hold it: onnx, torchscript"):
        make_plan("timm", subject_of(nn.Sequential(encoder), name="timm:test_resnet"))


def test_code_of_ones_own_goes_with_its_weights(subject_of: MakeSubject, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from torch import nn\n\n"
        "def little(*, size):\n"
        "    return nn.Sequential(nn.Conv2d(3, size // 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())\n"
    )
    encoder = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    subject = subject_of(encoder, name=f"{file}:little")
    folder = tmp_path / "export"
    folder.mkdir()
    assert exported(subject, "safetensors", folder) <= 1e-4
    assert "encoder = little(size=16)" in (folder / "example.py").read_text()
    assert str(tmp_path) not in (folder / "config.json").read_text()
    with pytest.raises(msvq.BadInput, match=r"'mine\.py:little' is not a network of timm"):
        make_plan("timm", subject)
    file.write_text("import msvq\n" + file.read_text())
    with pytest.raises(msvq.BadInput, match=r"cannot be loaded back .*msvq"):
        exported(subject, "safetensors", folder)


def test_a_network_of_timm_goes_to_onnx(subject_of: MakeSubject, tmp_path: Path) -> None:
    encoder = timm.create_model("test_vit", num_classes=0, img_size=32, dynamic_img_size=True)
    assert exported(subject_of(encoder, name="timm:test_vit"), "onnx", tmp_path) <= 1e-4


class Undecided(nn.Module):
    """A network whose steps depend on what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.layer(x).mean((2, 3))
        return features if features.sum() > 0 else -features


class Failing(nn.Module):
    """A network that fails under another number of pictures than one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > 1:
            raise KeyError("one at a time\nplease")
        return x.mean((2, 3))


def test_a_network_that_a_format_cannot_hold_is_one_sentence(
    subject_of: MakeSubject, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    undecided = subject_of(Undecided(), name="mine.py:undecided")
    with pytest.raises(msvq.BadInput, match=r"^onnx cannot hold this network \(.*data-dependent.*\); try --format .*$"):
        write_onnx(undecided, tmp_path)
    with pytest.raises(msvq.BadInput, match=r"^torchscript cannot hold this network \(.*one at a time.*\); try .*$"):
        write_script(subject_of(Failing(), name="mine.py:failing"), tmp_path)
    assert capfd.readouterr() == ("", "")
