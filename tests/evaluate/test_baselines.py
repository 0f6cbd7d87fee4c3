"""Colours and tiny pictures, against something slow and obvious."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from msvq.data.store import ImageSplit
from msvq.evaluate.baselines import BASELINES, baseline_accuracies, colour_histogram, pixels_8x8
from msvq.evaluate.knn import knn_accuracy


def pictures(num: int, *, height: int = 24, width: int = 16) -> NDArray[np.uint8]:
    return np.random.default_rng(num).integers(256, size=(num, height, width, 3), dtype=np.uint8)


def test_a_histogram_counts_the_pixels_of_each_of_512_colours() -> None:
    images = pictures(5)
    found = colour_histogram(images)
    assert found.shape == (5, 512)
    for image, roots in zip(images, found.numpy(), strict=True):
        counts = np.zeros((8, 8, 8))
        for red, green, blue in image.reshape(-1, 3):
            counts[red // 32, green // 32, blue // 32] += 1
        np.testing.assert_allclose(roots**2, counts.reshape(-1) / (24 * 16), atol=1e-6)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(5))  # so that a dot product is a cosine


def test_a_histogram_of_one_colour_is_one_bin() -> None:
    found = colour_histogram(np.full((1, 4, 4, 3), 255, np.uint8))
    assert (float(found[0, 511]), float(found.sum())) == (1.0, 1.0)


def test_8x8_pixels_are_the_means_of_64_parts_less_the_mean_of_all() -> None:
    images = pictures(3)
    found = pixels_8x8(images)
    for image, pixels in zip(images, found.numpy(), strict=True):
        means = image.reshape(8, 3, 8, 2, 3).mean((1, 3))
        expected = np.moveaxis(means, 2, 0).reshape(-1)
        np.testing.assert_allclose(pixels, expected - expected.mean(), atol=1e-3)


def test_baseline_accuracies_are_those_of_knn_on_their_features() -> None:
    bank = ImageSplit(pictures(700), np.arange(700) % 3)  # more than are taken at once
    test = ImageSplit(pictures(50), np.arange(50) % 3)
    found = baseline_accuracies(bank, test, k=7, temp=0.1)
    assert list(found) == ["colour_histogram", "pixels_8x8"]
    for name, encode in BASELINES.items():
        expected = knn_accuracy(encode(bank.images), encode(test.images), (bank.labels, test.labels), k=7, temp=0.1)
        assert found[name] == pytest.approx(expected)
