"""The four data sets by name: downloaded, unpacked, as class folders, whole or in part."""

import hashlib
import http.server
import io
import pickle
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

import msvq
from msvq.cli import main
from msvq.core.errors import BadInput
from msvq.data.sources import DataSettings, open_dataset
from msvq.data.sources.benchmarks import BENCHMARKS
from msvq.preflight.datasets import catalogue

RNG = np.random.default_rng(0)


def pixels(num: int, size: int) -> NDArray[np.uint8]:
    return RNG.integers(256, size=(num, size, size, 3), dtype=np.uint8)


def picture(size: int = 64, mode: str = "RGB", kind: str = "JPEG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels(1, size)[0]).convert(mode).save(buffer, kind)
    return buffer.getvalue()


def cifar_files(num_batches: int, key: bytes) -> dict[str, bytes]:
    def batch(num: int) -> bytes:
        data = pixels(num, 32).transpose(0, 3, 1, 2).reshape(num, -1)
        return pickle.dumps({b"data": data, key: [i % 10 for i in range(num)]}, protocol=2)

    if num_batches == 5:
        files = {f"data_batch_{i}": batch(20) for i in range(1, 6)}
        return {**files, "test_batch": batch(20), "batches.meta": pickle.dumps({b"label_names": [b"a"] * 10})}
    return {"train": batch(100), "test": batch(20), "meta": pickle.dumps({b"fine_label_names": [b"a"] * 100})}


def official_files(name: str) -> dict[str, bytes]:
    """A small data set in the official format: names inside its folder, and contents."""
    if name in ("cifar10", "cifar100"):
        return cifar_files(5, b"labels") if name == "cifar10" else cifar_files(1, b"fine_labels")
    if name == "stl10":
        images = {"train": pixels(60, 96), "test": pixels(20, 96), "unlabeled": pixels(40, 96)}
        files = {f"{split}_X.bin": some.transpose(0, 3, 2, 1).tobytes() for split, some in images.items()}
        labels = {
            "train_y.bin": bytes(1 + i % 10 for i in range(60)),
            "test_y.bin": bytes(1 + i % 10 for i in range(20)),
        }
        return {**files, **labels, "class_names.txt": b"\n".join(b"class%d" % i for i in range(10))}
    ids = ["n02", "n01", "n03"]
    files = {
        "wnids.txt": "\n".join(ids).encode(),
        "words.txt": b"n01\tgoldfish, Carassius\nn02\tcrane\nn03\tcrane, bird\n",
    }
    for wnid in ids:
        for i in range(30):
            files[f"train/{wnid}/images/{wnid}_{i}.JPEG"] = picture(mode="L" if i == 0 else "RGB")
        files[f"train/{wnid}/{wnid}_boxes.txt"] = b"0 0 1 1"
    lines = []
    for i in range(12):
        files[f"val/images/val_{i}.JPEG"] = picture()
        lines.append(f"val_{i}.JPEG\t{ids[i % 3]}\t0\t0\t1\t1")
    files["val/val_annotations.txt"] = "\n".join(lines).encode()
    files["test/images/test_0.JPEG"] = picture()
    return files


def archive_of(name: str) -> bytes:
    folder, buffer = BENCHMARKS[name].archive.folder, io.BytesIO()
    if name == "tinyimagenet":
        with zipfile.ZipFile(buffer, "w") as file:
            for path, content in official_files(name).items():
                file.writestr(f"{folder}/{path}", content)
    else:
        with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
            for path, content in official_files(name).items():
                member = tarfile.TarInfo(f"{folder}/{path}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A server with a small archive of each data set, which the registry points at."""
    site = tmp_path / "site"
    site.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments, directory=str(site))

        def log_message(self, *arguments: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("no_proxy", "*")
    for name, facts in BENCHMARKS.items():
        content = archive_of(name)
        (site / facts.archive.name).write_bytes(content)
        archive = replace(
            facts.archive,
            url=f"http://127.0.0.1:{server.server_port}/{facts.archive.name}",
            md5=hashlib.md5(content).hexdigest(),
            num_bytes=len(content),
        )
        monkeypatch.setitem(BENCHMARKS, name, replace(facts, archive=archive))
    yield site
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("cifar10", (100, 100, 20)),
        ("cifar100", (100, 100, 20)),
        ("stl10", (100, 60, 20)),
        ("tinyimagenet", (90, 90, 12)),
    ],
)
def test_download_unpacks_and_reads(served: Path, tmp_path: Path, name: str, counts: tuple[int, int, int]) -> None:
    root = tmp_path / "data"
    data = open_dataset(DataSettings(source=name, root=root), download=True)
    assert (len(data.train), len(data.labelled), len(data.test)) == counts
    facts = BENCHMARKS[name]
    assert (data.mean, data.size, data.test_size) == (facts.mean, facts.size, facts.test_size)
    (served / facts.archive.name).unlink()
    again = open_dataset(DataSettings(source=name, root=root), download=True)  # nothing is fetched twice
    assert again.fingerprint == data.fingerprint
    row = next(row for row in catalogue(root) if row["name"] == name)
    assert row["where"] == str(root / facts.archive.folder)


@pytest.mark.parametrize("name", ["cifar10", "tinyimagenet"])
def test_an_archive_that_lies_there_is_unpacked(served: Path, tmp_path: Path, name: str) -> None:
    archive = BENCHMARKS[name].archive
    (tmp_path / archive.name).write_bytes((served / archive.name).read_bytes())
    assert len(open_dataset(DataSettings(source=name, root=tmp_path)).train) >= 90
    assert (tmp_path / archive.folder).is_dir()


def test_a_wrong_checksum_is_refused_and_nothing_is_extracted(served: Path, tmp_path: Path) -> None:
    archive = BENCHMARKS["cifar10"].archive
    (tmp_path / archive.name).write_bytes((served / archive.name).read_bytes()[:-1])
    with pytest.raises(BadInput, match="md5"):
        open_dataset(DataSettings(source="cifar10", root=tmp_path))
    assert not (tmp_path / archive.folder).exists()


def test_tiny_imagenet_sorts_its_classes_and_takes_val_as_test(served: Path, tmp_path: Path) -> None:
    data = open_dataset(DataSettings(source="tinyimagenet", root=tmp_path), download=True)
    assert data.class_names == ("goldfish", "n02", "n03")  # two cranes: their ids tell them apart
    assert data.train.labels.tolist() == [0] * 30 + [1] * 30 + [2] * 30
    names = [data.test.names[i] for i in range(12)] if data.test.names is not None else []
    numbers = [int(name.split("_")[1].split(".")[0]) for name in names]
    assert data.test.labels.tolist() == [{0: 1, 1: 0, 2: 2}[number % 3] for number in numbers]  # n02, n01, n03 in turn
    grey = data.train.images[0] if isinstance(data.train.images, np.ndarray) else None
    assert grey is not None
    assert (grey[..., 0] == grey[..., 2]).all()  # n01_0.JPEG is a grey JPEG
    assert data.train.images.shape[1:] == (64, 64, 3)
    assert data.notes == (
        "a part of Tiny ImageNet: 90 of 100,000 training pictures, 12 of 10,000 test pictures, 3 of 200 classes",
    )


def test_tiny_imagenets_pictures_without_labels_do_not_count(tmp_path: Path) -> None:
    folder = tmp_path / "tiny-imagenet-200"
    for path, content in official_files("tinyimagenet").items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    row = next(row for row in catalogue(tmp_path) if row["name"] == "tinyimagenet")
    assert row["state"] == "partial: 90 training and 12 test pictures"  # val/ has 12, test/ has one


def test_tiny_imagenet_whose_val_was_sorted_into_folders(tmp_path: Path) -> None:
    folder = tmp_path / "tiny-imagenet-200"
    for path, content in official_files("tinyimagenet").items():
        if path.startswith("val/images/"):
            number = int(path.split("_")[1].split(".")[0])
            path = f"val/{['n02', 'n01', 'n03'][number % 3]}/images/val_{number}.JPEG"
        if path != "val/val_annotations.txt":
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
    data = open_dataset(DataSettings(source="tinyimagenet", root=tmp_path))
    assert sorted(data.test.labels.tolist()) == [0] * 4 + [1] * 4 + [2] * 4


@pytest.fixture
def class_folders(tmp_path: Path) -> Path:
    for split, num in (("train", 12), ("test", 4)):
        for kind in ("airplane", "bird"):
            (tmp_path / split / kind).mkdir(parents=True)
            for i in range(num):
                (tmp_path / split / kind / f"{i:02}.png").write_bytes(picture(32, kind="PNG"))
    return tmp_path


def test_class_folders_stand_for_the_official_files(class_folders: Path) -> None:
    data = open_dataset(DataSettings(source="cifar10", root=class_folders))
    assert (data.name, data.class_names) == ("cifar10", ("airplane", "bird"))
    assert (len(data.train), len(data.test), data.size, data.mean[0]) == (24, 8, 32, 0.4914)
    with Image.open(class_folders / "train" / "bird" / "00.png") as image:
        assert np.array_equal(data.train.take([12])[0], np.asarray(image))  # not resampled
    assert data.notes[-1] == (
        "a part of CIFAR-10: 24 of 50,000 training pictures, 8 of 10,000 test pictures, 2 of 10 classes"
    )


def test_stl10_as_folders_learns_from_its_unlabelled_pictures_too(class_folders: Path) -> None:
    (class_folders / "unlabeled").mkdir()
    for i in range(5):
        (class_folders / "unlabeled" / f"{i}.png").write_bytes(picture(96, kind="PNG"))
    data = open_dataset(DataSettings(source="stl10", root=class_folders))
    assert (len(data.train), len(data.labelled), len(data.test)) == (29, 24, 8)
    assert data.train.labels.tolist() == [0] * 12 + [1] * 12 + [-1] * 5
    assert data.train.images.shape[1:] == (96, 96, 3)


def test_downloads_go_home_without_a_root(served: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSVQ_HOME", str(tmp_path / "home"))
    assert len(open_dataset(DataSettings(source="cifar10"), download=True).train) == 100
    assert (tmp_path / "home" / "datasets" / "cifar-10-batches-py" / "test_batch").is_file()
    assert len(open_dataset(DataSettings(source="cifar10")).train) == 100


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_set_trains_from_the_command_line(
    served: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = ["backbone.width=2", "train.batch_size=16", "method.queue_size=32", "method.hidden_dim=8", "train.epochs=1"]
    words = [word for setting in sets for word in ("--set", setting)]
    where = ["--data-root", str(tmp_path / "d"), "--download", "--out", str(tmp_path / "x")]
    with pytest.raises(SystemExit) as ended:
        main(["pretrain", "--data", name, *where, *words])
    said = capsys.readouterr()
    assert ended.value.code == 0, said.err
    run = msvq.load(tmp_path / "x")
    assert any("knn_top1" in line for line in run.metrics())
    assert run.config.data.root == tmp_path / "d"


def test_no_network_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = BENCHMARKS["cifar10"]
    monkeypatch.setenv("no_proxy", "*")
    archive = replace(facts.archive, url="http://127.0.0.1:9/cifar-10-python.tar.gz")
    monkeypatch.setitem(BENCHMARKS, "cifar10", replace(facts, archive=archive))
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    with pytest.raises(BadInput, match=r"cannot download cifar-10-python.tar.gz from 127\.0\.0\.1"):
        open_dataset(DataSettings(source="cifar10", root=tmp_path / "d"), download=True)
    assert [p for p in (tmp_path / "d").rglob("*") if not p.name.endswith(".lock")] == []


def test_tiny_imagenet_in_a_renamed_folder_keeps_its_val(tmp_path: Path) -> None:
    for path, content in official_files("tinyimagenet").items():
        (tmp_path / "tiny" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tiny" / path).write_bytes(content)
    data = open_dataset(DataSettings(source="tinyimagenet", root=tmp_path / "tiny"))
    assert (len(data.train), len(data.test)) == (90, 12)


def test_download_replaces_a_damaged_archive(served: Path, tmp_path: Path) -> None:
    archive = BENCHMARKS["cifar10"].archive
    (tmp_path / archive.name).write_bytes(b"half of it")
    assert len(open_dataset(DataSettings(source="cifar10", root=tmp_path), download=True).train) == 100


def test_the_papers_normalisation() -> None:
    assert {name: (facts.mean, facts.std) for name, facts in BENCHMARKS.items()} == {
        "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
        "cifar100": ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
        "stl10": ((0.4408, 0.4279, 0.3867), (0.2682, 0.2610, 0.2686)),
        "tinyimagenet": ((0.4802, 0.4481, 0.3975), (0.2302, 0.2265, 0.2262)),
    }
