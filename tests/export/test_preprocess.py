"""The preprocessing that is handed over gives what the encoder was judged with, for any picture."""

import json
import runpy
from collections.abc import Callable
from inspect import getsource
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import msvq
from msvq.data.augment import eval_view
from msvq.data.decode import decode
from msvq.export import preprocess
from msvq.export.folder import preprocessing
from msvq.export.subject import Subject, read_subject

Prepare = Callable[[Path], NDArray[np.float32]]


@pytest.fixture
def subject(narrow: msvq.Run) -> Subject:
    return read_subject(narrow, "last")


@pytest.fixture
def prepare(subject: Subject, tmp_path: Path) -> Prepare:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(preprocessing(subject)))
    (tmp_path / "preprocess.py").write_text(getsource(preprocess))
    found: Prepare = runpy.run_path(str(tmp_path / "preprocess.py"))["prepare"]
    return found


def expected(subject: Subject, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    view = eval_view(torch.from_numpy(pixels.copy())[None], size=subject.size, mean=subject.mean, std=subject.std)
    return view.numpy()


@pytest.mark.parametrize("shape", [(32, 32), (32, 57), (101, 67), (33, 250), (9, 14), (64, 64)])
def test_pictures_of_any_size(subject: Subject, prepare: Prepare, tmp_path: Path, shape: tuple[int, int]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "picture.png")
    found = prepare(tmp_path / "picture.png")
    assert found.dtype == np.float32
    assert found.shape == (1, 3, 32, 32)
    np.testing.assert_allclose(found, expected(subject, pixels), rtol=0, atol=1e-4)


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "CMYK", "I;16", "turned"])
def test_pictures_of_any_kind_are_read_as_msvq_reads_them(
    subject: Subject, prepare: Prepare, tmp_path: Path, mode: str
) -> None:
    generator, path = np.random.default_rng(0), tmp_path / "picture.tif"
    image = Image.fromarray(generator.integers(0, 256, (32, 32, 4), np.uint8), "RGBA")
    if mode == "I;16":
        image = Image.fromarray(generator.integers(0, 65536, (32, 32), np.uint16))
    elif mode == "turned":
        image, path = image.convert("RGB"), tmp_path / "picture.png"
    else:
        image = (image.convert("RGB") if mode in ("P", "CMYK") else image).convert(mode)
    exif = Image.Exif()
    exif[0x0112] = 6 if mode == "turned" else 1
    image.save(path, exif=exif)
    pixels = decode(str(path), 32)
    np.testing.assert_allclose(prepare(path), expected(subject, pixels), rtol=0, atol=1e-5)
