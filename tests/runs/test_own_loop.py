"""A training loop of one's own ends in a run, and the run is one like any other."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import msvq
from msvq.cli import main
from msvq.data.patterns import make_patterns
from msvq.methods import MSVQ
from msvq.model.resnet import ResNet

Fed = dict[str, Any]
NETWORK = """
from torch import nn

class Small(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 6, 5, 2), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 9, 3, 2))

def other():
    return nn.Sequential(nn.Conv2d(3, 6, 5, 2), nn.BatchNorm2d(6), nn.GELU(), nn.Conv2d(6, 9, 3, 2))
"""


class Small(nn.Sequential):
    """Maps [N, 9, h, w], as in the file above."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 6, 5, 2), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 9, 3, 2))


def trained() -> MSVQ:
    """A few steps of a plain loop."""
    torch.manual_seed(1)
    method = MSVQ(ResNet(width=4), queue_size=32, bn_splits=2)
    for parameter in method.parameters():
        parameter.data += 0.01 * torch.randn_like(parameter)
    return method


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Fed:
    """What the loop was fed with, and how."""
    file = tmp_path_factory.mktemp("data") / "pictures.npz"
    (images, labels), (test_images, test_labels) = make_patterns(100, seed=0), make_patterns(50, seed=1)
    np.savez(file, images=images, labels=labels, test_images=test_images, test_labels=test_labels)
    return {"data": file, "size": 32, "mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, fed: Fed) -> msvq.Run:
    return msvq.save_run(trained(), tmp_path_factory.mktemp("own") / "run", **fed)


def test_a_run_has_the_features_of_the_encoder(run: msvq.Run) -> None:
    pictures = np.random.default_rng(0).integers(256, size=(5, 32, 32, 3), dtype=np.uint8)
    view = (torch.from_numpy(pictures).permute(0, 3, 1, 2) / 255 - 0.5) / 0.25
    expected: Tensor = trained().encoder.eval()(view)
    np.testing.assert_allclose(msvq.load(run.path).embed(pictures), expected.detach().numpy(), rtol=1e-4, atol=1e-5)
    assert (run.metadata.method, run.metadata.backbone.width) == ("msvq", 4)


def test_a_run_says_nothing_of_how_it_was_trained(run: msvq.Run) -> None:
    assert run.environment()["made_by"] == "msvq.save_run"
    assert not {"seed", "precision", "device"} & run.environment().keys()
    assert "batch_size" not in (run.path / "config.yaml").read_text()
    assert "batch_size" not in run.report().read_text()


def test_a_run_is_searched_judged_shown_and_exported(run: msvq.Run, tmp_path: Path) -> None:
    found = run.search("test 3", top=2)
    assert found.answers[0].hits[0].name == "test 3"
    assert 0 <= run.knn(k=5).top1 <= 100
    assert "knn-5-t0.1/1" in run.report().read_text()
    assert run.export("safetensors", tmp_path / "export", licence="mit").is_dir()
    with pytest.raises(msvq.BadInput, match="no checkpoint, and so no teachers and queues to look at"):
        run.analyze()


def test_the_numbers_of_its_own_pictures_are_normalised_as_it_was_told(fed: Fed, tmp_path: Path) -> None:
    told = fed | {"mean": (0.1, 0.2, 0.3), "std": (0.5, 0.6, 0.7)}
    run = msvq.save_run(trained(), tmp_path / "run", **told)
    features = run.embed_source(fed["data"])
    test = [name.startswith("test") for name in features.names]
    assert run.knn(k=5).record["num_test"] == sum(test)
    unit = features.features / np.linalg.norm(features.features, axis=1, keepdims=True)
    votes = unit[test] @ unit[np.logical_not(test)].T
    nearest = np.argsort(-votes, axis=1)[:, :1]
    guessed = features.labels[np.logical_not(test)][nearest[:, 0]]
    assert run.knn(k=1).top1 == pytest.approx(100 * float((guessed == features.labels[test]).mean()), abs=0.6)


def test_a_network_of_ones_own_is_built_by_its_file(fed: Fed, tmp_path: Path) -> None:
    code = tmp_path / "networks.py"
    code.write_text(NETWORK)
    with pytest.raises(msvq.BadInput, match=r"how to build a Small again .* backbone='file.py:NAME'"):
        msvq.save_run(Small(), tmp_path / "run", **fed)
    with pytest.raises(msvq.BadInput, match="has the weights of this Small, but gives other features"):
        msvq.save_run(Small(), tmp_path / "run", backbone=f"{code}:other", **fed)
    assert not (tmp_path / "run").exists()
    network = Small()
    run = msvq.save_run(network, tmp_path / "run", backbone=f"{code}:Small", method="mine", **fed)
    pictures = np.zeros((1, 32, 32, 3), np.uint8)
    expected = network.eval()(torch.full((1, 3, 32, 32), -2.0)).mean((2, 3))
    np.testing.assert_allclose(run.embed(pictures), expected.detach().numpy(), rtol=1e-4, atol=1e-5)
    assert repr(run) == f"Run({str(tmp_path / 'run')!r}: mine on {fed['data']})"
    words = [sys.executable, "-m", "msvq", "search", str(run.path), "--query", "test 3", "--top", "1"]
    refused = subprocess.run(words, capture_output=True, text=True, check=False)
    assert refused.returncode == 2 and "name it yourself: --backbone" in refused.stderr


def test_nothing_is_written_over(run: msvq.Run, fed: Fed, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(msvq.BadInput, match="holds a run already"):
        msvq.save_run(trained(), run.path, **fed)
    copy = tmp_path / "copy"
    shutil.copytree(run.path, copy)
    (copy / "notes.txt").write_text("mine")
    msvq.save_run(trained(), copy, overwrite=True, **fed)
    assert (copy / "notes.txt").read_text() == "mine"
    with pytest.raises(SystemExit) as ended:
        main(["pretrain", "--out", str(copy), "--resume"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"data": "nowhere/at/all"}, "there is no file or folder"),
        ({"mean": (0.5, 0.5)}, "mean and std three numbers each"),
        ({"std": (0, 1, 1)}, "mean and std three numbers each"),
        ({"size": 0}, "size is a number of pixels"),
    ],
)
def test_what_cannot_be_is_told_before_anything_is_written(wrong: Fed, says: str, fed: Fed, tmp_path: Path) -> None:
    with pytest.raises(msvq.BadInput, match=says):
        msvq.save_run(ResNet(width=2), tmp_path / "run", **(fed | wrong))
    assert not (tmp_path / "run").exists()


def test_what_is_no_module_is_told(fed: Fed, tmp_path: Path) -> None:
    with pytest.raises(msvq.BadInput, match=r"is a torch\.nn\.Module .* not a dict"):
        msvq.save_run(cast(Any, {"a": 1}), tmp_path / "run", **fed)
    assert not list(tmp_path.iterdir())
