"""The preprocessing that is handed over gives what msvq makes of the same file, whatever it is."""

import json
import runpy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import msvq
from msvq.data.augment import normalise
from msvq.data.decode import decode
from msvq.export.folder import preprocess_code, preprocessing
from msvq.export.verify import _photograph
from msvq.runs.encoder import LoadedEncoder, load_run_encoder

Prepare = Callable[[Path], NDArray[np.float32]]
ORIENTATION = 0x0112


@pytest.fixture
def subject(narrow: msvq.Run) -> LoadedEncoder:
    return load_run_encoder(narrow, "last")


@pytest.fixture
def prepare(subject: LoadedEncoder, tmp_path: Path) -> Prepare:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(preprocessing(subject)))
    (tmp_path / "preprocess.py").write_text(preprocess_code())
    found: Prepare = runpy.run_path(str(tmp_path / "preprocess.py"))["prepare"]
    return found


def expected(subject: LoadedEncoder, path: Path) -> NDArray[np.float32]:
    pixels = torch.from_numpy(decode(str(path), subject.size).copy()).permute(2, 0, 1)[None] / 255
    return normalise(pixels, subject.preprocessing.mean, subject.preprocessing.std).numpy()


@pytest.mark.parametrize("kind", ["png", "jpg"])
@pytest.mark.parametrize("shape", [(32, 32), (32, 57), (101, 67), (33, 250), (9, 14), (64, 64), (427, 640)])
def test_pictures_of_any_size(
    subject: LoadedEncoder, prepare: Prepare, tmp_path: Path, shape: tuple[int, int], kind: str
) -> None:
    path = tmp_path / f"picture.{kind}"
    _photograph(np.random.default_rng(0), *shape).save(path)
    found = prepare(path)
    assert found.dtype == np.float32
    assert found.shape == (1, 3, 32, 32)
    np.testing.assert_allclose(found, expected(subject, path), rtol=0, atol=1e-5)


def of_mode(mode: str) -> Image.Image:
    """A picture that is not square, and large enough to be shrunk before it is converted."""
    generator = np.random.default_rng(0)
    colours = np.asarray(_photograph(generator, 200, 301))
    grey = colours[..., 0]
    if mode == "I;16":
        return Image.fromarray(grey.astype(np.uint16) * 257)
    if mode == "I":
        return Image.fromarray(grey.astype(np.int32) * 200)
    if mode == "F":
        return Image.fromarray(grey.astype(np.float32) / 255)
    alpha = generator.integers(0, 256, (200, 301, 1), np.uint8)
    image = Image.fromarray(np.concatenate([colours, alpha], -1))
    return (image.convert("RGB") if mode in ("P", "CMYK", "RGB") else image).convert(mode)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "RGBA", "P", "CMYK", "I;16", "I", "F"])
def test_pictures_of_any_kind(subject: LoadedEncoder, prepare: Prepare, tmp_path: Path, mode: str) -> None:
    path = tmp_path / "picture.tif"
    of_mode(mode).save(path)
    np.testing.assert_allclose(prepare(path), expected(subject, path), rtol=0, atol=1e-5)


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_none(subject: LoadedEncoder, prepare: Prepare, tmp_path: Path, odd: float) -> None:
    path, values = tmp_path / "picture.tif", np.linspace(0, 255, 90 * 120, dtype=np.float32).reshape(90, 120)
    values[3, 5] = odd
    Image.fromarray(values).save(path)
    np.testing.assert_allclose(prepare(path), expected(subject, path), rtol=0, atol=1e-5)
    assert len(np.unique(prepare(path))) > 50  # not all black and white


@pytest.mark.parametrize("mode", ["P", "L", "RGB"])
def test_a_colour_that_stands_for_transparency(
    subject: LoadedEncoder, prepare: Prepare, tmp_path: Path, mode: str
) -> None:
    path, image = tmp_path / "picture.png", of_mode("RGB").convert(mode)
    image.save(path, transparency=image.getpixel((150, 100)))
    np.testing.assert_allclose(prepare(path), expected(subject, path), rtol=0, atol=1e-5)


@pytest.mark.parametrize("orientation", [2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("kind", ["png", "jpg", "tif"])
def test_turned_pictures(subject: LoadedEncoder, prepare: Prepare, tmp_path: Path, orientation: int, kind: str) -> None:
    path, exif = tmp_path / f"picture.{kind}", Image.Exif()
    exif[ORIENTATION] = orientation
    of_mode("RGB").save(path, exif=exif)
    np.testing.assert_allclose(prepare(path), expected(subject, path), rtol=0, atol=1e-5)
