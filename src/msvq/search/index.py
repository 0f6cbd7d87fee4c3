"""Features of a source that are kept to be searched, for as long as neither the pictures nor the encoder change.

An index is a folder of plain arrays (`FILES`) with checksums, compared whenever it is opened. Rows of `features` have
length 1, so that a product of two is their cosine. When some files of a folder or list have changed, the features of
the others are taken over from the index before.
"""

import errno
import hashlib
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from msvq.core.array_cache import ArrayCache, Content, Damaged, Manifest
from msvq.core.console import Display, printable
from msvq.core.files import disk_full_error, indexes
from msvq.data.decode import GONE, PASSING
from msvq.data.pack import any_readable_again
from msvq.data.sources.base import ImageSource, Positions
from msvq.data.store import Names
from msvq.report.pictures import class_name
from msvq.runs.encoder import LoadedEncoder
from msvq.search.feature_shards import BATCH_SIZE, FeatureShards, Skipped, check_readable, name_skipped

RULES = 2  # raised when the same pictures and encoder give another index
FEATURES = "features.f32"
FILES = {FEATURES: "<f4", "kept.i64": "<i8", "stamps.i64": "<i8", "bounds.i64": "<i8", "names.u8": "u1"}
SHARDS = ".parts"
ROWS = 8192  # copied at a time


@dataclass(frozen=True)
class Match:
    """A picture of a source, and how similar it is to another."""

    position: int  # in the source
    name: str
    class_name: str  # empty where unknown
    similarity: float  # the cosine, 1 for the same features
    other: str  # the name of what it was compared with


@dataclass(frozen=True)
class Index:
    """Unit features of the readable pictures of a source."""

    source: ImageSource
    features: NDArray[np.float32]  # [M, d], mapped
    kept: Positions  # [M]: their positions in the source
    skipped: dict[int, str]  # the other positions, and why

    def __len__(self) -> int:
        return len(self.kept)

    def name(self, row: int) -> str:
        """What the picture of a row is called."""
        return self.source.names[int(self.kept[row])]

    def match(self, row: int, similarity: float, other: str) -> Match:
        """The picture of a row, compared with another."""
        position = int(self.kept[row])
        label = class_name(self.source.class_names, int(self.source.labels[position]))
        return Match(position, self.name(row), label, similarity, other)

    @property
    def left_out(self) -> Skipped:
        """Names of what has no row, and why."""
        return name_skipped(self.source, self.skipped)


def open_index(source: ImageSource, encoder: LoadedEncoder, display: Display) -> Index:
    """The index of these pictures by this encoder: from the cache, or made now."""
    key = hashlib.sha256(f"{RULES} {encoder.key} {source.fingerprint()}".encode()).hexdigest()[:32]
    place = indexes() / hashlib.sha256(os.fsencode(source.origin)).hexdigest()[:16]
    place.mkdir(parents=True, exist_ok=True)
    cache = ArrayCache(place / key, "index", FILES, "the index", display)

    def accept(manifest: Manifest) -> bool:
        skipped = ((Path(source.root, source.names[i]), reason) for i, reason in manifest["skipped"])
        return manifest["encoder"] == encoder.key and not any_readable_again(skipped)

    manifest, arrays = cache.open(
        accept,
        lambda: _make(source, encoder, cache),
        busy="another command is indexing these pictures; waiting for it",
        on_damage=lambda why: f"the index of {source.origin} is damaged ({why}): making it again",
    )
    skipped = dict(manifest["skipped"])
    check_readable(source, skipped)
    return Index(source, arrays[FEATURES].reshape(-1, encoder.feature_dim), arrays["kept.i64"], skipped)


def _make(source: ImageSource, encoder: LoadedEncoder, cache: ArrayCache) -> None:
    """Write the index: features of pictures that are as they were are taken over, the others are computed in shards."""
    before = _read_before(cache, encoder)
    old_rows, unreadable = _unchanged(source, before)
    reused = np.array(list(old_rows), np.int64)
    rest = np.setdiff1d(np.arange(len(source)), [*old_rows, *unreadable])
    if len(reused):
        cache.display.note(f"{len(rest):,} of {len(source):,} pictures are new or have changed")
    shards = FeatureShards(cache.folder.parent / SHARDS, source, rest, encoder)
    shards.complete(BATCH_SIZE, cache.display)
    skipped = {**unreadable, **shards.skipped}
    check_readable(source, skipped)
    computed = shards.kept
    kept = np.sort(np.concatenate([reused, computed]))

    def fill(folder: Path) -> Content:
        reserve_file(folder / FEATURES, len(kept) * encoder.feature_dim * 4)
        target = np.memmap(folder / FEATURES, "<f4", "r+", shape=(len(kept), encoder.feature_dim))
        if before is not None:
            old = before[1][FEATURES].reshape(-1, encoder.feature_dim)
            rows = np.array(list(old_rows.values()), np.int64)
            blocks = (old[rows[start : start + ROWS]] for start in range(0, len(rows), ROWS))
            fill_rows(target, np.searchsorted(kept, reused), blocks)
        fill_rows(target, np.searchsorted(kept, computed), map(unit_rows, shards.features()))
        target.flush()
        names = Names.of(source.names)
        stamps = np.full((len(source), 2), -1) if source.size_mtime is None else source.size_mtime
        manifest = {"origin": printable(source.origin), "encoder": encoder.key, "skipped": sorted(skipped.items())}
        return manifest, {"kept.i64": kept, "stamps.i64": stamps, "bounds.i64": names.bounds, "names.u8": names.blob}

    cache.write(fill)
    shards.remove()


def _read_before(cache: ArrayCache, encoder: LoadedEncoder) -> Content | None:
    """The newest whole index of the same origin by the same encoder."""
    for folder in cache.newest_first():
        with suppress(Damaged):
            found = replace(cache, folder=folder).read(lambda manifest: bool(manifest["encoder"] == encoder.key))
            if found is not None:
                return found
    return None


def _unchanged(source: ImageSource, before: Content | None) -> tuple[dict[int, int], dict[int, str]]:
    """Of pictures that are as they were: positions and rows in the index before, and which are known as unreadable."""
    rows: dict[int, int] = {}
    unreadable: dict[int, str] = {}
    if before is None or source.size_mtime is None:
        return rows, unreadable
    manifest, arrays = before
    place_of = {name: place for place, name in enumerate(Names(arrays["names.u8"], arrays["bounds.i64"]))}
    row_of = {int(place): row for row, place in enumerate(arrays["kept.i64"])}
    stamps, skipped = arrays["stamps.i64"].reshape(-1, 2), dict(manifest["skipped"])
    for position, name in enumerate(source.names):
        place, stamp = place_of.get(name), source.size_mtime[position]
        if place is None or stamp[0] < 0 or (stamp != stamps[place]).any():
            continue
        if place in row_of:
            rows[position] = row_of[place]
        elif not (reason := skipped[place]).startswith((*PASSING, GONE)):
            unreadable[position] = reason
    return rows, unreadable


def fill_rows(target: NDArray[np.float32], places: Positions, blocks: Iterable[NDArray[np.float32]]) -> None:
    """Write blocks of rows, one after another, to their places in the target."""
    start = 0
    for block in blocks:
        target[places[start : start + len(block)]] = block
        start += len(block)


def reserve_file(path: Path, size: int) -> None:
    """Make a file that has its space on the disk already: writing to a map of one that has not may end the process."""
    if shutil.disk_usage(path.parent).free < size:
        raise disk_full_error(path.parent.parent, size, "the index needs", "or point MSVQ_HOME at another disk")
    with path.open("wb") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except AttributeError:  # not on every system
            file.truncate(size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # nor on every disk
                raise
            file.truncate(size)


def unit_rows(features: NDArray[np.float32]) -> NDArray[np.float32]:
    """Features [N, d] at length 1; a row of zeros stays one."""
    length = np.sqrt(np.einsum("nd,nd->n", features, features, dtype=np.float64))
    unit: NDArray[np.float32] = (features / np.maximum(length, 1e-12)[:, None]).astype(np.float32)
    return unit
