"""The paper's four data sets, from official files or class folders, split as it splits them."""

from dataclasses import dataclass, replace
from pathlib import Path

from msvq.core.console import Display
from msvq.core.errors import BadInput
from msvq.core.files import downloads
from msvq.data.archives import Archive, fetch, unpack
from msvq.data.cifar import read_cifar
from msvq.data.folders import TRAIN_NAMES, list_folder
from msvq.data.listing import Listing, add_note
from msvq.data.splits import Splits
from msvq.data.stl10 import read_stl10
from msvq.data.tinyimagenet import list_tiny_imagenet

Triple = tuple[float, float, float]


@dataclass(frozen=True)
class Facts:
    """What the paper fixes for a data set, and where it comes from."""

    title: str
    archive: Archive
    mean: Triple
    std: Triple
    size: int
    test_size: int
    num_classes: int
    num_train: int
    num_test: int


_TORONTO, _STANFORD = "https://www.cs.toronto.edu/~kriz", "http://ai.stanford.edu/~acoates/stl10"

OFFICIAL = {
    "cifar10": Facts(
        title="CIFAR-10",
        archive=Archive(
            f"{_TORONTO}/cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", 170_498_071, "cifar-10-batches-py"
        ),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2023, 0.1994, 0.2010),
        size=32,
        test_size=32,
        num_classes=10,
        num_train=50_000,
        num_test=10_000,
    ),
    "cifar100": Facts(
        title="CIFAR-100",
        archive=Archive(
            f"{_TORONTO}/cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", 169_001_437, "cifar-100-python"
        ),
        mean=(0.5071, 0.4867, 0.4408),
        std=(0.2675, 0.2565, 0.2761),
        size=32,
        test_size=32,
        num_classes=100,
        num_train=50_000,
        num_test=10_000,
    ),
    "stl10": Facts(
        title="STL-10",
        archive=Archive(
            f"{_STANFORD}/stl10_binary.tar.gz", "91f7769df0f17e558f3565bffb0c7dfb", 2_640_397_119, "stl10_binary"
        ),
        mean=(0.4408, 0.4279, 0.3867),
        std=(0.2682, 0.2610, 0.2686),
        size=64,
        test_size=96,
        num_classes=10,
        num_train=105_000,
        num_test=8_000,
    ),
    "tinyimagenet": Facts(
        title="Tiny ImageNet",
        archive=Archive(
            "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            "90528d7ca1a48142e341f4ef8d21d0de",
            248_100_043,
            "tiny-imagenet-200",
        ),
        mean=(0.4802, 0.4481, 0.3975),
        std=(0.2302, 0.2265, 0.2262),
        size=64,
        test_size=64,
        num_classes=200,
        num_train=100_000,
        num_test=10_000,
    ),
}


@dataclass(frozen=True)
class Place:
    """Where a data set was found, and as what."""

    path: Path
    form: str  # "files": as the archive has them; "folders": a folder per class; "archive": not extracted yet


def find_official(name: str, root: Path | None) -> Place | None:
    """The data set below `root` (or where downloads go), in whichever form it is there."""
    archive, root = OFFICIAL[name].archive, downloads() if root is None else root
    for path in (root, root / archive.folder):
        if path.name == archive.folder and path.is_dir():
            return Place(path, "files")
    for path in (root, root / name):
        if name == "tinyimagenet" and (path / "val" / "val_annotations.txt").is_file():  # renamed, else official
            return Place(path, "files")
    for path in (root, root / name):
        if path.is_dir() and any(child.name.lower() in TRAIN_NAMES for child in path.iterdir() if child.is_dir()):
            return Place(path, "folders")
    return Place(root / archive.name, "archive") if (root / archive.name).is_file() else None


def read_official(name: str, root: Path | None, *, download: bool = False, display: Display) -> Splits | Listing:
    """The splits of a data set: pictures in memory, or the list of its files. What is missing is in the notes."""
    archive, place = OFFICIAL[name].archive, find_official(name, root)
    if download and (place is None or place.form == "archive"):
        folder = downloads() if root is None else root
        folder.mkdir(parents=True, exist_ok=True)
        fetch(archive, folder, display)
        place = Place(unpack(archive, folder, display, verified=True), "files")
    if place is None:
        way_out = f"--download fetches it ({(archive.num_bytes or 0) / 1e6:,.0f} MB)"
        if root is None:
            raise BadInput(
                f"{name} is not in {str(downloads())!r}; {way_out}, --data-root DIR says where else it is: "
                f"DIR holds {archive.folder}, {archive.name}, or train/<class>/ and test/<class>/"
            )
        raise BadInput(
            f"there is no {archive.folder} in {str(root)!r}, nor {archive.name}, nor train/<class>/ folders; {way_out}"
        )
    if place.form == "archive":
        place = Place(unpack(archive, place.path.parent, display), "files")
    if place.form == "folders":
        return _with_gaps(name, list_folder(place.path.absolute()))
    if name == "tinyimagenet":
        return _with_gaps(name, list_tiny_imagenet(place.path.absolute()))
    with display.busy(f"reading {name}"):
        return read_stl10(place.path) if name == "stl10" else read_cifar(name, place.path)


def _with_gaps(name: str, listing: Listing) -> Listing:
    """The listing with a note that names what it lacks of the official set."""
    facts, num_test = OFFICIAL[name], len(listing) - listing.num_train
    gaps = [
        f"{there:,} of {whole:,} {what}"
        for there, whole, what in (
            (listing.num_train, facts.num_train, "training pictures"),
            (num_test, facts.num_test, "test pictures"),
            (len(listing.class_names), facts.num_classes, "classes"),
        )
        if there < whole
    ]
    # Their classes are a matter of course.
    listing = replace(listing, notes=tuple(note for note in listing.notes if "by folder" not in note))
    return add_note(listing, f"a part of {facts.title}: {', '.join(gaps)}") if gaps else listing
