"""Data sets of the hub, as far as they can be had without a network: the library loads local ones the same way."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import msvq
from msvq.config.resolve import resolve
from msvq.core.errors import BadInput
from msvq.data.decode import decode
from msvq.data.sources import DataSettings, open_dataset
from msvq.data.sources.hub import open_hub
from msvq.search.inputs import Inputs

datasets: Any = pytest.importorskip("datasets")

Fill = Callable[..., None]
Paint = Callable[..., Image.Image]
Encode = Callable[..., bytes]


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No network, no bars, and a cache of this test's own."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf" / "datasets")
    datasets.disable_progress_bars()


@pytest.fixture
def images(tmp_path: Path, fill: Fill) -> Path:
    """A folder in the library's own layout."""
    root = tmp_path / "images"
    fill(root, [f"{part}/{kind}/{i}.png" for part in ("train", "test") for kind in ("cat", "dog") for i in range(5)])
    return root


def save(root: Path, **splits: Any) -> str:
    """Data sets as parquet files, as they lie on the hub."""
    for name, table in splits.items():
        (root / "data").mkdir(parents=True, exist_ok=True)
        table.to_parquet(str(root / "data" / f"{name}-00000-of-00001.parquet"))
    return str(root)


def table(contents: list[bytes | None], labels: list[int | None] | None = None, **more: Any) -> Any:
    features = {"picture": datasets.Image(), **dict.fromkeys(more, datasets.Value("int64"))}
    columns: dict[str, Any] = {
        "picture": [content and {"bytes": content, "path": None} for content in contents],
        **more,
    }
    if labels is not None:
        features["kind"] = datasets.ClassLabel(names=["x", "y", "z"])
        columns["kind"] = labels
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


@pytest.fixture
def contents(paint: Paint, encode: Encode) -> list[bytes | None]:
    return [encode(paint(20, 16, seed=number)) for number in range(30)]


def test_a_folder_in_the_librarys_layout_has_labels_and_a_test_split(images: Path) -> None:
    found = open_hub(str(images))
    assert found.class_names == ("cat", "dog")
    assert (len(found), found.num_train, found.num_labelled, found.notes) == (20, 10, 10, ())
    assert found.labels.tolist() == [0] * 5 + [1] * 5 + [0] * 5 + [1] * 5
    assert found.names[0] == "train 0" and found.names[10] == "test 0"
    for index, name in ((0, "train/cat/0"), (9, "train/dog/4"), (10, "test/cat/0"), (19, "test/dog/4")):
        assert np.array_equal(decode(found[index], 16), decode(str(images / f"{name}.png"), 16))
    with pytest.raises(IndexError):
        found[20]


def test_a_folder_here_is_not_taken_for_a_data_set_of_the_hub(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(images.parent)
    with pytest.raises(BadInput, match=r"there is a 'images' here; hf:\./images is the latter"):
        open_hub("images")
    assert len(open_hub("./images")) == 20


def test_it_becomes_a_data_set(images: Path) -> None:
    data = open_dataset(DataSettings(source=f"hf:{images}", workers=1))
    assert (data.name, data.class_names, data.size) == ("images", ("cat", "dog"), 32)
    expected = [decode(str(images / f"test/{kind}/{i}.png"), 32) for kind in ("cat", "dog") for i in range(5)]
    assert isinstance(data.test.images, np.ndarray)
    assert np.array_equal(data.test.images, np.stack(expected))
    assert data.test.labels.tolist() == [0] * 5 + [1] * 5
    assert len(data.train) == len(data.labelled) == 10
    assert data.train.names is not None and data.train.names[3] == "train 3"


def test_its_pack_is_found_again_until_the_files_change(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_dataset(DataSettings(source=f"hf:{images}", workers=1))
    shutil.copyfile(images / "train/dog/1.png", images / "train/cat/0.png")
    second = open_dataset(DataSettings(source=f"hf:{images}", workers=1))
    assert second.fingerprint != first.fingerprint
    assert np.array_equal(second.train.take([0]), second.train.take([6]))

    def refuse(*_: object) -> None:
        raise AssertionError("decoded again")

    monkeypatch.setattr("msvq.data.pack.Workers", refuse)
    assert open_dataset(DataSettings(source=f"hf:{images}", workers=1)).fingerprint == second.fingerprint


def test_another_process_finds_the_same_pictures(images: Path) -> None:
    code = "import sys; from msvq.data.sources.hub import open_hub; print(open_hub(sys.argv[1]).fingerprint())"
    said = subprocess.run([sys.executable, "-c", code, str(images)], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == open_hub(str(images)).fingerprint()


def test_it_is_streamed_like_any_other(images: Path) -> None:
    stored = open_dataset(DataSettings(source=f"hf:{images}", workers=1))
    streamed = open_dataset(DataSettings(source=f"hf:{images}", workers=1, mode="stream"))
    assert streamed.stream is not None
    assert np.array_equal(streamed.train.take(range(10)), stored.train.take(range(10)))


def test_parquet_files_hold_the_pictures_themselves(tmp_path: Path, contents: list[bytes | None]) -> None:
    labels: list[int | None] = [i % 3 for i in range(20)]
    name = save(tmp_path / "set", train=table(contents[:20], labels), test=table(contents[20:], [0, 1] * 5))
    found = open_hub(name)
    assert found.class_names == ("x", "y", "z")
    assert [found[i] for i in range(30)] == contents
    assert found.labels.tolist() == [*labels, *[0, 1] * 5]


def test_a_tenth_is_held_out_where_there_is_no_test_split(tmp_path: Path, contents: list[bytes | None]) -> None:
    labels: list[int | None] = [None if i in (0, 7) else i % 2 for i in range(30)]
    found = open_hub(save(tmp_path / "set", train=table(contents, labels)))
    assert found.notes == ("no labelled test pictures: 2 of the labelled pictures are held out to judge by",)
    assert (found.num_train, found.num_labelled, len(found)) == (28, 26, 30)
    assert sorted(found.labels[28:].tolist()) == [0, 1]
    assert found.labels[26:28].tolist() == [-1, -1]
    assert [found[26], found[27]] == [contents[0], contents[7]]
    where = [contents.index(bytes(found[i])) for i in range(30)]  # type: ignore[arg-type]
    assert sorted(where) == list(range(30))
    assert [-1 if labels[i] is None else labels[i] for i in where] == found.labels.tolist()


def test_test_pictures_without_a_label_are_left_out(tmp_path: Path, contents: list[bytes | None]) -> None:
    train = table(contents[:20], [i % 2 for i in range(20)])
    found = open_hub(save(tmp_path / "some", train=train, test=table(contents[20:], [0, -1, 1, None, *[1] * 6])))
    assert found.notes == ("2 test pictures without a known class are left out",)
    assert (found.num_train, len(found), found[20], found[21]) == (20, 28, contents[20], contents[22])
    none = open_hub(save(tmp_path / "none", train=train, test=table(contents[20:], [-1] * 10)))
    assert (none.num_train, len(none)) == (18, 20)


def test_labels_may_be_missing_or_left_out(tmp_path: Path, contents: list[bytes | None]) -> None:
    plain = open_hub(save(tmp_path / "plain", train=table(contents, number=list(range(30)))))
    assert (plain.class_names, plain.notes, plain.num_train, len(plain)) == ((), (), 30, 30)
    assert (plain.labels == -1).all()
    name = save(tmp_path / "labelled", train=table(contents[:20], [0, 1] * 10), test=table(contents[20:], [0, 1] * 5))
    left_out = open_hub(name, use_labels=False)
    assert (left_out.class_names, left_out.num_train, len(left_out)) == ((), 20, 20)
    assert left_out.fingerprint() != open_hub(name).fingerprint()


def test_another_column_of_pictures_is_never_decoded(tmp_path: Path, contents: list[bytes | None]) -> None:
    features = datasets.Features({"picture": datasets.Image(), "mask": datasets.Image()})
    columns = {
        "picture": [{"bytes": content, "path": None} for content in contents],
        "mask": [{"bytes": b"junk", "path": None}] * 30,
    }
    found = open_hub(save(tmp_path / "set", train=datasets.Dataset.from_dict(columns, features=features)))
    assert [found[i] for i in range(30)] == contents


def test_the_whole_set_is_every_split_in_its_own_order(tmp_path: Path, contents: list[bytes | None]) -> None:
    labels: dict[str, list[int | None]] = {"train": [2, None, 0, 1], "validation": [1, 0], "test": [-1, 2, None]}
    starts = {"train": 0, "validation": 4, "test": 6}
    splits = {n: table(contents[starts[n] : starts[n] + len(some)], some) for n, some in labels.items()}
    name = save(tmp_path / "set", **splits)
    found = open_hub(name, keep_all=True)
    expected = {f"{n} {i}": contents[starts[n] + i] for n, some in labels.items() for i in range(len(some))}
    known = {f"{n} {i}": -1 if label is None else label for n, some in labels.items() for i, label in enumerate(some)}
    assert (len(found), found.num_train, found.class_names, found.notes) == (9, 9, ("x", "y", "z"), ())
    assert {n: found[i] for i, n in enumerate(found.names)} == expected
    assert dict(zip(found.names, found.labels.tolist(), strict=True)) == known
    for split, some in labels.items():
        own = [n for n in found.names if n.split()[0] == split]
        assert own == [f"{split} {i}" for i in range(len(some))]
    without = open_hub(name, use_labels=False, keep_all=True)
    assert (without.names, set(without.labels.tolist()), without.class_names) == (found.names, {-1}, ())
    assert found.fingerprint() != open_hub(name).fingerprint()


def test_a_command_for_every_picture_takes_the_whole_set(tmp_path: Path, contents: list[bytes | None]) -> None:
    name = save(tmp_path / "set", train=table(contents[:20], [0, 1] * 10), test=table(contents[20:], [-1] * 10))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(resolve(data="patterns").to_yaml())
    run = msvq.load(tmp_path / "run")
    num = {split: len(Inputs(run, f"hf:{name}", split=split).open_source()) for split in ("all", "train", "test")}
    assert num == {"all": 30, "train": 18, "test": 2}  # the test split has no labels, so that a tenth is held out


def test_rows_without_a_picture_and_bad_pictures_are_skipped(tmp_path: Path, contents: list[bytes | None]) -> None:
    contents[3], contents[5] = None, b"text"
    name = save(tmp_path / "set", train=table(contents))
    data = open_dataset(DataSettings(source=f"hf:{name}", workers=1))
    assert data.skipped == (("train 3", "is empty"), ("train 5", "is not a picture"))
    assert len(data.train) == 28


def test_a_file_that_the_library_names_and_that_is_gone_is_skipped(images: Path) -> None:
    open_hub(str(images))
    found = open_hub(str(images))
    (images / "train/cat/0.png").unlink()
    with pytest.raises(Exception, match="is not there"):
        decode(found[0], 16)


def test_a_set_without_pictures_names_its_columns(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.jsonl").write_text(
        "".join(json.dumps({"text": "a", "stars": i}) + "\n" for i in range(3))
    )
    with pytest.raises(BadInput) as raised:
        open_hub(str(tmp_path / "set"))
    assert str(raised.value) == (f"the data set '{tmp_path}/set' of the hub has no column of pictures, but text, stars")


def test_a_name_that_cannot_be_loaded_is_one_sentence(tmp_path: Path) -> None:
    for name in ("nobody/nothing-of-the-kind", str(tmp_path / "missing"), "not a name!"):
        with pytest.raises(BadInput) as raised:
            open_dataset(DataSettings(source=f"hf:{name}"))
        assert str(raised.value).startswith(f"cannot load the data set {name!r} of the hub: ")
        assert "\n" not in str(raised.value)


def test_without_the_library_the_extra_is_named(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(BadInput) as raised:
        open_dataset(DataSettings(source=f"hf:{images}"))
    assert str(raised.value) == ("hf: data sets need the library 'datasets'; install it with: pip install 'msvq[hf]'")
