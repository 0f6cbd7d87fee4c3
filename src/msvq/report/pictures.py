"""Pictures on the page: thumbnails in data addresses, the neighbour grid and the false-negative gallery."""

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from msvq.core.console import printable

THUMBNAIL = 64  # pixels at most: they are shown at some 60
THUMBNAIL_QUALITY = 90
SHEET_QUALITIES = (85, 75, 65)  # the first that is small enough


def data_address(image: NDArray[np.uint8], quality: int) -> str:
    """A picture uint8 [H, W, 3] in a data address: PNG or JPEG, whichever is smaller."""
    return min(_address(image, "png"), _address(image, "jpeg", quality), key=len)


def shrink(image: NDArray[np.uint8], most: int) -> NDArray[np.uint8]:
    """A picture uint8 [H, W, 3] with no side above `most`."""
    picture = Image.fromarray(image)
    picture.thumbnail((most, most), Image.Resampling.LANCZOS)
    return np.asarray(picture)


def class_name(names: Sequence[Any] | NDArray[Any], label: int) -> str:
    """A label in words; empty where it is unknown."""
    if label < 0:
        return ""
    return printable(str(names[label])) if label < len(names) else f"class {label}"


def cell(image: NDArray[np.uint8], label: int, truth: int | None, names: NDArray[Any]) -> dict[str, Any]:
    """A thumbnail with its class, and whether that is the query's; without a truth it is the query itself."""
    mark = ""  # nobody knows
    if truth is None:
        mark = "query"
    elif label >= 0 and truth >= 0:
        mark = "same" if label == truth else "other"
    small, address = max(image.shape[:2]) < THUMBNAIL, data_address(shrink(image, THUMBNAIL), THUMBNAIL_QUALITY)
    return {"src": address, "name": class_name(names, label), "mark": mark, "small": small}


def sprite_sheet(images: NDArray[np.uint8], most_bytes: int = 1_000_000) -> dict[str, Any]:
    """Pictures [n, h, w, 3] side by side in one: its address, and how to find picture i in it.

    Tiles are squares, filled up to whole blocks of JPEG (8 pixels), so that no picture bleeds into its neighbour.
    """
    num, height, width = images.shape[:3]
    size = max(height, width)
    step = -(-size // 8) * 8
    columns = max(1, int(np.ceil(num**0.5)))
    rows = max(1, -(-num // columns))
    tiles = np.zeros((rows * columns, step, step, 3), np.uint8)
    tiles[:num] = np.pad(images, ((0, 0), (0, step - height), (0, step - width), (0, 0)), mode="edge")
    sheet = tiles.reshape(rows, columns, step, step, 3).swapaxes(1, 2).reshape(rows * step, columns * step, 3)
    sheet = np.ascontiguousarray(sheet)
    for quality in SHEET_QUALITIES:
        source = _address(sheet, "jpeg", quality)
        if len(source) < most_bytes:
            break
    return {"src": min(source, _address(sheet, "png"), key=len), "size": size, "step": step, "columns": columns}


def encode_picture(image: NDArray[np.uint8], kind: str, quality: int = 0) -> bytes:
    """A picture uint8 [H, W, 3] as the content of a file: "png", or "jpeg" of a quality."""
    buffer = io.BytesIO()
    options = {"quality": quality, "subsampling": 0} if kind == "jpeg" else {}
    Image.fromarray(image).save(buffer, kind, **options)
    return buffer.getvalue()


def _address(image: NDArray[np.uint8], kind: str, quality: int = 0) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(encode_picture(image, kind, quality)).decode()}"
