"""Pictures that are arrays already: a .npy of pictures, or a .npz of pictures with labels and perhaps a test split."""

import hashlib
import os
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray

from msvq.core.console import Display
from msvq.core.errors import BadInput
from msvq.data.decode import IMAGE_RECORD, record_of
from msvq.data.sources.base import DataPlan, ImageSource, Positions, SplitName, hold_out
from msvq.data.store import ImageDataset, ImageSplit, random_subset
from msvq.data.to_rgb import Resizing
from msvq.data.workers import Result

ARRAYS = (".npz", ".npy")
# The names that people give to arrays, the first that is there counts.
_TRAIN = ("images", "train_images", "x_train", "train_x", "x", "data", "arr_0")
_TRAIN_LABELS = ("labels", "train_labels", "y_train", "train_y", "y", "targets", "arr_1")
_TEST = ("test_images", "x_test", "test_x", "val_images", "x_val")
_TEST_LABELS = ("test_labels", "y_test", "test_y", "val_labels", "y_val")


@dataclass(frozen=True)
class ArrayImages(ImageSource):
    """Pictures that are arrays already. Without labels, `labelled` and `test` are empty."""

    train: ImageSplit
    labelled: ImageSplit
    test: ImageSplit
    class_names: tuple[str, ...]
    notes: tuple[str, ...] = ()
    origin: str = ""
    title: str = ""
    shuffled: bool = False  # a known set, which comes in a random order
    in_memory = True
    root, num_others, unlisted, size_mtime = "", 0, (), None

    @property
    def num_train(self) -> int:  # type: ignore[override]  # as read-only as a field
        """The others are test pictures."""
        return len(self.train)

    @cached_property
    def names(self) -> Sequence[str]:  # type: ignore[override]
        """The split and the place in it."""
        return [f"train {i}" for i in range(len(self.train))] + [f"test {i}" for i in range(len(self.test))]

    @cached_property
    def labels(self) -> NDArray[np.int64]:  # type: ignore[override]
        """-1 where unknown."""
        return np.concatenate([self.train.labels, self.test.labels])

    def fingerprint(self) -> str:
        """By the file, or the pixels where there are several or none."""
        digest, path = hashlib.sha256(f"{len(self.train)} {len(self.test)}".encode()), Path(self.origin)
        if path.suffix.lower() in ARRAYS and path.is_file():
            status = path.stat()
            digest.update(os.fsencode(f"{self.origin} {status.st_size} {status.st_mtime_ns}"))
        else:
            for images in (images for part in (self.train, self.test) for images in part.batches_in_order(1000)):
                digest.update(np.ascontiguousarray(images).data)
        return digest.hexdigest()[:32]

    def limit(self, num: int | None) -> "ArrayImages":
        """With `num` training pictures: the first of a known set, which is mixed; else a fixed random choice."""
        if num is None or num >= len(self.train):
            return self
        train = _subset(self.train, np.arange(num) if self.shuffled else random_subset(len(self.train), num))
        if self.shuffled and self.labelled is not self.train:
            return replace(self, train=train)  # STL-10's labelled pictures are a set of their own
        return replace(self, train=train, labelled=_labelled(train))

    def split(self, name: SplitName) -> "ArrayImages":
        """The pictures of one split, or all if they have one size."""
        if name == "all":
            if len(self.train) and len(self.test) and self.train.shape[1:] != self.test.shape[1:]:
                raise BadInput(f"training and test pictures of {self.title!r} differ in size; choose one with --split")
            return self
        other = "test" if name == "train" else "train"
        return replace(self, **{other: getattr(self, other).slice(0, 0)})

    def typical_side(self) -> int:
        """Of the training pictures."""
        return min(self.train.shape[1:3])

    def sizes(self, positions: Sequence[int]) -> list[tuple[int, int]]:
        """Width and height of each, in pixels."""
        parts = (self.train if i < len(self.train) else self.test for i in positions)
        return [(part.shape[2], part.shape[1]) for part in parts]

    def decoded(
        self, portions: Iterable[Positions], side: int, resizing: Resizing | None = None, *, workers: int | None = None
    ) -> Generator[Result]:
        """Pixels of each portion as they are, whatever `side`."""
        for rows in portions:
            train = rows < len(self.train)
            images = np.empty((len(rows), *(self.train if train.any() else self.test).shape[1:]), np.uint8)
            for chosen, part, first in ((train, self.train, 0), (~train, self.test, len(self.train))):
                if chosen.any():
                    images[chosen] = part.take(rows[chosen] - first)
            yield Result(images, {})

    def examined(self, workers: int | None = None) -> Generator[Result]:
        """Records of all pictures."""
        for images in (images for part in (self.train, self.test) for images in part.batches_in_order(256)):
            yield Result(np.array([record_of(pixels) for pixels in images], IMAGE_RECORD), {})

    def open(self, plan: DataPlan, display: Display) -> ImageDataset:
        """As a data set, in memory or mapped."""
        return plan.dataset(self.train, self.labelled, self.test, class_names=self.class_names, notes=self.notes)


def read_arrays(path: Path, *, use_labels: bool = True, keep_all: bool = False) -> ArrayImages:
    """The splits in a file of arrays. A .npy of colour pictures, channels last, stays on disk and is mapped.

    `keep_all`: every picture, in the order of the arrays, whether or not training would use it.
    """
    try:
        loaded = np.load(path, mmap_mode="c", allow_pickle=False)
        if isinstance(loaded, np.ndarray):  # the content decides, whatever it is called
            arrays = {"images": loaded}
        else:
            with loaded as file:
                _check_contents(file.zip)
                wanted = {*_TRAIN, *_TRAIN_LABELS, *_TEST, *_TEST_LABELS}
                arrays = {name: file[name] for name in file.files if name.lower() in wanted}
                if not arrays:
                    raise BadInput(f"{path} holds no array 'images', but {', '.join(file.files) or 'nothing'}")
    # A damaged file raises almost anything: of zipfile, of zlib, of the parser of headers.
    except Exception as error:
        if isinstance(error, BadInput) or (isinstance(error, OSError) and error.filename):
            raise
        raise BadInput(f"{path} is not a file of numpy arrays, or it is damaged ({error})") from None
    found = {name.lower(): array for name, array in arrays.items()}
    train = _find_split(path, found, _TRAIN, _TRAIN_LABELS if use_labels else ())
    test = _find_split(path, found, _TEST, _TEST_LABELS if use_labels else ())
    if train is None:
        raise BadInput(f"{path} holds no array 'images', but {', '.join(arrays)}")
    return replace(_split(train, test or train.slice(0, 0), keep_all=keep_all), origin=str(path))


def _check_contents(archive: ZipFile) -> None:
    """Raise if the table of contents is damaged: an array whose name it hides or changes would just not be there."""
    for member in archive.infolist():
        archive.open(member).close()  # compares with the name that stands before the content
    assert archive.fp is not None
    archive.fp.seek(-22 - len(archive.comment), os.SEEK_END)
    end = archive.fp.read(22)
    if end[:4] != b"PK\5\6" or int.from_bytes(end[10:12], "little") not in (len(archive.infolist()), 0xFFFF):
        raise BadZipFile("its table of contents is not whole")


def _find_split(
    path: Path, found: dict[str, Any], image_keys: tuple[str, ...], label_keys: tuple[str, ...]
) -> ImageSplit | None:
    key = next((name for name in image_keys if name in found), None)
    if key is None:
        return None
    pixels = _to_images(path, key, found[key])
    label_key = next((name for name in label_keys if name in found), None)
    if label_key is None:
        return ImageSplit(pixels, np.full(len(pixels), -1, np.int64))
    values = np.asarray(found[label_key])
    values = values.reshape(len(values), -1)[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    if values.shape != pixels.shape[:1] or not np.issubdtype(values.dtype, np.integer):
        raise BadInput(
            f"{path}: {label_key!r} should be {len(pixels)} whole numbers, one per picture, "
            f"not {values.dtype} {list(values.shape)}"
        )
    if values.size and values.min() < -1:
        raise BadInput(f"{path}: {label_key!r} holds {values.min()}; classes count from 0, and -1 is unknown")
    return ImageSplit(pixels, values.astype(np.int64))


def _to_images(path: Path, key: str, array: NDArray[Any]) -> NDArray[np.uint8]:
    if array.dtype != np.uint8:
        raise BadInput(f"{path}: pictures are uint8 arrays, and {key!r} is {array.dtype}; scale it to 0..255 first")
    if array.ndim == 3:
        array = array[..., None]
    if array.ndim == 4 and array.shape[3] not in (1, 3) and array.shape[1] in (1, 3):
        array = np.moveaxis(array, 1, 3)
    if array.ndim != 4 or array.shape[3] not in (1, 3) or 0 in array.shape:
        raise BadInput(f"{path}: {key!r} should have the shape [N, H, W, 3] or [N, H, W], not {list(array.shape)}")
    return np.repeat(array, 3, axis=3) if array.shape[3] == 1 else array


def _split(train: ImageSplit, test: ImageSplit, *, keep_all: bool) -> ArrayImages:
    """Labelled pictures for the bank, and a held-out tenth where there is no labelled test split."""
    labels = np.concatenate([train.labels, test.labels])
    classes = np.unique(labels[labels >= 0])
    train, test = _renumbered(train, classes), _renumbered(test, classes)
    nothing, names, notes = train.slice(0, 0), tuple(map(str, classes)), []
    if keep_all:
        return ArrayImages(train, nothing, test, names)
    if len(classes) < 2:
        if len(test):
            notes.append(f"without labels, the {len(test):,} test pictures are left out")
        unlabelled = ImageSplit(train.images, np.full(len(train), -1, np.int64))
        return ArrayImages(unlabelled, nothing, nothing, (), tuple(notes))
    if (test.labels >= 0).any():
        if left_out := int((test.labels < 0).sum()):
            notes.append(f"{left_out:,} test pictures without a known class are left out")
        test = _labelled(test)
    else:
        held_out = hold_out(train.labels)
        notes.append(f"no labelled test pictures: {len(held_out):,} of the labelled pictures are held out to judge by")
        test = _subset(train, held_out)
        train = _subset(train, np.setdiff1d(np.arange(len(train)), held_out))
    return ArrayImages(train, _labelled(train), test, names, tuple(notes))


def _renumbered(pictures: ImageSplit, classes: NDArray[np.int64]) -> ImageSplit:
    """With labels that count from 0 without gaps."""
    labels = np.where(pictures.labels < 0, -1, np.searchsorted(classes, pictures.labels))
    return ImageSplit(pictures.images, labels)


def _labelled(pictures: ImageSplit) -> ImageSplit:
    return _subset(pictures, np.flatnonzero(pictures.labels >= 0))


def _subset(pictures: ImageSplit, chosen: NDArray[np.int64]) -> ImageSplit:
    return pictures if len(chosen) == len(pictures) else ImageSplit(pictures.take(chosen), pictures.labels[chosen])
