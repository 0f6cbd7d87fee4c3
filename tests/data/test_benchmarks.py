"""The official formats, on small files in those formats that the tests make."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import msvq
from msvq.cli import main
from msvq.core.errors import BadInput
from msvq.data.sources import DataSettings, open_dataset

RNG = np.random.default_rng(0)


def pictures(num: int, size: int) -> NDArray[np.uint8]:
    return RNG.integers(256, size=(num, size, size, 3), dtype=np.uint8)


def dump(path: Path, values: Any) -> None:
    """As Python 2 wrote them: protocol 2, and numpy's old module names."""
    path.write_bytes(pickle.dumps(values, protocol=2).replace(b"numpy._core.", b"numpy.core."))


def cifar_batch(path: Path, images: NDArray[np.uint8], labels: list[int], key: bytes) -> None:
    dump(path, {b"data": images.transpose(0, 3, 1, 2).reshape(len(images), -1), key: labels})


@pytest.fixture
def cifar10(tmp_path: Path) -> tuple[Path, NDArray[np.uint8], NDArray[np.uint8]]:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    train, test = pictures(100, 32), pictures(30, 32)
    for part in range(5):
        chunk = slice(part * 20, part * 20 + 20)
        cifar_batch(folder / f"data_batch_{part + 1}", train[chunk], [i % 10 for i in range(20)], b"labels")
    cifar_batch(folder / "test_batch", test, [i % 10 for i in range(30)], b"labels")
    dump(folder / "batches.meta", {b"label_names": [f"name{i}".encode() for i in range(10)]})
    return tmp_path, train, test


def test_cifar10_is_read_in_order_and_upright(cifar10: tuple[Path, NDArray[np.uint8], NDArray[np.uint8]]) -> None:
    root, train, test = cifar10
    for given in (root, root / "cifar-10-batches-py"):
        data = open_dataset(DataSettings(source="cifar10", root=given))
        assert np.array_equal(data.train.take(range(len(data.train))), train)
        assert np.array_equal(data.test.take(range(len(data.test))), test)
        assert data.train.labels[:12].tolist() == [*range(10), 0, 1]
        assert data.labelled is data.train
        assert data.class_names[3] == "name3"
        assert (data.size, data.test_size, data.mean[0], data.std[2]) == (32, 32, 0.4914, 0.2010)
        assert data.notes == ()


def test_cifar100_has_its_fine_labels(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    train, test = pictures(20, 32), pictures(10, 32)
    for name, images in (("train", train), ("test", test)):
        flat = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
        fine = [i * 5 for i in range(len(images))]
        dump(folder / name, {b"data": flat, b"fine_labels": fine, b"coarse_labels": [0] * len(images)})
    dump(folder / "meta", {b"fine_label_names": [f"fine{i}".encode() for i in range(100)]})
    data = open_dataset(DataSettings(source="cifar100", root=tmp_path))
    assert np.array_equal(data.test.take(range(len(data.test))), test)
    assert data.train.labels[-1] == 95
    assert data.num_classes == 100
    assert data.mean == (0.5071, 0.4867, 0.4408)


@pytest.fixture
def stl10(tmp_path: Path) -> tuple[Path, dict[str, NDArray[np.uint8]]]:
    folder = tmp_path / "stl10_binary"
    folder.mkdir()
    splits = {"train": pictures(10, 96), "test": pictures(6, 96), "unlabeled": pictures(15, 96)}
    for name, images in splits.items():
        images.transpose(0, 3, 2, 1).tofile(folder / f"{name}_X.bin")  # planes of columns
    for name in ("train", "test"):
        np.arange(1, len(splits[name]) + 1, dtype=np.uint8).tofile(folder / f"{name}_y.bin")
    (folder / "class_names.txt").write_text("\n".join(f"thing{i}" for i in range(10)) + "\n")
    return tmp_path, splits


def test_stl10_learns_from_all_and_is_judged_by_the_labelled(
    stl10: tuple[Path, dict[str, NDArray[np.uint8]]],
) -> None:
    root, splits = stl10
    data = open_dataset(DataSettings(source="stl10", root=root))
    assert np.array_equal(
        data.train.take(range(len(data.train))), np.concatenate([splits["train"], splits["unlabeled"]])
    )
    assert data.train.labels.tolist() == [*range(10), *[-1] * 15]
    assert np.array_equal(data.labelled.take(range(len(data.labelled))), splits["train"])
    assert data.labelled.labels.tolist() == list(range(10))
    assert np.array_equal(data.test.take(range(len(data.test))), splits["test"])
    assert (data.size, data.test_size) == (64, 96)
    (root / "stl10_binary" / "unlabeled_X.bin").unlink()
    partial = open_dataset(DataSettings(source="stl10", root=root))
    assert len(partial.train) == 10
    assert "lacks unlabeled_X.bin" in partial.notes[0]


def test_cifar10_trains_from_the_command_line(
    cifar10: tuple[Path, Any, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, _, _ = cifar10
    (root / "cifar-10-batches-py" / "data_batch_2").unlink()  # a partial set is used, and said so
    sets = ["backbone.width=2", "train.batch_size=16", "method.queue_size=32", "method.hidden_dim=8"]
    words = [word for setting in sets for word in ("--set", setting)]
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "pretrain",
                "--data",
                "cifar10",
                "--data-root",
                str(root),
                "--out",
                str(tmp_path / "run"),
                "--epochs=1",
                *words,
            ]
        )
    said = capsys.readouterr()
    assert ended.value.code == 0, said.err
    assert "note: cifar-10-batches-py lacks data_batch_2: training on 80 pictures" in said.out
    run = msvq.load(tmp_path / "run")
    assert run.config.method_options["momentum2"] == 0.95  # the data set's own recipe
    assert run.metadata.mean == (0.4914, 0.4822, 0.4465)


class Hostile:
    """Would make a directory when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, (str(self.path),))


def test_a_batch_cannot_run_code(cifar10: tuple[Path, Any, Any], tmp_path: Path) -> None:
    root, _, _ = cifar10
    trace = tmp_path / "ran"
    dump(root / "cifar-10-batches-py" / "data_batch_1", {b"data": Hostile(trace), b"labels": []})
    with pytest.raises(BadInput, match="is not part of a picture"):
        open_dataset(DataSettings(source="cifar10", root=root))
    assert not trace.exists()


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda f: (f / "data_batch_1").write_bytes(b""), "is damaged"),
        (lambda f: (f / "data_batch_1").write_bytes((f / "data_batch_1").read_bytes()[:500]), "is damaged"),
        (lambda f: (f / "data_batch_1").write_bytes(b"not a pickle"), "is damaged"),
        (lambda f: dump(f / "data_batch_1", [1, 2]), "is not a batch of pictures"),
        (lambda f: dump(f / "data_batch_1", {b"data": np.zeros((2, 7), np.uint8)}), "is not a batch of pictures"),
        (lambda f: (f / "test_batch").unlink(), "holds no test_batch"),
        (lambda f: [(f / f"data_batch_{i}").unlink() for i in range(1, 6)], "holds no data_batch_1"),
    ],
)
def test_damaged_cifar_is_one_sentence(cifar10: tuple[Path, Any, Any], damage: Any, sentence: str) -> None:
    root, _, _ = cifar10
    damage(root / "cifar-10-batches-py")
    with pytest.raises(BadInput, match=sentence):
        open_dataset(DataSettings(source="cifar10", root=root))


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda f: (f / "train_X.bin").write_bytes(b"\0" * 1000), "is cut short"),
        (lambda f: (f / "train_y.bin").write_bytes(b"\0" * 10), "labels other than 1 to 10"),
        (lambda f: (f / "test_X.bin").unlink(), r"there is no test_X.bin"),
    ],
)
def test_damaged_stl10_is_one_sentence(stl10: tuple[Path, Any], damage: Any, sentence: str) -> None:
    root, _ = stl10
    damage(root / "stl10_binary")
    with pytest.raises(BadInput, match=sentence):
        open_dataset(DataSettings(source="stl10", root=root))


def test_a_missing_root_says_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"cifar10 is not in .*; --download fetches it \(170 MB\), --data-root DIR"):
        open_dataset(DataSettings(source="cifar10"))
    with pytest.raises(BadInput, match="stl10 is not in"):
        open_dataset(DataSettings(source="stl10", root=tmp_path))


def test_labels_that_do_not_match_the_pictures_are_refused(stl10: tuple[Path, Any]) -> None:
    root, _ = stl10
    (root / "stl10_binary" / "train_y.bin").write_bytes(b"\1" * 9)
    with pytest.raises(BadInput, match="has 10 train pictures and 9 labels"):
        open_dataset(DataSettings(source="stl10", root=root))


def test_random_damage_to_a_batch_is_one_sentence_or_harmless(cifar10: tuple[Path, Any, Any]) -> None:
    root, _, _ = cifar10
    path = root / "cifar-10-batches-py" / "data_batch_1"
    dump(path, {b"data": pictures(2, 32).transpose(0, 3, 1, 2).reshape(2, -1), b"labels": [0, 1]})
    whole, rng = path.read_bytes(), np.random.default_rng(1)
    places = [*range(150), *range(len(whole) - 100, len(whole))]  # where the structure is, not the pixels
    for place in places:
        damaged = bytearray(whole)
        damaged[place] = int(rng.integers(256))
        path.write_bytes(bytes(damaged))
        try:
            open_dataset(DataSettings(source="cifar10", root=root))
        except BadInput as error:
            assert str(path) in str(error)  # noqa: PT017 - some of the damage is harmless
