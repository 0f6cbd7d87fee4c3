"""Encoders from anywhere: every way of naming one, with networks that are made in a moment, and what may go wrong."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import save_file
from torchvision import models

import msvq
import msvq.export.exporting
from msvq.cli import main
from msvq.data.patterns import make_patterns
from msvq.model.backbones import BackboneSettings, make_backbone
from msvq.runs.encoder_names import load_encoder

TINY = "timm:test_resnet@random"  # at 160 pixels
Says = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def pictures() -> NDArray[np.uint8]:
    return make_patterns(8, seed=3)[0]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for number, pixels in enumerate(make_patterns(24, seed=4)[0]):
        file = folder / f"kind{number % 2}" / f"{number:02}.png"
        file.parent.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(file)
    return folder


@pytest.fixture
def says(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Says:
    monkeypatch.setenv("MSVQ_HOME", str(tmp_path / "home"))

    def run(*words: str | Path) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


def resnet(name: str = "resnet18", **settings: object) -> torch.nn.Module:
    torch.manual_seed(1)
    return make_backbone(BackboneSettings.model_validate({"name": name, "width": 4, "stem": "small", **settings}), 32)


# --- names


def test_a_network_of_timm_is_fed_as_its_configuration_says(pictures: NDArray[np.uint8]) -> None:
    encoder = msvq.load_encoder(TINY)
    known = timm.get_pretrained_cfg("test_resnet")
    how = encoder.preprocessing
    assert (how.size, how.resize, how.mean, how.std) == (160, int(160 / known.crop_pct), known.mean, known.std)
    found = encoder.embed(pictures)
    assert found.shape == (8, encoder.feature_dim)
    np.testing.assert_array_equal(found, msvq.load_encoder(TINY).embed(pictures, batch_size=3))  # the same every time
    np.testing.assert_array_equal(msvq.Embedder(TINY).transform(pictures), found)


def test_published_weights_are_matched_to_the_network(
    pictures: NDArray[np.uint8], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = models.get_model("mobilenet_v3_small", weights=None).eval()
    weights = models.get_model_weights("mobilenet_v3_small").DEFAULT
    monkeypatch.setattr(type(weights), "get_state_dict", lambda self, **options: trained.state_dict())
    encoder = load_encoder("torchvision:mobilenet_v3_small")
    assert (encoder.size, encoder.preprocessing.resize) == (224, 256)
    stock = weights.transforms(antialias=True)
    with torch.inference_mode():
        view = torch.stack([stock(Image.fromarray(image)) for image in pictures[:2]])
        expected = trained.avgpool(trained.features(view)).flatten(1)
    np.testing.assert_allclose(encoder.embed(pictures[:2]), expected, atol=0.05 * float(expected.abs().max()))


def test_pixels_are_an_encoder_too(pictures: NDArray[np.uint8]) -> None:
    assert load_encoder("pixels").embed(pictures).shape == (8, 192)


@pytest.mark.parametrize(
    ("name", "settings"),
    [("resnet8", {}), ("resnet18", {}), ("resnet18", {"stem": "standard"}), ("resnet14", {"whiten": True})],
)
def test_a_file_of_a_resnet_tells_what_it_is(tmp_path: Path, name: str, settings: dict[str, object]) -> None:
    network = resnet(name, **settings)
    torch.save(
        {"model": {f"module.net.{key}": value for key, value in network.state_dict().items()}}, tmp_path / "x.pth"
    )
    encoder = load_encoder(tmp_path / "x.pth")
    assert encoder.backbone.name == name and encoder.backbone.width == 4
    assert encoder.size == (224 if settings.get("stem") == "standard" else 32) and encoder.guessed
    assert "module.net." in encoder.note
    for key, value in network.state_dict().items():
        torch.testing.assert_close(encoder.network.state_dict()[key], value)


def test_other_files_are_told_what_they_are_of(tmp_path: Path) -> None:
    network = timm.create_model("test_vit", num_classes=10)
    save_file(network.state_dict(), tmp_path / "x.safetensors")
    with pytest.raises(msvq.BadInput, match="--backbone"):
        load_encoder(tmp_path / "x.safetensors")
    encoder = load_encoder(tmp_path / "x.safetensors", backbone="timm:test_vit")
    assert encoder.size == 160 and not encoder.guessed
    with pytest.raises(msvq.BadInput, match="missing"):
        load_encoder(tmp_path / "x.safetensors", backbone="timm:test_convnext")


# --- what is done with them


def test_search_embed_and_duplicates_take_any_encoder(photos: Path, says: Says, tmp_path: Path) -> None:
    torch.save(resnet("resnet8").state_dict(), tmp_path / "x.pth")
    code, out, err = says(
        "search", tmp_path / "x.pth", "--data", photos, "--query", photos / "kind0" / "00.png", "--json"
    )
    assert code == 0 and "does not say how to prepare pictures" in err
    (answer,) = json.loads(out)["answers"]
    assert answer["found"][0] == {"rank": 1, "similarity": pytest.approx(1), "class": "kind0", "name": "kind0/00.png"}
    assert says("duplicates", "pixels", "--data", photos, "--threshold", "1")[0] == 0
    assert says("embed", "pixels", "--data", photos, "--out", tmp_path / "x.npz")[0] == 0
    saved = np.load(tmp_path / "x.npz")
    assert saved["features"].shape == (24, 192) and json.loads(str(saved["about"]))["run"] == "pixels"


def test_results_without_a_run_go_to_the_terminal_or_a_file(photos: Path, says: Says, tmp_path: Path) -> None:
    words = ("evaluate", "pixels", "--data", photos, "--set", "k=5")
    code, out, _ = says(*words)
    assert code == 0 and "of pixels on" in out and not list(tmp_path.glob("*.json"))
    code, _, _ = says(*words, "--out", tmp_path / "result.json")
    assert code == 0 and json.loads((tmp_path / "result.json").read_text())["encoder"] == "pixels"
    code, _, err = says("evaluate", "pixels", "--data", photos, "--protocol", "finetune")
    assert code == 2 and "no weights that could go on learning" in err


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports")
    torch.save(resnet(whiten=True).state_dict(), folder / "x.pth")
    for format in ("safetensors", "onnx"):
        msvq.export.exporting.export_encoder(folder / "x.pth", format=format, out=folder / format)
    return folder


@pytest.mark.parametrize("format", ["safetensors", "onnx"])
def test_an_export_is_loaded_again(exports: Path, format: str, pictures: NDArray[np.uint8]) -> None:
    found = load_encoder(exports / format).embed(pictures)
    np.testing.assert_allclose(found, load_encoder(exports / "x.pth").embed(pictures), atol=1e-4)
    file = next((exports / format).glob("model.*"))
    np.testing.assert_array_equal(load_encoder(file).embed(pictures, batch_size=3), found)
    assert load_encoder(exports / format).key == load_encoder(exports / format).key


def test_a_crop_survives_an_export(tmp_path: Path, pictures: NDArray[np.uint8]) -> None:
    done = msvq.export.exporting.export_encoder(TINY, format="timm", out=tmp_path / "x")
    assert done.max_abs_difference < 1e-4
    again = load_encoder(done.path)
    assert again.preprocessing == load_encoder(TINY).preprocessing
    np.testing.assert_array_equal(again.embed(pictures), load_encoder(TINY).embed(pictures))


# --- what may go wrong


def test_a_damaged_export_is_refused(exports: Path, tmp_path: Path) -> None:
    for file in ("config.json", "preprocessor_config.json", "manifest.json", "model.safetensors"):
        subprocess.run(["cp", "-r", str(exports / "safetensors"), str(tmp_path / file)], check=True)
        content = (tmp_path / file / file).read_bytes()
        (tmp_path / file / file).write_bytes(content[: len(content) // 2])
        with pytest.raises(msvq.BadInput, match=f"{file} of .* is damaged"):
            load_encoder(tmp_path / file)


def test_code_is_not_run(tmp_path: Path) -> None:
    torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2)).save(str(tmp_path / "script.pt"))
    torch.save(torch.nn.Linear(2, 2), tmp_path / "object.pth")
    with pytest.raises(msvq.BadInput, match="archive of code"):
        load_encoder(tmp_path / "script.pt")
    with pytest.raises(msvq.BadInput, match="could run code"):
        load_encoder(tmp_path / "object.pth")


WRONG = [
    (["search", "timm:resnet1", "--data", "{photos}", "--query", "x"], "did you mean 'timm:resnet1"),
    (["search", "timm:test_vit.x", "--data", "{photos}", "--query", "x"], "unknown weights of timm 'test_vit.x'"),
    (["embed", "pixels", "--out", "{tmp}/x.npz"], "--data is needed: pixels is no run"),
    (["duplicates", "timm:resnet18"], "--data is needed"),
    (["evaluate", "timm:resnet18"], "--data is needed"),
    (["evaluate", "pixel", "--data", "patterns"], "did you mean 'pixels'?"),
    (["evaluate", "{tmp}/nothing.pth", "--data", "patterns"], "there is no file or folder"),
    (["evaluate", "{tmp}", "--data", "patterns"], "is not a run"),
    (
        ["evaluate", "pixels", "--data", "patterns", "--checkpoint", "best"],
        "--checkpoint is for the directory of a run",
    ),
    (["evaluate", "pixels", "--data", "patterns", "--backbone", "resnet18"], "says it itself"),
    (["evaluate", "timm:resnet18", "--data", "nothing"], "unknown data set"),
    (["export", "pixels", "--out", "{tmp}/x"], "has no weights"),
    (["evaluate", "{tmp}/x.txt", "--data", "patterns"], "no file of weights by its name"),
]


@pytest.mark.parametrize(("words", "sentence"), WRONG)
def test_mistakes_are_told_in_a_sentence(
    words: list[str], sentence: str, says: Says, tmp_path: Path, photos: Path
) -> None:
    (tmp_path / "x.txt").touch()
    before = sorted(tmp_path.rglob("*"))
    code, _, err = says(*(word.format(tmp=tmp_path, photos=photos) for word in words))
    assert code == 2 and "Traceback" not in err
    assert sentence in " ".join(err.split())
    assert sorted(tmp_path.rglob("*")) == before


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(msvq.BadInput, match=r"pip install 'msvq\[timm\]'"):
        load_encoder("timm:resnet18")
