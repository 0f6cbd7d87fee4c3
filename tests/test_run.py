"""The Python side: pretrain, load, encoder, embed, config, metrics."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import msvq
from msvq.data.patterns import make_patterns
from msvq.data.sources import DataSettings, open_dataset
from msvq.runs.encoder import load_run_encoder

SMALL = ["backbone.width=4", "data.limit=320", "train.batch_size=32", "method.queue_size=64"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> msvq.Run:
    return msvq.pretrain(data="patterns", out=tmp_path_factory.mktemp("runs") / "x", epochs=1, overrides=SMALL)


def test_a_loaded_run_is_the_same(run: msvq.Run) -> None:
    loaded = msvq.load(run.path)
    assert loaded.config == run.config
    assert loaded.config.train.epochs == 1
    assert loaded.metrics() == run.metrics()
    assert "msvq on patterns" in repr(loaded)


def test_a_run_whose_accuracy_was_no_number_is_shown(
    run: msvq.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    shutil.copytree(run.path, tmp_path / "x")
    with (tmp_path / "x" / "metrics.jsonl").open("a") as log:
        log.write(json.dumps({"kind": "eval", "step": 9, "epoch": 9, "knn_top1": None}) + "\n")
    assert "kNN" in repr(msvq.load("~/x"))
    finished = msvq.pretrain(out="~/y", data="patterns", epochs=1, overrides=SMALL)
    assert finished.path == tmp_path / "y" and not Path("~").exists()


def test_an_accuracy_has_what_it_is_held_against_beside_it(run: msvq.Run) -> None:
    known = json.loads((run.path / "eval" / "analysis.json").read_text())["knn"]
    shown = repr(run)
    assert f"kNN {known['accuracy']['trained']:.1f} ± " in shown
    assert f"({known['accuracy']['untrained']:.1f} % untrained, {known['chance']:.1f} % by chance)" in shown


def test_settings_of_a_protocol_may_be_a_dictionary(run: msvq.Run) -> None:
    found = run.knn(overrides={"k": 7})
    assert found.protocol == run.knn(k=7).protocol == "knn-7-t0.1/1"


def test_the_encoder_is_ready_to_use(run: msvq.Run) -> None:
    encoder = msvq.load(run.path).encoder
    assert not encoder.training
    assert encoder(torch.zeros(2, 3, 32, 32)).shape == (2, 32)
    assert not any(p.requires_grad for p in encoder.parameters())


def test_kinds_of_arrays_give_the_same_features(run: msvq.Run) -> None:
    images = open_dataset(DataSettings()).test.take(range(6))
    expected = run.embed(images)
    assert expected.shape == (6, 32)
    assert expected.dtype == np.float32
    assert np.isfinite(expected).all()
    same: dict[str, Any] = {
        "float": images / 255,
        "float32": (images / 255).astype(np.float32),
        "channels first": np.moveaxis(images, -1, 1),
        "torch": torch.from_numpy(images),
        "list": list(images),
    }
    for name, given in same.items():
        np.testing.assert_allclose(run.embed(given), expected, rtol=1e-4, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(run.embed(images[0]), expected[:1], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(run.embed(images, batch_size=4), expected, rtol=1e-4, atol=1e-5)


def test_pictures_of_any_size_are_taken(run: msvq.Run) -> None:
    rng = np.random.default_rng(0)
    sizes = [(32, 32, 3), (48, 20, 3), (7, 90, 3), (1, 1, 3), (64, 64)]
    features = run.embed([rng.integers(256, size=size, dtype=np.uint8) for size in sizes])
    assert features.shape == (5, 32)
    assert np.isfinite(features).all()
    assert run.embed(rng.integers(256, size=(4, 40, 40), dtype=np.uint8)).shape == (4, 32)  # grey


@pytest.mark.parametrize(
    ("images", "sentence"),
    [
        (np.zeros((2, 32, 32, 3)) + 7, "must lie in 0..1"),
        (np.full((2, 32, 32, 3), np.nan), "must lie in 0..1"),
        (np.zeros((2, 32, 32, 3), np.int64), "uint8 or floating-point"),
        (np.zeros((2, 32, 32, 4), np.uint8), "has the shape"),
        (np.zeros(5), "has the shape"),
    ],
)
def test_what_is_no_picture_is_refused(run: msvq.Run, images: np.ndarray, sentence: str) -> None:
    with pytest.raises(msvq.BadInput, match=sentence):
        run.embed(images)


def test_an_unfinished_run_says_so(run: msvq.Run, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text((run.path / "config.yaml").read_text())
    with pytest.raises(msvq.BadInput, match="no encoder yet"):
        _ = msvq.load(tmp_path).encoder
    with pytest.raises(msvq.BadInput, match="there is no file or folder"):
        msvq.load(tmp_path / "nothing")


def test_a_checkpoint_is_fed_alike_whether_the_card_is_there_or_not(run: msvq.Run, tmp_path: Path) -> None:
    other = msvq.load(shutil.copytree(run.path, tmp_path / "run"))
    last = str(other.path / "checkpoints" / "last.ckpt")
    by_card = load_run_encoder(other).preprocessing
    assert load_run_encoder(other, last).preprocessing == by_card  # by environment.json
    (other.path / "encoder.json").write_text("{}")  # damaged: the way out is a checkpoint
    assert load_run_encoder(msvq.load(other.path), last).preprocessing == by_card
    (other.path / "environment.json").write_text("{}")
    with pytest.raises(msvq.BadInput, match="does not say how its pictures are normalised"):
        load_run_encoder(msvq.load(other.path), last)


def test_a_run_that_was_stopped_is_used_from_its_last_checkpoint(run: msvq.Run, tmp_path: Path) -> None:
    stopped = msvq.load(shutil.copytree(run.path, tmp_path / "run"))
    images = make_patterns(5, seed=2)[0]
    for name in ("encoder.json", "encoder.safetensors", "report.html"):
        (stopped.path / name).unlink()
    assert stopped.encoder.feature_dim == run.encoder.feature_dim
    np.testing.assert_array_equal(stopped.embed(images), run.embed(images))
    embedder = msvq.Embedder(stopped.path).fit(images)
    assert len(embedder.get_feature_names_out()) == run.encoder.feature_dim
    shutil.copy(run.path / "encoder.safetensors", stopped.path)
    (stopped.path / "encoder.json").write_text("{}")  # damaged, not missing
    with pytest.raises(msvq.BadInput, match=r"encoder\.json is damaged"):
        _ = msvq.load(stopped.path).encoder
    (stopped.path / "encoder.json").unlink()
    known = json.loads((stopped.path / "environment.json").read_text())
    (stopped.path / "environment.json").write_text(json.dumps(known | {"mean": [0.5]}))
    with pytest.raises(msvq.BadInput, match=r"environment\.json is damaged"):
        msvq.load(stopped.path).embed(images)


def test_files_may_come_from_an_iterator(run: msvq.Run, tmp_path: Path) -> None:
    images = make_patterns(2, seed=2)[0]
    for number, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    assert run.embed(tmp_path.glob("*.png")).shape == (2, 32)
    np.testing.assert_array_equal(run.embed(iter(images)), run.embed(images))


def test_public_names_are_listed_once() -> None:
    assert all(hasattr(msvq, name) for name in msvq.__all__)


def test_help_does_not_wait_for_torch() -> None:
    code = "import sys, msvq, msvq.cli, msvq.report.page; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
