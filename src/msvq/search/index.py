"""Features of a source that are kept to be searched, for as long as neither the pictures nor the encoder change.

An index is a folder of plain arrays (`FILES`) and a card with their checksums, compared whenever it is opened. Rows of
`features` have length 1, so that a product of two is their cosine. When some files of a folder or list have changed,
the features of the others are taken over from the index before.
"""

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msvq.core.checksums import Damaged, hash_files, map_checked, read_sealed, with_checksum
from msvq.core.console import Display, printable
from msvq.core.errors import BadInput
from msvq.core.files import disk_full_error, indexes, write_atomically, write_text
from msvq.data.decode import GONE, PASSING
from msvq.data.names import Names
from msvq.data.packing import hold, opens
from msvq.runs.encoder import LoadedEncoder
from msvq.search.feature_shards import Parts, check_readable
from msvq.search.source import Positions, Source

KEPT = 3  # indexes of one origin; the oldest goes when another is made
RULES = 2  # raised when the same pictures and encoder give another index
CARD, FEATURES = "index.json", "features.f32"
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


@dataclass(frozen=True)
class _Stored:
    """An index on disk, with what it takes to reuse it for other pictures of the same origin."""

    index: Index
    names: Names  # of all pictures, readable or not
    stamps: NDArray[np.int64]  # [N, 2]; -1 where they are no files


def open_index(source: Source, encoder: LoadedEncoder, *, batch_size: int = 256, display: Display) -> Index:
    """The index of these pictures by this encoder: from the cache, or made now."""
    key = hashlib.sha256(f"{RULES} {encoder.key} {source.fingerprint()}".encode()).hexdigest()[:32]
    place = indexes() / hashlib.sha256(os.fsencode(source.origin)).hexdigest()[:16]
    try:
        stored = _current(place / key, source, encoder, display)
    except Damaged:
        stored = None
    if stored is None:
        place.mkdir(parents=True, exist_ok=True)
        with hold(place / ".lock", display, "another command is indexing these pictures; waiting for it"):
            try:
                stored = _current(place / key, source, encoder, display)  # another may have made it meanwhile
            except Damaged as damage:
                display.note(f"the index of {source.origin} is damaged ({damage}): making it again")
            if stored is None:
                _make(source, encoder, place, key, batch_size, display)
                stored = _made(place / key, encoder, display)
    check_readable(stored.index.skipped, len(source))
    return stored.index


def _current(folder: Path, source: Source, encoder: LoadedEncoder, display: Display) -> _Stored | None:
    """The index in a folder, None if a picture that could not be read can be read now; or Damaged."""
    stored = _load(folder, encoder, display)
    if stored is None:
        return None
    passing = [i for i, reason in stored.index.skipped.items() if reason.startswith((*PASSING, GONE))]
    return None if any(opens(Path(source.root, source.names[i])) for i in passing) else stored


def _made(folder: Path, encoder: LoadedEncoder, display: Display) -> _Stored:
    """The index that this process has just written."""
    try:
        stored = _load(folder, encoder, display, fresh=True)
    except Damaged as damage:
        raise BadInput(f"the index in {str(folder)!r} cannot be read back ({damage}); is the disk failing?") from None
    if stored is None:
        raise BadInput(f"the index in {str(folder)!r} was deleted as soon as it was written; give the command again")
    return stored


def _load(folder: Path, encoder: LoadedEncoder, display: Display, *, fresh: bool = False) -> _Stored | None:
    """The index, None if there is none or it is another encoder's; or Damaged."""
    card = read_sealed(folder / CARD, marks={"files"})
    if card is None or card["encoder"] != encoder.key:
        return None
    if card["key"] != folder.name:
        raise Damaged("it belongs to other pictures")
    arrays = map_checked(folder, FILES, {} if fresh else card["files"], display, "the index")
    features = arrays[FEATURES].reshape(-1, encoder.feature_dim)
    index = Index(features, arrays["kept.i64"], {int(place): reason for place, reason in card["skipped"]})
    names = Names(arrays["names.u8"], arrays["bounds.i64"])
    return _Stored(index, names, arrays["stamps.i64"].reshape(-1, 2))


def _make(source: Source, encoder: LoadedEncoder, place: Path, key: str, batch_size: int, display: Display) -> None:
    """Write the index beside its place, then move it there. The lock is held: any other unfinished one is dead."""
    for stale in place.glob(".*.tmp"):
        shutil.rmtree(stale, ignore_errors=True)
    before = _before(place, encoder, display)
    reused, rows, known = _reusable(source, before)
    if len(reused):
        display.note(f"{len(source) - len(reused) - len(known):,} of {len(source):,} pictures are new or have changed")
    rest = np.setdiff1d(np.arange(len(source)), np.concatenate([reused, np.array(list(known), np.int64)]))
    parts = Parts(place / PARTS, source, rest, encoder)
    parts.complete(batch_size, display)
    skipped = {**known, **parts.skipped}
    check_readable(skipped, len(source))
    kept = np.sort(np.concatenate([reused, parts.kept]))
    temporary = Path(tempfile.mkdtemp(prefix=".", suffix=".tmp", dir=place))
    try:
        _reserve(temporary / FEATURES, len(kept) * encoder.feature_dim * 4)
        target = np.memmap(temporary / FEATURES, "<f4", "r+", shape=(len(kept), encoder.feature_dim))
        if before is not None:
            _copy(target, np.searchsorted(kept, reused), before.index.features, rows)
        places, start = np.searchsorted(kept, parts.kept), 0
        for features in parts.features():
            target[places[start : start + len(features)]] = unit_rows(features)
            start += len(features)
        target.flush()
        _write_rest(source, encoder, temporary, key, kept, skipped, display)
        shutil.rmtree(place / key, ignore_errors=True)  # a damaged one, or pictures could not be read then
        temporary.rename(place / key)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    parts.remove()
    others = [folder for folder in place.iterdir() if (folder / CARD).is_file() and folder.name != key]
    for older in sorted(others, key=lambda folder: folder.stat().st_mtime)[: -KEPT + 1]:
        shutil.rmtree(older, ignore_errors=True)


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


def _write_rest(
    source: Source,
    encoder: LoadedEncoder,
    folder: Path,
    key: str,
    kept: Positions,
    skipped: dict[int, str],
    display: Display,
) -> None:
    """All files of an index but its features; the card comes last."""
    names = Names.of(source.names)
    stamps = np.full((len(source), 2), -1) if source.stamps is None else source.stamps
    arrays = {"kept.i64": kept, "stamps.i64": stamps, "bounds.i64": names.bounds, "names.u8": names.blob}
    for name, array in arrays.items():
        write_atomically(folder / name, array.astype(FILES[name]).tofile)
    card: dict[str, Any] = {
        "origin": printable(source.origin),
        "encoder": encoder.key,
        "key": key,
        "skipped": sorted(skipped.items()),
        "files": hash_files([folder / name for name in FILES], display),
    }
    write_text(folder / CARD, json.dumps(with_checksum(card)))


def _before(place: Path, encoder: LoadedEncoder, display: Display) -> _Stored | None:
    """The newest whole index of the same origin by the same encoder."""
    folders = [folder for folder in place.iterdir() if folder.is_dir() and not folder.name.startswith(".")]
    for folder in sorted(folders, key=lambda one: one.stat().st_mtime, reverse=True):
        try:
            stored = _load(folder, encoder, display)
        except Damaged:
            continue
        if stored is not None:
            return stored
    return None


def _reusable(source: Source, before: _Stored | None) -> tuple[Positions, Positions, dict[int, str]]:
    """Positions whose features are known, their rows in the index before, and those known to be unreadable."""
    nothing = np.zeros(0, np.int64)
    if before is None or source.stamps is None:
        return nothing, nothing, {}
    old = {name: place for place, name in enumerate(before.names)}
    row_of = {int(place): row for row, place in enumerate(before.index.kept)}
    reused, rows, known = [], [], {}
    for position, name in enumerate(source.names):
        place = old.get(name)
        if place is None or not _unchanged(source.stamps[position], before.stamps[place]):
            continue
        if place in row_of:
            reused.append(position)
            rows.append(row_of[place])
        elif not (reason := before.index.skipped[place]).startswith((*PASSING, GONE)):
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
