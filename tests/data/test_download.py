"""Archives from a server on this machine: broken connections, full disks and hostile members among them."""

import errno
import hashlib
import io
import random
import shutil
import stat
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from rich.console import Console

from msvq.core.console import Display
from msvq.core.errors import BadInput
from msvq.data.sources import download
from msvq.data.sources.download import Archive, fetch, unpack

FILES = {"set/a.bin": random.Random(0).randbytes(90_000), "set/sub/b.txt": b"hello", "set/empty": b""}
UNPACKED = {"set": None, "set/sub": None, **FILES}
QUIET = Display()
REG, DIR = tarfile.REGTYPE, tarfile.DIRTYPE


def make_tar(*more: tuple[str, bytes, bytes], files: dict[str, bytes] = FILES, mode: Any = "w:gz") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode, format=tarfile.PAX_FORMAT) as tar:
        for name, data, kind in [*((name, data, REG) for name, data in files.items()), *more]:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size, info.mode = kind, "../../victim", len(data), 0o4000
            info.pax_headers = {"comment": "a pax header"}
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def make_zip(*more: tuple[str, bytes, int], files: dict[str, bytes] = FILES) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as pack:
        for name, data, mode in [*((name, data, 0) for name, data in files.items()), *more]:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            pack.writestr(info, data)
    return buffer.getvalue()


TAR, TGZ, ZIP = make_tar(mode="w"), make_tar(), make_zip()


def md5(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


def content(folder: Path) -> dict[str, bytes | None]:
    """All that a folder holds, but for the locks."""
    found = (p for p in folder.rglob("*") if not p.name.endswith(".lock"))
    return {p.relative_to(folder).as_posix(): p.read_bytes() if p.is_file() else None for p in found}


class Server(ThreadingHTTPServer):
    """Serves `data`, in one of several ways, and remembers what it was asked for and how much it gave."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.data, self.status, self.ranges, self.length, self.breaks, self.given = TGZ, 200, True, True, 0, 0
        self.asked: list[str | None] = []

    def archive(self, name: str = "set.tgz", **other: Any) -> Archive:
        facts = {"md5": md5(self.data), "num_bytes": len(self.data), "folder": "set", **other}
        return Archive(f"http://127.0.0.1:{self.server_port}/some/{name}", **facts)


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *words: Any) -> None: ...

    def do_GET(self) -> None:
        server: Any = self.server
        asked, total = self.headers["Range"], len(server.data)
        server.asked.append(asked)
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked and server.ranges else 0
        status = 416 if start >= total else 206 if start else server.status
        body = server.data[start:] if status in (200, 206) else b""
        self.send_response(status)
        if start:
            self.send_header("Content-Range", f"bytes {'*' if status == 416 else f'{start}-{total - 1}'}/{total}")
        if server.length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if server.breaks:
            server.breaks -= 1
            body = body[: total // 4]
        server.given += len(body)
        self.wfile.write(body)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(download, "PAUSE", 0.0)
    with Server() as made:
        threading.Thread(target=made.serve_forever, args=(0.01,)).start()
        yield made
        made.shutdown()


GOOD = {
    "set.tar.gz": TGZ,
    "set.tgz": make_tar(("set/sub", b"", DIR), ("._set", b"mac", REG)),
    "set.tar": make_tar(files={f"./{name}": data for name, data in FILES.items()}, mode="w"),
    "set.zip": make_zip(("set/sub/", b"", stat.S_IFDIR), ("__MACOSX/set/._a", b"mac", 0)),
}


@pytest.mark.parametrize("name", GOOD)
def test_an_archive_is_downloaded_and_unpacked(server: Server, tmp_path: Path, name: str) -> None:
    server.data = data = GOOD[name]
    archive, root = server.archive(name), tmp_path / "new" / "root"
    display = Display(Console(file=io.StringIO(), force_terminal=True))
    assert fetch(archive, root, display) == root / archive.name == root / name
    assert content(root) == {name: data}
    assert unpack(archive, root, display, verified=True) == root / "set"
    assert content(root) == {name: data, **UNPACKED}
    assert (root / "set" / "a.bin").stat().st_mode & (stat.S_ISUID | stat.S_IRUSR) == stat.S_IRUSR
    fetch(archive, root, display)
    assert server.asked == [None]  # once
    (root / name).write_bytes(data[:-1])
    (root / "set" / "empty").write_bytes(b"mine")  # a folder that exists is left alone
    assert unpack(archive, root, display) == root / "set"
    assert content(root) == {name: data[:-1], **UNPACKED, "set/empty": b"mine"}
    assert fetch(archive, root, display).read_bytes() == data


def test_a_download_continues(server: Server, tmp_path: Path) -> None:
    archive = server.archive()
    path, part = tmp_path / "set.tgz", tmp_path / "set.tgz.part"
    part.write_bytes(TGZ[:50_000])
    assert fetch(archive, tmp_path, QUIET).read_bytes() == TGZ
    assert (server.asked, server.given) == (["bytes=50000-"], len(TGZ) - 50_000)
    path.rename(part)  # whole, but never renamed
    assert fetch(archive, tmp_path, QUIET).read_bytes() == TGZ
    assert server.given == len(TGZ) - 50_000
    path.unlink()
    part.write_bytes(TGZ + b"more")  # longer than there is: anew
    assert fetch(archive, tmp_path, QUIET).read_bytes() == TGZ
    assert server.asked[-1] is None and content(tmp_path) == {"set.tgz": TGZ}


@pytest.mark.parametrize("length", [True, False])
def test_a_server_without_ranges_starts_again(server: Server, tmp_path: Path, length: bool) -> None:
    server.ranges, server.length = False, length
    (tmp_path / "set.tgz.part").write_bytes(b"x" * 50_000)
    assert fetch(server.archive(), tmp_path, QUIET).read_bytes() == TGZ
    assert (server.asked, server.given) == (["bytes=50000-"], len(TGZ))


def test_a_broken_connection_continues(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.breaks, half = 2, len(TGZ) // 4 * 2
    fetch(server.archive(), tmp_path, QUIET).unlink()
    assert (server.asked, server.given) == ([None, f"bytes={half // 2}-", f"bytes={half}-"], len(TGZ))
    monkeypatch.setattr(download, "TRIES", 2)
    server.breaks = 2
    with pytest.raises(BadInput, match=r"keeps breaking.*again, which continues after the 45\.\d kB of 90\.\d kB"):
        fetch(server.archive(), tmp_path, QUIET)
    assert content(tmp_path) == {"set.tgz.part": TGZ[:half]}
    server.status, server.ranges = 503, False
    with pytest.raises(BadInput, match=r"HTTP 503 .*continues after the 45\.\d kB"):
        fetch(server.archive(), tmp_path, QUIET)
    assert content(tmp_path) == {"set.tgz.part": TGZ[:half]}
    server.ranges = True  # the next command continues
    assert fetch(server.archive(), tmp_path, QUIET).read_bytes() == TGZ
    assert server.given == 2 * len(TGZ)


def test_a_wrong_checksum_leaves_nothing(server: Server, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=rf"md5 {md5(TGZ)}, not 123, and is removed\); run the same command again,"):
        fetch(server.archive(md5="123"), tmp_path, QUIET)
    assert content(tmp_path) == {}
    (tmp_path / "set.tgz").write_bytes(b"short")
    with pytest.raises(BadInput, match=f"md5 {md5(b'short')}, not .*delete it and download it again with --download"):
        unpack(server.archive(), tmp_path, QUIET)
    assert content(tmp_path) == {"set.tgz": b"short"}


def test_what_cannot_be_had_is_one_sentence(server: Server, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=f"there it has {len(TGZ)} bytes, not 5"):
        fetch(server.archive(num_bytes=5), tmp_path, QUIET)
    server.status, archive = 404, server.archive()
    by_hand = f"run the same command again, or download {archive.url} yourself and put it into {tmp_path}"
    with pytest.raises(BadInput, match=rf"set.tgz from 127.0.0.1 \(HTTP 404 Not Found\); {by_hand}"):
        fetch(archive, tmp_path, QUIET)
    closed = Server()
    closed.server_close()
    with pytest.raises(BadInput, match=r"from 127.0.0.1 \(.*refused\); run the same command again, or download"):
        fetch(closed.archive(), tmp_path, QUIET)
    with pytest.raises(BadInput, match="only http and https"):
        fetch(Archive("file:///etc/passwd", "", 1, "set"), tmp_path, QUIET)
    with pytest.raises(BadInput, match=r"there is no set\.tgz in"):
        unpack(archive, tmp_path, QUIET)
    assert content(tmp_path) == {}


class FullDisk(io.FileIO):
    def write(self, data: Any) -> int:
        if self.tell() + len(data) > 20_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data)


def put(root: Path, name: str, data: bytes) -> Archive:
    """An archive in `root` whose checksum is right, next to a file that it might aim at."""
    root.mkdir(parents=True)
    (root / name).write_bytes(data)
    (root.parent / "victim").write_bytes(b"untouched")
    return Archive(f"https://example.invalid/{name}", md5(data), len(data), "set")


def test_a_full_disk_leaves_nothing(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive, path_open, before = put(tmp_path / "root", "set.tar", TAR), Path.open, content(tmp_path)
    monkeypatch.setattr(Path, "open", lambda path, mode: (FullDisk if mode == "wb" else path_open)(path, mode))
    monkeypatch.setattr(tarfile, "bltn_open", lambda path, mode: (FullDisk if mode == "wb" else open)(path, mode))
    with pytest.raises(BadInput, match=r"set\.tgz needs 90\.\d kB; make room"):
        fetch(server.archive(), tmp_path, QUIET)
    with pytest.raises(BadInput, match=r"of free disk space and set\.tar needs more; make room"):
        unpack(archive, tmp_path / "root", QUIET)
    assert content(tmp_path) == before
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 2000}))
    (tmp_path / "set.tgz.part").write_bytes(TGZ[:10_000])
    with pytest.raises(BadInput, match=r"has 2\.0 kB of free disk space and set\.tgz needs 80\.\d kB"):
        fetch(server.archive(), tmp_path, QUIET)
    assert content(tmp_path) == {**before, "set.tgz.part": TGZ[:10_000]}  # said before a byte is written


NAMES = ["/set/abs", "../victim", "set/../../victim", "set/..\\victim", "C:/victim", "set/C:victim", "other/x", "set"]
KINDS = (b"1", b"2", b"3", b"4", b"6")  # links and devices
REFUSED = [
    *(make_tar((name, b"bad", REG)) for name in ("../victim", "set/../../victim", "set")),
    *(make_tar(("set/x", b"", kind)) for kind in KINDS),
]


@pytest.mark.parametrize("data", REFUSED)
def test_an_archive_that_would_write_outside_is_refused_and_nothing_stays(tmp_path: Path, data: bytes) -> None:
    archive = put(tmp_path / "in" / "root", "set.tgz", data)
    before = content(tmp_path)
    with pytest.raises(BadInput):
        unpack(archive, tmp_path / "in" / "root", QUIET)
    assert content(tmp_path) == before


@pytest.mark.parametrize(("name", "make"), [("set.tgz", make_tar), ("set.zip", make_zip)])
@pytest.mark.parametrize("member", NAMES)
def test_no_archive_writes_outside_its_folder(tmp_path: Path, name: str, make: Any, member: str) -> None:
    root = tmp_path / "in" / "root"
    archive = put(root, name, make((member, b"bad", REG if name == "set.tgz" else stat.S_IFREG)))
    before = content(tmp_path)
    with suppress(BadInput):
        unpack(archive, root, QUIET)
    shutil.rmtree(root / "set", ignore_errors=True)
    assert content(tmp_path) == before and not Path("/set").exists()


FLIPPED = ZIP.replace(FILES["set/a.bin"][500:600], bytes(100))
LIE = ZIP.replace((90_000).to_bytes(4, "little"), (10).to_bytes(4, "little"))
DAMAGED = {
    "x.tgz": [TGZ[:50_000], b"no archive", b""],
    "x.tar": [TAR[:50_000], TAR[: TAR.index(b"set/sub/b.txt") + 100], make_tar(files={}, mode="w"), TGZ],
    "x.zip": [ZIP[:50_000], FLIPPED, LIE, make_zip(files={}), b""],
}


@pytest.mark.parametrize(("name", "data"), [(name, data) for name, many in DAMAGED.items() for data in many])
def test_a_damaged_archive_leaves_nothing(tmp_path: Path, name: str, data: bytes) -> None:
    archive = put(tmp_path / "root", name, data)
    with pytest.raises(BadInput, match=r"is damaged or not the official archive \(.+\); delete it and download"):
        unpack(archive, tmp_path / "root", QUIET)
    assert content(tmp_path / "root") == {name: data}


def test_what_a_dead_process_left_is_removed(tmp_path: Path) -> None:
    archive, root = put(tmp_path / "root", "set.tgz", TGZ), tmp_path / "root"
    for name in (".set.99999999.tmp", ".set.mine.tmp", ".other.1.tmp"):
        (root / name / "set").mkdir(parents=True)
    unpack(archive, root, QUIET)
    kept = {name + more: None for name in (".set.mine.tmp", ".other.1.tmp") for more in ("", "/set")}
    assert content(root) == {"set.tgz": TGZ, **UNPACKED, **kept}


@pytest.mark.parametrize("name", ["set.tgz.part", ".set.tgz.lock"])
def test_nothing_is_written_through_a_link(server: Server, tmp_path: Path, name: str) -> None:
    precious, root = tmp_path / "precious", tmp_path / "root"
    precious.write_bytes(TGZ[:100])
    root.mkdir()
    (root / name).symlink_to(precious)
    with pytest.raises(BadInput, match="is a link to"):
        fetch(server.archive(), root, QUIET)
    assert precious.read_bytes() == TGZ[:100] and server.asked == []


def test_two_processes_take_turns(tmp_path: Path) -> None:
    archive, root, said = put(tmp_path / "root", "set.tgz", TGZ), tmp_path / "root", io.StringIO()
    thread = threading.Thread(target=unpack, args=(archive, root, Display(Console(file=said))))
    with FileLock(root / ".set.tgz.lock"):
        thread.start()
        thread.join(0.2)
        assert thread.is_alive() and not (root / "set").exists()
    thread.join(30)
    assert content(root) == {"set.tgz": TGZ, **UNPACKED}
    assert "another process is busy with set.tgz: waiting for it" in said.getvalue()
