"""A trainer as `msvq pretrain` would make it, for a few trial steps: nothing is downloaded, packed or left behind."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from msvq.config.build import make_augment
from msvq.config.settings import Settings
from msvq.core.console import Display
from msvq.core.errors import BadInput
from msvq.core.files import expanduser
from msvq.core.runtime import resolve_device
from msvq.data.pack import pack_bytes
from msvq.data.sources import ImageSource, find_images, plan_data
from msvq.data.sources.benchmarks import BENCHMARKS, STL10_LABELLED, find_benchmark
from msvq.data.sources.hub import PREFIX
from msvq.data.store import ImageDataset, ImageSplit
from msvq.train.pretrain import prepare
from msvq.train.trainer import Trainer

MADE_UP = 512  # pictures that stand in for any number: each is used again and again
OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")


@dataclass(frozen=True)
class TrialData:
    """The data of a rehearsal: as many pictures as the run would have, some or all of them made up."""

    data: ImageDataset
    notes: tuple[str, ...] = ()
    pack: int = 0  # bytes of the packed pictures on disk
    unheld: int = 0  # bytes that the run holds in memory and the rehearsal does not
    source: ImageSource | None = None  # None: they are not there
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
            scene.data.close()
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
            precision=settings.train.precision,
        )
        yield Rehearsal(settings, trainer, (*scene.notes, *notes))


def find_scene(settings: Settings, display: Display) -> TrialData:
    """As `opened_scene`, but the caller closes the data set."""
    if settings.data.source in BENCHMARKS:
        root = None if settings.data.root is None else expanduser(settings.data.root)
        if root is not None and not root.is_dir():
            where = str(settings.data.root)
            raise BadInput(f"--data-root {where!r} is not a folder; leave it out to go on without the pictures")
        place = find_benchmark(settings.data.source, root)
        if place is None or place.form == "archive":
            return _benchmark(settings, absent=place is None)
    source = find_images(settings.data, display=display)
    plan = plan_data(settings.data, source)
    packs = not source.in_memory and settings.data.mode == "store"
    data = source.open_trial(plan, made_up(MADE_UP, plan.side))
    note = "made-up pictures stand in for the files: none was decoded or packed"
    return TrialData(
        data, (note,) if packs else (), pack=source.bytes_to_pack(plan.side) if packs else 0, source=source
    )


def made_up(num: int, side: int) -> NDArray[np.uint8]:
    """Noise uint8 [num, side, side, 3]: a step takes as long with it as with pictures."""
    return np.random.default_rng(0).integers(0, 256, (num, side, side, 3), np.uint8)


def _benchmark(settings: Settings, *, absent: bool) -> TrialData:
    """A benchmark that is not there, or still in its archive, in its numbers and size."""
    spec = BENCHMARKS[settings.data.source]
    side = spec.test_size  # of its own pictures
    images = made_up(MADE_UP, side)

    def split(num: int) -> ImageSplit:
        return ImageSplit(images, np.arange(num) % spec.num_classes, rows=np.arange(num) % MADE_UP)

    train = split(min(spec.num_train, settings.data.limit or spec.num_train))
    labelled = split(STL10_LABELLED) if settings.data.source == "stl10" else train
    class_names = tuple(map(str, range(spec.num_classes)))
    data = plan_data(settings.data, None).dataset(train, labelled, split(spec.num_test), class_names=class_names)
    why, left = ("is not here", "downloaded") if absent else ("is an archive that was not opened yet", "extracted")
    note = f"{spec.title} {why}: as many made-up pictures of its size stand in; nothing was {left}"
    files = settings.data.source == "tinyimagenet"  # the others are arrays, which are read into memory
    whole = pack_bytes(len(train) + spec.num_test, side)
    return TrialData(data, (note,), pack=whole if files else 0, unheld=0 if files else whole, absent=absent)
