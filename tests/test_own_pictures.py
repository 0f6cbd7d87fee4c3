"""People's own pictures, from the command line: every layout trains, and every mistake gets one sentence."""

import csv
import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image
from safetensors.numpy import load_file

import msvq
from msvq.cli import main
from msvq.runs.checkpoint import read_checkpoint
from msvq.train.trainer import Trainer

SMALL = ["backbone.width=2", "method.hidden_dim=8", "data.workers=1", "train.warmup_epochs=0"]
FAST = ["--epochs", "1", *(word for setting in SMALL for word in ("--set", setting))]


def save(path: Path, seed: int, size: tuple[int, int] = (40, 30)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(256, size=(size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def msvq_says(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """Runs a command; code, output and error output."""
    monkeypatch.setenv("MSVQ_HOME", str(tmp_path / "home"))

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(a) for a in arguments])
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


Says = Callable[..., tuple[int, str, str]]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A flat folder of 60 pictures and two that are none."""
    for i in range(60):
        save(tmp_path / "photos" / f"holiday {i:02}.png", i)
    (tmp_path / "photos" / "empty.jpg").touch()
    (tmp_path / "photos" / "letter\n.jpg").write_text("dear")
    return tmp_path / "photos"


def test_a_flat_folder_trains_and_reports_health(msvq_says: Says, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    code, said, err = msvq_says("pretrain", "--data", photos, "--out", out, *FAST)
    assert code == 0, err
    assert "note: 2 of 62 pictures cannot be read and are left out; skipped.csv says which and why" in said
    assert "60 pictures: train.batch_size is 8 instead of 256" in said
    assert "note: no labels, so no accuracy" in said
    assert "too-short: 7 steps are far too few: changed copies of pictures find their originals" in said
    assert "rank" in said
    assert "kNN" not in said
    with (out / "skipped.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [
            ["file", "reason"],
            ["empty.jpg", "is empty"],
            ["letter\n.jpg", "is not a picture"],
        ]
    run = msvq.load(out)
    measured = [line for line in run.metrics() if line["kind"] == "eval"]
    assert [line["epoch"] for line in measured] == [0, 1]
    assert all({"feature_std", "rank", "uniformity", "alignment"} <= set(line) for line in measured)
    assert not any("knn" in key or key == "false_negatives" for line in measured for key in line)
    assert run.config.data.source == str(photos)
    assert (run.config.data.size, run.config.data.test_size, run.config.backbone.stem) == (32, 32, "small")
    page = (out / "report.html").read_text()
    assert "How often do changed copies of pictures find their originals?" in page
    assert "The run has trained on these pictures, but has seen none of the copies." in page
    assert "2 pictures could not be read" in page
    assert "Nearest neighbours</h2>" in page
    # The complete settings repeat the run.
    assert msvq_says("pretrain", "--recipe", out / "config.yaml", "--out", tmp_path / "again")[0] == 0
    first, second = (load_file(path / "encoder.safetensors") for path in (out, tmp_path / "again"))
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_class_folders_are_labels_and_a_tenth_is_held_out(msvq_says: Says, tmp_path: Path) -> None:
    for i in range(60):
        save(tmp_path / "pets" / ("cat", "dog")[i % 2] / f"{i}.jpg", i, (100, 90))
    code, said, err = msvq_says("pretrain", "--data", tmp_path / "pets", "--out", tmp_path / "run", *FAST)
    assert code == 0, err
    assert "note: no labelled test pictures: 6 of the labelled pictures are held out to judge by" in said
    assert "note: 2 classes, by folder; --set data.labels=none leaves them out" in said
    assert "MSVQ on pets: 54 pictures" in said
    run = msvq.load(tmp_path / "run")
    assert any("knn_top1" in line for line in run.metrics())
    assert (run.config.data.size, run.config.data.test_size, run.config.backbone.stem) == (64, 96, "small-pool")
    none = msvq_says(
        "pretrain", "--data", tmp_path / "pets", "--out", tmp_path / "r2", *FAST, "--set", "data.labels=none"
    )
    assert "MSVQ on pets: 60 pictures" in none[1]
    assert "kNN" not in none[1]


def test_the_supervised_row_needs_labels(msvq_says: Says, photos: Path, tmp_path: Path) -> None:
    code, _, err = msvq_says(
        "pretrain", "--data", photos, "--out", tmp_path / "x", "--method", "supervised", "--set", "backbone.width=2"
    )
    assert code == 2
    assert "supervised" in err
    assert "label" in err
    assert not (tmp_path / "x").exists()


def analysis(out: Path) -> dict[str, Any]:
    return dict(json.loads((out / "eval" / "analysis.json").read_text()))


def test_a_dozen_grey_pictures_are_judged_with_one_class_or_none(msvq_says: Says, tmp_path: Path) -> None:
    for i in range(12):
        grey = np.random.default_rng(i).integers(256, size=(40, 30), dtype=np.uint8)
        for path in (tmp_path / "flat" / f"{i}.png", tmp_path / "one" / "cat" / f"{i}.png"):
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(grey).save(path)
    for name in ("flat", "one"):
        code, said, err = msvq_says("pretrain", "--data", tmp_path / name, "--out", tmp_path / f"run-{name}", *FAST)
        assert code == 0, err
        found = analysis(tmp_path / f"run-{name}")
        assert found["copies"]["pictures"] == 12 and found["verdict"]["state"] == "too-short"
        assert f"too-short: {found['verdict']['sentence']}" in said


def encoder(out: Path) -> dict[str, Any]:
    return dict(load_file(out / "encoder.safetensors"))


def test_stream_and_store_are_the_same_to_the_bit(
    msvq_says: Says, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, stream, resumed = tmp_path / "store", tmp_path / "stream", tmp_path / "resumed"
    words = ["pretrain", "--data", photos, *FAST, "--epochs", "2"]
    assert msvq_says(*words, "--out", store)[0] == 0
    streaming = [*words, "--set", "data.mode=stream"]
    assert msvq_says(*streaming, "--out", stream)[0] == 0
    assert (stream / "skipped.csv").read_text() == (store / "skipped.csv").read_text()

    def untimed(out: Path) -> list[dict[str, Any]]:
        return [{k: v for k, v in line.items() if k != "images_per_second"} for line in msvq.load(out).metrics()]

    assert untimed(stream) == untimed(store)
    assert analysis(stream)["copies"] == analysis(store)["copies"]
    assert all(np.array_equal(value, encoder(store)[name]) for name, value in encoder(stream).items())

    train_step = Trainer.train_step

    def interrupted(self: Trainer, *arguments: Any) -> Any:
        if self.step == 10:
            raise KeyboardInterrupt
        return train_step(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", interrupted)
        often = ["--set", "train.checkpoint_every=3"]
        assert msvq_says(*streaming, *often, "--out", resumed)[0] == 130
    saved = read_checkpoint(resumed / "checkpoints" / "last.ckpt")
    assert saved is not None and saved["step"] == 9  # within an epoch of 7
    assert msvq_says("pretrain", "--resume", "--out", resumed)[0] == 0
    assert all(np.array_equal(value, encoder(store)[name]) for name, value in encoder(resumed).items())


def test_a_picture_that_vanishes_while_streaming_is_replaced(
    msvq_says: Says, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_step = Trainer.train_step

    def remove_one(self: Trainer, *arguments: Any) -> Any:
        (photos / "holiday 07.png").unlink(missing_ok=True)
        return train_step(self, *arguments)

    monkeypatch.setattr(Trainer, "train_step", remove_one)
    out = tmp_path / "run"
    code, said, err = msvq_says(
        "pretrain", "--data", photos, "--out", out, *FAST, "--epochs", "3", "--set", "data.mode=stream"
    )
    assert code == 0, err
    assert said.count("note: holiday 07.png is not there; another picture takes its place") == 1
    assert "holiday 07.png,is not there\n" in (out / "skipped.csv").read_text()


def test_too_many_bad_pictures_stop_before_training(msvq_says: Says, photos: Path, tmp_path: Path) -> None:
    for i in range(8):
        (photos / f"bad{i}.jpg").write_text("no picture")
    for mode in ("store", "stream"):
        code, _, err = msvq_says(
            "pretrain", "--data", photos, "--out", tmp_path / "run", *FAST, "--set", f"data.mode={mode}"
        )
        assert code == 2
        assert "pictures cannot be read" in err
        assert "data.max_skipped" in err
        assert err.count("\n") == 1
        assert not (tmp_path / "run").exists()
        assert not [p for p in (tmp_path / "home").rglob("*") if p.is_file() and p.name != ".lock"]
    code, _, err = msvq_says(
        "pretrain", "--data", photos, "--out", tmp_path / "run", *FAST, "--set", "data.max_skipped=0.2"
    )
    assert code == 0, err


def begin(msvq_says: Says, monkeypatch: pytest.MonkeyPatch, data: Path, out: Path) -> None:
    """A run that is interrupted before its first step."""
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt))
        assert msvq_says("pretrain", "--data", data, "--out", out, *FAST)[0] == 130


def test_a_run_whose_pictures_changed_is_not_continued(
    msvq_says: Says, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    begin(msvq_says, monkeypatch, photos, out)
    save(photos / "one more.png", 99)
    code, _, err = msvq_says("pretrain", "--out", out, "--resume")
    assert code == 2
    assert "have changed since the run began" in err
    (photos / "one more.png").unlink()
    assert msvq_says("pretrain", "--out", out, "--resume")[0] == 0


def test_lists_and_arrays_train(msvq_says: Says, photos: Path, tmp_path: Path) -> None:
    names = sorted(path.name for path in photos.glob("holiday*"))
    (photos / "list.csv").write_text(
        "file,label,split\n" + "".join(f"{n},{i % 3},{'test' if i < 12 else 'train'}\n" for i, n in enumerate(names))
    )
    code, said, err = msvq_says("pretrain", "--data", photos / "list.csv", "--out", tmp_path / "csv", *FAST)
    assert code == 0, err
    assert "MSVQ on list: 48 pictures" in said
    assert any("knn_top1" in line for line in msvq.load(tmp_path / "csv").metrics())
    rng = np.random.default_rng(0)
    images = rng.integers(256, size=(50, 28, 28), dtype=np.uint8)
    np.savez(tmp_path / "digits.npz", images=images, labels=np.arange(50) % 5)
    code, said, err = msvq_says("pretrain", "--data", tmp_path / "digits.npz", "--out", tmp_path / "npz", *FAST)
    assert code == 0, err
    assert "MSVQ on digits: 45 pictures" in said
    np.save(tmp_path / "raw.npy", np.repeat(images[..., None], 3, axis=3))
    code, said, err = msvq_says("pretrain", "--data", tmp_path / "raw.npy", "--out", tmp_path / "npy", *FAST)
    assert code == 0, err
    assert "MSVQ on raw: 50 pictures" in said


def test_embedding_a_messy_folder_names_what_it_skips(msvq_says: Says, photos: Path, tmp_path: Path) -> None:
    assert msvq_says("pretrain", "--data", photos, "--out", tmp_path / "run", *FAST)[0] == 0
    run = msvq.load(tmp_path / "run")
    odd = os.fsdecode(b"caf\xe9.png")
    save(photos / odd, 99)
    embedded = run.embed_source(photos)
    assert embedded.features.shape == (61, 16)
    assert embedded.skipped == [("empty.jpg", "is empty"), ("letter\n.jpg", "is not a picture")]
    assert len(embedded.names) == 61
    assert odd in embedded.names
    with Image.open(photos / "holiday 00.png") as image:
        upright = np.asarray(image.resize((32, 32), Image.Resampling.BILINEAR, box=(5, 0, 35, 30)))
    expected = run.embed(upright)
    np.testing.assert_allclose(
        embedded.features[embedded.names.index("holiday 00.png")], expected[0], rtol=1e-3, atol=1e-4
    )
    hopeless = tmp_path / "hopeless"
    hopeless.mkdir()
    (hopeless / "a.jpg").touch()
    with pytest.raises(msvq.BadInput, match=r"none of the 1 pictures can be read \(1 'is empty'\)"):
        run.embed_source(hopeless)


def test_asked_for_batch_and_queue_are_kept(msvq_says: Says, photos: Path, tmp_path: Path) -> None:
    more = ["--set", "train.batch_size=16", "--set", "method.queue_size=32"]
    assert msvq_says("pretrain", "--data", photos, "--out", tmp_path / "run", *FAST, *more)[0] == 0
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert (config["train"]["batch_size"], config["method"]["queue_size"]) == (16, 32)


def test_datasets_lists_what_is_known_and_packed(msvq_says: Says, photos: Path, tmp_path: Path) -> None:
    code, said, _ = msvq_says("datasets")
    assert code == 0
    for name in ("patterns", "cifar10", "cifar100", "stl10", "tinyimagenet"):
        assert name in said
    assert "not there; --download" in said
    assert "packed from" not in said
    assert msvq_says("pretrain", "--data", photos, "--out", tmp_path / "run", *FAST)[0] == 0
    found = json.loads(msvq_says("datasets", "--json")[1])
    assert found["packed"][0]["source"] == str(photos)
    assert (found["packed"][0]["pictures"], found["packed"][0]["size"]) == (60, 32)
    assert [row["complete"] for row in found["known"]] == [True, False, False, False, False]


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("nowhere/photos", "there is no file or folder"),
        ("photo", "there is no folder 'photo' here"),
        ("EMPTY", "there are no pictures in"),
        ("OTHERS", "it holds 1 file of other kinds ("),
        ("FILE.pdf", "is a .pdf file"),
        ("FILE.npz", "is not a file of numpy arrays"),
        ("FILE.txt", "is empty"),
    ],
)
def test_a_source_that_is_none_gets_one_sentence(
    msvq_says: Says, tmp_path: Path, source: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "EMPTY").mkdir()
    (tmp_path / "OTHERS").mkdir()
    (tmp_path / "OTHERS" / "letter.doc").write_text("dear")
    for name in ("FILE.pdf", "FILE.npz", "FILE.txt"):
        (tmp_path / name).touch()
    code, _, err = msvq_says("pretrain", "--data", source, "--out", "run")
    assert code == 2
    assert sentence in err
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_download_is_for_known_data_sets(msvq_says: Says, photos: Path, tmp_path: Path) -> None:
    code, _, err = msvq_says("pretrain", "--data", photos, "--download", "--out", tmp_path / "x")
    assert code == 2
    assert "--download fetches a known data set" in err


def test_odd_bytes_in_folder_and_class_names_survive_to_the_report(msvq_says: Says, tmp_path: Path) -> None:
    root = tmp_path / os.fsdecode(b"bad\xff [old]")
    for i in range(40):
        save(root / os.fsdecode((b"c\xfe", b"d[b]")[i % 2]) / f"{i}.png", i)
    out = tmp_path / "run[/b]"
    code, said, err = msvq_says("pretrain", "--data", root, "--out", out, *FAST)
    assert code == 0, err
    assert "MSVQ on bad\\udcff [old]: 36 pictures" in said
    assert f"report  {out / 'report.html'}\nnext    msvq search {shlex.quote(str(out))} --query PICTURE" in said
    assert "c\\udcfe" in (out / "report.html").read_text()
    assert msvq.load(out).config.data.source == str(root)
    assert msvq_says("datasets")[0] == 0
    packed = json.loads(msvq_says("datasets", "--json")[1])["packed"]
    assert packed[0]["source"].endswith("bad\\udcff [old]")


def test_a_run_goes_on_where_its_folder_has_moved(
    msvq_says: Says, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    begin(msvq_says, monkeypatch, photos, out)
    photos.rename(tmp_path / "elsewhere")
    code, _, err = msvq_says("pretrain", "--out", out, "--resume", "--data", tmp_path / "elsewhere")
    assert code == 0, err
    assert msvq.load(out).config.data.source == str(tmp_path / "elsewhere")


def test_a_stream_needs_no_cache(
    msvq_says: Says, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MSVQ_HOME", str(tmp_path / "file"))  # nothing can be written below a file
    words = ["pretrain", "--data", photos, *FAST]
    code, _, err = msvq_says(*words, "--out", tmp_path / "store")
    assert code == 2
    assert "Not a directory" in err
    code, said, err = msvq_says(*words, "--out", tmp_path / "stream", "--set", "data.mode=stream")
    assert code == 0, err
    assert "2 of 62 pictures cannot be read" in said


def test_a_folder_that_cannot_be_looked_into_is_mentioned(
    msvq_says: Says, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (photos / "closed").mkdir()
    save(photos / "closed" / "x.png", 1)
    scandir = os.scandir

    def forbidden(path: str) -> Any:
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", forbidden)
    out = tmp_path / "run"
    code, said, err = msvq_says("pretrain", "--data", photos, "--out", out, *FAST)
    assert code == 0, err
    assert "note: 1 folder cannot be looked into, such as 'closed'; see skipped.csv" in said
    assert "closed,cannot be looked into: Permission denied\n" in (out / "skipped.csv").read_text()


def test_a_small_folder_gets_small_groups(msvq_says: Says, photos: Path, tmp_path: Path) -> None:
    words = ["--data", photos, *FAST, "--set", "data.size=8"]
    code, said, err = msvq_says("pretrain", *words, "--out", tmp_path / "run")
    assert code == 0, err
    assert "note: a batch of 8 is normalised in 2 groups instead of 8" in said
    code, _, err = msvq_says("pretrain", *words, "--out", tmp_path / "r2", "--set", "method.bn_splits=8")
    assert code == 2
    assert "train.batch_size 8 leaves one picture in each of the method's bn_splits 8" in err


def test_embedding_takes_every_picture_whatever_its_split(msvq_says: Says, tmp_path: Path) -> None:
    root = tmp_path / "data"
    for i in range(40):
        save(root / "train" / "ab"[i % 2] / f"{i}.png", i)
    for i in range(4):
        save(root / "val" / "ab"[i % 2] / f"{i}.png", i)
        save(root / "test" / f"{i}.png", i)
    code, said, err = msvq_says("pretrain", "--data", root, "--out", tmp_path / "run", *FAST)
    assert code == 0, err
    assert "MSVQ on data: 40 pictures" in said  # nothing held out: val/ has labels, test/ has none
    assert "note: 4 pictures beside train/ and val/ are left out" in said
    found = msvq.load(tmp_path / "run").embed_source(root)
    assert len(found.names) == 48
    assert sorted(found.labels.tolist()) == [-1] * 4 + [0] * 22 + [1] * 22


def test_supervised_fits_its_batch_to_the_labelled_pictures(msvq_says: Says, photos: Path, tmp_path: Path) -> None:
    names = sorted(path.name for path in photos.glob("holiday*"))
    lines = [f"{n}\t{i % 2}" if i < 30 else n for i, n in enumerate(names)]
    (photos / "list.txt").write_text("\n".join(lines))
    words = ["--method", "supervised", "--epochs", "1", "--set", "backbone.width=2"]
    code, said, err = msvq_says("pretrain", "--data", photos / "list.txt", "--out", tmp_path / "run", *words)
    assert code == 0, err
    assert "pictures: train.batch_size is 16 instead of 256" in said


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--data", ""], "unknown data set ''"),
        (["--data", "PIPE.txt"], "is neither a file nor a folder"),
        (["--data", "cifar10", "--set", "data.labels=none"], "data.labels=none is for one's own pictures"),
    ],
)
def test_odd_requests_get_one_sentence(
    msvq_says: Says, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo(tmp_path / "PIPE.txt")
    for command in (["pretrain", "--out", "run"], ["doctor"]):
        code, _, err = msvq_says(*command, *arguments)
        assert code == 2
        assert sentence in err
        assert err.count("\n") == 1
