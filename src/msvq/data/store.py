"""Pictures as one uint8 array with their labels and names, in memory or mapped from disk; and data sets of them."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Self, overload

import numpy as np
from numpy.typing import NDArray

from msvq.data.to_rgb import Resizing

if TYPE_CHECKING:
    from msvq.data.stream import DecodingStream

FIXED_SEED = 0  # of choices that are the same in every run
Batch = tuple[NDArray[np.uint8], NDArray[np.int64]]
Triple = tuple[float, float, float]


class Names(Sequence[str]):
    """File names as one array of bytes, which may be mapped from disk: of a million, none takes memory until asked for.

    As strings they take 100 MB.
    """

    def __init__(self, blob: NDArray[np.uint8], bounds: NDArray[np.int64]) -> None:
        self.blob, self.bounds = blob, bounds  # name i is blob[bounds[i]:bounds[i + 1]]

    @classmethod
    def of(cls, names: Iterable[str]) -> "Names":
        """These names, in memory."""
        encoded = [os.fsencode(name) for name in names]
        return cls(np.frombuffer(b"".join(encoded), np.uint8), np.cumsum([0, *map(len, encoded)]))

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> "Names": ...
    def __getitem__(self, index: int | slice) -> "str | Names":
        if isinstance(index, int):
            place = range(len(self))[index]
            return os.fsdecode(self.blob[self.bounds[place] : self.bounds[place + 1]].tobytes())
        first, last, step = index.indices(len(self))
        if step != 1:
            return Names.of(self[i] for i in range(first, last, step))
        return Names(self.blob, self.bounds[first : max(first, last) + 1])  # still on disk


@dataclass(frozen=True)
class ImageSplit:
    """A split: images uint8 [N, H, W, 3] and labels int64 [N], -1 where unknown."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    names: Sequence[str] | None = None  # of the files of `images`, where they have some
    rows: NDArray[np.int64] | None = None  # which of `images` they are; None: all, in order

    def __post_init__(self) -> None:
        assert len(self.images.shape) == 4 and self.images.shape[3] == 3 and self.images.dtype == np.uint8
        assert len(self.labels) == (self.images.shape[0] if self.rows is None else len(self.rows))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, ...]:
        """N, H, W, 3."""
        return len(self), *self.images.shape[1:]

    def slice(self, start: int, stop: int | None) -> Self:
        """A stretch of the pictures, without copying them."""
        labels = self.labels[start:stop]
        if self.rows is not None:
            return replace(self, labels=labels, rows=self.rows[start:stop])
        names = None if self.names is None else self.names[start:stop]
        return replace(self, images=self.images[start:stop], labels=labels, names=names)

    def select(self, chosen: NDArray[np.int64]) -> Self:
        """Some of the pictures, without copying them."""
        return replace(self, labels=self.labels[chosen], rows=chosen if self.rows is None else self.rows[chosen])

    def subsample(self, num: int | None) -> Self:
        """At most `num` pictures, a fixed random choice, without copying them; None: all."""
        return self if num is None or num >= len(self) else self.select(random_subset(len(self), num))

    def sample(self, num: int) -> "ImageSplit":
        """At most `num` pictures, evenly spaced, in memory."""
        chosen = spaced_rows(len(self), num)
        return ImageSplit(self.take(chosen), self.labels[chosen])

    def batches(self, chosen: Iterable[NDArray[np.int64]]) -> Iterator[Batch]:
        """Images of each set of indices, with the indices: those of a stream may differ from what was asked for."""
        for indices in chosen:
            yield self.images[indices if self.rows is None else self.rows[indices]], indices

    def take(self, indices: Sequence[int] | NDArray[np.int64]) -> NDArray[np.uint8]:
        """A few pictures, copied."""
        chosen = np.asarray(indices, np.int64)
        return next(self.batches([chosen]))[0] if len(chosen) else np.zeros((0, *self.shape[1:]), np.uint8)

    def batches_in_order(self, num: int) -> Iterator[NDArray[np.uint8]]:
        """All pictures, in batches of `num`."""
        for start in range(0, len(self), num):
            stop = start + num
            yield self.images[start:stop] if self.rows is None else self.images[self.rows[start:stop]]

    def labels_as_read(self) -> NDArray[np.int64]:
        """The labels of what `batches_in_order` has yielded: a stream replaces a picture that it has lost."""
        return self.labels

    def file_names(self) -> list[str]:
        """The name of each picture's file; empty where it has none."""
        if self.names is None:
            return [""] * len(self)
        return [self.names[int(row)] for row in (range(len(self)) if self.rows is None else self.rows)]


@dataclass(frozen=True)
class ImageDataset:
    """What a run trains on and is judged by. Without labels, labelled and test are empty."""

    name: str
    train: ImageSplit  # for pre-training; labels are used by analysis alone
    labelled: ImageSplit  # of them or others: what kNN compares with
    test: ImageSplit
    class_names: tuple[str, ...]
    mean: Triple
    std: Triple
    size: int  # side of a training crop
    test_size: int  # side of a picture when features are taken
    resizing: Resizing | None = None  # how they are fitted to `test_size`; None: the shorter side is resized to it
    notes: tuple[str, ...] = ()  # sentences about what is missing
    skipped: tuple[tuple[str, str], ...] = ()  # pictures that could not be read, and why
    content: str | None = None  # a hash of the pictures, where one is known already
    stream: "DecodingStream | None" = None  # where the pictures stay in their files

    @property
    def num_classes(self) -> int:
        """How many classes have a name."""
        return len(self.class_names)

    @property
    def has_labels(self) -> bool:
        """Whether accuracy can be measured."""
        return len(self.labelled) > 0 and len(self.test) > 0

    @cached_property
    def fingerprint(self) -> str:
        """A hash of every picture and label, to tell whether two runs saw the same data."""
        digest = hashlib.sha256((self.content or "").encode())
        for split in (self.train, self.labelled, self.test):
            digest.update(repr(split.shape).encode())
            if self.content is None:
                digest.update(np.ascontiguousarray(split.images).data)
            digest.update(np.ascontiguousarray(split.labels).data)
        return digest.hexdigest()[:16]

    def close(self) -> None:
        """End the processes that decode, if the pictures are streamed."""
        if self.stream is not None:
            self.stream.workers.close()


def random_subset(num: int, limit: int) -> NDArray[np.int64]:
    """Indices of a fixed random `limit` of so many pictures, in order."""
    return np.sort(np.random.default_rng(FIXED_SEED).permutation(num)[:limit])


def spaced_rows(num: int, most: int) -> NDArray[np.int64]:
    """At most so many of `num` rows, evenly spaced from the first to the last."""
    return np.unique(np.linspace(0, num - 1, min(most, num)).astype(np.int64))


def by_class(labels: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Indices of each class's members, classes in their order; -1 is none."""
    order = np.argsort(labels, kind="stable")
    order = order[np.searchsorted(labels, 0, sorter=order) :]
    return np.split(order, np.flatnonzero(np.diff(labels[order])) + 1) if len(order) else []
