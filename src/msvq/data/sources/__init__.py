"""From the name or path of a data set to its pictures."""

from dataclasses import replace
from difflib import get_close_matches
from functools import cache

from msvq.core.console import Display
from msvq.core.errors import BadInput, unknown
from msvq.core.files import expanduser
from msvq.data.patterns import CLASS_NAMES, make_patterns
from msvq.data.sources.arrays import ARRAYS, ArrayImages, read_arrays
from msvq.data.sources.base import DataPlan as DataPlan
from msvq.data.sources.base import DataSettings as DataSettings
from msvq.data.sources.base import ImageSource as ImageSource
from msvq.data.sources.benchmarks import BENCHMARKS, read_benchmark
from msvq.data.sources.folders import FileImages, list_folder
from msvq.data.sources.hub import PREFIX, HubImages, open_hub
from msvq.data.sources.lists import LISTS, list_file
from msvq.data.store import ImageDataset, ImageSplit, Triple
from msvq.data.to_rgb import Resizing

PATTERNS_TRAIN, PATTERNS_TEST = 10_000, 2_000
SOURCES = ("patterns", *BENCHMARKS)

# The recipe that is taken when none is named; a path takes "folder".
RECIPE_OF = {"patterns": "demo", **{name: name for name in BENCHMARKS}}


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
            if not source or get_close_matches(source.lower(), SOURCES):
                raise unknown("data set", source, SOURCES, more="or the path of a folder")
            raise BadInput(f"there is no folder {source!r} here, and no such data set; known: {', '.join(SOURCES)}")
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


def open_dataset(
    settings: DataSettings,
    *,
    resizing: Resizing | None = None,
    download: bool = False,
    display: Display | None = None,
) -> ImageDataset:
    """The data set that the settings name: in memory, packed and mapped, or streamed; files fitted by `resizing`."""
    display = display or Display()
    source = find_images(settings, download=download, display=display)
    return source.open(replace(plan_data(settings, source), resizing=resizing), display)


def find_images(
    settings: DataSettings, *, download: bool = False, display: Display | None = None, keep_all: bool = False
) -> ImageSource:
    """The pictures that the settings name. None is decoded yet.

    `keep_all`: every picture of a folder, list, file of arrays or hub data set, whether or not training would use it.
    """
    check_source(settings.source)
    source = _find(settings, download, display or Display(), keep_all)
    return replace(source, title=settings.source).limit(settings.limit)


def _find(
    settings: DataSettings, download: bool, display: Display, keep_all: bool
) -> FileImages | HubImages | ArrayImages:
    source, use_labels = settings.source, settings.labels == "auto"
    if source in SOURCES and not use_labels:
        raise BadInput(f"data.labels=none is for one's own pictures; the labels of {source} are only used to judge")
    if source == "patterns":
        with display.busy("making patterns"):
            train, test = _patterns(PATTERNS_TRAIN, seed=0), _patterns(PATTERNS_TEST, seed=1)
        return ArrayImages(train, train, test, CLASS_NAMES, origin=source, shuffled=True)
    if source in BENCHMARKS:
        root = None if settings.root is None else expanduser(settings.root)
        return read_benchmark(source, root, download=download, display=display)
    if download:
        raise BadInput(f"--download fetches a known data set ({', '.join(BENCHMARKS)}), not {source!r}")
    if source.startswith(PREFIX):
        return open_hub(source.removeprefix(PREFIX), use_labels=use_labels, keep_all=keep_all)
    path = expanduser(source).absolute()
    if path.suffix.lower() in ARRAYS and not path.is_dir():
        with display.busy("reading arrays"):
            return read_arrays(path, use_labels=use_labels, keep_all=keep_all)
    with display.busy("listing pictures"):
        return (list_folder if path.is_dir() else list_file)(path, use_labels=use_labels, keep_all=keep_all)


@cache
def _patterns(num: int, seed: int) -> ImageSplit:
    return ImageSplit(*make_patterns(num, seed=seed))


def plan_data(settings: DataSettings, source: ImageSource | None) -> DataPlan:
    """At which sizes training will use the pictures of a source; None: of a benchmark that is not there."""
    stats: tuple[Triple, Triple] | None = None
    if settings.source == "patterns":
        (size, test_size), stats = (32, 32), ((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
    elif (spec := BENCHMARKS.get(settings.source)) is not None:
        (size, test_size), stats = (spec.size, spec.test_size), (spec.mean, spec.std)
    else:
        assert source is not None
        size, test_size = fitting_sizes(source.typical_side())
    return DataPlan(settings, settings.size or size, settings.test_size or test_size, stats)


def fitting_sizes(shorter_side: int) -> tuple[int, int]:
    """The paper's sizes for pictures like these: CIFAR's, Tiny ImageNet's, or STL-10's for anything larger."""
    return (32, 32) if shorter_side < 48 else (64, 64) if shorter_side < 80 else (64, 96)
