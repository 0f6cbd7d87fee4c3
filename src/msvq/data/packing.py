"""Decode a folder once, on all cores, into one memory-mapped file; find it again as long as nothing has changed.

A pack is a folder of plain arrays (`FILES`) and a card with their checksums, compared whenever it is opened: 150 MB
take 0.1 s, 100 GB a minute and a half of one core (or what the disk needs), with a bar. What is damaged is made again.
Damage that comes while the file is mapped is noticed when it is opened the next time. A stream checks no pixels.
"""

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from msvq.core.checksums import Damaged, hash_files, map_checked, read_sealed, with_checksum
from msvq.core.console import Advance, Display, printable
from msvq.core.errors import BadInput
from msvq.core.files import disk_full_error, packs, write_atomically, write_text
from msvq.data.decode import GONE, PASSING
from msvq.data.items import Items, pieces
from msvq.data.names import Names
from msvq.data.skipping import check_skipped
from msvq.data.workers import HASH_BYTES, Task, Workers

KEPT = 3  # packs of one folder at one size; the oldest goes when another is made
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


def _address(items: Items, side: int) -> tuple[Path, str]:
    """The folder of all packs of these pictures at this size, and the name of theirs as they are now."""
    key = hashlib.sha256(f"{RULES} {side} {items.fingerprint()}".encode()).hexdigest()[:32]
    return packs() / f"{hashlib.sha256(os.fsencode(items.origin)).hexdigest()[:16]}-{side}", key


def is_packed(items: Items, side: int) -> bool:
    """Whether the pictures lie in the cache already, by what it says."""
    place, key = _address(items, side)
    try:
        card = read_sealed(place / key / "pack.json", marks={"files"})
    except Damaged:
        return False
    return card is not None and card["files"].keys() >= FILES.keys()


def open_pack(
    items: Items, *, side: int, pixels: bool, max_skipped: float, num_workers: int | None, display: Display
) -> Pack:
    """The pictures at side x side: from the cache if it holds them, else decoded now (or checked, without `pixels`)."""
    place, key = _address(items, side)
    try:
        pack = _load(place / key, side, pixels, display)
    except Damaged:
        pack = None
    if pack is None:
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError:
            if pixels:
                raise
            return _check_in_memory(items, side, max_skipped, num_workers, display)
        with hold(place / ".lock", display, "another run is packing these pictures; waiting for it"):
            try:
                pack = _load(place / key, side, pixels, display)  # another run may have made it meanwhile
            except Damaged as damage:
                display.note(f"the packed pictures of {items.origin} are damaged ({damage}): packing them again")
            if pack is None:
                _make(items, place, key, side, pixels, max_skipped, num_workers, display)
                pack = _load(place / key, side, pixels, display, fresh=True)
    assert pack is not None
    check_skipped(len(pack.skipped), len(items), max_skipped, Counter(reason for _, reason in pack.skipped))
    return pack


def _check_in_memory(items: Items, side: int, max_skipped: float, num_workers: int | None, display: Display) -> Pack:
    """What a stream needs to know, where nothing can be written down for the next time."""
    with display.task("checking pictures", len(items)) as advance:
        card, kept = _decode_all(items, None, side, max_skipped, num_workers, advance)
    skipped = tuple((_named(name), reason) for name, reason in card["skipped"])
    return Pack(None, kept, Names.of(items.names[i] for i in kept), skipped, card["digest"])


def pack_bytes(num: int, side: int) -> int:
    """The size of a pack's pixels on disk."""
    return num * side * side * 3


def _named(written: str) -> str:
    """A name as the card has it: hexadecimal, because it may be any bytes."""
    return os.fsdecode(bytes.fromhex(written))


def opens(path: Path) -> bool:
    """Whether a file that could not be read can be read now."""
    try:
        return bool(path.read_bytes())
    except (OSError, ValueError):
        return False


@contextmanager
def hold(path: Path, display: Display, busy: str) -> Iterator[None]:
    """Hold the lock; if another process has it, say `busy` and wait. The system frees a dead process's."""
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        display.note(busy)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _load(folder: Path, side: int, pixels: bool, display: Display, *, fresh: bool = False) -> Pack | None:
    """The pack, or None if it is not there, is an older one, or has no pixels although they are wanted; or Damaged.

    None too if a picture that could not be read, for a reason that may pass, can be read now. `fresh`: this process
    has just written it, so neither that nor the checksums are looked at.
    """
    card = read_sealed(folder / "pack.json", marks={"files"})
    kinds = {name: kind for name, kind in FILES.items() if pixels or name != PIXELS}
    if card is None or not kinds.keys() <= card["files"].keys():
        return None
    if card["key"] != folder.name:
        raise Damaged("it belongs to other pictures")
    skipped = tuple((_named(name), reason) for name, reason in card["skipped"])
    passing = [Path(card["place"], name) for name, reason in skipped if reason.startswith((*PASSING, GONE))]
    if not fresh and any(map(opens, passing)):
        return None
    arrays = map_checked(folder, kinds, {} if fresh else card["files"], display)
    images = arrays[PIXELS].reshape(-1, side, side, 3) if pixels else None
    return Pack(images, arrays["kept.i64"], Names(arrays["names.u8"], arrays["bounds.i64"]), skipped, card["digest"])


def _make(
    items: Items,
    place: Path,
    key: str,
    side: int,
    pixels: bool,
    max_skipped: float,
    num_workers: int | None,
    display: Display,
) -> None:
    """Write the pack beside its place, then move it there. The lock is held: any other unfinished one is dead."""
    _sweep(place)
    needed = pack_bytes(len(items), side) if pixels else 0
    if shutil.disk_usage(place).free < needed:
        raise _full(place, needed)
    temporary = Path(tempfile.mkdtemp(prefix=".", suffix=".tmp", dir=place))
    try:
        file = temporary / PIXELS if pixels else None
        if file is not None:
            file.touch()
        with display.task("packing pictures" if pixels else "checking pictures", len(items)) as advance:
            card, kept = _decode_all(items, file, side, max_skipped, num_workers, advance)
        if file is not None:
            _close_gaps(file, kept, pack_bytes(1, side))
        names = Names.of(items.names[i] for i in kept)
        for name, array in (("kept.i64", kept), ("bounds.i64", names.bounds), ("names.u8", names.blob)):
            write_atomically(temporary / name, array.astype(FILES[name]).tofile)
        card |= {"root": printable(items.origin), "place": items.root, "side": side, "key": key}
        card["files"] = hash_files([temporary / name for name in FILES if pixels or name != PIXELS], display)
        write_text(temporary / "pack.json", json.dumps(with_checksum(card)))
        shutil.rmtree(place / key, ignore_errors=True)  # one without pixels, or a damaged one
        temporary.rename(place / key)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _full(place, needed) from None
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    # Others of the same root: it has changed since, or they are another choice of its pictures.
    others = [folder for folder in place.iterdir() if (folder / "pack.json").is_file() and folder.name != key]
    for older in sorted(others, key=lambda folder: folder.stat().st_mtime)[: -KEPT + 1]:
        shutil.rmtree(older, ignore_errors=True)


def _sweep(own: Path) -> None:
    """Remove what killed processes left, anywhere among the packs: where nobody holds the lock, nobody is packing."""
    for stale in packs().glob("*/.*.tmp"):
        if stale.parent.is_symlink() or not (stale.parent / ".lock").is_file():
            continue  # not a place of packs
        try:
            if stale.parent == own:
                shutil.rmtree(stale, ignore_errors=True)
            else:
                with FileLock(stale.parent / ".lock", timeout=0):
                    shutil.rmtree(stale, ignore_errors=True)
        except (Timeout, OSError):
            continue


def _decode_all(
    items: Items,
    file: Path | None,
    side: int,
    max_skipped: float,
    num_workers: int | None,
    advance: Advance,
) -> tuple[dict[str, Any], NDArray[np.int64]]:
    """Decode all items, into the rows of a file if one is given; what to write down about them, and which are good."""
    skipped: list[tuple[str, str]] = []
    reasons: Counter[str] = Counter()
    kept: list[int] = []
    digest = hashlib.sha256()
    workers, start = Workers(num_workers), 0
    task: Task = "check" if file is None else "pack"
    portions = pieces(items, range(len(items)), _portion(items, side))
    try:
        for result in workers.map(task, portions, side=side, file=None if file is None else str(file)):
            for index in range(len(result.rows)):
                if (reason := result.reasons.get(index)) is None:
                    kept.append(start + index)
                    digest.update(result.contents[index * HASH_BYTES : (index + 1) * HASH_BYTES])
                else:
                    skipped.append((os.fsencode(items.names[start + index]).hex(), reason))
                    reasons[reason] += 1
            start += len(result.rows)
            if len(skipped) > max_skipped * len(items):
                check_skipped(len(skipped), start, max_skipped, reasons, first=start < len(items))
            advance(len(result.rows))
    finally:
        workers.close()
    if not kept:
        check_skipped(len(skipped), len(items), max_skipped, reasons)
    card = {"pictures": len(kept), "skipped": skipped, "digest": digest.hexdigest()[:32]}
    return card, np.array(kept, np.int64)


def _portion(items: Items, side: int) -> int:
    """How many pictures a worker gets at a time: many small ones, few large ones, by their files and their pixels."""
    stamps = getattr(items, "stamps", None)
    mean = 100_000 if stamps is None or not len(stamps) else float(stamps[:, 0].mean())
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
