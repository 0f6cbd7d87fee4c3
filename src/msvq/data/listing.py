"""Which pictures there are, before any is read: names, labels and splits."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from msvq.core.errors import BadInput

TEST_NAMES = ("test", "testing", "val", "valid", "validation")
HELD_OUT, HELD_OUT_SEED = 0.1, 0  # of each class, where there are labels and no test split


@dataclass(frozen=True)
class Listing:
    """Pictures in the order of the store: training pictures with a label, those without, test pictures."""

    root: str  # what the names are relative to
    names: list[str]
    stamps: NDArray[np.int64]  # [N, 2]: size in bytes and time of the last change in ns, -1 where there is no file
    labels: NDArray[np.int64]  # -1 where unknown
    num_train: int  # the rest are test pictures
    class_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    num_others: int = 0  # files that are no pictures by their name
    unlisted: tuple[tuple[str, str], ...] = ()  # folders that could not be looked into, and why
    listed_in: str = ""  # the file that lists them, if one does

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> str:
        return os.path.join(self.root, self.names[index])

    @property
    def origin(self) -> str:
        """What its packs belong to."""
        return self.listed_in or self.root

    @property
    def num_bank(self) -> int:
        """How many training pictures have a label."""
        return int((self.labels[: self.num_train] >= 0).sum())

    def fingerprint(self) -> str:
        """Changes when a file is added, removed, renamed, resized or written to."""
        digest = hashlib.sha256(os.fsencode(self.root))
        digest.update(b"\0".join(map(os.fsencode, self.names)))
        digest.update(np.ascontiguousarray(self.stamps).data)
        return digest.hexdigest()[:32]


def arrange(
    root: str,
    names: Sequence[str],
    stamps: NDArray[np.int64],
    labels: NDArray[np.int64],
    *,
    num_train: int,
    class_names: tuple[str, ...],
    notes: Sequence[str] = (),
) -> Listing:
    """A listing in the order of the store, with a seeded tenth held out where labels have no test split."""
    is_test = np.arange(len(names)) >= num_train
    notes = list(notes)
    if not num_train:
        raise BadInput(f"there are no pictures to learn from in {root!r}")
    if class_names and not (labels[is_test] >= 0).any():
        if is_test.any():
            notes.append(f"the {int(is_test.sum()):,} test pictures have no labels: they are left out")
        held_out = hold_out(np.where(is_test, -1, labels))
        notes.append(f"no labelled test pictures: {len(held_out):,} of the labelled pictures are held out to judge by")
        kept = ~is_test
        is_test = np.zeros_like(is_test)
        is_test[held_out] = True
    else:
        kept = ~is_test | (labels >= 0)
        if left_out := int((~kept).sum()):
            notes.append(f"{left_out:,} test pictures without a known class are left out")
    order = np.argsort(np.where(is_test, 2, np.where(labels >= 0, 0, 1))[kept], kind="stable")
    chosen = np.flatnonzero(kept)[order]
    return Listing(
        root=root,
        names=[names[i] for i in chosen],
        stamps=stamps[chosen],
        labels=labels[chosen],
        num_train=int((~is_test[chosen]).sum()),
        class_names=class_names,
        notes=tuple(notes),
    )


def by_class(labels: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Indices of each class's members, classes in their order; -1 is none."""
    order = np.argsort(labels, kind="stable")
    order = order[np.searchsorted(labels, 0, sorter=order) :]
    return np.split(order, np.flatnonzero(np.diff(labels[order])) + 1) if len(order) else []


def hold_out(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Indices of a fixed random tenth of each class, at least one where a class has two."""
    generator = np.random.default_rng(HELD_OUT_SEED)
    chosen = []
    for members in map(generator.permutation, by_class(labels)):
        chosen.append(members[: max(round(HELD_OUT * len(members)), min(1, len(members) - 1))])
    return np.sort(np.concatenate(chosen)) if chosen else np.zeros(0, np.int64)


def limit_train(listing: Listing, limit: int | None) -> Listing:
    """The listing with a random `limit` of its training pictures: the first ones would be of one class."""
    if limit is None or limit >= listing.num_train:
        return listing
    chosen = choose(listing.num_train, limit)
    kept = np.concatenate([chosen, np.arange(listing.num_train, len(listing))])
    return replace(
        listing,
        names=[listing.names[i] for i in kept],
        stamps=listing.stamps[kept],
        labels=listing.labels[kept],
        num_train=len(chosen),
    )


def choose(num: int, limit: int | None) -> NDArray[np.int64]:
    """Indices of a fixed random `limit` of so many pictures, in order; of all of them if there is no limit."""
    if limit is None or limit >= num:
        return np.arange(num)
    return np.sort(np.random.default_rng(HELD_OUT_SEED).permutation(num)[:limit])


def add_note(listing: Listing, note: str) -> Listing:
    """The listing with one more sentence about it."""
    return replace(listing, notes=(*listing.notes, note))
