"""Nearest neighbours of every row: exact for few, nearly so in cells."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from msvq.core.console import Display
from msvq.search import neighbours
from msvq.search.index import unit_rows
from msvq.search.neighbours import nearest_neighbours, nearest_rows
from msvq.search.search import nearest


def test_neighbours_are_what_a_full_sort_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "QUERIES", 7)
    features = unit_rows(np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32))
    cosines, rows = nearest_neighbours(features, 5, Display(), "comparing")
    expected = features @ features.T
    np.fill_diagonal(expected, -2)
    np.testing.assert_array_equal(rows, np.argsort(-expected, axis=1, kind="stable")[:, :5])
    np.testing.assert_allclose(cosines, -np.sort(-expected, axis=1)[:, :5], atol=1e-6)


def test_equal_rows_are_never_their_own_neighbours() -> None:
    cosines, rows = nearest_neighbours(np.tile(np.array([[0.6, 0.8]], np.float32), (9, 1)), 3, Display(), "comparing")
    assert not (rows == np.arange(9)[:, None]).any()
    np.testing.assert_allclose(cosines, 1, atol=1e-6)


def test_cells_find_nearly_all_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"EXACT": 100, "CELL": 40, "PROBED": 4, "SAMPLE": 300}.items():
        monkeypatch.setattr(neighbours, name, value)
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(12, 6))
    features = unit_rows((centres[generator.integers(0, 12, 600)] + 0.2 * generator.normal(size=(600, 6))).astype("f4"))
    _, found = nearest_neighbours(features, 5, Display(), "comparing")
    expected = features @ features.T
    np.fill_diagonal(expected, -2)
    best = np.argsort(-expected, axis=1)[:, :5]
    assert np.mean([len(set(a) & set(b)) / 5 for a, b in zip(found.tolist(), best.tolist(), strict=True)]) > 0.95


def test_queries_are_looked_up_among_other_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(12, 6))
    features = unit_rows((centres[generator.integers(0, 12, 600)] + 0.2 * generator.normal(size=(600, 6))).astype("f4"))
    queries = unit_rows((features[:50] + 0.01 * generator.normal(size=(50, 6))).astype(np.float32))
    best = np.argsort(-(queries @ features.T), axis=1)[:, :5]
    cosines, rows = nearest_rows(features, queries, 5, Display(), "comparing")
    np.testing.assert_array_equal(rows, best)
    np.testing.assert_allclose(cosines, np.einsum("nd,nkd->nk", queries, features[rows]), atol=1e-6)
    for name, value in {"EXACT": 100, "CELL": 40, "PROBED": 4, "SAMPLE": 300}.items():
        monkeypatch.setattr(neighbours, name, value)
    _, found = nearest_rows(features, queries, 5, Display(), "comparing")
    assert np.mean([len(set(a) & set(b)) / 5 for a, b in zip(found.tolist(), best.tolist(), strict=True)]) > 0.95


def test_pictures_that_all_look_the_same_do_not_fill_one_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"EXACT": 100, "CELL": 40, "PROBED": 2, "LARGEST": 50, "SAMPLE": 300}.items():
        monkeypatch.setattr(neighbours, name, value)
    pools = []

    def watched(features: NDArray[np.float32], queries: NDArray[np.float32], num: int) -> Any:
        pools.append(len(features))
        return nearest(features, queries, num)

    monkeypatch.setattr(neighbours, "nearest", watched)
    cosines, rows = nearest_neighbours(np.tile(np.array([[0.6, 0.8]], np.float32), (600, 1)), 3, Display(), "comparing")
    assert max(pools) <= 100
    assert not (rows == np.arange(600)[:, None]).any()
    np.testing.assert_allclose(cosines, 1, atol=1e-6)


def test_a_picture_in_a_small_cell_has_as_many_neighbours_as_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"EXACT": 10, "CELL": 2, "PROBED": 1, "SAMPLE": 40}.items():
        monkeypatch.setattr(neighbours, name, value)
    features = unit_rows(np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32))
    cosines, rows = nearest_neighbours(features, 9, Display(), "comparing")
    assert all(len({row, *found}) == 10 for row, found in enumerate(rows.tolist()))
    np.testing.assert_allclose(cosines, np.einsum("nd,nkd->nk", features, features[rows]), atol=1e-6)
