"""Packs: decoded once, found again, never wrong; whatever is killed, cut, full or in a hurry."""

import errno
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from filelock import FileLock
from rich.console import Console

from msvq.core.console import Display
from msvq.core.errors import BadInput
from msvq.data.decode import KILLED, NO_MEMORY, check_skipped, decode
from msvq.data.pack import Pack, any_readable_again, open_pack
from msvq.data.sources import DataSettings, open_dataset
from msvq.data.sources.base import EncodedSource
from msvq.data.sources.folders import list_folder
from msvq.data.sources.lists import list_file
from msvq.data.store import Names
from msvq.data.workers import Result, Task, Workers, perform

Fill = Callable[..., None]
SIDE = 16


class InProcess:
    """Stands in for the worker processes where a test is about something else."""

    asked = 0

    def __init__(self, num: int | None) -> None:
        pass

    def map(
        self, task: Task, chunks: Iterable[Sequence[str | bytes]], *, side: int, resizing: None, file: str | None
    ) -> Iterator[Result]:
        row = 0
        for chunk in chunks:
            InProcess.asked += len(chunk)
            yield perform(task, chunk, side, None if file is None else (file, row))
            row += len(chunk)

    def close(self) -> None:
        pass


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> type[InProcess]:
    monkeypatch.setattr("msvq.data.pack.Workers", InProcess)
    monkeypatch.setattr(InProcess, "asked", 0)
    return InProcess


@pytest.fixture
def folder(tmp_path: Path, home: Path, fill: Fill) -> Path:
    """Forty pictures of which three cannot be read."""
    root = tmp_path / "pictures"
    fill(root, [f"{i:02}.{'jpg' if i % 2 else 'png'}" for i in range(40)])
    (root / "07.jpg").write_bytes(b"")
    (root / "20.png").write_text("text")
    content = (root / "31.jpg").read_bytes()
    (root / "31.jpg").write_bytes(content[: len(content) // 2])
    return root


def pack_of(items: EncodedSource | Path, *, side: int = SIDE, pixels: bool = True, max_skipped: float = 0.1) -> Pack:
    items = list_folder(items) if isinstance(items, Path) else items
    return open_pack(items, side=side, pixels=pixels, max_skipped=max_skipped, num_workers=2, display=Display())


def files_in(home: Path) -> list[str]:
    """What lies in the cache: a pack is named by its last folder, temporary things and locks by their name."""
    return sorted(str(path.relative_to(home / "packed")) for path in (home / "packed").glob("*/*"))


def whole_packs(home: Path) -> list[Path]:
    return [path for path in (home / "packed").glob("*/*") if path.is_dir()]


def test_the_pixels_are_those_of_decode_in_the_order_of_the_names(folder: Path, home: Path) -> None:
    pack = pack_of(folder)
    listing = list_folder(folder)
    kept = [i for i in range(40) if i not in (7, 20, 31)]
    assert pack.kept.tolist() == kept
    assert list(pack.names) == [listing.names[i] for i in kept]
    assert pack.images is not None
    assert np.array_equal(pack.images, np.stack([decode(listing[i], SIDE) for i in kept]))
    assert pack.skipped == (("07.jpg", "is empty"), ("20.png", "is not a picture"), ("31.jpg", "is cut short"))
    files = b"".join(hashlib.sha1((folder / listing.names[i]).read_bytes()).digest() for i in kept)
    assert pack.digest == hashlib.sha256(files).hexdigest()[:32]
    card = json.loads((whole_packs(home)[0] / "pack.json").read_text())
    assert (card["root"], card["side"], card["pictures"]) == (str(folder), SIDE, 37)


def test_the_order_holds_across_portions_and_processes(tmp_path: Path, home: Path, fill: Fill) -> None:
    fill(tmp_path / "many", [f"{i:03}.png" for i in range(200)], size=(16, 16))
    listing = list_folder(tmp_path / "many")
    pack = pack_of(listing)
    assert pack.images is not None
    assert np.array_equal(pack.images, np.stack([decode(listing[i], SIDE) for i in range(200)]))


def test_it_is_found_again_without_decoding(folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = pack_of(folder)

    def refuse(*_: object) -> None:
        raise AssertionError("decoded again")

    monkeypatch.setattr("msvq.data.pack.Workers", refuse)
    second = pack_of(folder)
    assert first.images is not None and second.images is not None
    assert np.array_equal(first.images, second.images)
    assert np.array_equal(first.kept, second.kept)
    assert list(first.names) == list(second.names)
    assert (first.skipped, first.digest) == (second.skipped, second.digest)
    with pytest.raises(BadInput, match=r"3 of 40 pictures cannot be read .* more than data.max_skipped = 0.05 allows"):
        pack_of(folder, max_skipped=0.05)  # what was tolerated then need not be now


def test_it_is_mapped_and_torch_takes_it_without_a_word(folder: Path, in_process: type[InProcess]) -> None:
    pack = pack_of(folder)
    assert isinstance(pack.images, np.memmap)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tensor = torch.from_numpy(pack.images)
        labels = torch.from_numpy(np.full(40, -1)[pack.kept])
    assert np.array_equal(tensor.numpy(), pack.images)
    assert len(labels) == 37


def test_a_changed_folder_is_packed_again_and_the_oldest_pack_goes(
    folder: Path, home: Path, fill: Fill, in_process: type[InProcess]
) -> None:
    def repacked() -> bool:
        before, asked = whole_packs(home), in_process.asked
        pack = pack_of(folder)
        listing = list_folder(folder)
        assert pack.images is not None
        assert np.array_equal(pack.images, np.stack([decode(listing[int(i)], SIDE) for i in pack.kept]))
        assert len(whole_packs(home)) <= 3
        assert (whole_packs(home) != before) == (in_process.asked > asked)
        return in_process.asked > asked

    assert repacked()
    assert not repacked()
    shutil.copyfile(folder / "01.jpg", folder / "00.png")  # other content
    assert repacked()
    fill(folder, ["40.png"])
    assert repacked()
    (folder / "39.jpg").unlink()
    assert repacked()
    (folder / "notes.txt").write_text("not a picture")
    assert not repacked()


def test_what_is_no_pack_stays_in_the_cache(
    folder: Path, home: Path, tmp_path: Path, fill: Fill, in_process: type[InProcess]
) -> None:
    pack_of(folder)
    place = next((home / "packed").iterdir())
    others = [tmp_path / "others" / ".draft.tmp", home / "packed" / "mine" / ".draft.tmp", place / "mine"]
    for path in others:
        path.mkdir(parents=True)
        (path / "precious").touch()
    (home / "packed" / "link").symlink_to(tmp_path / "others")
    for number in range(4):
        fill(folder, [f"{50 + number}.png"])
        pack_of(folder)
    assert all((path / "precious").is_file() for path in others)
    assert len(list(place.glob("*/pack.json"))) == 3


def test_every_side_has_a_pack_of_its_own(folder: Path, home: Path, in_process: type[InProcess]) -> None:
    small, large = pack_of(folder, side=8), pack_of(folder, side=24)
    assert small.images is not None and large.images is not None
    assert (small.images.shape, large.images.shape) == ((37, 8, 8, 3), (37, 24, 24, 3))
    assert len(whole_packs(home)) == 2
    asked = in_process.asked
    pack_of(folder, side=8)
    pack_of(folder, side=24)
    assert in_process.asked == asked


def test_two_folders_of_the_same_files_are_kept_apart(
    folder: Path, home: Path, tmp_path: Path, in_process: type[InProcess]
) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    one, two = pack_of(folder), pack_of(tmp_path / "copy")
    assert len(whole_packs(home)) == 2
    assert one.digest == two.digest


def test_labels_may_change_without_packing_again(
    tmp_path: Path, home: Path, fill: Fill, in_process: type[InProcess]
) -> None:
    fill(tmp_path, ["a.png", "b.png", "c.png"])
    for labels in ("xyx", "yxy"):
        rows = zip("abc", labels, ("train", "train", "test"), strict=True)
        (tmp_path / "list.csv").write_text("".join(f"{name}.png,{label},{split}\n" for name, label, split in rows))
        listing = list_file(tmp_path / "list.csv")
        assert listing.labels.tolist() == ["xy".index(label) for label in labels]
        pack_of(listing)
        assert in_process.asked == 3


def test_a_check_for_streaming_keeps_no_pixels_and_serves_until_some_are_wanted(
    folder: Path, home: Path, in_process: type[InProcess]
) -> None:
    checked = pack_of(folder, pixels=False)
    assert checked.images is None
    assert len(checked.kept) == len(checked.names) == 37
    assert not list(home.rglob("images.u8"))
    assert pack_of(folder, pixels=False).digest == checked.digest
    assert in_process.asked == 40
    packed = pack_of(folder)
    assert in_process.asked == 80
    assert packed.images is not None and packed.skipped == checked.skipped
    again = pack_of(folder, pixels=False)
    assert (again.images, again.digest) == (None, checked.digest)  # a stream may be resumed after that
    assert in_process.asked == 80


# Too many that cannot be read.


def test_too_many_unreadable_pictures_end_it_and_leave_nothing(
    folder: Path, home: Path, in_process: type[InProcess]
) -> None:
    with pytest.raises(BadInput) as raised:
        pack_of(folder, max_skipped=0.05)
    assert str(raised.value) == (
        "3 of 40 pictures cannot be read (1 'is empty', 1 'is not a picture', 1 'is cut short'), more than "
        "data.max_skipped = 0.05 allows; 'msvq doctor' lists them, --set data.max_skipped=... allows more"
    )
    assert [Path(name).name for name in files_in(home)] in ([".lock"], [])
    assert len(pack_of(folder, max_skipped=0.075).kept) == 37  # exactly as many as there are


def test_nearly_all_may_be_unreadable_if_so_allowed_but_not_all(
    tmp_path: Path, home: Path, fill: Fill, in_process: type[InProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "bad", ["ok.png"])
    for number in range(40):
        (tmp_path / "bad" / f"{number:02}.png").write_bytes(b"")
    pack = pack_of(tmp_path / "bad", max_skipped=1.0)
    assert list(pack.names) == ["ok.png"]
    assert pack.skipped == tuple((f"{number:02}.png", "is empty") for number in range(40))
    monkeypatch.setattr("msvq.data.pack._portion", lambda items, side: 8)
    with pytest.raises(BadInput, match=r"^8 of the first 8 pictures .*data.max_skipped = 0.1 allows"):  # it stops early
        pack_of(tmp_path / "bad", side=8)
    (tmp_path / "bad" / "ok.png").unlink()
    with pytest.raises(BadInput) as raised:
        pack_of(tmp_path / "bad", max_skipped=1.0)
    assert str(raised.value) == "none of the 40 pictures can be read (40 'is empty'); 'msvq doctor' lists them"
    assert list(pack.names) == ["ok.png"]  # what is mapped stays


def test_reasons_of_one_kind_are_counted_together() -> None:
    reasons = Counter({"is damaged: a": 2, "is damaged: b": 3, "is empty": 4, "is cut short": 1, "x": 1})
    with pytest.raises(BadInput, match=r"11 of 20 pictures .*\(5 'is damaged', 4 'is empty', 1 'is cut short'\)"):
        check_skipped(11, 20, 0.5, reasons)
    check_skipped(10, 20, 0.5, reasons)


# What goes wrong on the disk.


@pytest.mark.parametrize(
    "damage",
    [
        ("images.u8", "cut"),
        ("images.u8", "longer"),
        ("images.u8", "gone"),
        ("pack.json", "cut"),
        ("pack.json", "garbage"),
        ("pack.json", "list"),
        ("pack.json", "gone"),
        ("kept.i64", "gone"),
        ("kept.i64", "cut"),
        ("bounds.i64", "cut"),
        ("bounds.i64", "garbage"),
        ("names.u8", "cut"),
        ("names.u8", "gone"),
    ],
)
def test_a_damaged_pack_is_made_again(
    folder: Path, home: Path, in_process: type[InProcess], damage: tuple[str, str]
) -> None:
    good = pack_of(folder)
    assert good.images is not None
    expected, names = np.array(good.images), list(good.names)
    name, kind = damage
    path = whole_packs(home)[0] / name
    content = path.read_bytes()
    path.unlink()  # the mapped one stays as it is
    new = {"cut": content[:-5], "longer": content + b"12", "garbage": os.urandom(len(content)), "list": b"[1, 2]"}
    if kind != "gone":
        path.write_bytes(new[kind])
    again = pack_of(folder)
    assert in_process.asked == 80
    assert again.images is not None
    assert np.array_equal(again.images, expected)
    assert list(again.names) == names
    assert again.skipped == good.skipped


def test_a_pack_in_the_place_of_another_is_noticed(
    folder: Path, home: Path, fill: Fill, in_process: type[InProcess]
) -> None:
    pack_of(folder)
    older = whole_packs(home)[0]
    fill(folder, ["99.png"])
    good = pack_of(folder)
    newer = next(path for path in whole_packs(home) if path != older)
    shutil.rmtree(newer)
    older.rename(newer)
    assert list(pack_of(folder).names) == list(good.names)


def test_a_check_that_takes_long_has_a_bar(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack_of(folder)
    said, clock = io.StringIO(), iter(range(1000))
    display = Display(Console(file=said))

    def check() -> str:
        open_pack(list_folder(folder), side=SIDE, pixels=True, max_skipped=0.1, num_workers=1, display=display)
        return said.getvalue()

    assert check() == ""
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)) * 1.5)
    monkeypatch.setattr("msvq.core.array_cache._BLOCK", 1000)
    assert check().startswith("checking the packed pictures ...\nchecking the packed pictures: done in ")


def test_a_full_disk_ends_it_with_a_sentence_and_leaves_nothing(
    folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(Workers):
        def map(self, *arguments: Any, **options: Any) -> Iterator[Result]:
            return super().map(*arguments, **{**options, "file": "/dev/full"})  # as the worker processes see it

    monkeypatch.setattr("msvq.data.pack.Workers", Full)
    with pytest.raises(BadInput, match=r"^the disk of .* GB left and the pictures need 0.0 GB; free some, point MSVQ_"):
        pack_of(folder)
    assert [Path(name).name for name in files_in(home)] in ([".lock"], [])


def test_another_error_of_the_disk_is_passed_on_and_leaves_nothing(
    folder: Path, home: Path, in_process: type[InProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output error"):
        pack_of(folder)
    assert [Path(name).name for name in files_in(home)] in ([".lock"], [])


def test_too_little_space_is_noticed_before_the_work(
    folder: Path, home: Path, in_process: type[InProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 40 * SIDE * SIDE * 3 - 1
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    with pytest.raises(BadInput, match=r"decode while training with --set data.mode=stream"):
        pack_of(folder)
    assert in_process.asked == 0
    assert pack_of(folder, pixels=False).images is None  # that needs no space
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free + 1))
    assert pack_of(folder).images is not None


def test_an_interrupt_leaves_nothing_and_frees_the_lock(
    folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(InProcess):
        def map(
            self, task: Task, chunks: Iterable[Sequence[str | bytes]], *, side: int, resizing: None, file: str | None
        ) -> Iterator[Result]:
            raise KeyboardInterrupt

    monkeypatch.setattr("msvq.data.pack.Workers", Interrupted)
    with pytest.raises(KeyboardInterrupt) as raised:
        pack_of(folder)
    assert whole_packs(home) == []
    place = next((home / "packed").iterdir())
    with FileLock(place / ".lock", timeout=0):
        pass
    assert raised.traceback  # the frames that had the lock are still alive here


# Other processes.

PACK = """
import sys, time
from pathlib import Path
from msvq.data import pack as pack_module
from msvq.data.sources.folders import list_folder
from msvq.core.console import Display
from rich.console import Console
decode_all = pack_module._decode_all
def note(*arguments):
    print("packing", flush=True)
    return decode_all(*arguments)
pack_module._decode_all = note
print("ready", flush=True)
while not Path(sys.argv[2]).exists():
    time.sleep(0.001)
pack = pack_module.open_pack(
    list_folder(Path(sys.argv[1])), side=64, pixels=True, max_skipped=0.1, num_workers=2, display=Display(Console())
)
print(pack.images.shape, pack.digest)
"""


@pytest.fixture
def packer(tmp_path: Path, home: Path) -> Callable[[Path], "subprocess.Popen[str]"]:
    """Starts a process that packs a folder when the file `go` appears."""
    (tmp_path / "pack.py").write_text(PACK)

    def start(folder: Path) -> "subprocess.Popen[str]":
        words = [sys.executable, str(tmp_path / "pack.py"), str(folder), str(tmp_path / "go")]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        return process

    return start


@pytest.fixture
def hundreds(tmp_path: Path, fill: Fill) -> Path:
    fill(tmp_path / "hundreds", ["000.jpg"], size=(300, 200))
    for number in range(1, 200):
        shutil.copyfile(tmp_path / "hundreds" / "000.jpg", tmp_path / "hundreds" / f"{number:03}.jpg")
    return tmp_path / "hundreds"


Packer = Callable[[Path], "subprocess.Popen[str]"]


def test_a_kill_while_packing_leaves_no_pack_and_the_next_run_cleans_up(
    tmp_path: Path, home: Path, hundreds: Path, packer: Packer
) -> None:
    process = packer(hundreds)
    (tmp_path / "go").touch()
    end = time.monotonic() + 20
    while not list((home / "packed").glob("*/.*.tmp/images.u8")) and time.monotonic() < end:
        time.sleep(0.001)
    process.kill()
    process.communicate()
    left = [path.name for path in whole_packs(home)]
    assert len(left) == 1 and left[0].endswith(".tmp")
    pack = pack_of(hundreds, side=64)
    assert pack.images is not None
    assert np.array_equal(pack.images, np.repeat(decode(str(hundreds / "000.jpg"), 64)[None], 200, axis=0))
    assert len(whole_packs(home)) == 1
    assert not list((home / "packed").glob("*/.*.tmp"))


def test_two_runs_that_start_together_pack_once(tmp_path: Path, home: Path, hundreds: Path, packer: Packer) -> None:
    processes = [packer(hundreds), packer(hundreds)]
    (tmp_path / "go").touch()
    said = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    # A slow machine tells of its progress besides.
    lines = [[line for line in out.splitlines() if not line.startswith("packing pictures")] for out, _ in said]
    assert sorted(len(line) for line in lines) == [2, 2]
    assert sorted(line[0] for line in lines) == ["another run is packing these pictures; waiting for it", "packing"]
    assert lines[0][1] == lines[1][1] and lines[0][1].startswith("(200, 64, 64, 3) ")
    assert len(whole_packs(home)) == 1


def test_two_runs_that_find_a_damaged_pack_mend_it_once(
    tmp_path: Path, home: Path, hundreds: Path, packer: Packer
) -> None:
    good = pack_of(hundreds, side=64)
    path = whole_packs(home)[0] / "images.u8"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.unlink()
    path.write_bytes(content)
    processes = [packer(hundreds), packer(hundreds)]
    (tmp_path / "go").touch()
    said = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    lines = [out.replace("\n", " ") for out, _ in said]
    assert sum("are damaged (images.u8): packing them again" in line for line in lines) == 1
    assert all(line.endswith(f"(200, 64, 64, 3) {good.digest} ") for line in lines)
    again = pack_of(hundreds, side=64)
    assert good.images is not None and again.images is not None
    assert np.array_equal(good.images, again.images)


def test_a_run_that_waits_says_so(folder: Path, home: Path, in_process: type[InProcess]) -> None:
    pack_of(folder)
    place = next((home / "packed").iterdir())
    shutil.rmtree(whole_packs(home)[0])
    out = io.StringIO()
    lock = FileLock(place / ".lock")
    lock.acquire()

    class Watched(Console):
        def print(self, *words: Any, **options: Any) -> None:
            super().print(*words, **options)
            lock.release()

    display = Display(Watched(file=out, width=200))
    open_pack(list_folder(folder), side=SIDE, pixels=True, max_skipped=0.1, num_workers=1, display=display)
    assert out.getvalue() == "another run is packing these pictures; waiting for it\n"


# Names.


def test_names_are_read_from_disk_one_at_a_time(tmp_path: Path, home: Path, fill: Fill) -> None:
    strange = [os.fsdecode(b"caf\xe9\n.png"), "a b/c d.png", "日本.png", "new\nline.png", "z.png"]
    fill(tmp_path / "strange", strange)
    names = pack_of(tmp_path / "strange").names
    expected = list_folder(tmp_path / "strange").names
    assert sorted(expected) == sorted(strange)
    assert isinstance(names.blob, np.memmap)
    assert list(names) == expected and len(names) == 5
    assert (names[-1], list(names[1:4]), list(names[::-2])) == (expected[-1], expected[1:4], expected[::-2])
    for start, stop in ((0, 2), (2, None), (1, 4), (5, None), (0, 0), (3, 99)):
        part = names[start:stop]
        assert isinstance(part, Names)
        assert list(part) == expected[start:stop]
        assert list(part[1:]) == expected[start:stop][1:]
    for index in (5, -6):
        with pytest.raises(IndexError):
            names[index]


def test_a_strange_name_that_is_skipped_is_remembered(
    tmp_path: Path, home: Path, fill: Fill, in_process: type[InProcess]
) -> None:
    strange = os.fsdecode(b"caf\xe9\n.png")
    fill(tmp_path / "some", ["a.png", "b.png"])
    (tmp_path / "some" / strange).write_bytes(b"")
    assert pack_of(tmp_path / "some", max_skipped=0.5).skipped == ((strange, "is empty"),)
    assert pack_of(tmp_path / "some", max_skipped=0.5).skipped == ((strange, "is empty"),)


def test_a_data_set_of_a_folder_has_its_splits_labels_and_names(
    tmp_path: Path, home: Path, fill: Fill, in_process: type[InProcess]
) -> None:
    root = tmp_path / "set"
    parts = [f"{split}/{kind}/{i}.png" for split in ("train", "test") for kind in ("a", "b") for i in range(5)]
    fill(root, [*parts, "unlabeled/0.png", "unlabeled/1.png"])
    (root / "train" / "a" / "2.png").write_bytes(b"")
    (root / "unlabeled" / "0.png").write_bytes(b"")
    (root / "test" / "b" / "4.png").write_bytes(b"")
    data = open_dataset(DataSettings(source=str(root), max_skipped=0.2))
    assert data.train.labels.tolist() == [0] * 4 + [1] * 5 + [-1]
    assert data.labelled.labels.tolist() == [0] * 4 + [1] * 5
    assert data.test.labels.tolist() == [0] * 5 + [1] * 4
    for split in (data.train, data.labelled, data.test):
        assert split.names is not None
        assert isinstance(split.images, np.ndarray)
        expected = [decode(str(root / name), 32) for name in split.names]
        assert np.array_equal(split.images, np.stack(expected))
    assert data.test.names is not None and data.test.names[-1] == "test/b/3.png"
    assert data.notes[-1] == ("3 of 22 pictures cannot be read and are left out; skipped.csv says which and why")
    assert [name for name, _ in data.skipped] == ["train/a/2.png", "unlabeled/0.png", "test/b/4.png"]


def test_a_choice_of_the_pictures_leaves_the_whole_pack_alone(
    folder: Path, home: Path, in_process: type[InProcess]
) -> None:
    def open_some(limit: int | None) -> int:
        asked = in_process.asked
        listing = list_folder(folder).limit(limit)
        open_pack(listing, side=SIDE, pixels=True, max_skipped=0.5, num_workers=1, display=Display())
        return in_process.asked - asked

    assert open_some(None) > 0
    assert open_some(20) > 0
    assert open_some(None) == 0
    assert open_some(20) == 0
    for limit in (21, 22, 23):
        open_some(limit)
    assert len(whole_packs(home)) == 3  # the oldest have gone
    assert open_some(22) == 0


@pytest.mark.parametrize("reason", [NO_MEMORY, KILLED])
def test_a_picture_that_the_machine_had_no_room_for_is_tried_again(folder: Path, reason: str) -> None:
    whole = next(folder.rglob("*.png"))
    broken = folder / "broken.png"
    broken.write_bytes(whole.read_bytes()[:40])
    assert any_readable_again([(whole, reason)], SIDE, None)
    assert not any_readable_again([(broken, reason), (whole, "is damaged")], SIDE, None)


def test_a_picture_that_may_be_read_again_is_packed(
    folder: Path, in_process: type[InProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    read_bytes = Path.read_bytes

    def forbidden(path: Path) -> bytes:
        if path.name == "00.png":
            raise PermissionError(13, "Permission denied", str(path))
        return read_bytes(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", forbidden)
        patch.setattr("msvq.data.pack._opens", lambda path: False)
        first = pack_of(folder)
        assert ("00.png", "may not be read: no permission") in first.skipped
        assert pack_of(folder).digest == first.digest
    again = pack_of(folder)  # the file is the same, and can be read now
    assert "00.png" not in dict(again.skipped)
    assert len(again.kept) == len(first.kept) + 1
