"""The pictures that a command is to embed, in one order, whatever they are stored as."""

import hashlib
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from msvq.core.console import Display
from msvq.core.errors import BadInput, unknown
from msvq.data.decode import header_size
from msvq.data.hub import HubPictures
from msvq.data.items import pieces
from msvq.data.listing import Listing
from msvq.data.sources import ARRAYS, DataSettings, absolute, is_path, locate
from msvq.data.splits import Splits
from msvq.data.workers import Result, Workers
from msvq.runs.run_dir import RunDir

SplitName = Literal["all", "train", "test"]
Positions = NDArray[np.int64]


class Source(Protocol):
    """Pictures with names and labels, and a way to their pixels. Positions count from 0 in their order."""

    title: str  # what a person calls them
    origin: str  # what they come from: indexes of one origin replace each other
    names: Sequence[str]
    labels: NDArray[np.int64]  # -1 where unknown
    class_names: tuple[str, ...]
    unlisted: tuple[tuple[str, str], ...]  # folders that could not be looked into, and why
    root: str  # the folder that the names are relative to, where they are files
    stamps: NDArray[np.int64] | None  # [N, 2]: size and time of each file, where they are files

    def __len__(self) -> int: ...

    def fingerprint(self) -> str:
        """Changes when a picture, or the choice of them, does."""
        ...

    def decoded(self, portions: Iterable[Positions], side: int, *, workers: int | None = None) -> Generator[Result]:
        """Pixels uint8 [n, H, W, 3] of each portion, in order, and why some are empty.

        Files come as side x side, from so many `workers` (None: one per core).
        """
        ...

    def sizes(self, positions: Sequence[int]) -> list[int]:
        """The shorter side of a few pictures in pixels; 0 where it cannot be told."""
        ...


def open_source(
    run: RunDir,
    data: str | None,
    data_root: str | Path | None = None,
    *,
    split: str = "all",
    download: bool = False,
    display: Display | None = None,
) -> Source:
    """The pictures that `--data` names (None: the run's own): all of them, or a split as training would see it."""
    if split not in get_args(SplitName):
        raise unknown("split", split, get_args(SplitName))
    own = data is None or absolute(data) == run.config.data.source
    root = Path(data_root) if data_root is not None else run.config.data.root if own else None
    settings = DataSettings(source=run.config.data.source if data is None else data, root=root)
    if own:  # a run without labels holds no picture out
        settings = settings.model_copy(update={"labels": run.config.data.labels})
    whole = split == "all" and is_path(settings.source)
    found = locate(settings, download=download, display=display, whole=whole)
    num_train = len(found.train) if isinstance(found, Splits) else found.num_train
    num = num_train + len(found.test) if isinstance(found, Splits) else len(found)
    chosen = {"all": range(num), "train": range(num_train), "test": range(num_train, num)}[split]
    if not chosen:
        raise BadInput(f"there are no {split} pictures in {settings.source!r}; --split all takes those that there are")
    positions = np.arange(chosen.start, chosen.stop)
    if isinstance(found, Splits):
        return _Arrays(settings.source, found, positions)
    return _Files(settings.source, found, positions)


class _Files:
    """Pictures that are files, or the content of files: decoded by worker processes."""

    def __init__(self, title: str, items: Listing | HubPictures, chosen: Positions) -> None:
        self.title, self.items, self.chosen = title, items, chosen
        self.origin, self.root = items.origin, items.root
        self.names = items.names[int(chosen[0]) : int(chosen[-1]) + 1]
        self.labels, self.class_names = items.labels[chosen], tuple(items.class_names)
        self.unlisted = items.unlisted if isinstance(items, Listing) else ()
        self.stamps = items.stamps[chosen] if isinstance(items, Listing) else None

    def __len__(self) -> int:
        return len(self.chosen)

    def fingerprint(self) -> str:
        return _digest(self.items.fingerprint(), self.chosen)

    def decoded(self, portions: Iterable[Positions], side: int, *, workers: int | None = None) -> Generator[Result]:
        pool = Workers(workers)
        try:
            chunks = (piece for rows in portions for piece in pieces(self.items, self.chosen[rows], len(rows)))
            yield from pool.map("decode", chunks, side=side)
        finally:
            pool.close()

    def sizes(self, positions: Sequence[int]) -> list[int]:
        return [min(header_size(self.items[int(self.chosen[i])]) or (0,)) for i in positions]


class _Arrays:
    """Pictures that are arrays already: the training pictures, then those of the test."""

    unlisted: tuple[tuple[str, str], ...] = ()
    root = ""
    names: Sequence[str]
    stamps: NDArray[np.int64] | None = None

    def __init__(self, title: str, splits: Splits, chosen: Positions) -> None:
        self.title, self.origin, self.splits, self.chosen = title, absolute(title), splits, chosen
        self.num_train, num_test = len(splits.train), len(splits.test)
        crosses = chosen[0] < self.num_train <= chosen[-1]
        if crosses and splits.train.images.shape[1:] != splits.test.images.shape[1:]:
            raise BadInput(f"training and test pictures of {title!r} differ in size; choose one with --split")
        names = [f"train {i}" for i in range(self.num_train)] + [f"test {i}" for i in range(num_test)]
        self.names = names[int(chosen[0]) : int(chosen[-1]) + 1]
        self.labels = np.concatenate([splits.train.labels, splits.test.labels])[chosen]
        self.class_names = tuple(splits.class_names)

    def __len__(self) -> int:
        return len(self.chosen)

    def fingerprint(self) -> str:
        path = Path(self.origin)
        if path.suffix.lower() in ARRAYS and path.is_file():
            status = path.stat()
            return _digest(f"{self.origin} {status.st_size} {status.st_mtime_ns}", self.chosen)
        digest = hashlib.sha256()
        for part in (self.splits.train, self.splits.test):
            for images in part.batches_in_order(1000):
                digest.update(np.ascontiguousarray(images).data)
        return _digest(digest.hexdigest(), self.chosen)

    def decoded(self, portions: Iterable[Positions], side: int, *, workers: int | None = None) -> Generator[Result]:
        for rows in portions:
            places = self.chosen[rows]
            train = places < self.num_train
            some = self.splits.train if train.any() else self.splits.test
            images = np.empty((len(places), *some.images.shape[1:]), np.uint8)
            for chosen, part, first in ((train, self.splits.train, 0), (~train, self.splits.test, self.num_train)):
                if chosen.any():
                    images[chosen] = part.take(places[chosen] - first)
            yield Result(images, {})

    def sizes(self, positions: Sequence[int]) -> list[int]:
        train = min(self.splits.train.images.shape[1:3])
        return [
            train if self.chosen[i] < self.num_train else min(self.splits.test.images.shape[1:3]) for i in positions
        ]


def _digest(stamp: str, chosen: Positions) -> str:
    return hashlib.sha256(f"{stamp} {chosen[0]} {chosen[-1]}".encode(errors="surrogateescape")).hexdigest()[:32]
