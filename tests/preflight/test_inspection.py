"""A look at pictures: which are copies of which, and what batch suits how many."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageEnhance

from msvq.config.adapt import fit_to_count, fit_to_data, fit_vote
from msvq.config.resolve import resolve
from msvq.config.settings import Settings
from msvq.core.console import Display
from msvq.data.decode import IMAGE_RECORD, examine, record_of
from msvq.data.sources.arrays import ArrayImages
from msvq.data.sources.folders import list_folder
from msvq.data.store import ImageSplit
from msvq.preflight import inspection
from msvq.preflight.inspection import WINDOW, find_copies, inspect_pictures, near_pairs


def scene(seed: int, side: int = 64) -> Image.Image:
    """A smooth picture with shapes as photographs have, another one for each seed."""
    coarse = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC)


def saved(image: Image.Image, **options: int) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG" if options else "PNG", **options)
    return file.getvalue()


def facts(*pictures: bytes) -> NDArray[np.void]:
    return np.array([examine(picture) for picture in pictures], IMAGE_RECORD)


def num_near(*pictures: bytes) -> int:
    rows = facts(*pictures)
    return len(near_pairs(rows["dhash"], rows["thumbnail"]).T)


def num_copies(rows: NDArray[np.void], is_train: NDArray[np.bool_]) -> list[int]:
    """Within train, and of train in test."""
    return [len(copies.exact.T) + len(copies.near.T) for copies in find_copies(rows, is_train)]


def test_a_picture_saved_again_is_almost_equal() -> None:
    for seed in range(5):
        image = scene(seed)
        brighter = ImageEnhance.Brightness(image).enhance(1.04)
        smaller = image.resize((40, 40), Image.Resampling.LANCZOS)
        others = (saved(image, quality=60), saved(brighter), saved(smaller))
        assert num_near(saved(image), *others) == 6  # all pairs of four


def test_different_pictures_are_not() -> None:
    assert num_near(*(saved(scene(seed)) for seed in range(100))) == 0
    noise = (np.random.default_rng(s).integers(0, 256, (32, 32, 3), dtype=np.uint8) for s in range(50))
    assert num_near(*(saved(Image.fromarray(pixels)) for pixels in noise)) == 0
    colours = ("white", "black", "red", "green", "blue", "yellow", (100, 100, 100), (110, 110, 110))
    assert num_near(*(saved(Image.new("RGB", (32, 32), colour)) for colour in colours)) == 0


def test_copies_within_train_and_into_test() -> None:
    one, two, three = (scene(seed) for seed in range(3))
    rows = facts(
        *(saved(one), saved(two), saved(one), saved(one, quality=70)),  # train
        *(saved(two), saved(three), saved(one, quality=80)),  # test
    )
    copies, overlap = find_copies(rows, np.arange(7) < 4)
    assert copies.exact.T.tolist() == [[2, 0]]
    assert copies.near.T.tolist() == [[3, 0]]
    assert overlap.exact.T.tolist() == [[4, 1]]
    assert overlap.near.T.tolist() == [[6, 0]]


def test_test_pictures_that_repeat_each_other_are_no_copies() -> None:
    rows = facts(saved(scene(0)), saved(scene(1)), saved(scene(1)))
    assert num_copies(rows, np.array([True, False, False])) == [0, 0]


def test_nothing_to_look_at() -> None:
    assert num_copies(np.zeros(0, IMAGE_RECORD), np.zeros(0, bool)) == [0, 0]


@pytest.mark.parametrize("kind", ["identical", "fixed camera", "alike in look alone"])
def test_many_pictures_that_look_alike_take_no_longer(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    generator, num = np.random.default_rng(0), 20_000
    rows = np.zeros(num, IMAGE_RECORD)
    rows["content"] = [str(i).encode() for i in range(num)]
    rows["dhash"] = generator.integers(0, 2**63, num, dtype=np.uint64)
    rows["thumbnail"] = generator.integers(0, 256, (num, 8, 8, 3))
    half = rows[: num // 2]
    half["dhash"] = 0
    if kind == "identical":
        half["thumbnail"] = 255
    else:
        base = generator.integers(0, 200, (1, 8, 8, 3)) if kind == "fixed camera" else 128
        half["thumbnail"] = base + generator.integers(0, 16, (num // 2, 8, 8, 3))
    compared: list[int] = []
    difference = inspection._difference

    def counted(*arguments: Any) -> Any:
        found = difference(*arguments)
        compared.append(found.size)
        return found

    monkeypatch.setattr(inspection, "_difference", counted)
    copies, overlap = find_copies(rows, np.arange(num) < num - 100)
    assert sum(compared) <= inspection.MOST_TRIES * num  # all pairs would take minutes
    assert overlap.exact.size == overlap.near.size == 0
    found = copies.near.shape[1]
    if kind == "identical":
        assert found == num // 2 - 1
    else:
        assert found > 0.9 * num // 2 if kind == "fixed camera" else found == 0


def test_few_pictures_miss_nothing() -> None:
    """The bands find what comparing all with all does."""
    generator = np.random.default_rng(0)
    base = generator.integers(0, 2**63, 100, dtype=np.uint64)
    flips = [sum(1 << int(b) for b in generator.choice(64, bits % 9, replace=False)) for bits in range(100)]
    look = np.concatenate([base, base ^ np.array(flips, np.uint64)])
    thumbnails = np.tile(generator.integers(0, 256, (100, 8, 8, 3), dtype=np.uint8), (2, 1, 1, 1))
    assert len(look) < WINDOW
    assert near_pairs(look, thumbnails).T.tolist() == [[i, i + 100] for i in range(100) if i % 9 <= 7]


def test_files_and_arrays_are_seen_alike(tmp_path: Path) -> None:
    for seed in range(6):
        scene(seed).save(tmp_path / f"{seed}.png")
    (tmp_path / "3.png").write_bytes(b"no picture")
    seen = inspect_pictures(list_folder(tmp_path), 1, Display())
    assert seen.readable.tolist() == [0, 1, 2, 4, 5]
    assert seen.unreadable == ((3, "is not a picture"),)
    pixels = np.stack([np.asarray(scene(seed)) for seed in (0, 1, 2, 4, 5)])
    train = ImageSplit(pixels[:3], np.zeros(3, np.int64))
    arrays = inspect_pictures(
        ArrayImages(train, train, ImageSplit(pixels[3:], np.ones(2, np.int64)), ("a", "b")), 1, Display()
    )
    assert arrays.num_train == 3
    assert list(arrays.names) == ["train 0", "train 1", "train 2", "test 0", "test 1"]
    for key in ("dhash", "thumbnail", "width", "height"):
        assert (seen.records[key] == arrays.records[key]).all()


def test_odd_shapes_and_a_broken_orientation_have_facts() -> None:
    for size in ((1, 1), (20_000, 3), (3, 20_000)):
        row = examine(saved(Image.new("RGB", size, "red")))
        assert [int(row["width"]), int(row["height"])] == list(size)
    assert record_of(np.zeros((1, 1, 3), np.uint8))["format"] == "array"
    exif = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x02\0\x03\0\0\0up\0\0\0\0\0\0"  # the orientation is a word
    file = io.BytesIO()
    scene(0).resize((30, 20)).save(file, "JPEG", exif=exif)
    assert Image.open(file).getexif()[0x0112] == "up"
    assert examine(file.getvalue())["width"] == 30


@pytest.mark.parametrize(
    ("given", "fitting"),
    [
        ((50_000, 256, 4096, 8), (256, 4096)),
        ((8192, 256, 4096, 8), (256, 4096)),
        ((8191, 256, 4096, 8), (256, 3840)),
        ((1024, 256, 4096, 8), (256, 512)),
        ((1023, 256, 4096, 8), (128, 384)),
        ((1000, 100, 400, 8), (100, 400)),  # fits: unchanged, whatever it is
        ((300, 256, 4096, 8), (64, 128)),
        ((300, 48, 4096, 8), (48, 144)),
        ((100, 60, 0, 1), (16, 0)),  # no queue
        ((40, 256, 4096, 8), (8, 16)),
        ((32, 256, 4096, 8), (8, 16)),
        ((31, 256, 4096, 8), (16, 16)),
        ((7, 256, 4096, 8), (4, 4)),
        ((1, 256, 4096, 8), (2, 2)),
        ((300, 256, 4096, 6), (60, 120)),  # a multiple of the batch-norm groups
    ],
)
def test_batch_and_queue_fit_the_count(given: tuple[int, int, int, int], fitting: tuple[int, int]) -> None:
    assert fit_to_count(*given) == fitting


@pytest.mark.parametrize("num", [10, 100, 300, 1000, 50_000])
@pytest.mark.parametrize("batch", [8, 200, 256])
def test_a_batch_that_was_asked_for_is_kept_and_fits_the_queue(num: int, batch: int) -> None:
    kept, queue = fit_to_count(num, batch, 4096, 8, keep_batch=True)
    assert kept == batch <= queue <= 4096
    assert queue % batch == 0 or queue == 4096
    assert queue <= max(batch, num // 2)


def queue_of(settings: Settings) -> int:
    return int((settings.method.get("base_options") or settings.method)["queue_size"])


def test_fewer_neighbours_vote_where_classes_are_small_unless_they_are_named() -> None:
    settings, labels = resolve(data="patterns"), np.arange(20).repeat(128)
    fitted, notes = fit_vote(settings, labels, keep=[])
    assert fitted.evaluate.knn_k == 128
    assert notes == ["2,560 labelled pictures: 128 nearest neighbours vote instead of 200"]
    assert fit_vote(settings, labels, keep=["evaluate.knn_k"]) == (settings, [])
    assert fit_vote(settings, labels[:0], keep=[]) == (settings, [])


@pytest.mark.parametrize("method", ["msvq", "unmix"])
def test_the_settings_keep_the_batch_that_was_asked_for(method: str) -> None:
    settings = resolve(data="patterns", method=method, overrides=["train.batch_size=256"])
    fitted, notes = fit_to_data(settings, 300, keep=["train.batch_size"])
    assert (fitted.train.batch_size, queue_of(fitted)) == (256, 256)
    assert notes == [f"300 pictures: the queue holds 256 instead of {queue_of(settings):,}"]
