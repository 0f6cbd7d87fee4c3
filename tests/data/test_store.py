"""Splits of pictures: parts, choices and batches, without copying more than is asked for."""

import hashlib
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from msvq.data import store
from msvq.data.store import ImageDataset, ImageSplit, Names

IMAGES = np.random.default_rng(0).integers(256, size=(100, 4, 4, 3), dtype=np.uint8)
PICTURES = ImageSplit(IMAGES, np.arange(100) % 2, Names.of(f"{i}.png" for i in range(100)))


def test_a_part_is_a_view_with_its_names() -> None:
    part = PICTURES.slice(10, 20)
    assert np.shares_memory(np.asarray(part.images), IMAGES)
    assert np.array_equal(part.take([0, 9]), IMAGES[[10, 19]])
    assert part.names is not None
    assert list(part.names) == [f"{i}.png" for i in range(10, 20)]


def test_a_thinned_split_is_a_random_choice_that_keeps_every_class() -> None:
    thin = PICTURES.subsample(30)  # every so many-th would be of one class: the labels alternate
    assert len(thin) == 30
    assert 5 < thin.labels.sum() < 25
    assert np.shares_memory(np.asarray(thin.images), IMAGES)
    assert thin.rows is not None
    assert np.array_equal(thin.labels, PICTURES.labels[thin.rows])
    in_order = np.concatenate(list(thin.batches_in_order(7)))
    assert np.array_equal(in_order, IMAGES[thin.rows])
    assert np.array_equal(thin.take([3, 4]), IMAGES[thin.rows[[3, 4]]])
    assert np.array_equal(thin.slice(5, 9).take(range(4)), IMAGES[thin.rows[5:9]])
    again = PICTURES.subsample(30).rows
    assert again is not None
    assert np.array_equal(again, thin.rows)
    assert PICTURES.subsample(None) is PICTURES.subsample(100) is PICTURES
    twice = thin.subsample(10)
    assert twice.rows is not None
    assert set(twice.rows) <= set(thin.rows)


def test_pictures_are_hashed_once_and_others_in_their_place_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[None] = []

    def sha256(start: bytes) -> object:
        hashed.append(None)
        return hashlib.sha256(start)

    monkeypatch.setattr(store, "hashlib", SimpleNamespace(sha256=sha256))
    data = ImageDataset("x", PICTURES, PICTURES, PICTURES, ("a", "b"), (0.5,) * 3, (0.5,) * 3, size=4, test_size=4)
    first = data.fingerprint
    assert data.fingerprint == first and len(hashed) == 1
    assert replace(data, mean=(0.1,) * 3).fingerprint == first
    assert replace(data, test=PICTURES.slice(0, 9)).fingerprint != first
