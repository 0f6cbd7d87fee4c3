"""An official archive, onto the disk: downloaded so that it can be continued, unpacked so that it can do no harm."""

import gzip
import hashlib
import os
import re
import shutil
import tarfile
import time
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from msvq.core.console import Display
from msvq.core.errors import BadInput
from msvq.core.files import check_no_link, is_disk_full, lock

TIMEOUT = 30.0  # seconds without an answer
TRIES = 5  # connections per call
PAUSE = 1.0  # seconds before the second try, doubled before each further one
CHUNK = 1 << 18
DAMAGE = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError, ValueError, RuntimeError)


@dataclass(frozen=True)
class Archive:
    """Where an archive is, and how to know it."""

    url: str
    md5: str
    num_bytes: int
    folder: str  # the one that it extracts to

    @property
    def name(self) -> str:
        """Its file name."""
        return urlsplit(self.url).path.rpartition("/")[2]


def fetch(archive: Archive, root: Path, display: Display) -> Path:
    """Download into `root`, unless the archive with the right checksum is there already; returns its path."""
    if urlsplit(archive.url).scheme not in ("http", "https"):
        raise BadInput(f"cannot download {archive.url}; only http and https addresses are allowed")
    path, part = root / archive.name, root / f"{archive.name}.part"
    with _alone(archive, root, display, archive.num_bytes):
        if path.is_file():
            if archive.num_bytes == path.stat().st_size and _md5(path, display) == archive.md5:
                return path
            display.note(f"{path} is damaged or not the official archive: downloading it anew")
        _download(archive, part, display)
        if (found := _md5(part, display)) != archive.md5:
            part.unlink()
            raise _failed(archive, part, f"what came has md5 {found}, not {archive.md5}, and is removed")
        part.replace(path)
    return path


def unpack(archive: Archive, root: Path, display: Display, *, verified: bool = False) -> Path:
    """Check the archive in `root` (unless `verified`: fetch has just done so), extract it, return its folder."""
    path, target = root / archive.name, root / archive.folder
    if not path.is_file():
        raise BadInput(f"there is no {archive.name} in {root}; use --download, or put {archive.url} there")
    with _alone(archive, root, display):
        if target.is_dir():  # made by another process, which had the lock
            return target
        for old in root.iterdir():  # whoever made it did so under this lock, and is gone
            if re.fullmatch(rf"\.{re.escape(archive.folder)}\.\d+\.tmp", old.name) and not old.is_symlink():
                shutil.rmtree(old)
        if not verified and (found := _md5(path, display)) != archive.md5:
            raise _damaged(path, f"md5 {found}, not {archive.md5}")
        temporary = root / f".{archive.folder}.{os.getpid()}.tmp"
        try:
            temporary.mkdir()
            _extract(path, temporary, display)
            if not (temporary / archive.folder).is_dir():
                raise ValueError(f"it holds no {archive.folder}")
            (temporary / archive.folder).rename(target)
        except DAMAGE as error:
            raise _damaged(path, str(error) or "it ends early") from None
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return target


@contextmanager
def _alone(archive: Archive, root: Path, display: Display, needed: int | None = None) -> Iterator[None]:
    """One process at a time, and a sentence for what the disk refuses."""
    place, part = root / f".{archive.name}.lock", root / f"{archive.name}.part"
    for path in (place, part):
        check_no_link(path)
    try:
        root.mkdir(parents=True, exist_ok=True)
        busy = f"another process is busy with {archive.name}: waiting for it"
        with lock(place, on_busy=lambda: display.note(busy)):
            yield
    except OSError as error:
        if not is_disk_full(error):
            why = error.strerror or error
            raise BadInput(f"cannot work in {root} ({why}); mend that or choose another folder") from None
        part.unlink(missing_ok=True)
        raise _no_room(archive, root, needed) from None


def _md5(path: Path, display: Display) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file, display.task(f"checking {path.name}", path.stat().st_size, in_bytes=True) as advance:
        while block := file.read(CHUNK):
            digest.update(block)
            advance(len(block))
    return digest.hexdigest()


def _damaged(path: Path, why: str) -> BadInput:
    way_out = "delete it and download it again with --download"
    return BadInput(f"{path} is damaged or not the official archive ({why}); {way_out}")


def _no_room(archive: Archive, root: Path, needed: int | None) -> BadInput:
    free, much = _amount(shutil.disk_usage(root).free), _amount(needed) if needed else "more"
    return BadInput(f"{root} has {free} of free disk space and {archive.name} needs {much}; make room, then run again")


def _amount(num: int) -> str:
    scales = {"GB": 10**9, "MB": 10**6, "kB": 10**3}
    return next((f"{num / scale:.1f} {unit}" for unit, scale in scales.items() if num >= scale), f"{num} bytes")


class _Broken(Exception):
    """The connection broke, or (if not `reached`) there was none."""

    def __init__(self, reason: object, *, reached: bool = True) -> None:
        super().__init__(str(reason) or type(reason).__name__)
        self.reached = reached


def _download(archive: Archive, part: Path, display: Display) -> None:
    """Fill `part` to its end, over several connections where they break."""
    for attempt in range(TRIES):
        if attempt:
            time.sleep(PAUSE * 2 ** (attempt - 1))
        try:
            return _connect(archive, part, display)
        except _Broken as error:
            broken = error
        if attempt == 0 and not broken.reached:  # no network at all: say so at once
            break
    raise _failed(archive, part, f"the connection keeps breaking: {broken}" if broken.reached else str(broken))


def _failed(archive: Archive, part: Path, why: str) -> BadInput:
    host, so_far = urlsplit(archive.url).hostname, ""
    if arrived := part.stat().st_size if part.exists() else 0:
        so_far = f", which continues after the {_amount(arrived)} of {_amount(archive.num_bytes)} that have arrived"
    way_out = f"run the same command again{so_far}, or download {archive.url} yourself and put it into {part.parent}"
    return BadInput(f"cannot download {archive.name} from {host} ({why}); {way_out}")


def _connect(archive: Archive, part: Path, display: Display) -> None:
    """Continue `part` to its end over one connection."""
    offset = part.stat().st_size if part.exists() else 0
    if offset == archive.num_bytes:
        return
    if offset > archive.num_bytes:
        part.unlink()
        offset = 0
    asked = {"Range": f"bytes={offset}-"} if offset else {}
    try:
        response = urlopen(Request(archive.url, headers={"User-Agent": "msvq", **asked}), timeout=TIMEOUT)
    except HTTPError as error:
        error.close()
        raise _failed(archive, part, f"HTTP {error.code} {error.reason}") from None
    except (OSError, HTTPException) as error:
        raise _Broken(getattr(error, "reason", error), reached=False) from None
    with response:
        length = response.headers.get("Content-Length", "")
        total = int(length) if length.isdigit() else archive.num_bytes
        if response.status == 206:
            piece = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", response.headers.get("Content-Range", ""))
            if not piece or int(piece[1]) != offset:
                part.unlink(missing_ok=True)
                raise _Broken("it sent another piece than the one asked for")
            total = int(piece[2])
        if total != archive.num_bytes:
            raise _failed(archive, part, f"there it has {total} bytes, not {archive.num_bytes}")
        if total - offset > shutil.disk_usage(part.parent).free:
            raise _no_room(archive, part.parent, total - offset)
        _save(response, part, offset if response.status == 206 else 0, total, display)


def _save(response: Any, part: Path, offset: int, total: int, display: Display) -> None:
    bar = display.task(f"downloading {part.stem}", total, in_bytes=True)
    with part.open("ab" if offset else "wb") as file, bar as advance:
        advance(offset)
        while offset <= total:
            try:
                block = response.read(CHUNK)
            except (OSError, HTTPException) as error:  # of the network; those of the disk are not caught here
                raise _Broken(error) from None
            if not block:
                break
            file.write(block)
            advance(len(block))
            offset += len(block)
        if offset < total:
            raise _Broken("it ended early")
        file.flush()
        os.fsync(file.fileno())


def _extract(path: Path, into: Path, display: Display) -> None:
    """Write the files of an archive below `into`: both libraries write none of them anywhere else."""
    bar = display.task(f"unpacking {path.name}", path.stat().st_size, in_bytes=True)
    with path.open("rb") as file, bar as advance:
        if path.suffix == ".zip":
            with zipfile.ZipFile(file) as pack:
                for info in pack.infolist():
                    pack.extract(info, into)
                    advance(info.compress_size)
        else:
            seen = 0
            with tarfile.open(fileobj=file, mode="r:" if path.suffix == ".tar" else "r:gz") as tar:
                for member in tar:
                    tar.extract(member, into, filter="data")
                    advance(file.tell() - seen)
                    seen = file.tell()
