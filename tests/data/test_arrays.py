"""Pictures that are numpy arrays already, in the shapes and under the names that people give them."""

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from msvq.core.errors import BadInput
from msvq.data.sources import DataSettings, open_dataset
from msvq.data.sources.arrays import read_arrays
from msvq.data.store import random_subset

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(256, size=(40, 12, 10, 3), dtype=np.uint8)
LABELS = np.arange(40) % 4
TEST, TEST_LABELS = IMAGES[::-1][:8].copy(), LABELS[::-1][:8].copy()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "set.npz"


def complaint(path: Path) -> str:
    """What is wrong with a file, after its name."""
    with pytest.raises(BadInput) as raised:
        read_arrays(path)
    assert str(raised.value).startswith(str(path))
    return str(raised.value).removeprefix(str(path)).lstrip(": ")


def same(images: Any, expected: NDArray[np.uint8]) -> bool:
    return isinstance(images, np.ndarray) and images.dtype == np.uint8 and np.array_equal(images, expected)


def test_a_npy_is_mapped_and_has_no_labels(tmp_path: Path) -> None:
    np.save(tmp_path / "set.npy", IMAGES)
    found = read_arrays(tmp_path / "set.npy")
    assert isinstance(found.train.images, np.memmap)
    assert same(found.train.images, IMAGES)
    assert (len(found.labelled), len(found.test), found.class_names, found.notes) == (0, 0, (), ())
    assert (found.train.labels == -1).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.from_numpy(found.train.images).shape == (40, 12, 10, 3)


@pytest.mark.parametrize(
    "names",
    [
        ("images", "labels", "test_images", "test_labels"),
        ("x_train", "y_train", "x_test", "y_test"),
        ("X_train", "Y_train", "X_val", "Y_val"),
        ("train_images", "train_labels", "val_images", "val_labels"),
        ("data", "targets", "test_x", "test_y"),
    ],
)
def test_a_npz_may_name_its_arrays_in_many_ways(path: Path, names: tuple[str, ...]) -> None:
    arrays: dict[str, Any] = dict(zip(names, (IMAGES, LABELS, TEST, TEST_LABELS), strict=True))
    np.savez_compressed(path, **arrays)
    found = read_arrays(path)
    assert same(found.train.images, IMAGES) and same(found.test.images, TEST)
    assert np.array_equal(found.train.labels, LABELS) and np.array_equal(found.test.labels, TEST_LABELS)
    assert found.labelled is found.train
    assert (found.class_names, found.notes) == (("0", "1", "2", "3"), ())


def test_arrays_without_names_are_pictures_and_labels(path: Path) -> None:
    np.savez(path, IMAGES, LABELS)
    found = read_arrays(path)
    assert len(found.train) + len(found.test) == 40
    assert found.class_names == ("0", "1", "2", "3")


def test_other_arrays_in_the_file_are_not_even_read(path: Path) -> None:
    np.savez(path, images=IMAGES, something=np.array([{"an": "object"}], dtype=object))
    assert same(read_arrays(path).train.images, IMAGES)


def test_the_content_decides_and_not_the_extension(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", IMAGES)
    (tmp_path / "a.npy").rename(tmp_path / "a.npz")
    assert same(read_arrays(tmp_path / "a.npz").train.images, IMAGES)
    np.savez(tmp_path / "b.npz", images=IMAGES)
    (tmp_path / "b.npz").rename(tmp_path / "b.npy")
    assert same(read_arrays(tmp_path / "b.npy").train.images, IMAGES)


def test_grey_and_channels_first_become_channels_last(path: Path) -> None:
    grey = IMAGES[..., 0]
    three = np.repeat(grey[..., None], 3, axis=3)
    for array, expected in (
        (grey, three),
        (grey[..., None], three),
        (grey[:, None], three),
        (np.moveaxis(IMAGES, 3, 1), IMAGES),
        (np.asfortranarray(IMAGES), IMAGES),
    ):
        np.savez(path, images=array)
        assert same(read_arrays(path).train.images, expected)


def test_a_tenth_of_each_class_is_held_out_where_there_is_no_test_split(path: Path) -> None:
    labels = np.repeat([0, 1, 2, -1], [10, 20, 2, 8])
    np.savez(path, images=IMAGES, labels=labels)
    found = read_arrays(path)
    assert found.notes == ("no labelled test pictures: 4 of the labelled pictures are held out to judge by",)
    assert np.bincount(found.test.labels).tolist() == [1, 2, 1]
    assert np.bincount(found.labelled.labels).tolist() == [9, 18, 1]
    assert len(found.train) == 36 and (found.train.labels == -1).sum() == 8
    where = {image.tobytes(): number for number, image in enumerate(IMAGES)}
    splits = {"train": found.train, "bank": found.labelled, "test": found.test}
    rows = {name: [where[image.tobytes()] for image in split.take(range(len(split)))] for name, split in splits.items()}
    assert sorted(rows["train"] + rows["test"]) == list(range(40))
    assert rows["train"] == sorted(rows["train"]) and rows["bank"] == rows["train"][:28]
    for name, split in splits.items():
        assert np.array_equal(split.labels, labels[rows[name]])
    again = read_arrays(path)
    assert np.array_equal(again.test.labels, found.test.labels) and same(
        again.test.images, np.asarray(found.test.images)
    )


def test_labels_may_be_a_column_and_of_any_whole_type(path: Path) -> None:
    for labels in (LABELS[:, None], LABELS.astype(np.uint8), LABELS.astype(np.int16)):
        np.savez(path, images=IMAGES, labels=labels, test_images=TEST, test_labels=TEST_LABELS)
        found = read_arrays(path)
        assert np.array_equal(found.train.labels, LABELS) and found.train.labels.dtype == np.int64


def test_labels_that_do_not_fit_are_refused(path: Path) -> None:
    for labels, named in (
        (LABELS[:-1], "int64 [39]"),
        (LABELS.astype(np.float32), "float32 [40]"),
        (np.eye(4, dtype=int)[LABELS], "int64 [40, 4]"),
        (np.array(3), "int64 []"),
        (np.array(["cat"] * 40), "<U3 [40]"),
    ):
        np.savez(path, images=IMAGES, labels=labels)
        assert complaint(path) == f"'labels' should be 40 whole numbers, one per picture, not {named}"
    np.savez(path, images=IMAGES, labels=LABELS - 2)
    assert complaint(path) == "'labels' holds -2; classes count from 0, and -1 is unknown"


def test_one_class_is_no_class_and_labels_can_be_left_out(path: Path) -> None:
    np.savez(path, images=IMAGES, labels=np.zeros(40, int))
    found = read_arrays(path)
    assert (len(found.train), len(found.labelled), len(found.test), found.class_names) == (40, 0, 0, ())
    assert (found.train.labels == -1).all()
    np.savez(path, images=IMAGES, labels=LABELS, test_images=TEST, test_labels=TEST_LABELS)
    found = read_arrays(path, use_labels=False)
    assert same(found.train.images, IMAGES) and (found.train.labels == -1).all()
    assert (len(found.labelled), len(found.test), found.class_names) == (0, 0, ())


def test_test_pictures_without_a_label_are_left_out(path: Path) -> None:
    some = TEST_LABELS.copy()
    some[[1, 5]] = -1
    np.savez(path, images=IMAGES, labels=LABELS, test_images=TEST, test_labels=some)
    found = read_arrays(path)
    assert found.notes == ("2 test pictures without a known class are left out",)
    assert same(found.test.images, TEST[some >= 0]) and np.array_equal(found.test.labels, some[some >= 0])
    assert len(found.train) == 40
    np.savez(path, images=IMAGES, labels=LABELS, test_images=TEST)
    assert "4 of the labelled pictures are held out" in read_arrays(path).notes[0]


def test_what_is_no_uint8_or_has_no_shape_of_pictures_is_refused(path: Path) -> None:
    for kind in (np.float32, np.int64, np.uint16, bool):
        np.savez(path, images=IMAGES.astype(kind))
        name = np.dtype(kind).name
        assert complaint(path) == f"pictures are uint8 arrays, and 'images' is {name}; scale it to 0..255 first"
    for array in (IMAGES[0, 0], IMAGES[..., [0, 1, 2, 0]], IMAGES[:0], IMAGES[None], IMAGES[:, :, :0]):
        np.savez(path, images=array)
        assert complaint(path) == (
            f"'images' should have the shape [N, H, W, 3] or [N, H, W], not "
            f"{list(array.shape if array.ndim != 3 else (*array.shape, 1))}"
        )


def test_a_file_without_pictures_says_what_it_holds(path: Path) -> None:
    np.savez(path, weights=IMAGES, bias=LABELS)
    assert complaint(path) == "holds no array 'images', but weights, bias"
    np.savez(path, labels=LABELS)
    assert complaint(path) == "holds no array 'images', but labels"
    np.savez(path)
    assert complaint(path) == "holds no array 'images', but nothing"


class Hostile:
    """Would write a file when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.path,))


def test_objects_and_pickles_are_refused_and_run_nothing(tmp_path: Path, path: Path) -> None:
    trace = tmp_path / "ran"
    hostile = np.array([Hostile(trace)], dtype=object)
    np.savez(path, images=hostile)
    assert complaint(path).startswith("is not a file of numpy arrays, or it is damaged (Object arrays cannot be")
    np.save(tmp_path / "set.npy", hostile)
    assert complaint(tmp_path / "set.npy").startswith("is not a file of numpy arrays, or it is damaged (")
    path.write_bytes(pickle.dumps(Hostile(trace)))
    assert complaint(path).startswith("is not a file of numpy arrays, or it is damaged (")
    assert not trace.exists()


def test_damage_anywhere_is_a_sentence_or_does_not_matter(tmp_path: Path) -> None:
    small = IMAGES[:12, :5, :4]
    for name, save in (("a.npz", np.savez), ("b.npz", np.savez_compressed), ("c.npy", None)):
        path = tmp_path / name
        if save is None:
            np.save(path, small)
        else:
            save(path, images=small, labels=LABELS[:12])
        whole = path.read_bytes()
        generator, refused = np.random.default_rng(1), 0
        for trial in range(300):
            content = bytearray(whole)
            if trial % 3:
                area = len(content) if trial % 2 else min(160, len(content))
                for place in generator.integers(area, size=1 + trial % 3):
                    content[place] = generator.integers(256)
            else:
                del content[int(generator.integers(len(content))) :]
            path.write_bytes(content)
            try:
                read_arrays(path)
            except BadInput:
                refused += 1
        assert refused >= 100  # whatever was cut


def test_a_file_that_is_not_there_is_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_arrays(tmp_path / "none.npz")
    with pytest.raises(BadInput, match="there is no file or folder"):
        open_dataset(DataSettings(source=str(tmp_path / "none.npz")))


def test_it_becomes_a_data_set(path: Path) -> None:
    np.savez(path, images=IMAGES, labels=LABELS, test_images=TEST, test_labels=TEST_LABELS)
    data = open_dataset(DataSettings(source=str(path), limit=30))
    assert (data.name, data.num_classes, data.size, data.test_size) == ("set", 4, 32, 32)
    chosen = random_subset(len(IMAGES), 30)  # not the first: a file may be sorted by class
    assert same(data.train.images, IMAGES[chosen]) and same(data.test.images, TEST)
    assert np.allclose(data.mean, IMAGES[chosen].mean(axis=(0, 1, 2)) / 255, atol=1e-4)
    assert np.allclose(data.std, IMAGES[chosen].std(axis=(0, 1, 2)) / 255, atol=1e-4)


def test_labels_with_gaps_are_counted_from_zero(path: Path) -> None:
    labels = np.where(LABELS % 2 == 0, 7, 10**12)
    np.savez(path, images=IMAGES, labels=labels, test_images=TEST, test_labels=np.full(len(TEST), 7))
    found = read_arrays(path)
    assert found.class_names == ("7", "1000000000000")
    assert np.array_equal(found.train.labels, LABELS % 2)
    assert set(found.test.labels) == {0}
