"""Weights to start from, under the names that files have them."""

import argparse
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import Tensor, nn

from msvq.core.errors import BadInput
from msvq.model.backbones import BackboneSettings, make_backbone
from msvq.model.initial import match_state_dict, read_weights
from msvq.model.pooling import Pooled
from msvq.model.resnet import ResNet

State = dict[str, Tensor]


def state(**options: Any) -> State:
    return ResNet(width=2, **options).state_dict()


def head(prefix: str = "", name: str = "fc") -> State:
    return {f"{prefix}{name}.weight": torch.zeros(4, 16), f"{prefix}{name}.bias": torch.zeros(4)}


def under(prefix: str, values: State) -> State:
    return {f"{prefix}{name}": value for name, value in values.items()}


def same(left: State, right: State) -> bool:
    return list(left) == list(right) and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("prefix", ["", "module.", "net.", "encoder_q.", "module.encoder_q.net.", "backbone."])
def test_the_prefix_is_found(prefix: str) -> None:
    theirs = state()
    found = match_state_dict(state(), under(prefix, theirs) | head(prefix), "x.pth")
    assert same(found.weights, theirs)
    assert (found.prefix, found.left_out, found.elsewhere) == (prefix, ["fc.weight", "fc.bias"], 0)


def test_what_learns_goes_before_its_teacher() -> None:
    student, teacher = state(), state()
    file = under("module.encoder_k.", teacher) | under("module.encoder_q.", student) | {"module.queue": torch.zeros(3)}
    found = match_state_dict(state(), file, "x.pth")
    assert same(found.weights, student)
    assert (found.prefix, found.elsewhere) == ("module.encoder_q.", len(teacher) + 1)


def in_a_row(network: nn.Module) -> nn.Sequential:
    """Its children, without what stands for no max-pool: such a state has numbers for names."""
    return nn.Sequential(*(child for child in network.children() if not isinstance(child, nn.Identity)))


@pytest.mark.parametrize("prefix", ["", "net.net.", "module.net.net.", "f."])
@pytest.mark.parametrize(("stem", "first"), [("small", "3"), ("small-pool", "4"), ("standard", "4")])
def test_children_in_a_row_are_known(prefix: str, stem: Any, first: str) -> None:
    theirs = ResNet(width=2, stem=stem)
    file = under(prefix, in_a_row(theirs).state_dict()) | head(prefix="g.")
    assert f"{prefix}{first}.0.conv1.weight" in file
    found = match_state_dict(state(stem=stem), file, "x.pth")
    assert same(found.weights, theirs.state_dict())
    assert (found.prefix, found.left_out) == (prefix, [] if prefix else ["g.fc.weight", "g.fc.bias"])
    assert found.layout.endswith("without a max-pool" if first == "3" else "with a max-pool")


@pytest.mark.parametrize("pool", [False, True])
def test_a_row_of_torchvisions_own_children_gives_the_same_features(pool: bool) -> None:
    theirs = torchvision.models.resnet18()
    theirs.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
    del theirs.fc
    if not pool:
        del theirs.maxpool
    row = in_a_row(theirs).eval()
    own = ResNet(stem="small-pool" if pool else "small").eval()
    own.load_state_dict(match_state_dict(own.state_dict(), under("net.net.", row.state_dict()), "x").weights)
    pictures = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(own(pictures), row(pictures).flatten(1))


@pytest.mark.parametrize("teachers", [("f_t1", "f_t2"), ("encoder_k", "encoder_p"), ("backbone_momentum",)])
def test_the_authors_file_gives_its_student(tmp_path: Path, teachers: tuple[str, ...]) -> None:
    student = ResNet(width=2)
    optimiser = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.9)
    student(torch.zeros(2, 3, 16, 16)).sum().backward()
    optimiser.step()
    model = {"queue1.labels": torch.zeros(5), **under("g_s.", nn.Sequential(nn.Linear(16, 4)).state_dict())}
    for name in teachers:  # before the student, which is to be found all the same
        model |= under(f"{name}.net.", in_a_row(ResNet(width=2)).state_dict())
    model |= under("net.net.", in_a_row(student).state_dict())
    torch.save({"model": model, "optimizer": optimiser.state_dict(), "epoch": 200}, tmp_path / "msvq_200.pth")
    found = match_state_dict(state(), read_weights(tmp_path / "msvq_200.pth"), "x")
    assert same(found.weights, student.state_dict())
    assert (found.prefix, found.left_out) == ("model.net.net.", [])


def test_what_a_profiler_counted_is_no_weight() -> None:
    theirs = in_a_row(ResNet(width=2)).state_dict()
    counted = {f"f.{name}.total_ops": torch.zeros(1) for name in ("0", "3", "3.0.conv1", "6.1")}
    found = match_state_dict(state(), {"total_ops": torch.zeros(1), **counted, **under("f.", theirs)}, "x")
    assert found.left_out == []


def test_a_pooled_network_takes_the_plain_names() -> None:
    theirs = state()
    found = match_state_dict(Pooled(ResNet(width=2)).state_dict(), theirs, "x.pth")
    assert same(found.weights, under("network.", theirs))


def test_old_files_do_not_count_batches() -> None:
    file = {name: value for name, value in state().items() if "num_batches" not in name}
    assert list(match_state_dict(state(), file, "x").weights) == list(state())


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        (state(stem="standard"), r"conv1.weight is \[2, 3, 7, 7\], not \[2, 3, 3, 3\].*backbone.stem=standard"),
        (ResNet(width=4).state_dict(), r"other shapes: conv1.weight is \[4, 3, 3, 3\], not .* and \d+ more"),
        (ResNet((3, 4, 6, 3), width=2).state_dict(), r"without a place: layer1.2.conv1.weight.* and \d+ more"),
        ({k: v for k, v in state().items() if not k.startswith("layer4.1")}, "missing: layer4.1.conv1.weight"),
        (
            in_a_row(ResNet((3, 4, 6, 3), width=2)).state_dict(),
            r"\(.*, without a max-pool\); without a place: layer1.2.conv1",
        ),
        (
            {k: v for k, v in under("f.", in_a_row(ResNet(width=2)).state_dict()).items() if "f.6.1" not in k},
            r"nearest fit is 108 of 120 tensors, called f\.\* there \(torchvision's.*\); missing: layer4\.1\.conv1",
        ),
        ({"a": torch.zeros(3)}, r"fit is 0 of 120 tensors; missing: conv1.weight, bn1.weight, bn1.bias and \d+ more"),
        ({}, "missing: conv1.weight"),
    ],
)
def test_what_does_not_fit_is_named(file: State, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        match_state_dict(state(), file, "--init x.pth")


def test_torchvisions_own_resnet_fits_the_standard_stem() -> None:
    own = make_backbone(BackboneSettings(stem="standard"), 32).state_dict()
    theirs = torchvision.models.resnet18().state_dict()
    found = match_state_dict(own, theirs, "library")
    assert found.left_out == ["fc.weight", "fc.bias"]
    assert torch.equal(found.weights["conv1.weight"], theirs["conv1.weight"])


def test_a_classifier_beside_what_is_kept_of_a_head_is_left_out() -> None:
    timm = pytest.importorskip("timm")
    own = make_backbone(BackboneSettings(name="timm:test_convnext"), 32).state_dict()
    found = match_state_dict(own, timm.create_model("test_convnext", num_classes=5).state_dict(), "x")
    assert found.left_out == ["head.fc.weight", "head.fc.bias"]
    mobile = make_backbone(BackboneSettings(name="torchvision:convnext_tiny"), 32).state_dict()
    found = match_state_dict(mobile, torchvision.models.convnext_tiny().state_dict(), "x")
    assert found.left_out == ["classifier.2.weight", "classifier.2.bias"]


def test_a_small_stem_for_weights_of_a_small_stem() -> None:
    with pytest.raises(BadInput, match=r"backbone\.stem=small \(or small-pool\)"):
        match_state_dict(state(stem="standard"), state(), "x")


@pytest.mark.parametrize("nest", [(), ("state_dict",), ("model",), ("checkpoint", "model")])
def test_files_of_torch_save_may_be_nested(tmp_path: Path, nest: tuple[str, ...]) -> None:
    theirs = state()
    value: Any = under("module.", theirs)
    for key in reversed(nest):
        value = {key: value, "epoch": 3, "args": argparse.Namespace(lr=0.1), "optimizer": {"state": {0: {"m": None}}}}
    torch.save(value, tmp_path / "x.pth")
    found = match_state_dict(state(), read_weights(tmp_path / "x.pth"), "x.pth")
    assert same(found.weights, theirs)
    assert found.prefix == ".".join([*nest, "module."])


def test_safetensors(tmp_path: Path) -> None:
    theirs = state()
    save_file(theirs, tmp_path / "x.safetensors")
    assert same(match_state_dict(state(), read_weights(tmp_path / "x.safetensors"), "x").weights, theirs)


class Hostile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".ckpt", ".safetensors"])
def test_a_file_cannot_run_code(tmp_path: Path, suffix: str) -> None:
    mark, path = tmp_path / "mark", tmp_path / f"evil{suffix}"
    for write in (torch.save, lambda value, file: file.write_bytes(pickle.dumps(value))):
        write({"state_dict": Hostile(mark)}, path)
        with pytest.raises(BadInput, match="file of weights"):
            read_weights(path)
    assert not mark.exists()


TABLE, RECIPE = b"name,label\na.jpg,3\nb.jpg,4\n", b"train:\n  epochs: 20\n  batch_size: 256\n"
OTHERS = [TABLE, RECIPE, b"# a comment\n(1, 2)\n", b"[1, 2]", b"{}\n", b"0.1 0.2\n", b"Jx", b"\x80\x02."]


@pytest.mark.parametrize("content", [b"", b"not weights", b"PK\x03\x04broken", *OTHERS])
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_damaged_file(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"x{suffix}"
    path.write_bytes(content)
    with pytest.raises(BadInput, match="file of weights"):
        read_weights(path)


@pytest.mark.parametrize("suffix", [".pth", ".old.pth", ".safetensors"])
def test_a_file_that_was_cut_short(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    if suffix == ".safetensors":
        save_file(state(), path)
    else:
        torch.save(state(), path, _use_new_zipfile_serialization=suffix == ".pth")
    whole = path.read_bytes()
    for end in {*range(1, 200, 7), *range(200, len(whole), len(whole) // 40)}:
        path.write_bytes(whole[:end])
        with pytest.raises(BadInput, match="file of weights"):
            read_weights(path)
