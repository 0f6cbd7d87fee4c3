"""Statistics against numbers computed by hand and from tables."""

import math
import statistics

import pytest

from msvq.reproduce.claims import Paired, paired, summarise, verdict


def test_mean_and_sample_deviation_by_hand() -> None:
    summary = summarise([1.0, 2.0, 6.0])
    assert summary is not None and summary.std is not None
    assert summary.mean == 3.0
    assert summary.std == pytest.approx(math.sqrt((4 + 1 + 9) / 2))
    assert summarise([5.0]) == (5.0, None)
    assert summarise([]) is None


@pytest.mark.parametrize(  # critical values of any printed table: (t, degrees, one-sided p)
    ("t", "degrees", "p"),
    [(6.314, 1, 0.05), (2.920, 2, 0.05), (2.353, 3, 0.05), (4.541, 3, 0.01), (2.132, 4, 0.05), (1.812, 10, 0.05)],
)
def test_the_tail_of_students_t(t: float, degrees: int, p: float) -> None:
    def p_of(t: float) -> float | None:
        """Of seeds whose differences have this t: values of deviation 1 around t / sqrt(n)."""
        num = degrees + 1
        spread = statistics.stdev(range(num))
        values = {seed: (seed - degrees / 2) / spread + t / math.sqrt(num) for seed in range(num)}
        found = paired(values, dict.fromkeys(values, 0.0))
        return None if found is None else found.p

    assert p_of(t) == pytest.approx(p, abs=1e-4)
    assert p_of(-t) == pytest.approx(1 - p, abs=1e-4)
    assert p_of(0) == pytest.approx(0.5)


def test_the_paired_test_by_hand() -> None:
    found = paired({0: 50.0, 1: 52.0, 2: 51.0}, {0: 49.0, 1: 50.0, 2: 48.0})  # differences 1, 2, 3
    assert found is not None
    assert (found.mean, found.std, found.num_seeds) == (2.0, 1.0, 3)
    # t = 2 / (1 / sqrt 3); with two degrees of freedom the tail is (1 - t / sqrt(2 + t²)) / 2
    t = 2 * math.sqrt(3)
    assert found.p == pytest.approx((1 - t / math.sqrt(2 + t * t)) / 2)
    assert found.p == pytest.approx(0.0371, abs=1e-4)


def test_pairs_are_seeds_that_both_have() -> None:
    found = paired({0: 1.0, 1: 2.0, 7: 9.0}, {0: 0.0, 1: 0.0, 8: 9.0})
    assert found is not None and found.num_seeds == 2
    assert paired({0: 1.0}, {1: 1.0}) is None


def test_equal_differences_are_certain() -> None:
    assert paired({0: 2.0, 1: 3.0}, {0: 1.0, 1: 2.0}) == (1.0, 0.0, 2, 0.0)
    assert paired({0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0}) == (0.0, 0.0, 2, 0.5)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (None, "not measured"),
        (Paired(-0.1, 0.1, 3, 0.96), "not held"),
        (Paired(-0.1, 0.1, 3, 0.9), "not held, within the noise"),
        (Paired(0.0, None, 1, None), "not held, one seed"),
        (Paired(0.5, None, 1, None), "held, one seed"),
        (Paired(0.5, 0.9, 3, 0.2), "held, within the noise"),
        (Paired(0.5, 0.1, 3, 0.01), "held"),
    ],
)
def test_verdicts(found: Paired | None, words: str) -> None:
    assert verdict(found) == words
