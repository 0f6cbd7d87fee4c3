"""Pictures as one uint8 array with their labels, and the splits of a data set."""

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Pictures:
    """A split: images uint8 [N, H, W, 3] and labels int64 [N], -1 where unknown."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def __post_init__(self) -> None:
        assert self.images.dtype == np.uint8 and self.images.ndim == 4 and self.images.shape[3] == 3
        assert self.labels.shape == self.images.shape[:1]

    def __len__(self) -> int:
        return len(self.images)

    def first(self, num: int | None) -> "Pictures":
        """The first `num` pictures, or all of them."""
        return Pictures(self.images[:num], self.labels[:num])


@dataclass(frozen=True)
class DataSet:
    """What a run trains on and is judged by."""

    name: str
    train: Pictures  # for pre-training; labels are used by analysis alone
    bank: Pictures  # labelled pictures that kNN compares with
    test: Pictures
    class_names: tuple[str, ...]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    size: int  # side of a training crop
    test_size: int  # side of a picture when features are taken
    notes: tuple[str, ...] = ()  # sentences about what is missing

    @property
    def num_classes(self) -> int:
        """How many classes have a name."""
        return len(self.class_names)

    def fingerprint(self) -> str:
        """A hash of every picture and label, to tell whether two runs saw the same data."""
        digest = hashlib.sha256()
        for split in (self.train, self.bank, self.test):
            digest.update(repr(split.images.shape).encode())
            digest.update(np.ascontiguousarray(split.images).data)
            digest.update(np.ascontiguousarray(split.labels).data)
        return digest.hexdigest()[:16]
