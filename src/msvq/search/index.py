"""Features of a source that are kept for every command, for as long as neither the pictures nor the encoder change.

An index is a folder of plain arrays (`FILES`) with checksums, compared whenever it is opened. Rows of `features` have
length 1, so that a product of two is their cosine; those of `raw` are as the encoder gives them, to be written down.
When some files of a folder or list have changed, the features of the others are taken over from the index before.
"""

import atexit
import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msvq.core.array_cache import ArrayCache, Content, Damaged, Manifest
from msvq.core.console import Display, printable
from msvq.core.errors import BadInput
from msvq.core.files import disk_full_error, indexes, is_disk_full, reserve
from msvq.data.decode import GONE, PASSING
from msvq.data.pack import any_readable_again
from msvq.data.sources.base import ImageSource, Positions
from msvq.data.store import Names
from msvq.report.pictures import class_name
from msvq.runs.encoder import LoadedEncoder
from msvq.search.feature_shards import BATCH_SIZE, FeatureShards, Skipped, check_readable, name_skipped

RULES = 3  # raised when the same pictures and encoder give another index
FEATURES, RAW = "features.f32", "raw.f32"
FILES = {FEATURES: "<f4", RAW: "<f4", "kept.i64": "<i8", "stamps.i64": "<i8", "bounds.i64": "<i8", "names.u8": "u1"}
SHARDS = ".parts"
ROWS = 8192  # copied at a time
# What the system says of a place where nothing can be written.
CLOSED = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EEXIST, errno.ENOENT)


@dataclass(frozen=True)
class Match:
    """A picture of a source, and how similar it is to another."""

    position: int  # in the source
    name: str
    class_name: str  # empty where unknown
    similarity: float  # the cosine, 1 for the same features


@dataclass(frozen=True)
class Index:
    """Features of the readable pictures of a source."""

    source: ImageSource
    features: NDArray[np.float32]  # [M, d], mapped: of length 1, or as the encoder gives them where that was asked for
    kept: Positions  # [M]: their positions in the source
    skipped: dict[int, str]  # the other positions, and why

    def __len__(self) -> int:
        return len(self.kept)

    def name(self, row: int) -> str:
        """What the picture of a row is called."""
        return self.source.names[int(self.kept[row])]

    def match(self, row: int, similarity: float) -> Match:
        """The picture of a row, so similar to another."""
        position = int(self.kept[row])
        label = class_name(self.source.class_names, int(self.source.labels[position]))
        return Match(position, self.name(row), label, similarity)

    @property
    def left_out(self) -> Skipped:
        """Names of what has no row, and why."""
        return name_skipped(self.source, self.skipped)


def open_index(
    source: ImageSource,
    encoder: LoadedEncoder,
    display: Display,
    *,
    raw: bool = False,
    batch_size: int = BATCH_SIZE,
    workers: int | None = None,
) -> Index:
    """The index of these pictures by this encoder: from the cache, or made now. `raw`: with features of any length.

    Where nothing can be written to the cache, it is made in a temporary folder, and goes when the process does.
    """
    wanted = RAW if raw else FEATURES

    def read_or_make(root: Path) -> Index:
        cache = _cache_of(source, encoder, root, wanted, display)
        manifest, arrays = cache.open(
            lambda manifest: _is_as_it_was(manifest, source, encoder),
            lambda: _make(source, encoder, replace(cache, dtypes=FILES), batch_size, workers),
            busy="another command is embedding these pictures; waiting for it",
            on_damage=lambda why: f"the index of {source.origin} is damaged ({why}): making it again",
        )
        skipped = dict(manifest["skipped"])
        return Index(source, arrays[wanted].reshape(-1, encoder.feature_dim), arrays["kept.i64"], skipped)

    try:
        index = read_or_make(indexes())
    except OSError as error:
        if is_disk_full(error):
            raise _full(indexes(), len(source), encoder) from None
        if error.errno not in CLOSED:
            raise
        display.note(
            f"note: features are not kept for the next command, since nothing can be written to {str(indexes())!r} "
            f"({error.strerror}); MSVQ_HOME names another place"
        )
        index = read_or_make(_temporary_root())
    check_readable(source, index.skipped)
    return index


@cache
def _temporary_root() -> Path:
    """Where this process keeps what it cannot keep in the cache, and finds it again."""
    folder = Path(tempfile.mkdtemp(prefix="msvq-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _cache_of(source: ImageSource, encoder: LoadedEncoder, root: Path, wanted: str, display: Display) -> ArrayCache:
    """Where the index is kept, beside others of the same pictures; of the two kinds of features, one is read."""
    key = hashlib.sha256(f"{RULES} {encoder.key} {source.fingerprint()}".encode()).hexdigest()[:32]
    place = root / hashlib.sha256(os.fsencode(source.origin)).hexdigest()[:16]
    place.mkdir(parents=True, exist_ok=True)
    dtypes = {name: dtype for name, dtype in FILES.items() if name == wanted or name not in (FEATURES, RAW)}
    return ArrayCache(place / key, "index", dtypes, "the index", display)


def _is_as_it_was(manifest: Manifest, source: ImageSource, encoder: LoadedEncoder) -> bool:
    """Whether an index is of this encoder, and what could not be read then cannot be read now."""
    skipped = ((Path(source.root, source.names[i]), reason) for i, reason in manifest["skipped"])
    how = encoder.preprocessing
    return manifest["encoder"] == encoder.key and not any_readable_again(skipped, how.side, how.resizing)


def _make(source: ImageSource, encoder: LoadedEncoder, cache: ArrayCache, batch_size: int, workers: int | None) -> None:
    """Write the index: features of pictures that are as they were are taken over, the others are computed in shards."""
    before = _read_before(cache, encoder)
    old_rows, unreadable = _unchanged(source, before)
    reused = np.array(list(old_rows), np.int64)
    rest = np.setdiff1d(np.arange(len(source)), [*old_rows, *unreadable])
    if len(reused):
        cache.display.note(f"{len(rest):,} of {len(source):,} pictures are new or have changed")
    shards = FeatureShards(cache.folder.parent / SHARDS, source, rest, encoder)
    shards.complete(batch_size, cache.display, workers)
    skipped = {**unreadable, **shards.skipped}
    check_readable(source, skipped)
    computed = shards.kept
    kept = np.sort(np.concatenate([reused, computed]))

    def fill(folder: Path) -> Content:
        size = len(kept) * encoder.feature_dim * 4
        if shutil.disk_usage(folder).free < 2 * size:
            raise _full(folder.parent, len(kept), encoder)
        raw, unit = (_reserved(folder / name, size, encoder.feature_dim) for name in (RAW, FEATURES))
        if before is not None:
            old = before[1][RAW].reshape(-1, encoder.feature_dim)
            rows = np.array(list(old_rows.values()), np.int64)
            blocks = (old[rows[start : start + ROWS]] for start in range(0, len(rows), ROWS))
            _fill_rows(raw, np.searchsorted(kept, reused), blocks)
        _fill_rows(raw, np.searchsorted(kept, computed), shards.features())
        for start in range(0, len(kept), ROWS):
            unit[start : start + ROWS] = unit_rows(raw[start : start + ROWS])
        for target in (raw, unit):
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


def _fill_rows(target: NDArray[np.float32], places: Positions, blocks: Iterable[NDArray[np.float32]]) -> None:
    """Write blocks of rows, one after another, to their places in the target."""
    start = 0
    for block in blocks:
        target[places[start : start + len(block)]] = block
        start += len(block)


def _reserved(path: Path, size: int, feature_dim: int) -> "np.memmap[Any, np.dtype[np.float32]]":
    """A file as rows of features to write, which has its space on the disk already."""
    with path.open("wb") as file:
        reserve(file, size)
    return np.memmap(path, "<f4", "r+", shape=(size // (4 * feature_dim), feature_dim))


def _full(place: Path, num: int, encoder: LoadedEncoder) -> BadInput:
    needed = 2 * num * encoder.feature_dim * 4
    return disk_full_error(place, needed, "the index needs", "or point MSVQ_HOME at another disk")


def unit_rows(features: NDArray[np.float32]) -> NDArray[np.float32]:
    """Features [N, d] at length 1; a row of zeros stays one."""
    length = np.sqrt(np.einsum("nd,nd->n", features, features, dtype=np.float64))
    unit: NDArray[np.float32] = (features / np.maximum(length, 1e-12)[:, None]).astype(np.float32)
    return unit
