"""Members of classes, and the shares that are chosen of them: as the plain loop over the classes gives them."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from msvq.data.sources.base import HELD_OUT, hold_out
from msvq.data.store import FIXED_SEED, by_class
from msvq.evaluate.labels import held_out, stratified

Labels = NDArray[np.int64]
MIXED = np.random.default_rng(0)
CASES: dict[str, Labels] = {
    "nothing": np.zeros(0, np.int64),
    "no labels": np.full(5, -1),
    "one class": np.zeros(7, np.int64),
    "one of each": np.array([3, 0, 2, 1]),
    "in order": np.repeat([0, 1, 2], [10, 25, 1]),
    "gaps": MIXED.permutation(np.repeat([2, 7, 40], [1, 30, 12])),
    "gaps and unknown ones": MIXED.permutation(np.repeat([-1, 0, 5, 6, 900], [20, 2, 33, 7, 50])),
}


def members(labels: Labels) -> Iterator[Labels]:
    """Also of the classes that have none."""
    for label in range(int(labels.max(initial=-1)) + 1):
        yield np.flatnonzero(labels == label)


def taken(labels: Labels, seed: int, count: Callable[[int], int]) -> tuple[list[int], list[int]]:
    """So many of each class by the generator's order of them, and the others."""
    generator, chosen, others = np.random.default_rng(seed), list[int](), list[int]()
    for rows in members(labels):
        order = generator.permutation(rows).tolist()
        num = count(len(order))
        chosen += order[:num]
        others += order[num:]
    return sorted(chosen), sorted(others)


@pytest.mark.parametrize("labels", CASES.values(), ids=CASES)
def test_the_members_of_each_class_are_in_their_order(labels: Labels) -> None:
    assert [rows.tolist() for rows in by_class(labels)] == [rows.tolist() for rows in members(labels) if len(rows)]


@pytest.mark.parametrize("labels", CASES.values(), ids=CASES)
def test_the_pictures_that_are_held_out_stay_the_same(labels: Labels) -> None:
    expected, _ = taken(labels, FIXED_SEED, lambda num: max(round(HELD_OUT * num), min(1, num - 1)))
    assert hold_out(labels).tolist() == expected


@pytest.mark.parametrize("share", [0.1, 0.35, 0.8])
@pytest.mark.parametrize("name", [name for name, labels in CASES.items() if (labels >= 0).any()])
def test_a_share_of_the_labels_stays_the_same(name: str, share: float) -> None:
    labels = CASES[name]
    expected, _ = taken(labels, 3, lambda num: max(1, int(np.floor(share * num + 0.5))))
    assert stratified(labels, share, seed=3).tolist() == expected
    out, rest = taken(labels, 3, lambda num: min(num - 1, max(1, int(np.floor(share * num + 0.5)))))
    assert [rows.tolist() for rows in held_out(labels, share, seed=3)] == [rest, out]
