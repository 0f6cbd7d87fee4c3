"""Pictures that are decoded while training: the same as packed ones, also when files go missing under way."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from msvq.core.errors import BadInput
from msvq.data.decode import decode
from msvq.data.sources import DataSettings, open_dataset
from msvq.data.store import ImageDataset, ImageSplit
from msvq.data.stream import StreamedSplit

Fill = Callable[..., None]


@pytest.fixture
def folder(tmp_path: Path, home: Path, fill: Fill) -> Path:
    """Two classes with a test split, 150 pictures to learn from; two of all cannot be read from the start."""
    root = tmp_path / "pictures"
    fill(root, [f"train/{kind}/{i:02}.png" for kind in ("a", "b") for i in range(75)], size=(36, 32))
    fill(root, [f"test/{kind}/{i}.png" for kind in ("a", "b") for i in range(5)], size=(36, 32))
    (root / "train" / "a" / "03.png").write_bytes(b"")
    (root / "test" / "a" / "0.png").write_bytes(b"")
    return root


def opened(folder: Path, mode: str = "stream", max_skipped: float = 0.1) -> ImageDataset:
    return open_dataset(
        DataSettings.model_validate({"source": str(folder), "mode": mode, "max_skipped": max_skipped, "workers": 2})
    )


def everything(pictures: ImageSplit, num: int) -> NDArray[np.uint8]:
    return np.concatenate(list(pictures.batches_in_order(num)))


def name_of(pictures: ImageSplit, index: int) -> str:
    return pictures.file_names()[index]


def test_a_stream_gives_what_the_store_gives(folder: Path) -> None:
    stored, streamed = opened(folder, "store"), opened(folder)
    assert isinstance(streamed.train, StreamedSplit)
    assert stored.stream is None and streamed.stream is not None
    assert (streamed.mean, streamed.std, streamed.size) == (stored.mean, stored.std, stored.size)
    assert streamed.skipped == stored.skipped
    generator = np.random.default_rng(0)
    chosen = [generator.permutation(len(stored.train))[:num] for num in (50, 50, 7, 33, 1, 149)]
    pairs = zip(stored.train.batches(chosen), streamed.train.batches(chosen), chosen, strict=True)
    for (expected, _), (images, indices), asked in pairs:
        assert np.array_equal(images, expected)
        assert np.array_equal(indices, asked)
        assert images.dtype == np.uint8 and images.flags.writeable
    for one, other in (
        (stored.train, streamed.train),
        (stored.labelled, streamed.labelled),
        (stored.test, streamed.test),
        (stored.train.slice(10, 90).slice(0, 45), streamed.train.slice(10, 90).slice(0, 45)),
    ):
        assert one.shape == other.shape
        assert np.array_equal(one.labels, other.labels)
        assert all(one.file_names()) and one.file_names() == other.file_names()
        assert np.array_equal(everything(one, 20), everything(other, 20))
        assert np.array_equal(one.take([5, 1, 1]), other.take([5, 1, 1]))
        assert np.array_equal(everything(one.sample(6), 6), everything(other.sample(6), 6))
    assert streamed.train.take([]).shape == (0, 32, 32, 3)
    assert list(streamed.train.batches([])) == []


def test_nothing_is_packed_and_the_check_is_remembered(
    folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = opened(folder)
    assert not list(home.rglob("images.u8"))

    def refuse(*_: object) -> None:
        raise AssertionError("checked again")

    monkeypatch.setattr("msvq.data.pack.Workers", refuse)
    again = opened(folder)
    assert again.fingerprint == first.fingerprint
    assert [name for name, _ in again.skipped] == ["train/a/03.png", "test/a/0.png"]


def test_a_picture_that_is_gone_is_replaced_by_the_next_that_can_be_read(folder: Path) -> None:
    data = opened(folder)
    assert data.stream is not None
    lost: list[tuple[str, str]] = []
    data.stream.on_lost = lambda name, reason: lost.append((name, reason))
    before = everything(data.train, 64)
    for index in (10, 11, 148):  # two neighbours, and the last one
        (folder / name_of(data.train, index)).unlink()
    (folder / name_of(data.train, 40)).write_bytes(b"text")
    chosen = [np.array([9, 10, 11, 12]), np.array([148, 40]), np.arange(60)[::-1].copy()]
    asked = [batch.copy() for batch in chosen]
    instead = {10: 12, 11: 12, 148: 0, 40: 41}
    for (images, indices), batch in zip(data.train.batches(chosen), asked, strict=True):
        assert indices.tolist() == [instead.get(index, index) for index in batch.tolist()]
        assert np.array_equal(images, before[indices])
    assert all(np.array_equal(a, b) for a, b in zip(chosen, asked, strict=True))  # the caller's are left alone
    expected = dict.fromkeys((10, 11, 148), "is not there") | {40: "is not a picture"}
    assert dict(lost) == {name_of(data.train, index): reason for index, reason in expected.items()}
    assert len(lost) == 4  # each once, though each was asked for twice
    assert data.stream.lost == dict(lost)


def test_labels_follow_the_pictures_that_stand_in_for_lost_ones(folder: Path) -> None:
    stored, data = opened(folder, "store"), opened(folder)
    assert data.stream is not None and np.array_equal(data.train.labels_as_read(), data.train.labels)
    at = [int(np.flatnonzero(data.train.labels == 0)[-1]), len(data.train) - 1]  # the last of a class, and of all
    files = [folder / name_of(data.train, index) for index in at]
    contents = [file.read_bytes() for file in files]
    for file in files:
        file.unlink()
    images = everything(data.train, 20)
    instead = [at[0] + 1, 0]
    assert np.array_equal(images[at], everything(stored.train, 20)[instead])
    assert data.train.labels[at].tolist() == [0, 1] and data.train.labels_as_read()[at].tolist() == [1, 0]
    assert (data.train.labels_as_read() != data.train.labels).sum() == 2
    for file, content in zip(files, contents, strict=True):  # as after a disk that was away for a moment
        file.write_bytes(content)
    assert np.array_equal(everything(data.train, 20), everything(stored.train, 20))
    assert np.array_equal(data.train.labels_as_read(), data.train.labels)
    data.stream.workers.close()


def test_too_many_lost_pictures_end_it(folder: Path) -> None:
    data = opened(folder, max_skipped=0.032)  # five of 160, of which two were never readable
    for index in range(3):
        (folder / name_of(data.train, index)).unlink()
    assert np.array_equal(data.train.take([0, 1, 2]), data.train.take([3, 3, 3]))
    gone = name_of(data.train, 50)
    (folder / gone).unlink()
    with pytest.raises(BadInput) as raised:
        everything(data.train, 64)
    assert str(raised.value) == (
        f"4 pictures in '{folder}' cannot be read any more ('{gone}' is not there), more than data.max_skipped "
        f"allows; make them readable again and continue with --resume"
    )


def test_a_folder_that_is_gone_ends_it_soon(folder: Path) -> None:
    data = opened(folder, max_skipped=1.0)
    folder.rename(folder.with_name("elsewhere"))
    with pytest.raises(BadInput, match=r"can be read any more; are they still there\?"):
        data.train.slice(0, 8).take([3])


def test_stopping_early_leaves_the_stream_usable(folder: Path) -> None:
    data = opened(folder)
    for _ in range(3):
        batches = data.train.batches(np.arange(start, start + 10) for start in range(0, 140, 10))
        images, indices = next(batches)
        assert indices.tolist() == list(range(10))
        assert np.array_equal(images[4], decode(str(folder / name_of(data.train, 4)), 32))
        del batches
    assert len(everything(data.train, 50)) == 149
    assert data.stream is not None
    assert len(data.stream.workers._started.workers) <= 2


def test_an_endless_source_of_batches_is_not_drawn_from_far_ahead(folder: Path) -> None:
    data = opened(folder)
    drawn = 0

    def forever() -> Iterator[NDArray[np.int64]]:
        nonlocal drawn
        while True:
            drawn += 1
            yield np.arange(40)

    batches = data.train.batches(forever())
    for number in range(1, 6):
        next(batches)
        assert drawn <= number + 5


SCRIPT = """
import sys
import numpy as np
from msvq.data.sources import DataSettings, open_dataset
data = open_dataset(DataSettings(source=sys.argv[1], mode="stream", workers=2))
batches = data.train.batches(np.arange(100) for _ in range(1000))
print(next(batches)[0].shape)
if sys.argv[2] == "raise":
    raise SystemExit(3)
"""


@pytest.mark.parametrize("way", ["end", "raise"])
def test_a_script_that_stops_in_the_middle_ends(folder: Path, tmp_path: Path, way: str) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    words = [sys.executable, str(tmp_path / "script.py"), str(folder), way]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("(100, 32, 32, 3)\n", "", 3 if way == "raise" else 0)
