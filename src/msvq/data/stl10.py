"""STL-10 from the binary files of its official archive."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from msvq.core.errors import BadInput
from msvq.data.splits import Splits
from msvq.data.store import ImageSplit


def read_stl10(path: Path) -> Splits:
    """Train and unlabelled pictures to learn from, the labelled ones to judge by."""
    bank, test = _labelled(path, "train"), _labelled(path, "test")
    train, notes = bank, [f"{path.name} lacks unlabeled_X.bin: training on the {len(bank):,} labelled pictures alone"]
    if (path / "unlabeled_X.bin").is_file():
        more = _stl_images(path / "unlabeled_X.bin")
        unknown = np.full(len(more), -1, dtype=np.int64)
        train, notes = ImageSplit(_joined(bank.take(range(len(bank))), more), np.append(bank.labels, unknown)), []
    listed = path / "class_names.txt"
    words = listed.read_text(encoding="utf-8", errors="replace").split() if listed.is_file() else []
    names = tuple(words) if len(words) == 10 else tuple(map(str, range(1, 11)))
    return Splits(train, bank, test, names, tuple(notes))


def _labelled(path: Path, split: str) -> ImageSplit:
    images, labels = _stl_images(path / f"{split}_X.bin"), _stl_labels(path / f"{split}_y.bin")
    if len(images) != len(labels):
        raise BadInput(f"{path} has {len(images):,} {split} pictures and {len(labels):,} labels; extract it again")
    return ImageSplit(images, labels)


def _joined(first: NDArray[np.uint8], more: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """One array of both, filled piece by piece: the 2.8 GB are in memory once."""
    images = np.empty((len(first) + len(more), *first.shape[1:]), np.uint8)
    images[: len(first)] = first
    for start in range(0, len(more), 1000):
        images[len(first) + start :][:1000] = more[start : start + 1000]
    return images


def _stl_images(path: Path) -> NDArray[np.uint8]:
    """Three planes of 96 columns of 96 values."""
    if not path.is_file():
        raise BadInput(f"there is no {path.name} in {path.parent}; extract the archive again")
    values = np.memmap(path, np.uint8, "c") if path.stat().st_size else np.zeros(0, np.uint8)
    if not len(values) or len(values) % (3 * 96 * 96):
        raise BadInput(f"{path} is cut short; extract it again")
    return values.reshape(-1, 3, 96, 96).transpose(0, 3, 2, 1)


def _stl_labels(path: Path) -> NDArray[np.int64]:
    if not path.is_file():
        raise BadInput(f"there is no {path.name} in {path.parent}; extract the archive again")
    labels = np.fromfile(path, dtype=np.uint8).astype(np.int64) - 1
    if not len(labels) or labels.min() < 0 or labels.max() > 9:
        raise BadInput(f"{path} holds labels other than 1 to 10; extract it again")
    return labels
