"""From the name of a data set to its pictures."""

from functools import cache
from pathlib import Path
from typing import Annotated

from annotated_types import Ge

from msvq.data.official import OFFICIAL, read_official
from msvq.data.patterns import CLASS_NAMES, make_patterns
from msvq.data.store import DataSet, Pictures
from msvq.errors import unknown
from msvq.settings import Section

PATTERNS_TRAIN, PATTERNS_TEST = 10_000, 2_000
SOURCES = ("patterns", *OFFICIAL)

# The recipe that is taken when none is named.
RECIPE_OF = {"patterns": "demo", **{name: name for name in OFFICIAL}}


class DataSettings(Section):
    """Which pictures, and at what size."""

    source: str = "patterns"
    root: Path | None = None  # folder of an official data set's files
    size: Annotated[int, Ge(8)] | None = None  # side of a training crop; None: the data set's own
    test_size: Annotated[int, Ge(8)] | None = None  # side at evaluation; None: the data set's own
    limit: Annotated[int, Ge(1)] | None = None  # train on the first so many pictures only


def check_source(name: str) -> None:
    """Raise if there is no such data set; costs nothing, so it comes before any work."""
    if name not in SOURCES:
        raise unknown("data set", name, SOURCES)


def open_dataset(settings: DataSettings) -> DataSet:
    """The data set that the settings name, in memory."""
    check_source(settings.source)
    if settings.source == "patterns":
        return _open_patterns(settings)
    facts, splits = OFFICIAL[settings.source], read_official(settings.source, settings.root)
    limited = splits.train.first(settings.limit)
    return DataSet(
        name=settings.source,
        train=limited,
        bank=limited if splits.bank is splits.train else splits.bank,
        test=splits.test,
        class_names=splits.class_names,
        mean=facts.mean,
        std=facts.std,
        size=settings.size or facts.size,
        test_size=settings.test_size or facts.test_size,
        notes=splits.notes,
    )


def _open_patterns(settings: DataSettings) -> DataSet:
    train = _patterns(PATTERNS_TRAIN, seed=0).first(settings.limit)
    return DataSet(
        name="patterns",
        train=train,
        bank=train,
        test=_patterns(PATTERNS_TEST, seed=1),
        class_names=CLASS_NAMES,
        mean=(0.5, 0.5, 0.5),
        std=(0.25, 0.25, 0.25),
        size=settings.size or 32,
        test_size=settings.test_size or 32,
    )


@cache
def _patterns(num: int, seed: int) -> Pictures:
    return Pictures(*make_patterns(num, seed=seed))
