"""The paper's four data sets, from official files or class folders, split as it splits them."""

import os
import pickle
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from msvq.core.console import Display
from msvq.core.errors import BadInput
from msvq.core.files import downloads
from msvq.data.sources.arrays import ArrayImages
from msvq.data.sources.download import Archive, fetch, unpack
from msvq.data.sources.folders import TRAIN_NAMES, FileImages, WalkedFiles, list_folder, walk
from msvq.data.store import ImageSplit, Triple


@dataclass(frozen=True)
class DatasetSpec:
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

STL10_LABELLED = 5_000  # of its training pictures
BENCHMARKS = {
    "cifar10": DatasetSpec(
        title="CIFAR-10", num_classes=10, num_train=50_000, num_test=10_000, size=32, test_size=32,
        mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010),
        archive=Archive(f"{_TORONTO}/cifar-10-python.tar.gz", folder="cifar-10-batches-py",
                        md5="c58f30108f718f92721af3b95e74349a", num_bytes=170_498_071)),
    "cifar100": DatasetSpec(
        title="CIFAR-100", num_classes=100, num_train=50_000, num_test=10_000, size=32, test_size=32,
        mean=(0.5071, 0.4867, 0.4408), std=(0.2675, 0.2565, 0.2761),
        archive=Archive(f"{_TORONTO}/cifar-100-python.tar.gz", folder="cifar-100-python",
                        md5="eb9058c3a382ffc7106e4002c42a8d85", num_bytes=169_001_437)),
    "stl10": DatasetSpec(
        title="STL-10", num_classes=10, num_train=105_000, num_test=8_000, size=64, test_size=96,
        mean=(0.4408, 0.4279, 0.3867), std=(0.2682, 0.2610, 0.2686),
        archive=Archive(f"{_STANFORD}/stl10_binary.tar.gz", folder="stl10_binary",
                        md5="91f7769df0f17e558f3565bffb0c7dfb", num_bytes=2_640_397_119)),
    "tinyimagenet": DatasetSpec(
        title="Tiny ImageNet", num_classes=200, num_train=100_000, num_test=10_000, size=64, test_size=64,
        mean=(0.4802, 0.4481, 0.3975), std=(0.2302, 0.2265, 0.2262),
        archive=Archive("http://cs231n.stanford.edu/tiny-imagenet-200.zip", folder="tiny-imagenet-200",
                        md5="90528d7ca1a48142e341f4ef8d21d0de", num_bytes=248_100_043)),
}  # fmt: skip


class Place(NamedTuple):
    """Where a data set was found, and as what."""

    path: Path
    form: str  # "files": as the archive has them; "folders": a folder per class; "archive": not extracted yet


def find_benchmark(name: str, root: Path | None) -> Place | None:
    """The data set below `root` (or where downloads go), in whichever form it is there."""
    archive, root = BENCHMARKS[name].archive, downloads() if root is None else root
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


def not_found(name: str, root: Path | None) -> BadInput:
    """The error for a data set that is not below `root` (or where downloads go), and the ways out."""
    archive = BENCHMARKS[name].archive
    return BadInput(
        f"{name} is not in {str(root or downloads())!r}; --download fetches it ({archive.num_bytes / 1e6:,.0f} MB), "
        f"--data-root DIR says where else it is: DIR holds {archive.folder}, {archive.name}, or train/<class>/ and "
        f"test/<class>/"
    )


def read_benchmark(
    name: str, root: Path | None, *, download: bool = False, display: Display
) -> ArrayImages | FileImages:
    """The splits of a data set: pictures in memory, or the list of its files. What is missing is in the notes."""
    archive, place = BENCHMARKS[name].archive, find_benchmark(name, root)
    if download and (place is None or place.form == "archive"):
        folder = downloads() if root is None else root
        folder.mkdir(parents=True, exist_ok=True)
        place = Place(fetch(archive, folder, display), "archive")
    if place is None:
        raise not_found(name, root)
    path = place.path
    if place.form == "archive":
        path = unpack(archive, path.parent, display, verified=download)
    if place.form == "folders":
        return _with_gaps(name, list_folder(path.absolute()))
    if name == "tinyimagenet":
        return _with_gaps(name, list_tiny_imagenet(path.absolute()))
    with display.busy(f"reading {name}"):
        arrays = read_stl10(path) if name == "stl10" else read_cifar(name, path)
    return replace(arrays, origin=name)


def _with_gaps(name: str, listing: FileImages) -> FileImages:
    """The listing with a note that names what it lacks of the official set."""
    spec = BENCHMARKS[name]
    counts = (
        (listing.num_train, spec.num_train, "training pictures"),
        (len(listing) - listing.num_train, spec.num_test, "test pictures"),
        (len(listing.class_names), spec.num_classes, "classes"),
    )
    gaps = [f"{there:,} of {whole:,} {what}" for there, whole, what in counts if there < whole]
    notes = [note for note in listing.notes if "by folder" not in note]  # their classes are a matter of course
    if gaps:
        notes.append(f"a part of {spec.title}: {', '.join(gaps)}")
    return replace(listing, notes=tuple(notes))


# --- CIFAR: the pickles of its archives, without running what these carry


# Files of training pictures, of test pictures, the key of their labels; file and key of the classes' names.
_CIFAR = {
    "cifar10": ([f"data_batch_{i}" for i in range(1, 6)], "test_batch", b"labels", "batches.meta", b"label_names"),
    "cifar100": (["train"], "test", b"fine_labels", "meta", b"fine_label_names"),
}


def read_cifar(name: str, path: Path) -> ArrayImages:
    """The splits in an extracted archive of cifar10 or cifar100 (whose fine labels are taken)."""
    parts, test, key, meta, names_key = _CIFAR[name]
    there = [part for part in parts if (path / part).is_file()]
    if not there or not (path / test).is_file():
        raise BadInput(f"{path} holds no {test if there else parts[0]}; extract the archive again")
    batches = [_cifar_batch(path / part, key) for part in there]
    train = ImageSplit(np.concatenate([b.images for b in batches]), np.concatenate([b.labels for b in batches]))
    missing = [part for part in parts if part not in there]
    notes = (f"{path.name} lacks {', '.join(missing)}: training on {len(train):,} pictures",) if missing else ()
    held_out = _cifar_batch(path / test, key)
    count = 1 + int(max(train.labels.max(), held_out.labels.max()))
    class_names = tuple(map(str, range(count)))
    found = _unpickle(path / meta).get(names_key) if (path / meta).is_file() else None
    if isinstance(found, list) and len(found) >= count and all(isinstance(n, bytes) for n in found):
        class_names = tuple(n.decode(errors="replace") for n in found)
    return ArrayImages(train, train, held_out, class_names, notes, shuffled=True)


class _ArraysOnly(pickle.Unpickler):
    """Reads plain containers and numpy arrays. Anything else that a pickle could call is refused."""

    ALLOWED = re.compile(r"numpy\._?core\.multiarray\._reconstruct|numpy\.(ndarray|dtype)|_codecs\.encode")

    def find_class(self, module: str, name: str) -> Any:
        """Resolve a name, if it is one that an array needs."""
        if not self.ALLOWED.fullmatch(f"{module}.{name}"):
            raise pickle.UnpicklingError(f"{module}.{name} is not part of a picture")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def _unpickle(path: Path) -> dict[bytes, Any]:
    try:
        with path.open("rb") as file:
            values = _ArraysOnly(file, encoding="bytes").load()
    except OSError:
        raise
    except Exception as error:  # damaged pickles raise almost anything
        raise BadInput(f"{path} is damaged or not what it should be ({error}); extract it again") from None
    if not isinstance(values, dict):
        raise BadInput(f"{path} is not a batch of pictures; extract it again")
    return values


def _cifar_batch(path: Path, key: bytes) -> ImageSplit:
    """Rows of 1024 red, 1024 green and 1024 blue values, row by row of the picture."""
    values = _unpickle(path)
    try:
        data, labels = np.asarray(values.get(b"data")), np.asarray(values.get(key))
        rows = data.dtype == np.uint8 and data.shape == (len(labels), 3072)
        usable = rows and labels.ndim == 1 and labels.dtype.kind in "iu" and labels.min() >= 0
    except Exception:  # lists of unequal length, arrays without content
        usable = False
    if not usable:
        raise BadInput(f"{path} is not a batch of pictures; extract it again")
    images = np.ascontiguousarray(data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    return ImageSplit(images, labels.astype(np.int64))


# --- STL-10: binary files


def read_stl10(path: Path) -> ArrayImages:
    """Train and unlabelled pictures to learn from, the labelled ones to judge by."""
    train = labelled = _stl_split(path, "train")
    notes: tuple[str, ...] = ()
    if (path / "unlabeled_X.bin").is_file():
        more = _stl_images(path / "unlabeled_X.bin")
        images = np.empty((len(labelled) + len(more), 96, 96, 3), np.uint8)
        np.concatenate([labelled.images, more], out=images)  # the 2.8 GB are in memory once
        train = ImageSplit(images, np.append(labelled.labels, np.full(len(more), -1, np.int64)))
    else:
        notes = (f"{path.name} lacks unlabeled_X.bin: training on the {len(labelled):,} labelled pictures alone",)
    listed = path / "class_names.txt"
    words = listed.read_text(encoding="utf-8", errors="replace").split() if listed.is_file() else []
    names = tuple(words) if len(words) == 10 else tuple(map(str, range(1, 11)))
    return ArrayImages(train, labelled, _stl_split(path, "test"), names, notes, shuffled=True)


def _stl_split(path: Path, split: str) -> ImageSplit:
    images, labels = _stl_images(path / f"{split}_X.bin"), _stl_bytes(path / f"{split}_y.bin").astype(np.int64) - 1
    if not len(labels) or labels.min() < 0 or labels.max() > 9:
        raise BadInput(f"{path / f'{split}_y.bin'} holds labels other than 1 to 10; extract it again")
    if len(images) != len(labels):
        raise BadInput(f"{path} has {len(images):,} {split} pictures and {len(labels):,} labels; extract it again")
    return ImageSplit(images, labels)


def _stl_images(path: Path) -> NDArray[np.uint8]:
    """Three planes of 96 columns of 96 values."""
    values = _stl_bytes(path)
    if not len(values) or len(values) % (3 * 96 * 96):
        raise BadInput(f"{path} is cut short; extract it again")
    return values.reshape(-1, 3, 96, 96).transpose(0, 3, 2, 1)


def _stl_bytes(path: Path) -> NDArray[np.uint8]:
    if not path.is_file():
        raise BadInput(f"there is no {path.name} in {path.parent}; extract the archive again")
    return np.memmap(path, np.uint8, "c") if path.stat().st_size else np.zeros(0, np.uint8)


# --- Tiny ImageNet: JPEG files, and the labels of val/ in a text file


def list_tiny_imagenet(path: Path) -> FileImages:
    """train/<wnid>/images/*.JPEG and val/images/*.JPEG with val_annotations.txt; val is the test split."""
    train, val = walk(path / "train"), walk(path / "val")
    if not train.names or not val.names:
        raise BadInput(f"{path} holds no pictures in {'val' if train.names else 'train'}/; extract the archive again")
    ids = sorted({name.split(os.sep)[0] for name in train.names})
    label_of = {wnid: label for label, wnid in enumerate(ids)}
    wnid_of = _read_pairs(path / "val" / "val_annotations.txt")
    # Some people sort val/ into class folders; then the folder tells.
    val_ids = [wnid_of.get(name.split(os.sep)[-1], name.split(os.sep)[0]) for name in val.names]
    labels = [label_of[name.split(os.sep)[0]] for name in train.names] + [label_of.get(wnid, -1) for wnid in val_ids]
    names = [f"train{os.sep}{name}" for name in train.names] + [f"val{os.sep}{name}" for name in val.names]
    size_mtime, unlisted = train.size_mtime + val.size_mtime, train.unlisted + val.unlisted
    found = WalkedFiles(names, size_mtime, train.others + val.others, unlisted=unlisted)
    return replace(found.labelled(path, labels, _tiny_names(path, ids)), num_train=len(train.names)).arranged()


def _tiny_names(path: Path, ids: list[str]) -> tuple[str, ...]:
    """The first word for each class, its id where that is missing or another's too."""
    meanings = _read_pairs(path / "words.txt")
    words = [meanings.get(wnid, "").partition(",")[0].strip() for wnid in ids]
    return tuple(word if word and words.count(word) == 1 else wnid for wnid, word in zip(ids, words, strict=True))


def _read_pairs(path: Path) -> dict[str, str]:
    """The first two columns of a file with tabs; of none if it is not there."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
    return dict(line.split("\t")[:2] for line in lines if "\t" in line)
