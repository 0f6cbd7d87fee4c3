"""Pictures that a person hands over in Python: arrays of many shapes, or the names of files."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from os import PathLike, fspath
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from msvq.core.console import printable
from msvq.core.errors import BadInput
from msvq.data.to_rgb import UPRIGHT, Resizing, as_rgb, orientation
from msvq.data.workers import Workers

PORTION = 128  # files that a process decodes at a time

Name = str | PathLike[str]


def materialise(images: Any) -> Any:
    """What can be looked at more than once: an iterator, such as `Path.glob` gives, as a list; all else as it is."""
    return list(images) if isinstance(images, Iterator) else images


def are_paths(images: object) -> TypeGuard[Iterable[Name]]:
    """Whether these are the names of files: a list, a tuple, an array or a column of a table, of str or Path."""
    if isinstance(images, str | bytes | PathLike | Iterator) or not isinstance(images, Iterable):
        return False  # of an iterator, to look at the first would be to lose it
    return isinstance(next(iter(images), None), str | PathLike)


def decode_files(
    files: Iterable[Name], side: int, resizing: Resizing | None, *, most: int = PORTION
) -> Iterator[NDArray[np.uint8]]:
    """The pictures in files, in batches [n, side, side, 3] of at most so many: their upright centre squares.

    One that cannot be read is an error: every file shall have its row.
    """
    names: list[str | bytes] = []
    for file in files:
        if not isinstance(file, str | PathLike):
            raise BadInput(f"a list of files holds names and paths alone, not {file!r}")
        names.append(fspath(file))
    num = min(most, PORTION)
    starts = range(0, len(names), num)
    with closing(Workers()) as pool:
        found = pool.map("decode", (names[start : start + num] for start in starts), side=side, resizing=resizing)
        for start, result in zip(starts, found, strict=True):
            for index, reason in result.reasons.items():
                raise BadInput(f"{printable(str(names[start + index]))} {reason}; leave it out of the list")
            yield result.rows


def to_image_list(images: ArrayLike | Sequence[ArrayLike]) -> list[NDArray[np.uint8]]:
    """Each picture as uint8 [H, W, 3]. An array [3, H, W] or [1, H, W] is one picture, not several grey ones."""
    if isinstance(images, (list, tuple)):
        return [_as_picture(_as_array(image)) for image in images]
    array = _as_array(images)
    batched = array.ndim == 4 or (array.ndim == 3 and array.shape[-1] not in (1, 3) and array.shape[0] not in (1, 3))
    return [_as_picture(picture) for picture in (array if batched else [array])]


def _as_array(image: Any) -> NDArray[Any]:
    """A picture of Pillow's is put upright on white in RGB, as a file of it is."""
    if isinstance(image, Image.Image):
        rgb, turn = as_rgb(image, max(image.size)), UPRIGHT.get(orientation(image))
        image = rgb if turn is None else rgb.transpose(turn)
    return np.asarray(image)


def _as_picture(picture: NDArray[Any]) -> NDArray[np.uint8]:
    if picture.ndim == 2:
        picture = picture[..., None]
    if not picture.size:
        raise BadInput(f"a picture has pixels; one of these has the shape {list(picture.shape)}")
    if picture.ndim != 3 or not {picture.shape[0], picture.shape[-1]} & {1, 3}:
        raise BadInput(f"a picture has the shape [H, W, 3], [3, H, W] or [H, W], not {list(picture.shape)}")
    if picture.shape[-1] not in (1, 3):
        picture = np.moveaxis(picture, 0, -1)
    if np.issubdtype(picture.dtype, np.floating):
        if not (picture.min() >= 0 and picture.max() <= 1):
            raise BadInput("pictures of floating-point numbers must lie in 0..1; give 0..255 as uint8")
        picture = np.rint(picture * 255).astype(np.uint8)
    if picture.dtype != np.uint8:
        raise BadInput(f"pictures are uint8 or floating-point arrays, not {picture.dtype}")
    return np.ascontiguousarray(np.broadcast_to(picture, (*picture.shape[:2], 3)))
