"""Pictures that are files, and a folder of them, however it is arranged."""

import hashlib
import os
import stat
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from msvq.core.console import counted
from msvq.core.errors import BadInput, shorten
from msvq.core.files import is_run
from msvq.data.decode import EXTENSIONS
from msvq.data.sources.base import TEST_NAMES, EncodedSource

TRAIN_NAMES = ("train", "training")
MORE_NAMES = ("unlabeled", "unlabelled", "extra")  # beside train/: more pictures to learn from


@dataclass(frozen=True, kw_only=True)
class FileImages(EncodedSource):
    """Pictures that are files."""

    names: list[str]
    size_mtime: NDArray[np.int64]

    def __getitem__(self, index: int) -> str:
        return os.path.join(self.root, self.names[index])

    def fingerprint(self) -> str:
        """Changes when a file is added, removed, renamed, resized or written to."""
        digest = hashlib.sha256(os.fsencode(self.root))
        digest.update(b"\0".join(map(os.fsencode, self.names)))
        digest.update(np.ascontiguousarray(self.size_mtime).data)
        return digest.hexdigest()[:32]


@dataclass
class WalkedFiles:
    """What a walk through folders has seen: columns, one entry per picture."""

    names: list[str] = field(default_factory=list)
    size_mtime: list[tuple[int, int]] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)  # endings of files that are no pictures by their names
    num_runs: int = 0  # directories that are runs of ours, which are not looked into
    unlisted: list[tuple[str, str]] = field(default_factory=list)

    def labelled(self, root: Path, labels: Sequence[int], class_names: Iterable[str]) -> FileImages:
        """The pictures, all to learn from, with their labels."""
        return FileImages(
            origin=str(root),
            root=str(root),
            names=self.names,
            size_mtime=np.array(self.size_mtime, np.int64),
            labels=np.array(labels, np.int64),
            num_train=len(self.names),
            class_names=tuple(class_names),
            num_others=self.others.total(),
            unlisted=tuple(self.unlisted),
        )


def walk(root: Path) -> WalkedFiles:
    """Every picture below a folder, by extension, in the order of their names. Hidden files are left out.

    So are the directories of runs, whose figures are no data: a run may lie in the folder that it learns from.

    Links are followed; one that leads back to a folder above it is not entered twice.
    """
    found = WalkedFiles()
    try:
        _walk(os.fspath(root), "", (os.path.realpath(root),), found)
    except RecursionError:
        raise BadInput(f"the folders in {str(root)!r} are nested too deeply; name one further down") from None
    return found


def _walk(folder: str, prefix: str, above: tuple[str, ...], found: WalkedFiles) -> None:
    try:
        with os.scandir(folder) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        found.unlisted.append((prefix.rstrip(os.sep) or folder, f"cannot be looked into: {error.strerror}"))
        return
    if prefix and any(entry.name == "config.yaml" and entry.is_file() for entry in listed) and is_run(Path(folder)):
        found.num_runs += 1
        return
    for entry in listed:
        name = entry.name
        if name.startswith(".") or name == "__MACOSX":
            continue
        ending, size_mtime = os.path.splitext(name)[1].lower(), (-1, -1)
        is_picture = ending in EXTENSIONS
        with suppress(OSError):  # a link to nothing or to itself: reading it gives the reason
            if entry.is_dir():
                place = os.path.realpath(entry.path) if entry.is_symlink() else os.path.join(above[-1], name)
                if place not in above:
                    _walk(entry.path, prefix + name + os.sep, (*above, place), found)
                continue
            if is_picture:
                status = entry.stat()
                is_picture = stat.S_ISREG(status.st_mode)
                size_mtime = (status.st_size, status.st_mtime_ns)
        if is_picture:
            found.names.append(prefix + name)
            found.size_mtime.append(size_mtime)
        else:
            found.others[ending] += 1


def list_folder(root: Path, *, use_labels: bool = True, keep_all: bool = False) -> FileImages:
    """A folder: flat, nested, one subfolder per class, or with train/ and test/ or val/ inside.

    `keep_all` takes no notice of splits and keeps every picture, in the order of the names.
    """
    found = walk(root)
    if not found.names and found.unlisted:
        raise BadInput(f"{found.unlisted[0][0]!r} {found.unlisted[0][1]}; may you read it?")
    if not found.names:
        endings = shorten(", ".join(ending or "none" for ending, _ in found.others.most_common(3)))
        others = f"; it holds {counted(found.others.total(), 'file')} of other kinds ({endings})" if endings else ""
        runs = " beside directories of runs, which are no data" if found.num_runs else ""
        raise BadInput(f"there are no pictures in {str(root)!r}{runs}{others}; name a folder of .jpg, .png ... files")
    parts = [name.split(os.sep) for name in found.names]
    tops = {p[0].lower(): p[0] for p in parts if len(p) > 1}
    train_top = _train_folder(parts, tops)
    level = 0 if train_top is None else 1
    judged = parts if train_top is None else [p for p in parts if p[0] == train_top and len(p) > 1]
    kinds = _classes(judged, start=level) if use_labels else {}

    def label(path: Sequence[str]) -> int:
        # What lies in unlabeled/ is learned from without a class, even if it has folders.
        trusted = keep_all or train_top is None or path[0] == train_top or path[0].lower() in TEST_NAMES
        return kinds.get(path[level], -1) if len(path) > level + 1 and trusted else -1

    files = found.labelled(root, [label(path) for path in parts], kinds)
    if keep_all:
        return files
    notes = [f"directories of runs are left out: {found.num_runs:,}"] if found.num_runs else []
    if train_top is not None:
        test_top = _test_folder(parts, tops, kinds)
        wanted = {train_top, *(tops[name] for name in MORE_NAMES if name in tops)}
        train = [i for i, p in enumerate(parts) if p[0] in wanted and len(p) > 1]
        test = [i for i, p in enumerate(parts) if p[0] == test_top and len(p) > 1]
        if left_out := len(parts) - len(train) - len(test):
            places = f"{train_top}/" + (f" and {test_top}/" if test_top else "")
            notes.append(f"{left_out:,} pictures beside {places} are left out")
        files = replace(files.select(np.array(train + test)), num_train=len(train))
    files = replace(files, notes=tuple(notes)).arranged()
    told = f"{len(kinds)} classes, by folder; --set data.labels=none leaves them out"
    return replace(files, notes=(*files.notes, told)) if kinds else files


def _train_folder(parts: Sequence[Sequence[str]], tops: dict[str, str]) -> str | None:
    """The folder train/, if that is a split and not a class of railway pictures beside bus/ and car/."""
    top = next((tops[name] for name in TRAIN_NAMES if name in tops), None)
    others = set(tops) - {*TRAIN_NAMES, *TEST_NAMES, *MORE_NAMES}
    if top is None or not others or any(name in tops for name in TEST_NAMES):
        return top
    return top if any(len(p) > 2 for p in parts if p[0] == top) else None


def _test_folder(parts: Sequence[Sequence[str]], tops: dict[str, str], kinds: dict[str, int]) -> str | None:
    """The first of test/, val/ ... whose pictures have a known class: often test/ has none, and val/ serves."""
    there = [tops[name] for name in TEST_NAMES if name in tops]
    labelled = {p[0] for p in parts if len(p) > 2 and p[1] in kinds}
    return next((top for top in there if top in labelled), there[0] if there else None)


def _classes(parts: Sequence[Sequence[str]], *, start: int) -> dict[str, int]:
    """The classes that the folders below level `start` name, if they name any.

    Folders are classes if all pictures lie in one of at least two, with none nested deeper but for a folder that is
    called the same in all of them (`images`), and if there are at least two pictures per class on average. A tenth
    of the pictures may lie beside the folders: they have no label.
    """
    inside = [p for p in parts if len(p) > start + 1]
    names = sorted({p[start] for p in inside})
    flat = len({tuple(p[start + 1 : -1]) for p in inside}) == 1
    enough = len(names) >= 2 and len(inside) >= 2 * len(names) and len(inside) >= 0.9 * len(parts)
    return {name: label for label, name in enumerate(names)} if flat and enough else {}
