"""Changed copies and whether they find their originals, against something slow and obvious."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from msvq.data.patterns import make_patterns
from msvq.data.store import ImageDataset, ImageSplit
from msvq.evaluate.baselines import BASELINES, pixels_8x8
from msvq.evaluate.diagnostics import copies
from msvq.evaluate.diagnostics.copies import (
    make_changed_copies,
    measure_copies,
    measure_recall,
    places_of_originals,
)
from msvq.evaluate.results import standard_error


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def recall_of(images: NDArray[np.uint8], **encoders: Any) -> dict[str, dict[str, float]]:
    return measure_recall([images], encoders)


def split(num: int) -> ImageSplit:
    return ImageSplit(np.zeros((num, 8, 8, 3), np.uint8), np.full(num, -1, np.int64))


def dataset(num_train: int, num_test: int) -> ImageDataset:
    ones = (1.0, 1.0, 1.0)
    return ImageDataset("x", split(num_train), split(0), split(num_test), (), ones, ones, 8, 8)


def test_places_are_those_of_a_loop_over_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "rows_at_once", lambda bank: 7)  # so that rows come in portions
    originals, changed = torch.randn(2, 40, 5, generator=seeded())
    changed += originals
    found = places_of_originals(originals, changed)
    for row, copy in enumerate(changed):
        cosines = [float(torch.cosine_similarity(copy, original, dim=0)) for original in originals]
        assert float(found[row]) == sum(cosine > cosines[row] for cosine in cosines)
    assert 0 < float((found == 0).float().mean()) < 1


def test_an_encoder_that_gives_all_pictures_the_same_features_finds_nothing() -> None:
    same = torch.ones(30, 4)
    assert places_of_originals(same, same).tolist() == [14.5] * 30


def test_a_picture_that_is_there_twice_is_found_by_either_copy() -> None:
    features = torch.eye(4)[[0, 0, 1, 2]]
    assert places_of_originals(features, features).tolist() == [0.5, 0.5, 0, 0]


def test_features_that_are_no_numbers_find_nothing() -> None:
    broken = torch.full((30, 4), math.nan)
    assert places_of_originals(broken, broken).tolist() == [30] * 30
    assert places_of_originals(torch.eye(4), broken[:4]).tolist() == [4] * 4


def test_copies_are_changed_the_same_way_each_time_and_each_in_its_own() -> None:
    images = np.repeat(make_patterns(1, seed=0)[0], 6, axis=0)
    first, second = (make_changed_copies(images, seeded(3)) for _ in range(2))
    assert np.array_equal(first, second) and first.shape == images.shape and first.dtype == np.uint8
    assert len({copy.tobytes() for copy in first}) == 6
    assert not np.array_equal(first, make_changed_copies(images, seeded(4)))


def test_copies_of_grey_pictures_are_grey_and_of_long_ones_square() -> None:
    grey = np.repeat(np.random.default_rng(0).integers(256, size=(3, 30, 50, 1), dtype=np.uint8), 3, axis=3)
    changed = make_changed_copies(grey, seeded())
    assert changed.shape == (3, 30, 30, 3)
    assert int(np.ptp(changed.astype(int), axis=3).max()) <= 1


def test_recall_counts_those_found_first_and_among_ten() -> None:
    images = make_patterns(25, seed=1)[0]

    def knows(shown: NDArray[np.uint8]) -> Tensor:
        """A perfect encoder: what it is asked about comes in the order of the originals, first those, then copies."""
        return torch.eye(25)

    def off_by(num: int) -> Any:
        answers = iter((torch.eye(25), torch.eye(25).roll(num, 0) + 0.5 * torch.eye(25)))
        return lambda shown: next(answers)

    found = recall_of(images, perfect=knows, second=off_by(1))
    assert (found["perfect"]["at_1"], found["perfect"]["at_10"]) == (100, 100)
    assert (found["second"]["at_1"], found["second"]["at_10"]) == (0, 100)
    assert found["perfect"]["at_1_error"] == pytest.approx(100 * standard_error(1.0, 25)) != 0


@pytest.mark.parametrize("num", [1, 2, 12])
def test_a_handful_of_pictures_is_enough_to_run_the_test(num: int) -> None:
    for values in recall_of(make_patterns(num, seed=2)[0], **BASELINES).values():
        assert values["at_10"] >= values["at_1"] >= 0 and all(map(math.isfinite, values.values()))


def test_batches_do_not_matter_to_where_originals_are_looked_for() -> None:
    images = make_patterns(40, seed=3)[0]
    seen: list[int] = []

    def encode(shown: NDArray[np.uint8]) -> Tensor:
        seen.append(len(shown))
        return pixels_8x8(shown)

    measure_recall([images[:30], images[30:]], {"one": encode})
    assert seen == [30, 30, 10, 10]
    again = [measure_recall([images[:30], images[30:]], BASELINES) for _ in range(2)]
    assert again[0] == again[1]


@pytest.mark.parametrize(
    ("train", "test", "held_out", "num"),
    [(50, 0, 0, 50), (50, 20, 20, 70), (5000, 20, 20, 2000), (9, 3000, 2000, 2000)],
)
def test_held_out_pictures_come_first_and_others_fill_up(train: int, test: int, held_out: int, num: int) -> None:
    seen: list[int] = []

    def features(encoder: nn.Module, pictures: ImageSplit) -> Tensor:
        seen.append(len(pictures))
        return torch.zeros(len(pictures), 2)

    found = measure_copies(dataset(train, test), {"one": nn.Identity()}, features)
    assert (found["pictures"], found["held_out"], sum(seen)) == (num, held_out, 2 * num)  # and a copy of each
    assert set(found["recall"]) == {"one", *BASELINES}


def test_the_error_is_wilsons() -> None:
    for share, num in ((0.2, 50), (0.0, 12), (1.0, 1)):
        low, high = (
            (share + 1 / (2 * num) + sign * math.sqrt(share * (1 - share) / num + 1 / (4 * num**2))) / (1 + 1 / num)
            for sign in (-1, 1)
        )
        assert standard_error(share, num) == pytest.approx((high - low) / 2)
