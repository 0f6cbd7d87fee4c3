"""A picture file as the encoder expects it, to the bit as msvq reads it. Needs numpy and Pillow.

preprocessor_config.json, beside this file, has the size, the mean and the deviation.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from msvq.data.to_rgb import Resizing, upright_square


def prepare(path: Any) -> Any:
    """The centre of the picture, upright, transparency on white: float32 [1, 3, size, size], normalised."""
    how = json.loads((Path(__file__).parent / "preprocessor_config.json").read_text(encoding="utf-8"))
    side, size = next(iter(how["size"].values())), how["crop_size"]["height"]
    method = Image.Resampling(how["resample"]).name
    resizing = None if how["crop_first"] else Resizing(side, size, method, squash="height" in how["size"])
    with Image.open(path) as image:
        if resizing is None:
            image.draft(None, (2 * side, 2 * side))  # a large JPEG is decoded at a fraction of its size
        pixels = np.asarray(upright_square(image, side, resizing)) * how["rescale_factor"]
    start = round((side - size) / 2)
    pixels = pixels[start : start + size, start : start + size]
    pixels = (pixels - np.array(how["image_mean"])) / np.array(how["image_std"])
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)[None], dtype=np.float32)
