"""Pictures that are odd and read all the same: wide numbers, transparency, several frames, turned, any name."""

import io
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageOps

from msvq.data.decode import decode, examine, header_size
from msvq.data.sources.folders import walk

Paint = Callable[..., Image.Image]
Encode = Callable[..., bytes]


def levels(a: NDArray[np.uint8], b: NDArray[np.uint8] | Image.Image) -> int:
    """The largest difference."""
    return int(np.abs(a.astype(int) - np.asarray(b).astype(int)).max())


def test_the_content_decides_and_not_the_extension(tmp_path: Path, paint: Paint) -> None:
    paint(16, 16).save(tmp_path / "a.jpg", "PNG")
    assert np.array_equal(decode(str(tmp_path / "a.jpg"), 16), np.asarray(paint(16, 16)))


def test_a_single_pixel_fills_the_square(encode: Encode) -> None:
    assert (decode(encode(Image.new("RGB", (1, 1), (10, 200, 30))), 16) == [10, 200, 30]).all()


@pytest.mark.parametrize("size", [(20_000, 3), (3, 20_000)])
def test_the_middle_of_a_very_long_picture_is_read(encode: Encode, size: tuple[int, int]) -> None:
    long = Image.new("RGB", size, "red")
    middle = (9_990, 0, 10_010, 3) if size[0] > 3 else (0, 9_990, 3, 10_010)
    long.paste((0, 0, 255), middle)
    assert (decode(encode(long), 32) == [0, 0, 255]).all()


def test_sixteen_bits_are_scaled_and_not_clipped(tmp_path: Path, encode: Encode) -> None:
    grey = np.arange(256, dtype=np.uint16).reshape(16, 16)
    for kind in ("PNG", "TIFF"):
        picture = Image.fromarray(grey * 257)
        assert picture.mode == "I;16"
        wide = decode(encode(picture, kind), 16)
        assert np.array_equal(wide, np.repeat(grey[..., None], 3, axis=2))
        dark = decode(encode(Image.fromarray(grey), kind), 16)  # 0..255 of 65535 is black
        assert dark.max() == 1


def test_numbers_of_other_widths_become_grey(encode: Encode) -> None:
    grey = np.arange(256).reshape(16, 16)
    expected = np.repeat(grey[..., None], 3, axis=2)
    for array in (grey.astype(np.int32), (grey * 257).astype(np.int32), (grey / 255).astype(np.float32)):
        assert np.array_equal(decode(encode(Image.fromarray(array), "TIFF"), 16), expected)


@pytest.mark.parametrize("strange", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("top", [1, 255, 65535])
def test_one_number_that_is_none_changes_no_other(encode: Encode, top: int, strange: float) -> None:
    grey = np.arange(256).reshape(16, 16)
    numbers = (grey * top / 255).astype(np.float32)
    numbers[3, 5] = strange
    expected = np.repeat(grey[..., None], 3, axis=2)
    expected[3, 5] = 255 if strange == np.inf else 0
    assert np.array_equal(decode(encode(Image.fromarray(numbers), "TIFF"), 16), expected)


def test_what_is_transparent_becomes_white(encode: Encode) -> None:
    palette = Image.new("P", (16, 16), 0)
    palette.putpalette([255, 0, 0, 0, 0, 255])
    palette.paste(1, (0, 0, 8, 16))
    for kind in ("PNG", "GIF"):
        pixels = decode(encode(palette, kind, transparency=0), 16)
        assert (pixels[:, :8] == [0, 0, 255]).all()
        assert (pixels[:, 8:] == 255).all()
    clear = Image.new("RGBA", (16, 16), (200, 100, 50, 0))
    clear.paste((0, 0, 0, 51), (0, 0, 16, 8))
    pixels = decode(encode(clear), 16)
    assert (pixels[:8] == 204).all()  # a fifth of black on white
    assert (pixels[8:] == 255).all()
    grey = Image.new("LA", (16, 16), (0, 0))
    grey.paste((90, 255), (0, 0, 16, 8))
    pixels = decode(encode(grey), 16)
    assert (pixels[:8] == 90).all()
    assert (pixels[8:] == 255).all()


def test_a_colour_that_stands_for_transparent_becomes_white(encode: Encode) -> None:
    picture = Image.new("RGB", (16, 16), (1, 2, 3))
    picture.paste((9, 9, 9), (0, 0, 8, 16))
    pixels = decode(encode(picture, transparency=(1, 2, 3)), 16)
    assert (pixels[:, :8] == 9).all()
    assert (pixels[:, 8:] == 255).all()


def test_cmyk_has_about_the_right_colours(encode: Encode) -> None:
    for colour in ((200, 40, 60), (10, 220, 90), (250, 250, 250), (5, 5, 5)):
        content = encode(Image.new("RGB", (32, 32), colour).convert("CMYK"), "JPEG", quality=95)
        assert Image.open(io.BytesIO(content)).mode == "CMYK"
        assert levels(decode(content, 16), np.full((16, 16, 3), colour, np.uint8)) <= 4


def test_grey_has_three_equal_channels(paint: Paint, encode: Encode) -> None:
    grey = paint(16, 16).convert("L")
    for kind in ("JPEG", "PNG", "TIFF", "BMP"):
        pixels = decode(encode(grey, kind), 16)
        assert (pixels == pixels[..., :1]).all()
        assert levels(pixels[..., 0], grey) <= (5 if kind == "JPEG" else 0)
    assert np.array_equal(decode(encode(grey.convert("1")), 16)[..., 1], np.asarray(grey.convert("1")) * 255)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_the_first_frame_of_several_is_read(encode: Encode, kind: str) -> None:
    frames = [Image.new("RGB", (16, 16), colour) for colour in ("red", "blue", "white")]
    options = {"lossless": True} if kind == "WEBP" else {}
    content = encode(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    assert (decode(content, 16) == [255, 0, 0]).all()


FORMATS: dict[str, tuple[str, dict[str, Any], int]] = {  # and by how much pixels may differ
    "png": ("PNG", {}, 1),
    "jpeg": ("JPEG", {"quality": 95, "subsampling": 0}, 10),
    "webp": ("WEBP", {"lossless": True, "exact": True}, 1),
    "tiff": ("TIFF", {}, 1),
    "compressed tiff": ("TIFF", {"compression": "tiff_lzw"}, 1),
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_is_turned_upright(paint: Paint, encode: Encode, orientation: int, name: str) -> None:
    kind, options, allowed = FORMATS[name]
    exif = Image.Exif()
    exif[0x0112] = orientation
    for size in (32, 32), (60, 40):
        with Image.open(io.BytesIO(encode(paint(*size), exif=exif))) as stored:
            upright = ImageOps.exif_transpose(stored)
        content = encode(paint(*size), kind, exif=exif, **options)
        pixels = decode(content, 32)
        assert levels(pixels, decode(encode(upright), 32)) <= allowed
        assert orientation == 1 or levels(pixels, decode(encode(paint(*size)), 32)) > 30
        facts = examine(content)
        assert (int(facts["width"]), int(facts["height"])) == upright.size


def test_an_orientation_that_makes_no_sense_is_ignored(paint: Paint, encode: Encode) -> None:
    numbers = [struct.pack("<2sHIHHHIHHI", b"II", 42, 8, 1, 0x0112, 3, 1, number, 0, 0) for number in (0, 9, 77)]
    text = struct.pack("<2sHIHHHI4sI", b"II", 42, 8, 1, 0x0112, 2, 3, b"up", 0)
    for exif in (b"Exif\0\0" + entry for entry in (*numbers, text, b"II*", b"")):
        assert np.array_equal(decode(encode(paint(16, 16), exif=exif), 16), np.asarray(paint(16, 16)))
        assert examine(encode(paint(16, 20), exif=exif))["height"] == 20


@pytest.mark.parametrize("name", ["a b.png", "new\nline.png", "日本 🌍.png", os.fsdecode(b"caf\xe9\n.jpg"), "-rf.png"])
def test_any_name_that_a_file_can_have_is_read(tmp_path: Path, paint: Paint, name: str) -> None:
    paint(16, 16).save(str(tmp_path / "plain"), "PNG")
    (tmp_path / "plain").rename(tmp_path / name)
    assert walk(tmp_path).names == [name]
    assert np.array_equal(decode(str(tmp_path / name), 16), np.asarray(paint(16, 16)))
    assert header_size(str(tmp_path / name)) == (16, 16)
