"""A trainer as `msvq pretrain` would make it, for a few trial steps: nothing is downloaded, packed or left behind."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from msvq.config.build import make_augment
from msvq.config.settings import Settings
from msvq.core.console import Display
from msvq.core.errors import BadInput
from msvq.core.files import expanduser
from msvq.core.runtime import resolve_device
from msvq.data.hub import PREFIX, HubPictures
from msvq.data.listing import Listing
from msvq.data.official import OFFICIAL, find_official
from msvq.data.pack import is_packed, pack_bytes
from msvq.data.sources import ARRAYS, check_source, limited, locate, open_dataset, probe_sizes
from msvq.data.splits import Splits
from msvq.data.store import ImageDataset, ImageSplit
from msvq.data.stream import Stream, Streamed
from msvq.train.pretrain import prepare
from msvq.train.progress import TrainingDisplay
from msvq.train.trainer import Trainer

MADE_UP = 512  # pictures that stand in for any number: each is used again and again
OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
STL10_LABELLED = 5_000  # of its training pictures


@dataclass(frozen=True)
class TrialData:
    """The data of a rehearsal: as many pictures as the run would have, some or all of them made up."""

    data: ImageDataset
    notes: tuple[str, ...] = ()
    pack: int = 0  # bytes of the packed pictures on disk
    unheld: int = 0  # bytes that the run holds in memory and the rehearsal does not
    items: Listing | HubPictures | None = None  # the files, where there are some
    absent: bool = False  # the data set is not on this machine


@dataclass(frozen=True)
class Rehearsal:
    """Everything that a run begins with."""

    settings: Settings  # complete
    trainer: Trainer
    notes: tuple[str, ...]


@contextmanager
def opened_scene(settings: Settings, display: Display) -> Iterator[TrialData]:
    """The pictures that the settings name, or as many of their size; worker processes end with the context."""
    before = {name: os.environ.get(name) for name in OFFLINE}
    if settings.data.source.startswith(PREFIX):  # what its library has fetched before is found, and nothing is fetched
        os.environ |= dict.fromkeys(OFFLINE, "1")
    try:
        scene = find_scene(settings, display)
        try:
            yield scene
        finally:
            if scene.data.stream is not None:
                scene.data.stream.workers.close()
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def run_trial(settings: Settings, scene: TrialData, *, keep: Sequence[str] | None = None) -> Iterator[Rehearsal]:
    """The trainer, in a folder that is gone afterwards.

    `keep`: settings that were named, where the others follow the number of one's own pictures; None: none do.
    """
    settings, method, loader, notes = prepare(settings, scene.data, resolve_device(settings.train.device), keep)
    with tempfile.TemporaryDirectory(prefix="msvq-") as folder:
        trainer = Trainer(
            method,
            loader,
            make_augment(settings, scene.data),
            settings.train,
            directory=Path(folder),
            display=TrainingDisplay(Console(quiet=True), total_steps=1, epochs=1),
            precision=settings.train.precision,
        )
        yield Rehearsal(settings, trainer, (*scene.notes, *notes))


def find_scene(settings: Settings, display: Display) -> TrialData:
    """As `opened_scene`, but the caller closes the stream, if there is one."""
    source, root = settings.data.source, settings.data.root
    check_source(source)
    arrays = source == "patterns" or Path(source).suffix.lower() in ARRAYS
    if source in OFFICIAL:
        if root is not None and not expanduser(root).is_dir():
            raise BadInput(f"--data-root {str(root)!r} is not a folder; leave it out to go on without the pictures")
        place = find_official(source, None if root is None else expanduser(root))
        if place is None or place.form == "archive":
            return _official(settings, absent=place is None)
        arrays = place.form == "files" and source != "tinyimagenet"
    if arrays:
        return TrialData(open_dataset(settings.data, display=display))
    with display.busy("listing pictures"):
        found = limited(locate(settings.data, display=display), settings.data)
    assert not isinstance(found, Splits)
    return _files(settings, found)


def made_up(num: int, side: int) -> NDArray[np.uint8]:
    """Noise uint8 [num, side, side, 3]: a step takes as long with it as with pictures."""
    return np.random.default_rng(0).integers(0, 256, (num, side, side, 3), np.uint8)


def _official(settings: Settings, *, absent: bool) -> TrialData:
    """An official data set that is not there, or still in its archive, in its numbers and size."""
    facts = OFFICIAL[settings.data.source]
    size, test_size = settings.data.size or facts.size, settings.data.test_size or facts.test_size
    side = facts.test_size  # of its own pictures
    images = made_up(MADE_UP, side)

    def split(num: int) -> ImageSplit:
        return ImageSplit(images, np.arange(num) % facts.num_classes, rows=np.arange(num) % MADE_UP)

    train = bank = split(min(facts.num_train, settings.data.limit or facts.num_train))
    if settings.data.source == "stl10":
        bank = split(STL10_LABELLED)
    data = ImageDataset(
        name=settings.data.source,
        train=train,
        bank=bank,
        test=split(facts.num_test),
        class_names=tuple(map(str, range(facts.num_classes))),
        mean=facts.mean,
        std=facts.std,
        size=size,
        test_size=test_size,
    )
    why, left = ("is not here", "downloaded") if absent else ("is an archive that was not opened yet", "extracted")
    note = f"{facts.title} {why}: as many made-up pictures of its size stand in; nothing was {left}"
    files = settings.data.source == "tinyimagenet"  # the others are arrays, which are read into memory
    whole = pack_bytes(len(train) + facts.num_test, side)
    return TrialData(data, (note,), pack=whole if files else 0, unheld=0 if files else whole, absent=absent)


def _files(settings: Settings, items: Listing | HubPictures) -> TrialData:
    """Pictures in files: made-up ones of the size they will have, or the files themselves if the run decodes them."""
    facts = OFFICIAL.get(settings.data.source)
    size, test_size = (facts.size, facts.test_size) if facts else probe_sizes(items)
    size, test_size = settings.data.size or size, settings.data.test_size or test_size
    side, num = max(size, test_size), len(items)
    stream = None
    if settings.data.mode == "stream":
        stream = Stream(items, side=side, max_lost=num, num_workers=settings.data.workers)
        pictures = ImageSplit(Streamed(stream, np.arange(num)), items.labels)
        note, pack = "", 0
    else:
        pictures = ImageSplit(made_up(MADE_UP, side), items.labels, rows=np.arange(num) % MADE_UP)
        note = "made-up pictures stand in for the files: none was decoded or packed"
        pack = 0 if is_packed(items, side) else pack_bytes(num, side)
    data = ImageDataset(
        name=Path(settings.data.source).name,
        train=pictures.part(0, items.num_train),
        bank=pictures.part(0, items.num_bank),
        test=pictures.part(items.num_train, None),
        class_names=tuple(items.class_names),
        mean=facts.mean if facts else (0.5, 0.5, 0.5),
        std=facts.std if facts else (0.25, 0.25, 0.25),
        size=size,
        test_size=test_size,
        notes=items.notes,
        stream=stream,
    )
    return TrialData(data, (note,) if note else (), pack=pack, items=items)
