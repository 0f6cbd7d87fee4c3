"""One picture from its file to pixels, however odd the file; and a reason in words where that cannot be."""

import gc
import os
import struct
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from msvq.data.decode import Unreadable, decode, examine, header_size
from msvq.data.sources.folders import walk
from msvq.data.workers import perform

Paint = Callable[..., Image.Image]
Encode = Callable[..., bytes]
Fill = Callable[..., None]


def reason(picture: str | bytes | Path, side: int = 16) -> str:
    """Why a picture is not read; the same reason is given by the other tasks."""
    picture = str(picture) if isinstance(picture, Path) else picture
    with pytest.raises(Unreadable) as raised:
        decode(picture, side)
    assert perform("decode", [picture], side).reasons == {0: str(raised.value)}
    assert perform("check", [picture], side).reasons == {0: str(raised.value)}
    assert perform("examine", [picture], side).reasons == {0: str(raised.value)}
    return str(raised.value)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def one_bit_png(width: int, height: int, *, pixels: bool) -> bytes:
    """A black picture whose header is honest; its pixels may be left out."""
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    data = zlib.compress(bytes((1 + (width + 7) // 8) * height if pixels else 1), 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def levels(a: NDArray[np.uint8], b: NDArray[np.uint8] | Image.Image) -> int:
    """The largest difference."""
    return int(np.abs(a.astype(int) - np.asarray(b).astype(int)).max())


# What cannot be read.


def test_an_empty_file_is_said_to_be_empty(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"")
    assert reason(tmp_path / "a.jpg") == "is empty"
    assert reason(b"") == "is empty"


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "BMP", "WEBP", "TIFF", "GIF"])
def test_a_file_that_was_cut_off_is_not_half_a_picture(paint: Paint, encode: Encode, kind: str) -> None:
    content = encode(paint(200, 150), kind)
    why = reason(content[: len(content) // 2])
    if kind in ("JPEG", "PNG", "BMP", "GIF"):
        assert why == "is cut short"


def test_a_jpeg_or_png_without_its_last_bytes_is_cut_short(paint: Paint, encode: Encode) -> None:
    for kind, lost in (("JPEG", 200), ("PNG", 40)):
        assert reason(encode(paint(200, 150), kind)[:-lost]) == "is cut short"
    assert reason(encode(paint(200, 150), "JPEG")[:200]) == "is cut short"  # within the header


def test_text_called_jpg_is_not_a_picture(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_text("<html><body>404 Not Found</body></html>\n" * 20)
    assert reason(tmp_path / "a.jpg") == "is not a picture"


def test_formats_that_could_start_a_program_are_not_tried(paint: Paint, encode: Encode) -> None:
    assert reason(encode(paint(), "EPS")) == "is not a picture"
    assert reason(encode(paint(), "PDF")) == "is not a picture"


def test_a_header_that_claims_too_much_is_refused_before_anything_is_decoded() -> None:
    claimed = one_bit_png(60_000, 60_000, pixels=False)
    assert reason(claimed) == "has too many pixels to be decoded safely"
    assert header_size(claimed) is None


def test_the_limit_of_the_worker_processes_names_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)  # as in a worker
    assert reason(one_bit_png(60_000, 60_000, pixels=False)) == (
        "has 60000 x 60000 pixels, too many to be decoded safely"
    )
    real = one_bit_png(20_000, 20_000, pixels=True)
    assert len(real) < 300_000
    assert reason(real) == "has 20000 x 20000 pixels, too many to be decoded safely"


def test_a_large_jpeg_is_decoded_at_a_fraction_of_its_size(
    paint: Paint, encode: Encode, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = encode(paint(800, 800), "JPEG", quality=95)
    monkeypatch.setattr("msvq.data.decode.MAX_PIXELS", 101 * 101)  # an eighth of it is within the limit
    assert levels(decode(content, 50), paint(50, 50)) <= 6
    assert perform("decode", [content], 200).reasons == {0: "has 400 x 400 pixels, too many to be decoded safely"}


def test_what_is_not_an_ordinary_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "folder.jpg").mkdir()
    assert reason(tmp_path / "pipe.jpg") == "is not a file"
    assert reason(tmp_path / "folder.jpg") == "is not a file"
    assert header_size(str(tmp_path / "pipe.jpg")) is None
    assert header_size(str(tmp_path / "folder.jpg")) is None


def test_links_to_nothing_and_to_themselves_have_their_reasons(tmp_path: Path) -> None:
    (tmp_path / "broken.jpg").symlink_to(tmp_path / "gone.jpg")
    (tmp_path / "loop.jpg").symlink_to(tmp_path / "loop.jpg")
    assert reason(tmp_path / "broken.jpg") == "is not there"
    assert reason(tmp_path / "loop.jpg") == "cannot be read: Too many levels of symbolic links"


def test_a_picture_that_vanishes_after_it_was_listed_is_not_there(tmp_path: Path, fill: Fill) -> None:
    fill(tmp_path, ["a.png", "b.png"])
    names = walk(tmp_path).names
    (tmp_path / "a.png").unlink()
    assert perform("decode", [str(tmp_path / name) for name in names], 8).reasons == {0: "is not there"}


def test_a_name_that_no_file_can_have_is_a_reason_too(tmp_path: Path) -> None:
    assert reason(f"{tmp_path}/a\0b.jpg") == "is not there"
    assert reason(tmp_path / ("x" * 300 + ".jpg")) == "cannot be read: File name too long"


def test_a_file_without_permission_says_so(tmp_path: Path, fill: Fill, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, ["a.png", "b.png"])
    real = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path.name == "a.png":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    result = perform("decode", [str(tmp_path / "a.png"), str(tmp_path / "b.png")], 8)
    assert result.reasons == {0: "may not be read: no permission"}
    assert not result.rows[0].any()
    assert np.array_equal(result.rows[1], decode(str(tmp_path / "b.png"), 8))


def test_a_disk_that_fails_is_a_reason(tmp_path: Path, fill: Fill, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, ["a.png"])

    def fail(path: Path) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "read_bytes", fail)
    assert reason(tmp_path / "a.png") == "cannot be read: Input/output error"


def test_a_picture_that_needs_too_much_memory_is_a_reason(
    paint: Paint, encode: Encode, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Image.Image, "resize", fail)
    assert reason(encode(paint())) == "needs more memory than there is"


# Size.


def test_a_picture_of_the_right_size_keeps_every_pixel(paint: Paint, encode: Encode) -> None:
    for kind in ("PNG", "BMP", "TIFF"):
        assert np.array_equal(decode(encode(paint(24, 24), kind), 24), np.asarray(paint(24, 24)))


@pytest.mark.parametrize("size", [(24, 40), (40, 24), (100, 100), (333, 250), (251, 700), (9, 14)])
def test_the_centre_square_is_as_pillow_cuts_and_shrinks_it(
    paint: Paint, encode: Encode, size: tuple[int, int]
) -> None:
    picture, short = paint(*size), min(size)
    left, top = (size[0] - short) / 2, (size[1] - short) / 2
    expected = picture.resize((24, 24), Image.Resampling.BILINEAR, box=(left, top, left + short, top + short))
    pixels = decode(encode(picture), 24)
    assert pixels.shape == (24, 24, 3) and pixels.dtype == np.uint8
    assert levels(pixels, expected) <= 2
    assert levels(decode(encode(picture, "JPEG", quality=95, subsampling=0), 24), expected) <= 8


def test_facts_tell_equal_and_similar_pictures(paint: Paint, encode: Encode) -> None:
    first, again = examine(encode(paint(60, 40))), examine(encode(paint(60, 40)))
    smaller, other = (
        examine(encode(paint(60, 40), "JPEG")),
        examine(encode(paint(60, 40).transpose(Image.Transpose.ROTATE_180))),
    )
    assert (int(first["width"]), int(first["height"])) == (60, 40)
    assert (str(first["mode"]), str(first["format"])) == ("RGB", "PNG")
    assert first == again
    assert first["content"] != smaller["content"]
    assert int(first["dhash"] ^ smaller["dhash"]).bit_count() <= 8
    assert int(first["dhash"] ^ other["dhash"]).bit_count() >= 16
    assert first["thumbnail"].shape == (8, 8, 3)


def test_no_file_stays_open(tmp_path: Path, fill: Fill) -> None:
    fill(tmp_path, ["a.jpg", "b.png", "c.gif", "d.webp", "e.tif", "f.bmp"])
    content = (tmp_path / "b.png").read_bytes()
    (tmp_path / "g.png").write_bytes(content[: len(content) // 2])
    (tmp_path / "h.jpg").write_text("no picture")
    paths = [str(path) for path in tmp_path.iterdir()]
    gc.collect()  # what earlier tests have left may be closed now, and not while we count
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            assert len(perform("decode", paths, 16).reasons) == 2
            assert len(perform("examine", paths, 16).reasons) == 2
            assert sum(header_size(path) is not None for path in paths) == 7
        gc.collect()
    assert [str(warning.message) for warning in caught] == []
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


# Damage.


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP", "PPM", "TGA", "AVIF", "JPEG2000", "MPO"])
def test_random_damage_gives_a_picture_or_a_reason(paint: Paint, encode: Encode, kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    with_exif = kind in ("JPEG", "PNG", "WEBP", "TIFF", "AVIF", "MPO")
    whole = encode(paint(33, 27), kind, **({"exif": exif} if with_exif else {}))
    generator = np.random.default_rng(zlib.crc32(kind.encode()))
    read = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nor are there warnings, which would go to somebody's terminal
        for trial in range(300):
            content = bytearray(whole)
            for place in generator.integers(len(content), size=1 + trial % 4):
                content[place] = generator.integers(256)
            if trial % 3 == 0:
                del content[int(generator.integers(1, len(content))) :]
            for task in ("decode", "examine"):
                result = perform(task, [bytes(content)], 16)
                assert len(result.rows) == 1
                assert all(why.split()[0] in ("is", "has") for why in result.reasons.values())
                read += not result.reasons
    assert 0 < read < 600
