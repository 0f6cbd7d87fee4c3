"""`msvq doctor` as a person uses it, on folders as people have them."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from msvq.cli import main
from msvq.data.sources import DataSettings, open_dataset


class Answer(NamedTuple):
    code: int
    out: str
    err: str


Doctor = Callable[..., Answer]


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Doctor:
    monkeypatch.setenv("MSVQ_HOME", str(tmp_path / "home"))

    def run(*arguments: str | Path) -> Answer:
        with pytest.raises(SystemExit) as ended:
            main(["doctor", *map(str, arguments)])
        captured = capsys.readouterr()
        return Answer(int(ended.value.code or 0), captured.out, captured.err)

    return run


def scene(seed: int, side: int = 40) -> Image.Image:
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC)


def fill(folder: Path, seeds: range, side: int = 40) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        scene(seed, side).save(folder / f"{seed:04}.png")
    return folder


def told(answer: Answer) -> dict[str, Any]:
    assert answer.code in (0, 1), answer.err
    report: dict[str, Any] = json.loads(answer.out)
    assert report["ok"] == (answer.code == 0)
    return report


def ids(report: dict[str, Any]) -> dict[str, str]:
    return {finding["id"]: finding["severity"] for finding in report["findings"]}


def test_a_good_folder_gets_a_clean_bill(doctor: Doctor, tmp_path: Path) -> None:
    data = tmp_path / "my photos"
    for start, (split, kind) in enumerate((s, k) for s in ("train", "test") for k in ("cat", "dog")):
        fill(data / split / kind, range(start * 200, start * 200 + (110 if split == "train" else 20)))
    (data / "readme.txt").write_text("mine")
    answer = doctor("--data", data)
    assert answer.code == 0, answer.out
    assert "220 to learn from (220 with a label, 0 without), 40 to test on" in answer.out
    assert "2 classes, 110 training pictures in each" in answer.out
    assert "smallest 40 x 40, median 40 x 40, largest 40 x 40" in answer.out
    assert "files that are no pictures, by their names: 1" in answer.out
    assert "none: the data looks fine" in answer.out
    assert f"msvq pretrain --data '{data}' --out runs/my-photos" in answer.out
    report = told(doctor("--data", data, "--json"))
    assert report["findings"] == []
    assert set(report) == {
        *("data", "counts", "sizes", "unreadable", "duplicates", "overlap", "classes", "plan", "command"),
        *("findings", "ok"),
    }
    assert report["counts"]["test"] == 40
    assert report["sizes"]["formats"] == {"PNG": 260}
    assert report["classes"]["pictures"] == {"cat": 110, "dog": 110}
    assert (report["plan"]["size"], report["plan"]["stem"], report["plan"]["batch_size"]) == (32, "small", 32)
    assert report["plan"]["queue_size"] is None  # recipe fast has none
    assert report["plan"]["cache_bytes"] == 260 * 32 * 32 * 3
    assert not (tmp_path / "home").exists()  # a look changes nothing


def test_copies_leaks_and_unreadable_files_are_named(doctor: Doctor, tmp_path: Path) -> None:
    data = tmp_path / "data"
    fill(data / "train" / "a", range(30))
    fill(data / "train" / "b", range(100, 104))
    fill(data / "test" / "a", range(200, 210))
    fill(data / "test" / "b", range(300, 303))
    scene(0).save(data / "train" / "a" / "exact.png")
    scene(1).save(data / "train" / "b" / "wrong.png")
    ImageEnhance.Brightness(scene(2)).enhance(1.04).save(data / "train" / "a" / "near.jpg", quality=85)
    scene(3).save(data / "test" / "a" / "leak.png")
    scene(4).save(data / "test" / "a" / "leak.jpg", quality=80)
    (data / "train" / "a" / "empty.png").write_bytes(b"")
    (data / "train" / "b" / "text.jpg").write_text("dear")
    for size in ((1, 1), (2000, 3)):
        Image.new("RGB", size, "red" if size[0] == 1 else "blue").save(data / "train" / "a" / f"odd{size[0]}.png")
    report = told(doctor("--data", data, "--json"))
    assert ids(report) == {
        "few-pictures": "hurts",
        "train-test-overlap": "hurts",
        "unreadable": "note",
        "duplicates": "note",
        "copies-in-two-classes": "note",
        "small-classes": "note",
        "small-pictures": "note",
        "long-pictures": "note",
    }
    join = os.path.join
    assert report["unreadable"]["files"] == [
        {"name": join("train", "a", "empty.png"), "reason": "is empty"},
        {"name": join("train", "b", "text.jpg"), "reason": "is not a picture"},
    ]
    pairs = {(Path(p["name"]).name, Path(p["of"]).name, p["kind"]) for p in report["duplicates"]["pairs"]}
    assert pairs == {
        ("exact.png", "0000.png", "exact"),
        ("wrong.png", "0001.png", "exact"),
        ("near.jpg", "0002.png", "near"),
    }
    leaks = {(Path(p["name"]).name, Path(p["of"]).name, p["kind"]) for p in report["overlap"]["pairs"]}
    assert leaks == {("leak.png", "0003.png", "exact"), ("leak.jpg", "0004.png", "near")}
    assert report["sizes"]["largest"] == [2000, 3]
    text = doctor("--data", data)
    assert text.code == 1
    assert "hurts  2 of 15 (13.3 %) test pictures are also among the training pictures" in text.out
    assert "text.jpg is not a picture" in text.out


def test_too_many_unreadable_files_hurt(doctor: Doctor, tmp_path: Path) -> None:
    data = fill(tmp_path / "data", range(20))
    for number in range(5):
        (data / f"bad{number}.jpg").write_bytes(b"\xff\xd8\xff cut")
    report = told(doctor("--data", data, "--json"))
    assert ids(report)["unreadable"] == "hurts"
    assert report["unreadable"]["share"] == 0.2
    assert len(report["findings"][0]["examples"]) == 5
    text = doctor("--data", data).out
    assert "5 of 25 (20.0 %) pictures cannot be read" in text
    assert "and 2 more (--json lists all)" in text
    assert ids(told(doctor("--data", data, "--json", "--set", "data.max_skipped=0.3")))["unreadable"] == "note"


def test_nothing_readable_is_still_a_report(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.png").write_text("no")
    assert ids(told(doctor("--data", tmp_path / "data", "--json")))["unreadable"] == "hurts"
    assert "no picture can be read" in doctor("--data", tmp_path / "data").out


def test_a_flat_folder_has_no_labels_and_blank_pictures_are_copies(doctor: Doctor, tmp_path: Path) -> None:
    data = fill(tmp_path / "flat", range(220))
    report = told(doctor("--data", data, "--json"))
    assert ids(report) == {"no-labels": "note"}
    assert report["counts"]["train_without_label"] == 220
    for number in range(30):
        Image.new("RGB", (40, 40), "white").save(data / f"blank{number}.png")
    report = told(doctor("--data", data, "--json"))
    assert ids(report)["duplicates"] == "hurts"
    assert report["duplicates"]["exact"] == 29


def test_uneven_classes_are_mentioned(doctor: Doctor, tmp_path: Path) -> None:
    fill(tmp_path / "data" / "many", range(230))
    fill(tmp_path / "data" / "few", range(300, 305))
    fill(tmp_path / "data" / "pair", range(400, 402))
    report = told(doctor("--data", tmp_path / "data", "--json"))
    assert ids(report) == {"lonely-classes": "hurts", "small-classes": "note", "imbalance": "note"}
    assert report["classes"]["smallest"] == {"name": "pair", "pictures": 1}  # the other one is held out
    assert "held out to judge by" in " ".join(report["counts"]["notes"])


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_strange_file_names(doctor: Doctor, tmp_path: Path) -> None:
    data = fill(tmp_path / "data", range(3))
    content = (data / "0000.png").read_bytes()
    for name in (b"new\nline\x1b[31m.png", b"\xff\xfe.png", "grün.png".encode()):
        (data / os.fsdecode(name)).write_bytes(content)
    names = {pair["name"] for pair in told(doctor("--data", data, "--json"))["duplicates"]["pairs"]}
    assert names == {"new\nline\x1b[31m.png", "\\xff\\xfe.png", "grün.png"}
    out = doctor("--data", data).out
    assert "new\\nline\\x1b[31m.png = 0000.png" in out
    assert "\\xff\\xfe.png = 0000.png" in out


def test_arrays(doctor: Doctor, tmp_path: Path) -> None:
    images = np.stack([np.asarray(scene(seed, 32)) for seed in range(260)])
    images[7] = images[3]
    np.savez(tmp_path / "x.npz", images=images, labels=np.arange(260) % 2, test_images=images[:1], test_labels=[0])
    report = told(doctor("--data", tmp_path / "x.npz", "--json"))
    assert report["duplicates"]["pairs"] == [{"name": "train 7", "of": "train 3", "kind": "exact"}]
    assert report["overlap"]["pairs"] == [{"name": "test 0", "of": "train 0", "kind": "exact"}]
    assert report["plan"]["mode"] == "memory"
    assert report["sizes"]["formats"] == {"array": 261}


def test_arrays_of_one_class_have_none(doctor: Doctor, tmp_path: Path) -> None:
    images = np.stack([np.asarray(scene(seed, 32)) for seed in range(5)])
    np.savez(tmp_path / "x.npz", images=images, labels=np.full(5, 3))
    answer = doctor("--data", tmp_path / "x.npz")
    assert "5 to learn from (none has a label), 0 to test on" in answer.out
    report = told(doctor("--data", tmp_path / "x.npz", "--json"))
    assert (report["counts"]["train_without_label"], report["classes"]["count"]) == (5, 0)
    assert ids(report)["no-labels"] == "note"


def test_pictures_that_are_packed_need_no_more_disk(doctor: Doctor, tmp_path: Path) -> None:
    data = fill(tmp_path / "data", range(5))
    assert told(doctor("--data", data, "--json"))["plan"]["cache_bytes"] == 5 * 32 * 32 * 3
    open_dataset(DataSettings(source=str(data), workers=1))
    plan = told(doctor("--data", data, "--json"))["plan"]
    assert (plan["cache_bytes"], plan["stream_advised"]) == (0, False)
    said = doctor("--data", data).out
    assert f"the pictures are packed already, in {plan['cache_folder']}" in said
    assert "of disk for packed pictures" not in said


def test_a_known_name_and_a_limit(doctor: Doctor) -> None:
    report = told(doctor("--data", "patterns", "--json", "--set", "data.limit=300"))
    assert (report["counts"]["train"], report["plan"]["size"]) == (300, 24)
    assert report["command"] == "msvq pretrain --data patterns --out runs/patterns --set data.limit=300"


def test_too_little_disk_hurts(doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = fill(tmp_path / "data", range(5))
    monkeypatch.setattr("msvq.data.sources.base.pack_bytes", lambda num, side: 10**18)
    assert ids(told(doctor("--data", data, "--json")))["disk"] == "hurts"
    assert "disk" not in ids(told(doctor("--data", data, "--json", "--set", "data.mode=stream")))


def test_a_closed_folder_hurts(doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = fill(tmp_path / "data", range(5))
    fill(data / "closed", range(5, 9))
    scandir = os.scandir

    def refuse(folder: str) -> Any:  # root may read everything, and tests may run as root
        if folder.endswith("closed"):
            raise PermissionError(13, "Permission denied")
        return scandir(folder)

    monkeypatch.setattr("msvq.data.sources.folders.os.scandir", refuse)
    report = told(doctor("--data", data, "--json"))
    assert ids(report)["closed-folders"] == "hurts"
    assert report["counts"]["unlisted"] == [{"name": "closed", "reason": "cannot be looked into: Permission denied"}]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--data", "pattern"], "unknown data set 'pattern'; did you mean 'patterns'?"),
        (["--data", "TMP/none"], "there is no file or folder"),
        (["--data", "TMP"], "there are no pictures in"),
        (["--data", "patterns", "--set", "data.sise=3"], "unknown setting data 'sise'"),
        ([], "name the pictures to look at: msvq doctor FOLDER"),
    ],
)
def test_a_mistake_gets_one_sentence(doctor: Doctor, tmp_path: Path, arguments: list[str], sentence: str) -> None:
    answer = doctor(*(a.replace("TMP", str(tmp_path)) for a in arguments), "--json")
    assert answer.code == 2
    assert sentence in answer.err
    assert answer.out == ""
