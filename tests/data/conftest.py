"""What the tests of data share: pictures, good and bad, and folders of them."""

import io
import os
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

FORMATS = {
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".png": "PNG",
    ".bmp": "BMP",
    ".gif": "GIF",
    ".webp": "WEBP",
    ".tif": "TIFF",
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this test packs."""
    folder = tmp_path / "home"
    monkeypatch.setenv("MSVQ_HOME", str(folder))
    return folder


def paint_picture(width: int = 40, height: int = 30, seed: int = 0) -> Image.Image:
    """A smooth picture that looks different from every side, and different for every seed."""
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    a, b, c = np.random.default_rng(seed).uniform(0.5, 1, 3)
    planes = [a * (x + y) / 2, b * x * (2 - y) / 2, c * (1 - x * y)]
    return Image.fromarray(np.rint(np.stack(planes, axis=2) * 255).astype(np.uint8))


def encode_picture(picture: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """The picture as a file's content."""
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


@pytest.fixture
def paint() -> Callable[..., Image.Image]:
    return paint_picture


@pytest.fixture
def encode() -> Callable[..., bytes]:
    return encode_picture


@pytest.fixture
def fill() -> Callable[..., None]:
    """Write files into a folder: pictures of their own each, and text where the name is no picture's."""

    def make(root: Path, names: Iterable[str], *, size: tuple[int, int] = (40, 30)) -> None:
        for name in names:
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            kind = FORMATS.get(path.suffix.lower())
            seed = zlib.crc32(os.fsencode(name))
            path.write_bytes(encode_picture(paint_picture(*size, seed=seed), kind) if kind else b"no picture")

    return make
