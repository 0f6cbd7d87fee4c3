"""From the name or path of a data set to its pictures."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Le

from msvq.core.console import Display, printable
from msvq.core.errors import BadInput, unknown
from msvq.core.files import expanduser
from msvq.core.schema import MayChange, Section
from msvq.data.arrays import read_arrays
from msvq.data.decode import header_size
from msvq.data.folders import list_folder
from msvq.data.hub import PREFIX, HubPictures, open_hub
from msvq.data.listing import Listing, choose, limit_train
from msvq.data.lists import list_file
from msvq.data.official import OFFICIAL, read_official
from msvq.data.pack import open_pack
from msvq.data.patterns import CLASS_NAMES, make_patterns
from msvq.data.splits import Splits
from msvq.data.store import ImageDataset, ImageSplit
from msvq.data.stream import Stream, Streamed

Found = Listing | HubPictures | Splits

PATTERNS_TRAIN, PATTERNS_TEST = 10_000, 2_000
SOURCES = ("patterns", *OFFICIAL)
LISTS, ARRAYS = (".txt", ".csv", ".tsv"), (".npz", ".npy")

# The recipe that is taken when none is named; a path takes "folder".
RECIPE_OF = {"patterns": "demo", **{name: name for name in OFFICIAL}}


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


def is_path(source: str) -> bool:
    """Whether a source is one's own data rather than one that is known by name."""
    return source not in SOURCES


def check_source(source: str) -> None:
    """Raise if there is no such data set; costs nothing, so it comes before any work."""
    if source in SOURCES or source.startswith(PREFIX):
        return
    path = expanduser(source)
    if not source or not path.exists():
        if path.name == source and not path.suffix:
            raise unknown("data set", source, SOURCES, more="or the path of a folder")
        raise BadInput(f"there is no file or folder {source!r}; name a folder of pictures, a list or an .npz file")
    if not path.is_dir() and not path.is_file():
        raise BadInput(f"{source!r} is neither a file nor a folder; name a folder of pictures, a list or an .npz file")
    if path.is_file() and path.suffix.lower() not in LISTS + ARRAYS:
        raise BadInput(
            f"{source!r} is a {path.suffix or 'nameless'} file; name a folder, a {', '.join(LISTS + ARRAYS)}"
        )


def absolute(source: str) -> str:
    """The source as it is written down: a path no longer depends on where the command ran."""
    if source in SOURCES or source.startswith(PREFIX):
        return source
    return str(expanduser(source).absolute())


def locate(
    settings: DataSettings, *, download: bool = False, display: Display | None = None, whole: bool = False
) -> Found:
    """What there is: files to decode, or pictures that are arrays already. No picture is decoded.

    `whole`: every picture of a folder, list, file of arrays or hub data set, whether or not training would use it.
    """
    source, display, use_labels = settings.source, display or Display(), settings.labels == "auto"
    check_source(source)
    if source in SOURCES and not use_labels:
        raise BadInput(f"data.labels=none is for one's own pictures; the labels of {source} are only used to judge")
    if source == "patterns":
        with display.busy("making patterns"):
            train, test = _patterns(PATTERNS_TRAIN, seed=0), _patterns(PATTERNS_TEST, seed=1)
        return Splits(train, train, test, CLASS_NAMES)
    if source in OFFICIAL:
        root = None if settings.root is None else expanduser(settings.root)
        return read_official(source, root, download=download, display=display)
    if download:
        raise BadInput(f"--download fetches a known data set ({', '.join(OFFICIAL)}), not {source!r}")
    if source.startswith(PREFIX):
        return open_hub(source.removeprefix(PREFIX), use_labels=use_labels, whole=whole)
    path = expanduser(source).absolute()
    if path.is_dir():
        return list_folder(path, use_labels=use_labels, whole=whole)
    if path.suffix.lower() in ARRAYS:
        with display.busy("reading arrays"):
            return read_arrays(path, use_labels=use_labels, whole=whole)
    return list_file(path, use_labels=use_labels, whole=whole)


def open_dataset(settings: DataSettings, *, download: bool = False, display: Display | None = None) -> ImageDataset:
    """The data set that the settings name: in memory, packed and mapped, or streamed."""
    display = display or Display()
    found = limited(locate(settings, download=download, display=display), settings)
    return _from_arrays(settings, found) if isinstance(found, Splits) else open_files(settings, found, display)


def limited(found: Found, settings: DataSettings) -> Found:
    """With `data.limit` training pictures: the first of a known set, which is mixed; else a fixed random choice."""
    limit = settings.limit
    if isinstance(found, Listing):
        return limit_train(found, limit)
    if isinstance(found, HubPictures):
        return found.limited(limit)
    if limit is None or limit >= len(found.train):
        return found
    chosen = choose(len(found.train), limit) if is_path(settings.source) else np.arange(limit)
    train = ImageSplit(found.train.take(chosen), found.train.labels[chosen])
    known = np.flatnonzero(train.labels >= 0)
    if not is_path(settings.source) and found.bank is not found.train:
        return replace(found, train=train)  # STL-10's labelled pictures are a set of their own
    bank = train if len(known) == len(train) else ImageSplit(train.take(known), train.labels[known])
    return replace(found, train=train, bank=bank)


def _from_arrays(settings: DataSettings, splits: Splits) -> ImageDataset:
    facts = OFFICIAL.get(settings.source)
    if settings.source == "patterns":
        mean, std = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
        size, test_size = 32, 32
    elif facts is not None:
        mean, std, size, test_size = facts.mean, facts.std, facts.size, facts.test_size
    else:
        (mean, std), (size, test_size) = statistics(splits.train), fitting_sizes(min(splits.train.images.shape[1:3]))
    return ImageDataset(
        name=_name(settings.source),
        train=splits.train,
        bank=splits.bank,
        test=splits.test,
        class_names=splits.class_names,
        mean=mean,
        std=std,
        size=settings.size or size,
        test_size=settings.test_size or test_size,
        notes=splits.notes,
    )


def open_files(settings: DataSettings, items: Listing | HubPictures, display: Display) -> ImageDataset:
    """The data set of pictures that are files, or the content of files: packed, or streamed."""
    facts = OFFICIAL.get(settings.source)
    size, test_size = (facts.size, facts.test_size) if facts else probe_sizes(items)
    size, test_size = settings.size or size, settings.test_size or test_size
    side = max(size, test_size)
    streaming = settings.mode == "stream"
    pack = open_pack(
        items,
        side=side,
        pixels=not streaming,
        max_skipped=settings.max_skipped,
        num_workers=settings.workers,
        display=display,
    )
    stream = None
    if pack.images is None:
        max_lost = max(0, int(settings.max_skipped * len(items)) - len(pack.skipped))
        stream = Stream(items, side=side, max_lost=max_lost, num_workers=settings.workers)
    images = pack.images if stream is None else Streamed(stream, np.asarray(pack.kept))
    assert images is not None
    pictures = ImageSplit(images, items.labels[pack.kept], pack.names)
    num_train = int(np.searchsorted(pack.kept, items.num_train))
    num_bank = int(np.searchsorted(pack.kept, items.num_bank))
    if not num_train:
        raise BadInput(f"none of the {items.num_train:,} training pictures of {settings.source!r} can be read")
    train = pictures.part(0, num_train)
    mean, std = (facts.mean, facts.std) if facts else statistics(train)
    notes = list(items.notes)
    if pack.skipped:
        notes.append(
            f"{len(pack.skipped):,} of {len(items):,} pictures cannot be read and are left out; "
            f"skipped.csv says which and why"
        )
    unlisted = items.unlisted if isinstance(items, Listing) else ()
    if unlisted:
        notes.append(f"{len(unlisted):,} folders cannot be looked into, such as {unlisted[0][0]!r}; see skipped.csv")
    return ImageDataset(
        name=_name(settings.source),
        train=train,
        bank=pictures.part(0, num_bank),
        test=pictures.part(num_train, None),
        class_names=tuple(map(printable, items.class_names)),
        mean=mean,
        std=std,
        size=size,
        test_size=test_size,
        notes=tuple(notes),
        skipped=(*unlisted, *pack.skipped),
        content=pack.digest,
        stream=stream,
    )


def _name(source: str) -> str:
    """What a person calls the data set."""
    path = expanduser(source)
    return printable((path.stem if path.is_file() else path.name) or source)


def probe_sizes(items: Listing | HubPictures) -> tuple[int, int]:
    """Sizes for training and test that fit the shorter side of most pictures, from a few headers."""
    places = np.unique(np.linspace(0, len(items) - 1, min(64, len(items))).astype(int))
    shorter = [min(size) for size in (header_size(items[int(i)]) for i in places) if size is not None]
    return fitting_sizes(int(np.median(shorter)) if shorter else 64)


def fitting_sizes(shorter_side: int) -> tuple[int, int]:
    """The paper's sizes for pictures like these: CIFAR's, Tiny ImageNet's, or STL-10's for anything larger."""
    return (32, 32) if shorter_side < 48 else (64, 64) if shorter_side < 80 else (64, 96)


def statistics(pictures: ImageSplit) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
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


@cache
def _patterns(num: int, seed: int) -> ImageSplit:
    return ImageSplit(*make_patterns(num, seed=seed))
