"""Shares of the labels, held-out parts, batches of labelled pictures, and what counts as right."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from msvq.core.errors import BadInput
from msvq.data.store import ImageDataset, ImageSplit
from msvq.evaluate.features import Scores, scores
from msvq.evaluate.labels import PLAIN, LabelledViews, held_out, stratified, usable_rows

# Classes of 1, 2, 7, 100 and 1000 pictures, and 50 without a label, in mixed order.
SIZES = (1, 2, 7, 100, 1000)
LABELS: NDArray[np.int64] = np.random.default_rng(3).permutation(
    np.concatenate([np.full(50, -1), np.repeat(np.arange(5), SIZES)]).astype(np.int64)
)


@pytest.mark.parametrize("share", [0.001, 0.01, 0.1, 0.25, 0.5, 0.9])
def test_a_share_keeps_the_proportions_to_within_one_picture(share: float) -> None:
    rows = stratified(LABELS, share, seed=0)
    assert (np.diff(rows) > 0).all()  # sorted, none twice
    counts = np.bincount(LABELS[rows], minlength=5)  # refuses -1
    for count, size in zip(counts, SIZES, strict=True):
        assert count >= 1
        assert abs(count - share * size) < 1


def test_a_share_is_seeded_and_part_of_a_larger_one() -> None:
    rows = stratified(LABELS, 0.1, seed=5)
    assert np.array_equal(rows, stratified(LABELS, 0.1, seed=5))
    assert not np.array_equal(rows, stratified(LABELS, 0.1, seed=6))
    assert set(rows) < set(stratified(LABELS, 0.3, seed=5))


def test_a_share_is_the_same_on_every_platform() -> None:
    labels = np.arange(20, dtype=np.int64) % 2
    assert stratified(labels, 0.3, seed=1).tolist() == [1, 3, 8, 14, 16, 17]


def test_the_whole_share_is_all_labelled_rows() -> None:
    assert np.array_equal(stratified(LABELS, 1.0, seed=0), np.flatnonzero(LABELS >= 0))


def test_equal_classes_stay_equal() -> None:
    rows = stratified(np.arange(250, dtype=np.int64) % 10, 0.1, seed=0)  # 2.5 pictures of each
    assert np.bincount(np.arange(250)[rows] % 10).tolist() == [3] * 10


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.99])
def test_a_held_out_part_and_the_rest_are_all(share: float) -> None:
    rest, held = held_out(LABELS, share, seed=0)
    assert np.array_equal(np.sort(np.concatenate([rest, held])), np.flatnonzero(LABELS >= 0))
    assert (np.diff(rest) > 0).all() and (np.diff(held) > 0).all()
    kept, out = (np.bincount(LABELS[rows], minlength=5) for rows in (rest, held))
    assert kept[0] == 1 and out[0] == 0  # the single picture of a class remains
    assert (kept >= 1).all() and (out[1:] >= 1).all()
    assert (abs(out[2:] - share * np.array(SIZES[2:])) <= 1).all()


@pytest.mark.parametrize("share", [0.0, -1.0, 1.5, float("nan")])
def test_a_share_that_is_none(share: float) -> None:
    for choose in (stratified, held_out):
        with pytest.raises(BadInput, match="share"):
            choose(LABELS, share, 0)


def test_without_labels_there_is_nothing_to_choose_or_learn() -> None:
    nothing = np.full(9, -1, np.int64)
    for choose in (stratified, held_out):
        with pytest.raises(BadInput, match="no labelled picture"):
            choose(nothing, 0.5, 0)
    with pytest.raises(BadInput, match="no labelled picture"):
        usable_rows(nothing)
    with pytest.raises(BadInput, match="no labelled picture"):
        usable_rows(LABELS, np.zeros(0, np.int64))
    with pytest.raises(BadInput, match="one class"):
        usable_rows(LABELS, np.flatnonzero(LABELS == 3))


def test_rows_without_a_label_are_left_out() -> None:
    assert np.array_equal(usable_rows(LABELS), np.flatnonzero(LABELS >= 0))
    assert (LABELS[usable_rows(LABELS, np.arange(600))] >= 0).all()


def numbered(num: int, *, size: int = 8) -> ImageSplit:
    """Pictures whose grey level is their number, and whose label is its last digit."""
    images = np.broadcast_to(np.arange(num, dtype=np.uint8)[:, None, None, None], (num, size, size, 3))
    return ImageSplit(images, np.arange(num, dtype=np.int64) % 10)


def views_of(rows: NDArray[np.int64] | None, *, batch_size: int, even: bool = False, seed: int = 0) -> LabelledViews:
    bank = numbered(200)
    data = ImageDataset("numbers", bank, bank, bank, tuple("0123456789"), (0.0,) * 3, (1 / 255,) * 3, 8, 8)
    return LabelledViews(
        data, rows, view=PLAIN, batch_size=batch_size, seed=seed, device=torch.device("cpu"), even=even
    )


def test_some_of_some_pictures_are_those() -> None:
    some = numbered(100).select(np.arange(1, 100, 2)).select(np.array([3, 0]))
    assert some.take([0, 1])[:, 0, 0, 0].tolist() == [7, 1]
    assert some.labels.tolist() == [7, 1]


@pytest.mark.parametrize(("even", "sizes"), [(False, [8, 8, 8, 2]), (True, [7, 7, 6, 6])])
def test_an_epoch_shows_every_chosen_picture_once_with_its_label(even: bool, sizes: list[int]) -> None:
    rows = np.arange(3, 29, dtype=np.int64)
    views = views_of(rows, batch_size=8, even=even)
    batches = list(views.epoch(0))
    assert [len(labels) for _, labels in batches] == sizes
    assert len(views) == len(batches)
    shown = torch.cat([pictures[:, 0, 0, 0].round().long() for pictures, _ in batches])
    assert sorted(shown.tolist()) == rows.tolist()
    assert torch.equal(shown % 10, torch.cat([labels for _, labels in batches]))
    other = torch.cat([pictures[:, 0, 0, 0].round().long() for pictures, _ in views.epoch(1)])
    assert not torch.equal(shown, other)  # another order
    again = torch.cat([pictures[:, 0, 0, 0].round().long() for pictures, _ in views.epoch(0)])
    assert torch.equal(shown, again)


def test_crops_are_drawn_anew_each_epoch() -> None:
    images = np.random.default_rng(0).integers(0, 256, (1, 16, 16, 3), dtype=np.uint8).repeat(20, 0)
    bank = ImageSplit(images, np.arange(20, dtype=np.int64) % 2)
    data = ImageDataset("noise", bank, bank, bank, ("a", "b"), (0.0,) * 3, (1.0,) * 3, 8, 16)
    views = LabelledViews(data, None, view=PLAIN, batch_size=20, seed=0, device=torch.device("cpu"))
    (first, _), (second, _) = next(views.epoch(0)), next(views.epoch(1))
    assert first.shape == (20, 3, 8, 8)  # crops of the training size
    # A crop falls on whole pixels, so that two of 40 may well be the same.
    assert len(torch.unique(torch.cat([first, second]), dim=0)) > 35


def test_top1_and_top5_by_hand() -> None:
    logits = torch.tensor([[6.0, 5, 4, 3, 2, 1], [6, 5, 4, 3, 2, 1], [6, 5, 4, 3, 2, 1], [6, 5, 4, 3, 2, 1]])
    assert scores(logits, torch.tensor([0, 1, 4, 5])) == Scores(25.0, 75.0)
    assert scores(logits[:, :3], torch.tensor([0, 1, 2, -1])) == Scores(25.0, 75.0)  # three classes: top-3


def test_a_tie_makes_one_class_right_and_five_of_ten() -> None:
    found = scores(torch.zeros(10, 10), torch.arange(10))
    assert found == Scores(10.0, 50.0)


def test_no_test_picture_no_accuracy() -> None:
    with pytest.raises(BadInput, match="test"):
        scores(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
