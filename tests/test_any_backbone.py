"""Runs with backbones of libraries and of one's own, and with weights to start from."""

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from torch import Tensor

import msvq
from msvq.cli import main
from msvq.config.build import build_method
from msvq.config.resolve import Flags, resolve
from msvq.config.settings import Settings
from msvq.core.array_cache import verified, with_checksum
from msvq.core.errors import BadInput
from msvq.model import backbones
from msvq.model.resnet import ResNet
from msvq.preflight.bench import bench
from msvq.runs.encoder import SEAL, load_run_encoder
from msvq.runs.evaluate import evaluate
from msvq.runs.run_dir import INITIAL
from msvq.train.init_weights import load_initial_weights
from msvq.train.trainer import Trainer

pytest.importorskip("timm")

TINY = ["data.limit=64", "data.size=32", "train.batch_size=16", "method.queue_size=32", "method.hidden_dim=8"]
TINY += ["train.checkpoint_every=2", "analyze.map=0", "train.log_every=1"]
RESNET = [*TINY, "backbone.name=resnet18", "backbone.width=2", "data.size=16"]
OWN = """
from torch import nn


def net():
    open({mark!r}, "a").write("x")
    return nn.Sequential(nn.Conv2d(3, 6, 4, 4), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.5))
"""
Says = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _registry_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backbones, "_code", {})


@pytest.fixture
def msvq_says(capsys: pytest.CaptureFixture[str]) -> Says:
    def call(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        said = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, said.out, said.err

    return call


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain run, to be copied."""
    return msvq.pretrain(out=tmp_path_factory.mktemp("runs") / "x", epochs=1, overrides=RESNET).path


def flags(settings: list[str]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


def interrupted(monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """Begin a run that is stopped in the middle of its second epoch."""
    train_step = Trainer.train_step

    def stopping(self: Trainer, *args: Any) -> Any:
        if self.step == 5:
            raise KeyboardInterrupt
        return train_step(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", stopping)
        with pytest.raises(KeyboardInterrupt):
            msvq.pretrain(**options)


def weights(run: Path) -> dict[str, Tensor]:
    return load_file(run / "encoder.safetensors")


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("name", ["timm:test_vit", "timm:test_convnext"])
def test_msvq_trains_and_resumes_to_the_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    options: dict[str, Any] = {"backbone": name, "epochs": 2, "overrides": TINY}
    whole = msvq.pretrain(out=tmp_path / "whole", **options)
    interrupted(monkeypatch, out=tmp_path / "parts", **options)
    parts = msvq.pretrain(out=tmp_path / "parts", resume=True)
    assert same(weights(whole.path), weights(parts.path))
    opened = msvq.load(whole.path)
    assert opened.config.backbone.name == opened.metadata.backbone.name == name
    assert opened.embed(torch.zeros(2, 40, 40, 3).byte().numpy()).shape == (2, opened.metadata.feature_dim)
    assert load_run_encoder(opened, "best").network is not None
    fresh = build_method(opened.config, 32).encoder.state_dict()
    assert not same(fresh, weights(whole.path))


def test_dropout_is_the_same_after_resuming_and_leaves_the_global_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.py").write_text(OWN.format(mark=str(tmp_path / "mark")))
    options: dict[str, Any] = {"backbone": f"{tmp_path}/own.py:net", "epochs": 2, "overrides": TINY}
    whole = msvq.pretrain(out=tmp_path / "whole", **options)
    interrupted(monkeypatch, out=tmp_path / "parts", **options)
    torch.rand(7)  # as another process would have drawn otherwise
    parts = msvq.pretrain(out=tmp_path / "parts", resume=True, backbone=options["backbone"])
    assert same(weights(whole.path), weights(parts.path))


def test_code_runs_only_when_it_is_named(tmp_path: Path, msvq_says: Says, monkeypatch: pytest.MonkeyPatch) -> None:
    mark, out, own = tmp_path / "mark", tmp_path / "run", f"{tmp_path}/own.py:net"
    (tmp_path / "own.py").write_text(OWN.format(mark=str(mark)))
    words = ["--epochs", "1", *flags(TINY)]
    assert msvq_says("pretrain", "--out", out, "--backbone", own, *words)[0] == 0
    monkeypatch.setattr(backbones, "_code", {})  # as in a new process
    mark.unlink()
    for command in (
        ("evaluate", out, "--set", "k=5"),
        ("analyze", out),
        ("pretrain", "--resume", "--out", out),
        ("pretrain", "--recipe", out / "config.yaml", "--out", tmp_path / "again"),
    ):
        code, _, err = msvq_says(*command)
        assert code == 2 and f"name it yourself: --backbone {own}" in err, command
    with pytest.raises(BadInput, match="name it yourself: --backbone"):
        _ = msvq.load(out).encoder
    assert msvq_says("report", out)[0] == 0
    assert not mark.exists()

    moved = f"{tmp_path}/moved.py:net"
    shutil.move(tmp_path / "own.py", tmp_path / "moved.py")
    assert msvq_says("evaluate", out, "--set", "k=5", "--backbone", moved)[0] == 0
    assert msvq_says("analyze", out, "--backbone", moved)[0] == 0
    assert msvq_says("embed", out, "--split", "test", "--out", tmp_path / "e.npz", "--backbone", moved)[0] == 0
    assert msvq_says("export", out, "--format", "torchscript", "--out", tmp_path / "e", "--backbone", moved)[0] == 0
    last = out / "checkpoints" / "last.ckpt"
    assert msvq_says("evaluate", out, "--set", "k=5", "--checkpoint", last, "--backbone", moved)[0] == 0
    assert msvq.load(out, backbone=moved).encoder(torch.zeros(2, 3, 32, 32)).shape == (2, 6)
    assert msvq_says("pretrain", "--resume", "--out", out, "--backbone", moved)[0] == 0


def test_a_finished_run_is_returned_with_the_code_that_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, own, moved = tmp_path / "run", f"{tmp_path}/own.py:net", f"{tmp_path}/moved.py:net"
    (tmp_path / "own.py").write_text(OWN.format(mark=str(tmp_path / "mark")))
    msvq.pretrain(out=out, backbone=own, epochs=1, overrides=TINY)
    monkeypatch.setattr(backbones, "_code", {})  # as in a new process
    shutil.move(tmp_path / "own.py", tmp_path / "moved.py")
    run = msvq.pretrain(out=out, auto_resume=True, backbone=moved)
    assert run.encoder.feature_dim == 6

    changed = tmp_path / "changed.py"
    for old, new, sentence in (
        ("3, 6, 4, 4", "3, 6, 8, 8", r"network\.0\.weight is \[6, 3, 4, 4\], not \[6, 3, 8, 8\]"),
        ("nn.BatchNorm2d(6), ", "", r"there is no place for network"),
        ("nn.Dropout(0.5)", "nn.Upsample(9), nn.PixelUnshuffle(3)", "it is of one with 6 features, not 54"),
    ):
        changed.write_text((tmp_path / "moved.py").read_text().replace(old, new))
        with pytest.raises(BadInput, match=rf"does not fit .*changed\.py:net as it is now: {sentence}"):
            _ = msvq.load(out, backbone=f"{changed}:net").encoder


@pytest.mark.parametrize("place", ["config.yaml", "encoder.json"])
def test_a_run_that_names_code_runs_nothing(made: Path, tmp_path: Path, msvq_says: Says, place: str) -> None:
    mark, out = tmp_path / "mark", Path(shutil.copytree(made, tmp_path / "run"))
    evil = out / "evil.py"
    evil.write_text(f"open({str(mark)!r}, 'w')\ndef net(): ...\n")
    named = {"name": f"{evil}:net", "width": 64, "stem": "auto", "init": f"{evil}:net"}
    if place == "config.yaml":
        config = yaml.safe_load((out / place).read_text())
        (out / place).write_text(yaml.safe_dump({**config, "backbone": named}))
    else:
        known = verified(json.loads((out / place).read_text()), SEAL)
        (out / place).write_text(json.dumps(with_checksum({**known, "backbone": named}, SEAL)))
    for words in (("evaluate", out), ("analyze", out), ("report", out), ("pretrain", "--resume", "--out", out)):
        if place == "config.yaml" or words[0] == "evaluate":  # the others do not look at the card
            code, _, err = msvq_says(*words, *flags(["k=5"] if words[0] == "evaluate" else []))
            refused = words[0] in ("analyze", "pretrain") if place == "config.yaml" else True
            assert code == (2 if refused else 0), (words, err)
    with pytest.raises(BadInput, match=r"name it yourself|of another network than the run's"):
        evaluate(
            msvq.load(out), checkpoint=str(out / "checkpoints" / "last.ckpt") if place == "config.yaml" else "last"
        )
    assert not mark.exists()


def test_a_backbone_that_is_set_counts_more_than_the_flag(tmp_path: Path) -> None:
    changed = ["backbone.name=resnet34", "data.limit=64"]
    run = msvq.pretrain(out=tmp_path, recipe="smoke", epochs=1, backbone="resnet18", overrides=changed)
    assert run.config.backbone.name == run.metadata.backbone.name == "resnet34"


def test_another_backbone_than_the_runs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("backbone: {name: resnet18}\n")
    with pytest.raises(BadInput, match="the run is of backbone resnet18, not timm:test_vit; leave out --backbone"):
        msvq.load(tmp_path, backbone="timm:test_vit")


# Settings.


def test_a_recipes_width_and_stem_are_not_another_networks() -> None:
    settings = resolve(recipe="demo", backbone="timm:test_vit").backbone
    assert (settings.name, settings.width, settings.stem) == ("timm:test_vit", 64, "auto")
    wide = resolve(recipe="demo", backbone="resnet50").backbone
    assert (wide.name, wide.width, wide.stem) == ("resnet50", 32, "small")
    with pytest.raises(BadInput, match=r"backbone\.width is for resnet8"):
        resolve(recipe="demo", backbone="timm:test_vit", overrides=["backbone.width=8"])
    assert resolve(recipe="demo", overrides=["backbone.name=resnet34"]).backbone.name == "resnet34"


@pytest.mark.parametrize(
    ("name", "settings", "sentence"),
    [
        ("resnet19", [], "did you mean 'resnet18'"),
        ("timm:test_vit", ["train.resolution=[[0, 16], [0.5, 24]]"], "24 pixels .*train.resolution.*null"),
        ("timm:test_vit", ["data.test_size=40"], "40 pixels .*data.test_size"),
        ("timm:test_vit", ["augment.weak.scale=0.7"], r"22 pixels .*augment\.weak\.scale"),
        ("timm:test_vit", ["method.name=mocov2", "augment.weak.scale=0.7"], r"22 pixels .*augment\.weak\.scale"),
        ("torchvision:vit_b_16", ["data.test_size=48"], "48 pixels .*data.test_size"),
    ],
)
def test_bad_backbones_leave_nothing(
    tmp_path: Path, msvq_says: Says, name: str, settings: list[str], sentence: str
) -> None:
    out = tmp_path / "run"
    code, _, err = msvq_says("pretrain", "--out", out, "--backbone", name, *flags([*TINY, *settings]))
    assert code == 2 and err.count("\n") == 1
    with pytest.raises(BadInput, match=sentence):
        raise BadInput(err)
    assert not out.exists()


def test_bench_times_any_backbone() -> None:
    report = bench(Flags(data="patterns", backbone="timm:test_vit", overrides=["data.limit=96", *TINY[1:]]), steps=3)
    assert report["backbone"] == "timm:test_vit"


# Weights to start from.


def small(**backbone: Any) -> Settings:
    settings = resolve(overrides=RESNET)
    return settings.model_copy(update={"backbone": settings.backbone.model_copy(update=backbone)})


def test_student_and_teachers_start_from_the_weights(tmp_path: Path) -> None:
    theirs = ResNet(width=2).state_dict()
    torch.save({"state_dict": {f"module.{name}": value for name, value in theirs.items()}}, tmp_path / "x.pth")
    settings = small(init=str(tmp_path / "x.pth"))
    start = load_initial_weights(settings, 16)
    assert start is not None and same(start.weights, theirs)
    method: Any = build_method(settings, 16, start.weights)
    for network in (method.student, method.teachers[0].network, method.teachers[1].network):
        assert torch.equal(network.backbone.layer3[1].conv2.weight, theirs["layer3.1.conv2.weight"])


def test_init_is_told_kept_and_recorded(tmp_path: Path, msvq_says: Says) -> None:
    theirs = ResNet(width=2).state_dict()
    save_file({**theirs, "fc.weight": torch.zeros(3, 16)}, tmp_path / "x.safetensors")
    out, words = tmp_path / "run", ["--epochs", "1", *flags(RESNET)]
    code, said, err = msvq_says("pretrain", "--out", out, "--init", tmp_path / "x.safetensors", *words)
    assert code == 0, err
    assert f"all of its {len(theirs)} tensors; left out: fc.weight" in said
    assert same(load_file(out / INITIAL), theirs)
    known = json.loads((out / "environment.json").read_text())["init"]
    assert (known["from"], known["left_out"]) == (str(tmp_path / "x.safetensors"), ["fc.weight"])
    assert not same(weights(out), theirs)

    (tmp_path / "x.safetensors").unlink()  # nothing looks at it again
    assert msvq.load(out).encoder is not None
    assert msvq_says("analyze", out)[0] == 0
    assert msvq_says("pretrain", "--resume", "--out", out)[0] == 0
    code, _, err = msvq_says("pretrain", "--resume", "--out", out, "--init", tmp_path / "other.pth")
    assert code == 2 and "cannot resume with another backbone.init" in err
    start = load_initial_weights(small(init=str(out)), 16)  # an earlier run
    assert start is not None and same(start.weights, weights(out))
    (out / "encoder.safetensors").unlink()
    start = load_initial_weights(small(init=str(out)), 16)  # one that has not finished
    assert start is not None and same(start.weights, load_run_encoder(msvq.load(out)).network.state_dict())
    start = load_initial_weights(small(init=str(out / "checkpoints" / "last.ckpt")), 16)
    assert start is not None and start.matched.prefix == "method.student.backbone."


def test_weights_of_a_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def fetch(name: str, size: int) -> dict[str, Tensor]:
        asked.append((name, size))
        return ResNet(width=2, stem="standard").state_dict()

    settings = small(init="library", stem="standard")
    with monkeypatch.context() as patch:
        patch.setattr("msvq.train.init_weights.library_weights", fetch)
        start = load_initial_weights(settings, 16)
        assert start is not None and start.source == "library" and asked == [("resnet18", 16)]
        with pytest.raises(BadInput, match=r"backbone\.stem=standard"):
            load_initial_weights(small(init="library"), 16)

    def refuse(*_: object, **__: object) -> None:
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    with pytest.raises(BadInput, match=r"could not be had .*the network is needed once"):
        load_initial_weights(small(init="library"), 16)


def test_a_recipe_cannot_ask_for_the_network(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("backbone: {name: resnet18, init: library}\n")
    with pytest.raises(BadInput, match="name it yourself: --init library"):
        resolve(recipe=recipe)
    assert resolve(recipe=recipe, init="library").backbone.init == "library"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("nothing.pth", "there is nothing to start from"), ("folder", "is not a run"), ("x.txt", "no file of weights")],
)
def test_nothing_to_start_from(tmp_path: Path, msvq_says: Says, name: str, sentence: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "x.txt").write_text("hello")
    out = tmp_path / "run"
    code, _, err = msvq_says("pretrain", "--out", out, "--init", tmp_path / name, *flags(RESNET))
    assert code == 2 and sentence in err and err.count("\n") == 1
    assert not out.exists()
