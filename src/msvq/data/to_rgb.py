"""An opened picture as the upright RGB square that an encoder sees. An export hands this code over: numpy, Pillow."""

from typing import NamedTuple

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


class Resizing(NamedTuple):
    """As libraries fit a picture: all of it is resized, and `size` x `size` pixels are cut out of its centre."""

    side: int  # the shorter side of the picture that is cut; with `squash` both
    size: int
    interpolation: str = "bilinear"  # or bicubic
    squash: bool = False  # whether a picture loses its shape rather than its edges


def upright_square(image: Image.Image, side: int, resizing: Resizing | None = None) -> Image.Image:
    """The centre square, upright, in RGB, transparency on white, at side x side; what `resizing` keeps lies in it."""
    turn = UPRIGHT.get(orientation(image))
    rgb = as_rgb(image, side)
    square = fit_square(rgb, side) if resizing is None else _resized_square(rgb, resizing)
    return square if turn is None else square.transpose(turn)


def orientation(image: Image.Image) -> int:
    """The EXIF orientation that is left to undo, 1 where there is none that makes sense."""
    if image.format == "TIFF":  # Pillow turns it upright
        return 1
    try:
        return int(image.getexif().get(0x0112, 1))
    except Exception:  # damaged EXIF data is no reason to leave a picture out
        return 1


def as_rgb(image: Image.Image, side: int) -> Image.Image:
    """In RGB, transparency on white; a picture much larger than `side` may come smaller."""
    factor = max(1, min(image.size) // (4 * side))  # large pictures shrink before they are converted, to save memory
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode.startswith("I") or image.mode == "F":
        return _from_wide(image, factor)
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        layer = image.reduce(factor) if image.mode in ("RGBA", "LA") else image
        layer = layer.convert("RGBA")
        white = Image.new("RGBA", layer.size, "white")
        return Image.alpha_composite(white, layer).convert("RGB")
    return image.convert("RGB")


def _from_wide(image: Image.Image, factor: int) -> Image.Image:
    """16-bit, 32-bit and floating-point grey: 0..65535 (0..255, 0..1) become 0..255."""
    pixels = np.asarray(image)
    top = float(pixels.max(where=np.isfinite(pixels), initial=0))
    values = np.nan_to_num(pixels[::factor, ::factor].astype(np.float32))
    scale = 255 / 65535 if top > 255 or image.mode.startswith("I;16") else 1.0 if top > 1 or image.mode == "I" else 255
    grey = np.clip(np.rint(values * scale), 0, 255).astype(np.uint8)
    return Image.fromarray(np.repeat(grey[..., None], 3, axis=2))


def fit_square(image: Image.Image, side: int) -> Image.Image:
    """The centre square, antialiased to side x side; cropped first, so a long thin picture stays small."""
    if image.size == (side, side):
        image.load()
        return image
    short = min(image.size)
    left, top = (image.width - short) / 2, (image.height - short) / 2
    box = (left, top, left + short, top + short)
    return image.resize((side, side), Image.Resampling.BILINEAR, box=box, reducing_gap=3.0)


def _resized_square(image: Image.Image, how: Resizing) -> Image.Image:
    """Of the picture resized as a whole, side x side pixels about the centre; no others are computed."""
    short, box = min(image.size), []
    for length in image.size:
        target = how.side if how.squash else int(how.side * length / short)
        start = round((target - how.size) / 2) - round((how.side - how.size) / 2)  # so that the same centre is cut out
        box.append((start * length / target, min((start + how.side) * length / target, length)))
    (left, right), (top, bottom) = box
    method = Image.Resampling[how.interpolation.upper()]
    return image.resize((how.side, how.side), method, box=(left, top, right, bottom))
