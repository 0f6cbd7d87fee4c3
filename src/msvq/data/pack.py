"""Decode a folder once, on all cores, into one memory-mapped file; find it again as long as nothing has changed.

A pack is a folder of plain arrays (`FILES`) with checksums, which are compared whenever it is opened: 150 MB
take 0.1 s, 100 GB a minute and a half of one core (or what the disk needs), with a bar. What is damaged is made again.
Damage that comes while the file is mapped is noticed when it is opened the next time. A stream checks no pixels.
"""

import hashlib
import os
import shutil
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from msvq.core.array_cache import ArrayCache, Content, Damaged, Manifest
from msvq.core.console import Advance, Display, printable
from msvq.core.errors import BadInput
from msvq.core.files import disk_full_error, is_disk_full, packs
from msvq.data.decode import GONE, KILLED, NO_MEMORY, PASSING, Unreadable, check_skipped, read_content
from msvq.data.store import Names
from msvq.data.to_rgb import Resizing
from msvq.data.workers import HASH_BYTES, Task, Workers, chunked

if TYPE_CHECKING:
    from msvq.data.sources.base import EncodedSource

PORTION_BYTES = 256_000_000  # of pixels that a worker holds at a time
PIXELS = "images.u8"
FILES = {PIXELS: "u1", "kept.i64": "<i8", "bounds.i64": "<i8", "names.u8": "u1"}  # and what each is an array of
RULES = 2  # part of a pack's key: raised when `decode` makes other pixels of the same file


@dataclass(frozen=True)
class Pack:
    """The readable pictures of some items. `images` is None if they were only checked, for streaming."""

    images: NDArray[np.uint8] | None  # [M, S, S, 3], mapped
    kept: NDArray[np.int64]  # [M]: their positions among the items
    names: Names
    skipped: tuple[tuple[str, str], ...]  # name and reason
    digest: str  # of the content of their files


def open_pack(
    items: "EncodedSource",
    *,
    side: int,
    resizing: Resizing | None = None,
    pixels: bool,
    max_skipped: float,
    num_workers: int | None,
    display: Display,
) -> Pack:
    """The pictures at side x side: from the cache if it holds them, else decoded now (or checked, without `pixels`)."""
    cache = _cache_of(items, side, pixels, display, resizing)
    place, needed = cache.folder.parent, pack_bytes(len(items), side) if pixels else 0

    def accept(manifest: Manifest) -> bool:
        skipped = ((Path(manifest["place"], name), why) for name, why in _skipped(manifest))
        return not any_readable_again(skipped, side, resizing)

    def fill(folder: Path | None) -> Content:
        file = folder / PIXELS if pixels and folder is not None else None
        if file is not None:
            if shutil.disk_usage(place).free < needed:
                raise _full(place, needed)
            file.touch()
        with display.task("packing pictures" if pixels else "checking pictures", len(items)) as advance:
            manifest, kept = _decode_all(items, file, side, resizing, max_skipped, num_workers, advance)
        if file is not None:
            _close_gaps(file, kept, pack_bytes(1, side))
        names = Names.of(items.names[i] for i in kept)
        manifest |= {"root": printable(items.origin), "place": items.root, "side": side}
        return manifest, {"kept.i64": kept, "bounds.i64": names.bounds, "names.u8": names.blob}

    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError:
        if pixels:
            raise
        return _to_pack(fill(None), side, len(items), max_skipped)  # a stream can do without writing it down
    try:
        content = cache.open(
            accept,
            lambda: cache.write(fill),
            busy="another run is packing these pictures; waiting for it",
            on_damage=lambda why: f"the packed pictures of {items.origin} are damaged ({why}): packing them again",
        )
    except OSError as error:
        if is_disk_full(error):
            raise _full(place, needed) from None
        raise
    return _to_pack(content, side, len(items), max_skipped)


def is_packed(items: "EncodedSource", side: int) -> bool:
    """Whether the pictures lie in the cache already, by what it says."""
    try:
        return _cache_of(items, side, True, Display()).read_manifest() is not None
    except Damaged:
        return False


def pack_bytes(num: int, side: int) -> int:
    """The size of a pack's pixels on disk."""
    return num * side * side * 3


def any_readable_again(skipped: Iterable[tuple[Path, str]], side: int, resizing: Resizing | None) -> bool:
    """Whether a file that could not be read, for a reason that may pass, can be read now."""
    found = list(skipped)
    if any(_opens(path) for path, reason in found if reason.startswith((*PASSING, GONE))):
        return True
    heavy: list[list[str | bytes]] = [[str(path)] for path, reason in found if reason in (NO_MEMORY, KILLED)]
    if not heavy:
        return False
    with closing(Workers(1)) as pool:
        return any(not result.reasons for result in pool.map("check", heavy, side=side, resizing=resizing))


def _opens(path: Path) -> bool:
    try:
        return bool(read_content(str(path)))
    except Unreadable:
        return False


def _cache_of(
    items: "EncodedSource", side: int, pixels: bool, display: Display, resizing: Resizing | None = None
) -> ArrayCache:
    """Where these pictures are kept as they are now, beside other packs of their folder at this size."""
    size = str(side) if resizing is None else "-".join(map(str, resizing))
    key = hashlib.sha256(f"{RULES} {size} {items.fingerprint()}".encode()).hexdigest()[:32]
    place = packs() / f"{hashlib.sha256(os.fsencode(items.origin)).hexdigest()[:16]}-{size}"
    dtypes = {name: dtype for name, dtype in FILES.items() if pixels or name != PIXELS}
    return ArrayCache(place / key, "pack", dtypes, "the packed pictures", display)


def _skipped(manifest: Manifest) -> tuple[tuple[str, str], ...]:
    """Name and reason; a name is written in hexadecimal, because it may be any bytes."""
    return tuple((os.fsdecode(bytes.fromhex(name)), reason) for name, reason in manifest["skipped"])


def _to_pack(content: Content, side: int, total: int, max_skipped: float) -> Pack:
    """The pack, if not too many of all its pictures were skipped."""
    manifest, arrays = content
    skipped = _skipped(manifest)
    check_skipped(len(skipped), total, max_skipped, _count(skipped))
    images = arrays[PIXELS].reshape(-1, side, side, 3) if PIXELS in arrays else None
    names = Names(arrays["names.u8"], arrays["bounds.i64"])
    return Pack(images, arrays["kept.i64"], names, skipped, manifest["digest"])


def _count(skipped: Iterable[tuple[str, str]]) -> Counter[str]:
    return Counter(reason for _, reason in skipped)


def _decode_all(
    items: "EncodedSource",
    file: Path | None,
    side: int,
    resizing: Resizing | None,
    max_skipped: float,
    num_workers: int | None,
    advance: Advance,
) -> tuple[Manifest, NDArray[np.int64]]:
    """Decode all items, into the rows of a file if one is given; what to write down about them, and which are good."""
    skipped: list[tuple[str, str]] = []
    kept: list[int] = []
    digest = hashlib.sha256()
    start = 0
    task: Task = "check" if file is None else "pack"
    portions = chunked(items, range(len(items)), _portion(items, side))
    with closing(Workers(num_workers)) as workers:
        place = None if file is None else str(file)
        for result in workers.map(task, portions, side=side, resizing=resizing, file=place):
            for index in range(len(result.rows)):
                if (reason := result.reasons.get(index)) is None:
                    kept.append(start + index)
                    digest.update(result.contents[index * HASH_BYTES : (index + 1) * HASH_BYTES])
                else:
                    skipped.append((os.fsencode(items.names[start + index]).hex(), reason))
            start += len(result.rows)
            if len(skipped) > max_skipped * len(items):
                check_skipped(len(skipped), start, max_skipped, _count(skipped), first=start < len(items))
            advance(len(result.rows))
    if not kept:
        check_skipped(len(skipped), len(items), max_skipped, _count(skipped))
    manifest = {"pictures": len(kept), "skipped": skipped, "digest": digest.hexdigest()[:32]}
    return manifest, np.array(kept, np.int64)


def _portion(items: "EncodedSource", side: int) -> int:
    """How many pictures a worker gets at a time: many small ones, few large ones, by their files and their pixels."""
    known = items.size_mtime
    mean = 100_000 if known is None or not len(known) else float(known[:, 0].mean())
    fitting = max(1, PORTION_BYTES // (3 * side * side))
    return min(fitting, int(np.clip(8_000_000 // max(mean, 1), 4, 128)))


def _close_gaps(path: Path, kept: NDArray[np.int64], row: int) -> None:
    """Move the rows of a file that are kept together, and wait until they are on disk."""
    with path.open("r+b") as file:
        for stretch in np.split(np.arange(len(kept)), np.flatnonzero(np.diff(kept) > 1) + 1):
            for first in range(int(stretch[0]), int(stretch[-1]) + 1, 1000):
                source, num = int(kept[first]), min(1000, int(stretch[-1]) + 1 - first)
                if source != first:
                    file.seek(source * row)
                    rows = file.read(num * row)
                    file.seek(first * row)
                    file.write(rows)
        file.truncate(len(kept) * row)
        file.flush()
        os.fsync(file.fileno())


def _full(place: Path, needed: int) -> BadInput:
    ways = "point MSVQ_HOME at another disk, or decode while training with --set data.mode=stream"
    return disk_full_error(place, needed, "the pictures need", ways)
