"""One folder with everything that is wrong with real folders, through packing, streaming, embedding and doctor."""

import csv
import io
import json
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import msvq
from msvq.cli import main
from msvq.data.sources.folders import FileImages, list_folder

SETS = ["backbone.width=2", "method.hidden_dim=8", "data.workers=1", "train.warmup_epochs=0", "data.max_skipped=0.5"]
FAST = ["--epochs", "1", *(word for setting in SETS for word in ("--set", setting))]


def picture(seed: int = 0, size: tuple[int, int] = (40, 32), mode: str = "RGB") -> Image.Image:
    pixels = np.random.default_rng(seed).integers(256, size=(size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels).convert(mode)


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def bomb() -> bytes:
    """A PNG whose header claims 60,000 x 60,000 pixels."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(100))) + chunk(b"IEND", b"")
    )


def fine() -> dict[bytes, bytes]:
    """Odd pictures that are read."""
    rotated = Image.Exif()
    rotated[0x0112] = 6
    sixteen = Image.fromarray(np.arange(32 * 40, dtype=np.uint16).reshape(32, 40) * 40)
    palette = picture(3).quantize(16)
    palette.info["transparency"] = 0
    frames = [picture(4), picture(5)]
    return {
        b"png called.jpg": encoded(picture(), "PNG"),
        b"one pixel.png": encoded(picture(size=(1, 1)), "PNG"),
        b"long.png": encoded(picture(size=(20_000, 3)), "PNG"),
        b"sixteen bits.png": encoded(sixteen, "PNG"),
        b"palette.png": encoded(palette, "PNG", transparency=0),
        b"cmyk.jpg": encoded(picture(6, mode="CMYK"), "JPEG"),
        b"alpha.png": encoded(picture(7, mode="RGBA"), "PNG"),
        b"rotated.jpg": encoded(picture(8), "JPEG", exif=rotated),
        b"animated.gif": encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]),
        b"animated.webp": encoded(frames[0], "WEBP", save_all=True, append_images=frames[1:]),
        b"name with spaces.png": encoded(picture(9), "PNG"),
        b"new\nline.png": encoded(picture(10), "PNG"),
        "ünïcödé 图.png".encode(): encoded(picture(11), "PNG"),
        b"invalid \xff\xfe.png": encoded(picture(12), "PNG"),
    }


def bad() -> dict[bytes, bytes]:
    """What is skipped."""
    return {
        b"zero.jpg": b"",
        b"cut.jpg": encoded(picture(13, (200, 200)), "JPEG")[:3000],
        b"text.jpg": b"dear reader",
        b"bomb.png": bomb(),
    }


REASONS = {"zero.jpg": "is empty", "cut.jpg": "is cut short", "text.jpg": "is not a picture"}
REASONS |= {"bomb.png": "has 60000 x 60000 pixels, too many to be decoded safely", "loop.png": "cannot be read"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MSVQ_HOME", str(tmp_path / "home"))
    root = tmp_path / "mess"
    root.mkdir()
    for name, content in {**fine(), **bad()}.items():
        (root / os.fsdecode(name)).write_bytes(content)
    for i in range(30):
        picture(100 + i).save(root / f"plain {i:02}.png")
    (root / "loop.png").symlink_to(root / "loop.png")
    (root / "round").symlink_to(root)  # a folder that holds itself
    return root


def said(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


def matches(skipped: dict[str, str]) -> bool:
    return skipped.keys() == REASONS.keys() and all(skipped[name].startswith(why) for name, why in REASONS.items())


def test_it_survives_everything(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for mode in ("store", "stream"):
        out = tmp_path / mode
        words = [*FAST, "--set", f"data.mode={mode}"]
        code, text, err = said(capsys, "pretrain", "--data", folder, "--out", out, *words)
        assert code == 0, err
        assert "note: 5 of 49 pictures cannot be read and are left out" in text
        with (out / "skipped.csv").open(newline="") as file:
            assert matches({row[0]: row[1] for row in list(csv.reader(file))[1:]})
    assert (tmp_path / "store" / "skipped.csv").read_bytes() == (tmp_path / "stream" / "skipped.csv").read_bytes()

    found = msvq.load(tmp_path / "store").embed_source(folder)
    assert set(map(os.fsencode, found.names)) >= set(fine())
    assert len(found.names) == len(fine()) + 30
    assert np.isfinite(found.features).all()
    assert matches(dict(found.skipped))

    code, text, err = said(capsys, "doctor", "--data", folder, "--json")
    assert code == 1, err  # few pictures, and a tenth of them bad
    report = json.loads(text)
    assert matches({file["name"]: file["reason"] for file in report["unreadable"]["files"]})
    assert report["counts"]["train"] == 49
    code, text, err = said(capsys, "doctor", "--data", folder)
    assert code == 1, err
    assert "Findings" in text


def test_a_file_that_vanishes_between_listing_and_reading_is_skipped(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def listed_then_removed(root: Path, **options: bool) -> FileImages:
        listing = list_folder(root, **options)
        (folder / "plain 07.png").unlink(missing_ok=True)
        return listing

    monkeypatch.setattr("msvq.data.sources.list_folder", listed_then_removed)
    for mode in ("store", "stream"):
        picture(107).save(folder / "plain 07.png")
        words = [*FAST, "--set", f"data.mode={mode}"]
        code, text, err = said(capsys, "pretrain", "--data", folder, "--out", tmp_path / mode, *words)
        assert code == 0, err
        assert "note: 6 of 49 pictures" in text
        assert "plain 07.png,is not there\n" in (tmp_path / mode / "skipped.csv").read_text()
