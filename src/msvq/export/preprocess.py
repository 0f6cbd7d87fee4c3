"""A picture file as the encoder expects it, to the bit as msvq reads it. Needs numpy and Pillow.

preprocessor_config.json, beside this file, has the size, the mean and the deviation.
"""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

# How the EXIF orientation turns a picture upright.
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def prepare(path: Any) -> Any:
    """The centre square of the picture, upright, transparency on white: float32 [1, 3, size, size], normalised."""
    how = json.loads((Path(__file__).parent / "preprocessor_config.json").read_text(encoding="utf-8"))
    size, turn = how["crop_size"]["height"], None
    with Image.open(path) as picture:
        picture.draft(None, (2 * size, 2 * size))  # a large JPEG is decoded at a fraction of its size
        with suppress(Exception):  # damaged EXIF data
            if picture.format != "TIFF":  # which Pillow turns upright
                turn = UPRIGHT.get(int(picture.getexif().get(0x0112, 1)))
        square = _fit(_as_rgb(picture, size), size)
    pixels = np.asarray(square if turn is None else square.transpose(turn)) * how["rescale_factor"]
    pixels = (pixels - np.array(how["image_mean"])) / np.array(how["image_std"])
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)[None], dtype=np.float32)


def _as_rgb(picture: Image.Image, size: int) -> Image.Image:
    factor = max(1, min(picture.size) // (4 * size))  # large pictures shrink before they are converted
    if picture.mode.startswith("I") or picture.mode == "F":
        return _from_wide(picture, factor)
    if picture.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in picture.info:
        layer = (picture.reduce(factor) if picture.mode in ("RGBA", "LA") else picture).convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
    return picture.convert("RGB")


def _from_wide(picture: Image.Image, factor: int) -> Image.Image:
    """Grey of 16 bits, 32 bits or floating-point numbers: 0..65535 (0..255, 0..1) become 0..255."""
    pixels, mode = np.asarray(picture), picture.mode
    top = float(pixels.max(where=np.isfinite(pixels), initial=0))
    scale = 255 / 65535 if top > 255 or mode.startswith("I;16") else 1.0 if top > 1 or mode == "I" else 255
    values = np.nan_to_num(pixels[::factor, ::factor].astype(np.float32)) * scale
    return Image.fromarray(np.clip(np.rint(values), 0, 255).astype(np.uint8)).convert("RGB")


def _fit(picture: Image.Image, size: int) -> Image.Image:
    """The centre square, antialiased to size x size."""
    if picture.size == (size, size):
        return picture
    short = min(picture.size)
    left, top = (picture.width - short) / 2, (picture.height - short) / 2
    box = (left, top, left + short, top + short)
    return picture.resize((size, size), Image.Resampling.BILINEAR, box=box, reducing_gap=3.0)
