"""Encoders from anywhere: every way of naming one, with networks that are made in a moment, and what may go wrong."""

import base64
import hashlib
import json
import re
import runpy
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import save, save_file
from tests.export.test_card import CHECKED
from torchvision import models

import msvq
import msvq.export.exporting
from msvq.cli import main
from msvq.config.resolve import resolve
from msvq.core.console import Display
from msvq.data.patterns import make_patterns
from msvq.data.sources.folders import list_folder
from msvq.evaluate.features import feature_function
from msvq.model import pretrained
from msvq.model.backbones import BackboneSettings, make_backbone
from msvq.model.initial import load_weights
from msvq.model.libraries import _name_of_today
from msvq.model.whitening import without_whitening
from msvq.runs.beside import compare_without_labels
from msvq.runs.encoder_names import load_encoder
from msvq.runs.evaluate import open_for, with_preprocessing
from msvq.search.feature_shards import compute_features
from msvq.train import init_weights

TINY = "timm:test_resnet@random"  # at 160 pixels
timm_data: Any = timm.data  # which is not typed
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
    assert known is not None
    how = encoder.preprocessing
    assert (how.size, how.resize, how.mean, how.std) == (160, int(160 / known.crop_pct), known.mean, known.std)
    found = encoder.embed(pictures)
    assert found.shape == (8, encoder.feature_dim)
    np.testing.assert_array_equal(found, msvq.load_encoder(TINY).embed(pictures, batch_size=3))  # the same every time
    np.testing.assert_array_equal(msvq.Embedder(TINY).transform(pictures), found)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"crop_pct": 0.95, "interpolation": "bilinear"},
        {"crop_pct": 1.0},
        {"crop_pct": 0.9, "crop_mode": "squash"},
    ],
)
def test_pictures_are_fitted_as_timm_does(changes: dict[str, object], tmp_path: Path) -> None:
    network: Any = timm.create_model("test_resnet", num_classes=0).eval()
    known = {"input_size": [3, 65, 65], "mean": [0.4, 0.5, 0.6], "std": [0.25, 0.2, 0.3], **changes}
    config = {"architecture": "test_resnet", "num_classes": 0, "pretrained_cfg": known}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(network.state_dict(), tmp_path / "model.safetensors")
    encoder = load_encoder(tmp_path)

    files, generator = [], np.random.default_rng(0)
    for number, (height, width) in enumerate([(701, 480), (400, 1033), (66, 65), (40, 31), (333, 333)]):
        coarse = generator.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), np.uint8)
        picture = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        files.append(tmp_path / f"{number}.jpg")
        picture.save(files[-1], quality=95)
    transform = timm_data.create_transform(**timm_data.resolve_data_config(pretrained_cfg=known))
    with torch.inference_mode():
        expected = network(torch.stack([transform(Image.open(file)) for file in files])).numpy()
    np.testing.assert_allclose(encoder.embed(files), expected, atol=1e-3 * np.abs(expected).max())
    arrays = [np.asarray(Image.open(file)) for file in files]  # of which no level between two is rounded
    np.testing.assert_allclose(encoder.embed(arrays), expected, atol=0.02 * np.abs(expected).max())

    dataset, _ = open_for(None, str(tmp_path), None, preprocessing=encoder.preprocessing, display=Display())
    features = feature_function(dataset, torch.device("cpu"), "fp32")(encoder.network, dataset.train)
    order = [int(Path(name).stem) for name in dataset.train.file_names()]
    np.testing.assert_allclose(features, expected[order], atol=1e-3 * np.abs(expected).max())


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
    np.testing.assert_allclose(encoder.embed(pictures[:2]), expected, atol=0.02 * float(expected.abs().max()))


def test_an_inception_network_sees_pictures_as_it_was_trained_to(
    pictures: NDArray[np.uint8], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = models.googlenet(weights=None, transform_input=True, aux_logits=True, init_weights=False).eval()
    trained.fc = torch.nn.Identity()
    weights = models.get_model_weights("googlenet").DEFAULT
    monkeypatch.setattr(type(weights), "get_state_dict", lambda self, **options: trained.state_dict())
    stock = weights.transforms(antialias=True)
    with torch.inference_mode():
        expected = trained(torch.stack([stock(Image.fromarray(image)) for image in pictures[:2]]))
    found = load_encoder("torchvision:googlenet").embed(pictures[:2])
    np.testing.assert_allclose(found, expected, atol=0.02 * float(expected.abs().max()))


def test_weights_that_are_published_under_earlier_names_are_found() -> None:
    for before, now in {
        "features.denseblock1.denselayer12.norm.1.weight": "features.denseblock1.denselayer12.norm1.weight",
        "features.denseblock1.denselayer1.conv.2.weight": "features.denseblock1.denselayer1.conv2.weight",
        "encoder.layers.encoder_layer_0.mlp.linear_1.bias": "encoder.layers.encoder_layer_0.mlp.0.bias",
        "encoder.layers.encoder_layer_0.mlp.linear_2.bias": "encoder.layers.encoder_layer_0.mlp.3.bias",
        "layer1.0.conv1.weight": "layer1.0.conv1.weight",
    }.items():
        assert _name_of_today(before) == now


def test_a_network_that_asks_for_the_version_of_its_weights_gets_it() -> None:
    network = make_backbone(BackboneSettings(name="torchvision:mnasnet0_5"), 64)
    load_weights(network, dict(network.state_dict()))
    with pytest.raises(RuntimeError, match="Missing key"):
        load_weights(network, dict(list(network.state_dict().items())[1:]))


def test_pictures_of_pillow_are_seen_as_their_files_are(tmp_path: Path, pictures: NDArray[np.uint8]) -> None:
    encoder = load_encoder("pixels")
    palette = Image.fromarray(pictures[0]).quantize(16)
    palette.save(tmp_path / "palette.png")
    turned = Image.fromarray(pictures[1])
    turned.getexif()[0x0112] = 6
    turned.save(tmp_path / "turned.png", exif=turned.getexif())
    for name in ("palette.png", "turned.png"):
        with Image.open(tmp_path / name) as image:
            opened: list[Any] = [image]
            np.testing.assert_array_equal(encoder.embed(opened), encoder.embed([tmp_path / name]))


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


@pytest.mark.parametrize("pooled", [False, True])
def test_a_file_of_the_authors_tells_whether_it_has_a_max_pool(tmp_path: Path, pooled: bool) -> None:
    network = resnet(stem="small-pool" if pooled else "small")
    number = {"conv1": 0, "bn1": 1} | {f"layer{n}": n + 2 + pooled for n in range(1, 5)}
    parts = ((key.partition("."), value) for key, value in network.state_dict().items())
    state = {f"net.net.{number[top]}.{rest}": value for (top, _, rest), value in parts}
    torch.save({"model": state, "epoch": 200}, tmp_path / "msvq_200.pth")
    encoder = load_encoder(tmp_path / "msvq_200.pth")
    assert (encoder.backbone.stem, encoder.size) == (("small-pool", 64) if pooled else ("small", 32))
    assert "net.net.*" in encoder.note
    view = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(encoder.network(view), network.eval()(view))


def test_other_files_are_told_what_they_are_of(tmp_path: Path) -> None:
    network = timm.create_model("test_vit", num_classes=10)
    save_file(network.state_dict(), tmp_path / "x.safetensors")
    with pytest.raises(msvq.BadInput, match="--backbone timm:NAME"):
        load_encoder(tmp_path / "x.safetensors")
    weights = resnet("resnet18").state_dict()
    del weights["layer3.1.conv2.weight"]
    torch.save(weights, tmp_path / "cut.pth")
    nearest = (
        r"the nearest of them is resnet18: the nearest fit is 119 of 120 tensors; missing: layer3\.1\.conv2\.weight"
    )
    with pytest.raises(msvq.BadInput, match=nearest):
        load_encoder(tmp_path / "cut.pth")
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


COMMANDS = {
    "evaluate": ["--data", "{photos}", "--protocol", "probe", "--out", "{tmp}/x.json"],
    "search": ["--data", "{photos}", "--query", "{photos}/kind0/00.png", "--html", "{tmp}/x.html"],
    "duplicates": ["--data", "{photos}", "--html", "{tmp}/x.html"],
    "embed": ["--data", "{photos}", "--out", "{tmp}/x.npz"],
    "export": ["--format", "onnx", "--out", "{tmp}/x"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_network_of_timm_goes_through_every_command(command: str, photos: Path, says: Says, tmp_path: Path) -> None:
    words = (word.format(photos=photos, tmp=tmp_path) for word in COMMANDS[command])
    code, _, err = says(command, TINY, *words)
    assert code == 0, err
    (made,) = tmp_path.glob("x*")
    if command == "evaluate":
        rows = json.loads(made.read_text())["beside"]
        assert [row["encoder"] for row in rows] == [TINY, "untrained", "pixels"]
        assert rows[0]["num_features"] == load_encoder(TINY).feature_dim
    elif command == "embed":
        assert np.load(made)["features"].shape == (24, load_encoder(TINY).feature_dim)
    elif command == "export":
        assert json.loads((made / "manifest.json").read_text())["checked"]["max_abs_difference"] < 1e-4
    elif command == "search":
        assert "00.png" in made.read_text()


@pytest.mark.parametrize("kind", ["timm:test_vit@random", "x.pth", "onnx", "pixels"])
def test_batches_and_workers_change_no_bit(kind: str, exports: Path, photos: Path) -> None:
    encoder = load_encoder(exports / kind if (exports / kind).exists() else kind)
    source, positions = list_folder(photos, use_labels=True), np.arange(24)
    ((expected, _),) = compute_features(encoder, source, [positions], workers=1)
    for batch_size, workers in ((1, 2), (7, 0), (500, 3)):
        ((found, _),) = compute_features(encoder, source, [positions], batch_size=batch_size, workers=workers)
        np.testing.assert_array_equal(found, expected)
    files = [photos / name for name in source.names]
    np.testing.assert_array_equal(encoder.embed(files[::-1])[::-1], expected)


def test_an_index_of_another_encoder_is_not_searched(photos: Path, says: Says, tmp_path: Path) -> None:
    torch.save(resnet("resnet8").state_dict(), tmp_path / "x.pth")
    words = ("--data", photos, "--query", photos / "kind0" / "00.png", "--json")
    found = {name: says("search", name, *words)[1] for name in ("pixels", str(tmp_path / "x.pth"))}
    assert len(set(found.values())) == 2  # each has its own
    first, second = sorted((tmp_path / "home").rglob("index.json"), key=lambda path: path.stat().st_mtime)
    shutil.rmtree(second.parent)
    first.parent.rename(second.parent)  # in the place of the other's
    code, out, err = says("search", tmp_path / "x.pth", *words)
    assert code == 0 and "is damaged (it belongs to other pictures or another encoder): making it again" in " ".join(
        err.split()
    )
    assert out == found[str(tmp_path / "x.pth")]
    assert says("classify", "pixels", *words[:2], "--examples", photos, "--save", "kinds")[0] == 0
    code, _, err = says("classify", tmp_path / "x.pth", *words[:2], "--use", "kinds")
    assert code == 2 and "was made with another encoder" in err


def test_results_without_a_run_go_to_the_terminal_or_a_file(photos: Path, says: Says, tmp_path: Path) -> None:
    words = ("evaluate", "pixels", "--data", photos, "--set", "k=5")
    code, out, _ = says(*words)
    assert code == 0 and "of pixels on" in out and not list(tmp_path.glob("*.json"))
    code, _, _ = says(*words, "--out", tmp_path / "result.json")
    assert code == 0 and json.loads((tmp_path / "result.json").read_text())["encoder"] == "pixels"
    code, _, err = says("evaluate", "pixels", "--data", photos, "--protocol", "finetune")
    assert code == 2 and "no weights that could go on learning" in err


@pytest.mark.parametrize("protocol", ["knn", "probe", "linear"])
def test_what_is_taken_wrongly_is_listed(protocol: str, photos: Path, says: Says, tmp_path: Path) -> None:
    words = ["evaluate", "pixels", "--data", photos, "--protocol", protocol, "--out", tmp_path / "x.json"]
    code, out, _ = says(*words, *({"knn": ["--set", "k=5"], "linear": ["--set", "epochs=1"]}.get(protocol, [])))
    found = json.loads((tmp_path / "x.json").read_text())
    matrix = np.array(found["confusion"])
    assert code == 0 and found["class_names"] == ["kind0", "kind1"] and matrix.sum() == found["num_test"] == 2
    assert 100 * np.trace(matrix) / 2 == pytest.approx(found["top1"])
    assert len(found["mistakes"]) == 2 - np.trace(matrix)
    for one in found["mistakes"]:
        assert (photos / one["name"]).parent.name == one["class"] != one["guess"]
        assert f"{one['name']} ({one['class']}) for {one['guess']}" in out
    assert "is, taken for" in out


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports")
    torch.save(resnet(whiten=True).state_dict(), folder / "x.pth")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("msvq.export.exporting.verify", lambda folder, encoder: CHECKED)  # which takes a process each
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
    name = "timm:test_vit@random"  # which is fed bicubically
    done = msvq.export.exporting.export_encoder(name, format="timm", out=tmp_path / "x")
    assert done.max_abs_difference < 1e-4
    again = load_encoder(done.path)
    assert again.preprocessing == load_encoder(name).preprocessing
    np.testing.assert_array_equal(again.embed(pictures), load_encoder(name).embed(pictures))


def test_encoders_stand_side_by_side(photos: Path, says: Says, tmp_path: Path) -> None:
    torch.save(resnet("resnet8", whiten=True).state_dict(), tmp_path / "x.pth")
    words = (
        "evaluate",
        tmp_path / "x.pth",
        "--data",
        photos,
        "--set",
        "k=5",
        "--beside",
        "pixels",
        "--beside",
        "untrained",
    )
    code, out, _ = says(*words, "--json")
    rows = json.loads(out)["beside"]
    assert code == 0 and [row["encoder"] for row in rows] == [str(tmp_path / "x.pth"), "pixels", "untrained"]
    code, out, _ = says("evaluate", "pixels", "--data", photos, "--set", "k=5", "--json")
    assert code == 0 and json.loads(out)["top1"] == rows[1]["top1"]  # the same protocol on the same pictures
    code, out, _ = says(*words)
    assert "untrained" in out and "seconds" in out


def test_without_labels_what_can_be_compared_is(says: Says, tmp_path: Path) -> None:
    np.savez(tmp_path / "some.npz", images=make_patterns(40, seed=1)[0])
    words = ("evaluate", "pixels", "--data", tmp_path / "some.npz")
    code, _, err = says(*words)
    assert code == 2 and "has no labels" in err and "--beside pixels" in err and "analyze" not in err
    code, out, _ = says(*words, "--beside", "pixels", "--out", tmp_path / "x.json", "--json")
    first, second = json.loads(out)["beside"]
    assert code == 0 and json.loads((tmp_path / "x.json").read_text())["beside"] == [first, second]
    assert first["neighbours"] == second["neighbours"] == 100 and first["copies"] == second["copies"]
    assert 1 < first["rank"] < 192
    for flag, value in {"--labels": "0.5", "--seeds": "2", "--set": "k=5", "--precision": "bf16"}.items():
        code, _, err = says(*words, "--beside", "pixels", flag, value)
        assert code == 2 and f"{flag} is for a protocol" in err
    assert "neighbours in common" in " ".join(says(*words, "--beside", "pixels")[1].split())


def test_neighbours_in_common_are_those_that_one_counts_by_hand(says: Says, tmp_path: Path) -> None:
    images = make_patterns(30, seed=2)[0]
    np.savez(tmp_path / "some.npz", images=images)
    torch.save(resnet("resnet8").state_dict(), tmp_path / "x.pth")
    words = ("evaluate", "pixels", "--data", tmp_path / "some.npz", "--beside", tmp_path / "x.pth", "--json")
    code, out, _ = says(*words)
    first, second = json.loads(out)["beside"]
    assert code == 0 and first["neighbours"] == 100 and second["encoder"] == str(tmp_path / "x.pth")
    dataset, _ = open_for(None, str(tmp_path / "some.npz"), None, display=Display())
    near = []
    for name in ("pixels", tmp_path / "x.pth"):
        encoder = load_encoder(name)
        fed = dataset if encoder.guessed else with_preprocessing(dataset, encoder.preprocessing)
        found = feature_function(fed, torch.device("cpu"), "fp32")(encoder.network, dataset.train).numpy()
        unit = found / np.linalg.norm(found, axis=1, keepdims=True)
        near.append(
            [set([other for other in np.argsort(-unit @ row) if other != place][:10]) for place, row in enumerate(unit)]
        )
    common = [len(mine & theirs) / 10 for mine, theirs in zip(*near, strict=True)]
    assert len(common) > 25 and 0 < np.mean(common) < 1
    assert second["neighbours"] == pytest.approx(100 * np.mean(common))


def test_changed_copies_are_the_same_for_encoders_of_all_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, pixels in enumerate(make_patterns(12, seed=2)[0]):
        Image.fromarray(pixels).resize((200, 200)).save(tmp_path / f"{number}.png")
    seen: list[tuple[int, ...]] = []

    def copied(images: NDArray[np.uint8], generator: torch.Generator) -> NDArray[np.uint8]:
        seen.append(images.shape)
        return images

    monkeypatch.setattr("msvq.evaluate.diagnostics.copies.make_changed_copies", copied)
    found, path = compare_without_labels("pixels", [TINY, "pixels"], data=str(tmp_path), display=Display())
    side = load_encoder(TINY).preprocessing.side
    assert sum(num for num, *_ in seen) == 12 and path is None  # once for all
    assert {shape[1:] for shape in seen} == {(side, side, 3)}
    assert [row["copies"] for row in found["beside"]] == [100, 100, 100]  # which are no other pictures here


def test_a_file_of_a_whitened_network_of_a_library_keeps_its_whitening(
    tmp_path: Path, pictures: NDArray[np.uint8]
) -> None:
    settings = BackboneSettings(name="timm:test_resnet", whiten=True)
    torch.manual_seed(0)
    network = make_backbone(settings, 160).eval()
    network.load_state_dict({key: torch.rand_like(value.float()) for key, value in network.state_dict().items()})
    save_file({key: value.contiguous() for key, value in network.state_dict().items()}, tmp_path / "x.safetensors")
    encoder = load_encoder(tmp_path / "x.safetensors", backbone="timm:test_resnet")
    assert encoder.backbone.whiten
    view = encoder.preprocessing.view(torch.from_numpy(pictures[:2]))
    with torch.inference_mode():
        torch.testing.assert_close(encoder.network(view), network(view))


# --- those that come with the package


def bundle(folder: Path, **facts: object) -> dict[str, object]:
    """A list of one encoder, in half precision."""
    network = resnet("resnet8")
    content = save({key: value.half() for key, value in network.state_dict().items() if value.is_floating_point()})
    (folder / "tiny.safetensors").write_bytes(content)
    how = {"size": 32, "mean": [0.5] * 3, "std": [0.25] * 3, "train_size": 32, "feature_dim": network.feature_dim}
    backbone = {"name": "resnet8", "width": 4, "stem": "small"}
    entry: dict[str, object] = {
        **{"name": "tiny", "data": "patterns", "method": "msvq", "epochs": 2, "knn": 51.25, "licence": "mit"},
        **{"sha256": hashlib.sha256(content).hexdigest(), "file": "tiny.safetensors"},
        "encoder": {**how, "method": "msvq", "data": "patterns", "backbone": backbone, "weights_sha256": ""},
        **facts,
    }
    (folder / "index.json").write_text(json.dumps([entry]))
    return entry


def test_the_encoder_that_comes_with_the_package_is_used_by_its_name(
    says: Says, photos: Path, pictures: NDArray[np.uint8]
) -> None:
    name = "cifar10-msvq-narrow"
    code, out, _ = says("pretrained")
    entry = pretrained.find_pretrained(name)
    assert code == 0 and f"{name}: msvq on cifar10, 200 epochs; kNN" in out
    assert entry is not None and entry.file is not None
    assert (pretrained.BUNDLED / entry.file).stat().st_size <= 1_600_000
    assert f"| {entry.knn:.2f} |" in (pretrained.BUNDLED / f"{name}.md").read_text()
    encoder = load_encoder(name)
    assert encoder.embed(pictures).shape == (8, 128) and encoder.size == 32
    code, out, _ = says("search", name, "--data", photos, "--query", photos / "kind0" / "00.png", "--json")
    assert code == 0 and Path(json.loads(out)["answers"][0]["found"][0]["name"]) == Path("kind0/00.png")
    for page in ("README.md", "docs/encoders.md", "docs/results.md"):
        assert f"{entry.knn:.1f} %" in (Path(__file__).parents[2] / page).read_text()
    with pytest.raises(msvq.BadInput, match=f"did you mean '{name}'"):
        init_weights.load_initial_weights(resolve(data="patterns", init=name[:-1]), 32)
    settings = resolve(data="patterns", init=name)
    assert (settings.backbone.name, settings.backbone.width) == ("resnet18", 16)
    assert init_weights.load_initial_weights(settings, 32) is not None


def test_a_bundled_name_is_an_encoder(
    says: Says, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, photos: Path, pictures: NDArray[np.uint8]
) -> None:
    monkeypatch.setattr(pretrained, "BUNDLED", tmp_path)
    entry = bundle(tmp_path)
    code, out, _ = says("pretrained", "--json")
    assert code == 0 and json.loads(out)[0]["sha256"] == entry["sha256"]
    code, out, _ = says("pretrained")
    assert "tiny: msvq on patterns, 2 epochs; kNN 51.2 %" in out and "licence mit; in the package" in out
    encoder = load_encoder("tiny")
    assert encoder.method == "msvq" and encoder.embed(pictures).dtype == np.float32
    assert all(value.dtype == torch.float32 for value in encoder.network.parameters())
    assert says("duplicates", "tiny", "--data", photos)[0] == 0
    assert "did you mean 'tiny'?" in says("duplicates", "tinny", "--data", photos)[2]
    (tmp_path / "tiny.safetensors").write_bytes(b"x" + (tmp_path / "tiny.safetensors").read_bytes()[1:])
    code, _, err = says("duplicates", "tiny", "--data", photos)
    assert code == 2 and "their checksum is not the one of the list" in " ".join(err.split())


def test_the_encoder_of_a_run_is_taken_into_the_package(
    says: Says, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pictures: NDArray[np.uint8]
) -> None:
    monkeypatch.setattr(pretrained, "BUNDLED", tmp_path)
    take = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "bundle_encoder.py"))["bundle"]
    (tmp_path / "index.json").write_text("[]")
    small = ["backbone.name=resnet8", "backbone.width=4", "data.limit=320", "method.queue_size=64"]
    run = msvq.pretrain(out=tmp_path / "run", recipe="demo", epochs=1, overrides=small)
    knn = run.evaluate("knn").top1
    for _ in range(2):  # the second time in place of the first
        names = [path.name for path in take(run.path, "small")]
    assert names == ["small.safetensors", "small.md", "index.json"]
    (entry,) = pretrained.list_pretrained()
    assert entry.knn == round(knn, 2) and entry.linear is None and entry.epochs == 1
    ours, theirs = load_encoder("small").embed(pictures), load_encoder(run.path).embed(pictures)
    assert np.abs(ours - theirs).max() < 2e-3 * np.abs(theirs).max()
    card = (tmp_path / "small.md").read_text()
    assert "trained by msvq on patterns for 1 epochs" in card and f"| {knn:.2f} |" in card
    assert str(tmp_path) not in card


# --- the hub


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, dict[str, bytes]]]:
    """A small hub: models by their names, with their files, to be read and written."""
    constants = pytest.importorskip("huggingface_hub.constants")
    repositories: dict[str, dict[str, bytes]] = {}

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *words: object) -> None:
            pass

        def answer(self, status: int, content: bytes = b"{}", **headers: str) -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def do_GET(self) -> None:
            owner, model, *_, file = self.path.lstrip("/").split("/")
            files = repositories.get(f"{owner}/{model}")
            if owner == "gated":
                self.answer(403, X_Error_Code="GatedRepo")
            elif files is None:
                self.answer(404, X_Error_Code="RepoNotFound")
            elif file not in files:
                self.answer(404, X_Error_Code="EntryNotFound", X_Repo_Commit="0" * 40)
            else:
                etag = hashlib.sha256(files[file]).hexdigest()
                self.answer(200, files[file], ETag=f'"{etag}"', X_Repo_Commit="0" * 40)

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Authorization") != "Bearer secret":
                self.answer(401)
            elif self.path == "/api/repos/create":
                told = json.loads(body)
                repositories[f"{told['organization']}/{told['name']}"] = {}
                self.answer(200, json.dumps({"url": f"{endpoint}/{told['organization']}/{told['name']}"}).encode())
            elif "/preupload/" in self.path:
                files = [{"path": f["path"], "uploadMode": "regular"} for f in json.loads(body)["files"]]
                self.answer(200, json.dumps({"files": [{**file, "shouldIgnore": False} for file in files]}).encode())
            elif "/commit/" in self.path:
                owner, model = self.path.split("/")[3:5]
                for line in map(json.loads, body.splitlines()):
                    if line["key"] == "file":
                        content = base64.b64decode(line["value"]["content"])
                        repositories[f"{owner}/{model}"][line["value"]["path"]] = content
                done = {"success": True, "commitOid": "0" * 40, "commitUrl": f"{endpoint}/{owner}/{model}/commit/0"}
                self.answer(200, json.dumps(done).encode())
            else:
                self.answer(200)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    endpoint = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)  # what HF_ENDPOINT sets, read when the library is imported
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    for variable in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    yield repositories
    server.shutdown()
    server.server_close()


Hub = dict[str, dict[str, bytes]]


def test_an_export_goes_to_the_hub_and_comes_back(
    hub: Hub, exports: Path, says: Says, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pictures: NDArray[np.uint8]
) -> None:
    monkeypatch.setattr("msvq.export.exporting.verify", lambda folder, encoder: CHECKED)
    words = ("export", exports / "x.pth", "--format", "hf", "--push", "me/tiny")
    code, _, err = says(*words, "--out", tmp_path / "before")
    assert code == 2 and "login" in err and (tmp_path / "before" / "manifest.json").is_file()
    monkeypatch.setenv("HF_TOKEN", "secret")
    code, out, _ = says(*words)  # a folder that is sent need not stay
    assert code == 0 and "sent    hf:me/tiny" in out and "export  " not in out
    sent = dict(hub["me/tiny"])
    code, out, _ = says(*words, "--out", tmp_path / "out")
    assert code == 0 and "hf:me/tiny" in out and hub["me/tiny"].keys() == sent.keys()
    assert hub["me/tiny"]["model.safetensors"] == sent["model.safetensors"]
    code, _, err = says(*words[:4])
    assert code == 2 and "--out is missing" in err
    monkeypatch.delenv("HF_TOKEN")
    code, _, err = says(*words)
    assert code == 2 and "needs a login" in err and "the export is in" not in err
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert {"README.md", "config.json", "model.safetensors", "example.py"} <= hub["me/tiny"].keys()
    assert b"pipeline_tag: image-feature-extraction" in hub["me/tiny"]["README.md"]
    found = msvq.load("hf:me/tiny").embed(pictures)
    np.testing.assert_array_equal(found, load_encoder(exports / "x.pth").embed(pictures))
    for name in ("me/tiny", tmp_path / "out"):
        encoder = msvq.ImageEncoder.from_pretrained(name)
        features = encoder(encoder.prepare(torch.from_numpy(pictures)))
        np.testing.assert_allclose(features.detach(), found, atol=1e-5)
    encoder.train()(encoder.prepare(torch.from_numpy(pictures))).sum().backward()  # it can go on learning
    assert all(weight.grad is not None for weight in encoder.parameters())
    fetched = {path.name for path in (tmp_path / "hub").rglob("*") if path.is_symlink() or path.suffix == ".py"}
    assert not [name for name in fetched if name.endswith(".py")]  # no code is even fetched


@pytest.mark.parametrize("stem", ["standard", "small"])
def test_timm_opens_what_it_has_itself(
    stem: str, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pictures: NDArray[np.uint8]
) -> None:
    monkeypatch.setattr("msvq.export.exporting.verify", lambda folder, encoder: CHECKED)
    torch.save(resnet("resnet18", width=64, stem=stem).state_dict(), tmp_path / "x.pth")
    done = msvq.export.exporting.export_encoder(tmp_path / "x.pth", format="hf", out=tmp_path / "out")
    hub["me/theirs"] = {path.name: path.read_bytes() for path in done.path.iterdir()}
    ours, images = load_encoder("hf:me/theirs"), torch.from_numpy(pictures[:2])
    if stem == "small":  # which timm does not have
        assert "architecture" not in json.loads(hub["me/theirs"]["config.json"])
        return
    theirs: Any = timm.create_model("hf-hub:me/theirs", pretrained=True).eval()
    transform = timm_data.create_transform(**timm_data.resolve_model_data_config(theirs))
    with torch.inference_mode():
        expected = theirs(torch.stack([transform(Image.fromarray(image)) for image in pictures[:2]]))
        found = ours.network(ours.preprocessing.view(images))
    torch.testing.assert_close(found, expected, rtol=0, atol=0.02 * float(expected.abs().max()))


def test_a_model_of_timm_comes_from_the_hub(hub: Hub, pictures: NDArray[np.uint8]) -> None:
    network: Any = timm.create_model("test_resnet", num_classes=10).eval()
    how = {"input_size": [3, 32, 32], "crop_pct": 0.875, "mean": [0.5] * 3, "std": [0.25] * 3}
    config = {"architecture": "test_resnet", "num_classes": 10, "pretrained_cfg": how}
    hub["timm/tiny"] = {"config.json": json.dumps(config).encode(), "model.safetensors": save(network.state_dict())}
    encoder = load_encoder("hf:timm/tiny")
    assert (encoder.size, encoder.preprocessing.resize, encoder.backbone.name) == (32, 36, "timm:test_resnet")
    view = torch.rand(2, 3, 32, 32)
    with torch.inference_mode():
        expected = network.forward_head(network.forward_features(view), pre_logits=True)
        torch.testing.assert_close(encoder.network(view), expected)


def test_a_list_may_name_a_model_of_the_hub(
    hub: Hub, exports: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub["me/large"] = {path.name: path.read_bytes() for path in (exports / "safetensors").iterdir() if path.is_file()}
    monkeypatch.setattr(pretrained, "BUNDLED", tmp_path)
    digest = hashlib.sha256(hub["me/large"]["model.safetensors"]).hexdigest()
    bundle(tmp_path, file=None, encoder=None, hub="me/large", sha256=digest)
    assert load_encoder("tiny").name == "tiny"
    bundle(tmp_path, file=None, encoder=None, hub="me/large", sha256="0")
    with pytest.raises(msvq.BadInput, match="checksum"):
        load_encoder("tiny")


def test_a_model_of_the_hub_that_cannot_be_had_leaves_nothing(
    hub: Hub, says: Says, tmp_path: Path, photos: Path
) -> None:
    before = sorted(tmp_path.rglob("*"))
    for words in (
        ("embed", "hf:gated/model", "--data", photos, "--out", tmp_path / "x.npz"),
        ("evaluate", "hf:gated/model", "--data", photos, "--out", tmp_path / "x.json"),
        ("export", "hf:gated/model", "--out", tmp_path / "x"),
        ("pretrain", "--data", photos, "--init", "hf:gated/model", "--out", tmp_path / "run"),
    ):
        code, _, err = says(*words)
        assert code == 2 and "asks for a login" in " ".join(err.split()) and "Traceback" not in err
    assert [path for path in sorted(tmp_path.rglob("*")) if "hub" not in path.parts] == before


def test_an_export_of_ones_own_code_comes_from_the_hub_where_the_code_is_named(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pictures: NDArray[np.uint8]
) -> None:
    monkeypatch.setattr("msvq.export.exporting.verify", lambda folder, encoder: CHECKED)
    code = tmp_path / "mine.py"
    code.write_text(
        "from torch import nn\n\n\ndef net():\n"
        "    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())\n"
    )
    mine = f"{code}:net"
    torch.manual_seed(0)
    torch.save(runpy.run_path(str(code))["net"]().state_dict(), tmp_path / "x.pth")
    done = msvq.export.exporting.export_encoder(tmp_path / "x.pth", backbone=mine, format="hf", out=tmp_path / "out")
    hub["me/mine"] = {path.name: path.read_bytes() for path in done.path.iterdir()}
    with pytest.raises(msvq.BadInput, match="name it yourself: --backbone"):
        load_encoder("hf:me/mine")
    ours = load_encoder("hf:me/mine", backbone=mine)
    np.testing.assert_array_equal(ours.embed(pictures), load_encoder(tmp_path / "x.pth", backbone=mine).embed(pictures))
    start = init_weights.load_initial_weights(resolve(data="patterns", init="hf:me/mine", backbone=mine), 32)
    assert start is not None
    for key, value in ours.network.state_dict().items():
        torch.testing.assert_close(start.weights[key], value)


def test_training_from_the_hub_trains_the_network_of_the_hub(hub: Hub, exports: Path) -> None:
    hub["me/tiny"] = {path.name: path.read_bytes() for path in (exports / "safetensors").iterdir() if path.is_file()}
    network: Any = timm.create_model("test_resnet", num_classes=10)
    how = {"input_size": [3, 32, 32], "mean": [0.5] * 3, "std": [0.25] * 3}
    config = {"architecture": "test_resnet", "num_classes": 10, **how}  # as older ones have it
    hub["timm/tiny"] = {"config.json": json.dumps(config).encode(), "model.safetensors": save(network.state_dict())}
    for name, expected in {"hf:me/tiny": ("resnet18", 4), "hf:timm/tiny": ("timm:test_resnet", 64)}.items():
        settings = resolve(data="patterns", init=name)
        assert (settings.backbone.name, settings.backbone.width) == expected
        start = init_weights.load_initial_weights(settings, 32)
        assert start is not None
        for key, value in without_whitening(load_encoder(name).network).state_dict().items():
            torch.testing.assert_close(start.weights[key], value)
    changed = {**config, "model_args": {"act_layer": "gelu"}}
    hub["timm/other"] = {**hub["timm/tiny"], "config.json": json.dumps(changed).encode()}
    with pytest.raises(msvq.BadInput, match=r"model_args of its own \(act_layer\)"):
        load_encoder("hf:timm/other")


def test_training_from_a_file_trains_the_resnet_that_it_is_of(tmp_path: Path) -> None:
    for stem in ("small", "standard"):
        torch.save(resnet("resnet14", stem=stem).state_dict(), tmp_path / "x.pth")
        settings = resolve(data="patterns", init=tmp_path / "x.pth")
        found = settings.backbone
        assert (found.name, found.width, found.stem) == ("resnet14", 4, stem)
        assert init_weights.load_initial_weights(settings, 32) is not None
    named = resolve(data="patterns", init=tmp_path / "x.pth", backbone="resnet18", overrides=["backbone.width=8"])
    assert (named.backbone.name, named.backbone.width) == ("resnet18", 8)
    torch.save(resnet().state_dict(), tmp_path / "x.pth")
    pooled = resolve(recipe="tinyimagenet", init=tmp_path / "x.pth").backbone
    assert (pooled.width, pooled.stem) == (4, "small-pool")  # of which the weights cannot tell


def test_what_the_hub_cannot_give_is_told(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub["me/other"] = {"config.json": b'{"architectures": ["ViTModel"], "auto_map": {}}', "model.safetensors": b""}
    hub["me/empty"] = {}
    for name, sentence in {
        "hf:me/nothing": "there is no hf:me/nothing, or it is private and needs a login",
        "hf:gated/model": "hf:gated/model asks for a login that has accepted its terms: 'hf auth login'",
        "hf:me/other": "neither an export of msvq nor a timm model",
        "hf:me/empty": "lacks files",
        "hf:me": "it is OWNER/NAME",
    }.items():
        with pytest.raises(msvq.BadInput, match=re.escape(sentence)):
            load_encoder(name)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(msvq.BadInput, match=re.escape("pip install 'msvq[hf]'")):
        load_encoder("hf:me/tiny")


def test_without_a_network_the_hub_is_said_to_be_away(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(msvq.BadInput, match="is there a network"):
        load_encoder("hf:me/tiny")


# --- to start from


def test_training_starts_from_any_encoder(exports: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "BUNDLED", tmp_path)
    bundle(tmp_path)
    monkeypatch.setattr(
        init_weights, "library_weights", lambda name, size: timm.create_model("test_resnet").state_dict()
    )
    export = exports / "safetensors"
    for init in (
        "tiny",
        str(export),
        str(export / "model.safetensors"),
        "timm:test_resnet",
    ):  # which tell what they are of
        settings = resolve(data="patterns", init=init)
        start = init_weights.load_initial_weights(settings, 32)
        assert start is not None
        if ":" in init:
            assert settings.backbone.name == init  # the network of the weights, unless another is named
        else:
            own = without_whitening(load_encoder(init).network)
            assert settings.backbone.width == 4
            for key, value in own.state_dict().items():
                torch.testing.assert_close(start.weights[key], value)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("data: {source: patterns}\nbackbone: {init: 'hf:me/tiny'}\n")
    with pytest.raises(msvq.BadInput, match="name it yourself: --init hf:me/tiny"):
        resolve(recipe=recipe)


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
    (["evaluate", "timm:resnet18", "--data", "nothing"], "no such data set"),
    (["export", "pixels", "--out", "{tmp}/x"], "has no weights"),
    (
        ["evaluate", "timm:botnet50ts_256", "--data", "patterns"],
        "timm:botnet50ts_256@random is the network without any",
    ),
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


def test_a_folder_may_be_called_as_a_library(
    exports: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pictures: NDArray[np.uint8]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(exports / "safetensors", "timm")
    found = load_encoder("timm").embed(pictures)
    np.testing.assert_array_equal(found, load_encoder(exports / "safetensors").embed(pictures))


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(msvq.BadInput, match=r"pip install 'msvq\[timm\]'"):
        load_encoder("timm:resnet18")
