"""msvq export: every format is loaded without msvq and gives the run's features; what cannot be is refused."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file
from tests.export.conftest import make_run

import msvq
from msvq.cli import main
from msvq.export.exporting import check_out, export_encoder, in_place_of
from msvq.export.plans import FORMATS
from msvq.runs.encoder import load_run_encoder

FILES = {"README.md", "config.json", "example.py", "manifest.json", "preprocess.py", "preprocessor_config.json"}
MODELS = {
    "safetensors": {"model.safetensors", "network.py"},
    "torchvision": {"model.safetensors"},
    "timm": {"model.safetensors"},
    "hf": {"model.safetensors", "network.py"},
    "onnx": {"model.onnx"},
    "torchscript": {"model.pt"},
}


def shell(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


def without_msvq(place: Path) -> dict[str, str]:
    """An environment in which msvq cannot be imported."""
    (place / "msvq").mkdir()
    (place / "msvq" / "__init__.py").write_text("raise ImportError('msvq is not installed here')")
    return {**os.environ, "PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1"}


def printed(output: str) -> tuple[list[int], list[float]]:
    found = re.fullmatch(r"\((\d+), (\d+)\) \[(.*)\]\n", output)
    assert found is not None, output
    return [int(found[1]), int(found[2])], [float(number) for number in found[3].split(",")]


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_loaded_by_its_own_library(
    wide: msvq.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    out = tmp_path / "model"
    code, said, err = shell(capsys, "export", wide.path, "--format", name, "--out", out, "--licence", "mit")
    assert code == 0, err
    assert {path.name for path in out.iterdir()} == FILES | MODELS[name] | {"training.yaml"}
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    manifest = json.loads((out / "manifest.json").read_text())
    checked = manifest["checked"]
    assert checked["max_abs_difference"] <= 1e-4
    assert f"{checked['max_abs_difference']:.2g}" in said
    assert set(checked["by_batch_size"]) == {"1", "2", "5"}
    assert manifest["sha256"].keys() == {path.name for path in out.iterdir()} - {"manifest.json"}

    # The example, as someone without msvq runs it, on a picture of another shape that has to be resized and cut.
    picture = np.random.default_rng(1).integers(0, 256, (70, 41, 3), np.uint8)
    Image.fromarray(picture).save(tmp_path / "picture.png")
    command = [sys.executable, str(out / "example.py"), str(tmp_path / "picture.png")]
    done = subprocess.run(command, env=without_msvq(tmp_path), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    shape, values = printed(done.stdout)
    expected = wide.embed([tmp_path / "picture.png"])
    assert shape == list(expected.shape) == [1, 512]
    np.testing.assert_allclose(values, expected[0, :5], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_has_the_layer_that_whitens(tmp_path: Path, name: str) -> None:
    whitened = make_run(tmp_path / "run", width=64, whiten=True)
    done = export_encoder(whitened, format=name, out=tmp_path / "model")  # which runs the example, and compares
    assert done.manifest["checked"]["max_abs_difference"] <= 1e-4
    assert done.manifest["backbone"]["whiten"]


def test_what_the_folder_says(narrow: msvq.Run, tmp_path: Path) -> None:
    knn = {"kind": "knn", "protocol": "knn-200-t0.1/1", "top1": 61.5, "top5": 90, "data": "patterns", "num_test": 200}
    other = {**knn, "top1": 12.0, "checkpoint": "best"}
    few = {**knn, "protocol": "probe/1", "kind": "probe", "labels": 0.1, "step": 7}
    (narrow.path / "eval").mkdir(exist_ok=True)
    for name, result in {"knn": knn, "knn-best": other, "probe": few}.items():
        (narrow.path / "eval" / f"{name}.json").write_text(json.dumps(result))
    done = export_encoder(narrow, format="torchscript", out=tmp_path / "x")
    read = {path.name: path.read_text() for path in done.path.iterdir() if path.suffix in (".md", ".json", ".yaml")}
    how = json.loads(read["preprocessor_config.json"])
    assert (how["size"], how["crop_size"]) == ({"shortest_edge": 32}, {"height": 32, "width": 32})
    assert how["image_mean"] == list(narrow.metadata.mean)
    assert json.loads(read["config.json"])["num_features"] == 32
    assert str(narrow.path) not in "".join(read.values())
    front = yaml.safe_load(read["README.md"].split("---\n")[1])
    assert (front["license"], front.get("datasets"), front["library_name"]) == ("unknown", None, "pytorch")
    (index,) = front["model-index"]
    told = [(one["task"]["name"], one["metrics"][0]["value"]) for one in index["results"]]
    assert told == [
        ("knn-200-t0.1/1 (200 test pictures)", 61.5),
        ("probe/1 (with 10 % of the labels, 200 test pictures)", 61.5),
        ("online knn, k at most 200, t 0.1 (training pictures whose labels were held out)", 31.25),
    ]
    assert "12.00" not in read["README.md"]
    assert "Unknown: whoever exported" in read["README.md"]
    assert yaml.safe_load(read["training.yaml"])["backbone"]["width"] == 4


def test_weights_are_read_by_msvq_too(narrow: msvq.Run, tmp_path: Path) -> None:
    done = export_encoder(narrow, format="safetensors", out=tmp_path / "deep" / "x")
    weights = load_file(done.path / "model.safetensors")
    again = load_run_encoder(narrow, str(done.path / "model.safetensors")).network
    for name, value in narrow.encoder.state_dict().items():
        assert torch.equal(weights[name], value)
        assert torch.equal(again.state_dict()[name], value)


def test_a_trained_run_and_its_checkpoints(tmp_path: Path) -> None:
    small = ["backbone.width=4", "data.limit=80", "data.size=16", "data.test_size=16", "train.batch_size=16"]
    run = msvq.pretrain(data="patterns", out=tmp_path / "run", epochs=1, overrides=[*small, "method.queue_size=64"])
    (run.path / "encoder.json").unlink()  # as if it had been interrupted: the checkpoint is all there is
    done = export_encoder(msvq.load(run.path), format="torchscript", out=run.path / "export", checkpoint="best")
    assert (done.manifest["checkpoint"], done.manifest["feature_dim"]) == ("best", 32)
    assert done.max_abs_difference <= 1e-4
    front = yaml.safe_load((done.path / "README.md").read_text().split("---\n")[1])
    assert front["model-index"][0]["results"][0]["task"]["name"].startswith("online knn")


def test_nothing_is_left_of_an_export_that_differs(
    narrow: msvq.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "x"
    out.mkdir()
    (out / "manifest.json").write_text('{"made_by": "msvq export"}')
    with monkeypatch.context() as patch:
        patch.setattr("msvq.export.verify.TOLERANCE", -1.0)
        with pytest.raises(msvq.BadInput, match=r"gives other features than the run.*nothing was written"):
            export_encoder(narrow, format="torchscript", out=out, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert [path.read_text() for path in out.iterdir()] == ['{"made_by": "msvq export"}']
    export_encoder(narrow, format="torchscript", out=out, overwrite=True, licence="My own, for friends")
    assert "license: other\nlicense_name: My-own-for-friends\n" in (out / "README.md").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_overwrite_replaces_the_files_of_an_export_alone(narrow: msvq.Run, tmp_path: Path) -> None:
    out = export_encoder(narrow, format="torchscript", out=tmp_path / "x").path
    (out / "__pycache__").mkdir()
    (out / "__pycache__" / "preprocess.pyc").touch()  # of running the example
    for name in (".git", "LICENSE"):
        (out / name).mkdir()
        with pytest.raises(msvq.BadInput, match=rf"holds '{name}', which the export did not write and --overwrite"):
            export_encoder(narrow, format="torchscript", out=out, overwrite=True)
        (out / name).rmdir()
    check_out(out, overwrite=True)
    (out / "__pycache__" / "notes.txt").touch()
    with pytest.raises(msvq.BadInput, match="holds '__pycache__'"):
        check_out(out, overwrite=True)


def replace(out: Path, meanwhile: Callable[[], None] = lambda: None) -> None:
    with in_place_of(out, overwrite=True):
        meanwhile()


def test_what_comes_into_the_folder_meanwhile_stays(tmp_path: Path) -> None:
    def fill() -> None:
        (tmp_path / "x").mkdir()
        (tmp_path / "x" / "thesis.txt").touch()

    with pytest.raises(msvq.BadInput, match="holds files that are not an export"):
        replace(tmp_path / "x", fill)
    assert [path.name for path in tmp_path.rglob("*")] == ["x", "thesis.txt"]


@pytest.mark.parametrize("fails", [1, 2])
def test_an_interruption_between_the_renames_leaves_the_old_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: int
) -> None:
    out, real, count = tmp_path / "x", Path.rename, [0]
    out.mkdir()
    (out / "manifest.json").write_text('{"made_by": "msvq export"}')

    def interrupted(path: Path, target: Path) -> Path:
        count[0] += 1
        if count[0] == fails == 2:
            raise KeyboardInterrupt  # before the new one is moved
        moved = real(path, target)
        if count[0] == fails == 1:
            raise KeyboardInterrupt  # after the old one was
        return moved

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", interrupted)
        with pytest.raises(KeyboardInterrupt):
            replace(out)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["manifest.json", "x"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["{tmp}", "--out", "{tmp}/x"], "is not a run"),
        (["{run}", "--out", "{tmp}/x", "--format", "onix"], "unknown format 'onix'; did you mean 'onnx'?"),
        (
            ["{run}", "--out", "{tmp}/x", "--format", "torchvision"],
            "of width 64 alone, not of width 4; formats that can",
        ),
        (["{run}", "--out", "{tmp}/x", "--format", "timm"], "hold it: safetensors, hf, onnx, torchscript"),
        (["{run}", "--out", "{tmp}/x", "--checkpoint", "best"], "has no best checkpoint"),
        (["{run}", "--out", "{tmp}/x", "--checkpoint", "{tmp}/none.ckpt"], "there is no checkpoint"),
        (["{run}", "--out", "{tmp}/x", "--licence", "a\nb"], "--licence is the name of a licence"),
        (["{run}", "--out", "{tmp}/x", "--licence", " "], "--licence is the name of a licence"),
        (["{run}", "--out", "{tmp}/file"], "is a file"),
        (["{run}", "--out", "{tmp}/full"], "holds files that are not an export"),
        (["{run}", "--out", "{run}", "--overwrite"], "holds files that are not an export"),
        (["{run}", "--out", "{run}/figures"], "is where the run keeps files of its own"),
        (["{run}", "--out", "{tmp}/full", "--overwrite"], "holds files that are not an export"),
        (["{run}", "--out", "{tmp}/done"], "holds an export already"),
        (["{tmp}/damaged", "--out", "{tmp}/x"], "encoder.json is damaged"),
        (["{tmp}/newer", "--out", "{tmp}/x"], "encoder.json is damaged, or not the one that this run wrote"),
        (["{run}"], "--out is missing"),
    ],
)
def test_bad_input_is_one_sentence(
    narrow: msvq.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], sentence: str
) -> None:
    (tmp_path / "file").write_text("text")
    for name, content in {"full": "{}", "done": '{"made_by": "msvq export"}'}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").write_text(content)
    card: dict[str, Any] = json.loads((narrow.path / "encoder.json").read_text())
    newer = {**{key: value for key, value in card.items() if "sha256" not in key}, "feature_dim": "many"}
    for name, text in {"damaged": "{", "newer": json.dumps(newer)}.items():
        (tmp_path / name).mkdir()
        for file in ("config.yaml", "encoder.safetensors"):
            (tmp_path / name / file).write_bytes((narrow.path / file).read_bytes())
        (tmp_path / name / "encoder.json").write_text(text)
    before = sorted(tmp_path.rglob("*"))
    code, out, err = shell(capsys, "export", *(word.format(run=narrow.path, tmp=tmp_path) for word in words))
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1, err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(("name", "library"), [("timm", "timm"), ("onnx", "onnxscript")])
def test_a_missing_library_is_named_with_its_extra(
    wide: msvq.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, library: str
) -> None:
    monkeypatch.setattr("msvq.export.plans.find_spec", lambda wanted: None if wanted == library else object())
    with pytest.raises(msvq.BadInput, match=rf"needs {library}; pip install 'msvq\[{name}\]' gives it"):
        export_encoder(wide, format=name, out=tmp_path / "x")
    assert not (tmp_path / "x").exists()
