"""A picture as the encoder expects it; preprocessor_config.json, beside this file, says how. Needs numpy and Pillow."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps


def prepare(path: Any) -> Any:
    """The picture in a file, upright, transparency on white: float32 [1, 3, size, size], normalised."""
    how = json.loads((Path(__file__).parent / "preprocessor_config.json").read_text(encoding="utf-8"))
    picture = ImageOps.exif_transpose(Image.open(path))
    if picture.mode.startswith("I;16"):  # grey in 0..65535
        picture = Image.fromarray(np.rint(np.asarray(picture) / 257).astype(np.uint8))
    picture = picture.convert("RGBA")
    picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")
    short, size = how["size"]["shortest_edge"], how["crop_size"]["height"]
    width, height = (int(short * side / min(picture.size)) for side in picture.size)
    left, top = round((width - size) / 2), round((height - size) / 2)
    # Each channel as floating-point numbers: resized pictures of 8 bits would be rounded, which the encoder notices.
    channels = [channel.convert("F").resize((width, height), how["resample"]) for channel in picture.split()]
    pixels = np.stack([np.asarray(channel)[top : top + size, left : left + size] for channel in channels], axis=-1)
    pixels = (pixels * how["rescale_factor"] - np.array(how["image_mean"])) / np.array(how["image_std"])
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)[None], dtype=np.float32)
