"""What every source of pictures offers, whatever they are stored as, and what training makes of it."""

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from msvq.core.console import Display, counted, printable
from msvq.core.errors import BadInput
from msvq.core.files import expanduser
from msvq.core.schema import MayChange, Section
from msvq.data.decode import header_size
from msvq.data.pack import is_packed, open_pack, pack_bytes
from msvq.data.store import FIXED_SEED, ImageDataset, ImageSplit, Triple, by_class, random_subset, spaced_rows
from msvq.data.stream import DecodingStream, StreamedSplit
from msvq.data.to_rgb import Resizing
from msvq.data.workers import Result, Workers, chunked, perform

TEST_NAMES = ("test", "testing", "val", "valid", "validation")
HELD_OUT = 0.1  # of each class, where there are labels and no test split

SplitName = Literal["all", "train", "test"]
Positions = NDArray[np.int64]


class DataSettings(Section):
    """Which pictures, at what size, and how they reach the training loop."""

    source: str = "patterns"  # a name, or the path of a folder, a list or a file of arrays, or hf:NAME
    root: Annotated[Path | None, MayChange.PLACE] = None  # folder of an official data set's files
    size: Annotated[int, Ge(8)] | None = None  # side of a training crop; None: the data set's own
    test_size: Annotated[int, Ge(8)] | None = None  # side at evaluation; None: the data set's own
    limit: Annotated[int, Ge(1)] | None = None  # train on so many pictures only
    labels: Literal["auto", "none"] = "auto"  # none: leave labels out although the layout has some
    mode: Annotated[Literal["store", "stream"], MayChange.PLACE] = "store"  # stream: decode while training
    max_skipped: Annotated[float, Ge(0), Le(1), MayChange.UPKEEP] = 0.1  # share of unreadable pictures to put up with
    workers: Annotated[Annotated[int, Ge(1)] | None, MayChange.PLACE] = None  # that decode; None: one per core


@dataclass(frozen=True)
class DataPlan:
    """What training makes of a source."""

    settings: DataSettings
    size: int  # side of a training crop
    test_size: int
    stats: tuple[Triple, Triple] | None = None  # mean and deviation of the channels; None: the training pictures' own
    resizing: Resizing | None = None  # of files, as a library does it

    @property
    def side(self) -> int:
        """Of a decoded picture."""
        return max(self.size, self.test_size)

    def dataset(self, train: ImageSplit, labelled: ImageSplit, test: ImageSplit, **about: Any) -> ImageDataset:
        """The data set of these splits; `about`: its other fields."""
        source = self.settings.source
        path = expanduser(source)
        name = printable((path.stem if path.is_file() else path.name) or source)
        mean, std = self.stats or measure_stats(train)
        about |= {"mean": mean, "std": std, "size": self.size, "test_size": self.test_size}
        return ImageDataset(name=name, train=train, labelled=labelled, test=test, **about)


class ImageSource(ABC):
    """Pictures with names, labels and splits, and a way to their pixels: first those for training, then for the test.

    Positions count from 0 in their order.
    """

    title: str  # what a person calls them
    origin: str  # what they come from: packs and indexes of one origin replace each other
    root: str  # the folder that the names are relative to, where they are files
    names: Sequence[str]
    labels: NDArray[np.int64]  # -1 where unknown
    num_train: int  # the others are test pictures
    class_names: tuple[str, ...]
    notes: tuple[str, ...]  # sentences about what is missing
    num_others: int  # files that are no pictures by their names
    unlisted: tuple[tuple[str, str], ...]  # folders that could not be looked into, and why
    size_mtime: NDArray[np.int64] | None  # [N, 2]: bytes and ns of each file, -1 where there is none; None: no files
    in_memory: ClassVar[bool]  # arrays already, with nothing to decode or pack

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def fingerprint(self) -> str:
        """Changes when a picture, or the choice of them, does."""

    @abstractmethod
    def limit(self, num: int | None) -> "ImageSource":
        """With a fixed choice of `num` of the training pictures at most; None: all."""

    @abstractmethod
    def split(self, name: SplitName) -> "ImageSource":
        """The pictures of one split, or all if they can be read as one."""

    def typical_side(self) -> int:
        """The shorter side of most pictures, in pixels: the median of a few."""
        known = [side for side in self.shorter_sides(spaced_rows(len(self), 64).tolist()) if side]
        return int(np.median(known)) if known else 64

    def shorter_sides(self, positions: Sequence[int]) -> list[int]:
        """The shorter side of a few pictures in pixels; 0 where it cannot be told."""
        return [min(size) for size in self.sizes(positions)]

    @abstractmethod
    def sizes(self, positions: Sequence[int]) -> list[tuple[int, int]]:
        """Width and height of a few pictures in pixels; zeros where they cannot be told."""

    @abstractmethod
    def decoded(
        self, portions: Iterable[Positions], side: int, resizing: Resizing | None = None, *, workers: int | None = None
    ) -> Generator[Result]:
        """Pixels uint8 [n, H, W, 3] of each portion, in order, and why some are empty.

        Files come as side x side, from so many `workers` (None: one per core; 0: decoded by this process), fitted by
        `resizing` where an encoder's library would.
        """

    @abstractmethod
    def examined(self, workers: int | None = None) -> Generator[Result]:
        """A record (IMAGE_RECORD) of every picture, in order, some at a time, and why some have none."""

    def bytes_to_pack(self, side: int) -> int:
        """What packing them will take on disk; 0 if they are packed already, or never."""
        return 0

    @abstractmethod
    def open(self, plan: DataPlan, display: Display) -> ImageDataset:
        """As a data set to train on."""

    def open_trial(self, plan: DataPlan, made_up: NDArray[np.uint8]) -> ImageDataset:
        """As a data set for a few trial steps: made-up pictures stand in for those that would be packed."""
        return self.open(plan, Display())


@dataclass(frozen=True, kw_only=True)
class EncodedSource(ImageSource):
    """Pictures that are files, or the content of files."""

    origin: str
    root: str
    names: Sequence[str]
    labels: NDArray[np.int64]
    num_train: int
    class_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    title: str = ""
    num_others: int = 0
    unlisted: tuple[tuple[str, str], ...] = ()
    size_mtime: NDArray[np.int64] | None = None
    in_memory = False

    @abstractmethod
    def __getitem__(self, index: int) -> str | bytes:
        """The picture's file, or its content."""

    @property
    def num_labelled(self) -> int:
        """How many training pictures have a label; once arranged, they are the first."""
        return int((self.labels[: self.num_train] >= 0).sum())

    def select(self, chosen: Positions) -> Self:
        """Some of the pictures."""
        return replace(
            self,
            names=[self.names[int(i)] for i in chosen],
            labels=self.labels[chosen],
            num_train=int((chosen < self.num_train).sum()),
            size_mtime=None if self.size_mtime is None else self.size_mtime[chosen],
        )

    def arranged(self) -> Self:
        """In the order of training: with a label, without one, test; of which a tenth is held out if there is none."""
        if not self.num_train:
            raise BadInput(f"there are no pictures to learn from in {self.root!r}")
        is_test, labels, notes = np.arange(len(self)) >= self.num_train, self.labels, list(self.notes)
        kept = ~is_test | (labels >= 0)
        if self.class_names and not (labels[is_test] >= 0).any():
            if is_test.any():
                notes.append(f"the {int(is_test.sum()):,} test pictures have no labels: they are left out")
            held_out = hold_out(np.where(is_test, -1, labels))
            notes.append(
                f"no labelled test pictures: {len(held_out):,} of the labelled pictures are held out to judge by"
            )
            is_test = np.isin(np.arange(len(self)), held_out)
        elif left_out := int((~kept).sum()):
            notes.append(f"{left_out:,} test pictures without a known class are left out")
        order = np.argsort(np.where(is_test, 2, np.where(labels >= 0, 0, 1)), kind="stable")
        chosen = order[kept[order]]
        return replace(self.select(chosen), num_train=int((~is_test[chosen]).sum()), notes=tuple(notes))

    def limit(self, num: int | None) -> Self:
        """With a random `num` of the training pictures: the first ones would be of one class."""
        if num is None or num >= self.num_train:
            return self
        test = np.arange(self.num_train, len(self))
        return self.select(np.concatenate([random_subset(self.num_train, num), test]))

    def split(self, name: SplitName) -> Self:
        """The pictures of one split, or all."""
        is_train = np.arange(len(self)) < self.num_train
        return self if name == "all" else self.select(np.flatnonzero(is_train if name == "train" else ~is_train))

    def sizes(self, positions: Sequence[int]) -> list[tuple[int, int]]:
        """By the headers alone; zeros where one cannot be read."""
        return [header_size(self[i]) or (0, 0) for i in positions]

    def decoded(
        self, portions: Iterable[Positions], side: int, resizing: Resizing | None = None, *, workers: int | None = None
    ) -> Generator[Result]:
        """Centre squares uint8 [n, side, side, 3] of each portion."""
        chunks = ([self[int(i)] for i in rows] for rows in portions)
        if workers == 0:
            yield from (perform("decode", chunk, side, None, resizing) for chunk in chunks)
            return
        with closing(Workers(workers)) as pool:
            yield from pool.map("decode", chunks, side=side, resizing=resizing)

    def examined(self, workers: int | None = None) -> Generator[Result]:
        """Records of all pictures, by worker processes."""
        with closing(Workers(workers)) as pool:
            yield from pool.map("examine", chunked(self, range(len(self))))

    def bytes_to_pack(self, side: int) -> int:
        """0 if they lie in the cache already."""
        return 0 if is_packed(self, side) else pack_bytes(len(self), side)

    def open(self, plan: DataPlan, display: Display) -> ImageDataset:
        """As a data set: packed and mapped, or streamed."""
        settings = plan.settings
        pack = open_pack(
            self,
            side=plan.side,
            resizing=plan.resizing,
            pixels=settings.mode != "stream",
            max_skipped=settings.max_skipped,
            num_workers=settings.workers,
            display=display,
        )
        num_train, num_labelled = np.searchsorted(pack.kept, [self.num_train, self.num_labelled]).tolist()
        if not num_train:
            raise BadInput(f"none of the {self.num_train:,} training pictures of {settings.source!r} can be read")
        if pack.images is not None:
            pictures, stream = ImageSplit(pack.images, self.labels[pack.kept], pack.names), None
        else:
            max_lost = max(0, int(settings.max_skipped * len(self)) - len(pack.skipped))
            stream = DecodingStream(
                self, side=plan.side, resizing=plan.resizing, max_lost=max_lost, num_workers=settings.workers
            )
            pictures = StreamedSplit(stream, self.labels[pack.kept], self.names, rows=np.asarray(pack.kept))
        notes = list(self.notes)
        if bad := len(pack.skipped):
            unread = f"{bad:,} of {len(self):,} pictures cannot be read and are left out"
            notes.append(f"{unread}; skipped.csv says which and why")
        if closed := self.unlisted:
            notes.append(
                f"{counted(len(closed), 'folder')} cannot be looked into, such as {closed[0][0]!r}; see skipped.csv"
            )
        about = {"notes": tuple(notes), "skipped": (*self.unlisted, *pack.skipped), "content": pack.digest}
        return self._dataset(plan, pictures, num_train, num_labelled, stream=stream, **about)

    def open_trial(self, plan: DataPlan, made_up: NDArray[np.uint8]) -> ImageDataset:
        """Streamed, or made-up pictures again and again in place of those that would be packed."""
        plan = replace(plan, stats=plan.stats or ((0.5, 0.5, 0.5), (0.25, 0.25, 0.25)))
        rows, stream = np.arange(len(self)), None
        if plan.settings.mode == "stream":
            stream = DecodingStream(self, side=plan.side, max_lost=len(self), num_workers=plan.settings.workers)
            pictures: ImageSplit = StreamedSplit(stream, self.labels, self.names, rows=rows)
        else:
            pictures = ImageSplit(made_up, self.labels, rows=rows % len(made_up))
        return self._dataset(plan, pictures, self.num_train, self.num_labelled, notes=self.notes, stream=stream)

    def _dataset(
        self, plan: DataPlan, pictures: ImageSplit, num_train: int, num_labelled: int, **about: Any
    ) -> ImageDataset:
        splits = pictures.slice(0, num_train), pictures.slice(0, num_labelled), pictures.slice(num_train, None)
        return plan.dataset(*splits, class_names=tuple(map(printable, self.class_names)), **about)


def hold_out(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Indices of a fixed random tenth of each class, at least one where a class has two."""
    generator = np.random.default_rng(FIXED_SEED)
    chosen = []
    for members in map(generator.permutation, by_class(labels)):
        chosen.append(members[: max(round(HELD_OUT * len(members)), min(1, len(members) - 1))])
    return np.sort(np.concatenate(chosen)) if chosen else np.zeros(0, np.int64)


def measure_stats(pictures: ImageSplit) -> tuple[Triple, Triple]:
    """Mean and deviation of the channels, in 0..1, from up to 2,000 pictures."""
    sample = pictures.sample(2000)
    counts = np.zeros((3, 256), np.int64)
    for images in sample.batches_in_order(100):  # few at a time: counting widens the numbers
        counts += [np.bincount(images[..., channel].reshape(-1), minlength=256) for channel in range(3)]
    values, weights = np.arange(256) / 255, counts / counts.sum(axis=1, keepdims=True)
    mean = weights @ values
    std = np.sqrt(np.maximum(weights @ values**2 - mean**2, 0))
    m, s = mean.round(4).tolist(), np.maximum(std.round(4), 0.05).tolist()
    return (m[0], m[1], m[2]), (s[0], s[1], s[2])
