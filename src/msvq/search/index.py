"""Features of a source that are kept to be searched, for as long as neither the pictures nor the encoder change.

An index is a folder of plain arrays (`FILES`) with checksums, compared whenever it is opened. Rows of `features` have
length 1, so that a product of two is their cosine. When some files of a folder or list have changed, the features of
the others are taken over from the index before.
"""

import errno
import hashlib
import os
import shutil
from collections.abc import Sequence
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
from msvq.runs.encoder import LoadedEncoder
from msvq.search.feature_shards import Parts, check_readable

RULES = 2  # raised when the same pictures and encoder give another index
FEATURES = "features.f32"
FILES = {FEATURES: "<f4", "kept.i64": "<i8", "stamps.i64": "<i8", "bounds.i64": "<i8", "names.u8": "u1"}
PARTS = ".parts"
ROWS = 8192  # copied at a time


@dataclass(frozen=True)
class Index:
    """Unit features of the readable pictures of a source."""

    features: NDArray[np.float32]  # [M, d], mapped
    kept: Positions  # [M]: their positions in the source
    skipped: dict[int, str]  # the other positions, and why

    def __len__(self) -> int:
        return len(self.kept)


def open_index(source: ImageSource, encoder: LoadedEncoder, *, batch_size: int = 256, display: Display) -> Index:
    """The index of these pictures by this encoder: from the cache, or made now."""
    key = hashlib.sha256(f"{RULES} {encoder.key} {source.fingerprint()}".encode()).hexdigest()[:32]
    place = indexes() / hashlib.sha256(os.fsencode(source.origin)).hexdigest()[:16]
    place.mkdir(parents=True, exist_ok=True)
    cache = ArrayCache(place / key, "index", FILES, "the index", display)

    def accept(manifest: Manifest) -> bool:
        skipped = ((Path(source.root, source.names[i]), reason) for i, reason in manifest["skipped"])
        return manifest["encoder"] == encoder.key and not any_readable_again(skipped)

    content = cache.open(
        accept,
        lambda: _make(source, encoder, cache, batch_size),
        busy="another command is indexing these pictures; waiting for it",
        on_damage=lambda why: f"the index of {source.origin} is damaged ({why}): making it again",
    )
    index = _to_index(content, encoder)
    check_readable(index.skipped, len(source))
    return index


def _to_index(content: Content, encoder: LoadedEncoder) -> Index:
    manifest, arrays = content
    features = arrays[FEATURES].reshape(-1, encoder.feature_dim)
    return Index(features, arrays["kept.i64"], {int(place): reason for place, reason in manifest["skipped"]})


def _make(source: ImageSource, encoder: LoadedEncoder, cache: ArrayCache, batch_size: int) -> None:
    """Write the index: features of pictures that are as they were are taken over, the others are computed in parts."""
    before = _read_before(cache, encoder)
    reused, rows, known = _reusable(source, before)
    if len(reused):
        new = len(source) - len(reused) - len(known)
        cache.display.note(f"{new:,} of {len(source):,} pictures are new or have changed")
    rest = np.setdiff1d(np.arange(len(source)), np.concatenate([reused, np.array(list(known), np.int64)]))
    parts = Parts(cache.folder.parent / PARTS, source, rest, encoder)
    parts.complete(batch_size, cache.display)
    skipped = {**known, **parts.skipped}
    check_readable(skipped, len(source))
    kept = np.sort(np.concatenate([reused, parts.kept]))

    def fill(folder: Path) -> Content:
        _reserve(folder / FEATURES, len(kept) * encoder.feature_dim * 4)
        target = np.memmap(folder / FEATURES, "<f4", "r+", shape=(len(kept), encoder.feature_dim))
        if before is not None:
            _copy(target, np.searchsorted(kept, reused), _to_index(before, encoder).features, rows)
        places, start = np.searchsorted(kept, parts.kept), 0
        for features in parts.features():
            target[places[start : start + len(features)]] = unit_rows(features)
            start += len(features)
        target.flush()
        names = Names.of(source.names)
        stamps = np.full((len(source), 2), -1) if source.size_mtime is None else source.size_mtime
        manifest = {
            "origin": printable(source.origin),
            "encoder": encoder.key,
            "skipped": sorted(skipped.items()),
        }
        return manifest, {"kept.i64": kept, "stamps.i64": stamps, "bounds.i64": names.bounds, "names.u8": names.blob}

    cache.write(fill)
    parts.remove()


def _reserve(path: Path, size: int) -> None:
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


def _read_before(cache: ArrayCache, encoder: LoadedEncoder) -> Content | None:
    """The newest whole index of the same origin by the same encoder."""
    for folder in cache.newest_first():
        with suppress(Damaged):
            found = replace(cache, folder=folder).read(lambda manifest: bool(manifest["encoder"] == encoder.key))
            if found is not None:
                return found
    return None


def _reusable(source: ImageSource, before: Content | None) -> tuple[Positions, Positions, dict[int, str]]:
    """Positions whose features are known, their rows in the index before, and those known to be unreadable."""
    nothing = np.zeros(0, np.int64)
    if before is None or source.size_mtime is None:
        return nothing, nothing, {}
    manifest, arrays = before
    old = {name: place for place, name in enumerate(Names(arrays["names.u8"], arrays["bounds.i64"]))}
    stamps, skipped = arrays["stamps.i64"].reshape(-1, 2), dict(manifest["skipped"])
    row_of = {int(place): row for row, place in enumerate(arrays["kept.i64"])}
    reused, rows, known = [], [], {}
    for position, name in enumerate(source.names):
        place = old.get(name)
        if place is None or not _unchanged(source.size_mtime[position], stamps[place]):
            continue
        if place in row_of:
            reused.append(position)
            rows.append(row_of[place])
        elif not (reason := skipped[place]).startswith((*PASSING, GONE)):
            known[position] = reason
    return np.array(reused, np.int64), np.array(rows, np.int64), known


def _unchanged(new: Sequence[int] | NDArray[np.int64], old: Sequence[int] | NDArray[np.int64]) -> bool:
    return int(new[0]) == int(old[0]) >= 0 and int(new[1]) == int(old[1])


def _copy(target: NDArray[np.float32], to: Positions, source: NDArray[np.float32], rows: Positions) -> None:
    for start in range(0, len(to), ROWS):
        target[to[start : start + ROWS]] = source[rows[start : start + ROWS]]


def unit_rows(features: NDArray[np.float32]) -> NDArray[np.float32]:
    """Features [N, d] at length 1; a row of zeros stays one."""
    length = np.sqrt(np.einsum("nd,nd->n", features, features, dtype=np.float64))
    unit: NDArray[np.float32] = (features / np.maximum(length, 1e-12)[:, None]).astype(np.float32)
    return unit
