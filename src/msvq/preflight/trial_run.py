"""A trainer as `msvq pretrain` would make it, for a few trial steps: nothing is downloaded, packed or left behind."""

import os
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

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
from msvq.data.store import ImageDataset, ImageSplit, spaced_rows
from msvq.data.workers import available_cores
from msvq.train import pretrain as training
from msvq.train.budget import Fitted, fit_to_budget
from msvq.train.pretrain import prepare
from msvq.train.trainer import Trainer

MADE_UP = 512  # pictures that stand in for any number: each is used again and again
DECODED = 32  # files that are decoded to see how long packing takes
OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")


@dataclass(frozen=True)
class TrialData:
    """As many pictures as the run would have, some or all of them made up."""

    dataset: ImageDataset
    note: str | None = None
    pack: int = 0  # bytes of the packed pictures on disk
    unheld: int = 0  # bytes that the run holds in memory and the trial does not
    source: ImageSource | None = None  # None: they are not there
    absent: bool = False  # the data set is not on this machine


@dataclass(frozen=True)
class Trial:
    """Everything that a run begins with."""

    settings: Settings  # complete
    data: TrialData
    trainer: Trainer
    notes: list[str]

    def describe(self) -> dict[str, Any]:
        """What is tried, and where."""
        return {
            "data": self.settings.data.source,
            "method": self.settings.method_name,
            "backbone": self.settings.backbone.title,
            "batch_size": self.settings.train.batch_size,
            "device": str(self.trainer.device),
            "precision": self.settings.train.precision,
        }


@contextmanager
def open_trial(settings: Settings, display: Display, *, keep: Sequence[str] | None = None) -> Iterator[Trial]:
    """The trainer, in a folder that is gone afterwards, as are the worker processes that read pictures.

    `keep`: settings that were named, where the others follow the number of one's own pictures; None: none do.
    """
    with _without_downloads(settings.data.source):
        data = _find_data(settings, display)
        with closing(data.dataset), tempfile.TemporaryDirectory(prefix="msvq-") as folder:
            device = resolve_device(settings.train.device)
            settings, method, loader, notes = prepare(settings, data.dataset, device, keep)
            augment, precision = make_augment(settings, data.dataset), settings.train.precision
            trainer = Trainer(method, loader, augment, settings.train, directory=Path(folder), precision=precision)
            yield Trial(settings, data, trainer, [*([data.note] if data.note else []), *notes])


def fit_trial_to_budget(
    settings: Settings, seconds: float, *, named: Collection[str], keep: Sequence[str] | None, display: Display
) -> Fitted:
    """The settings of a run that would fit into so many seconds, with the packing that it begins with."""
    with _without_downloads(settings.data.source):
        data = _find_data(settings, display)
        with closing(data.dataset) as dataset, display.busy("taking the pace of this machine"):
            trial = partial(training.open_trial, dataset, resolve_device(settings.train.device), keep)
            packing = time_packing(data, settings.data.workers) or 0.0
            fitted = fit_to_budget(settings, dataset, seconds, lambda: packing, keep=named, trial=trial)
            return fitted._replace(done=time.time() + seconds)


def time_packing(data: TrialData, workers: int | None) -> float | None:
    """Seconds until all files are decoded, on all cores, from a few of them; None: they are not there."""
    if not data.pack:
        return 0.0
    if data.source is None:
        return None
    started = time.perf_counter()
    positions = spaced_rows(len(data.source), DECODED)
    side = max(data.dataset.size, data.dataset.test_size)
    result = next(data.source.decoded([positions], side, workers=0))
    seconds = (time.perf_counter() - started) / max(1, len(positions) - len(result.reasons))
    return seconds * len(data.source) / (workers or available_cores())


@contextmanager
def _without_downloads(source: str) -> Iterator[None]:
    """What the Hub's library has fetched before is found, and nothing is fetched."""
    before = {name: os.environ[name] for name in OFFLINE if name in os.environ}
    if source.startswith(PREFIX):
        os.environ |= dict.fromkeys(OFFLINE, "1")
    try:
        yield
    finally:
        for name in OFFLINE:
            os.environ.pop(name, None)
        os.environ |= before


def _find_data(settings: Settings, display: Display) -> TrialData:
    """The pictures that the settings name, or as many of their size."""
    if settings.data.source in BENCHMARKS:
        root = None if settings.data.root is None else expanduser(settings.data.root)
        if root is not None and not root.is_dir():
            where = str(settings.data.root)
            raise BadInput(f"--data-root {where!r} is not a folder; leave it out to go on without the pictures")
        place = find_benchmark(settings.data.source, root)
        if place is None or place.form == "archive":
            return _make_up_benchmark(settings, absent=place is None)
    source = find_images(settings.data, display=display)
    plan = plan_data(settings.data, source)
    dataset = source.open_trial(plan, _make_up(plan.side))
    if source.in_memory or settings.data.mode != "store":
        return TrialData(dataset, source=source)
    note = "made-up pictures stand in for the files: none was decoded or packed"
    return TrialData(dataset, note, pack=source.bytes_to_pack(plan.side), source=source)


def _make_up(side: int) -> NDArray[np.uint8]:
    """Noise uint8 [MADE_UP, side, side, 3]: a step takes as long with it as with pictures."""
    return np.random.default_rng(0).integers(0, 256, (MADE_UP, side, side, 3), np.uint8)


def _make_up_benchmark(settings: Settings, *, absent: bool) -> TrialData:
    """A benchmark that is not there, or still in its archive, in its numbers and size."""
    spec = BENCHMARKS[settings.data.source]
    side = spec.test_size  # of its own pictures
    images = _make_up(side)

    def split(num: int) -> ImageSplit:
        return ImageSplit(images, np.arange(num) % spec.num_classes, rows=np.arange(num) % MADE_UP)

    train = split(min(spec.num_train, settings.data.limit or spec.num_train))
    labelled = split(STL10_LABELLED) if settings.data.source == "stl10" else train
    class_names = tuple(map(str, range(spec.num_classes)))
    dataset = plan_data(settings.data, None).dataset(train, labelled, split(spec.num_test), class_names=class_names)
    why, left = ("is not here", "downloaded") if absent else ("is an archive that was not opened yet", "extracted")
    note = f"{spec.title} {why}: as many made-up pictures of its size stand in; nothing was {left}"
    num_bytes = pack_bytes(len(train) + spec.num_test, side)
    if settings.data.source == "tinyimagenet":  # files; the others are arrays, which are read into memory
        return TrialData(dataset, note, pack=num_bytes, absent=absent)
    return TrialData(dataset, note, unheld=num_bytes, absent=absent)
