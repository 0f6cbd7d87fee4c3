"""Pictures as one uint8 array with their labels and names, in memory, mapped from disk or streamed; and the splits."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from msvq.data.listing import choose
from msvq.data.names import Names
from msvq.data.stream import Stream, Streamed

Batch = tuple[NDArray[np.uint8], NDArray[np.int64]]


@dataclass(frozen=True)
class ImageSplit:
    """A split: images uint8 [N, H, W, 3] and labels int64 [N], -1 where unknown."""

    images: NDArray[np.uint8] | Streamed
    labels: NDArray[np.int64]
    names: Names | None = None  # of their files, where they have some
    rows: NDArray[np.int64] | None = None  # which of `images` they are; None: all, in order

    def __post_init__(self) -> None:
        assert len(self.images.shape) == 4 and self.images.shape[3] == 3
        assert isinstance(self.images, Streamed) or self.images.dtype == np.uint8
        assert len(self.labels) == (self.images.shape[0] if self.rows is None else len(self.rows))

    def __len__(self) -> int:
        return len(self.labels)

    def part(self, start: int, stop: int | None) -> "ImageSplit":
        """A stretch of the pictures, without copying them."""
        images = self.images
        if self.rows is not None:
            return ImageSplit(images, self.labels[start:stop], rows=self.rows[start:stop])
        stretch = images.part(start, stop) if isinstance(images, Streamed) else images[start:stop]
        names = None if self.names is None else self.names.part(start, stop)
        return ImageSplit(stretch, self.labels[start:stop], names)

    def batches(self, chosen: Iterable[NDArray[np.int64]]) -> Iterator[Batch]:
        """Images of each set of indices, with the indices: those of a stream may differ from what was asked for."""
        if isinstance(self.images, Streamed):
            yield from self.images.batches(chosen)
        else:
            for indices in chosen:
                yield self.images[indices if self.rows is None else self.rows[indices]], indices

    def take(self, indices: Sequence[int] | NDArray[np.int64]) -> NDArray[np.uint8]:
        """A few pictures, copied."""
        chosen = np.asarray(indices, np.int64)
        if not len(chosen):
            return np.zeros((0, *self.images.shape[1:]), np.uint8)
        return next(self.batches([chosen]))[0]

    def batches_in_order(self, num: int) -> Iterator[NDArray[np.uint8]]:
        """All pictures, in batches of `num`."""
        if isinstance(self.images, Streamed):
            stretches = (np.arange(start, min(start + num, len(self))) for start in range(0, len(self), num))
            yield from (images for images, _ in self.images.batches(stretches))
        elif self.rows is not None:
            yield from (self.images[self.rows[start : start + num]] for start in range(0, len(self), num))
        else:
            yield from (self.images[start : start + num] for start in range(0, len(self), num))

    def labels_as_read(self) -> NDArray[np.int64]:
        """The labels of what `in_order` has yielded: a stream puts the next picture in the place of one it has lost."""
        return self.labels[self.images.shown()] if isinstance(self.images, Streamed) else self.labels

    def subsample(self, num: int | None) -> "ImageSplit":
        """At most `num` pictures, a fixed random choice, without copying them; None: all."""
        if num is None or num >= len(self):
            return self
        chosen, images = choose(len(self), num), self.images
        if isinstance(images, Streamed):
            return ImageSplit(Streamed(images.stream, images.positions[chosen]), self.labels[chosen])
        rows = chosen if self.rows is None else self.rows[chosen]
        return ImageSplit(images, self.labels[chosen], rows=rows)

    def sample(self, num: int) -> "ImageSplit":
        """At most `num` pictures, evenly spaced, in memory."""
        chosen = np.unique(np.linspace(0, len(self) - 1, min(num, len(self))).astype(np.int64))
        return ImageSplit(self.take(chosen), self.labels[chosen])


@dataclass(frozen=True)
class ImageDataset:
    """What a run trains on and is judged by. Without labels, bank and test are empty."""

    name: str
    train: ImageSplit  # for pre-training; labels are used by analysis alone
    bank: ImageSplit  # labelled pictures that kNN compares with
    test: ImageSplit
    class_names: tuple[str, ...]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    size: int  # side of a training crop
    test_size: int  # side of a picture when features are taken
    notes: tuple[str, ...] = ()  # sentences about what is missing
    skipped: tuple[tuple[str, str], ...] = ()  # pictures that could not be read, and why
    content: str | None = None  # a hash of the pictures, where one is known already
    stream: Stream | None = None  # where the pictures stay in their files

    @property
    def num_classes(self) -> int:
        """How many classes have a name."""
        return len(self.class_names)

    @property
    def has_labels(self) -> bool:
        """Whether accuracy can be measured."""
        return len(self.bank) > 0 and len(self.test) > 0

    def fingerprint(self) -> str:
        """A hash of every picture and label, to tell whether two runs saw the same data."""
        digest = hashlib.sha256((self.content or "").encode())
        for split in (self.train, self.bank, self.test):
            digest.update(repr(split.images.shape).encode())
            if self.content is None:
                assert not isinstance(split.images, Streamed)
                digest.update(np.ascontiguousarray(split.images).data)
            digest.update(np.ascontiguousarray(split.labels).data)
        return digest.hexdigest()[:16]
